"""IntelMeter with Intel's own bindings on a fake Level Zero loader; the truth is known in closed form."""

import builtins
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from greentrain.errors import ConfigError, MeterError, MissingExtraError
from greentrain.power.intel import IntelMeter, visible_gpus
from greentrain.power.sampler import EnergyCurve
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import PowerMeter, Provenance
from tests.helpers.fake_gpus import FakeGpu, FakeGpus

LOST, NO_RIGHT, UNINITIALIZED = 0x70000001, 0x70010000, 0x78000001
COUNTER = "zesPowerGetEnergyCounter"
Install = Callable[..., FakeGpus]


def card(**settings: Any) -> FakeGpu:
    return FakeGpu(name="Intel(R) Data Center GPU Max 1550", **settings)


@pytest.fixture
def install() -> Iterator[Install]:
    with ExitStack() as stack:
        yield lambda *gpus, **options: stack.enter_context(FakeGpus("intel", *gpus, **options))


class TestIntelContract(MeterContract):
    @pytest.fixture
    def meter(self, install: Install) -> Iterator[PowerMeter]:
        self.fake = install(card(), card(low_w=90.0))
        meter = IntelMeter({})
        yield meter
        meter.close()

    def vanish(self) -> None:
        self.fake.fail(COUNTER, LOST)


def test_the_counter_is_the_truth_at_the_time_of_its_stamp(install: Install) -> None:
    fake = install(card(low_w=100.0, high_w=500.0, period_s=0.02, tick_s=0.004))
    meter = IntelMeter({})
    first: Any = meter.read()[0]
    for _ in range(8):
        time.sleep(0.003)
        last: Any = meter.read()[0]
        true_j = fake.energy_j(0, last.t_s) - fake.energy_j(0, first.t_s)
        assert last.energy_j - first.energy_j == pytest.approx(true_j, abs=500.0 * 0.004)
    assert meter.sensors[0].method == "Level Zero energy counter"
    assert meter.sensors[0].limit_w == 750.0
    assert meter.sensors[0].device.uid == "intel:" + "00" * 15 + "01"
    meter.close()


def test_the_card_contains_its_tiles(install: Install) -> None:
    fake = install(card(extra={"tiles": 2}), card(extra={"tiles": 2, "card_counter": 0}))
    meter = IntelMeter({})
    whole, tiles = meter.sensors
    assert "whole card with its 2 tiles" in whole.note
    assert "sum of its 2 tiles" in tiles.note
    first = meter.read()
    time.sleep(0.02)
    last = meter.read()
    for number, share in ((0, 1.0), (1, 0.8)):
        told_j = float(last[number].energy_j or 0.0) - float(first[number].energy_j or 0.0)
        true_j = fake.energy_j(number, last[number].t_s) - fake.energy_j(number, first[number].t_s)
        assert told_j == pytest.approx(share * true_j, abs=300.0 * 0.002)
    meter.close()


def test_a_reset_counter_is_a_gap_and_not_joules(install: Install) -> None:
    fake = install(card(low_w=200.0))
    meter = IntelMeter({})
    said: list[str] = []
    start_s = time.monotonic()
    curve = EnergyCurve(meter.sensors[0], start_s, lambda name, text: said.append(text))
    for jump_j in (0.0, 0.0, -1e6, 0.0):
        fake.gpu(0).counter_start_j += jump_j
        for sample in meter.read():
            curve.append(sample)
        time.sleep(0.005)
    energy_j, missing_s = curve.between(start_s, curve.frontier_s)
    assert 0.0 < energy_j < 200.0 * (time.monotonic() - start_s)
    assert missing_s > 0.0
    assert any("ran backwards" in text for text in said)
    meter.close()


def test_an_integrated_gpu_is_the_package_s(install: Install) -> None:
    install(card(extra={"integrated": 1}))
    with pytest.raises(MeterError, match="whose joules are the CPU package's"):
        IntelMeter({})


def test_states_and_users(install: Install) -> None:
    install(card(extra={"pid": 4321, "throttle": 0x1 | 0x8}))
    meter = IntelMeter({})
    (reader,) = meter.readers
    assert reader.states()[0].sm is None  # of an activity, the first reading says nothing
    time.sleep(0.01)
    (state,) = reader.states()
    assert state.sm == pytest.approx(0.9, abs=0.05)
    assert (state.memory, state.temperature_c, state.slowed) == (None, 60.0, ("thermal", "power"))
    assert reader.users() == {reader.sensor.device.uid: [4321]}
    meter.close()


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, [0, 1]),
        ({"ZE_AFFINITY_MASK": "0"}, [0]),
        ({"ZE_AFFINITY_MASK": "1"}, [0]),  # the second tile of the first card
        ({"ZE_AFFINITY_MASK": "2,0"}, [0, 1]),
        ({"ZE_AFFINITY_MASK": "1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, [1]),
        ({"ZE_AFFINITY_MASK": "1.0", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, [1]),
        ({"ZE_AFFINITY_MASK": "9"}, []),
    ],
)
def test_what_the_environment_leaves(environ: dict[str, str], seen: list[int]) -> None:
    assert visible_gpus(environ, [2, 2]) == seen


def test_named_gpus(install: Install) -> None:
    install(card(), card())
    meter = IntelMeter({"ZE_AFFINITY_MASK": "0"}, gpus=("1",))
    assert [sensor.device.uid[-2:] for sensor in meter.sensors] == ["02"]
    meter.close()
    with pytest.raises(ConfigError, match="2 GPUs of Intel"):
        IntelMeter({}, gpus=("9",))


def test_wrong_rights_give_one_sentence(install: Install) -> None:
    fake = install(card(), init_code=NO_RIGHT)
    with pytest.raises(MeterError, match="group render"):
        IntelMeter({})
    fake.state.init_code = 0
    fake.fail(COUNTER, NO_RIGHT)
    meter = IntelMeter({})
    (sensor,) = meter.sensors
    assert sensor.provenance is Provenance.MISSING
    assert "INSUFFICIENT_PERMISSIONS" in sensor.note and "intel_pmt" in sensor.note and "\n" not in sensor.note
    meter.close()


def test_no_driver_and_no_gpu(install: Install) -> None:
    fake = install(card(), init_code=UNINITIALIZED)
    with pytest.raises(MeterError, match="lsmod for xe or i915"):
        IntelMeter({})
    fake.state.init_code, fake.state.gpus = 0, 0
    with pytest.raises(MeterError, match="shows 0 GPUs"):
        IntelMeter({})


def test_missing_bindings_and_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyzes", None)
    with pytest.raises(MissingExtraError, match=r"greentrain-torch\[intel\]"):
        IntelMeter({})
    monkeypatch.delitem(sys.modules, "pyzes")
    real = builtins.__import__

    def without_library(name: str, *args: Any, **options: Any) -> Any:
        if name == "pyzes":
            raise OSError("libze_loader.so.1: cannot open shared object file")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_library)
    with pytest.raises(MeterError, match="install libze1"):
        IntelMeter({})
