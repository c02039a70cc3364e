"""benchmarks/actuation_profile.py: what GreenTrain's search makes of recorded sweeps, and that Zeus' own still runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.actuation_profile import MODERN_W, Training, ours
from benchmarks.zeus_sweeps import STEPS, SWEEPS, Sweep
from greentrain.policy.action_table import ActionObjective

ROOT = Path(__file__).resolve().parents[3]
EVERY = [*SWEEPS, *(sweep.stretched(MODERN_W) for sweep in SWEEPS)]


@pytest.mark.sweep
@pytest.mark.parametrize("sweep", EVERY, ids=str)
@pytest.mark.parametrize("name", ["energy", "cost"])
def test_the_limit_found_is_the_best_within_one_percent_in_at_most_200_steps(sweep: Sweep, name: str) -> None:
    objective = ActionObjective(name=name, eta=0.5, limit_w=float(sweep.limits_w[0] * sweep.gpus))
    found = ours(Training(sweep), objective)
    truth = {
        w: objective.score(STEPS / seconds, joules / seconds)
        for w, seconds, joules in zip(sweep.limits_w, sweep.seconds, sweep.joules, strict=True)
    }
    assert truth[found.limit_w] <= 1.01 * min(truth.values())
    assert found.steps <= 200 and found.measured <= 10


def test_a_stretched_sweep_keeps_its_ends_and_what_lies_between() -> None:
    sweep = SWEEPS[0]
    wide = sweep.stretched(MODERN_W)
    assert (wide.limits_w[0], wide.limits_w[-1], len(wide.joules)) == (700, 200, 21)
    for a, b in ((sweep.seconds, wide.seconds), (sweep.joules, wide.joules)):
        assert (b[0], b[10], b[-1]) == pytest.approx((a[0], a[4], a[-1]))


SCRIPT = """
import dataclasses, json
from benchmarks.actuation_profile import MODERN_W, markdown, rows
from benchmarks.zeus_sweeps import SWEEPS
found = rows([SWEEPS[0], SWEEPS[7], SWEEPS[0].stretched(MODERN_W)], noise=0.02, seeds=2)
assert markdown("title", found).count("|") > 50
print(json.dumps([dataclasses.asdict(row) for row in found]))
"""


@pytest.mark.long
@pytest.mark.slow
def test_zeus_own_optimizer_takes_50_steps_a_limit() -> None:
    pytest.importorskip("zeus")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [row["steps"][0] for row in found] == [451, 351, 1051]
    assert all(row["steps"][1] <= 200 for row in found)
    assert all(mine < 0.05 and theirs < 0.05 for row in found for theirs, mine in row["regret"].values())
