"""What the doctor says about limits and clocks."""

import os

import pynvml
import pytest

from greentrain.control.actuators.power_cap import survey_caps
from greentrain.testing.fake_nvml import FakeGpu, NvmlCode
from tests.control.actuators.on_fake import ADMIN_W, Node, Said, capping


def test_one_line_a_gpu(node: Node) -> None:
    driver = node(
        FakeGpu(limit_w=ADMIN_W),
        FakeGpu(may_set=False),
        FakeGpu(mig_uuids=("MIG-1",)),
        FakeGpu(clock_reasons=2),
        FakeGpu(errors={"nvmlDeviceGetPowerManagementLimit": NvmlCode.NOT_SUPPORTED}),
    )
    free, forbidden, sliced, locked, fixed = survey_caps()
    assert "power limit 650 W, possible 200 to 700 W, default 700 W; this process may set it; no sign" in free
    assert "CAP_SYS_ADMIN" in forbidden and "limit and clocks are left alone" in forbidden
    assert "MIG is on" in sliced
    assert "an applications clock limits it now" in locked
    assert "has none that can be set" in fixed
    assert driver.state(0).power_limit_w == ADMIN_W and driver.init_depth == 0


def test_records_are_shown(node: Node) -> None:
    node(FakeGpu(limit_w=ADMIN_W))
    with capping(Said()) as cap:
        cap.apply(0.6)
        assert "this process has changed it and is at work" in survey_caps()[1]
    assert len(survey_caps()) == 1


def test_a_folder_that_cannot_be_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node(FakeGpu())
    monkeypatch.setenv("GREENTRAIN_CLAIMS_DIR", os.devnull + "/claims")
    assert "cannot use /dev/null/claims" in survey_caps()[-1]


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    (line,) = survey_caps()
    assert line.startswith("power limits and clocks: cannot be set, NVML cannot be initialised")
