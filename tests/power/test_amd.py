"""AmdMeter with AMD's own bindings on a fake libamd_smi.so; the truth is known in closed form."""

import builtins
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from greentrain import GreenSession
from greentrain.config.schema import GreenConfig, PowerConfig, RunConfig
from greentrain.errors import ConfigError, GreenTrainWarning, MeterError, MissingExtraError
from greentrain.ledger.reader import read_run
from greentrain.power import amd
from greentrain.power.amd import AmdMeter, visible_gpus
from greentrain.power.claims import Claims
from greentrain.power.detect import open_meters, survey
from greentrain.power.sampler import EnergyCurve
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import DeviceKind, PowerMeter, Provenance
from tests.helpers.fake_gpus import FakeGpu, FakeGpus

NO_PERM, NOT_SUPPORTED, NOT_LOADED = 10, 2, 34
ENERGY, POWER = "amdsmi_get_energy_count", "amdsmi_get_power_info"
Install = Callable[..., FakeGpus]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    monkeypatch.setattr(amd, "CHECK_S", 0.03)
    with ExitStack() as stack:
        yield lambda *gpus, **options: stack.enter_context(FakeGpus("amd", *gpus, **options))


class TestAmdContract(MeterContract):
    @pytest.fixture
    def meter(self, install: Install) -> Iterator[PowerMeter]:
        self.fake = install(FakeGpu(), FakeGpu(name="AMD Instinct MI210", low_w=90.0))
        meter = AmdMeter({})
        yield meter
        meter.close()

    def vanish(self) -> None:
        for function in (ENERGY, POWER):
            self.fake.fail(function, 12)


def test_the_accumulator_is_the_truth_at_the_time_of_its_stamp(install: Install) -> None:
    fake = install(FakeGpu(low_w=100.0, high_w=500.0, period_s=0.02, tick_s=0.004))
    meter = AmdMeter({})
    first: Any = meter.read()[0]
    for _ in range(8):
        time.sleep(0.003)
        last: Any = meter.read()[0]
        true_j = fake.energy_j(0, last.t_s) - fake.energy_j(0, first.t_s)
        # The stamp is that of the tick; the clocks' distance is known to the shortest age of a reading.
        assert last.energy_j - first.energy_j == pytest.approx(true_j, abs=500.0 * 0.004)
        assert last.t_s <= time.monotonic()
    assert meter.sensors[0].method == "AMD energy accumulator"
    assert meter.sensors[0].device.kind is DeviceKind.GPU
    assert meter.sensors[0].limit_w == 750.0
    meter.close()


def test_a_stamp_that_is_no_time_dates_nothing(install: Install) -> None:
    install(FakeGpu(clock_rate=1000.0))
    meter = AmdMeter({})
    for _ in range(5):
        before_s = time.monotonic()
        (sample,) = meter.read()
        assert before_s - 0.05 <= sample.t_s <= time.monotonic()
        time.sleep(0.002)
    meter.close()


def test_a_reset_counter_is_a_gap_and_not_joules(install: Install) -> None:
    fake = install(FakeGpu(low_w=200.0))
    meter = AmdMeter({})
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


@pytest.mark.parametrize("rate", [0.25, 16.0])
def test_a_counter_of_a_wrong_rate_is_left_for_the_power(install: Install, rate: float) -> None:
    install(FakeGpu(counter_rate=rate))
    meter = AmdMeter({})
    (sample,) = meter.read()
    assert sample.power_w == 300.0
    assert "while the power reads 300 W" in meter.sensors[0].note
    meter.close()


def test_older_cards_tell_an_average_of_their_power(install: Install) -> None:
    fake = install(FakeGpu())
    fake.fail(ENERGY, NOT_SUPPORTED)
    fake.fail("current_socket_power", 1)
    meter = AmdMeter({})
    assert meter.sensors[0].method == "AMD average socket power"
    assert meter.read()[0].power_w == 300.0
    meter.close()


def test_partitions_are_one_gpu(install: Install) -> None:
    parts = [FakeGpu(extra={"partition": i, "hip_id": i}) for i in range(4)]
    install(*parts, FakeGpu(extra={"hip_id": 4}))
    meter = AmdMeter({"HIP_VISIBLE_DEVICES": "3,2"})
    (sensor,) = meter.sensors
    assert sensor.device.uid == "amd:0000000000000000"
    assert "split into 4 partitions" in sensor.note
    assert meter.read()[0].energy_j is not None
    meter.close()
    both = AmdMeter({})
    assert [s.device.uid for s in both.sensors] == ["amd:0000000000000000", "amd:0000000000000004"]
    both.close()


def test_of_two_ranks_on_partitions_of_one_card_one_books_it(install: Install, tmp_path: Path) -> None:
    install(*(FakeGpu(extra={"partition": i, "hip_id": i}) for i in range(2)))
    taken = []
    with ExitStack() as stack:
        for rank in range(2):
            meter = stack.enter_context(closing(AmdMeter({"HIP_VISIBLE_DEVICES": str(rank)})))
            claims = Claims(tmp_path / "claims", {"run_id": "r", "rank": rank})
            stack.callback(claims.release)
            taken += [claims.take(sensor.device.uid) for sensor in meter.sensors]
    assert taken == [True, False]


def test_states_and_users(install: Install) -> None:
    install(FakeGpu(extra={"pid": 4321}))
    meter = AmdMeter({})
    (reader,) = meter.readers
    (state,) = reader.states()
    assert (state.sm, state.memory, state.temperature_c, state.slowed) == (0.9, 0.45, 60.0, None)
    assert reader.users() == {"amd:0000000000000000": [4321]}
    meter.close()


DEVICES = [("GPU-aa", 0), ("GPU-bb", 1), ("GPU-cc", 2), ("GPU-cc2", 2)]


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, [0, 1, 2]),
        ({"HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-bb"}, [1]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "7"}, []),
    ],
)
def test_what_the_environment_leaves(environ: dict[str, str], seen: list[int]) -> None:
    assert visible_gpus(environ, DEVICES) == seen


def test_named_gpus(install: Install) -> None:
    install(FakeGpu(), FakeGpu())
    meter = AmdMeter({"HIP_VISIBLE_DEVICES": "0"}, gpus=("1",))
    assert [sensor.device.uid for sensor in meter.sensors] == ["amd:0000000000000001"]
    meter.close()
    with pytest.raises(ConfigError, match="name some of what this node has"):
        AmdMeter({}, gpus=("9",))


def test_wrong_rights_give_one_sentence(install: Install) -> None:
    fake = install(FakeGpu(), init_code=NO_PERM)
    with pytest.raises(MeterError, match="groups video and render") as caught:
        AmdMeter({})
    assert "\n" not in str(caught.value)
    fake.state.init_code = 0
    fake.fail(ENERGY, NO_PERM)
    fake.fail(POWER, NO_PERM)
    meter = AmdMeter({})
    (sensor,) = meter.sensors
    assert sensor.provenance is Provenance.MISSING
    assert "NO_PERM" in sensor.note and "groups video and render" in sensor.note and "\n" not in sensor.note
    assert meter.read()[0].missing
    meter.close()


def test_no_driver_and_no_gpu(install: Install) -> None:
    fake = install(FakeGpu(), init_code=NOT_LOADED)
    with pytest.raises(MeterError, match="lsmod for amdgpu"):
        AmdMeter({})
    fake.state.init_code, fake.state.gpus = 0, 0
    with pytest.raises(MeterError, match="0 GPUs"):
        AmdMeter({})


def test_missing_bindings_and_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(MissingExtraError, match=r"greentrain-torch\[amd\]"):
        AmdMeter({})
    monkeypatch.delitem(sys.modules, "amdsmi")
    real = builtins.__import__

    def without_library(name: str, *args: Any, **options: Any) -> Any:
        if name == "amdsmi":
            print("Unable to find libamd_smi.so library")
            raise KeyError("libamd_smi.so")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_library)
    with pytest.raises(MeterError, match="amd-smi-lib"):
        AmdMeter({})
    assert capsys.readouterr().out == ""


def test_auto_opens_it_where_nvml_does_not_answer(install: Install, tmp_path: Path) -> None:
    install(FakeGpu())
    meter = open_meters(PowerConfig(rapl_root=str(tmp_path)), environ={})
    gpus = [sensor for sensor in meter.sensors if sensor.device.kind is DeviceKind.GPU]
    assert [sensor.method for sensor in gpus] == ["AMD energy accumulator"]
    meter.close()


def test_a_torch_for_amd_without_its_meter_is_a_labelled_gap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = ModuleType("torch")
    torch.version = SimpleNamespace(hip="7.0", xpu=None)  # type: ignore[attr-defined]
    torch.cuda = SimpleNamespace(is_initialized=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.warns(GreenTrainWarning, match=r"GPUs are not measured: .*greentrain-torch\[amd\]"):
        meter = open_meters(PowerConfig(rapl_root=str(tmp_path)), environ={})
    (gap,) = [sensor for sensor in meter.sensors if sensor.device.kind is DeviceKind.GPU]
    assert gap.provenance is Provenance.MISSING
    assert "greentrain-torch[amd]" in gap.note
    meter.close()


def test_doctor_names_what_is_there_and_what_it_lacks(install: Install) -> None:
    fake = install(FakeGpu())
    (found,) = [finding for finding in survey(environ={}) if finding.meter == "amd"]
    assert found.usable and found.uid == "amd:0000000000000000"
    fake.state.init_code = NO_PERM
    (found,) = [finding for finding in survey(environ={}) if finding.meter == "amd"]
    assert not found.usable and "groups video and render" in found.detail


def test_a_session_books_what_the_card_used(install: Install, tmp_path: Path) -> None:
    fake = install(FakeGpu(low_w=400.0))
    config = GreenConfig(
        power=PowerConfig(meters=("amd",), sample_s=0.02), run=RunConfig(dir=str(tmp_path), live=False)
    )
    with GreenSession(config) as session:
        start_s = time.monotonic()
        time.sleep(0.3)
        end_s = time.monotonic()
    run = read_run(session.folder or "")
    assert list(run.ranks[0].entries[0].devices) == ["amd:0000000000000000"]
    true_j, around_j = (fake.energy_j(0, end_s) - fake.energy_j(0, start_s), 400.0 * run.ranks[0].sums.duration_s)
    assert true_j - 20.0 <= float(run.totals.energy_j or 0.0) <= around_j + 20.0
