"""Ranks of one node: one run folder, every GPU booked exactly once, whoever starts, sees or dies."""

import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from greentrain.ledger.reader import RunRecord, read_run
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, Wave
from tests.helpers.ports import free_port

if TYPE_CHECKING:
    from tests.integration.conftest import Lab, Script

pytestmark = pytest.mark.slow


def _gpus(lab: "Lab", count: int) -> FakeDriver:
    return lab.gpus(*(FakeGpu(power=(Wave(low_w=100.0 + 50 * i),)) for i in range(count)))


def _tick_j(*positions: int) -> float:
    """Return what counters hide between two ticks: on a crowded machine a run's first tick may be off by one."""
    return 1.1 * sum(0.1 * (100.0 + 50 * position) for position in positions)


def _end(scripts: "Sequence[Script]") -> None:
    for script in scripts:
        assert script.end() == 0, script.errors()


def _until_booked(lab: "Lab", rank: int, uid: str) -> None:
    """Wait until a rank that is running has booked a device for a second."""
    end_s = time.monotonic() + 120.0
    while sum(one.totals.by_device.get(uid, 0.0) for one in lab.record().ranks if one.rank == rank) < 100.0:
        assert time.monotonic() < end_s, f"rank {rank} does not book {uid}"
        time.sleep(0.1)


def _owners(record: RunRecord) -> dict[str, list[int]]:
    owners: dict[str, list[int]] = {}
    for rank in record.ranks:
        for uid in rank.totals.by_device:
            owners.setdefault(uid, []).append(rank.rank)
    return owners


def _truth_j(lab: "Lab", record: RunRecord) -> float:
    """Return what the GPUs really used: each counted once, while some rank booked it."""
    return sum(lab.truth_j(rank, i) for rank in record.ranks for i in range(lab.count))


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.long)])
def test_two_gloo_ranks_that_see_all_gpus_book_the_nodes_energy_once(lab: "Lab", when: str) -> None:
    driver = _gpus(lab, 2)
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "MASTER_PORT": str(free_port())}
    _end(lab.ranks("gloo", 2, env=[env, env], when=when, seconds=2.0))
    record = lab.record()
    assert [rank.rank for rank in record.ranks] == [0, 1]
    assert record.totals.energy_j == pytest.approx(_truth_j(lab, record), rel=0.01, abs=_tick_j(0, 1))
    assert _owners(record) == {driver.uuid(0): [0], driver.uuid(1): [1]}
    for i, rank in enumerate(record.ranks):
        truth_j = lab.truth_j(rank, i)
        assert rank.totals.by_device[driver.uuid(i)] == pytest.approx(truth_j, rel=0.01, abs=_tick_j(i))


@pytest.mark.parametrize(("when", "late_s"), [("before", 0.4), pytest.param("after", 0.0, marks=pytest.mark.long)])
def test_two_fits_in_a_row_are_two_folders_of_both_ranks(lab: "Lab", when: str, late_s: float) -> None:
    _gpus(lab, 2)
    env = {"MASTER_PORT": str(free_port())}
    _end(lab.ranks("gloo", 2, env=[env, env], when=when, seconds=0.3, fits=2, late_s=late_s))
    folders = sorted(lab.runs.iterdir())
    assert len(folders) == 2
    for folder in folders:
        record = read_run(folder)
        assert len(record.ranks) == 2 and len(record.totals.by_device) == 2
        assert all(len(rank.opens) == 1 and rank.close for rank in record.ranks)


@pytest.mark.long
def test_ranks_of_a_hand_written_launcher_without_variables_share_a_folder(lab: "Lab") -> None:
    driver = _gpus(lab, 2)
    _end([lab.start("spawned", seconds=1.5, port=free_port())])
    record = lab.record()
    assert len(record.ranks) == 2
    assert sorted(_owners(record)) == [driver.uuid(0), driver.uuid(1)]
    assert record.totals.energy_j == pytest.approx(_truth_j(lab, record), rel=0.01, abs=_tick_j(0, 1))


def test_a_second_launch_with_the_same_port_is_a_run_of_its_own(lab: "Lab") -> None:
    _gpus(lab, 2)
    for _ in range(2):
        _end(lab.ranks("plain", 2, seconds=0.2))
    folders = list(lab.runs.iterdir())
    assert len(folders) == 2
    assert all(len(rank.opens) == 1 for folder in folders for rank in read_run(folder).ranks)


@pytest.mark.parametrize(
    ("world", "visible"),
    [
        pytest.param(4, "shared", marks=pytest.mark.long),
        (4, "own"),
        pytest.param(8, "shared", marks=[pytest.mark.long, pytest.mark.alone]),
        pytest.param(8, "uuid", marks=[pytest.mark.long, pytest.mark.alone]),
    ],
)
def test_each_gpu_is_booked_by_exactly_one_rank(lab: "Lab", world: int, visible: str) -> None:
    driver = _gpus(lab, world)
    envs: list[dict[str, str]] = [{} for _ in range(world)]
    if visible != "shared":
        names = [str(i) if visible == "own" else driver.uuid(i) for i in range(world)]
        envs = [{"CUDA_VISIBLE_DEVICES": name} for name in names]
    # Together, for who is there takes over the GPU of a rank that has ended, or is more than a second late.
    gate, over = lab.folder / "gate", lab.folder / "over"
    ranks = lab.ranks("plain", world, env=envs, seconds=2.0, gate=str(gate), until=str(over))
    for said, file in (("ready", gate), ("running", over)):
        for script in ranks:
            script.wait_for(said)
        file.touch()
    _end(ranks)
    record = lab.record()
    assert len(record.ranks) == world
    assert _owners(record) == {driver.uuid(i): [i] for i in range(world)}
    for i, rank in enumerate(record.ranks):
        truth_j = lab.truth_j(rank, i)
        # Eight processes on two cores read late: twice as much would be a double count, a little less is no fault.
        assert rank.totals.by_device[driver.uuid(i)] == pytest.approx(truth_j, rel=0.03, abs=_tick_j(i))
    assert record.totals.energy_j == pytest.approx(_truth_j(lab, record), rel=0.03, abs=_tick_j(*range(world)))


def test_a_killed_ranks_gpu_is_taken_over(lab: "Lab") -> None:
    driver = _gpus(lab, 2)
    config = lab.config(run={"book_s": 0.5})
    over = lab.folder / "over"
    first, second = lab.ranks("plain", 2, seconds=0.5, config=config, until=str(over))
    first.wait_for("running")
    second.wait_for("running")
    time.sleep(1.5)
    os.kill(first.process.pid, signal.SIGKILL)
    assert first.end() == -signal.SIGKILL
    uid = driver.uuid(0)
    _until_booked(lab, 1, uid)
    over.touch()
    _end([second])
    record = lab.record()
    assert _owners(record)[uid] == [0, 1]
    truth_j = lab.node_truth_j(record, 0)
    booked_j = sum(rank.totals.by_device[uid] for rank in record.ranks)
    lost_j = truth_j - booked_j
    assert -0.01 * truth_j <= lost_j <= 200.0 * 3.0  # at most what was not booked plus the take-over, at 200 W
    assert record.ranks[1].totals.by_device[driver.uuid(1)] == pytest.approx(
        lab.truth_j(record.ranks[1], 1), rel=0.01, abs=_tick_j(1)
    )
    assert any(event["name"] == "claim" for event in record.ranks[1].events)


@pytest.mark.parametrize("method", ["counter", pytest.param("power", marks=pytest.mark.long)])
def test_a_rank_that_ends_hands_its_gpu_over_and_no_second_counts_twice(lab: "Lab", method: str) -> None:
    errors = {"nvmlDeviceGetTotalEnergyConsumption": 3} if method == "power" else {}
    driver = lab.gpus(*(FakeGpu(power=(Wave(low_w=200.0),), errors=errors) for _ in range(2)))
    config = lab.config(run={"book_s": 2.0})
    met, over, uid = lab.folder / "met", lab.folder / "over", driver.uuid(0)
    each = [{"until": str(met)}, {"until": str(over)}]
    first, second = lab.ranks("plain", 2, seconds=1.5, config=config, each=each)
    second.wait_for("running")
    met.touch()
    _end([first])
    _until_booked(lab, 1, uid)
    over.touch()
    _end([second])
    record = lab.record()
    assert _owners(record)[uid] == [0, 1]
    truth_j = lab.node_truth_j(record, 0)
    booked_j = sum(rank.totals.by_device[uid] for rank in record.ranks)
    assert truth_j - 200.0 * 2.5 <= booked_j <= 1.01 * truth_j
    own = record.ranks[1]
    assert own.totals.by_device[driver.uuid(1)] == pytest.approx(200.0 * own.totals.duration_s, rel=0.02, abs=22.0)
