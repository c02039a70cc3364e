"""A short run forecasts the long one: real sessions on a clock of their own."""

import dataclasses
import random
import statistics
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.estimator_pilot_clock import (
    SIGNAL,
    TOKENS,
    SteppedClock,
    SteppedMeter,
    given_pilot,
    noisy_steps,
    stepped_run,
)
from greentrain import GreenSession
from greentrain.errors import ConfigError, RunFolderError
from greentrain.estimate import hardware, hours, pilot
from greentrain.estimate.api import Options, estimate
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.model_shape import sized
from greentrain.estimate.values import Range
from greentrain.estimate.workload import Workload
from greentrain.types import DeviceKind, Provenance, Topology
from greentrain.utils.quantities import SourceKind


@pytest.mark.parametrize(("seed", "compile_s", "noise"), [(1, 0.0, 0.0), (2, 20.0, 0.05), (3, 5.0, 0.1)])
def test_fifty_steps_forecast_two_thousand_within_two_percent(
    tmp_path: Path, seed: int, compile_s: float, noise: float
) -> None:
    short = stepped_run(tmp_path, 50, noisy_steps(seed, compile_s=compile_s, noise=noise))
    whole = stepped_run(tmp_path, 2000, noisy_steps(seed + 100, compile_s=compile_s, noise=noise)).totals()
    found = pilot.forecast(pilot.read_pilot(short.folder or ""), whole.tokens)
    assert found.duration_h.mid * 3600 == pytest.approx(whole.duration_s, rel=0.02)
    assert found.gpu_hours == found.duration_h, "one GPU"
    assert found.energy_kwh is not None
    assert found.energy_kwh.mid * 3.6e6 == pytest.approx(whole.energy_j, rel=0.02)
    assert found.duration_h.high / found.duration_h.low < 1.005 + noise


def test_warm_up_is_left_out_of_the_rate_and_counted_once(tmp_path: Path) -> None:
    green = stepped_run(tmp_path, 60, noisy_steps(1, compile_s=30.0))
    found = pilot.read_pilot(green.folder or "")
    assert found.warmup_steps == 5
    assert found.steps == 55
    assert found.tokens_per_s.mid == pytest.approx(TOKENS / 0.5, rel=1e-3)
    assert found.warmup_s == pytest.approx(30.0 + 4 * 0.6, rel=1e-2)
    assert found.warmup_j == pytest.approx(found.warmup_s * 650.0, rel=1e-2)
    named = pilot.read_pilot(green.folder or "", warmup_steps=20)
    assert (named.warmup_steps, named.steps) == (20, 40)
    assert named.tokens_per_s.mid == pytest.approx(found.tokens_per_s.mid, rel=1e-3)


def test_power_is_told_by_device_with_where_it_is_from(tmp_path: Path) -> None:
    found = pilot.read_pilot(stepped_run(tmp_path, 60, noisy_steps(1)).folder or "")
    by_kind = {each.kind: each for each in found.by_device}
    assert by_kind[DeviceKind.GPU].watts == pytest.approx(600.0, rel=1e-3)
    assert by_kind[DeviceKind.GPU].provenance is Provenance.MEASURED
    assert by_kind[DeviceKind.CPU].watts == pytest.approx(50.0, rel=1e-3)
    assert by_kind[DeviceKind.CPU].provenance is Provenance.MODELLED
    assert found.watts is not None
    assert found.watts.mid == pytest.approx(650.0, rel=1e-3)
    names = {each.name: each for each in pilot.forecast(found, 1e9).assumptions}
    assert names["power"].source.endswith("part of it modelled")
    assert names["tokens/s"].kind is SourceKind.MEASURED
    assert "45,600" in names["goodput"].source


def test_ranks_add_up(tmp_path: Path) -> None:
    for rank in (0, 1):
        place = Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="h")
        green = stepped_run(tmp_path, 60, noisy_steps(1, compile_s=10.0, noise=0.05), place=place)
    found = pilot.read_pilot(green.folder or "")
    assert found.devices == 2
    assert (found.warmup_steps, found.steps) == (5, 55)
    assert found.tokens_per_s.mid == pytest.approx(2 * TOKENS / 0.5, rel=0.02)
    assert found.warmup_s == pytest.approx(10.0 + 4 * 0.2, rel=0.02), "ranks wait together, not one after another"
    told = pilot.forecast(found, 1e9)
    assert told.gpu_hours.mid == pytest.approx(2 * told.duration_h.mid)
    assert found.watts is not None
    assert 1200.0 < found.watts.mid < 1310.0, "two GPUs of 600 W, and a CPU that one or both of them book"


def test_time_between_two_processes_of_a_run_is_nobodys(tmp_path: Path) -> None:
    place = Topology(rank=0, world_size=1, local_rank=0, local_world_size=1, host="h")
    stepped_run(tmp_path, 30, noisy_steps(1), place=place)
    green = stepped_run(tmp_path, 30, noisy_steps(1), place=place, start_s=90_000.0)
    found = pilot.read_pilot(green.folder or "")
    assert found.steps + found.warmup_steps == 60
    assert found.tokens_per_s.mid == pytest.approx(TOKENS / 0.5, rel=1e-3)


def test_energy_of_a_gpu_that_nobody_reads_is_not_known(tmp_path: Path) -> None:
    green = stepped_run(tmp_path, 60, noisy_steps(1), gpu=Provenance.MISSING)
    found = pilot.read_pilot(green.folder or "")
    assert found.joules_per_token is None
    assert found.watts is None
    assert any("Fake GPU was not read" in text for text in found.warnings)
    told = pilot.forecast(found, 1e9)
    assert told.energy_kwh is None
    assert told.duration_h.mid > 0


def test_interval_of_noisy_steps_holds_the_truth(tmp_path: Path) -> None:
    """Eighty in a hundred should; twenty pilots of 80 steps, of which the binomial law lets 5 miss."""
    inside = 0
    for seed in range(20):
        dice = random.Random(seed)
        spans = [
            pilot._StepSpan(steps=1, seconds=dice.lognormvariate(0.0, 0.3), tokens=1, joules=1.0) for _ in range(80)
        ]
        mid, half = pilot._ratio([(span.tokens, span.seconds) for span in spans])
        inside += abs(1 / 1.046 - mid) <= half
    assert 11 <= inside <= 20


def test_slow_steps_that_come_first_by_chance_are_no_warm_up() -> None:
    """Warm-up cut off by chance makes forecasts too short: by 0.6 % in the mean before it had to be slower."""
    speeds, cut = [], 0
    for seed in range(400):
        dice = random.Random(seed)
        spans = [
            pilot._StepSpan(steps=1, seconds=dice.lognormvariate(0.0, 0.3), tokens=1, joules=1.0) for _ in range(50)
        ]
        first = pilot._warmup(spans)
        cut += first > 1
        speeds.append(1 / pilot._ratio([(span.tokens, span.seconds) for span in spans[first:]])[0] / 1.046 - 1)
    assert abs(statistics.fmean(speeds)) < 0.004
    assert cut < 0.15 * 400


def test_steps_that_settle_slowly_are_warm_up() -> None:
    dice = random.Random(1)
    steps = [0.5 * (1 + 0.05 * dice.uniform(-1, 1)) + 0.5 * 0.7**i for i in range(60)]
    first = pilot._warmup([pilot._StepSpan(steps=1, seconds=seconds, tokens=1, joules=1.0) for seconds in steps])
    assert 7 <= first <= 15


def test_failures_grow_with_the_cluster() -> None:
    assert pilot.goodput(8).mid > 0.9999
    assert pilot.goodput(16_384).mid == pytest.approx(0.918, abs=0.001)
    assert pilot.goodput(16_384).low < pilot.goodput(16_384).mid < pilot.goodput(16_384).high < 1


def test_given_rates_scale_with_devices_and_say_so() -> None:
    told = given_pilot(1e6, devices=512, watts=512 * 700.0)
    same = pilot.forecast(told, 1e12, good=Range.exactly(1.0))
    assert same.gpu_hours.mid == pytest.approx(1e12 / 1e6 / 3600 * 512)
    assert same.energy_kwh is not None
    assert same.energy_kwh.mid == pytest.approx(same.gpu_hours.mid * 0.7)
    double = pilot.forecast(told, 1e12, count=1024, good=Range.exactly(1.0))
    assert double.duration_h.mid == pytest.approx(same.duration_h.mid / 2)
    assert double.gpu_hours.mid == pytest.approx(same.gpu_hours.mid)
    assert any("each is taken to be as fast" in text for text in double.warnings)
    assert not any("each is taken" in text for text in same.warnings)
    assert pilot.forecast(dataclasses.replace(told, joules_per_token=None), 1e12).energy_kwh is None


def test_what_is_no_pilot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        pilot.read_pilot(tmp_path / "none")
    with pytest.raises(ConfigError, match="counts no tokens"):
        pilot.read_pilot(stepped_run(tmp_path, 20, noisy_steps(1), tokens=0).folder or "")
    with pytest.raises(ConfigError, match="better 50"):
        pilot.read_pilot(stepped_run(tmp_path, 5, noisy_steps(1)).folder or "")
    with pytest.raises(ConfigError, match="share of the time"):
        pilot.forecast(given_pilot(1e6, devices=8), 1e9, good=Range.exactly(1.2))
    with pytest.raises(ConfigError, match="tokens_per_s"):
        given_pilot(0.0, devices=8)


def test_a_run_brought_back_on_another_gpu_had_one_at_a_time(tmp_path: Path) -> None:
    place = Topology(rank=0, world_size=1, local_rank=0, local_world_size=1, host="h")
    green = stepped_run(tmp_path, 40, noisy_steps(1), place=place)
    journal = Path(green.folder or "") / "rank-00000.jsonl"
    journal.write_text(journal.read_text(encoding="utf-8").replace("GPU-0", "GPU-of-before"), encoding="utf-8")
    stepped_run(tmp_path, 40, noisy_steps(1), place=place, start_s=90_000.0)
    found = pilot.read_pilot(green.folder or "")
    assert {each.kind for each in found.by_device if each.kind is DeviceKind.GPU} and len(found.by_device) == 3
    assert found.devices == 1
    assert found.watts is not None and found.watts.mid == pytest.approx(650.0, rel=1e-2)


def test_ranks_that_are_not_in_the_folder_are_said(tmp_path: Path) -> None:
    for rank in range(3):
        place = Topology(rank=rank, world_size=4, local_rank=rank, local_world_size=4, host="h")
        green = stepped_run(tmp_path, 60, noisy_steps(1), place=place)
    found = pilot.read_pilot(green.folder or "")
    assert found.devices == 3 and found.tokens_per_s.mid / 3 == pytest.approx(TOKENS / 0.5, rel=0.02)
    assert any("3 of 4 ranks are in the folder" in warning for warning in found.warnings)


LARGE = sized(1e9)


@pytest.mark.parametrize(("tokens", "limit_h"), [(1e15, 720.0), (1e14, 100.0), (1e12, 1000.0), (1e7, 1.0), (6e7, 1.0)])
def test_a_limit_is_kept_with_failures_and_no_node_fewer_would_do(
    tmp_path: Path, tokens: float, limit_h: float
) -> None:
    folder = Path(stepped_run(tmp_path, 60, noisy_steps(1)).folder or "")
    cluster = Cluster(device="h100", limit_h=limit_h, zone="FRA")
    found = hours.by_pilot(LARGE, Workload(tokens=tokens), cluster, hardware.find("h100"), folder)
    assert found.gpu_hours.mid / found.count <= limit_h
    if found.count > 1:
        fewer = found.count - 8 if found.count > 8 else found.count // 2
        assert pilot.forecast(pilot.read_pilot(folder), tokens, count=fewer).duration_h.mid > limit_h


def test_a_limit_that_failures_forbid_is_refused(tmp_path: Path) -> None:
    folder = Path(stepped_run(tmp_path, 60, noisy_steps(1)).folder or "")
    cluster = Cluster(device="h100", limit_h=1.0, zone="FRA")
    with pytest.raises(ConfigError, match="limit_h is 1, which no number of devices keeps"):
        hours.by_pilot(LARGE, Workload(tokens=1e15), cluster, hardware.find("h100"), folder)


@pytest.mark.parametrize(
    ("ran", "kind", "says", "own_watts"),
    [
        ("NVIDIA H100 80GB HBM3", "gpu", "", True),
        ("NVIDIA A100-SXM4-80GB", "gpu", "ran on A100-80GB, the estimate is of H100-SXM", True),
        ("RTX 9999", "gpu", "ran on RTX 9999, the estimate is of H100-SXM", True),
        ("AMD EPYC", "cpu", "saw no accelerator: its hours are taken for those of H100-SXM, power is modelled", False),
        ("chassis", "node", "", True),
    ],
)
def test_what_the_pilot_ran_on_is_held_to_the_device(
    tmp_path: Path, ran: str, kind: str, says: str, own_watts: bool
) -> None:
    folder = Path(stepped_run(tmp_path, 60, noisy_steps(1)).folder or "")
    journal = folder / "rank-00000.jsonl"
    text = journal.read_text(encoding="utf-8").replace("Fake GPU", ran).replace('"gpu"', f'"{kind}"')
    journal.write_text(text, encoding="utf-8")
    cluster = Cluster(device="h100", count=1, zone="FRA")
    found = hours.by_pilot(LARGE, Workload(tokens=1e9), cluster, hardware.find("h100"), folder)
    told = [warning for warning in found.warnings if "the pilot ran on" in warning or "accelerator" in warning]
    assert told == [] if not says else len(told) == 1 and says in told[0]
    assert (found.node_w is not None) is own_watts


def test_a_trace_long_enough_for_the_pilot_need_not_reach_the_tables_hours(tmp_path: Path) -> None:
    folder = Path(stepped_run(tmp_path, 60, noisy_steps(1)).folder or "")
    trace = tmp_path / "trace.csv"
    rows = [f"2026-01-{1 + hour // 24:02d}T{hour % 24:02d}:00Z,{100 + hour % 24}" for hour in range(240)]
    trace.write_text("timestamp_utc,g_per_kwh\n" + "\n".join(rows) + "\n", encoding="utf-8")
    cluster = Cluster(device="h100", count=1, trace_csv=str(trace))
    begun = Options(start=datetime(2026, 1, 1, tzinfo=UTC))
    work = Workload(tokens=5e9)  # 170 h at the pilot's speed, more than 240 h by the table
    found = estimate(sized(1e10), work, cluster, pilot=folder, options=begun)
    assert found.duration_h.mid < 240.0 < estimate(sized(1e10), work, cluster).duration_h.mid
    assert all(relation.what == "start" for relation in found.relations)


@given(devices=st.integers(1, 4096), count=st.integers(1, 10**6), tokens=st.floats(1e6, 1e15))
def test_another_device_never_lengthens_a_pilots_forecast(devices: int, count: int, tokens: float) -> None:
    given_it = given_pilot(5000.0 * devices, devices=devices, watts=900.0 * devices)
    few, many = (pilot.forecast(given_it, tokens, count=each) for each in (count, count + 1))
    assert many.duration_h.mid <= few.duration_h.mid
    assert many.gpu_hours.mid >= few.gpu_hours.mid
    assert few.energy_kwh is not None
    assert few.energy_kwh.mid * 3.6e6 == pytest.approx(few.gpu_hours.mid * 3600 * 900.0)


@pytest.mark.parametrize(
    ("gears", "says"),
    [
        ((), ""),
        (("bf16",), ""),
        (("fp32",), "the pilot ran in fp32, the estimate is in bf16"),
        (("bf16", "fp16"), "the pilot ran in bf16 and fp16, the estimate is in bf16"),
    ],
)
def test_a_pilot_in_another_precision_is_said(tmp_path: Path, gears: tuple[str, ...], says: str) -> None:
    clock = SteppedClock()
    config = {"run": {"dir": str(tmp_path), "report": False}, "power": {"sample_s": 10.0}}
    with GreenSession(config, meter=SteppedMeter(clock), signal=SIGNAL, clock=clock) as green:
        for step in range(40):
            if gears and step % 20 == 0:
                green.gear(gears[step // 20 % len(gears)])
            clock.t_s += 0.5
            green.step(tokens=TOKENS)
    cluster = Cluster(device="h100", count=1, zone="FRA")
    found = hours.by_pilot(LARGE, Workload(tokens=1e9), cluster, hardware.find("h100"), Path(green.folder or ""))
    told = [warning for warning in found.warnings if "the pilot ran in" in warning]
    assert told == [] if not says else len(told) == 1 and says in told[0]


def test_a_rank_without_steps_is_named(tmp_path: Path) -> None:
    for rank, steps in ((0, 60), (1, 0)):
        place = Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="h")
        green = stepped_run(tmp_path, steps, noisy_steps(1), place=place)
    with pytest.raises(ConfigError, match=r"has 0 steps of rank 1, 0 of them warm-up: .*green\.step in every rank"):
        pilot.read_pilot(green.folder or "")
