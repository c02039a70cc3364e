"""The placement environment, its tasks, and that NumPy does what the trained agent does."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from greentrain.policy.carl import Network
from greentrain.policy.offload.ppo import CHOICES, FEATURES, PpoPolicy, features
from greentrain.policy.offload.rule import OffloadOracle
from greentrain.policy.offload.stages import MOVABLE, Hardware, Stage, Where, all_gpu, label
from greentrain.policy.offload.view import OffloadView
from greentrain.types import Provenance
from tools.networks import NormedNetwork, save
from tools.placement_tasks import TASKS, draw_task

pytest.importorskip("gymnasium", reason="extra rl is not installed")

from gymnasium.utils.env_checker import check_env

from tools.offload_policies import PublishedReward, published_reward
from tools.placement_env import DECISIONS, WORST, PlacementEnv, gain

pytest.importorskip("stable_baselines3", reason="extra rl is not installed")

from tools.placement_runs import ACTIONS, REWARDS, Runs

ON_GPU = np.zeros(len(MOVABLE), np.int64)
SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "rlhf_policies.py"


def test_it_passes_the_environment_checker_and_shows_what_the_policy_sees() -> None:
    env = PlacementEnv()
    check_env(env, skip_render_check=True)
    observed, info = env.reset(seed=3)
    assert observed == pytest.approx(features(env.seen), abs=1e-6)
    assert info["task"] in {task.name for task in TASKS}


def test_everything_on_the_gpu_earns_nothing_and_the_oracle_something() -> None:
    env, oracle = PlacementEnv(), OffloadOracle()
    earned = []
    for seed in range(12):
        env.reset(seed=seed)
        over, steps = False, 0
        while not over:
            best = oracle.choose(env.true)
            earned.append(gain(env.true, best))
            assert gain(env.true, all_gpu(env.true.table)) == 0.0
            _, reward, over, _, _ = env.step(ON_GPU)
            assert reward == pytest.approx(0.0)
            steps += 1
        assert steps == DECISIONS
    assert min(earned) >= -1e-9 and max(earned) > 0.05


def test_the_published_reward_is_its_weighted_sum_and_can_be_learned_from() -> None:
    env, best = PlacementEnv(rewarded=published_reward), PublishedReward()
    for seed in range(12):
        env.reset(seed=seed)
        view = env.true
        chosen = best.choose(view)
        step, home = view.step(chosen), view.step(all_gpu(view.table))
        assert step.energy_j is not None and home.energy_j is not None
        by_hand = 0.4 * home.step_s / step.step_s - 0.4 * step.energy_j / home.energy_j - 0.2 * step.bubble
        assert published_reward(view, chosen) == pytest.approx(by_hand + 0.2 * home.bubble)
        assert published_reward(view, all_gpu(view.table)) == 0.0 <= published_reward(view, chosen)
        _, reward, *_ = env.step(ON_GPU)
        assert reward == pytest.approx(0.0)
        places = np.array([CHOICES.index(chosen.get(stage, Where.GPU)) for stage in MOVABLE])
        env.reset(seed=seed)
        moved = sum(where is not Where.GPU for where in chosen.values())
        reward = env.step(places)[1]
        assert reward == pytest.approx(10 * published_reward(view, chosen) - 0.01 * moved)


def test_a_step_beyond_the_bound_costs_and_reward_has_a_floor() -> None:
    env = PlacementEnv()
    rewards = []
    for seed in range(30):
        env.reset(seed=seed)
        rewards.append(env.step(np.full(len(MOVABLE), CHOICES.index(Where.SEQUENTIAL)))[1])
    assert WORST <= min(rewards) < 0.0 < max(rewards)


def test_tasks_are_the_published_mix_of_assumed_steps() -> None:
    assert [task.weight for task in TASKS] == [0.40, 0.25, 0.20, 0.15]
    rng = np.random.default_rng(0)
    names = [draw_task(rng).name for _ in range(2000)]
    for task in TASKS:
        assert names.count(task.name) / 2000 == pytest.approx(task.weight, abs=0.04)
        table, shape = task.draw(rng)
        assert {cost.provenance for cost in table.costs.values()} == {Provenance.MODELLED}
        assert (Stage.TRAIN, Hardware.OFFLOAD) not in table.costs
        assert OffloadView.of(table, shape).step(all_gpu(table)).idle_j[Hardware.GPU] == 0.0
    moved = [label(OffloadOracle().choose(OffloadView.of(*task.draw(rng)))) for task in TASKS for _ in range(30)]
    assert 0.2 < moved.count("all on gpu") / len(moved) < 0.6


def test_drawn_runs_say_what_the_environment_says() -> None:
    runs, rng = Runs.drawn(range(3)), np.random.default_rng(0)
    for seed in range(3):
        for i, (reward, rewarded) in enumerate(zip(REWARDS, (gain, published_reward), strict=True)):
            env = PlacementEnv(rewarded=rewarded)
            observed, _ = env.reset(seed=seed)
            kept = np.zeros((1, len(MOVABLE)), np.int64)
            for decision in range(DECISIONS):
                assert observed == pytest.approx(runs.at(np.array([seed]), decision, kept)[0], abs=1e-6)
                k = int(rng.integers(len(ACTIONS)))
                now = ACTIONS[k : k + 1] * runs.movable[seed]
                paid = 10 * runs.worth[reward][seed, decision, k] - 0.01 * (now != kept).sum()
                observed, earned, *_ = env.step(ACTIONS[k])
                assert earned == pytest.approx(max(WORST, paid)), (seed, i, decision)
                kept = now


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", ["tanh", "published"])
def test_the_network_of_a_short_training_does_what_its_agent_does(name: str, tmp_path: Path) -> None:
    from tools.train_offload import about, actor_of, train

    agent = train(steps=128, runs=1, network=name)
    save(actor_of(agent, about(steps=128, seed=0, network=name)), tmp_path / "ppo.npz")
    network = (Network if name == "tanh" else NormedNetwork).load(tmp_path / "ppo.npz")
    assert [len(bias) for bias in network.biases] == [256, 128, 64, 9]
    env = PlacementEnv()
    for seed in range(20):
        observed, _ = env.reset(seed=seed)
        action, _ = agent.predict(observed, deterministic=True)
        assert (network(features(env.seen)[None]).reshape(3, 3).argmax(axis=1) == action).all()
        assert PpoPolicy(network).choose(env.seen).keys() == set(env.seen.table.stages)
    assert features(env.seen).shape == (FEATURES,)


def test_the_table_of_policies_says_which_of_rule_and_network_is_better(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--policy", "edi-rule", "--policy", "ppo", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "edi-rule has the lower regret on" in done.stdout
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 2 * (len(TASKS) + 1)
    assert all(row["regret"] < 0.2 for row in rows)
