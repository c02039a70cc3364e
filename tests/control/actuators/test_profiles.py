"""Workload power profiles and the memory clock, on the fake driver."""

import os
import signal
import subprocess
import sys

import pytest

from greentrain.config.schema import ActuatorsConfig
from greentrain.control.actuators.profiles import open_profiles
from greentrain.errors import ConfigError
from greentrain.testing.fake_nvml import FakeGpu
from greentrain.types import Topology
from tests.control.actuators.on_fake import Node, Said, wait_until

OFFERED = 0b1000_1000_1011
"""max_p, max_q, memory_bound, llm_training, hmma_dense."""
ASKED = 0b1000_0010
FREE_MHZ = (1593, 1593)


def test_profiles_are_asked_for_and_what_was_found_comes_back(node: Node) -> None:
    fake, said = node(FakeGpu(name="NVIDIA B200", profiles=(OFFERED, 0b1000))), Said()
    config = ActuatorsConfig(power_profiles=("max_q", "llm_training"), memory_mhz=1593)
    held = open_profiles(config, Topology(), said)
    assert held is not None and held.apply() and held.apply()
    assert fake.state(0).profiles == ASKED, "what was requested before is not among them"
    held.close()
    assert fake.state(0).profiles == 0b1000 and fake.state(0).memory_clocks_mhz == FREE_MHZ and not said


def test_what_an_administrator_requests_meanwhile_stays(node: Node) -> None:
    fake, said = node(FakeGpu(profiles=(OFFERED, 0))), Said()
    held = open_profiles(ActuatorsConfig(power_profiles=("max_q", "llm_training")), Topology(), said)
    assert held is not None and held.apply()
    fake._gpu(0).profiles_requested = 0b1
    held.close()
    assert fake.state(0).profiles == 0b1 and not said


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ActuatorsConfig(power_profiles=("compute",)), "has max_p, max_q, memory_bound, llm_training, hmma_dense"),
        (ActuatorsConfig(memory_mhz=1000), "has 1593"),
    ],
)
def test_what_a_card_does_not_have_is_a_mistake(node: Node, config: ActuatorsConfig, words: str) -> None:
    node(FakeGpu(profiles=(OFFERED, 0)))
    with pytest.raises(ConfigError, match=words):
        open_profiles(config, Topology(), Said())


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (FakeGpu(), "this card has none"),
        (FakeGpu(profiles=(OFFERED, 0), may_set=False), "CAP_SYS_ADMIN"),
        (FakeGpu(profiles=(OFFERED, 0), mig_uuids=("MIG-a",)), "MIG is on"),
    ],
)
def test_a_card_that_cannot_is_left_alone_in_one_sentence(node: Node, gpu: FakeGpu, words: str) -> None:
    node(gpu)
    said = Said()
    assert open_profiles(ActuatorsConfig(power_profiles=("max_q",)), Topology(), said) is None
    assert len(said) == 1 and words in said[0]


def test_the_guardian_puts_back_what_a_killed_run_has_asked_for(node: Node) -> None:
    fake = node(FakeGpu(profiles=(OFFERED, 0b1000)))
    code = (
        "import time; from greentrain.config.schema import ActuatorsConfig;"
        "from greentrain.control.controller import GpuLimits; from greentrain.types import Topology;"
        "limits = GpuLimits.open(ActuatorsConfig(power_profiles=('max_q',)), Topology(), print);"
        "print('held', flush=True); time.sleep(120)"
    )
    env = fake.env({**os.environ})
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        assert wait_until(lambda: fake.state(0).profiles == 0b10)
        child.send_signal(signal.SIGKILL)
    assert wait_until(lambda: fake.state(0).profiles == 0b1000)
