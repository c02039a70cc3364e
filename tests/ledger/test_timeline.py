"""Phases nest and overlap; the exclusive ones sum to the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.ledger.bookkeeper import MAX_OPEN, Mark, PhaseSlice, PhaseTimeline


def _seconds(cut: PhaseSlice) -> dict[str, float]:
    out: dict[str, float] = {}
    for i, seconds in zip(cut.phase, np.diff(cut.bounds_s), strict=True):
        out[cut.names[i]] = out.get(cut.names[i], 0.0) + float(seconds)
    return {k: v for k, v in out.items() if v > 0}


def test_nested_phases() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add(
        [
            Mark(1.0, "begin", "forward", 1),
            Mark(2.0, "begin", "attention", 2),
            Mark(3.0, "end", "attention", 2),
            Mark(5.0, "end", "forward", 1),
        ]
    )
    cut = timeline.cut(6.0)
    assert _seconds(cut) == {"other": 2.0, "forward": 3.0, "attention": 1.0}
    assert sorted(cut.open_s) == [("attention", 2.0, 3.0), ("forward", 1.0, 5.0)]


def test_overlapping_phases_give_the_instant_to_the_last_entered() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add(
        [
            Mark(0.0, "begin", "generate", 1),
            Mark(2.0, "begin", "reward", 2),
            Mark(3.0, "end", "generate", 1),
            Mark(5.0, "end", "reward", 2),
        ]
    )
    assert _seconds(timeline.cut(5.0)) == {"generate": 2.0, "reward": 3.0}


def test_a_phase_over_two_slices_is_continued() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add([Mark(1.0, "begin", "eval", 1), Mark(9.0, "end", "eval", 1), Mark(9.5, "step", tokens=7)])
    first, second = timeline.cut(4.0), timeline.cut(10.0)
    assert _seconds(first) == {"other": 1.0, "eval": 3.0}
    assert _seconds(second) == {"eval": 5.0, "other": 1.0}
    assert [mark.tokens for mark in second.steps] == [7]
    assert first.steps == []


def test_an_end_without_begin_and_a_late_mark_change_nothing() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add([Mark(1.0, "end", "forward", 3)])
    assert _seconds(timeline.cut(2.0)) == {"other": 2.0}
    timeline.add([Mark(1.5, "begin", "data", 4), Mark(3.0, "end", "data", 4)])
    assert _seconds(timeline.cut(4.0)) == {"data": 1.0, "other": 1.0}


def test_marks_that_come_out_of_order_are_sorted_by_time() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add([Mark(3.0, "end", "data", 1), Mark(2.5, "step", tokens=2), Mark(1.0, "begin", "data", 1)])
    timeline.add([Mark(2.0, "step", tokens=1)])
    cut = timeline.cut(4.0)
    assert _seconds(cut) == {"other": 2.0, "data": 2.0}
    assert [mark.tokens for mark in cut.steps] == [1, 2]


def test_an_end_closes_the_phase_of_its_token_or_else_the_last_one() -> None:
    timeline = PhaseTimeline(0.0)
    begun = [Mark(1.0, "begin", "eval", 1), Mark(2.0, "begin", "forward", 2), Mark(3.0, "begin", "eval", 3)]
    timeline.add([*begun, Mark(5.0, "end", "eval", 1), Mark(7.0, "end", "eval", 3), Mark(8.0, "end", "forward", 9)])
    cut = timeline.cut(10.0)
    # Token 1 closes the outer one, so the inner one goes on to 7; no phase has token 9, so forward stays open.
    assert _seconds(cut) == {"other": 1.0, "eval": 1.0 + 4.0, "forward": 1.0 + 3.0}
    assert sorted(cut.open_s) == [("eval", 1.0, 7.0), ("forward", 2.0, 10.0)]
    untold = PhaseTimeline(0.0)
    untold.add([*begun, Mark(5.0, "end", "eval")])
    assert _seconds(untold.cut(6.0)) == {"other": 1.0, "eval": 1.0 + 2.0, "forward": 1.0 + 1.0}


def test_forgotten_ends_do_not_grow_without_bound() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add(Mark(i * 1e-3, "begin", f"p{i}", i + 1) for i in range(1000))
    cut = timeline.cut(2.0)
    assert len(timeline._stack) == MAX_OPEN
    assert sum(_seconds(cut).values()) == pytest.approx(2.0)


def _gear_seconds(cut: PhaseSlice) -> dict[str, float]:
    seconds = np.bincount(cut.gear, weights=np.diff(cut.bounds_s), minlength=len(cut.gears))
    return {name: float(s) for name, s in zip(cut.gears, seconds, strict=True) if s > 0}


def test_gears_label_the_same_time_as_phases() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add(
        [
            Mark(1.0, "gear", "bf16"),
            Mark(2.0, "begin", "forward", 1),
            Mark(3.0, "gear", "fp8"),
            Mark(4.0, "end", "forward", 1),
            Mark(5.0, "gear", "fp8"),
        ]
    )
    cut = timeline.cut(6.0)
    assert _gear_seconds(cut) == {"": 1.0, "bf16": 2.0, "fp8": 3.0}
    assert _seconds(cut) == {"other": 4.0, "forward": 2.0}
    assert len(cut.phase) == len(cut.gear) == 5, "the same gear again is no new segment"


def test_a_gear_goes_on_in_the_next_slice_and_may_come_back() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add([Mark(0.0, "gear", "bf16"), Mark(5.0, "gear", "fp8"), Mark(7.0, "gear", "bf16")])
    assert [_gear_seconds(timeline.cut(t_s)) for t_s in (4.0, 6.0, 10.0)] == [
        {"bf16": 4.0},
        {"bf16": 1.0, "fp8": 1.0},
        {"bf16": 3.0, "fp8": 1.0},
    ]


def test_a_step_belongs_to_the_gear_it_ended_in() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add([Mark(0.5, "step", tokens=1), Mark(1.0, "gear", "bf16"), Mark(2.0, "step", tokens=2)])
    timeline.add([Mark(2.0, "gear", "fp8"), Mark(2.0, "count", tokens=4), Mark(3.0, "step", tokens=8)])
    cut = timeline.cut(4.0)
    assert [(mark.tokens, cut.gears[gear]) for mark, gear in zip(cut.steps, cut.step_gear, strict=True)] == [
        (1, ""),
        (2, "bf16"),
        (4, "fp8"),
        (8, "fp8"),
    ]


def test_without_marks_there_is_no_gear() -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add([Mark(1.0, "begin", "forward", 1), Mark(1.0, "step")])
    cut = timeline.cut(2.0)
    assert (cut.gears, cut.step_gear, cut.gear.tolist()) == (("",), [0], [0, 0])


_marks = st.lists(
    st.tuples(st.floats(0, 10), st.sampled_from(["begin", "end", "step", "gear"]), st.sampled_from("abc")), max_size=60
)


@given(_marks, st.lists(st.floats(0, 10), max_size=5))
def test_exclusive_seconds_always_sum_to_the_whole(marks: list[tuple[float, str, str]], cuts: list[float]) -> None:
    timeline = PhaseTimeline(0.0)
    timeline.add(Mark(*mark) for mark in sorted(marks))
    total = in_gears = 0.0
    for t_s in [*sorted(cuts), 10.0]:
        cut = timeline.cut(t_s)
        assert np.all(np.diff(cut.bounds_s) >= 0)
        for name, start_s, end_s in cut.open_s:
            assert cut.bounds_s[0] <= start_s < end_s <= cut.bounds_s[-1], name
        assert len(cut.gear) == len(cut.phase) and len(cut.step_gear) == len(cut.steps)
        total += sum(_seconds(cut).values())
        in_gears += sum(_gear_seconds(cut).values())
    assert total == pytest.approx(10.0)
    assert in_gears == pytest.approx(10.0)
