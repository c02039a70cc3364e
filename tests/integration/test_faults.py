"""Sensors, disks and clocks fail; the training does not notice and the books say what is not known."""

import itertools
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from greentrain import GreenSession
from greentrain.errors import GreenTrainWarning, RunFolderError
from greentrain.ledger.reader import RankRecord, read_run
from greentrain.power.sampler import Sampler
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, NvmlCode, Wave

if TYPE_CHECKING:
    from tests.integration.conftest import Lab

POWER_W = 250.0
TICK_J = 1.1 * 0.1 * POWER_W
"""What a busy machine may misplace at a run's start: a tick."""
COUNTER = "nvmlDeviceGetTotalEnergyConsumption"

pytestmark = pytest.mark.alone


@contextmanager
def _running(lab: "Lab", gpu: FakeGpu | None = None) -> Iterator[tuple[FakeDriver, GreenSession]]:
    """Measure one fake GPU from this process, past the probe."""
    driver = lab.gpus(gpu or FakeGpu(power=(Wave(low_w=POWER_W),)))
    with driver.installed():
        green = GreenSession(lab.config(run={"book_s": 0.5, "live": False}))
        with green:
            time.sleep(0.7)
            yield driver, green


def _rank(green: GreenSession) -> RankRecord:
    assert green.folder is not None
    return read_run(green.folder).ranks[0]


def test_a_gpu_that_vanishes_and_never_comes_back_is_missing_from_then_on(lab: "Lab") -> None:
    with pytest.warns(GreenTrainWarning, match="lost"), _running(lab) as (driver, green):
        lost_s = time.time() - time.monotonic() + driver.update(0, lost=True)
        time.sleep(0.8)
    uid, rank = driver.uuid(0), _rank(green)
    assert rank.totals.missing_s[uid] == pytest.approx(rank.entries[-1].t1_unix_s - lost_s, abs=0.25)
    known_s = rank.totals.duration_s - rank.totals.missing_s[uid]
    assert rank.totals.by_device[uid] == pytest.approx(POWER_W * known_s, rel=0.05, abs=TICK_J)
    assert [event["name"] for event in rank.events].count("gap") == 1


@pytest.mark.parametrize("code", [NvmlCode.UNKNOWN, NvmlCode.NO_PERMISSION])
def test_a_counter_that_answers_again_delivers_the_energy_late(lab: "Lab", code: NvmlCode) -> None:
    with pytest.warns(GreenTrainWarning, match="no reading"), _running(lab) as (driver, green):
        driver.update(0, errors={COUNTER: code})
        time.sleep(0.8)
        driver.update(0, errors={COUNTER: NvmlCode.SUCCESS})
        time.sleep(0.5)
    uid, rank = driver.uuid(0), _rank(green)
    assert rank.totals.by_device[uid] == pytest.approx(lab.truth_j(rank, 0), rel=0.02, abs=TICK_J), "it held eight"
    assert rank.totals.missing_s.get(uid, 0.0) == pytest.approx(0.0, abs=0.15)


def test_a_counter_that_jumps_backwards_costs_an_interval_and_never_a_negative_joule(lab: "Lab") -> None:
    with pytest.warns(GreenTrainWarning, match="backwards"), _running(lab) as (driver, green):
        driver.update(0, counter_jump_j=-1e9)
        time.sleep(0.3)
        driver.update(0, counter_jump_j=2000.0 * POWER_W)  # so that the stopped counter runs again
        time.sleep(0.7)
    uid, rank = driver.uuid(0), _rank(green)
    assert all(device.energy_j >= 0 for entry in rank.entries for device in entry.devices.values())
    assert rank.totals.missing_s[uid] > 0


def test_all_sensors_dead_from_the_start_is_missing_and_never_zero(lab: "Lab") -> None:
    names = (COUNTER, "nvmlDeviceGetPowerUsage", "NVML_FI_DEV_POWER_INSTANT", "NVML_FI_DEV_POWER_AVERAGE")
    driver = lab.gpus(FakeGpu())
    driver.update(0, errors=dict.fromkeys(names, NvmlCode.UNKNOWN))
    time.sleep(0.05)
    with driver.installed():
        green = GreenSession(lab.config(run={"live": False}))
        with green:
            time.sleep(0.2)
    totals = _rank(green).totals
    assert driver.uuid(0) not in totals.by_device
    assert totals.missing_s[driver.uuid(0)] == pytest.approx(totals.duration_s, abs=1e-5)
    assert not {"green/energy_j", "green/power_w"} & green.metrics().keys()


@pytest.mark.slow
def test_the_weights_are_bit_identical_to_a_run_without_us(lab: "Lab") -> None:
    driver = lab.gpus(FakeGpu())
    plain = lab.start("weights", config=None)
    measured = lab.start("weights", config=lab.config(power={"meters": ["cpu_model"]}))
    failing = lab.start("weights", config=lab.config(power={"meters": ["nvml"]}))
    failing.wait_for("running")
    driver.update(0, lost=True)
    for script in (plain, measured, failing):
        assert script.end() == 0, script.errors()
    digests = {script.said[-1]["digest"] for script in (plain, measured, failing)}
    assert len(digests) == 1
    totals = failing.said[-2]["totals"]
    assert totals["missing_s"][driver.uuid(0)] > 0
    assert totals["steps"] == 30 and {"forward", "optimizer"} <= totals["phase_s"].keys()


@pytest.mark.parametrize("place", ["/proc/greentrain", "/dev/null/runs", "a file in the way"])
def test_a_folder_that_cannot_be_written_fails_before_training(lab: "Lab", place: str, tmp_path: Path) -> None:
    if place == "a file in the way":
        (tmp_path / "runs").write_text("", encoding="utf-8")
        place = str(tmp_path / "runs")
    driver = lab.gpus(FakeGpu())
    with driver.installed():
        with pytest.raises(RunFolderError, match=r"run\.dir"):
            GreenSession(lab.config(run={"dir": place})).start()
        assert driver.init_depth == 0


def test_a_disk_that_is_full_from_the_start_costs_one_warning(lab: "Lab") -> None:
    folder = lab.runs / "full"
    folder.mkdir(parents=True)
    (folder / "rank-00000.jsonl").symlink_to("/dev/full")
    driver = lab.gpus(FakeGpu(power=(Wave(low_w=POWER_W),)))
    with driver.installed():
        green = GreenSession(lab.config(run={"id": "full", "book_s": 0.2, "live": False}))
        with pytest.warns(GreenTrainWarning) as caught, green:
            time.sleep(0.6)
    assert len([w for w in caught if "No space left" in str(w.message)]) == 1
    assert green.totals().energy_j == pytest.approx(POWER_W * green.totals().duration_s, rel=0.1, abs=TICK_J)


def test_a_folder_that_is_removed_mid_run_costs_no_exception(lab: "Lab") -> None:
    with _running(lab) as (_, green):
        assert green.folder is not None
        shutil.rmtree(green.folder)
        time.sleep(0.3)
    assert green.totals().energy_j > 0.8 * POWER_W * 1.0


class JumpyClock:
    """A monotonic clock that is not: it falls back a second, and the wall clock is set by a day."""

    def __init__(self) -> None:
        self.back_s, self.wall_s = 0.0, 0.0

    def monotonic_s(self) -> float:
        return time.monotonic() - self.back_s

    def unix_s(self) -> float:
        return time.time() + self.wall_s


@pytest.mark.parametrize("back_s", [0.3, 30.0])
@pytest.mark.filterwarnings("ignore::greentrain.errors.GreenTrainWarning")
def test_clocks_that_jump_leave_finite_sums(lab: "Lab", back_s: float) -> None:
    driver, clock = lab.gpus(FakeGpu(power=(Wave(low_w=POWER_W),))), JumpyClock()
    with driver.installed():
        green = GreenSession(lab.config(run={"book_s": 0.2, "live": False}), clock=clock)
        with green:
            time.sleep(0.8)
            clock.wall_s = -86400.0
            with green.phase("forward"):
                clock.back_s = back_s
                time.sleep(0.8)
            green.step()
    totals = green.totals()
    assert 0.1 * POWER_W < totals.energy_j < 2.5 * POWER_W  # at least what was booked before the jump
    assert totals.energy_j < 1.5 * POWER_W * totals.duration_s
    assert sum(totals.by_phase.values()) == pytest.approx(totals.energy_j)
    assert totals.duration_s > 0 and all(seconds >= 0 for seconds in totals.phase_s.values())
    entries = _rank(green).entries
    assert all(a.t1_unix_s <= b.t0_unix_s + 1e-5 for a, b in itertools.pairwise(entries))


def test_a_start_that_fails_half_way_leaves_nothing_behind(lab: "Lab", monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    driver, before = lab.gpus(FakeGpu()), signal.getsignal(signal.SIGTERM)
    open_files = set(os.listdir("/proc/self/fd"))
    with driver.installed():
        green = GreenSession(lab.config(run={"live": False}))
        with monkeypatch.context() as patch:
            patch.setattr(Sampler, "start", fail)
            with pytest.raises(RuntimeError, match="new thread"):
                green.start()
        assert driver.init_depth == 0 and not green.running
        assert signal.getsignal(signal.SIGTERM) is before
        assert len(set(os.listdir("/proc/self/fd")) - open_files) == 0
        with green:  # and nothing is held: the next start owns the GPU
            time.sleep(0.3)
        assert driver.uuid(0) in green.totals().by_device
