import pytest

from greentrain.power.nvml import VisibleGpu, index_order_is_sure, visible_devices

GPUS = [
    ("GPU-9e8d35e3-1111-0000-0000-000000000000", []),
    ("GPU-9e8d35e3-2222-0000-0000-000000000000", []),
    ("GPU-0a0b0c0d-3333-0000-0000-000000000000", ["MIG-aaaa", "MIG-bbbb"]),
    ("GPU-ffffffff-4444-0000-0000-000000000000", []),
]


def positions(text: str) -> list[int]:
    return [gpu.position for gpu in visible_devices({"CUDA_VISIBLE_DEVICES": text}, GPUS)]


def test_all_devices_are_visible_when_the_variable_is_not_set() -> None:
    found = visible_devices({}, GPUS)
    assert [gpu.position for gpu in found] == [0, 1, 2, 3]
    assert [gpu.mig_uuid for gpu in found] == [None, None, "MIG-aaaa", None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("   ", []),
        ("NoDevFiles", []),
        ("none", []),
        ("-1", []),
        ("0", [0]),
        ("3,1", [3, 1]),
        (" 1 , 3 ", [1, 3]),
        ("0,1,-1,3", [0, 1]),
        ("0,9,1", [0]),
        ("4", []),
        ("1,1", []),
        ("0,3,0", []),
        ("0,,1", [0]),
        ("1gpu3,3ampere", [1, 3]),
        ("+1", [1]),
        ("0,x,1", [0]),
    ],
)
def test_indices_follow_cuda(text: str, expected: list[int]) -> None:
    assert positions(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU-ffffffff-4444-0000-0000-000000000000", [3]),
        ("GPU-ffffffff,GPU-0a0b", [3, 2]),
        ("GPU-f", [3]),
        ("GPU-9e8d35e3-2", [1]),
        ("GPU-9e8d35e3", []),
        ("GPU-", []),
        ("GPU-f,GPU-unknown,GPU-0", [3]),
        ("GPU-f,GPU-ffff", []),
        ("gpu-f", []),
        ("GPU-f, GPU-9e8d35e3-1", [3, 0]),
    ],
)
def test_uuids_and_their_unique_prefixes_follow_cuda(text: str, expected: list[int]) -> None:
    assert positions(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("GPU-f,1", [3]), ("1,GPU-f", [1]), ("GPU-f,MIG-aaaa", [3]), ("MIG-bbbb,GPU-f", [2]), ("MIG-bbbb,0", [2])],
)
def test_an_entry_of_another_kind_ends_the_list(text: str, expected: list[int]) -> None:
    assert positions(text) == expected


def test_a_slice_is_named_by_its_uuid_and_belongs_to_its_gpu() -> None:
    found = visible_devices({"CUDA_VISIBLE_DEVICES": "MIG-bbbb,MIG-aaaa"}, GPUS)
    assert found == (VisibleGpu(position=2, mig_uuid="MIG-bbbb"), VisibleGpu(position=2, mig_uuid="MIG-aaaa"))
    assert positions("MIG-aaaa,MIG-aaaa") == []
    assert positions("MIG-aa") == []
    assert positions("MIG-unknown,MIG-aaaa") == []


def test_a_slice_in_the_form_of_old_drivers_is_found_through_its_gpu() -> None:
    text = "MIG-GPU-0a0b0c0d-3333-0000-0000-000000000000/1/0"
    assert visible_devices({"CUDA_VISIBLE_DEVICES": text}, GPUS) == (VisibleGpu(position=2, mig_uuid=text),)
    assert positions("MIG-GPU-0a0b0c0d-3333-0000-0000-000000000000/1") == []
    assert positions("MIG-GPU-00000000-0000-0000-0000-000000000000/1/0") == []


def test_a_gpu_with_slices_named_as_a_whole_stands_for_its_first_slice() -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "2"}, GPUS) == (VisibleGpu(position=2, mig_uuid="MIG-aaaa"),)


def test_a_machine_without_gpus_has_none_visible() -> None:
    assert visible_devices({}, []) == ()
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "0"}, []) == ()


@pytest.mark.parametrize(
    ("environ", "names", "sure"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["A", "B"], False),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["A", "B"], True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["A", "A"], True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, ["A", "B"], True),
        ({}, ["A", "B"], True),
    ],
)
def test_an_index_is_doubtful_only_where_cuda_may_order_unlike_gpus(
    environ: dict[str, str], names: list[str], sure: bool
) -> None:
    assert index_order_is_sure(environ, names) is sure
