"""Profiling of gears x power caps, driven by a scripted training that slows down as its power is limited."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Barrier, Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.control.profiling.profiler import GearProfiler, add_ranks
from greentrain.errors import ConfigError
from greentrain.policy.action_table import Action, ActionObjective, ActionTable
from greentrain.types import Gear, Provenance

BF16, FP8 = Gear.BF16, Gear.FP8
THREE = (1.0, 0.8, 0.6)
SWEEP = tuple(w / 700 for w in range(700, 199, -25))
"""A card of 700 W in steps of 25 W: 21 caps."""


@dataclass
class Card:
    """Draws ``fixed_w`` + the cube of its clock, up to what it wants, or the cap."""

    limit_w: float = 700.0
    fixed_w: float = 150.0
    wants_w: float = 690.0
    step_s: Mapping[Gear, float] = field(default_factory=lambda: {BF16: 0.25, FP8: 0.18})
    noise: float = 0.0
    dip: Callable[[float], float] = lambda t_s: 1.0
    """Slowdown at a time, that has nothing to do with caps."""
    t_s: float = 100.0
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    segments: list[tuple[float, float, float]] = field(default_factory=list)
    ran: list[Action] = field(default_factory=list)
    behind_s: float = math.inf
    """Time that power takes to follow a cap (s); inf: it follows at once."""
    changed_s: float = -math.inf
    before: float = 1.0

    def power_w(self, cap: float) -> float:
        return min(self.wants_w, cap * self.limit_w)

    def speed(self, gear: Gear, cap: float) -> float:
        clock = ((self.power_w(cap) - self.fixed_w) / (self.wants_w - self.fixed_w)) ** (1 / 3)
        return float(clock) / self.step_s[gear]

    def best(self, gear: Gear, caps: tuple[float, ...]) -> float:
        return min(caps, key=lambda cap: self.power_w(cap) / self.speed(gear, cap))

    def energy(self, t0_s: float, t1_s: float) -> Mapping[str, float] | None:
        return {"gpu": sum(max(0.0, min(t1_s, b) - max(t0_s, a)) * w for a, b, w in self.segments)}

    def spend(self, action: Action) -> None:
        if self.ran and self.ran[-1].cap != action.cap:
            self.before, self.changed_s = self.ran[-1].cap, self.t_s
        cap = self.before if self.t_s - self.changed_s < self.behind_s < math.inf else action.cap
        seconds = self.dip(self.t_s) * (1 + self.dice.gauss(0, self.noise)) / self.speed(action.gear, cap)
        self.segments.append((self.t_s, self.t_s + seconds, self.power_w(cap)))
        self.t_s += seconds
        self.ran.append(action)

    def train(self, profiler: GearProfiler, refuses: Callable[[float], bool] = lambda cap: False) -> None:
        while not profiler.done:
            self.spend(Action(gear=profiler.gear, cap=profiler.cap))
            profiler.boundary(self.t_s)
            profiler.step(1000)
            while not profiler.done and refuses(profiler.cap):
                profiler.drop(profiler.cap)


def _profiler(
    card: Card,
    caps: tuple[float, ...] = THREE,
    gears: tuple[Gear, ...] = (BF16,),
    energy: Callable[[float, float], Mapping[str, float] | None] | None = None,
    score: Callable[[float, float], float] | None = None,
    max_slowdown: float | None = None,
    agree: Callable[[int], int] = lambda steps: steps,
    rounds: int = 4,
    max_steps: int = 200,
    settle_s: float = 1.0,
) -> GearProfiler:
    return GearProfiler(
        gears,
        energy=energy or card.energy,
        provenance=lambda: {"gpu": Provenance.MEASURED},
        clock=lambda: card.t_s,
        agree=agree,
        caps=caps,
        score=score,
        max_slowdown=max_slowdown,
        rounds=rounds,
        max_steps=max_steps,
        settle_s=settle_s,
    )


def _table(card: Card, profiler: GearProfiler) -> ActionTable:
    card.train(profiler)
    return profiler.table(created_unix_s=0.0)


def _right(card: Card, table: ActionTable, rel: float = 1e-6) -> None:
    for cost in table.costs:
        assert cost.power_w is not None and cost.tokens_per_s is not None
        assert cost.power_w.mean == pytest.approx(card.power_w(cost.action.cap), rel=rel)
        assert cost.tokens_per_s.mean == pytest.approx(1000 * card.speed(cost.action.gear, cost.action.cap), rel=rel)


# -- what is visited -------------------------------------------------------------------------------------------


def test_three_caps_of_two_gears_are_all_measured_and_right() -> None:
    card = Card()
    profiler = _profiler(card, gears=(BF16, FP8))
    table = _table(card, profiler)
    assert [cost.action for cost in table.costs] == [Action(gear=g, cap=c) for g in (BF16, FP8) for c in THREE]
    _right(card, table)
    assert profiler.steps <= 200 and profiler.advice == ""
    assert sum(cost.blocks >= 2 for cost in table.costs) >= 3


def test_the_first_block_of_each_cap_comes_from_the_highest_down() -> None:
    card = Card()
    card.train(_profiler(card))
    assert list(dict.fromkeys(action.cap for action in card.ran)) == list(THREE)


@pytest.mark.parametrize("fixed_w", [60.0, 150.0, 190.0])
@pytest.mark.parametrize("wants_w", [690.0, 450.0])
def test_of_21_caps_a_few_suffice_to_find_the_best(fixed_w: float, wants_w: float) -> None:
    card = Card(fixed_w=fixed_w, wants_w=wants_w)
    profiler = _profiler(card, SWEEP)
    table = _table(card, profiler)
    _right(card, table)
    assert 5 <= len(table.costs) <= 11 and profiler.steps <= 200
    assert profiler.advice == ""
    costs = {c.action.cap: c.j_per_token.mean for c in table.costs if c.j_per_token}
    found = min(costs, key=lambda cap: costs[cap])
    best = card.best(BF16, SWEEP)
    least = card.power_w(best) / card.speed(BF16, best) / 1000
    assert costs[found] <= least * 1.001


def test_caps_below_one_that_is_slower_and_dearer_are_skipped() -> None:
    card = Card(fixed_w=330.0)  # at 60 % of 700 W nearly all that is drawn is not for computing
    caps = (1.0, 0.9, 0.7, 0.55, 0.5)
    table = _table(card, _profiler(card, caps))
    assert {cost.action.cap for cost in table.costs} == {1.0, 0.9, 0.7, 0.55}
    pure = Card(fixed_w=0.001)
    assert len(_table(pure, _profiler(pure, caps)).costs) == len(caps)


def test_a_slow_hour_is_not_blamed_on_a_cap_that_does_not_bind() -> None:
    card = Card(wants_w=200.0, dip=lambda t_s: 1.3 if 102.0 < t_s < 105.0 else 1.0)
    table = _table(card, _profiler(card, (1.0, 0.8, 0.6, 0.25), rounds=2))
    assert [cost.action.cap for cost in table.costs] == [1.0, 0.8, 0.6, 0.25]


def test_caps_that_cost_too_much_speed_are_skipped() -> None:
    card = Card(fixed_w=0.001)  # the lowest cap is the cheapest
    table = _table(card, _profiler(card, SWEEP, max_slowdown=0.1))
    slowest = 0.9 * card.speed(BF16, 1.0)
    caps = sorted(cost.action.cap for cost in table.costs)
    allowed = [cap for cap in SWEEP if card.speed(BF16, cap) >= slowest]
    assert min(allowed) in caps  # the cheapest that is fast enough is there
    assert sum(cap < min(allowed) for cap in caps) <= 3 < sum(cap < min(allowed) for cap in SWEEP)


def test_the_bound_on_speed_is_that_of_each_gear() -> None:
    card = Card(step_s={BF16: 0.25, FP8: 0.1})
    table = _table(card, _profiler(card, (1.0, 0.9, 0.8), (BF16, FP8), max_slowdown=0.2))
    assert {cost.action.cap for cost in table.costs if cost.action.gear is BF16} == {1.0, 0.9, 0.8}


def test_the_search_goes_by_the_objective() -> None:
    def best(objective: ActionObjective) -> float:
        card = Card()
        table = _table(card, _profiler(card, SWEEP, score=objective.score))
        scores = {c.action.cap: objective.score(c.tokens_per_s.mean, c.power_w.mean) for c in table.costs}  # type: ignore[union-attr]
        found = min(scores, key=lambda cap: scores[cap])
        least = min(objective.score(1000 * card.speed(BF16, cap), card.power_w(cap)) for cap in SWEEP)
        assert scores[found] == pytest.approx(least, rel=1e-3)
        return found

    assert best(ActionObjective()) < best(ActionObjective(name="cost", eta=0.5, limit_w=700.0)) < 1.0


def test_a_gear_whose_joules_are_unknown_has_no_caps_measured() -> None:
    card = Card()
    profiler = _profiler(card, energy=lambda t0_s, t1_s: None)
    table = _table(card, profiler)
    assert [cost.action.cap for cost in table.costs] == [1.0]
    assert table.costs[0].blocks == 2 and table.costs[0].power_w is None
    assert "no joules" in profiler.advice


def test_one_gap_costs_one_more_block_and_no_cap() -> None:
    card = Card()
    table = _table(card, _profiler(card, energy=lambda a, b: None if a < 101.0 else card.energy(a, b)))
    assert {cost.action.cap for cost in table.costs} == set(THREE)


# -- steps -----------------------------------------------------------------------------------------------------


def test_few_steps_mean_fewer_caps_and_the_advice_says_so() -> None:
    card = Card()
    profiler = _profiler(card, SWEEP, max_steps=30)
    table = _table(card, profiler)
    assert profiler.steps <= 30 and 1 < len(table.costs) <= 3
    _right(card, table)
    assert "raise max_steps from 30" in profiler.advice and "power cap" in profiler.advice
    again = _profiler(Card(), SWEEP, max_steps=int(profiler.advice.rpartition(" ")[2]))
    other = Card()
    again = _profiler(other, SWEEP, max_steps=int(profiler.advice.rpartition(" ")[2]))
    other.train(again)
    assert again.advice == ""


def test_steps_too_quick_for_the_sensors_leave_caps_alone() -> None:
    card = Card(step_s={BF16: 0.002})
    profiler = _profiler(card)
    table = _table(card, profiler)
    assert [cost.action.cap for cost in table.costs] == [1.0] and table.costs[0].power_w is None
    assert "raise max_steps" in profiler.advice


@settings(max_examples=80, deadline=None)
@given(
    paces_s=st.lists(st.floats(1e-3, 5.0), min_size=1, max_size=3),
    caps=st.lists(st.sampled_from(SWEEP), min_size=1, max_size=21, unique=True),
    spare=st.integers(0, 300),
    fixed_w=st.floats(1.0, 199.0),
    noise=st.floats(0.0, 0.1),
    settle_s=st.floats(0.0, 3.0),
    slowdown=st.none() | st.floats(0.0, 0.9),
    refused=st.none() | st.sampled_from(SWEEP[1:]),
    gap=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_steps_never_exceed_their_limit_whatever_happens(
    paces_s: list[float],
    caps: list[float],
    spare: int,
    fixed_w: float,
    noise: float,
    settle_s: float,
    slowdown: float | None,
    refused: float | None,
    gap: int,
    seed: int,
) -> None:
    gears = tuple(list(Gear)[: len(paces_s)])
    card = Card(fixed_w=fixed_w, noise=noise, dice=random.Random(seed), step_s=dict(zip(gears, paces_s, strict=True)))
    asked = [0]

    def energy(t0_s: float, t1_s: float) -> Mapping[str, float] | None:
        asked[0] += 1
        return None if asked[0] == gap else card.energy(t0_s, t1_s)

    most = 2 * len(gears) * (3 + 3) + spare
    profiler = _profiler(
        card, (1.0, *caps) if 1.0 not in caps else tuple(caps), gears, energy, None, slowdown, max_steps=most,
        settle_s=settle_s,
    )  # fmt: skip
    card.train(profiler, lambda cap: cap == refused)
    assert profiler.done and profiler.steps <= most
    table = profiler.table()
    assert {Action(gear=gear) for gear in gears} <= set(table.actions)
    assert all(cost.action.cap != refused for cost in table.costs)
    if not noise:
        for cost in table.costs:
            assert cost.steps_per_s is not None
            assert cost.steps_per_s.mean == pytest.approx(card.speed(cost.action.gear, cost.action.cap))


# -- how blocks are measured -----------------------------------------------------------------------------------


def test_steps_are_not_counted_until_power_has_followed_the_cap() -> None:
    card = Card(behind_s=0.8)
    _right(card, _table(card, _profiler(card)))
    hasty = Card(behind_s=0.8)
    table = _table(hasty, _profiler(hasty, settle_s=0.0))
    assert any(
        c.power_w is not None and abs(c.power_w.mean / hasty.power_w(c.action.cap) - 1) > 0.01 for c in table.costs
    )


def test_the_time_in_which_joules_are_waited_for_is_no_warm_up() -> None:
    card = Card(behind_s=0.9)

    def energy(t0_s: float, t1_s: float) -> Mapping[str, float] | None:
        if not profiler.done:
            card.segments.append((card.t_s, card.t_s + 2.0, 60.0))
            card.t_s += 2.0  # sensors are late
        return card.energy(t0_s, t1_s)

    profiler = _profiler(card, energy=energy)
    card.train(profiler)
    _right(card, profiler.table())


@pytest.mark.parametrize("late_s", [1.3, math.inf], ids=["late", "never"])
def test_training_goes_on_unmeasured_until_sensors_have_told(late_s: float) -> None:
    card = Card(behind_s=0.9)
    profiler = _profiler(card, energy=lambda a, b: card.energy(a, b) if card.t_s >= b + late_s else None)
    card.train(profiler)
    table = profiler.table()
    if late_s == math.inf:
        assert [cost.action.cap for cost in table.costs] == [1.0] and "no joules" in profiler.advice
        assert card.t_s - 100.0 < 2 * (1.0 + 4.0 + 4 * 0.25 + 0.5), "each of two blocks is given 4 s"
        return
    _right(card, table)
    assert {cost.action.cap for cost in table.costs} == set(THREE)
    blocks = sum(cost.blocks for cost in table.costs)
    between = len(card.ran) - profiler.steps
    assert 4 * blocks <= between <= 7 * blocks, "1.3 s, in steps of 0.25 s and a little more"
    assert profiler.steps <= 200, "they are not among the steps of the phase"
    assert all(record.tokens == 1000 * record.steps for record in profiler.records()), "nor are their tokens"


def test_survivors_come_again_the_other_way_round_and_what_is_of_no_use_does_not() -> None:
    card = Card(fixed_w=350.0)
    table = _table(card, _profiler(card, (1.0, 0.8, 0.7, 0.55), rounds=3, max_steps=400))
    blocks = {cost.action.cap: cost.blocks for cost in table.costs}
    assert blocks[0.55] == 1 and blocks[1.0] == blocks[0.8] == 3
    turns = [a.cap for i, a in enumerate(card.ran) if i == 0 or a.cap != card.ran[i - 1].cap]
    again = turns[4:]
    assert again[: len(again) // 2 + 1] == sorted(again[: len(again) // 2 + 1])  # from the lowest up


def test_a_cap_that_cannot_be_set_is_in_no_row() -> None:
    card = Card()
    profiler = _profiler(card)
    card.train(profiler, lambda cap: cap == 0.8)
    assert {cost.action.cap for cost in profiler.table().costs} == {1.0, 0.6}
    assert all(action.cap != 0.8 for action in card.ran)
    _right(card, profiler.table())


def test_a_cap_that_can_no_longer_be_set_takes_its_rows_with_it() -> None:
    card = Card()
    profiler = _profiler(card)
    card.train(profiler, lambda cap: cap == 0.8 and any(action.cap == 0.6 for action in card.ran))
    assert any(action.cap == 0.8 for action in card.ran)
    assert {cost.action.cap for cost in profiler.table().costs} == {1.0, 0.6}


def test_a_block_that_gets_too_short_does_not_take_the_watts_of_the_others() -> None:
    card = Card(dip=lambda t_s: 0.002 if t_s > 112.0 else 1.0)
    profiler = _profiler(card)
    table = _table(card, profiler)
    assert card.t_s > 112.0 and profiler.steps == 200
    assert {cost.action.cap for cost in table.costs} == set(THREE)
    _right(card, table)


def test_where_steps_are_few_every_gear_has_its_share_of_caps() -> None:
    card = Card(step_s={BF16: 0.25, FP8: 0.25})
    table = _table(card, _profiler(card, SWEEP, (BF16, FP8), max_steps=55))
    for gear in (BF16, FP8):
        assert sum(cost.action.gear is gear and cost.action.cap < 1.0 for cost in table.costs) >= 1


# -- several ranks ---------------------------------------------------------------------------------------------


def _two_ranks(
    joules: Sequence[Callable[[Card, float, float], float]], late_s: Sequence[float] = (0.0, 0.0)
) -> tuple[list[Card], ActionTable]:
    """Return the cards of two ranks after profiling in threads, and the job's table."""
    barrier, turn = Barrier(2), [0, 0]
    told: list[list[Any]] = [[0, 0], [0, 0]]

    def everybody(rank: int, value: Any) -> list[Any]:
        board = told[turn[rank] % 2]
        turn[rank] += 1
        board[rank] = value
        barrier.wait(240)
        return list(board)

    cards = [Card(), Card(dice=random.Random(7), noise=0.01)]
    profilers: list[GearProfiler] = []

    def profile(rank: int) -> None:
        card = cards[rank]
        profiler = GearProfiler(
            (BF16, FP8),
            energy=lambda a, b: {"gpu": joules[rank](card, a, b)} if card.t_s >= b + late_s[rank] else None,
            provenance=lambda: {"gpu": Provenance.MEASURED},
            clock=lambda: card.t_s,
            agree=lambda steps: int(everybody(rank, steps)[0]),
            gather=lambda value: everybody(rank, value),
            caps=SWEEP,
            max_steps=200,
        )
        profilers.append(profiler)
        card.train(profiler)

    threads = [Thread(target=profile, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(400)
        assert not thread.is_alive()
    one, two = profilers
    assert one.steps == two.steps
    return cards, one.table(records=add_ranks([one.records(), two.records()]), world_size=2)


def _drawn(card: Card, t0_s: float, t1_s: float) -> float:
    return sum((card.energy(t0_s, t1_s) or {}).values())


def test_ranks_with_different_devices_visit_the_same_caps_and_add_up() -> None:
    cards, table = _two_ranks((_drawn, lambda card, a, b: 10 * _drawn(card, a, b)))
    assert cards[0].ran == cards[1].ran
    for cost in table.costs:
        assert cost.power_w is not None
        assert cost.power_w.mean == pytest.approx(11 * cards[0].power_w(cost.action.cap), rel=0.03)


def test_ranks_wait_for_the_sensors_of_the_last_in_equally_many_steps() -> None:
    cards, table = _two_ranks((_drawn, lambda card, a, b: 10 * _drawn(card, a, b)), late_s=(0.1, 1.6))
    assert cards[0].ran == cards[1].ran
    assert len(table.costs) > 2 and all(cost.power_w is not None for cost in table.costs)


def test_the_rank_that_books_the_nodes_cpu_does_not_decide_alone() -> None:
    cards, table = _two_ranks(
        (lambda card, a, b: _drawn(card, a, b) + 600 * (b - a), lambda card, a, b: 8 * _drawn(card, a, b))
    )

    def cost(cap: float) -> float:
        return (9 * cards[0].power_w(cap) + 600) / cards[0].speed(BF16, cap)

    assert min(cost(row.action.cap) for row in table.costs) <= 1.003 * min(map(cost, SWEEP))


def test_caps_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="each power cap once"):
        _profiler(Card(), (1.0, 1.0))
    with pytest.raises(ConfigError, match="in \\(0, 1\\]"):
        _profiler(Card(), (1.5, 1.0))
