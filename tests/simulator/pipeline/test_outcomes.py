"""Joules, grams, break-even, ablation, sensitivity, many steps and many GPUs, in numbers worked out by hand."""

import dataclasses

import pytest

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Hardware, Stage, Where
from greentrain.simulator.pipeline.bounds import (
    CardFootprint,
    break_even,
    caps,
    footprint,
    published,
)
from greentrain.simulator.pipeline.simulate import GridIntensity, Mode, Setting, simulate, step_ends
from greentrain.simulator.pipeline.what_if import (
    ADAPTIVE,
    SCHEDULER,
    STEPS,
    GpuLink,
    batch_sized,
    over_grids,
    point,
    reward_sized,
    scale,
    scaled,
    waterfall,
)
from greentrain.types import Provenance
from greentrain.utils.quantities import SourcedNumber, SourceKind, least_sure, sure_first
from tests.simulator.pipeline.tables import measured, table

GRID = GridIntensity(g_per_kwh=360, pue=1.25, source="test")
"""0.125 mg of CO2e a joule."""
CARD = CardFootprint(low_kg=1, mid_kg=2, high_kg=4, source="test")


# -- joules and grams --------------------------------------------------------------------------------------------------


def test_joules_of_the_gpus_alone_and_with_a_card() -> None:
    home = simulate(table(), Mode.GPU, grid=GRID)
    assert home.line.energy_j == pytest.approx(2 * (4 * 300 + 2 * 200 + 4 * 400)) == 6400
    assert home.line.wasted_j == 0 and home.line.bubble == 0 and home.cards == 0
    assert home.g == pytest.approx(6400 * 0.125e-3) == 0.8
    assert home.g_per_mtoken == pytest.approx(800)
    away = simulate(table(), Mode.SEQUENTIAL, grid=GRID)
    assert away.line.step_s == 12 and away.tokens_per_s == pytest.approx(1000 / 12)
    assert away.line.useful_j == pytest.approx(2 * (4 * 300 + 4 * 400) + 4 * 60)
    assert away.line.idle_j == {Hardware.GPU: pytest.approx(2 * 50 * 4), Hardware.OFFLOAD: pytest.approx(30 * 8)}
    assert away.line.bubble == pytest.approx(4 / 12)
    assert away.origins == (SourceKind.MEASURED,)


def test_a_card_that_stays_is_paid_for_even_where_it_does_nothing() -> None:
    home = simulate(table(), Mode.GPU, card_stays=True)
    assert home.cards == 1 and home.line.energy_j == pytest.approx(6400 + 10 * 30)


def test_what_nobody_knows_is_not_0() -> None:
    known = table()
    rows = {**known.rows, Stage.REWARD: dataclasses.replace(known.rows[Stage.REWARD], card_w=None)}
    away = simulate(dataclasses.replace(known, rows=rows), Mode.LATE, grid=GRID)
    assert away.line.energy_j is None and away.g is None and away.line.provenance is Provenance.MISSING
    assert away.to_dict()["j_per_token"] is None and away.line.step_s == 10
    no_idle = dataclasses.replace(known, gpu_idle_w=None)
    assert simulate(no_idle, Mode.GPU).line.energy_j == 6400  # nothing waits, so nothing is unknown
    assert simulate(no_idle, Mode.SEQUENTIAL).line.wasted_j is None
    assert simulate(known, Mode.GPU).g is None  # nobody said what a kWh emits


def test_figures_say_what_they_rest_on() -> None:
    assert least_sure([SourceKind.MEASURED, SourceKind.PUBLISHED]) is SourceKind.PUBLISHED
    assert sure_first([SourceKind.ASSUMED, SourceKind.MEASURED, SourceKind.ASSUMED]) == (
        SourceKind.MEASURED,
        SourceKind.ASSUMED,
    )
    twice = measured(2).times(3, "three times", SourceKind.ASSUMED)
    assert (twice.value, twice.kind, twice.source) == (6, SourceKind.ASSUMED, "timers, three times")
    assert simulate(published().slowed(1), Mode.LATE).origins == (SourceKind.PUBLISHED, SourceKind.ASSUMED)
    with pytest.raises(ConfigError, match="finite and not negative"):
        SourcedNumber(value=-1, unit="s", kind=SourceKind.MEASURED, source="x")


# -- what physics allows -----------------------------------------------------------------------------------------------


def test_the_caps_of_the_published_split() -> None:
    found = {cap.passes: cap.speedup for cap in caps(published())}
    assert found[(Stage.REWARD, Stage.REFERENCE)] == pytest.approx(1.19, abs=0.001)
    assert found[(Stage.CRITIC, Stage.REFERENCE, Stage.REWARD)] == pytest.approx(1 / 0.79)
    assert len(found) == 3 and len(caps(table())) == 2  # without a critic, two of them are the same


# -- break-even --------------------------------------------------------------------------------------------------------


def test_a_card_is_paid_for_when_its_grams_are_saved() -> None:
    home, away = simulate(table(), Mode.GPU, grid=GRID), simulate(table(), Mode.OFF_POLICY, grid=GRID)
    saved_j = 6400 - (2 * 2800 + 4 * 60 + 4 * 30)
    found = break_even(home, away, CARD)
    assert found is not None and found.saved_g_per_step == pytest.approx(saved_j * 0.125e-3)
    assert found.steps == (18182.0, 36364.0, 72728.0)  # 1, 2 and 4 kg over 0.055 g, and a step of 8 s
    assert found.hours == pytest.approx([steps * 8 / 3600 for steps in found.steps])


def test_a_card_that_saves_nothing_is_never_paid_for_and_unknown_stays_unknown() -> None:
    home, away = simulate(table(), Mode.GPU, grid=GRID), simulate(table(card=(9, 9)), Mode.LATE, grid=GRID)
    never = break_even(home, away, CARD)
    assert never is not None and never.saved_g_per_step < 0 and never.steps is None and never.hours is None
    assert never.to_dict()["never"] is True
    assert break_even(simulate(table(), Mode.GPU), away, CARD) is None
    clean = dataclasses.replace(GRID, g_per_kwh=0.0)
    nothing = break_even(simulate(table(), Mode.GPU, grid=clean), simulate(table(), Mode.LATE, grid=clean), CARD)
    assert nothing is not None and nothing.hours is None


def test_embodied_carbon_is_given_or_in_the_table_of_devices_or_unknown() -> None:
    card = footprint("U55C")
    assert card is not None and (card.low_kg, card.high_kg) == (45.0, 70.0) and "no LCA" in card.source
    assert footprint("V80") is None
    mine = footprint("V80", [100.0])
    assert mine is not None and mine.low_kg == mine.high_kg == 100 and mine.source == "given by the user"
    for wrong in ([1.0, 2.0], [3.0, 2.0, 1.0], [-1.0]):
        with pytest.raises(ConfigError, match="embodied"):
            footprint("V80", wrong)


# -- ablation and sensitivity ------------------------------------------------------------------------------------------


def test_the_ablation_ends_with_what_a_scheduler_chooses() -> None:
    rows = waterfall(table(card=(1, 1)))
    assert [row.name for row in rows] == [*(name for name, _ in STEPS), f"{ADAPTIVE}, parts: 2", SCHEDULER]
    assert [row.outcome.line.step_s for row in rows[:4]] == [10, 10, 10, 9]
    assert rows[-1].outcome.line.energy_j == min(row.outcome.line.energy_j or 0 for row in rows)
    assert rows[-1].outcome.line.step_s == pytest.approx(8.0)  # the last eighth of both passes behind the first forward


def test_an_adaptive_batch_is_as_large_as_hides_as_much() -> None:
    short = waterfall(table(card=(0.1, 0.1)))[-2]  # 0.1 s of passes are as well hidden in halves as in eighths
    whole = simulate(table(card=(0.1, 0.1)), Mode.STREAM_LATE, Setting(chunks=8)).line
    assert short.name == f"{ADAPTIVE}, parts: 1" and short.outcome.line.energy_j == pytest.approx(whole.energy_j)
    slow = dataclasses.replace(table(card=(2, 2)), sequences=1000)
    least = min(simulate(slow, Mode.STREAM_LATE, Setting(chunks=2**i)).line.energy_j or 0 for i in range(7))
    assert waterfall(slow)[-2].outcome.line.energy_j == least


def test_a_scheduler_leaves_the_gpus_alone_where_the_card_is_too_slow() -> None:
    last = waterfall(table(card=(50, 50)))[-1].outcome
    assert set(last.plan.values()) == {Where.GPU} and last.line.energy_j == 6400


def test_a_scheduler_without_joules_goes_by_time() -> None:
    dark = dataclasses.replace(table(card=(1, 1)), card_idle_w=None)
    assert waterfall(dark)[-1].outcome.line.step_s == pytest.approx(8.0)


def test_a_larger_reward_model_and_a_larger_batch() -> None:
    twice = reward_sized(table(), 2)
    assert twice.rows[Stage.REWARD].gpu_s.value == 2 and twice.step_s == 11
    card_s = twice.rows[Stage.REWARD].card_s
    assert card_s is not None and (card_s.value, card_s.kind) == (4, SourceKind.ASSUMED)
    wide = batch_sized(table(), 2)
    assert (wide.step_s, wide.tokens, wide.sequences) == (20, 2000, 20)
    for mode in Mode:
        assert simulate(wide, mode).speedup == pytest.approx(simulate(table(), mode).speedup)
    with pytest.raises(ConfigError, match="size of the reward model is 0"):
        reward_sized(table(), 0)


def test_a_cleaner_grid_puts_the_break_even_off() -> None:
    found = over_grids(table(), [100, 200], Mode.OFF_POLICY, Setting(), GRID, CARD)
    hours = [each.paid.hours[0] for each in found if each.paid is not None and each.paid.hours is not None]
    assert hours[0] == pytest.approx(2 * hours[1], rel=1e-3)
    assert found[0].home.line == found[1].home.line
    assert point("x", table(), Mode.LATE, Setting(), GRID, None).paid is None


# -- many steps --------------------------------------------------------------------------------------------------------


def test_on_policy_steps_do_not_overlap() -> None:
    assert step_ends(table(), Mode.LATE, 3) == pytest.approx([10, 20, 30])


@pytest.mark.parametrize(
    ("card", "ends"),
    [
        ((1, 1), [4 + 4 + 4, 20, 28, 32]),  # the GPUs never wait: 8 s a step, and no generation in the last
        ((5, 5), [4 + 10 + 4, 28, 38, 48]),  # the card never waits: 10 s a step
    ],
)
def test_an_off_policy_pipeline_fills_and_drains(card: tuple[float, float], ends: list[float]) -> None:
    found = step_ends(table(card=card), Mode.OFF_POLICY, 4)
    assert found == pytest.approx(ends)
    many = step_ends(table(card=card), Mode.OFF_POLICY, 1000)
    steady_s = simulate(table(card=card), Mode.OFF_POLICY).line.step_s
    assert many[-1] / 1000 == pytest.approx(steady_s, rel=0.01)
    assert many[500] - many[499] == pytest.approx(steady_s)


def test_steps_are_at_least_one() -> None:
    with pytest.raises(ConfigError, match="0 steps"):
        step_ends(table(), Mode.LATE, 0)


# -- many GPUs ---------------------------------------------------------------------------------------------------------

LINK = GpuLink(gradient_bytes=1e9, bytes_per_s=2e9, latency_s=0.01, serial_s=0.5)


def test_a_step_on_more_gpus_by_hand() -> None:
    # 2 GPUs: all-reduce 2 * 1/2 * 0.5 + 2 * 0.01 = 0.52 s; divisible 10 - 0.52 - 0.5 = 8.98 s
    assert LINK.all_reduce_s(1) == 0 and LINK.all_reduce_s(2) == pytest.approx(0.52)
    two, eight = scale(table(), [2, 8], LINK, Mode.SEQUENTIAL)
    assert two.home.line.step_s == 10 and two.efficiency == 1
    expected_s = 8.98 / 4 + 0.5 + (2 * 7 / 8 * 0.5 + 14 * 0.01)
    assert eight.home.line.step_s == pytest.approx(expected_s)
    assert eight.efficiency == pytest.approx(10 / expected_s / 4)
    assert eight.away.line.step_s == pytest.approx(expected_s - 2 / 4 + 4)  # the card does not grow with the GPUs


def test_more_gpus_keep_the_forward_passes_joules() -> None:
    eight = scaled(table(), 8, LINK)
    train_s = eight.rows[Stage.TRAIN].gpu_s.value
    assert train_s * eight.forward_share.value == pytest.approx(4 * 0.5 / 4)
    assert eight.gpus == 8 and eight.rows[Stage.TRAIN].gpu_s.kind is SourceKind.MODELLED
    assert scaled(table(), 2, LINK) == table()


def test_gradients_that_take_longer_than_training_are_wrong() -> None:
    slow = dataclasses.replace(LINK, bytes_per_s=1e8)
    with pytest.raises(ConfigError, match="training there takes 4 s: give fewer bytes"):
        scale(table(), [8], slow, Mode.LATE)
    with pytest.raises(ConfigError, match="bytes_per_s is 0"):
        dataclasses.replace(LINK, bytes_per_s=0)
