"""The gear profiler, driven by a scripted training whose speeds and powers are known."""

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.control.profiling.profiler import MANY, GearProfiler, add_ranks
from greentrain.errors import ConfigError, SessionError
from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI
from greentrain.types import Gear, Provenance

BF16, FP8, FP16, FP32 = Gear.BF16, Gear.FP8, Gear.FP16, Gear.FP32
TOKENS = 1000
STEP_S = {BF16: 0.1, FP8: 0.07, FP16: 0.12, FP32: 0.3}
POWER_W = {BF16: 500.0, FP8: 450.0, FP16: 520.0, FP32: 600.0}


@dataclass
class World:
    """A device whose steps last and draw what the test says."""

    step_s: Callable[[Gear, float], float] = lambda gear, t_s: STEP_S[gear]
    power_w: Callable[[Gear, float], float] = lambda gear, t_s: POWER_W[gear]
    t_s: float = 100.0
    segments: list[tuple[float, float, float]] = field(default_factory=list)
    """Start, end (s) and power (W) of every step."""
    gears: list[Gear] = field(default_factory=list)

    def energy(self, t0_s: float, t1_s: float) -> Mapping[str, float] | None:
        joules = (max(0.0, min(t1_s, b_s) - max(t0_s, a_s)) * power_w for a_s, b_s, power_w in self.segments)
        return {"gpu": sum(joules)}

    def spend(self, gear: Gear) -> None:
        seconds = self.step_s(gear, self.t_s)
        self.segments.append((self.t_s, self.t_s + seconds, self.power_w(gear, self.t_s)))
        self.t_s += seconds
        self.gears.append(gear)

    def train(self, profiler: GearProfiler, steps: int = 10_000, tokens: int | None = TOKENS) -> None:
        while not profiler.done and steps > 0:
            self.spend(profiler.gear)
            profiler.boundary(self.t_s)
            if tokens is not None:
                profiler.step(tokens, 8)
            steps -= 1


def _profiler(
    world: World,
    gears: tuple[Gear, ...] = (BF16, FP8),
    energy: Callable[[float, float], Mapping[str, float] | None] | None = None,
    provenance: Mapping[str, Provenance] | None = None,
    clock: Callable[[], float] | None = None,
    synchronize: Callable[[], None] | None = None,
    agree: Callable[[int], int] = lambda steps: steps,
    rounds: int = 3,
    warmup_steps: int = 3,
    min_block_s: float = 1.0,
    min_steps: int = 3,
    max_steps: int = 200,
) -> GearProfiler:
    return GearProfiler(
        gears,
        energy=energy or world.energy,
        provenance=lambda: {"gpu": Provenance.MEASURED} if provenance is None else provenance,
        clock=clock or (lambda: world.t_s),
        synchronize=synchronize,
        agree=agree,
        rounds=rounds,
        warmup_steps=warmup_steps,
        min_block_s=min_block_s,
        min_steps=min_steps,
        max_steps=max_steps,
    )


def _cost(table: ActionTable, gear: Gear) -> ActionCost:
    cost = table.of(Action(gear=gear))
    assert cost is not None
    return cost


def _mean(estimate: MeanWithCI | None) -> float:
    assert estimate is not None
    return estimate.mean


def _holds(estimate: MeanWithCI | None, truth: float) -> bool:
    assert estimate is not None and estimate.low is not None and estimate.high is not None
    return estimate.low <= truth <= estimate.high


# -- the figures -----------------------------------------------------------------------------------------------


def test_without_noise_the_figures_are_exact() -> None:
    world = World()
    profiler = _profiler(world, (BF16, FP8, FP16, FP32))
    world.train(profiler)
    table = profiler.table(device="scripted", world_size=1, versions={"torch": "2"}, created_unix_s=5.0)
    assert (table.device, table.versions, table.created_unix_s) == ("scripted", {"torch": "2"}, 5.0)
    assert table.tokens_per_step == TOKENS
    assert [cost.action.gear for cost in table.costs] == [BF16, FP8, FP16, FP32]
    for cost in table.costs:
        step_s, power_w = STEP_S[cost.action.gear], POWER_W[cost.action.gear]
        figures = (cost.steps_per_s, cost.tokens_per_s, cost.samples_per_s, cost.power_w, cost.j_per_step)
        truths = (1 / step_s, TOKENS / step_s, 8 / step_s, power_w, power_w * step_s)
        assert [_mean(figure) for figure in figures] == pytest.approx(truths)
        assert _mean(cost.j_per_token) == pytest.approx(power_w * step_s / TOKENS)
        assert cost.provenance == "measured"
        assert cost.blocks == 3
    assert profiler.advice == ""


def test_the_intervals_hold_the_truth_in_95_of_100_phases() -> None:
    hits: dict[str, list[bool]] = {"speed": [], "power": [], "energy": []}
    for seed in range(200):
        noise = random.Random(seed)
        world = World(
            step_s=lambda gear, t_s, noise=noise: STEP_S[gear] * (1 + noise.gauss(0, 0.05)),  # type: ignore[misc]
            power_w=lambda gear, t_s, noise=noise: POWER_W[gear] * (1 + noise.gauss(0, 0.05)),  # type: ignore[misc]
        )
        profiler = _profiler(world)
        world.train(profiler)
        table = profiler.table()
        for gear in (BF16, FP8):
            cost = _cost(table, gear)
            hits["speed"].append(_holds(cost.tokens_per_s, TOKENS / STEP_S[gear]))
            hits["power"].append(_holds(cost.power_w, POWER_W[gear]))
            hits["energy"].append(_holds(cost.j_per_token, POWER_W[gear] * STEP_S[gear] / TOKENS))
    for name, held in hits.items():
        assert len(held) == 400
        assert 0.92 <= sum(held) / len(held) <= 0.98, name


def _drifting(rate: float) -> World:
    """Return a device that gets slower and hotter by a rate (1/s)."""
    return World(
        step_s=lambda gear, t_s: STEP_S[gear] * (1 + rate * (t_s - 100.0)),
        power_w=lambda gear, t_s: POWER_W[gear] * (1 + rate * (t_s - 100.0)),
    )


@pytest.mark.parametrize("rounds", [2, 3, 4])
@pytest.mark.parametrize("gears", [(BF16, FP8), (BF16, FP16, FP8), (FP32, BF16, FP16, FP8)])
def test_a_drift_of_20_percent_leaves_the_ratio_of_two_gears_alone(gears: tuple[Gear, ...], rounds: int) -> None:
    still = World()
    profiler = _profiler(still, gears, rounds=rounds, max_steps=1000)
    still.train(profiler)
    world = _drifting(0.2 / (still.t_s - 100.0))
    profiler = _profiler(world, gears, rounds=rounds, max_steps=1000)
    world.train(profiler)
    table = profiler.table()
    first, last = _cost(table, gears[0]), _cost(table, gears[-1])
    speed = _mean(last.tokens_per_s) / _mean(first.tokens_per_s)
    power = _mean(last.power_w) / _mean(first.power_w)
    assert speed == pytest.approx(STEP_S[gears[0]] / STEP_S[gears[-1]], rel=0.02)
    assert power == pytest.approx(POWER_W[gears[-1]] / POWER_W[gears[0]], rel=0.02)
    assert abs(_mean(first.power_w) / POWER_W[gears[0]] - 1) > 0.05  # the drift was there


def test_gears_take_turns_and_every_other_round_backwards() -> None:
    world = World()
    world.train(_profiler(world, (BF16, FP16, FP8), rounds=4, max_steps=1000))
    turns = [gear for i, gear in enumerate(world.gears) if i == 0 or gear is not world.gears[i - 1]]
    assert turns == [BF16, FP16, FP8, FP16, BF16, FP16, FP8, FP16, BF16]


# -- warm-up ---------------------------------------------------------------------------------------------------


def _warming(factors: list[float]) -> World:
    """Return a device on which the first steps of each gear take longer, and draw nothing."""
    seen = dict.fromkeys(Gear, 0)

    def step_s(gear: Gear, t_s: float) -> float:
        seen[gear] += 1
        return STEP_S[gear] * (factors[seen[gear] - 1] if seen[gear] <= len(factors) else 1.0)

    return World(step_s=step_s, power_w=lambda gear, t_s: 0.0 if seen[gear] <= len(factors) else POWER_W[gear])


@pytest.mark.parametrize(
    "factors",
    [
        [200.0],
        [200.0, 5.0, 2.0],
        [8.0, 6.0, 4.5, 3.3, 2.4, 1.8, 1.35, 1.18],  # falls by more than 10 % a step: longer than warmup_steps
    ],
)
def test_warm_up_steps_are_not_counted(factors: list[float]) -> None:
    world = _warming(factors)
    profiler = _profiler(world)
    world.train(profiler)
    for gear in (BF16, FP8):
        cost = _cost(profiler.table(), gear)
        assert _mean(cost.steps_per_s) == pytest.approx(1 / STEP_S[gear])
        assert _mean(cost.power_w) == pytest.approx(POWER_W[gear])


def test_a_warm_up_that_never_ends_is_bounded() -> None:
    world = _warming([0.8**n for n in range(1000)])
    profiler = _profiler(world, max_steps=100)
    world.train(profiler)
    assert profiler.steps <= 100
    assert [cost.blocks >= 2 for cost in profiler.table().costs] == [True, True]


def test_the_first_step_after_a_shift_is_not_counted() -> None:
    last = [BF16]

    def step_s(gear: Gear, t_s: float) -> float:
        shifted, last[0] = gear is not last[0], gear
        return STEP_S[gear] * (30.0 if shifted else 1.0)

    world = World(step_s=step_s)
    profiler = _profiler(world)
    world.train(profiler)
    assert [_mean(c.steps_per_s) for c in profiler.table().costs] == pytest.approx([10.0, 1 / 0.07])


# -- how long it takes -----------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    paces_s=st.lists(st.floats(1e-4, 20.0), min_size=1, max_size=4),
    rounds=st.integers(2, 5),
    warmup_steps=st.integers(1, 4),
    min_steps=st.integers(1, 5),
    min_block_s=st.floats(0.1, 5.0),
    spare=st.integers(0, 300),
    jitter=st.floats(0.0, 0.5),
    seed=st.integers(0, 99),
)
def test_steps_never_exceed_their_limit_and_every_gear_has_two_blocks(
    paces_s: list[float],
    rounds: int,
    warmup_steps: int,
    min_steps: int,
    min_block_s: float,
    spare: int,
    jitter: float,
    seed: int,
) -> None:
    gears = list(Gear)[: len(paces_s)]
    noise = random.Random(seed)
    world = World(step_s=lambda gear, t_s: paces_s[gears.index(gear)] * (1 + noise.uniform(-jitter, jitter)))
    least = 2 * len(gears) * (warmup_steps + min_steps)
    profiler = _profiler(
        world,
        tuple(gears),
        rounds=rounds,
        warmup_steps=warmup_steps,
        min_steps=min_steps,
        min_block_s=min_block_s,
        max_steps=least + spare,
    )
    world.train(profiler)
    assert profiler.done and profiler.steps <= least + spare
    records = profiler.records()
    for gear in gears:
        own = [block for block in records if block.gear is gear]
        pace_s, most, least_s = paces_s[gears.index(gear)], 1 + jitter, min(paces_s)
        if len(own) == 1:  # it took far too long, and that only
            assert pace_s * most >= min_block_s and pace_s * most > MANY * least_s * (1 - jitter)
            assert str(gear) in profiler.advice and "no interval" in profiler.advice
        else:
            assert 2 <= len(own) <= rounds and all(block.steps >= min_steps for block in own)
            slowest_first = pace_s * (1 - jitter) >= min_block_s and pace_s * (1 - jitter) > MANY * least_s * most
            assert not slowest_first
        assert all(block.seconds >= min_block_s * (1 - 1e-9) for block in own if block.energy_j is not None)
    left = "left early" in profiler.advice
    assert left or bool(profiler.advice) == any(block.energy_j is None for block in records)


@pytest.mark.parametrize(("warmup_steps", "steps"), [(3, 2 * (3 + 3) + 4 * (1 + 3)), (6, 2 * (6 + 3) + 4 * (2 + 3))])
def test_slow_steps_take_no_more_of_them_than_needed(warmup_steps: int, steps: int) -> None:
    world = World(step_s=lambda gear, t_s: 5.0)
    profiler = _profiler(world, warmup_steps=warmup_steps)
    world.train(profiler)
    assert profiler.steps == steps


@pytest.mark.parametrize("gears", [(FP32, BF16), (BF16, FP32)])
def test_a_gear_that_is_many_times_slower_is_left_after_its_first_steps(gears: tuple[Gear, ...]) -> None:
    world = World(step_s=lambda gear, t_s: 8.0 if gear is BF16 else 0.4)
    profiler = _profiler(world, gears, rounds=4)
    world.train(profiler)
    # After the quick one two steps suffice; before it nobody knows that it is slow until its first block is over.
    assert world.gears.count(BF16) == (2 if gears[0] is FP32 else 6)
    table = profiler.table()
    slow, quick = _cost(table, BF16), _cost(table, FP32)
    assert slow.blocks == 1 and quick.blocks == 4
    assert _mean(slow.steps_per_s) == pytest.approx(1 / 8.0) and _mean(slow.tokens_per_s) == pytest.approx(TOKENS / 8)
    assert _mean(slow.power_w) == pytest.approx(500.0)
    assert slow.tokens_per_s is not None and slow.tokens_per_s.low is None
    assert "bf16 was left early: a step takes 20 times as long as the quickest" in profiler.advice
    assert "in 1 block: no interval" in str(table) and not profiler.hurried
    assert table.better(Action(gear=FP32))


def test_a_gear_that_compiles_for_long_is_not_left() -> None:
    world = _warming([200.0])
    profiler = _profiler(world)
    world.train(profiler)
    assert [cost.blocks for cost in profiler.table().costs] == [3, 3] and profiler.advice == ""


def _by_a_deadline(world: World, gears: tuple[Gear, ...], left_s: float, steps: int = 200) -> GearProfiler:
    """Profile a job of so many steps that has to be done in so many seconds."""
    end_s = world.t_s + left_s
    slack = lambda step_s: end_s - world.t_s - (steps - len(world.gears)) * step_s  # noqa: E731
    profiler = GearProfiler(
        gears, energy=world.energy, provenance=dict, clock=lambda: world.t_s, slack=slack, rounds=4, max_steps=1000
    )
    world.train(profiler)
    return profiler


@settings(max_examples=60, deadline=None)
@given(quick_s=st.floats(0.05, 5.0), times=st.floats(1.0, 40.0), spare=st.floats(0.02, 3.0), steps=st.integers(60, 400))
def test_measuring_alone_makes_nobody_late(quick_s: float, times: float, spare: float, steps: int) -> None:
    world = World(step_s=lambda gear, t_s: quick_s * (times if gear is BF16 else 1.0))
    profiler = _by_a_deadline(world, (FP32, BF16), steps * quick_s * (1 + spare), steps)
    lost_s = world.t_s - 100.0 - len(world.gears) * quick_s
    assert profiler.done and FP32 in {cost.action.gear for cost in profiler.table().costs}
    assert lost_s <= steps * quick_s * spare or world.gears.count(BF16) <= 2  # nobody knows a gear before


def test_short_of_time_a_gear_is_not_tried_and_the_table_says_so() -> None:
    world = World(step_s=lambda gear, t_s: 2.0 if gear is BF16 else 0.8)
    profiler = _by_a_deadline(world, (FP32, BF16), left_s=200 * 0.8 * 1.02)
    assert BF16 not in world.gears and profiler.hurried
    assert [cost.action.gear for cost in profiler.table().costs] == [FP32]
    assert profiler.advice == "bf16 was left early: the deadline leaves no time to try it"


def test_late_in_the_first_gear_another_one_is_tried_at_once() -> None:
    world = World(step_s=lambda gear, t_s: 8.0 if gear is BF16 else 0.4)
    profiler = _by_a_deadline(world, (BF16, FP32), left_s=180.0)
    assert world.gears.count(BF16) == 4 and FP32 in world.gears
    assert {cost.action.gear for cost in profiler.table().costs} == {BF16, FP32}
    assert world.t_s - 100.0 + (200 - len(world.gears)) * 0.4 < 180.0


@pytest.mark.parametrize("quick_s", [0.025, 0.019])  # full blocks of 42 and 56 steps; the first one may take 50
def test_a_slow_gear_leaves_its_steps_to_a_quick_one(quick_s: float) -> None:
    world = World(step_s=lambda gear, t_s: quick_s if gear is FP8 else 0.4)
    profiler = _profiler(world, (FP8, FP32))
    world.train(profiler)
    fp8, fp32 = profiler.table().costs
    assert (fp8.blocks, fp32.blocks) == (3 if quick_s == 0.025 else 2, 3)
    assert (_mean(fp8.power_w), _mean(fp32.power_w)) == pytest.approx((450.0, 600.0))
    assert profiler.advice == "" and profiler.steps <= 200


def test_a_third_block_that_gets_too_short_is_left_out() -> None:
    world = World(step_s=lambda gear, t_s: STEP_S[gear] / (100 if t_s > 105.5 else 1))
    profiler = _profiler(world, max_steps=100)
    world.train(profiler)
    assert world.t_s > 105.5 and profiler.steps == 100
    assert [cost.blocks for cost in profiler.table().costs] == [2, 2]
    assert [_mean(cost.power_w) for cost in profiler.table().costs] == pytest.approx([500.0, 450.0])


def test_rounds_shrink_to_what_fits() -> None:
    world = World()
    profiler = _profiler(world, rounds=9, max_steps=100)
    world.train(profiler)
    table = profiler.table()
    assert [cost.blocks for cost in table.costs] == [3, 3]
    assert 80 <= profiler.steps <= 100
    assert all(cost.power_w is not None for cost in table.costs)


def test_steps_too_quick_for_the_sensors_have_a_speed_no_power_and_the_remedy() -> None:
    world = World(step_s=lambda gear, t_s: STEP_S[gear] / 50)
    profiler = _profiler(world)
    world.train(profiler)
    assert profiler.steps <= 200
    for cost in profiler.table().costs:
        assert _mean(cost.steps_per_s) == pytest.approx(50 / STEP_S[cost.action.gear])
        assert cost.power_w is cost.j_per_step is cost.j_per_token is None
        assert cost.provenance == "missing"
    assert "raise max_steps from 200 to about" in profiler.advice
    enough = int(profiler.advice.rpartition(" ")[2])
    again = _profiler(world, max_steps=enough)
    world.train(again)
    assert again.advice == ""
    assert [_mean(cost.power_w) for cost in again.table().costs] == pytest.approx([500.0, 450.0])


def test_training_that_ends_early_leaves_no_invented_interval() -> None:
    world = World()
    profiler = _profiler(world)
    assert profiler.table().costs == ()
    world.train(profiler, steps=20)
    assert not profiler.done
    (cost,) = profiler.table().costs
    assert cost.action.gear is BF16 and cost.blocks == 1
    for estimate, truth in ((cost.tokens_per_s, 10_000.0), (cost.power_w, 500.0)):
        assert estimate is not None and estimate.low is None and estimate.high is None
        assert estimate.mean == pytest.approx(truth)


def test_steps_after_the_end_change_nothing() -> None:
    world = World()
    profiler = _profiler(world)
    world.train(profiler)
    before, gear, steps = profiler.table(created_unix_s=0.0), profiler.gear, profiler.steps
    for _ in range(5):
        assert profiler.boundary(world.t_s + 1.0) is gear
        profiler.step(1_000_000)
    assert profiler.table(created_unix_s=0.0) == before
    assert profiler.steps == steps


# -- beside other programs -----------------------------------------------------------------------------------------


def _beside(seed: int, fp8: float, slowed: float = 2.0) -> World:
    """Return a device that other programs slow down for some seconds at a time, and what FP8 takes of BF16's time."""
    dice = random.Random(seed)
    state = [100.0, 1.0]

    def step_s(gear: Gear, t_s: float) -> float:
        while t_s >= state[0]:
            state[0] += dice.expovariate(1 / 2.0)
            state[1] = dice.uniform(1.0, slowed)
        return 0.1 * state[1] * (fp8 if gear is FP8 else 1.0)

    return World(step_s=step_s, power_w=lambda gear, t_s: 500.0)


def _profiled(world: World, rounds: int = 2) -> tuple[GearProfiler, ActionTable]:
    profiler = _profiler(world, rounds=rounds, max_steps=2000)
    world.train(profiler)
    return profiler, profiler.table()


def test_a_gear_that_only_seems_better_beside_other_programs_is_not_preferred() -> None:
    seemed = taken = 0
    for seed in range(200):
        _, table = _profiled(_beside(seed, fp8=1.05))
        seemed += _mean(_cost(table, FP8).tokens_per_s) > _mean(_cost(table, BF16).tokens_per_s)
        taken += table.better(Action(gear=FP8))
    assert seemed > 30, "by the means alone"
    assert taken <= 10


def test_beside_nobody_a_better_gear_is_found_in_as_few_blocks_as_before() -> None:
    for seed in range(20):
        profiler, table = _profiled(_beside(seed, fp8=0.9, slowed=1.005))
        assert table.better(Action(gear=FP8)) and table.better(Action(gear=BF16))
        assert [cost.blocks for cost in table.costs] == [2, 2]
        assert table.doubts == "" == profiler.advice


def test_what_is_disturbed_is_said_with_its_interval() -> None:
    found = [_profiled(_beside(seed, fp8=1.0, slowed=4.0), rounds=4)[1] for seed in range(40)]
    doubts = [table.doubts for table in found if table.doubts]
    assert len(doubts) > 10
    assert re.search(r"4 blocks each fp8 makes [\d.]+ to [\d.]+ times bf16's steps a second", doubts[0]), doubts[0]
    assert "times its steps a joule (95 %)" in doubts[0] and "a plan keeps to bf16" in doubts[0]
    assert not any(table.doubts and table.better(Action(gear=FP8)) for table in found)


# -- a device that runs behind the host ------------------------------------------------------------------------


def test_blocks_are_timed_by_the_device_and_rarely_synchronised() -> None:
    world = World()
    host_s, looks = [100.0], [0]

    def synchronize() -> None:
        looks[0] += 1
        host_s[0] = max(host_s[0], world.t_s)

    profiler = _profiler(world, clock=lambda: host_s[0], synchronize=synchronize)
    while not profiler.done:
        world.spend(profiler.gear)
        host_s[0] += 0.001  # the host only launches
        profiler.boundary(host_s[0])
        profiler.step(TOKENS)
    table = profiler.table()
    assert [_mean(cost.steps_per_s) for cost in table.costs] == pytest.approx([10.0, 1 / 0.07])
    assert [_mean(cost.power_w) for cost in table.costs] == pytest.approx([500.0, 450.0])
    assert looks[0] <= 2 * 3 + 4 + 6 + 2  # warm-up of first blocks by step, of later ones once; a block's end; slips
    assert profiler.steps > 5 * looks[0]


# -- what is not known -----------------------------------------------------------------------------------------


def _table_with(
    energy: Callable[[World, float, float], Mapping[str, float] | None],
    provenance: Mapping[str, Provenance] | None = None,
) -> ActionTable:
    world = World()
    profiler = _profiler(world, energy=lambda t0_s, t1_s: energy(world, t0_s, t1_s), provenance=provenance)
    world.train(profiler)
    return profiler.table()


def test_telling_one_step_twice_is_not_telling_two() -> None:
    world = World()
    profiler = _profiler(world)
    for n in range(1000):
        world.spend(profiler.gear)
        profiler.boundary(world.t_s)
        if n % 2:
            profiler.step(TOKENS)
            profiler.step(TOKENS)
    assert all(cost.tokens_per_s is None for cost in profiler.table().costs)


@pytest.mark.parametrize("joules", [None, {}])
def test_unknown_energy_is_none_and_not_0(joules: Mapping[str, float] | None) -> None:
    for cost in _table_with(lambda world, t0_s, t1_s: joules).costs:
        assert cost.power_w is cost.j_per_step is cost.j_per_token is None
        assert cost.provenance == "missing"
        assert cost.tokens_per_s is not None


def test_one_gap_leaves_the_gears_power_unknown() -> None:
    def energy(world: World, t0_s: float, t1_s: float) -> Mapping[str, float] | None:
        return None if t0_s < 101.0 else world.energy(t0_s, t1_s)

    bf16, fp8 = _table_with(energy).costs
    assert bf16.power_w is None and bf16.j_per_token is None and bf16.provenance == "missing"
    assert _mean(fp8.power_w) == pytest.approx(450.0) and fp8.provenance == "measured"


def test_a_device_that_appears_later_is_unknown_before() -> None:
    def energy(world: World, t0_s: float, t1_s: float) -> Mapping[str, float]:
        found = world.energy(t0_s, t1_s)
        assert found is not None
        return {**found, "cpu": 10.0 * (t1_s - t0_s)} if t0_s > 101.0 else found

    bf16, fp8 = _table_with(energy).costs
    assert bf16.power_w is None
    assert _mean(fp8.power_w) == pytest.approx(460.0)


@pytest.mark.parametrize(
    ("cpu", "gpu", "text"),
    [
        (Provenance.MODELLED, Provenance.MODELLED, "modelled"),
        (Provenance.MODELLED, Provenance.MEASURED, "mixed"),
        (Provenance.MEASURED, Provenance.MEASURED, "measured"),
        (None, Provenance.MEASURED, "mixed"),
    ],
)
def test_modelled_energy_is_called_so(cpu: Provenance | None, gpu: Provenance, text: str) -> None:
    def energy(world: World, t0_s: float, t1_s: float) -> Mapping[str, float]:
        return {"cpu": 10.0 * (t1_s - t0_s), "gpu": 90.0 * (t1_s - t0_s)}

    table = _table_with(energy, {"gpu": gpu} if cpu is None else {"gpu": gpu, "cpu": cpu})
    assert [cost.provenance for cost in table.costs] == [text, text]
    assert [_mean(cost.power_w) for cost in table.costs] == pytest.approx([100.0, 100.0])


def test_a_loop_that_tells_no_tokens_gets_joules_a_step() -> None:
    world = World()
    profiler = _profiler(world)
    world.train(profiler, tokens=None)
    table = profiler.table()
    assert table.tokens_per_step is None
    for cost in table.costs:
        assert cost.tokens_per_s is cost.samples_per_s is cost.j_per_token is None
        assert _mean(cost.j_per_step) == pytest.approx(POWER_W[cost.action.gear] * STEP_S[cost.action.gear])


def test_tokens_told_for_some_steps_only_are_no_speed() -> None:
    world = World()
    profiler = _profiler(world)
    for n in range(1000):
        world.spend(profiler.gear)
        profiler.boundary(world.t_s)
        if n % 5:
            profiler.step(TOKENS)
    assert all(cost.tokens_per_s is None for cost in profiler.table().costs)


def test_tokens_belong_to_the_step_that_just_ended_and_warm_up_steps_to_none() -> None:
    world = World()
    profiler = _profiler(world)
    while not profiler.done:
        world.spend(profiler.gear)
        profiler.boundary(world.t_s)
        profiler.step(tokens=profiler.steps)  # the first step holds one token, the second two
    records = profiler.records()
    assert len(records) == 6
    ended = 0
    for warm, block in zip((3, 3, 1, 1, 1, 1), records, strict=True):
        ended += warm + block.steps
        assert block.tokens == sum(range(ended - block.steps + 1, ended + 1))
    assert ended == profiler.steps


def test_joules_are_asked_for_before_the_sensors_forget_them() -> None:
    world = World(step_s=lambda gear, t_s: 20.0)
    asked: list[float] = []

    def energy(t0_s: float, t1_s: float) -> Mapping[str, float] | None:
        asked.append(t0_s)
        assert world.t_s - t1_s >= 10.0 or profiler.done
        return None if world.t_s - t0_s > 300.0 else world.energy(t0_s, t1_s)

    profiler = _profiler(world, energy=energy)
    world.train(profiler)
    assert world.t_s - 100.0 > 400.0
    assert [_mean(cost.power_w) for cost in profiler.table().costs] == pytest.approx([500.0, 450.0])
    assert len(asked) == len(set(asked)) == 6


# -- several ranks ---------------------------------------------------------------------------------------------


def _two_ranks(agreed: bool, seed: int) -> tuple[GearProfiler, GearProfiler, bool]:
    """Return the profilers of two ranks with different clocks, and whether they shifted alike."""
    said: list[int] = []

    def tell(steps: int) -> int:
        said.append(steps)
        return steps

    noise = random.Random(seed)
    worlds = [World(step_s=lambda gear, t_s: STEP_S[gear] * (1 + noise.uniform(-0.3, 0.3))) for _ in range(2)]
    one = _profiler(worlds[0], agree=tell, warmup_steps=2)
    two = _profiler(worlds[1], agree=(lambda steps: said.pop(0)) if agreed else (lambda steps: steps), warmup_steps=2)
    alike = True
    while not (one.done or two.done):
        for world, profiler in zip(worlds, (one, two), strict=True):
            world.train(profiler, steps=1)
        alike = alike and one.gear is two.gear
    return one, two, alike and one.done is two.done


@pytest.mark.parametrize("seed", range(8))
def test_ranks_that_agree_shift_at_the_same_step(seed: int) -> None:
    one, two, alike = _two_ranks(agreed=True, seed=seed)
    assert alike and one.steps == two.steps
    blocks = add_ranks([one.records(), two.records()])
    pairs = list(zip(one.records(), two.records(), strict=True))
    assert [block.steps for block in blocks] == [a.steps for a, _ in pairs]
    assert [block.seconds for block in blocks] == [max(a.seconds, b.seconds) for a, b in pairs]
    assert any(a.seconds != b.seconds for a, b in pairs)
    table = one.table(records=blocks, world_size=2)
    assert table.tokens_per_step == 2 * TOKENS
    for cost in table.costs:
        assert _mean(cost.power_w) == pytest.approx(2 * POWER_W[cost.action.gear], rel=0.1)


def test_ranks_that_do_not_agree_shift_at_different_steps_and_do_not_add_up() -> None:
    one, two, alike = _two_ranks(agreed=False, seed=3)
    assert not alike
    with pytest.raises(ConfigError, match="agree="):
        add_ranks([one.records(), two.records()])


def test_what_one_rank_does_not_know_the_job_does_not_know() -> None:
    world = World()
    profiler = _profiler(world)
    world.train(profiler)
    silent = _profiler(world := World(), energy=lambda t0_s, t1_s: None)
    world.train(silent)
    without = _profiler(world := World(), energy=lambda t0_s, t1_s: {})
    world.train(without, tokens=None)
    job = profiler.table(records=add_ranks([profiler.records(), silent.records()]))
    assert all(cost.power_w is None and cost.provenance == "missing" for cost in job.costs)
    assert [_mean(cost.tokens_per_s) for cost in job.costs] == pytest.approx([20_000.0, 2000 / 0.07])
    job = profiler.table(records=add_ranks([profiler.records(), without.records()]))
    assert [_mean(cost.power_w) for cost in job.costs] == pytest.approx([500.0, 450.0])
    assert all(cost.tokens_per_s is None and cost.provenance == "measured" for cost in job.costs)


# -- the convenience -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("tells", [True, False])
def test_run_trains_until_everything_is_measured(micro: int, tells: bool) -> None:
    world = World()
    profiler = _profiler(world)
    calls = [0]

    def step() -> int:
        calls[0] += 1
        if calls[0] % micro == 0:
            world.spend(profiler.gear)
            profiler.boundary(world.t_s)
            if tells:
                profiler.step(TOKENS * micro)
        return TOKENS

    profiler.run(step)
    assert profiler.done and calls[0] == profiler.steps * micro
    table = profiler.table()
    assert table.tokens_per_step == TOKENS * micro
    assert [_mean(cost.tokens_per_s) for cost in table.costs] == pytest.approx([10_000 * micro, TOKENS * micro / 0.07])


def test_run_refuses_a_function_that_returns_a_loss() -> None:
    with pytest.raises(ConfigError, match="returned a float"):
        _profiler(World()).run(lambda: 0.5)  # type: ignore[arg-type, return-value]


def test_run_gives_up_where_no_optimizer_steps() -> None:
    with pytest.raises(SessionError, match="pass that optimizer to watch"):
        _profiler(World()).run(lambda: None)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"gears": ()}, "at least one"),
        ({"gears": (BF16, BF16)}, "each gear once"),
        ({"rounds": 1}, "rounds is 1; it must be at least 2"),
        ({"warmup_steps": 0}, "warmup_steps is 0"),
        ({"min_steps": 0}, "min_steps is 0"),
        ({"max_steps": 23}, "max_steps is 23; it must be at least 24"),
        ({"min_block_s": 0.0}, "min_block_s is 0.0"),
        ({"min_block_s": math.nan}, "min_block_s is nan"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _profiler(World(), **wrong)  # type: ignore[arg-type]
