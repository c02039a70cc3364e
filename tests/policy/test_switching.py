"""Plans with costs of changing: against all sequences of rows of tiny jobs, and what they do on real grids."""

import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from greentrain.errors import ConfigError
from greentrain.policy.action_table import ActionTable
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.switching import FirstColumn, Switching
from greentrain.policy.waterfill import solve
from tests.policy.cases import Array, action_table, grid, small_menu
from tests.policy.switch_plan import plan_switching

MENU = Menu.of(action_table())
STATIC = float(MENU.tokens_per_s[MENU.static])


@dataclass(frozen=True)
class Tiny:
    """A job of a few columns, small enough to try every sequence of rows."""

    menu: Menu
    g: Array
    weights_s: Array
    switch_s: float
    dwell_s: float
    current: int
    held_s: float
    shift_s: float = 0.0

    @classmethod
    def of(cls, seed: int) -> "Tiny":
        rng = np.random.default_rng(seed)
        h = int(rng.integers(1, 6))
        menu = small_menu(rng, 3, idle_w=20.0 if seed % 3 == 0 else None)
        weights_s = np.full(h, 3600.0)
        weights_s[-1] = rng.uniform(600.0, 3600.0)
        return cls(
            menu=menu,
            g=rng.uniform(50.0, 500.0, h),
            weights_s=weights_s,
            switch_s=float(rng.choice([0.0, 600.0, 3000.0])),
            dwell_s=float(rng.choice([0.0, 3600.0, 7200.0, 9000.0])),
            current=int(rng.integers(len(menu))),
            held_s=float(rng.choice([0.0, 3600.0, 1e6])),
        )

    def with_gears(self, seed: int) -> "Tiny":
        """Return the same job with another gear at each of two widths, whose changes take time."""
        rng = np.random.default_rng(seed)
        rows = [
            {"gear": gear, "ranks": n, "tokens_per_s": rng.uniform(1, 9) * n, "power_w": rng.uniform(50, 500) * n}
            for n in (1, 2)
            for gear in ("bf16", "fp8")
        ]
        menu = Menu.of(ActionTable.declare(rows, device="a device", where="test"))
        some = slice(0, min(len(self.g), 4))
        current, shift_s = int(rng.integers(len(menu))), float(rng.choice([60.0, 900.0, 3600.0]))
        g, weights_s = self.g[some], self.weights_s[some]
        return replace(self, menu=menu, g=g, weights_s=weights_s, current=current, shift_s=shift_s)

    @property
    def switching(self) -> Switching:
        return Switching(self.menu, step_s=3600.0, switch_s=self.switch_s, dwell_s=self.dwell_s, shift_s=self.shift_s)

    def first(self, tokens: float) -> FirstColumn:
        return self.switching.first(
            self.g[None],
            self.weights_s[None],
            np.array([tokens]),
            np.array([self.current]),
            np.array([self.held_s]),
            within=1e-4,
        )

    def run(self, rows: tuple[int, ...]) -> tuple[float, float] | None:
        """Return tokens and grams of rows, the job ending behind the last of them; None where a width is not held."""
        width, held_s, tokens, grams = self.menu.width[self.current], self.held_s, 0.0, 0.0
        gear, switch_s = self.menu.gear[self.current], max(self.switch_s, self.shift_s)
        pending_s = max(switch_s - held_s, 0.0) if width else 0.0
        for k, row in enumerate(rows):
            if self.menu.width[row] != width:
                if held_s < self.dwell_s:
                    return None
                width, held_s = self.menu.width[row], 0.0
                pending_s = switch_s if width else 0.0
            elif self.shift_s and self.menu.gear[row] != gear:
                if held_s < self.dwell_s:
                    return None
                pending_s = max(pending_s, self.shift_s)
            gear = self.menu.gear[row]
            weight_s = self.weights_s[k]
            tokens += self.menu.tokens_per_s[row] * max(weight_s - pending_s, 0.0)
            grams += self.g[k] * self.menu.power_w[row] * weight_s / 3.6e6
            pending_s, held_s = max(pending_s - weight_s, 0.0), held_s + weight_s
        return tokens, grams

    def all(self) -> list[tuple[tuple[int, ...], float, float]]:
        """Return rows, tokens and grams of everything that may be done but nothing."""
        out = []
        for h in range(1, len(self.g) + 1):
            for rows in itertools.product(range(len(self.menu)), repeat=h):
                done = self.run(rows)
                if done is not None:
                    out.append((rows, *done))
        return out


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(40))
def test_the_programme_is_exact_at_its_price_and_bounds_every_plan(seed: int) -> None:
    job = Tiny.of(seed)
    plans = job.all()
    most = max(tokens for _, tokens, _ in plans)
    if most == 0.0:
        return
    tokens = float(np.random.default_rng(seed).uniform(0.1, 0.95)) * most
    found = job.first(tokens)
    price = float(found.price[0])
    value = {rows: price * (tokens - done) + grams for rows, done, grams in plans}
    least = min(value.values())
    assert found.bound_g[0] == pytest.approx(least, rel=1e-9)
    assert any(value[rows] <= least * (1 + 1e-9) for rows in value if rows[0] == found.rows[0])
    optimum = min(grams for _, done, grams in plans if done >= tokens)
    assert found.bound_g[0] <= optimum * (1 + 1e-9)

    plan = plan_switching(job.switching, job.g, job.weights_s, tokens, current=job.current, held_s=job.held_s)
    ran = int(np.max(np.flatnonzero(plan.rows), initial=-1)) + 1
    done = job.run(tuple(plan.rows[:ran].tolist()))
    assert done is not None, "a width was not held"
    assert (plan.tokens, plan.grams) == pytest.approx(done)
    assert plan.tokens >= tokens * (1 - 1e-9)
    assert plan.bound_g <= optimum * (1 + 1e-9) and optimum <= plan.grams * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_changes_of_gear_that_take_time_are_planned_exactly(seed: int) -> None:
    job = Tiny.of(seed).with_gears(seed)
    plans = job.all()
    most = max(done for _, done, _ in plans)
    if most == 0.0:  # all of the time goes into the first change
        return
    tokens = float(np.random.default_rng(seed).uniform(0.1, 0.9)) * most
    found = job.first(tokens)
    price = float(found.price[0])
    value = {rows: price * (tokens - done) + grams for rows, done, grams in plans}
    least = min(value.values())
    assert found.bound_g[0] == pytest.approx(least, rel=1e-9)
    assert any(value[rows] <= least * (1 + 1e-9) for rows in value if rows[0] == found.rows[0])


def test_a_shift_longer_than_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="shift_s is 4000; it must be from 0 s to a step of the plan, 3600 s"):
        Switching(MENU, step_s=3600.0, shift_s=4000.0)


def real(traces: Path, name: str, first: int, hours: int) -> Array:
    return np.loadtxt(traces / f"{name}.csv", delimiter=",", skiprows=1, usecols=1)[first : first + hours]


@pytest.mark.parametrize("name", ["de_2023_em", "us_pjm_2022_eia", "us_caiso_2022_eia"])
def test_the_gap_is_small_and_changes_get_rare(traces: Path, name: str) -> None:
    g, hours = real(traces, name, 600, 336), np.full(336, 3600.0)
    tokens = STATIC * hours.sum() / 1.5
    free = solve(g, hours, tokens, MENU).grams
    grams, changes = [], []
    for switch_s, dwell_s in ((0.0, 0.0), (180.0, 0.0), (600.0, 0.0), (600.0, 12 * 3600.0), (5400.0, 0.0)):
        switching = Switching(MENU, step_s=3600.0, switch_s=switch_s, dwell_s=dwell_s)
        plan = plan_switching(switching, g, hours, tokens, current=MENU.static)
        assert plan.gap < 3e-3
        assert plan.tokens >= tokens * (1 - 1e-9)
        grams.append(plan.grams)
        changes.append(plan.changes)
    assert free <= grams[0] <= free * 1.002
    assert all(a <= b * 1.002 for a, b in itertools.pairwise(grams))
    assert changes[0] > 2 * changes[1] >= 2 * changes[2] >= 2 * changes[3]


def test_many_jobs_at_once_are_as_one_by_one() -> None:
    rng = np.random.default_rng(1)
    n, h = 20, 48
    g, weights_s = grid(rng, n, h), np.full((n, h), 3600.0)
    weights_s[:, -1] = 900.0
    g[3, 5:9] = np.nan
    tokens = STATIC * weights_s.sum(axis=1) * rng.uniform(0.2, 1.2, n)
    tokens[7] = 0.0
    tokens[8] *= 100.0
    current, held_s = rng.integers(0, len(MENU), n), rng.uniform(0.0, 7200.0, n)
    switching = Switching(MENU, step_s=3600.0, switch_s=600.0, dwell_s=5400.0)
    together = switching.first(g, weights_s, tokens, current, held_s)
    for i in range(n):
        one = switching.first(g[[i]], weights_s[[i]], tokens[[i]], current[[i]], held_s[[i]])
        assert one.rows[0] == together.rows[i]
        assert (one.price[0], one.bound_g[0]) == pytest.approx((together.price[i], together.bound_g[i]))
    assert (together.price[7], together.rows[7], together.bound_g[7]) == (0.0, OFF, 0.0)
    assert (together.price[8], together.rows[8]) == (np.inf, MENU.fastest)


def test_a_width_is_kept_until_it_has_been_held() -> None:
    g = np.concatenate([np.full(6, 600.0), np.full(42, 50.0)])[None]
    weights_s, tokens = np.full((1, 48), 3600.0), np.array([STATIC * 20 * 3600.0])
    switching = Switching(MENU, step_s=3600.0, dwell_s=4 * 3600.0)
    width = MENU.width[MENU.static]
    for held_s, row in ((0.0, None), (3600.0, None), (4 * 3600.0, OFF), (1e6, OFF)):
        found = switching.first(g, weights_s, tokens, np.array([MENU.static]), np.array([held_s]))
        assert (found.rows[0] == OFF) == (row == OFF)
        assert row == OFF or MENU.width[found.rows[0]] == width


def test_a_change_that_costs_more_than_it_saves_is_not_made() -> None:
    g = 300.0 + 4.0 * np.sin(np.arange(48) * 2 * np.pi / 24)
    hours = np.full(48, 3600.0)
    tokens = STATIC * hours.sum() / 1.2
    cheap = plan_switching(Switching(MENU, step_s=3600.0), g, hours, tokens, current=MENU.static)
    dear = plan_switching(Switching(MENU, step_s=3600.0, switch_s=1200.0), g, hours, tokens, current=MENU.static)
    assert cheap.changes >= 4 > dear.changes


def test_what_cannot_be_done_says_by_when_it_can() -> None:
    hours = np.full(10, 3600.0)
    fastest = float(MENU.tokens_per_s[MENU.fastest])
    switching = Switching(MENU, step_s=3600.0, switch_s=1800.0)
    enough = plan_switching(switching, np.full(10, 300.0), hours, fastest * 9.5 * 3600.0)
    assert enough.tokens == pytest.approx(fastest * 9.5 * 3600.0) and enough.changes == 1
    with pytest.raises(ConfigError, match="earliest feasible deadline is 37080 s"):
        plan_switching(switching, np.full(10, 300.0), hours, fastest * 9.8 * 3600.0)
    with pytest.raises(ConfigError, match="1 of 10 columns"):
        plan_switching(switching, np.append(np.full(9, 300.0), np.nan), hours, 1.0)
    with pytest.raises(ConfigError, match="tokens is 0"):
        plan_switching(switching, np.full(10, 300.0), hours, 0.0)
    with pytest.raises(ConfigError, match="switch_s is -1"):
        Switching(MENU, step_s=3600.0, switch_s=-1.0)


def test_a_decision_for_a_fortnight_takes_milliseconds() -> None:
    g, weights_s = grid(np.random.default_rng(2), 1, 336), np.full((1, 336), 3600.0)
    switching = Switching(MENU, step_s=3600.0, switch_s=600.0, dwell_s=7200.0)
    tokens, current, held_s = np.array([STATIC * 224 * 3600.0]), np.array([MENU.static]), np.array([1e6])

    def seconds() -> float:
        began_s = time.process_time()
        switching.first(g, weights_s, tokens, current, held_s)
        return time.process_time() - began_s

    assert min(seconds() for _ in range(5)) < 0.03  # 0.005 on an idle core


def test_a_width_that_is_held_beyond_the_deadline_stays() -> None:
    switching = Switching(MENU, step_s=3600.0, dwell_s=48 * 3600.0)
    tokens = STATIC * 3600.0
    plan = plan_switching(
        switching, np.array([500.0, 100.0]), np.full(2, 3600.0), tokens, current=MENU.static, held_s=0.0
    )
    assert set(MENU.width[plan.rows].tolist()) <= {8, 0} and MENU.width[plan.rows[0]] == 8
    assert plan.changes <= 1
