"""CARL's training: its view of the environment, and that NumPy does what Stable-Baselines3 does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from greentrain.carbon.forecast import profile_forecast
from greentrain.policy.action_sources import reference_table
from greentrain.policy.carl import FEATURES, Carl, features, rows_of
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import Menu
from greentrain.simulator.grid_trace import GridTrace, Sight
from greentrain.simulator.jobs import Jobs, windows
from greentrain.simulator.simulate import references
from greentrain.simulator.world import World
from tests.simulator.grids import daily, trace, wandering

pytest.importorskip("gymnasium", reason="extra rl is not installed")

from gymnasium.utils.env_checker import check_env

from tools.train_carl import CarlView

MENU = Menu.of(reference_table())
DAYS_S = 14 * 86400.0


def view() -> CarlView:
    return CarlView([trace(wandering(400))], MENU, deadline_h=48.0, history_h=72.0, forecaster=daily)


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
def test_its_view_passes_the_environment_checker_and_is_what_the_policy_sees() -> None:
    env = view()
    check_env(env, skip_render_check=True)
    observed, _ = env.reset(seed=1)
    seen = env.unwrapped.seen  # type: ignore[attr-defined]
    assert observed.shape == (FEATURES,)
    assert observed == pytest.approx(features(seen, MENU)[0], abs=1e-6)


def test_its_actions_are_its_rows_and_its_deadline_is_soft() -> None:
    env = view()
    env.reset(seed=1)
    for action, row in enumerate(rows_of(MENU)):
        *_, info = env.step(np.int64(action))
        assert info["row"] == row and not info["shielded"]
    over = False
    while not over:
        _, reward, over, _, info = env.step(np.int64(2))
    assert info["missed"] and reward < -10


def test_numpy_does_what_stable_baselines3_does() -> None:
    pytest.importorskip("stable_baselines3", reason="extra rl is not installed")
    from tools import train_carl

    grids = [trace(wandering(1000))]
    agent = train_carl.train(grids, steps=2 * 128, jobs=2, seed=1)
    network = train_carl.network_of(agent, {})
    observed = np.random.default_rng(0).uniform(-2, 2, (500, FEATURES)).astype(np.float32)
    theirs, _ = agent.predict(observed, deterministic=True)
    logits = network(observed.astype(np.float64))
    assert (logits.argmax(axis=1) == theirs).all()
    assert len(set(theirs.tolist())) > 1, "a network that says one thing would prove little"
    distribution: Any = agent.policy.get_distribution(agent.policy.obs_to_tensor(observed)[0])
    probability = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability /= probability.sum(axis=1, keepdims=True)
    assert distribution.distribution.probs.detach().numpy() == pytest.approx(probability, abs=1e-5)
    again = train_carl.network_of(train_carl.train(grids, steps=2 * 128, jobs=2, seed=1), {})
    assert all((a == b).all() for a, b in zip(network.weights, again.weights, strict=True)), "the seed decides"


# Held out in training: another zone of the same year, other years and accountings.
@pytest.mark.parametrize("name", ["us_nyiso_2022_eia", "de_2023_em", "us_caiso_2023_em"])
def test_on_grids_never_seen_it_beats_running_throttled_and_meets_its_deadlines(name: str, traces: Path) -> None:
    grid = GridTrace.read(traces / f"{name}.csv")
    world = World(grid, Sight(grid, profile_forecast, horizon_h=30))
    tokens = float(MENU.tokens_per_s[MENU.static]) * DAYS_S / 1.5
    jobs = Jobs.alike(windows(grid, 6, length_s=DAYS_S), tokens=tokens, deadline_s=DAYS_S)
    track = world.run(DecisionKernel(Carl(MENU), MENU), jobs)
    throttled = rows_of(MENU)[1]
    at_once = 1 - MENU.power_w[throttled] / MENU.tokens_per_s[throttled] / (
        MENU.power_w[MENU.static] / MENU.tokens_per_s[MENU.static]
    )
    assert not track.missed.any()
    assert 1 - track.grams.sum() / references(grid, jobs, MENU).static_g.sum() > at_once
