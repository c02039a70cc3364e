"""The gymnasium environment: its form, its books, and that an agent stands where a policy stands."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="extra rl is not installed")

from gymnasium.utils.env_checker import check_env  # noqa: E402 - after the check for the extra

from greentrain.errors import ConfigError, TraceError  # noqa: E402
from greentrain.policy.action_sources import reference_table  # noqa: E402
from greentrain.policy.decision_kernel import DecisionKernel  # noqa: E402
from greentrain.policy.menu import OFF, Menu  # noqa: E402
from greentrain.policy.mpc import Mpc  # noqa: E402
from greentrain.simulator.grid_trace import Sight  # noqa: E402
from greentrain.simulator.jobs import Jobs  # noqa: E402
from greentrain.simulator.simulate import references  # noqa: E402
from greentrain.simulator.world import World  # noqa: E402
from tests.simulator.grids import HOUR, START, daily, trace, wandering  # noqa: E402
from tools.job_env import CarbonTrainEnv  # noqa: E402

MENU = Menu.of(reference_table())
GRID = trace(wandering(400))
TABLE_TOKENS = float(MENU.tokens_per_s[MENU.static])
FASTEST = len(MENU.hull) - 1


def made(**more: Any) -> CarbonTrainEnv:
    given: dict[str, Any] = {"deadline_h": 48.0, "history_h": 72.0, "forecaster": daily} | more
    return CarbonTrainEnv(given.pop("traces", [GRID]), given.pop("menu", MENU), **given)


def played(env: CarbonTrainEnv, action: Any, **options: Any) -> tuple[list[float], dict[str, Any]]:
    """Return the rewards and the last info of an episode; ``action`` is a number or a function of the environment."""
    env.reset(seed=0, options=options)
    rewards: list[float] = []
    info: dict[str, Any] = {}
    over = False
    while not over:
        chosen = action(env) if callable(action) else action
        _, reward, over, _, info = env.step(np.int64(chosen))
        rewards.append(reward)
    return rewards, info


def test_it_passes_the_environment_checker() -> None:
    check_env(made(switch_s=600.0, slack=(1.0, 2.0)), skip_render_check=True)


def test_the_same_seed_gives_the_same_episode_and_another_one_another() -> None:
    def episode(seed: int) -> list[Any]:
        env, rng = (
            made(traces=[GRID, trace(wandering(500, seed=1), name="other")], slack=(1.0, 2.0)),
            np.random.default_rng(0),
        )
        first, info = env.reset(seed=seed)
        found: list[Any] = [first.tolist(), info]
        for _ in range(30):
            observed, reward, over, _, info = env.step(np.int64(rng.integers(11)))
            found += [observed.tolist(), reward, info]
            if over:
                break
        return found

    assert episode(3) == episode(3)
    assert episode(3) != episode(4)


def test_a_start_can_be_named() -> None:
    env = made(traces=[GRID, trace(wandering(500, seed=1), name="other")])
    observed, info = env.reset(seed=1, options={"start": 100, "trace": 1, "slack": 1.25})
    again, _ = env.reset(seed=2, options={"start": 100, "trace": 1, "slack": 1.25})
    assert (observed == again).all()
    assert (info["trace"], info["start"], info["slack"]) == ("other", 100.0, 1.25)
    assert env.seen.t_unix_s == [START + 100 * HOUR]
    with pytest.raises(TraceError, match="job 0 runs from"):
        env.reset(options={"start": 480, "trace": 1})


def test_an_observation_by_hand() -> None:
    g = np.full(200, 200.0)
    g[72:] = 300.0
    env = made(traces=[trace(g)], deadline_h=24.0, slack=2.0, forecaster=None)
    observed, _ = env.reset(seed=0, options={"start": 72})
    mean = (335 * 200.0 + 300.0) / 336  # before the trace, its first value
    pace = TABLE_TOKENS / 2.0 / MENU.tokens_per_s[MENU.fastest]
    assert observed[:6] == pytest.approx([1.0, pace, 300 / mean - 1, 1.0, 0.0, 1.0], abs=1e-6)
    assert observed[6:] == pytest.approx(np.full(24, 300 / mean - 1))
    observed, *_ = env.step(np.int64(1))
    hour = 2 * np.pi / 24
    assert observed[[0, 3, 4, 5]] == pytest.approx([23 / 24, 1 / 8, np.sin(hour), np.cos(hour)])


def test_an_agent_that_does_as_mpc_emits_what_mpc_emits() -> None:
    env, mpc = made(slack=1.4, switch_s=300.0), Mpc(MENU)
    index = {int(row): i for i, row in enumerate(MENU.hull)}
    sight = Sight(GRID, daily, horizon_h=49)
    world = World(GRID, sight)
    jobs = Jobs.alike(np.array([START + 90 * HOUR]), tokens=TABLE_TOKENS * 48 * HOUR / 1.4, deadline_s=48 * HOUR)
    kernel = DecisionKernel(mpc, MENU, switch_s=300.0, hysteresis=0.0)
    course = world.begin(kernel, jobs)

    def as_mpc(env: CarbonTrainEnv) -> int:
        rows = course.step().rows
        return index[int(rows[0])]

    _, info = played(env, as_mpc, start=90)
    assert info["grams"] == pytest.approx(float(world.run(kernel, jobs).grams[0]), rel=1e-12)
    assert not info["missed"] and info["tokens"] == pytest.approx(float(jobs.tokens[0]))


def test_rewards_sum_to_a_constant_less_the_grams() -> None:
    env, rng = made(slack=1.5), np.random.default_rng(1)
    actions = [FASTEST, 8, lambda _: rng.integers(11), lambda _: rng.integers(11)]
    episodes = [played(env, action, start=100) for action in actions]
    grams = np.array([info["grams"] for _, info in episodes])
    sums = np.array([sum(rewards) for rewards, _ in episodes])
    slope, _ = np.polyfit(grams, sums, 1)
    assert slope < 0 and np.ptp(grams) > 0.1 * grams.mean()
    assert sums - slope * grams == pytest.approx(np.full(4, sums[0] - slope * grams[0]), rel=1e-9)


def test_a_clean_hour_is_worth_training_in_and_a_dirty_one_is_not() -> None:
    g = np.tile([100.0] * 12 + [500.0] * 12, 20)
    env = made(traces=[trace(g)], slack=2.0)
    clean, _ = played(env, 5, start=96)
    assert min(clean[:12]) > 0 > max(clean[12:24])
    idle, _ = played(env, OFF, start=96)
    assert idle[:12] == [0.0] * 12


def test_the_shield_keeps_the_deadline_and_without_it_lateness_is_charged() -> None:
    _, info = played(made(slack=1.2), OFF, start=100)
    assert not info["missed"] and info["tokens"] == pytest.approx(TABLE_TOKENS * 48 * HOUR / 1.2)
    env = made(slack=1.2, shield=False, late=3.0)
    rewards, info = played(env, OFF, start=100)
    assert info["missed"] and info["tokens"] == 0.0 and info["grams"] == 0.0
    assert rewards[:-1] == [0.0] * 47
    assert rewards[-1] == pytest.approx(-3.0 * 48 / 1.2), "three times the usual emissions of all tokens, in epochs"


def test_info_says_what_the_shield_made_of_the_action() -> None:
    env = made(slack=1.0)
    env.reset(seed=0, options={"start": 100})
    shielded = []
    for _ in range(40):
        *_, over, _, info = env.step(np.int64(OFF))
        shielded.append(info["shielded"])
        assert info["shielded"] == (info["row"] != OFF)
        if over:
            break
    assert not shielded[0] and any(shielded)


def test_actions_can_be_any_rows() -> None:
    env = made(rows=[MENU.static, OFF], slack=1.25)
    assert env.action_space == gymnasium.spaces.Discrete(2)
    jobs = Jobs.alike(np.array([START + 100 * HOUR]), tokens=TABLE_TOKENS * 48 * HOUR / 1.25, deadline_s=48 * HOUR)
    _, info = played(env, 0, start=100)
    assert info["grams"] == pytest.approx(float(references(GRID, jobs, MENU).static_g[0]))


def test_a_step_after_the_end_wants_a_reset() -> None:
    env = made()
    with pytest.raises(AssertionError, match="reset"):
        env.step(np.int64(0))
    played(env, FASTEST, start=100)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.int64(0))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"traces": []}, "at least one trace"),
        ({"deadline_h": 0.0}, "deadline_h is 0"),
        ({"slack": 0.5}, r"slack is 0\.5 to 0\.5; .* from 0\.741 on"),
        ({"slack": (2.0, 1.0)}, "slack is 2 to 1; it must grow"),
        ({"rows": [49]}, r"rows are \[49\]; the menu has the rows 0 to 48"),
        ({"rows": []}, r"rows are \[\]"),
        ({"history_h": 380.0}, "covers 400 h, less than history_h 380"),
    ],
)
def test_what_cannot_be_is_refused_with_its_bound(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**wrong)


def test_without_gymnasium_it_names_the_extra_and_the_rest_of_the_simulator_works() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import greentrain.simulator.simulate, greentrain.policy.registry\n"
        "assert 'torch' not in sys.modules\n"
        "try:\n    import tools.job_env\n"
        "except ImportError as error:\n    assert 'greentrain-torch[rl]' in str(error), error\n"
        "else:\n    raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_the_environment_needs_no_torch() -> None:
    code = "import sys, tools.job_env; assert not {'torch', 'stable_baselines3'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_observations_stay_in_their_box_whatever_the_grid() -> None:
    g = np.concatenate([np.full(120, 1.0), np.full(120, 4000.0), np.zeros(160)])
    env = made(traces=[trace(g)], slack=1.5)
    for start in (100, 118, 230, 300):
        observed, _ = env.reset(seed=0, options={"start": start})
        assert env.observation_space.contains(observed)
        for _ in range(5):
            observed, reward, *_ = env.step(np.int64(3))
            assert env.observation_space.contains(observed) and np.isfinite(reward)
