"""The corrected CarbonGearRL."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from greentrain.policy.carbongear import CarbonGear, ForecastDual, draw
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.mpc import Mpc
from greentrain.policy.outlook import Array, Outlook
from greentrain.policy.waterfill import row_at
from tests.policy.cases import action_table, grid
from tools.trailing_dual import TrailingDual

MENU = Menu.of(action_table())
DAY_S = 86400.0
MEMORY = 0.9
"""Weight of what was before in RobustDual's average, an epoch."""
GAIN = 4.0
"""The price is multiplied by exp(GAIN x deficit)."""


class RobustDual:
    """The trailing price at the pace of the whole job, raised while the job is behind its pace and lowered while ahead.

    The deficit is the share of the time that has passed less the share of the tokens that is done: signed, without a
    unit, and averaged over some ten epochs. A factor exp(GAIN x deficit) is mirror descent on the price's logarithm.

    It remembers the average of each job, which starts at the deficit of the first outlook it sees: a resumed run goes
    on where it is.

    Args:
        menu: What a job can do.
    """

    past_s = TrailingDual.past_s

    def __init__(self, menu: Menu) -> None:
        self._trailing = TrailingDual(menu)
        self._deficit = np.zeros(0)
        self._at_s = np.zeros(0)

    def price(self, seen: Outlook) -> Array:
        """Return the price; the same outlook seen twice counts once."""
        jobs, total_s = seen.jobs, np.maximum(seen.total_s, 1e-9)
        deficit = seen.tokens_left / seen.tokens - seen.left_s / total_s
        more = max(0, int(jobs.max()) + 1 - len(self._at_s))
        self._deficit = np.concatenate([self._deficit, np.zeros(more)])
        self._at_s = np.concatenate([self._at_s, np.full(more, np.nan)])
        since_s = seen.t_unix_s - self._at_s[jobs]
        new = ~((since_s >= 0) & (since_s <= total_s - seen.left_s))
        averaged = MEMORY * self._deficit[jobs] + (1 - MEMORY) * deficit
        averaged = np.where(new, deficit, np.where(since_s > 0, averaged, self._deficit[jobs]))
        self._deficit[jobs], self._at_s[jobs] = averaged, seen.t_unix_s
        return self._trailing.at_pace(seen, seen.tokens / total_s) * np.exp(GAIN * averaged)


def jobs(n: int = 40, seed: int = 0, hours: int = 240) -> Outlook:
    """Jobs of all kinds, in the middle of their time."""
    rng = np.random.default_rng(seed)
    g = grid(rng, n, 504 + hours)
    left_s = rng.uniform(0.1, 1.0, n) * hours * 3600.0
    return Outlook(
        epoch_s=3600.0,
        step_s=3600.0,
        t_unix_s=np.full(n, 1.7e9),
        left_s=left_s,
        total_s=np.full(n, hours * 3600.0),
        tokens_left=rng.uniform(0.05, 0.9, n) * left_s * MENU.tokens_per_s.max(),
        tokens=np.full(n, hours * 3600.0 * MENU.tokens_per_s.max()),
        current=rng.choice(MENU.hull, n),
        held_s=np.full(n, 1e6),
        past_g_per_kwh=g[:, :504],
        forecast_g_per_kwh=g[:, 504:],
    )


def only(seen: Outlook, i: int) -> Outlook:
    names = ("t_unix_s", "left_s", "total_s", "tokens_left", "tokens", "current", "held_s")
    both = ("past_g_per_kwh", "forecast_g_per_kwh")
    return replace(seen, job=np.array([i]), **{name: getattr(seen, name)[i : i + 1] for name in (*names, *both)})


@cache
def gear(switch_s: float = 600.0, seed: int | None = None) -> CarbonGear:
    return CarbonGear(MENU, switch_s=switch_s, seed=seed)


def test_without_a_switching_time_it_is_mpc_to_the_last_bit() -> None:
    seen = jobs(400)
    ours, mpc = gear(0.0).choose(seen), Mpc(MENU).choose(seen)
    assert (ours.rows == mpc.rows).all()
    assert ours.price is not None and mpc.price is not None and (ours.price == mpc.price).all()
    kernels = [DecisionKernel(policy, MENU) for policy in (gear(0.0), Mpc(MENU))]
    assert (kernels[0].decide(seen).rows == kernels[1].decide(seen).rows).all()


def test_with_one_it_changes_width_less_often_and_mostly_towards_mpc() -> None:
    seen = jobs(400)
    ours, mpc = gear().choose(seen).rows, Mpc(MENU).choose(seen).rows
    width, now = MENU.width, MENU.width[seen.current]
    assert np.mean(width[ours] != now) < 0.8 * np.mean(width[mpc] != now)
    moved = width[ours] != now
    nearer = np.abs(width[ours] - width[mpc]) <= np.abs(now - width[mpc])
    assert np.mean(nearer[moved]) > 0.95


def test_a_small_gain_is_not_worth_ten_minutes_and_a_large_one_is() -> None:
    seen = only(jobs(), 0)
    flat = np.full_like(seen.past_g_per_kwh, 300.0)
    steady = replace(
        seen,
        past_g_per_kwh=flat,
        forecast_g_per_kwh=np.full((1, 240), 300.0),
        left_s=np.array([100 * 3600.0]),
        tokens_left=np.array([0.53 * 100 * 3600.0 * MENU.tokens_per_s.max()]),
    )
    wanted = Mpc(MENU).choose(steady).rows
    beside = MENU.hull[np.flatnonzero(MENU.hull == wanted[0]) - 1]
    assert gear().choose(replace(steady, current=beside)).rows == beside
    assert gear().choose(replace(steady, current=np.array([OFF]))).rows != OFF


def test_it_is_pure_and_each_job_is_decided_as_if_alone() -> None:
    seen = jobs()
    for policy in (gear(), gear(seed=3)):
        together = policy.choose(seen).rows
        assert (policy.choose(seen).rows == together).all()
        assert [int(policy.choose(only(seen, i)).rows[0]) for i in range(40)] == together.tolist()


def test_a_scale_of_the_intensity_changes_nothing() -> None:
    seen = jobs()
    scaled = replace(seen, past_g_per_kwh=seen.past_g_per_kwh * 4, forecast_g_per_kwh=seen.forecast_g_per_kwh * 4)
    assert (gear().choose(seen).rows == gear().choose(scaled).rows).all()


def test_draws_follow_the_seed_and_are_close_to_the_best() -> None:
    seen = jobs(300)
    greedy, one, two = (gear(seed=seed).choose(seen).rows for seen, seed in ((seen, None), (seen, 1), (seen, 2)))
    assert (one != two).any()
    assert 0.5 < np.mean(one == greedy) < 1.0
    again = CarbonGear(MENU, switch_s=600.0, seed=1).choose(seen).rows
    assert (again == one).all()


def test_a_draw_has_the_probabilities_of_gibbs() -> None:
    energy = np.tile([0.0, 1.0, 3.0], (20_000, 1))
    drawn = draw(energy, 7, np.arange(20_000), np.full(20_000, 1.7e9))
    weight = np.exp(-energy[0])
    assert np.bincount(drawn) / 20_000 == pytest.approx(weight / weight.sum(), abs=0.012)


def test_a_job_in_a_hurry_takes_the_fastest_row() -> None:
    seen = jobs(3)
    late = replace(seen, tokens_left=seen.left_s * MENU.tokens_per_s.max() * 1.5)
    choice = gear().choose(late)
    assert (choice.rows == MENU.fastest).all()
    assert "the fastest there is" in choice.reasons[int(choice.reason[0])]


def test_the_kernel_explains_it_and_gaps_do_not_stop_it() -> None:
    seen = jobs(5)
    past, ahead = seen.past_g_per_kwh.copy(), seen.forecast_g_per_kwh.copy()
    past[0, 100:300], ahead[1], past[2], past[3, -50:] = np.nan, np.nan, np.nan, np.nan
    ahead[4], past[4] = np.nan, np.nan
    gaps = replace(seen, past_g_per_kwh=past, forecast_g_per_kwh=ahead)
    kernel = DecisionKernel(gear(), MENU, switch_s=600.0)
    decided = kernel.decide(gaps)
    texts = [kernel.explain(gaps, decided, i) for i in range(5)]
    assert all("g per million tokens" in text or "the fastest" in text or "deadline" in text for text in texts)


def test_no_past_five_minute_steps_and_an_end_within_the_hour_are_no_trouble() -> None:
    seen = jobs(6)
    short = replace(
        seen,
        step_s=300.0,
        epoch_s=300.0,
        past_g_per_kwh=np.zeros((6, 0)),
        left_s=np.array([10.0, 300.0, 1800.0, 3600.0, 7200.0, 40000.0]),
        tokens_left=np.full(6, 1e6),
    )
    choice = gear().choose(short)
    assert ((choice.rows >= 0) & (choice.rows < len(MENU))).all()


# -- the price -------------------------------------------------------------------------------------------------


def brought(seen: Outlook, price: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tokens of the last 14 days at a price, one row an hour."""
    known = np.concatenate([seen.past_g_per_kwh[:, -335:], seen.forecast_g_per_kwh[:, :1]], axis=1)
    return np.asarray(MENU.tokens_per_s[row_at(MENU, known, price[:, None])].sum(axis=1) * 3600.0)


def test_the_trailing_price_would_have_brought_the_pace_and_hardly_more() -> None:
    seen = jobs()
    price = TrailingDual(MENU).price(seen)
    needed = seen.tokens_left / seen.left_s * 14 * DAY_S
    assert (brought(seen, price) >= needed * (1 - 1e-9)).all()
    assert (brought(seen, price * (1 - 1e-6)) <= needed).all()


def at(seen: Outlook, *, gone: float, done: float, t_s: float) -> Outlook:
    n = len(seen.left_s)
    return replace(
        seen,
        t_unix_s=np.full(n, 1.7e9 + t_s),
        left_s=seen.total_s * (1 - gone),
        tokens_left=seen.tokens * (1 - done),
    )


def test_a_job_behind_its_pace_pays_more_and_one_ahead_less() -> None:
    seen = jobs(4)
    seen = replace(seen, tokens=seen.tokens * 0.5)
    price = {done: RobustDual(MENU).price(at(seen, gone=0.5, done=done, t_s=0.0)) for done in (0.3, 0.5, 0.7)}
    assert price[0.3] / price[0.5] == pytest.approx(np.full(4, np.exp(4 * 0.2)))
    assert price[0.7] / price[0.5] == pytest.approx(np.full(4, np.exp(-4 * 0.2)))


def test_the_deficit_is_averaged_and_the_same_outlook_counts_once() -> None:
    seen = jobs(4)
    seen = replace(seen, tokens=seen.tokens * 0.5)
    dual = RobustDual(MENU)
    even, behind = at(seen, gone=0.0, done=0.0, t_s=0.0), at(seen, gone=0.5, done=0.3, t_s=3600.0)
    start = dual.price(even)
    once = dual.price(behind)
    assert once / start == pytest.approx(np.full(4, np.exp(4 * 0.1 * 0.2)))
    assert (dual.price(behind) == once).all()
    later = dual.price(at(seen, gone=0.5, done=0.3, t_s=7200.0))
    assert later / start == pytest.approx(np.full(4, np.exp(4 * 0.2 * (1 - 0.81 / 0.9 * 0.9))))


def test_it_knows_each_job_while_others_end_and_a_new_one_starts_afresh() -> None:
    seen = jobs(3)
    seen = replace(seen, tokens=seen.tokens * 0.5)
    dual, alone = RobustDual(MENU), RobustDual(MENU)
    for t_h, gone in ((0, 0.0), (1, 0.2)):
        dual.price(at(seen, gone=gone, done=0.0, t_s=t_h * 3600.0))
        alone.price(only(at(seen, gone=gone, done=0.0, t_s=t_h * 3600.0), 2))
    next_hour = only(at(seen, gone=0.3, done=0.0, t_s=2 * 3600.0), 2)
    assert (dual.price(next_hour) == alone.price(next_hour)).all()
    fresh = only(at(seen, gone=0.0, done=0.0, t_s=500 * 3600.0), 2)
    assert (dual.price(fresh) == RobustDual(MENU).price(fresh)).all()


def test_any_dual_can_give_the_price() -> None:
    seen = jobs()
    for dual in (ForecastDual(MENU), TrailingDual(MENU), RobustDual(MENU)):
        choice = CarbonGear(MENU, dual=dual).choose(seen)
        hurried = np.isinf(dual.price(seen))
        expected = row_at(MENU, seen.now_g_per_kwh, dual.price(seen))
        assert (choice.rows == np.where(hurried, MENU.fastest, expected)).all()
