"""What the kernel makes of a policy's wishes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from greentrain.errors import ConfigError
from greentrain.policy.decision_kernel import DecisionKernel, Reach, explain, hull_rows
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.mpc import Mpc
from greentrain.policy.outlook import Choice, Outlook
from greentrain.policy.waterfill import price
from tests.policy.cases import action_table, small_menu
from tests.policy.drive import Fixed, Whim, drive, outlook

MENU = Menu.of(action_table())
FAST = MENU.fastest
HOUR = 3600.0


def named(name: str) -> int:
    return list(MENU.names()).index(name)


def plenty(n: int, current: int = FAST, held_s: Sequence[float] | None = None) -> Outlook:
    """Jobs with so much time that no rule but the tested one can matter."""
    return outlook(
        ahead=[[300.0] * 4] * n, tokens_left=[1e6] * n, left_s=[1e7] * n, current=[current] * n, held_s=held_s
    )


# -- the shield ------------------------------------------------------------------------------------------------


def test_a_wish_that_leaves_time_is_granted() -> None:
    decided = DecisionKernel(Fixed([OFF]), MENU).decide(plenty(1))
    assert decided.rows.tolist() == [OFF] and not decided.shielded.any()
    assert decided.reasons[int(decided.reason[0])] == "fixed"


def test_the_shield_takes_the_slowest_row_that_is_in_time() -> None:
    speed = MENU.tokens_per_s
    slower = int(MENU.hull[-2])
    # after this hour nine hours of full speed: what is left needs more than the third fastest now, less than this
    left = speed[FAST] * 9 * HOUR + speed[slower] * HOUR * 0.999
    seen = outlook(ahead=[[300.0] * 10], tokens_left=[left], left_s=[10 * HOUR], current=[FAST])
    kernel = DecisionKernel(Fixed([OFF]), MENU)
    decided = kernel.decide(seen)
    assert decided.rows.tolist() == [slower] and decided.shielded.tolist() == [True]
    assert kernel.explain(seen, decided) == (
        f"100.0% of the tokens are left and 10.0 h: off would miss the deadline, so {MENU.names()[slower]}"
    )


def test_a_job_that_is_late_hurries() -> None:
    seen = outlook(ahead=[[300.0] * 3], tokens_left=[1e18], left_s=[HOUR], current=[OFF])
    kernel = DecisionKernel(Fixed([OFF]), MENU)
    decided = kernel.decide(seen)
    assert decided.rows.tolist() == [FAST]
    assert "cannot be met any more" in kernel.explain(seen, decided)


@pytest.mark.parametrize("left_s", [0.0, -HOUR])
def test_past_the_deadline_it_still_hurries(left_s: float) -> None:
    seen = outlook(ahead=[[300.0] * 3], tokens_left=[1e9], left_s=[left_s], current=[OFF])
    for policy in (Fixed([OFF]), Mpc(MENU)):
        assert DecisionKernel(policy, MENU).decide(seen).rows.tolist() == [FAST]


def test_a_margin_is_kept_free() -> None:
    left = MENU.tokens_per_s[FAST] * 8.5 * HOUR
    seen = outlook(ahead=[[300.0] * 10], tokens_left=[left], left_s=[10 * HOUR], current=[FAST])
    assert DecisionKernel(Fixed([OFF]), MENU).decide(seen).rows.tolist() == [OFF]
    assert DecisionKernel(Fixed([OFF]), MENU, margin_s=HOUR).decide(seen).shielded.tolist() == [True]


def test_the_shield_counts_the_switch_back() -> None:
    left = MENU.tokens_per_s[FAST] * 8.9 * HOUR
    seen = outlook(ahead=[[300.0] * 10], tokens_left=[left], left_s=[10 * HOUR], current=[FAST])
    assert DecisionKernel(Fixed([OFF]), MENU, switch_s=300.0).decide(seen).rows.tolist() == [OFF]
    assert DecisionKernel(Fixed([OFF]), MENU, switch_s=600.0).decide(seen).shielded.tolist() == [True]


def test_a_job_may_be_in_time_only_where_it_is() -> None:
    # three hours left, a change costs two: four nodes as they are do more than eight after the change
    four = named("fp8 on 4")
    left = MENU.tokens_per_s[four] * 3 * HOUR
    seen = outlook(ahead=[[300.0] * 3], tokens_left=[left], left_s=[3 * HOUR], current=[four])
    for wish in (OFF, FAST):
        decided = DecisionKernel(Fixed([wish]), MENU, switch_s=2 * HOUR).decide(seen)
        assert decided.rows.tolist() == [four] and decided.shielded.tolist() == [True]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    actions=st.integers(1, 6),
    epochs=st.floats(1.0, 12.0),
    share=st.floats(0.05, 1.0),
    switch_s=st.sampled_from([0.0, 0.0, 120.0, 600.0, 4000.0]),
    dwell_s=st.sampled_from([0.0, 1800.0, 3 * HOUR]),
    margin_s=st.sampled_from([0.0, 900.0]),
    veto=st.booleans(),
)
def test_tokens_are_met_whenever_they_can_be(
    seed: int,
    actions: int,
    epochs: float,
    share: float,
    switch_s: float,
    dwell_s: float,
    margin_s: float,
    veto: bool,
) -> None:
    rng = np.random.default_rng(seed)
    menu = small_menu(rng, actions, idle_w=None if rng.random() < 0.5 else 20.0)
    vetoed = rng.random(len(menu)) < 0.4 if veto else None
    deadline_s = epochs * 1800.0
    reach = Reach(menu=menu, switch_s=switch_s, margin_s=margin_s)
    start = outlook(ahead=[[300.0]], tokens_left=[1.0], left_s=[deadline_s], current=[menu.static], epoch_s=1800.0)
    allowed = None if vetoed is None else ~vetoed
    if allowed is not None:
        allowed[OFF] |= not allowed.any()
    can = reach.tokens_of_all(start, np.array([0]), allowed)[0]
    most = float(np.where(True if allowed is None else allowed, can, 0.0).max())
    kernel = DecisionKernel(
        Whim(menu, rng), menu, switch_s=switch_s, dwell_s=dwell_s, margin_s=margin_s, hysteresis=0.01
    )
    left = drive(
        kernel,
        menu,
        tokens=share * most,
        deadline_s=deadline_s,
        epoch_s=1800.0,
        switch_s=switch_s,
        vetoed=vetoed,
        grid=lambda t_s: np.where(rng.random((1, 6)) < 0.3, np.nan, rng.uniform(0, 900, (1, 6))),
    )
    assert left <= 1e-6 * most


# -- vetoes, hysteresis, dwell -----------------------------------------------------------------------------------


def test_a_vetoed_row_is_replaced_by_the_nearest_in_speed() -> None:
    vetoed = MENU.fp8.copy()
    kernel = DecisionKernel(Fixed([FAST]), MENU)
    seen = plenty(1)
    decided = kernel.decide(seen, vetoed)
    assert MENU.names()[int(decided.rows[0])] == "bf16 on 8"
    assert kernel.explain(seen, decided) == "fp8 on 8 may not be used now: bf16 on 8 instead"


def test_a_vetoed_row_is_replaced_by_the_best_at_its_price() -> None:
    price = 62_400.0 * 300.0 / 3.6e6 / MENU.tokens_per_s[MENU.static]  # what bf16 on 8 emits a token: capped ones pay
    decided = DecisionKernel(Fixed([FAST], [price]), MENU).decide(plenty(1), MENU.fp8)
    row = int(decided.rows[0])
    grams = 300.0 * MENU.power_w / 3.6e6 - price * MENU.tokens_per_s
    assert row == int(np.where(MENU.fp8, np.inf, grams).argmin())
    assert MENU.names()[row] == "bf16 at 60% on 8"


def test_vetoes_may_differ_between_jobs() -> None:
    vetoed = np.stack([MENU.fp8, ~MENU.fp8, np.zeros(len(MENU), bool)])
    vetoed[1, OFF] = False
    decided = DecisionKernel(Fixed([FAST] * 3), MENU).decide(plenty(3), vetoed)
    assert [MENU.names()[row] for row in decided.rows] == ["bf16 on 8", "fp8 on 8", "fp8 on 8"]
    late = outlook(ahead=[[300.0]] * 3, tokens_left=[1e18] * 3, left_s=[HOUR] * 3, current=[OFF] * 3)
    decided = DecisionKernel(Fixed([OFF] * 3), MENU).decide(late, vetoed)
    assert [MENU.names()[row] for row in decided.rows] == ["bf16 on 8", "fp8 on 8", "fp8 on 8"]


def test_where_everything_is_vetoed_the_job_is_off() -> None:
    decided = DecisionKernel(Fixed([FAST]), MENU).decide(plenty(1), np.ones(len(MENU), bool))
    assert decided.rows.tolist() == [OFF]


def test_off_may_be_vetoed() -> None:
    vetoed = np.arange(len(MENU)) == OFF
    decided = DecisionKernel(Fixed([OFF]), MENU).decide(plenty(1), vetoed)
    assert MENU.names()[int(decided.rows[0])] == "bf16 at 60% on 1"


def test_a_change_that_saves_too_little_is_not_made() -> None:
    """At the price where two rows of the hull are equal, noise would have a job flap between them."""
    a, b = int(MENU.hull[-2]), int(MENU.hull[-1])
    slope = (MENU.power_w[b] - MENU.power_w[a]) / (MENU.tokens_per_s[b] - MENU.tokens_per_s[a])
    tie = 300.0 / 3.6e6 * slope
    for factor, stays in ((1.001, True), (1.5, False)):
        seen = plenty(1, current=a)
        kernel = DecisionKernel(Fixed([b], [tie * factor]), MENU, hysteresis=0.01)
        decided = kernel.decide(seen)
        assert decided.rows.tolist() == [a if stays else b]
        if stays:
            assert "would save too little for a change" in kernel.explain(seen, decided)
        assert DecisionKernel(Fixed([b], [tie * factor]), MENU, hysteresis=0.0).decide(seen).rows.tolist() == [b]


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    actions=st.integers(2, 5),
    levels=st.lists(st.sampled_from([100.0, 200.0, 300.0, 400.0]), min_size=2, max_size=7),
    share=st.floats(0.05, 0.99),
)
@example(seed=0, actions=3, levels=[200.0, 100.0, 400.0], share=0.58)
def test_a_row_is_kept_only_where_the_price_stays_right(
    seed: int, actions: int, levels: list[float], share: float
) -> None:
    """Between few levels the last token's price jumps by what a kept row leaves to later hours."""
    rng = np.random.default_rng(seed)
    menu = small_menu(rng, actions)
    speed, power = menu.tokens_per_s, menu.power_w / 3.6e6
    tokens = share * speed[menu.fastest] * len(levels) * HOUR
    for current in range(1, len(menu)):
        seen = outlook(ahead=[levels], tokens_left=[tokens], left_s=[len(levels) * HOUR], current=[current])
        decided = DecisionKernel(Mpc(menu), menu, hysteresis=0.05).decide(seen)
        wanted, left = int(decided.wanted.rows[0]), tokens - speed[current] * HOUR
        if decided.rows[0] != current or wanted == current or decided.shielded[0] or left <= 0:
            continue
        later = price(np.array([levels[1:]]), np.full((1, len(levels) - 1), HOUR), np.array([left]), menu)[0]
        lost = levels[0] * (power[current] - power[wanted]) - later * (speed[current] - speed[wanted])
        assert lost < 0.05 * levels[0] * power[menu.fastest] * (1 + 1e-9)


@pytest.mark.parametrize("epoch_s", [1800.0, HOUR, 3 * HOUR])
def test_what_is_left_after_an_epoch(epoch_s: float) -> None:
    grid = np.arange(6.0)[None, :] * 100.0 + [[0.0], [1.0]]
    seen = outlook(
        ahead=grid,
        tokens_left=[1e9, 2e9],
        left_s=[6 * HOUR, 5 * HOUR],
        current=[1, 2],
        tokens=[3e9] * 2,
        epoch_s=epoch_s,
    )
    after = seen.after(np.array([1]), np.array([7.0, 9.0]))
    assert after.left_s.tolist() == [5 * HOUR - epoch_s] and after.tokens_left.tolist() == [2e9 - 9.0 * epoch_s]
    whole = (seen.forecast_g_per_kwh * seen.weights_s())[1].sum()
    first = seen.epoch_g_per_kwh()[1] * epoch_s
    assert (after.forecast_g_per_kwh * after.weights_s()).sum() == pytest.approx(whole - first)
    assert after.current.tolist() == [2] and after.job is not None and after.job.tolist() == [1]


def test_hysteresis_does_not_keep_what_is_vetoed() -> None:
    a, b = int(MENU.hull[-2]), int(MENU.hull[-1])
    vetoed = np.arange(len(MENU)) == a
    seen = plenty(1, current=a)
    assert DecisionKernel(Fixed([b], [1e-9]), MENU, hysteresis=10.0).decide(seen, vetoed).rows.tolist() == [b]


def test_a_width_is_held_but_for_the_deadline() -> None:
    four = named("fp8 on 4")
    seen = plenty(2, current=four, held_s=[HOUR, 3 * HOUR])
    kernel = DecisionKernel(Fixed([FAST, FAST]), MENU, dwell_s=2 * HOUR)
    decided = kernel.decide(seen)
    assert decided.rows.tolist() == [four, FAST]
    assert kernel.explain(seen, decided) == "the width has to be held for a while: fp8 on 4 instead of fp8 on 8"
    urgent = outlook(
        ahead=[[300.0]], tokens_left=[MENU.tokens_per_s[FAST] * HOUR], left_s=[HOUR], current=[four], held_s=[0]
    )
    assert DecisionKernel(Fixed([four]), MENU, dwell_s=2 * HOUR).decide(urgent).rows.tolist() == [FAST]


def test_a_gear_may_change_while_a_width_is_held() -> None:
    seen = plenty(1, current=named("bf16 on 8"), held_s=[0.0])
    assert DecisionKernel(Fixed([FAST]), MENU, dwell_s=HOUR).decide(seen).rows.tolist() == [FAST]


def test_a_job_that_is_done_is_off() -> None:
    seen = outlook(ahead=[[300.0]], tokens_left=[0.0], left_s=[HOUR], current=[FAST], tokens=[1.0])
    kernel = DecisionKernel(Fixed([FAST]), MENU)
    decided = kernel.decide(seen)
    assert decided.rows.tolist() == [OFF] and kernel.explain(seen, decided) == "all tokens are done"


# -- what is not known -------------------------------------------------------------------------------------------


def test_gaps_are_bridged_for_the_policy_and_called_unknown_to_people() -> None:
    class Sees:
        name = "sees"

        def choose(self, seen: Outlook) -> Choice:
            self.ahead = seen.forecast_g_per_kwh
            return Mpc(MENU).choose(seen)

    nan = np.nan
    policy = Sees()
    kernel = DecisionKernel(policy, MENU)
    seen = outlook(
        ahead=[[nan, 100.0, nan], [nan, nan, nan], [nan, nan, 200.0]],
        past=[[50.0, nan], [nan, nan], [nan, nan]],
        tokens_left=[1e9] * 3,
        left_s=[3 * HOUR] * 3,
        current=[FAST] * 3,
    )
    decided = kernel.decide(seen)
    assert policy.ahead.tolist() == [[50.0, 100.0, 100.0], [1.0, 1.0, 1.0], [200.0, 200.0, 200.0]]
    assert kernel.explain(seen, decided, 1).startswith("unknown g/kWh now and unknown on average")
    assert kernel.explain(seen, decided, 0).startswith("unknown g/kWh now and 100 on average")


def test_rows_outside_the_menu_are_refused() -> None:
    with pytest.raises(IndexError, match="'fixed' chose the rows 99 to 99; the menu has 0 to 48"):
        DecisionKernel(Fixed([99]), MENU).decide(plenty(1))


def test_a_veto_of_another_menu_is_refused() -> None:
    with pytest.raises(ConfigError, match="covers 3 rows, but the menu has 49"):
        DecisionKernel(Fixed([1]), MENU).decide(plenty(1), np.ones(3, bool))


def test_jobs_side_by_side_are_decided_like_each_alone() -> None:
    rng = np.random.default_rng(3)
    n = 40
    seen: dict[str, Any] = {
        "ahead": rng.uniform(50, 500, (n, 48)),
        "tokens_left": rng.uniform(1e9, 1.8e11, n),
        "left_s": rng.uniform(HOUR, 48 * HOUR, n),
        "current": rng.integers(len(MENU), size=n),
        "held_s": rng.uniform(0, 4 * HOUR, n),
    }
    kernel = DecisionKernel(Mpc(MENU), MENU, switch_s=300.0, dwell_s=HOUR)
    together = kernel.decide(outlook(**seen))
    assert 0 < together.shielded.sum() < n
    for i in range(n):
        alone = kernel.decide(outlook(**{key: value[i : i + 1] for key, value in seen.items()}))
        assert alone.rows[0] == together.rows[i] and alone.reason[0] == together.reason[i]


# -- what can be done in a time ----------------------------------------------------------------------------------

THREE = Menu(
    actions=(None, *(MENU.actions[1:4])),
    tokens_per_s=np.array([0.0, 10.0, 30.0, 20.0]),
    power_w=np.array([0.0, 100.0, 400.0, 250.0]),
    width=np.array([0, 1, 2, 2]),
    provenance="assumed",
)
ONE, TWO, LEAN = 1, 2, 3
"""A row on one node; two rows on two."""


@pytest.mark.parametrize(
    ("row", "current", "held_s", "epoch_s", "tokens"),
    [
        (ONE, ONE, 1e9, 1000.0, 10 * 1000 + 30 * (1950 - 100)),  # later it changes to two nodes
        (TWO, ONE, 1e9, 1000.0, 30 * 900 + 30 * 1950),  # it changes now
        (TWO, TWO, 40.0, 1000.0, 30 * 940 + 30 * 1950),  # it is changing still
        (LEAN, TWO, 1e9, 1000.0, 20 * 1000 + 30 * 1950),  # the gear changes, which costs nothing
        (TWO, ONE, 1e9, 60.0, 30 * (2890 - 40)),  # the change takes longer than the epoch
        (OFF, ONE, 1e9, 1000.0, 30 * (1950 - 100)),  # and back
        (OFF, ONE, 10.0, 1000.0, 30 * (1950 - 100)),  # what is given up need not come up
        (ONE, OFF, 0.0, 2960.0, 10 * 2860),  # nothing after the margin
    ],
)
def test_the_most_that_can_be_done_by_hand(
    row: int, current: int, held_s: float, epoch_s: float, tokens: float
) -> None:
    """Fifty minutes are left, of which 50 s are not counted on; a change of width takes 100 s."""
    reach = Reach(menu=THREE, switch_s=100.0, margin_s=50.0)
    seen = outlook(
        ahead=[[300.0]], tokens_left=[1.0], left_s=[3000.0], current=[current], held_s=[held_s], epoch_s=epoch_s
    )
    assert reach.tokens(seen, np.array([row])).tolist() == [pytest.approx(tokens)]
    assert reach.tokens_of_all(seen, np.array([0]))[0, row] == pytest.approx(tokens)


def test_what_may_not_be_used_is_not_counted_on_for_later_and_an_epoch_ends_with_the_job() -> None:
    seen = outlook(ahead=[[300.0]] * 2, tokens_left=[1.0] * 2, left_s=[3000.0, -5.0], current=[ONE] * 2, epoch_s=1000.0)
    free, rows = Reach(menu=THREE), np.array([ONE, ONE])
    assert free.tokens(seen, rows).tolist() == [10 * 1000 + 30 * 2000, 0.0]
    without = np.array([True, True, False, True])
    assert free.tokens(seen, rows, without).tolist() == [10 * 1000 + 20 * 2000, 0.0]
    each = np.stack([without, np.ones(4, bool)])
    assert free.tokens(seen, rows, each[::-1]).tolist() == [10 * 1000 + 30 * 2000, 0.0]
    assert free.tokens_of_all(seen, np.array([0]), each)[0].tolist() == [40_000.0, 50_000.0, 70_000.0, 60_000.0]
    assert free.tokens_of_all(seen, np.array([1, 0]), each[::-1]).tolist() == [
        [0.0] * 4,
        [60_000.0, 70_000.0, 90_000.0, 80_000.0],
    ]
    stuck = Reach(menu=THREE, switch_s=1e6)  # no change comes to its end: only what is in use brings anything
    assert stuck.tokens_of_all(seen, np.array([0]), without)[0].tolist() == [0.0, 30_000.0, 0.0, 0.0]


def test_a_short_job_is_not_hurried_where_it_would_be_in_time_anyhow() -> None:
    """The shield gives way to the policy up to the last token that can still be made up for."""
    for spare, shielded in ((1e-6, False), (-1e-6, True)):
        left = MENU.tokens_per_s[FAST] * 9 * HOUR * (1 - spare)
        seen = outlook(ahead=[[300.0] * 10], tokens_left=[left], left_s=[10 * HOUR], current=[FAST])
        assert DecisionKernel(Fixed([OFF]), MENU).decide(seen).shielded.tolist() == [shielded]


def test_a_late_job_that_hurries_of_its_own_accord_is_not_overruled() -> None:
    seen = outlook(ahead=[[300.0]] * 2, tokens_left=[1e18] * 2, left_s=[HOUR] * 2, current=[FAST] * 2)
    decided = DecisionKernel(Fixed([FAST, OFF]), MENU).decide(seen)
    assert decided.rows.tolist() == [FAST, FAST] and decided.shielded.tolist() == [False, True]
    assert decided.reasons[int(decided.reason[0])] == "fixed"


def test_a_late_job_stays_where_a_change_would_bring_less() -> None:
    seen = outlook(ahead=[[300.0]], tokens_left=[1e18], left_s=[3000.0], current=[ONE], epoch_s=1000.0)
    for switch_s, row in ((2500.0, ONE), (100.0, TWO)):
        decided = DecisionKernel(Fixed([OFF]), THREE, switch_s=switch_s).decide(seen)
        assert decided.rows.tolist() == [row]


def test_a_job_that_is_done_is_off_though_nothing_but_off_is_barred_and_is_not_called_late() -> None:
    seen = outlook(
        ahead=[[300.0]] * 2, tokens_left=[0.0, 1e18], left_s=[0.0, HOUR], current=[FAST] * 2, tokens=[1.0] * 2
    )
    decided = DecisionKernel(Fixed([FAST, OFF]), MENU).decide(seen, np.arange(len(MENU)) == OFF)
    assert decided.rows.tolist() == [OFF, FAST] and decided.shielded.tolist() == [False, True]
    unshielded = DecisionKernel(Fixed([OFF, OFF]), MENU, shield=False).decide(seen)
    assert unshielded.rows.tolist() == [OFF, OFF] and not unshielded.shielded.any()


def test_no_job_is_no_error_and_no_row_is_taken_from_the_end() -> None:
    none = outlook(ahead=np.zeros((0, 4)), tokens_left=[], left_s=[], current=[])
    assert DecisionKernel(Fixed([], []), MENU, dwell_s=HOUR).decide(none).rows.tolist() == []
    with pytest.raises(IndexError, match="chose the rows -1 to 0"):
        DecisionKernel(Fixed([-1, 0]), MENU).decide(plenty(2))
    with pytest.raises(IndexError, match="chose the rows 49 to 49"):
        DecisionKernel(Fixed([len(MENU)]), MENU).decide(plenty(1))


def test_a_change_must_save_its_share_of_what_full_speed_emits() -> None:
    """Grams an hour: of the row in use, less those of the wanted one, at the price of the tokens between them."""
    a, b, share = named("fp8 on 8"), named("fp8 at 80% on 8"), 0.01
    worth = 300.0 / 3.6e6 * (MENU.power_w[a] - MENU.power_w[b])
    least = share * 300.0 / 3.6e6 * MENU.power_w[FAST]
    slower = MENU.tokens_per_s[a] - MENU.tokens_per_s[b]
    for part, stays in ((0.99, True), (1.01, False)):
        price = (worth - part * least) / slower
        decided = DecisionKernel(Fixed([b], [price]), MENU, hysteresis=share).decide(plenty(1, current=a))
        assert decided.rows.tolist() == [a if stays else b]


@pytest.mark.parametrize("price", [0.0, -1e-9, math.inf, math.nan])
def test_without_a_price_of_tokens_every_change_is_made(price: float) -> None:
    a, b = int(MENU.hull[-2]), int(MENU.hull[-1])
    kernel = DecisionKernel(Fixed([b], [price]), MENU, hysteresis=10.0)
    assert kernel.decide(plenty(1, current=a)).rows.tolist() == [b]


def test_to_go_on_is_never_too_early_and_a_row_that_stays_is_no_change() -> None:
    kernel = DecisionKernel(Fixed([FAST, FAST], [1e-12] * 2), MENU, hysteresis=10.0)
    seen = outlook(ahead=[[300.0]] * 2, tokens_left=[1e6] * 2, left_s=[1e7] * 2, current=[OFF, FAST])
    decided = kernel.decide(seen)
    assert decided.rows.tolist() == [FAST, FAST] and decided.reason.tolist() == [0, 0]


def test_of_each_job_only_its_own_rows_are_kept_or_held() -> None:
    a, b, four = int(MENU.hull[-2]), int(MENU.hull[-1]), named("fp8 on 4")
    own = np.zeros((2, len(MENU)), bool)
    own[0, a] = True
    kernel = DecisionKernel(Fixed([b, b], [1e-12] * 2), MENU, hysteresis=10.0)
    assert kernel.decide(plenty(2, current=a), own).rows.tolist() == [b, a]
    own = np.zeros((2, len(MENU)), bool)
    own[0] = [action is not None and action.ranks == 4 for action in MENU.actions]
    held = DecisionKernel(Fixed([FAST, FAST]), MENU, dwell_s=2 * HOUR)
    decided = held.decide(plenty(2, current=four, held_s=[0.0, 0.0]), own)
    assert decided.rows.tolist() == [FAST, four], "what is in use may not be used: the width changes all the same"
    alike = held.decide(plenty(2, current=four, held_s=[0.0, 2 * HOUR]), np.arange(len(MENU)) == four)
    assert [MENU.names()[row] for row in alike.rows] == ["fp8 at 80% on 4", "fp8 on 8"]


def test_a_veto_at_a_price_that_knows_no_bound_takes_the_fastest_that_is_left() -> None:
    decided = DecisionKernel(Fixed([FAST, FAST], [math.inf, math.nan]), MENU).decide(plenty(2), MENU.fp8)
    assert [MENU.names()[row] for row in decided.rows] == ["bf16 on 8", "bf16 on 8"]
    slow = named("fp8 on 1")
    decided = DecisionKernel(Fixed([slow, slow], [math.inf, math.nan]), MENU).decide(plenty(2), MENU.fp8)
    nearest = int(np.where(MENU.fp8, math.inf, np.abs(MENU.tokens_per_s - MENU.tokens_per_s[slow])).argmin())
    assert [MENU.names()[row] for row in decided.rows] == ["bf16 on 8", MENU.names()[nearest]]


def test_of_rows_that_are_as_fast_a_veto_leaves_the_leaner_one() -> None:
    twins = Menu(
        actions=(None, *MENU.actions[1:4]),
        tokens_per_s=np.array([0.0, 30.0, 20.0, 20.0]),
        power_w=np.array([0.0, 500.0, 400.0, 300.0]),
        width=np.array([0, 1, 1, 1]),
        provenance="assumed",
    )
    decided = DecisionKernel(Fixed([1]), twins).decide(plenty(1, current=1), np.array([False, True, False, False]))
    assert decided.rows.tolist() == [3]


def test_the_hull_of_what_is_left() -> None:
    assert hull_rows(MENU, None).tolist() == MENU.hull.tolist() == hull_rows(MENU, np.ones(len(MENU), bool)).tolist()
    assert hull_rows(THREE, np.array([True, True, False, True])).tolist() == [OFF, ONE, LEAN]
    assert hull_rows(THREE, np.zeros(4, bool)).tolist() == [OFF]


# -- reasons -----------------------------------------------------------------------------------------------------


def test_the_figures_of_a_reason() -> None:
    seen = outlook(
        ahead=[[1.0] * 4, [math.nan, 200.0, 400.0, 900.0]],
        tokens_left=[1.0, 25.0],
        tokens=[1.0, 100.0],
        left_s=[HOUR, 2.5 * HOUR],
        current=[ONE, ONE],
    )
    choice = Choice(
        rows=np.array([OFF, TWO]),
        reasons=("fixed",),
        reason=np.zeros(2, np.int64),
        price=np.array([0.0, 2.5e-7]),
        figures={"mine": np.array([0.0, 1.5])},
    )
    names = ["off", "one", "two", "lean"]
    text = "{now:.0f} {mean:.1f} {left_h:.1f} {todo:.0%} {row} {current} {wanted} {price:.2f} {mine:.1f}"
    # of 2.5 h the first is unknown, and of the third half counts
    assert explain(text, seen, choice, LEAN, names, job=1) == (
        f"unknown {(200 + 400 / 2) / 1.5:.1f} 2.5 25% lean one two 0.25 1.5"
    )
    unpriced = Choice(rows=np.array([OFF, TWO]), reasons=("fixed",), reason=np.zeros(2, np.int64))
    assert explain("{price:.0f}", seen, unpriced, LEAN, names) == "unknown"


def test_a_gap_in_the_past_alone_is_bridged_too() -> None:
    kernel = DecisionKernel(Fixed([OFF]), MENU)
    seen = outlook(ahead=[[100.0, 200.0]], past=[[50.0, math.nan]], tokens_left=[1.0], left_s=[HOUR], current=[FAST])
    clear = kernel.observe(seen)
    assert clear.past_g_per_kwh.tolist() == [[50.0, 50.0]] and clear.forecast_g_per_kwh.tolist() == [[100.0, 200.0]]
    whole = outlook(ahead=[[100.0, 200.0]], past=[[50.0, 60.0]], tokens_left=[1.0], left_s=[HOUR], current=[FAST])
    assert kernel.observe(whole) is whole
