"""Readings become rarer while power is flat, and come back at once when it moves."""

import pytest

from greentrain.power.sampler import LOOK_EVERY, Pace


def _strides(powers_w: list[float], *, tick_s: float = 0.1) -> list[int]:
    """Read a counter whose power in each tick is given, at the pace it asks for."""
    pace, strides, tick = Pace(tick_s), [], 0
    while tick < len(powers_w):
        strides.append(pace.after(10 + tick * tick_s, sum(powers_w[: tick + 1]) * tick_s, 1))
        tick += strides[-1]
    return strides


def test_flat_power_is_read_every_third_tick_but_for_a_look_now_and_then() -> None:
    strides = _strides([300.0] * 300)
    assert strides[:22] == [1, 1, 1, *[2] * 8, 1, *[3] * 9, 1], "rarer by and by"
    assert set(strides[20:]) == {1, 3}
    assert strides[20:].count(1) <= len(strides) / LOOK_EVERY + 1


def test_moving_power_is_read_at_every_tick() -> None:
    assert set(_strides([100.0 + 40 * (i % 7) for i in range(100)])) == {1}


@pytest.mark.parametrize(("other_w", "flat"), [(102.0, True), (98.0, True), (104.0, False), (96.0, False)])
def test_a_change_of_a_few_percent_is_flat(other_w: float, flat: bool) -> None:
    pace = Pace(0.1)
    for i in range(15):
        pace.after(0.1 * i, 10.0 * i, 1)
    assert (pace.after(1.5, 140.0 + 0.1 * other_w, 1) > 1) is flat


def test_a_period_of_three_ticks_does_not_hide_for_long() -> None:
    strides = _strides([300.0] * 60 + [100.0, 300.0, 500.0] * 60)
    assert strides[-60:].count(1) > 30


def test_what_does_not_tick_has_no_pace() -> None:
    pace = Pace(0.1)
    assert {pace.after(float(i), 0.0, 0) for i in range(20)} == {1}


def test_a_device_that_comes_or_goes_starts_over() -> None:
    pace = Pace(0.1)
    for i in range(6):
        pace.after(i * 0.1, 60.0 * i, 2)
    assert pace.after(0.7, 210.0, 1) == 1


def test_a_device_that_comes_unused_starts_over_although_power_looks_the_same() -> None:
    pace = Pace(0.1)
    assert [pace.after(0.1 * i, 60.0 * i, 1) for i in range(15)][-1] == 3
    assert pace.after(1.5, 60.0 * 15, 2) == 1
