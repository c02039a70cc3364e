"""Power limits in the profiling phase: set between steps, by all ranks or none, and left as they were found."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain.control.coordination import RankZeroChannel
from greentrain.control.profiling import distributed
from greentrain.policy import action_table
from greentrain.policy.action_table import Action, ActionCache, ActionObjective, ActionTable
from greentrain.types import Gear, Topology
from tests.helpers.capped import LIMIT_W, STEP_S, FakeCaps, Job
from tests.helpers.hanging import Hanging
from tests.helpers.ports import free_port

ROOT = Path(__file__).resolve().parents[3]


def _caps(table: ActionTable) -> list[float]:
    return [cost.action.cap for cost in table.costs]


def _right(job: Job, table: ActionTable) -> None:
    """Every row holds what its own limit brings and draws."""
    for cost in table.costs:
        assert cost.steps_per_s is not None and cost.power_w is not None
        assert cost.power_w.mean == pytest.approx(cost.action.cap * LIMIT_W)
        assert cost.steps_per_s.mean == pytest.approx(job.speed(cost.action.cap))


def test_each_row_is_measured_under_its_own_limit() -> None:
    caps = FakeCaps()
    job = Job(caps)
    phase = job.phase(("bf16", "fp32"))
    assert phase.gear is Gear.BF16
    steps = job.run(phase)
    (table,) = job.tables
    assert set(table.actions) == {Action(gear=g, cap=c) for g in (Gear.BF16, Gear.FP32) for c in caps.fractions}
    _right(job, table)
    assert caps.fraction == 1.0 and steps <= 203
    assert all(now for _, now in caps.asked)  # the dwell time is for plans


def test_without_caps_nothing_is_set_and_nothing_changes() -> None:
    caps = FakeCaps(fractions=(1.0,))
    capped, alone = Job(caps), Job(None)
    tables = []
    for job in (capped, alone):
        job.run(job.phase(("bf16", "fp32")))
        tables.append([(c.action, c.steps_per_s, c.power_w, c.blocks) for c in job.tables[0].costs])
    assert tables[0] == tables[1] and [row[3] for row in tables[0]] == [4, 4]
    assert caps.asked == []


def test_the_limits_found_are_back_with_the_last_measured_step() -> None:
    caps = FakeCaps()
    job = Job(caps)
    phase = job.phase(rounds=3)
    while not phase.profiler.done:
        last = caps.fraction
        job.train()
        phase.boundary()
        phase.step(640, 8)
    assert last == 0.6 and caps.fraction == 1.0 and not phase.done
    assert min(fraction for fraction, _ in caps.asked) == 0.6


def test_a_limit_that_was_lowered_before_is_lifted_first() -> None:
    job = Job(FakeCaps(fraction=0.8))
    job.run(job.phase())
    assert _caps(job.tables[0]) == [1.0, 0.8, 0.6]
    _right(job, job.tables[0])


def test_where_the_limit_in_force_cannot_be_lifted_it_is_the_only_one() -> None:
    caps = FakeCaps(fraction=0.8, refuses=lambda caps, fraction: True)
    job = Job(caps)
    job.run(job.phase())
    assert _caps(job.tables[0]) == [0.8]
    _right(job, job.tables[0])


def test_a_cap_that_is_refused_has_no_row_and_is_tried_again_in_the_next_run(tmp_path: Path) -> None:
    job = Job(FakeCaps(refuses=lambda caps, fraction: fraction == 0.8))
    job.run(job.phase(folder=tmp_path))
    assert _caps(job.tables[0]) == [1.0, 0.6]
    _right(job, job.tables[0])
    again = Job(FakeCaps())
    again.run(again.phase(folder=tmp_path))
    assert _caps(again.tables[0]) == [1.0, 0.8, 0.6]


def test_a_driver_that_dies_leaves_no_row_with_the_wrong_label() -> None:
    job = Job(FakeCaps(refuses=lambda caps, fraction: len(caps.asked) > 2))
    job.run(job.phase())
    (table,) = job.tables
    assert 1.0 in _caps(table)
    _right(job, table)


@pytest.mark.parametrize("how", ["boundary", "run"])
def test_a_failure_leaves_the_limits_found(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caps = FakeCaps()
    job = Job(caps)
    phase = job.phase()

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    def step() -> int:
        if caps.fraction < 1.0:
            if how == "run":
                broken()
            monkeypatch.setattr(phase.profiler, "boundary", broken)
        tokens = job.train()
        phase.boundary()
        return tokens

    with pytest.raises(ZeroDivisionError):
        phase.run(step)
    assert caps.fraction == 1.0 and caps.asked[-1] == (1.0, True)
    job.train()
    phase.boundary()
    assert _caps(job.tables[0]) == [1.0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_profile_gears_trains_on_until_sensors_and_ranks_have_told(ranks: int) -> None:
    store = HashStore()

    def run(rank: int) -> tuple[int, ActionTable | None]:
        channel = RankZeroChannel("blocks", Topology(rank=rank, world_size=ranks), store, wait_s=60.0)
        job, steps = Job(None, channel=channel, late_s=1.5 * (rank + 1)), 0
        phase = job.phase(("bf16", "fp32"))

        def step() -> int:
            nonlocal steps
            steps += 1
            tokens = job.train()
            phase.boundary()
            phase.step(tokens, 8)
            return tokens

        phase.run(step)
        assert steps >= phase.profiler.steps + 1.5 / STEP_S, "they are steps, and no sleep"
        return steps, job.tables[0]

    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(run, range(ranks)))
    assert [steps for steps, _ in found] == [found[0][0]] * ranks, (
        "a step of one rank has the others' collectives in it"
    )
    for _, table in found:
        assert table is not None and all(c.power_w and c.power_w.mean == ranks * LIMIT_W for c in table.costs)


def test_a_rank_that_dies_at_the_end_of_profile_gears_is_waited_for_a_second(caplog: pytest.LogCaptureFixture) -> None:
    store = HashStore()

    def run(rank: int) -> list[ActionTable | None]:
        channel = RankZeroChannel("blocks", Topology(rank=rank, world_size=2), store, wait_s=60.0)
        job = Job(None, channel=channel, late_s=2.5)
        phase = job.phase()

        def step() -> int:
            if phase.profiler.done:
                if rank:
                    raise SystemExit
                channel.wait_s = 0.01
            tokens = job.train()
            phase.boundary()
            phase.step(tokens, 8)
            return tokens

        with contextlib.suppress(SystemExit):
            phase.run(step)
        assert phase.done or rank
        return job.tables

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [[None], []]
    assert "not every one of 2 ranks came within 0.01 s; training goes on" in caplog.text


def test_few_steps_are_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(FakeCaps(fractions=tuple(1.0 - 0.05 * n for n in range(12))))
    with caplog.at_level(logging.WARNING):
        job.run(job.phase(max_steps=30))
    assert "power cap" in caplog.text and "raise max_steps from 30" in caplog.text


def test_a_table_is_kept_for_its_own_caps_and_objective_only(tmp_path: Path) -> None:
    def visits(caps: tuple[float, ...], objective: ActionObjective | None = None) -> int:
        job = Job(FakeCaps(fractions=caps))
        return job.run(job.phase(folder=tmp_path, objective=objective))

    green, dirty = (ActionObjective(name="carbon", g_per_kwh=g, max_slowdown=0.2) for g in (50.0, 800.0))
    assert visits((1.0, 0.8)) > 10
    assert visits((1.0, 0.8)) == 2
    assert visits((1.0, 0.7)) > 10
    assert visits((1.0, 0.8), green) > 10
    assert visits((1.0, 0.8), dirty) == 2  # what was measured does not depend on the grid
    assert visits((1.0,)) > 10


def test_the_cache_is_read_and_written_by_threads_and_may_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, where = Hanging(), []
    save = ActionCache.save

    def slow(cache: ActionCache, key: str, table: ActionTable | None = None) -> Path | None:
        where.append(threading.current_thread().name)
        hanging.here()
        return None if table is None else save(cache, key, table)

    for name in ("load", "save"):
        monkeypatch.setattr(ActionCache, name, slow)
    job = Job(FakeCaps())
    with hanging.seen_at_once(distributed, action_table):
        phase = job.phase(folder=tmp_path)
        while not phase.done:
            tokens = job.train()
            phase.boundary()
            phase.step(tokens, 8)
        assert not job.cache.wait(1.0), "it is being written"
    assert job.cache.wait(0.0) and len(list((tmp_path / "actions").iterdir())) == 1
    assert where == ["greentrain-cache"] * 2 and hanging.waits_s == [0.5, 1.0]
    assert "measured again, as the cache does not open: no answer within 0.5 s" in caplog.text
    _right(job, job.tables[0])


def test_a_rank_that_does_not_come_ends_the_measuring_on_all_and_no_training(caplog: pytest.LogCaptureFixture) -> None:
    store = HashStore()
    jobs = [Job(None, channel=RankZeroChannel("blocks", Topology(rank=rank, world_size=2), store)) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(Job.phase, jobs)
    assert jobs[1].run(second) < 5, "it heard nothing of rank 0, waited a second and went on"
    assert jobs[0].tables == []
    jobs[0].run(first)  # as nobody held it up
    assert jobs[0].tables == jobs[1].tables == [None]
    assert "rank 0 said nothing within 1 s; training goes on" in caplog.text
    assert "a rank could not measure" in caplog.text


def test_ranks_do_not_begin_without_one_another() -> None:
    channel = RankZeroChannel("blocks", Topology(rank=0, world_size=2), HashStore())
    with pytest.raises(TimeoutError, match="not every one of 2 ranks came within 1 s"):
        Job(None, channel=channel).phase()


RANKS = """
import json, os, sys
import torch, torch.distributed as dist
from greentrain.control.coordination import RankZeroChannel
from greentrain.policy.action_table import ActionObjective
from greentrain.utils.topology import current_topology
from tests.helpers.capped import FakeCaps, Job as OneJob

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
answers = []


def Job(caps):  # a rank that the machine held up for a second is no subject here
    return OneJob(caps, channel=RankZeroChannel("blocks", current_topology(), wait_s=60.0))


def all_done(done):
    dist.all_reduce(flag := torch.tensor(int(done)), dist.ReduceOp.MIN)
    return bool(flag)


for caps in (
    FakeCaps(refuses=lambda caps, fraction: rank == 1 and fraction == 0.8),
    FakeCaps(fractions=(1.0, 0.8, 0.6) if rank else (1.0, 0.7, 0.6)),
    FakeCaps() if rank else None,
    FakeCaps(refuses=lambda caps, fraction: rank == 1 and len(caps.asked) > 1),
):
    job = Job(caps)
    steps = job.run(job.phase(), all_done=all_done)
    rows = [(c.action.cap, c.power_w.mean) for c in job.tables[0].costs]
    answers.append({"steps": steps, "rows": rows, "now": 1.0 if caps is None else caps.fraction})
job = Job(FakeCaps(fractions=tuple(1.0 - 0.04 * n for n in range(21))))  # each rank knows another grid
goal = ActionObjective(name="carbon", g_per_kwh=400.0 / (1 + rank), embodied_g_per_s=0.5 * rank)
job.run(job.phase(objective=goal), all_done=all_done)
answers.append({"rows": [(c.action.cap, c.power_w.mean) for c in job.tables[0].costs], "now": 1.0})
print(json.dumps(answers))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_set_a_cap_together_or_not_at_all() -> None:
    port = free_port()
    processes = []
    for rank in range(2):
        env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
        env["OMP_NUM_THREADS"] = "1"
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", RANKS],
                env=env,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    answers = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=400)
            assert process.returncode == 0, err[-3000:]
            answers.append(json.loads(out.strip().splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [a["rows"] for a in answers[0]] == [a["rows"] for a in answers[1]]
    refused, different, without, dead, _ = answers[0]
    assert [cap for cap, _ in refused["rows"]] == [1.0, 0.6]  # refused by one rank, measured by none
    assert [cap for cap, _ in different["rows"]] == [1.0, 0.6]
    assert [cap for cap, _ in without["rows"]] == [1.0]
    assert [cap for cap, _ in dead["rows"]] == [1.0]
    assert [answer["now"] for answer in answers[1]] == [
        1.0,
        1.0,
        1.0,
        0.8,
        1.0,
    ]  # the driver is dead, the guardian's turn
    for answer in answers[0]:
        assert answer["now"] == 1.0
        for cap, power_w in answer["rows"]:
            assert power_w == pytest.approx(2 * cap * LIMIT_W)


def test_the_objective_bounds_what_is_searched() -> None:
    def lowest(objective: ActionObjective) -> float:
        job = Job(FakeCaps(fractions=tuple(1.0 - 0.04 * n for n in range(21))))
        job.run(job.phase(objective=objective))
        return min(_caps(job.tables[0]))

    bounded: Callable[[float | None], ActionObjective] = lambda share: ActionObjective(max_slowdown=share)  # noqa: E731
    assert lowest(bounded(0.05)) > lowest(bounded(None))
