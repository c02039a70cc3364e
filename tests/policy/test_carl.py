"""CARL in NumPy: what it sees, what it may do, and the network that ships."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from greentrain.policy.carl import (
    AHEAD_H,
    DEFER,
    FEATURES,
    PASS,
    SHIPPED,
    THROTTLE,
    Carl,
    Network,
    features,
    rows_of,
)
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Outlook
from greentrain.types import Gear
from tests.policy.cases import action_table, grid
from tests.policy.drive import outlook
from tools.networks import save

MENU = Menu.of(action_table())
HOUR = 3600.0


def named(name: str, menu: Menu = MENU) -> int:
    return list(menu.names()).index(name)


def jobs(n: int = 50) -> Outlook:
    rng = np.random.default_rng(0)
    g = grid(rng, n, 400)
    left_s = rng.uniform(10, 300, n) * HOUR
    seen = outlook(
        ahead=g[:, 350:],
        past=g[:, :350],
        tokens_left=(rng.uniform(0.05, 0.9, n) * left_s * MENU.tokens_per_s.max()).tolist(),
        left_s=left_s.tolist(),
        current=rng.choice(MENU.hull, n).tolist(),
    )
    return replace(seen, tokens=np.full(n, 336 * HOUR * MENU.tokens_per_s.max()))


# -- its three actions -------------------------------------------------------------------------------------------


def test_throttled_is_the_leanest_row_that_draws_15_to_30_percent_less() -> None:
    rows = rows_of(MENU)
    assert rows[PASS] == MENU.fastest and rows[DEFER] == OFF
    assert rows[THROTTLE] == named("fp8 at 60% on 8")
    less = 1 - MENU.power_w[rows[THROTTLE]] / MENU.power_w[MENU.fastest]
    assert 0.15 <= less <= 0.30


def test_without_such_a_row_the_nearest_is_taken_and_a_lone_action_is_both() -> None:
    width = Menu.of(action_table(), wanted=lambda a: a.cap == 1.0 and a.gear is Gear.BF16 and a.ranks in (1, 4, 8))
    assert rows_of(width).tolist() == [named("bf16 on 8", width), named("bf16 on 8", width), OFF]
    halves = Menu.of(action_table(), wanted=lambda a: a.cap == 1.0 and a.gear is Gear.BF16 and a.ranks in (5, 8))
    assert rows_of(halves)[THROTTLE] == named("bf16 on 5", halves), "37 % less is nearer to 22 % than none"
    lone = Menu.of(action_table(nodes=1), wanted=lambda a: a.cap == 1.0 and a.gear is Gear.BF16)
    assert rows_of(lone).tolist() == [1, 1, OFF]


# -- what it sees ------------------------------------------------------------------------------------------------


def test_features_by_hand() -> None:
    fastest = MENU.tokens_per_s[MENU.fastest]
    seen = outlook(
        ahead=[[300.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0]],
        past=np.full((1, 335), 200.0),
        tokens_left=[0.5 * 100 * HOUR * fastest],
        tokens=[100 * HOUR * fastest],
        left_s=[80 * HOUR],
        current=[named("bf16 on 8")],
    )
    mean = (335 * 200 + 300) / 336
    expected = [1 / 1.35, 0.5, 50 / 80, *(np.array([300.0, 100, 200, 300, 400, 500, 600]) / mean - 1)]
    assert features(seen, MENU)[0] == pytest.approx(expected)
    assert FEATURES == len(expected) == 4 + AHEAD_H
    assert features(replace(seen, utilisation=np.array([0.25])), MENU)[0, 0] == 0.25
    late = features(replace(seen, left_s=np.array([0.0])), MENU)
    assert np.isfinite(late).all() and late.max() == 5.0


def test_the_forecast_is_hourly_whatever_the_steps_and_holds_its_last_value() -> None:
    hourly = outlook(ahead=np.arange(100.0, 108.0)[None], tokens_left=[1e9], left_s=[1e6], current=[0])
    fine = replace(hourly, step_s=300.0, forecast_g_per_kwh=np.repeat(np.arange(100.0, 108.0), 12)[None])
    assert features(fine, MENU) == pytest.approx(features(hourly, MENU))
    short = replace(hourly, forecast_g_per_kwh=np.array([[100.0, 101.0]]))
    assert features(short, MENU)[0, 3:] == pytest.approx(np.array([100, *[101.0] * 6]) / 100 - 1)


def test_a_scale_of_the_intensity_or_of_the_speeds_changes_nothing() -> None:
    seen = jobs()
    scaled = replace(seen, past_g_per_kwh=seen.past_g_per_kwh * 4, forecast_g_per_kwh=seen.forecast_g_per_kwh * 4)
    assert features(scaled, MENU) == pytest.approx(features(seen, MENU))
    slower = replace(MENU, tokens_per_s=MENU.tokens_per_s / 8)
    less = replace(seen, tokens_left=seen.tokens_left / 8, tokens=seen.tokens / 8)
    assert (Carl(slower).choose(less).rows == Carl(MENU).choose(seen).rows).all()


# -- the network -------------------------------------------------------------------------------------------------


def test_a_network_is_its_layers() -> None:
    network = Network(
        weights=(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[1.0], [-1.0]])),
        biases=(np.array([0.0, 1.0]), np.array([0.5])),
        about={},
    )
    assert network(np.array([[0.3, -0.2]])) == pytest.approx(np.array([[np.tanh(0.3) - np.tanh(0.6) + 0.5]]))


def test_the_shipped_network_says_who_trained_it_on_what() -> None:
    network = Network.shipped()
    about = network.about
    assert about["made_by"] == "python -m tools.train_carl TRACES_DIR"
    assert set(about["traces"]) == set(about["sha256"]) and all("eia" in name for name in about["traces"])
    assert isinstance(about["seed"], int) and about["steps"] > 0 and "stable-baselines3" in about["versions"]
    assert "EIA-930" in about["source"]
    assert [w.shape for w in network.weights] == [(FEATURES, 32), (32, 32), (32, 3)]
    assert SHIPPED.stat().st_size < 300_000


def test_it_survives_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "carl.npz"
    network = Network.shipped()
    save(network, path)
    monkeypatch.setattr("greentrain.policy.carl.SHIPPED", path)
    again = Network.shipped()
    assert all((a == b).all() for a, b in zip(network.weights, again.weights, strict=True))
    assert again.about == network.about


# -- the policy --------------------------------------------------------------------------------------------------


def test_it_only_takes_its_three_rows_each_job_as_if_alone() -> None:
    seen = jobs()
    rows = Carl(MENU).choose(seen).rows
    assert set(rows.tolist()) <= set(rows_of(MENU).tolist())
    for i in range(0, 50, 7):
        names = ("t_unix_s", "left_s", "total_s", "tokens_left", "tokens", "current", "held_s")
        both = ("past_g_per_kwh", "forecast_g_per_kwh")
        one = replace(seen, **{name: getattr(seen, name)[i : i + 1] for name in (*names, *both)})
        assert Carl(MENU).choose(one).rows[0] == rows[i]


def test_it_trains_in_clean_hours_and_defers_in_dirty_ones_while_there_is_time() -> None:
    def row(now: float, pace: float) -> int:
        ahead = np.concatenate([[now], np.full(30, 300.0)])
        fastest = MENU.tokens_per_s[MENU.fastest]
        seen = outlook(
            ahead=ahead[None],
            past=np.full((1, 350), 300.0),
            tokens_left=[pace * 150 * HOUR * fastest],
            tokens=[336 * HOUR * fastest * pace],
            left_s=[150 * HOUR],
            current=[MENU.fastest],
        )
        return int(Carl(MENU).choose(seen).rows[0])

    assert row(150.0, 0.4) != OFF
    assert row(500.0, 0.4) == OFF
    assert row(300.0, 0.97) != OFF, "no time to wait"


def test_the_kernel_explains_and_shields_it() -> None:
    seen = jobs()
    hurry = replace(seen, tokens_left=seen.left_s * MENU.tokens_per_s.max() * 0.9999)
    kernel = DecisionKernel(Carl(MENU), MENU)
    assert (kernel.decide(hurry).rows == MENU.fastest).all()
    decided = kernel.decide(seen)
    texts = {kernel.explain(seen, decided, i).split(": ")[-1].split(",")[0].split(" to ")[0] for i in range(50)}
    assert texts & {"pass through", "throttle", "defer"}
