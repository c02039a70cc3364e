"""The step's timeline against a table that was worked out by another program, and against sums by hand."""

from dataclasses import replace

import numpy as np
import pytest

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import CostTable, Hardware, Plan, Stage, StageCost, Where, all_gpu, label, plans
from greentrain.policy.offload.timeline import Late, StepShape, timeline, times
from greentrain.types import Provenance

SLOWER = (0.5, 1.0, 2.0, 4.0, 10.0)
BOTH = {Stage.REWARD: Where.CONCURRENT, Stage.REFERENCE: Where.CONCURRENT}
IN_TURN = {Stage.REWARD: Where.SEQUENTIAL, Stage.REFERENCE: Where.SEQUENTIAL}
REFERENCE_FIRST = (Stage.CRITIC, Stage.REFERENCE, Stage.REWARD)


def cost(duration_s: float, power_w: float = 0.0) -> StageCost:
    return StageCost(duration_s=duration_s, energy_j=duration_s * power_w, provenance=Provenance.MODELLED)


def table(slower: float = 1.0, *, critic: float = 1.05, reference: bool = True) -> CostTable:
    """A step of 21 s in which 16 % are frozen passes."""
    costs = {
        (Stage.GENERATE, Hardware.GPU): cost(9.03, 300.0),
        (Stage.CRITIC, Hardware.GPU): cost(critic, 300.0),
        (Stage.REWARD, Hardware.GPU): cost(1.68, 300.0),
        (Stage.REWARD, Hardware.OFFLOAD): cost(1.68 * slower, 70.0),
        (Stage.TRAIN, Hardware.GPU): cost(7.56, 400.0),
    }
    if reference:
        costs[Stage.REFERENCE, Hardware.GPU] = cost(1.68, 300.0)
        costs[Stage.REFERENCE, Hardware.OFFLOAD] = cost(1.68 * slower, 70.0)
    return CostTable(
        costs=costs,
        tokens=1000.0,
        gpu_idle_w=60.0,
        gpu_idle_provenance=Provenance.MEASURED,
        card_idle_w=20.0,
        card_idle_provenance=Provenance.MODELLED,
    )


@pytest.mark.parametrize(
    ("plan", "shape", "speed_ups"),
    [
        (IN_TURN, StepShape(), (1.09, 1.00, 0.86, 0.68, 0.41)),
        (BOTH, StepShape(late=Late.NONE), (1.15, 1.05, 0.90, 0.70, 0.42)),
        (BOTH, StepShape(late=Late.REFERENCE), (1.19, 1.15, 1.05, 0.88, 0.49)),
        (BOTH, StepShape(late=Late.ALL), (1.19, 1.16, 1.05, 0.88, 0.49)),
        (BOTH, StepShape(chunks=8, late=Late.NONE), (1.19, 1.19, 1.19, 0.95, 0.50)),
        (BOTH, StepShape(chunks=8, late=Late.ALL), (1.19, 1.19, 1.19, 0.96, 0.50)),
        (BOTH, StepShape(off_policy=True), (1.19, 1.19, 1.19, 1.19, 0.62)),
        (BOTH, StepShape(cards=2), (1.19, 1.15, 1.05, 0.90, 0.63)),
        (BOTH, StepShape(cards=2, chunks=8, late=Late.NONE), (1.19, 1.19, 1.19, 1.19, 0.82)),
        (BOTH, StepShape(cards=2, off_policy=True), (1.19, 1.19, 1.19, 1.19, 1.19)),
    ],
    ids=[
        "eager",
        "par",
        "late_ref",
        "late_all",
        "stream",
        "stream+late",
        "one-step",
        "2:late_ref",
        "2:stream",
        "2:one",
    ],
)
def test_gives_the_speed_ups_that_were_worked_out_before(
    plan: Plan, shape: StepShape, speed_ups: tuple[float, ...]
) -> None:
    whole_s = timeline(table(), all_gpu(table()), shape).step_s
    assert whole_s == pytest.approx(21.0)
    found = [whole_s / timeline(table(slower), plan, shape).step_s for slower in SLOWER]
    assert found == pytest.approx(speed_ups, abs=0.0055)


def test_without_a_reference_late_rewards_win_2_percent_and_streamed_ones_9() -> None:
    alone = table(critic=0.0, reference=False)
    plan = {Stage.REWARD: Where.CONCURRENT}
    whole_s = timeline(alone, {}, StepShape()).step_s
    assert whole_s / timeline(alone, plan, StepShape(late=Late.ALL)).step_s == pytest.approx(1.02, abs=0.005)
    streamed = timeline(alone, plan, StepShape(chunks=8, late=Late.NONE))
    assert whole_s / streamed.step_s == pytest.approx(1.09, abs=0.005)


def test_rewards_before_references_win_more_than_the_other_way_round() -> None:
    shape = StepShape()
    first = timeline(table(4.0), BOTH, shape).step_s
    assert first < timeline(table(4.0), BOTH, replace(shape, order=REFERENCE_FIRST)).step_s


def test_a_kl_in_the_reward_takes_the_late_reference_its_window() -> None:
    late = StepShape()
    in_reward = replace(late, advantages_need=frozenset({Stage.REWARD, Stage.CRITIC, Stage.REFERENCE}))
    assert timeline(table(), BOTH, in_reward).step_s == timeline(table(), BOTH, replace(late, late=Late.NONE)).step_s


def test_old_log_probabilities_are_a_window() -> None:
    some = StepShape(old_share=0.2, late=Late.NONE)
    none = StepShape(old_share=0.0, late=Late.NONE)
    assert timeline(table(), {}, some).step_s == pytest.approx(timeline(table(), {}, none).step_s)
    assert timeline(table(), BOTH, some).step_s < timeline(table(), BOTH, none).step_s


def test_every_second_and_joule_is_somewhere() -> None:
    for plan in plans(table()):
        found = timeline(table(2.0), plan, StepShape())
        assert sum(found.waits_s.values()) == pytest.approx(found.idle_s[Hardware.GPU])
        assert found.busy_s[Hardware.GPU] + found.idle_s[Hardware.GPU] == pytest.approx(found.step_s)
        assert found.energy_j == pytest.approx(sum(j or 0 for j in (*found.stage_j.values(), *found.idle_j.values())))


def test_the_joules_of_a_plan_are_those_added_by_hand() -> None:
    found = timeline(table(2.0), IN_TURN, StepShape())
    assert found.step_s == pytest.approx(17.64 + 6.72)
    assert found.useful_j == pytest.approx(300 * (9.03 + 1.05) + 400 * 7.56 + 70 * 6.72)
    assert found.idle_j[Hardware.GPU] == pytest.approx(60 * 6.72)
    assert found.idle_j[Hardware.OFFLOAD] == pytest.approx(20 * 17.64)
    assert found.j_per_token == pytest.approx((found.energy_j or 0) / 1000)
    assert found.bubble == pytest.approx(6.72 / 24.36)
    assert found.hidden_s == pytest.approx(0.0)
    assert found.provenance is Provenance.MODELLED


def test_a_device_that_is_not_used_costs_only_where_it_stays_on() -> None:
    assert timeline(table(), {}, StepShape()).idle_j[Hardware.OFFLOAD] == 0.0
    stays = replace(table(), card_stays=True)
    assert timeline(stays, {}, StepShape()).idle_j[Hardware.OFFLOAD] == pytest.approx(20 * 21.0)


def test_what_nobody_knows_stays_unknown() -> None:
    unknown = replace(table(), card_idle_w=None, card_idle_provenance=Provenance.MISSING)
    assert timeline(unknown, {}, StepShape()).energy_j is not None
    found = timeline(unknown, BOTH, StepShape())
    assert found.energy_j is None and found.wasted_j is None and found.useful_j is not None
    assert found.provenance is Provenance.MISSING


def test_many_steps_at_once_are_those_one_by_one() -> None:
    rng = np.random.default_rng(0)
    gpu_s = {stage: rng.uniform(0.1, 9.0, 7) for stage in Stage}
    card_s = {stage: rng.uniform(0.1, 9.0, 7) for stage in (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)}
    for chunks, off_policy in ((1, False), (4, False), (1, True)):
        shape = StepShape(chunks=chunks, off_policy=off_policy)
        for plan in plans(table()):
            together = times(gpu_s, card_s, plan, shape)
            for i in range(7):
                alone = times({s: t[i] for s, t in gpu_s.items()}, {s: t[i] for s, t in card_s.items()}, plan, shape)
                assert together.step_s[i] == alone.step_s


def test_plans_are_all_legal_and_named() -> None:
    found = plans(table())
    assert len(found) == 9
    assert [label(found[0]), label(found[-1])] == ["all on gpu", "reference concurrent, reward concurrent"]
    for plan in found:
        timeline(table(), plan, StepShape())


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({Stage.TRAIN: Where.SEQUENTIAL}, "moves train"),
        ({Stage.GENERATE: Where.CONCURRENT}, "moves generate"),
        ({Stage.CRITIC: Where.CONCURRENT}, "no critic on the offload"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(plan: Plan, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        timeline(table(), plan, StepShape())
