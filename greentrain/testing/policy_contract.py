"""Conformance suite for scheduling policies: what the decision kernel, a training and the simulator rely on.

For a policy of your own, in a test file::

    TestMine = PolicyContract.of(Mine)

or, to override more::

    class TestMine(PolicyContract):
        def make_policy(self, menu: Menu) -> SchedulePolicy:
            return Mine(menu)
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from greentrain.policy.action_table import ActionTable
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Outlook, SchedulePolicy
from greentrain.testing.suites import filled
from greentrain.types import Gear

HOUR_S = 3600.0
JOBS = 12


class PolicyContract:
    """Tests that every policy must pass. Subclass it in a test file and give the method below."""

    @classmethod
    def of(cls, make: Callable[[Menu], SchedulePolicy], **settings: Any) -> "type[PolicyContract]":
        """Return the suite for the policies that ``make`` returns.

        Args:
            make: Returns a fresh policy for a menu.
            **settings: Attributes of this class, such as ``draws``.
        """
        return filled(cls, {"make_policy": lambda _, menu: make(menu)}, settings)

    def make_policy(self, menu: Menu) -> SchedulePolicy:
        """Return a fresh policy for a menu."""
        raise NotImplementedError

    draws = False
    """True for a policy that draws: it may then differ from call to call, but not from one of the same seed."""

    def make_menu(self) -> Menu:
        """Return the choices that the policy is tried with."""
        rows = [
            {"gear": str(gear), "ranks": n, "tokens_per_s": 100.0 * n**0.97 * speed, "power_w": 900.0 * n}
            for gear, speed in ((Gear.BF16, 1.0), (Gear.FP8, 1.35))
            for n in (1, 2, 4)
        ]
        return Menu.of(ActionTable.declare(rows, device="a device"))

    def make_outlook(self, menu: Menu, jobs: int = JOBS, seed: int = 0) -> Outlook:
        """Return jobs in all states, on grids with a day in them."""
        rng = np.random.default_rng(seed)
        hours = np.arange(21 * 24 + 48)
        grid = 300 + 120 * np.sin((hours + rng.integers(0, 24, jobs)[:, None]) * 2 * np.pi / 24)
        grid = np.maximum(grid + rng.normal(0, 25, grid.shape), 1.0)
        left_s = rng.uniform(2.0, 48.0, jobs) * HOUR_S
        tokens = np.full(jobs, menu.tokens_per_s.max() * 40 * HOUR_S)
        return Outlook(
            epoch_s=HOUR_S,
            step_s=HOUR_S,
            t_unix_s=np.asarray(1.7e9 + rng.integers(0, 8760, jobs) * HOUR_S, dtype=np.float64),
            left_s=left_s,
            total_s=np.full(jobs, 60 * HOUR_S),
            tokens_left=rng.uniform(0.1, 0.95, jobs) * menu.tokens_per_s.max() * left_s,
            tokens=tokens,
            current=rng.integers(0, len(menu), jobs),
            held_s=rng.uniform(0, 9, jobs) * HOUR_S,
            past_g_per_kwh=grid[:, :-48],
            forecast_g_per_kwh=grid[:, -48:],
        )

    def test_follows_the_protocol(self) -> None:
        """The object has a name and chooses."""
        policy = self.make_policy(self.make_menu())
        assert isinstance(policy, SchedulePolicy)
        assert policy.name

    def test_chooses_rows_of_the_menu_with_a_reason(self) -> None:
        """One row and one reason a job; prices, where there are any, are not negative."""
        menu = self.make_menu()
        choice = self.make_policy(menu).choose(self.make_outlook(menu))
        assert choice.rows.shape == choice.reason.shape == (JOBS,)
        assert ((choice.rows >= 0) & (choice.rows < len(menu))).all()
        assert ((choice.reason >= 0) & (choice.reason < len(choice.reasons))).all()
        assert choice.price is None or (choice.price >= 0).all()

    def test_the_same_outlook_gives_the_same_choice(self) -> None:
        """Two fresh policies agree, and the outlook is left as it was."""
        menu = self.make_menu()
        seen, again = self.make_outlook(menu), self.make_outlook(menu)
        first = self.make_policy(menu).choose(seen)
        assert (self.make_policy(menu).choose(again).rows == first.rows).all()
        for name in ("tokens_left", "past_g_per_kwh", "forecast_g_per_kwh", "current"):
            assert (getattr(seen, name) == getattr(again, name)).all(), f"choose() has changed {name}"

    def test_a_job_is_not_decided_by_its_neighbours(self) -> None:
        """A job alone gets what it gets among others."""
        if self.draws:
            return
        menu = self.make_menu()
        seen = self.make_outlook(menu)
        together = self.make_policy(menu).choose(seen).rows
        for job in range(JOBS):
            one = Outlook(
                epoch_s=seen.epoch_s,
                step_s=seen.step_s,
                **{
                    name: getattr(seen, name)[job : job + 1]
                    for name in [
                        "t_unix_s",
                        "left_s",
                        "total_s",
                        "tokens_left",
                        "tokens",
                        "current",
                        "held_s",
                        "past_g_per_kwh",
                        "forecast_g_per_kwh",
                    ]
                },
            )
            assert self.make_policy(menu).choose(one).rows[0] == together[job]

    def test_every_reason_can_be_read(self) -> None:
        """The kernel fills in what the reasons name."""
        menu = self.make_menu()
        kernel = DecisionKernel(self.make_policy(menu), menu)
        seen = self.make_outlook(menu)
        decided = kernel.decide(seen)
        for job in range(JOBS):
            text = kernel.explain(seen, decided, job)
            assert text and "{" not in text

    def test_the_shield_keeps_the_deadline(self) -> None:
        """Hour by hour, through gaps in the grid, no job that can be in time is late."""
        menu = self.make_menu()
        kernel = DecisionKernel(self.make_policy(menu), menu)
        seen = self.make_outlook(menu, seed=1)
        left_s, tokens_left, current = seen.left_s.copy(), seen.tokens_left.copy(), seen.current.copy()
        for hour in range(49):
            ahead = np.roll(seen.forecast_g_per_kwh, -hour, axis=1)
            ahead[:, hour % 7 :: 7] = np.nan
            now = Outlook(
                epoch_s=HOUR_S,
                step_s=HOUR_S,
                t_unix_s=seen.t_unix_s + hour * HOUR_S,
                left_s=left_s,
                total_s=seen.total_s,
                tokens_left=tokens_left,
                tokens=seen.tokens,
                current=current,
                held_s=seen.held_s,
                past_g_per_kwh=seen.past_g_per_kwh,
                forecast_g_per_kwh=ahead,
            )
            rows = kernel.decide(now).rows
            run_s = np.clip(left_s, 0.0, HOUR_S)
            tokens_left = np.maximum(0.0, tokens_left - menu.tokens_per_s[rows] * run_s)
            left_s, current = left_s - run_s, rows
        assert (tokens_left <= 1e-6 * seen.tokens_left).all()

    def test_a_job_that_is_done_is_off(self) -> None:
        """Nothing is left to do."""
        menu = self.make_menu()
        seen = self.make_outlook(menu)
        seen.tokens_left[:] = 0.0
        assert (DecisionKernel(self.make_policy(menu), menu).decide(seen).rows == OFF).all()
