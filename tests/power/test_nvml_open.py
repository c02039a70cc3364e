"""What NvmlMeter and the survey say where NVML does not start, shows nothing or hides something."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from greentrain import GreenSession
from greentrain.config.schema import PowerConfig
from greentrain.errors import ConfigError, GreenTrainWarning, MeterError
from greentrain.power import nvml
from greentrain.power.detect import CompositeMeter, open_meters, survey
from greentrain.power.nvml import NvmlMeter, survey_nvml
from greentrain.testing.fake_nvml import FakeGpu, NvmlCode
from greentrain.types import Provenance
from tests.helpers.hanging import Hanging
from tests.power.on_fake import Install, only

Hang = Callable[[str, Callable[..., bool]], None]


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    """Let a function of the bindings hang where a test of its arguments holds; nobody waits once it does."""
    import pynvml

    hanging = Hanging()

    def hang(name: str, wanted: Callable[..., bool]) -> None:
        function = getattr(pynvml, name)

        def held(*args: Any) -> Any:
            if wanted(*args):
                hanging.here()
            return function(*args)

        monkeypatch.setattr(pynvml, name, held)

    with hanging.seen_at_once(nvml):
        yield hang


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (NvmlCode.DRIVER_NOT_LOADED, ["Driver Not Loaded", "modprobe nvidia"]),
        (NvmlCode.LIB_RM_VERSION_MISMATCH, ["mismatch", "reboot"]),
        (NvmlCode.NO_PERMISSION, ["Permissions", "/dev/nvidia"]),
        (NvmlCode.UNKNOWN, ["Unknown Error", "dmesg"]),
    ],
)
def test_a_driver_that_does_not_start_is_an_error_with_a_remedy(install: Install, code: int, words: list[str]) -> None:
    install(FakeGpu(), init_error=code)
    with pytest.raises(MeterError) as caught:
        NvmlMeter({})
    assert all(word in str(caught.value) for word in words)
    assert all(word in survey_nvml({}).problem for word in words)


def test_no_driver_library_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", absent)
    with pytest.raises(MeterError, match=r"libnvidia-ml\.so\.1 is not found: install the NVIDIA driver"):
        NvmlMeter({})


def test_no_bindings_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MeterError, match="pip install nvidia-ml-py"):
        NvmlMeter({})


@pytest.mark.parametrize("text", ["", "-1", "GPU-unknown", "7"])
def test_no_visible_gpu_is_an_error_that_names_the_variable(install: Install, text: str) -> None:
    driver = install(FakeGpu())
    with pytest.raises(MeterError, match="CUDA_VISIBLE_DEVICES") as caught:
        NvmlMeter({"CUDA_VISIBLE_DEVICES": text})
    assert repr(text) in str(caught.value) and driver.uuid(0) in str(caught.value)
    assert driver.init_depth == 0


def test_a_driver_without_gpus_is_an_error(install: Install) -> None:
    driver = install()
    with pytest.raises(MeterError, match="no GPU"):
        NvmlMeter({})
    assert driver.init_depth == 0


def test_a_gpu_that_the_job_may_not_touch_is_left_out_as_in_cuda(install: Install) -> None:
    driver = install(FakeGpu(errors={"nvmlDeviceGetHandleByIndex_v2": NvmlCode.NO_PERMISSION}), FakeGpu())
    meter = NvmlMeter({"CUDA_VISIBLE_DEVICES": "0"})
    assert only(meter).device.uid == driver.uuid(1)
    meter.close()
    found = survey_nvml({}, probe=False)
    assert [gpu.hidden for gpu in found.gpus] == [True, False]


def test_the_survey_describes_driver_gpus_and_sensors(install: Install) -> None:
    driver = install(FakeGpu(), FakeGpu(mig_uuids=["MIG-a"]))
    found = survey_nvml({"CUDA_VISIBLE_DEVICES": "1"})
    assert found.problem == ""
    assert found.driver_version == "580.65.06"
    assert [(gpu.uid, gpu.slices) for gpu in found.gpus] == [(driver.uuid(0), ()), (driver.uuid(1), ("MIG-a",))]
    (sensor,) = found.sensors
    assert sensor.device.uid == driver.uuid(1)
    assert sensor.read_cost_s is not None
    hidden = survey_nvml({"CUDA_VISIBLE_DEVICES": ""})
    assert "CUDA_VISIBLE_DEVICES=''" in hidden.problem and len(hidden.gpus) == 2
    assert driver.init_depth == 0


def test_doctor_shows_driver_cost_and_what_is_hidden(install: Install) -> None:
    driver = install(FakeGpu(), FakeGpu(name="NVIDIA L4"))
    environ = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    shown, hidden = [f for f in survey(environ=environ) if f.meter == "nvml"]
    assert shown.usable and shown.uid == driver.uuid(0)
    assert "driver 580" in shown.detail and "one read takes" in shown.detail
    assert not hidden.usable and hidden.device == "NVIDIA L4" and "CUDA_VISIBLE_DEVICES" in hidden.detail


def test_gpus_that_are_named_are_read_whatever_is_visible(install: Install) -> None:
    driver = install(FakeGpu(), FakeGpu(), FakeGpu())
    for gpus, positions in ((["2", "0"], [2, 0]), ([driver.uuid(1)], [1])):
        meter = NvmlMeter({"CUDA_VISIBLE_DEVICES": "0,1"}, gpus=gpus)
        assert [sensor.device.uid for sensor in meter.sensors] == [driver.uuid(i) for i in positions]
        meter.close()


@pytest.mark.parametrize(
    ("gpus", "wrong"),
    [
        (["0", "7"], "there is no '7'"),
        (["GPU-unknown"], "there is no 'GPU-unknown'"),
        (["0", "0"], "a GPU is named twice"),
        (["cuda:0"], "there is no 'cuda:0'"),
    ],
)
def test_a_gpu_that_is_named_wrongly_fails_at_once_and_says_which_there_are(
    install: Install, gpus: list[str], wrong: str
) -> None:
    driver = install(FakeGpu(), FakeGpu())
    with pytest.raises(ConfigError, match=rf"power\.gpus is .*: {wrong}; name some of what this node has: ") as caught:
        open_meters(PowerConfig(gpus=tuple(gpus)), environ={})
    assert driver.uuid(1) in str(caught.value)
    assert driver.init_depth == 0


def test_a_gpu_that_is_named_where_there_is_no_driver_fails() -> None:
    with pytest.raises(MeterError):
        open_meters(PowerConfig(gpus=("0",)), environ={})


def test_the_processes_on_each_gpu_are_told(install: Install) -> None:
    install(FakeGpu(pids=[41, 42]), FakeGpu())
    meter = NvmlMeter({})
    parts = CompositeMeter([meter]).parts
    assert [dict(part.meter.users()) for part in parts] == [  # type: ignore[attr-defined]
        {sensor.device.uid: pids} for sensor, pids in zip(meter.sensors, ([41, 42], []), strict=True)
    ]
    meter.close()


def test_a_gpu_that_hangs_while_it_is_opened_is_missing_alone(install: Install, hang: Hang) -> None:
    driver = install(FakeGpu(), FakeGpu(), FakeGpu())
    hang("nvmlDeviceGetHandleByIndex", lambda index: bool(index == 1))
    with pytest.warns(GreenTrainWarning, match="GPU 1 is not measured: its driver has not answered within 30 s"):
        meter = NvmlMeter({})
    assert [s.device.uid for s in meter.sensors] == [driver.uuid(0), "nvml:1", driver.uuid(2)]
    assert [s.provenance is Provenance.MISSING for s in meter.sensors] == [False, True, False]
    assert [sample.missing for sample in meter.read()] == [False, True, False]
    meter.close()


def test_a_gpu_that_hangs_when_it_is_first_asked_is_missing_alone(install: Install, hang: Hang) -> None:
    import pynvml

    driver = install(FakeGpu(), FakeGpu())
    hang("nvmlDeviceGetC2cModeInfoV", lambda handle: bool(pynvml.nvmlDeviceGetUUID(handle) == driver.uuid(0)))
    with pytest.warns(GreenTrainWarning, match=f"GPU {driver.uuid(0)} is not measured"):
        meter = NvmlMeter({})
    assert [(s.device.uid, s.provenance is Provenance.MISSING) for s in meter.sensors] == [
        (driver.uuid(0), True),
        (driver.uuid(1), False),
    ]
    assert [sample.missing for sample in meter.read()] == [True, False]
    meter.close()


def test_a_driver_that_hangs_delays_the_start_only_and_its_gpus_are_missing(
    install: Install, hang: Hang, tmp_path: Path
) -> None:
    install(FakeGpu())
    hang("nvmlInit", lambda: True)
    with pytest.raises(MeterError, match="has not answered within 30 s: see whether nvidia-smi works"):
        open_meters(PowerConfig(meters=("nvml",)), environ={})
    green = GreenSession({"run": {"dir": str(tmp_path), "report": False, "live": False}})
    with pytest.warns(GreenTrainWarning, match="GPUs are not measured: .* has not answered"), green:
        green.step()
    totals = green.totals()
    assert totals.missing_s["nvml"] > 0 and "nvml" not in totals.by_device and totals.energy_j > 0
    assert survey_nvml({}).problem
