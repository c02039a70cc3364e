"""What NvmlMeter and the survey say where NVML does not start, shows nothing or hides something."""

import sys

import pytest

from greentrain.config.schema import PowerConfig
from greentrain.errors import ConfigError, MeterError
from greentrain.power.detect import CompositeMeter, open_meters, survey
from greentrain.power.nvml import NvmlMeter, survey_nvml
from greentrain.testing.fake_nvml import FakeGpu, NvmlCode
from tests.power.on_fake import Install, only


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


@pytest.mark.parametrize("gpus", [["0", "7"], ["GPU-unknown"], ["0", "0"], ["cuda:0"]])
def test_a_gpu_that_is_named_wrongly_fails_at_once_and_says_which_there_are(install: Install, gpus: list[str]) -> None:
    driver = install(FakeGpu(), FakeGpu())
    with pytest.raises(ConfigError, match=r"power\.gpus is .* this node has: ") as caught:
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
