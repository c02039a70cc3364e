"""Chaos among ranks: late, uneven, killed, resumed, on disks of their own, sharing batches, with gears and a plan.

Each round is one job on gloo, drawn from a seed. At its end all ranks have one run, their books sum to what the fake
driver really used and to the tokens that were really trained, and no call of ours has held the training up. For
``GREENTRAIN_RANK_CHAOS_S`` seconds (15; 600 before a release) rounds follow each other; ``GREENTRAIN_CHAOS_SEED``
gives a seed that failed.
"""

import os
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from greentrain.ledger.reader import RunRecord, read_run
from greentrain.testing.fake_nvml import FakeGpu, Wave
from tests.helpers.chaos_seed import chaos_seed
from tests.helpers.ports import free_port

if TYPE_CHECKING:
    from tests.integration.conftest import Lab, Script

SECONDS = float(os.environ.get("GREENTRAIN_RANK_CHAOS_S", "15"))
SEED = chaos_seed()
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(SECONDS + 600.0)]
STEPS = 60
HELD_UP_S = 10.0
"""Longest time that a call of ours may take (s): it waits a second at most, and a busy machine may let it wait for a
core; gloo itself would wait for 90 s, and a rank that waits for a message that never comes waits for longer."""
LOST_S = 12.5
"""Most that a kill may take out of a rank's books (s)."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One job."""

    world: int
    data_parallel: int | None
    tokens: list[list[int]] = field(repr=False)
    late_s: list[float]
    kill: list[int] | None
    gears: bool
    plan: bool
    own_disks: bool

    @classmethod
    def drawn(cls, chance: random.Random) -> "Round":
        """Draw a job."""
        world = chance.choice((2, 2, 4))
        shared = world == 4 and chance.random() < 0.5
        batches = 2 if shared else world
        uneven = chance.random() < 0.7
        rows = [[chance.randrange(1, 2000) if uneven else 64 for _ in range(STEPS)] for _ in range(batches)]
        late_s = [chance.choice((0.0, 0.0, 0.3, 2.0, 4.0)) for _ in range(world)]
        gears = chance.random() < 0.6
        return cls(
            world=world,
            data_parallel=2 if shared else None,
            tokens=[rows[rank % batches] for rank in range(world)],
            late_s=late_s,
            kill=[chance.randrange(world), chance.randrange(5, STEPS - 5)] if chance.random() < 0.4 else None,
            gears=gears,
            plan=gears and chance.random() < 0.6,
            own_disks=chance.random() < 0.25,
        )

    def trained(self) -> int:
        """Return how many tokens the batches of all steps have."""
        batches = self.data_parallel or self.world
        return sum(map(sum, self.tokens[:batches]))


def test_chaos_among_ranks(lab: "Lab") -> None:
    lab.gpus(*(FakeGpu(power=(Wave(low_w=100.0 + 50 * i),)) for i in range(4)))
    end_s, number = time.monotonic() + SECONDS, 0
    while number == 0 or time.monotonic() < end_s:
        job = Round.drawn(random.Random(f"{SEED} {number}"))
        print(f"GREENTRAIN_CHAOS_SEED={SEED} round {number}: {job}")
        _play(lab, job, number)
        for folder in (lab.runs, lab.folder / "saves"):
            shutil.rmtree(folder, ignore_errors=True)
        number += 1


def _play(lab: "Lab", job: Round, number: int) -> None:
    scripts = _start(lab, job, number, 0)
    if job.kill is not None:
        scripts[job.kill[0]].end(timeout_s=240.0)
        for script in scripts:  # as torchrun does when a rank has died
            script.process.kill()
            script.end()
        scripts = _start(lab, job, number, 1)
    for script in scripts:
        assert script.end(timeout_s=240.0) == 0, script.errors()
    said = [script.said[-1] for script in scripts]
    assert max(one["longest_s"] for one in said) <= HELD_UP_S, f"a call held the training up: {said}"
    assert len({tuple(one["gears"]) for one in said}) == 1, "ranks changed gears after different steps"
    assert len({Path(one["folder"]).name for one in said}) == 1, "ranks have several runs"
    _check(lab, job, [read_run(folder) for folder in sorted({Path(one["folder"]) for one in said})])


def _check(lab: "Lab", job: Round, records: list[RunRecord]) -> None:
    ranks = [rank for record in records for rank in record.ranks]
    assert sorted(rank.rank for rank in ranks) == list(range(job.world))
    tokens = sum(record.totals.tokens for record in records)
    if job.kill is None:
        assert tokens == job.trained()
        assert [rank.totals.steps for rank in ranks] == [STEPS] * job.world
    else:  # steps that a kill undid were trained twice, and paid for twice; what was not yet written is lost
        assert job.trained() - job.world * 2000 * LOST_S / 0.02 <= tokens <= 2 * job.trained()
    truth_j = sum(lab.truth_j(rank, gpu) for rank in ranks for gpu in range(lab.count))
    tick_j = 0.1 * sum(100.0 + 50 * gpu for gpu in range(lab.count)) * (1 if job.kill is None else 2)
    assert sum(record.totals.energy_j for record in records) == pytest.approx(truth_j, rel=0.01, abs=tick_j)


def _start(lab: "Lab", job: Round, number: int, attempt: int) -> "list[Script]":
    (lab.folder / "saves").mkdir(exist_ok=True)
    agent = {"MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": f"job{number}"}
    agent |= {"TORCHELASTIC_RESTART_COUNT": str(attempt), "GREENTRAIN_CACHE_DIR": str(lab.folder / "cache")}
    return lab.ranks(
        "trained",
        job.world,
        env=[agent] * job.world,
        each=[{"config": _config(lab, job, rank)} for rank in range(job.world)],
        tokens=job.tokens,
        late_s=job.late_s,
        kill=job.kill if attempt == 0 else None,
        data_parallel=job.data_parallel,
        saves=str(lab.folder / "saves"),
    )


def _config(lab: "Lab", job: Round, rank: int) -> dict[str, Any]:
    more: dict[str, Any] = {"run": {"book_s": 0.5}}
    if job.own_disks:
        more["run"]["dir"] = str(lab.runs / f"node{rank}")
    if job.gears:
        more["precision"] = {"gears": ["fp32", "bf16"], "min_features": 16, "probe_every": 0}
    if job.plan:
        more["policy"] = {"name": "mpc", "tokens": float(2 * job.trained()), "deadline_h": 10, "idle_w": 1.0}
        more["actuators"] = {"pause": False, "checkpoint": False}
    return lab.config(**more)
