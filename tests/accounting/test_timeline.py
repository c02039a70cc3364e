"""Phases nest and overlap; the exclusive ones sum to the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.accounting.timeline import MAX_OPEN, Mark, Slice, Timeline


def _seconds(cut: Slice) -> dict[str, float]:
    out: dict[str, float] = {}
    for i, seconds in zip(cut.phase, np.diff(cut.bounds_s), strict=True):
        out[cut.names[i]] = out.get(cut.names[i], 0.0) + float(seconds)
    return {k: v for k, v in out.items() if v > 0}


def test_nested_phases() -> None:
    timeline = Timeline(0.0)
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
    timeline = Timeline(0.0)
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
    timeline = Timeline(0.0)
    timeline.add([Mark(1.0, "begin", "eval", 1), Mark(9.0, "end", "eval", 1), Mark(9.5, "step", tokens=7)])
    first, second = timeline.cut(4.0), timeline.cut(10.0)
    assert _seconds(first) == {"other": 1.0, "eval": 3.0}
    assert _seconds(second) == {"eval": 5.0, "other": 1.0}
    assert [mark.tokens for mark in second.steps] == [7]
    assert first.steps == []


def test_an_end_without_begin_and_a_late_mark_change_nothing() -> None:
    timeline = Timeline(0.0)
    timeline.add([Mark(1.0, "end", "forward", 3)])
    assert _seconds(timeline.cut(2.0)) == {"other": 2.0}
    timeline.add([Mark(1.5, "begin", "data", 4), Mark(3.0, "end", "data", 4)])
    assert _seconds(timeline.cut(4.0)) == {"data": 1.0, "other": 1.0}


def test_forgotten_ends_do_not_grow_without_bound() -> None:
    timeline = Timeline(0.0)
    timeline.add(Mark(i * 1e-3, "begin", f"p{i}", i + 1) for i in range(1000))
    cut = timeline.cut(2.0)
    assert len(timeline._stack) == MAX_OPEN
    assert sum(_seconds(cut).values()) == pytest.approx(2.0)


_marks = st.lists(
    st.tuples(st.floats(0, 10), st.sampled_from(["begin", "end", "step"]), st.sampled_from("abc")), max_size=60
)


@given(_marks, st.lists(st.floats(0, 10), max_size=5))
def test_exclusive_seconds_always_sum_to_the_whole(marks: list[tuple[float, str, str]], cuts: list[float]) -> None:
    timeline = Timeline(0.0)
    timeline.add(Mark(*mark) for mark in sorted(marks))
    total = 0.0
    for t_s in [*sorted(cuts), 10.0]:
        cut = timeline.cut(t_s)
        assert np.all(np.diff(cut.bounds_s) >= 0)
        for name, start_s, end_s in cut.open_s:
            assert cut.bounds_s[0] <= start_s < end_s <= cut.bounds_s[-1], name
        total += sum(_seconds(cut).values())
    assert total == pytest.approx(10.0)
