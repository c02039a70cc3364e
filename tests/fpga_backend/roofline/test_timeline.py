"""Batches in virtual time."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from greentrain.fpga_backend.roofline.latency import CardService
from tests.fpga_backend.roofline.timeline import Timeline


def _service(in_s: float, engine_s: float, out_s: float) -> CardService:
    parts = {"launch": 0.0, "pcie": in_s + out_s, "compute": engine_s, "memory": 0.0, "power": 0.0}
    return CardService(
        tokens=1,
        in_s=in_s,
        engine_s=engine_s,
        out_s=out_s,
        energy_j=1.0,
        parts_s=parts,
        parts_j={},
        assumed_j=0.0,
        bound="compute",
    )


def test_copies_hide_behind_the_engine() -> None:
    line = Timeline(8)
    slots = [line.submit(0.0, _service(1.0, 4.0, 2.0)) for _ in range(3)]
    # in 0-1, 1-2, and 5-6 when the first buffer is free; engine 1-5, 5-9, 9-13; out 5-7, 9-11, 13-15
    assert [slot.start_s for slot in slots] == [0.0, 1.0, 5.0]
    assert [slot.end_s for slot in slots] == [7.0, 11.0, 15.0]


def test_a_slow_link_sets_the_pace() -> None:
    line = Timeline(8)
    ends = [line.submit(0.0, _service(4.0, 1.0, 0.5)).end_s for _ in range(3)]
    assert ends == [5.5, 9.5, 13.5]


def test_a_full_queue_holds_the_caller() -> None:
    line = Timeline(1)
    slots = [line.submit(0.0, _service(1.0, 10.0, 0.0)) for _ in range(4)]
    # the second waits from 0 to 1; the third is queued when the second begins, and so on
    assert [slot.queued_s for slot in slots] == [0.0, 0.0, 1.0, 11.0]
    assert [slot.start_s for slot in slots] == [0.0, 1.0, 11.0, 21.0]


def test_time_goes_forward() -> None:
    line = Timeline(2)
    line.submit(5.0, _service(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="forward"):
        line.submit(4.0, _service(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="at least 1"):
        Timeline(0)


SECONDS = st.floats(0.0, 10.0)


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=12), st.integers(1, 4))
def test_no_batch_is_faster_than_alone_or_overtakes(jobs: list[tuple[float, float, float, float]], depth: int) -> None:
    line = Timeline(depth)
    now_s = last_s = engine_s = 0.0
    starts: list[float] = []
    for after_s, in_s, busy_s, out_s in jobs:
        now_s += after_s
        slot = line.submit(now_s, _service(in_s, busy_s, out_s))
        engine_s += busy_s
        assert now_s <= slot.queued_s <= slot.start_s
        assert slot.end_s >= slot.start_s + in_s + busy_s + out_s - 1e-9
        assert slot.end_s >= last_s
        assert slot.end_s >= engine_s - 1e-9
        last_s = slot.end_s
        starts.append(slot.start_s)
        waiting = sum(start > slot.queued_s for start in starts)
        assert waiting <= depth
