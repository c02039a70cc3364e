"""Step times of every mode, worked out by hand, and what holds for all tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Hardware, Stage
from greentrain.simulator.pipeline.bounds import published
from greentrain.simulator.pipeline.simulate import ON_POLICY, Mode, Setting, amdahl, simulate
from greentrain.simulator.pipeline.table import PipelineTable
from tests.simulator.pipeline.tables import table

ON_PAPER = {
    (1, Mode.SEQUENTIAL): (1.09, 1.00, 0.86, 0.68, 0.41),
    (1, Mode.PARALLEL): (1.15, 1.05, 0.90, 0.70, 0.42),
    (1, Mode.LATE): (1.19, 1.15, 1.05, 0.88, 0.49),
    (1, Mode.LATE_ALL): (1.19, 1.16, 1.05, 0.88, 0.49),
    (1, Mode.STREAM): (1.19, 1.19, 1.19, 0.95, 0.50),
    (1, Mode.STREAM_LATE): (1.19, 1.19, 1.19, 0.96, 0.50),
    (1, Mode.OFF_POLICY): (1.19, 1.19, 1.19, 1.19, 0.62),
    (2, Mode.LATE): (1.19, 1.15, 1.05, 0.90, 0.63),
    (2, Mode.STREAM): (1.19, 1.19, 1.19, 1.19, 0.82),
    (2, Mode.OFF_POLICY): (1.19, 1.19, 1.19, 1.19, 1.19),
}
"""Speed-ups of the published split, worked out on paper, of cards 0.5, 1, 2, 4 and 10 times as slow as the GPUs."""


@pytest.mark.parametrize(("cards", "mode"), ON_PAPER)
def test_the_published_split_comes_to_what_was_worked_out_on_paper(cards: int, mode: Mode) -> None:
    setting = Setting(cards=cards)
    found = [simulate(published().slowed(x), mode, setting).speedup for x in (0.5, 1, 2, 4, 10)]
    assert found == pytest.approx(ON_PAPER[cards, mode], abs=0.0051)


@pytest.mark.parametrize(
    ("mode", "cards", "step_s"),
    [
        (Mode.GPU, 1, 10.0),
        (Mode.SEQUENTIAL, 1, 12.0),  # 4 + 2 + 2 + 4
        (Mode.PARALLEL, 1, 12.0),  # nothing to do between generation and advantages
        (Mode.PARALLEL, 2, 10.0),  # both by 6, then 4 of training
        (Mode.LATE, 1, 10.0),  # reward by 6, forward by 7, first half of the reference by 7: no wait
        (Mode.LATE_ALL, 1, 10.0),  # forward by 5, reward by 6, the reference's halves by 7 and 8: 7, 8, 9, 9, 10
        (Mode.STREAM, 1, 9.0),  # a quarter of the rollouts at 1, 2, 3 and 4, a second each for both passes: there at 5
        (Mode.OFF_POLICY, 1, 8.0),  # 4 + 4 on the GPUs, 4 on the card
    ],
)
def test_a_small_step_by_hand(mode: Mode, cards: int, step_s: float) -> None:
    assert simulate(table(), mode, Setting(cards=cards, chunks=4)).line.step_s == pytest.approx(step_s)


def test_a_slow_reference_holds_up_each_micro_batch_in_turn() -> None:
    # reward by 5, the reference's halves by 9 and 13; forward by 6, wait to 9, backward, forward by 11, wait to 13
    found = simulate(table(card=(1, 8)), Mode.LATE)
    assert found.line.step_s == pytest.approx(14.0)
    assert found.line.waits_s[Stage.REWARD] == pytest.approx(1.0)
    assert found.line.waits_s[Stage.REFERENCE] == pytest.approx(5.0)


def test_a_reference_in_the_reward_is_needed_before_the_advantages() -> None:
    late = simulate(table(), Mode.LATE, Setting(kl_in_reward=True))
    assert late.line.step_s == simulate(table(), Mode.PARALLEL).line.step_s == pytest.approx(12.0)


def test_cards_beyond_the_passes_share_each_pass() -> None:
    four = simulate(table(card=(8, 8)), Mode.PARALLEL, Setting(cards=4))
    assert four.line.step_s == pytest.approx(4 + 4 + 4)
    assert four.line.stage_j[Stage.REWARD, Hardware.OFFLOAD] == pytest.approx(8 * 60)
    assert four.line.idle_j[Hardware.OFFLOAD] == pytest.approx(30 * (4 * 12 - 16))
    with pytest.raises(ConfigError, match="3 cards for 2 passes: give at most 2, or a multiple of 2"):
        simulate(table(), Mode.LATE, Setting(cards=3))
    with pytest.raises(ConfigError, match="0 cards"):
        simulate(table(), Mode.LATE, Setting(cards=0))


seconds = st.floats(0.01, 100)
tables = st.builds(
    table,
    generate=seconds,
    reward=seconds,
    reference=seconds,
    train=seconds,
    card=st.tuples(seconds, seconds),
    micro_batches=st.integers(1, 9),
    forward=st.floats(0, 1),
    gpus=st.integers(1, 8),
)
settings = st.builds(Setting, cards=st.sampled_from([1, 2, 4]), chunks=st.integers(1, 9), kl_in_reward=st.booleans())


@given(tables, settings)
def test_no_mode_is_slower_than_sequential_on_the_same_cards_or_faster_than_amdahl(
    given_table: PipelineTable, setting: Setting
) -> None:
    sequential = simulate(given_table, Mode.SEQUENTIAL, setting)
    cap = amdahl(given_table, [Stage.REWARD, Stage.REFERENCE])
    for mode in Mode:
        found = simulate(given_table, mode, setting)
        assert found.speedup <= found.cap * (1 + 1e-9) <= cap * (1 + 2e-9)
        assert -1e-12 <= found.line.bubble <= 1
        if mode is not Mode.GPU:
            assert found.line.step_s <= sequential.line.step_s * (1 + 1e-9)


@given(tables, settings)
def test_joules_are_those_of_work_and_of_waiting_and_time_is_either(
    given_table: PipelineTable, setting: Setting
) -> None:
    for mode in Mode:
        found = simulate(given_table, mode, setting)
        line = found.line
        away = [Stage.REWARD, Stage.REFERENCE] if mode is not Mode.GPU else []
        rows = {stage: row for stage, row in given_table.rows.items() if stage not in away}
        busy_s = sum(row.gpu_s.value for row in rows.values())
        expected = sum(row.gpu_s.value * row.gpu_w.value for row in rows.values() if row.gpu_w is not None)
        expected = given_table.gpus * (expected + 50 * (line.step_s - busy_s))
        if away:
            card_s = sum(row.card_s.value for row in given_table.rows.values() if row.card_s is not None)
            expected += 60 * card_s + 30 * (setting.cards * line.step_s - card_s)
        assert line.energy_j == pytest.approx(expected, rel=1e-9)
        assert (line.useful_j or 0.0) + (line.wasted_j or 0.0) == pytest.approx(line.energy_j)
        assert line.busy_s[Hardware.GPU] + line.idle_s[Hardware.GPU] == pytest.approx(line.step_s)


@given(tables, settings, st.floats(1, 10))
def test_a_slower_card_never_makes_a_faster_step(given_table: PipelineTable, setting: Setting, factor: float) -> None:
    for mode in (*ON_POLICY, Mode.OFF_POLICY):
        fast = simulate(given_table.slowed(1.0), mode, setting).line.step_s
        assert simulate(given_table.slowed(factor), mode, setting).line.step_s >= fast * (1 - 1e-9)


@given(tables, settings)
def test_passes_in_no_time_reach_the_cap(given_table: PipelineTable, setting: Setting) -> None:
    found = simulate(given_table.slowed(1e-12), Mode.SEQUENTIAL, setting)
    assert found.speedup == pytest.approx(found.cap, rel=1e-6)
