"""Limits and clocks of AMD's and Intel's GPUs, with their own bindings on fake libraries; the guardian too."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from greentrain.config.schema import ActuatorsConfig, ClocksConfig, PowerCapConfig
from greentrain.control.actuators.clocks import open_clocks
from greentrain.control.actuators.driver import repair
from greentrain.control.actuators.power_cap import open_power_cap, survey_caps
from greentrain.control.actuators.profiles import open_profiles
from greentrain.errors import ConfigError
from greentrain.testing.actuator_contract import Actuator, ActuatorContract
from greentrain.types import Topology
from tests.control.actuators.on_fake import Said, capping, clocking
from tests.helpers.fake_gpus import FakeGpu, FakeGpus

ADMIN_W = 650.0
Install = Callable[..., FakeGpus]


@pytest.fixture(params=["amd", "intel"])
def install(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Install]:
    with ExitStack() as stack:

        def start(*gpus: FakeGpu) -> FakeGpus:
            if request.param == "intel":
                monkeypatch.setitem(sys.modules, "amdsmi", None)
            fake = stack.enter_context(FakeGpus(request.param, *gpus))
            for name in ("FAKE_GPUS_CONFIG", "ROCM_PATH", "LD_PRELOAD"):
                monkeypatch.setenv(name, fake.env()[name])
            monkeypatch.setenv("GREENTRAIN_CLAIMS_DIR", str(tmp_path / "claims"))
            for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
                monkeypatch.delenv(name, raising=False)
            return fake

        yield start


class TestLimits(ActuatorContract):
    levels = (1.0, 0.8, 0.6)
    can_refuse = True
    fake: FakeGpus

    @pytest.fixture
    def actuator(self, install: Install) -> Iterator[Actuator]:
        self.fake = install(FakeGpu(limit_w=ADMIN_W), FakeGpu(limit_w=600.0))
        with capping(Said()) as cap:
            yield cap
            self.fake.gpu(1).may_set = 1

    def setting(self) -> object:
        return [self.fake.gpu(number).limit_mw for number in (0, 1)]

    def refuse(self) -> None:
        self.fake.gpu(1).may_set = 0


class TestClocks(ActuatorContract):
    levels = (0.0, 0.15, 0.3)
    can_refuse = True
    fake: FakeGpus

    @pytest.fixture
    def actuator(self, install: Install) -> Iterator[Actuator]:
        self.fake = install(FakeGpu(), FakeGpu())
        with clocking(Said()) as clocks:
            yield clocks
            self.fake.gpu(1).may_set = 1

    def setting(self) -> object:
        return [(self.fake.gpu(number).high_mhz, self.fake.gpu(number).perf_level) for number in (0, 1)]

    def refuse(self) -> None:
        self.fake.gpu(1).may_set = 0


def test_what_an_administrator_has_set_on_the_clocks_stays(install: Install) -> None:
    fake = install(FakeGpu(extra={"perf_level": 2, "high_mhz": 1000}))
    said = Said()
    assert open_clocks(ClocksConfig(), Topology(), said) is None
    assert "somebody has set them" in said[0]
    assert fake.gpu(0).high_mhz == 1000


def test_no_right_is_one_sentence(install: Install) -> None:
    install(FakeGpu(may_set=False))
    said = Said()
    assert open_power_cap(PowerCapConfig(), Topology(), said) is None
    (sentence,) = said
    assert "this process may not set them" in sentence and "takes root" in sentence and "\n" not in sentence
    assert any("this process may not set them" in line for line in survey_caps())


@pytest.mark.parametrize("asked", [{"power_profiles": ("max_q",)}, {"memory_mhz": 2000}])
def test_what_only_nvidia_has_is_one_sentence(install: Install, asked: dict[str, Any]) -> None:
    install(FakeGpu())
    said = Said()
    assert open_profiles(ActuatorsConfig(**asked), Topology(), said) is None
    (sentence,) = said
    assert "this card has none that can be set (NVIDIA's cards alone have them)" in sentence


def test_a_foreign_gpu_is_refused_before_training(install: Install) -> None:
    install(FakeGpu())
    with pytest.raises(ConfigError, match="a foreign GPU"):
        open_power_cap(PowerCapConfig(devices=("GPU-1",)), Topology(), Said())


def test_partitions_of_a_card_leave_its_limit_alone(install: Install) -> None:
    fake = install(FakeGpu(), FakeGpu(extra={"partition": 1}))
    if fake.vendor == "amd":
        said = Said()
        assert open_power_cap(PowerCapConfig(), Topology(), said) is None
        assert "the whole card" in said[0]


JOB = """
import sys, time
from greentrain.config.schema import ActuatorsConfig, ClocksConfig, PowerCapConfig
from greentrain.control.actuators import driver
from greentrain.control.actuators.clocks import open_clocks
from greentrain.control.actuators.guardian import Guardian
from greentrain.control.actuators.power_cap import open_power_cap
from greentrain.types import Topology
driver.CHANGE_S = 60.0
say = lambda text: print(text, file=sys.stderr)
cap = open_power_cap(PowerCapConfig(dwell_s=0.0), Topology(), say)
assert cap is not None and cap.apply(0.8)
clocks = open_clocks(ClocksConfig(), Topology(), say, guardian=cap.guardian)
assert clocks is not None and clocks.apply(0.3)
print(cap.guardian.pid, flush=True)
time.sleep(60)
"""


def changed(install: Install) -> tuple[FakeGpus, subprocess.Popen[str], int]:
    fake = install(FakeGpu(limit_w=ADMIN_W))
    job = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", JOB], env=fake.env(), stdout=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    guardian = int(job.stdout.readline())
    assert fake.gpu(0).limit_mw == 1000 * 0.8 * ADMIN_W
    assert fake.gpu(0).high_mhz < 2100
    return fake, job, guardian


def test_the_guardian_puts_back_what_a_killed_job_had_set(install: Install) -> None:
    fake, job, _ = changed(install)
    job.kill()
    job.communicate()
    end_s = time.monotonic() + 60.0
    while (fake.gpu(0).limit_mw, fake.gpu(0).high_mhz) != (1000 * ADMIN_W, 2100) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert (fake.gpu(0).limit_mw, fake.gpu(0).high_mhz, fake.gpu(0).perf_level) == (1000 * ADMIN_W, 2100, 0)


def test_the_next_start_repairs_what_job_and_guardian_left(install: Install) -> None:
    fake, job, guardian = changed(install)
    os.kill(guardian, signal.SIGKILL)
    job.kill()
    job.communicate()
    (sentence,) = repair()
    assert "put back to 650 W" in sentence and "unlocked" in sentence
    assert (fake.gpu(0).limit_mw, fake.gpu(0).high_mhz) == (1000 * ADMIN_W, 2100)
    assert repair() == []
