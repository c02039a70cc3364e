"""The training curve of the learned placement: its scores by hand, and the whole command at its smallest."""

import csv
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="extra rl is not installed")

from benchmarks import rlhf_training
from greentrain.policy.offload.rule import OffloadOracle
from tools.offload_policies import StaticPlan
from tools.placement_env import DECISIONS, Action
from tools.placement_runs import ACTIONS, REWARDS, Replay, Runs


def _taken(best: list[Action], decision: int, kept: Action) -> Action:
    return best[decision]


def test_the_oracle_is_one_and_all_on_the_gpu_nothing() -> None:
    runs = Runs.drawn(range(4))
    nothing = np.zeros((4, 3), np.int64)
    for reward in REWARDS:
        best = [ACTIONS[runs.worth[reward][:, k].argmax(axis=1)] for k in range(DECISIONS)]
        earned, most = runs.judged(reward, partial(_taken, best))
        assert earned == pytest.approx(most) and most > 0
        assert runs.judged(reward, lambda k, kept: nothing)[0] == 0.0
    assert runs.judged_policy("saved", StaticPlan())[0] == 0.0
    oracle, most = runs.judged_policy("saved", OffloadOracle())  # sees costs with their scatter
    assert 0.9 * most < oracle <= most


def test_replayed_runs_pay_what_they_are_worth_and_begin_anew() -> None:
    runs = Runs.drawn(range(2))
    env = Replay(runs, "saved", 3, seed=0)
    first = env.reset()
    for decision in range(DECISIONS):
        env.step_async(np.tile(ACTIONS[0], (3, 1)))
        seen, reward, over, _ = env.step_wait()
        assert (reward == 0.0).all() and over.all() == (decision == DECISIONS - 1)
    assert seen.shape == first.shape == (3, runs.seen.shape[2])
    assert (seen[:, 6] == 0.0).all()


@pytest.mark.long
def test_the_command_writes_both_figures(tmp_path: Path) -> None:
    assert rlhf_training.main(["--quick", "--out", str(tmp_path)]) == 0
    for name in ("curve", "online"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        assert {row["provenance"] for row in rows} == {"modelled"}
    with pytest.raises(SystemExit):
        rlhf_training.main(["--quick", "--into", str(tmp_path / "page.md")])
