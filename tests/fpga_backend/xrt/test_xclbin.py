import dataclasses
import struct
from pathlib import Path

import pytest

from greentrain.fpga_backend.csim.kernels import KERNELS, REGIONS, STREAMS, WORK, Argument, KernelSpec
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.xrt import xclbin
from greentrain.fpga_backend.xrt import xclbin as axlf
from greentrain.testing.xrt_noop import DESIGN
from tools import noop_xclbin
from tools.kernel_documents import PLATFORM


def test_the_design_of_the_emulation_is_up_to_date(design: Path) -> None:
    """If not: python -m tools.noop_xclbin."""
    assert DESIGN.read_bytes() == design.read_bytes()


def test_what_is_written_is_read(design: Path) -> None:
    found = xclbin.read(design)
    assert found.platform == PLATFORM
    assert [kernel.name for kernel in found.kernels] == [kernel.name for kernel in KERNELS]
    for kernel, linked in zip(KERNELS, found.kernels, strict=True):
        assert [a.name for a in linked.arguments] == [a.name for a in kernel.arguments]
        assert [a.pointer for a in linked.arguments] == [a.kind == "pointer" for a in kernel.arguments]
        assert [a.memory for a in linked.arguments] == [a.bank for a in kernel.arguments]
    channels = sum(region.last - region.first + 1 for region in REGIONS)
    assert sum(memory.nbytes for memory in found.memories) == channels * noop_xclbin.CHANNEL_BYTES


def test_each_region_gets_its_memory(design: Path) -> None:
    memories = xclbin.check(xclbin.read(design), KERNELS)
    assert {bank: memory.tag for bank, memory in memories.items()} == {region.bank: region.tag for region in REGIONS}


def test_the_uuid_follows_from_the_content(tmp_path: Path, design: Path) -> None:
    again, other = tmp_path / "again.xclbin", tmp_path / "other.xclbin"
    noop_xclbin.write(again, KERNELS, REGIONS)
    noop_xclbin.write(other, KERNELS[1:], REGIONS)
    assert xclbin.read(again).uuid == xclbin.read(design).uuid != xclbin.read(other).uuid


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"gone.xclbin cannot be read: No such file"):
        xclbin.read(tmp_path / "gone.xclbin")
    text = tmp_path / "notes.txt"
    text.write_bytes(b"not a design" * 100)
    with pytest.raises(DeviceError, match="no xclbin: it begins with"):
        xclbin.read(text)


def test_every_cut_is_found(tmp_path: Path, design: Path) -> None:
    data, path = design.read_bytes(), tmp_path / "cut.xclbin"
    for length in (0, 5, 100, 400, 500, 700, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(DeviceError, match=r"cut short|no xclbin"):
            xclbin.read(path)


def test_a_section_beyond_the_end_is_found(tmp_path: Path, design: Path) -> None:
    data, path = bytearray(design.read_bytes()), tmp_path / "bent.xclbin"
    struct.pack_into("<Q", data, axlf.TOP.size + axlf.HEADER.size + 32, 2**40)  # size of the first section
    path.write_bytes(bytes(data))
    with pytest.raises(DeviceError, match="damaged: section 2 ends at byte"):
        xclbin.read(path)


@pytest.mark.parametrize("kind", [axlf.EMBEDDED_METADATA, axlf.IP_LAYOUT, axlf.GROUP_CONNECTIVITY])
def test_damaged_metadata_is_an_error_of_its_own(tmp_path: Path, design: Path, kind: int) -> None:
    found, path = axlf.parse(design), tmp_path / "bad.xclbin"
    path.write_bytes(noop_xclbin.build(found.platform, {**found.sections, kind: b"\x07\0\0\0"}))
    with pytest.raises(DeviceError, match="damaged: its metadata cannot be read"):
        xclbin.read(path)


def test_a_design_without_metadata_or_kernels(tmp_path: Path, design: Path) -> None:
    found, path = axlf.parse(design), tmp_path / "empty.xclbin"
    path.write_bytes(noop_xclbin.build("shell", {}))
    with pytest.raises(DeviceError, match="has no section"):
        xclbin.read(path)
    path.write_bytes(noop_xclbin.build("shell", {**found.sections, axlf.EMBEDDED_METADATA: b"<project/>"}))
    with pytest.raises(DeviceError, match="holds no kernels"):
        xclbin.read(path)


def _changed(kernel: KernelSpec, i: int, **changes: object) -> KernelSpec:
    arguments = list(kernel.arguments)
    arguments[i] = dataclasses.replace(arguments[i], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(kernel, arguments=tuple(arguments))


@pytest.mark.parametrize(
    ("linked", "message"),
    [
        (KERNELS[1:], "has no kernel gt_embed"),
        ((dataclasses.replace(KERNELS[0], arguments=KERNELS[0].arguments[:-1]), *KERNELS[1:]), "has 6 arguments"),
        ((_changed(KERNELS[0], 4, name="lines"), *KERNELS[1:]), "argument 4 of gt_embed is scalar lines"),
        (
            (_changed(KERNELS[0], 4, kind="pointer", region=WORK), *KERNELS[1:]),
            "argument 4 of gt_embed is pointer rows",
        ),
        ((_changed(KERNELS[0], 0, region=STREAMS[0]), *KERNELS[1:]), "link with connectivity.cfg"),
    ],
)
def test_a_design_of_other_kernels_is_refused(tmp_path: Path, linked: tuple[KernelSpec, ...], message: str) -> None:
    path = tmp_path / "other.xclbin"
    noop_xclbin.write(path, linked, REGIONS)
    with pytest.raises(DeviceError, match=message):
        xclbin.check(xclbin.read(path), KERNELS)


def test_an_argument_that_reaches_several_memories_lies_in_the_group(tmp_path: Path) -> None:
    """As v++ links it: the single banks first, the groups that they form behind them; XRT takes the highest."""
    kernel = KernelSpec(
        name="gt_one",
        arguments=(Argument(name="x", kind="pointer", dtype="float32", region=WORK, bundle="gmem0"),),
    )
    path = tmp_path / "groups.xclbin"
    noop_xclbin.write(path, [kernel], REGIONS)
    found = axlf.parse(path)
    links = xclbin.COUNT.pack(3) + b"".join(xclbin.LINK.pack(0, 0, memory) for memory in (1, 3, 0))
    path.write_bytes(noop_xclbin.build(found.platform, {**found.sections, axlf.GROUP_CONNECTIVITY: links}))
    assert xclbin.read(path).kernels[0].arguments[0].memory == 3
