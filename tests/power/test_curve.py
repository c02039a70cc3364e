"""The energy curve: exact on what it knows, labelled on what it does not."""

import dataclasses
import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.power.sampler import CAPACITY, EnergyCurve
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor

GPU = Device(uid="GPU-1", kind=DeviceKind.GPU, name="Fake GPU")


def _curve(
    t0_s: float = 0.0, period_s: float = 0.1, averaging_s: float = 0.0
) -> tuple[EnergyCurve, list[tuple[str, str]]]:
    events: list[tuple[str, str]] = []
    sensor = Sensor(
        device=GPU, provenance=Provenance.MEASURED, method="test", period_s=period_s, averaging_s=averaging_s
    )
    return EnergyCurve(sensor, t0_s, lambda name, text: events.append((name, text))), events


def _counter(curve: EnergyCurve, *points: tuple[float, float]) -> None:
    for t_s, energy_j in points:
        curve.append(PowerSample(device_uid="GPU-1", t_s=t_s, energy_j=energy_j))


def _power(curve: EnergyCurve, *points: tuple[float, float]) -> None:
    for t_s, power_w in points:
        curve.append(PowerSample(device_uid="GPU-1", t_s=t_s, power_w=power_w))


def test_counter_differences_are_interpolated() -> None:
    curve, _ = _curve()
    _counter(curve, (0.0, 1000.0), (1.0, 1100.0), (2.0, 1400.0))
    assert curve.between(0.5, 1.5) == pytest.approx((50 + 150, 0.0))
    assert curve.between(0.0, 2.0) == pytest.approx((400, 0.0))


def test_two_power_samples_one_second_apart_are_a_trapezoid() -> None:
    curve, _ = _curve()
    _power(curve, (0.0, 100.0), (1.0, 100.0), (2.0, 300.0))
    assert curve.between(0.0, 1.0) == pytest.approx((100, 0.0))
    assert curve.between(1.0, 2.0) == pytest.approx((200, 0.0))


def test_a_constant_power_that_is_read_late_still_counts_from_the_start() -> None:
    curve, _ = _curve(t0_s=10.0)
    _power(curve, (10.4, 300.0), (10.8, 300.0))
    assert curve.between(10.0, 10.8)[0] == pytest.approx(240)


@pytest.mark.parametrize(("late_s", "missing_s"), [(0.003, 0.0), (0.9, 0.0), (1.1, 1.1)])
def test_a_counter_that_is_first_read_late_counts_from_the_start_or_says_so(late_s: float, missing_s: float) -> None:
    curve, _ = _curve(t0_s=10.0)
    _counter(curve, *((10.0 + late_s + 0.5 * i, 5000.0 + 100.0 * i) for i in range(5)))
    whole_s = late_s + 2.0
    assert curve.between(10.0, 10.0 + whole_s) == pytest.approx((200.0 * (whole_s - missing_s), missing_s))


def test_a_running_average_is_dated_to_its_middle() -> None:
    curve, _ = _curve(averaging_s=1.0)
    truth_w = 500.0
    for i in range(60):
        t_s = i * 0.1
        _power(curve, (t_s, truth_w * min(max(t_s - 2.0, 0.0), 1.0)))  # a step at 2 s, seen through a 1 s mean
    curve.finish(5.9)
    assert curve.between(0.0, 5.9)[0] == pytest.approx(truth_w * 3.9, rel=0.02)


def test_a_counter_that_is_read_again_after_a_gap_delivers_it_late() -> None:
    curve, events = _curve()
    _counter(curve, (0.0, 0.0), (1.0, 100.0))
    curve.append(PowerSample(device_uid="GPU-1", t_s=2.0, note="GPU is lost"))
    curve.advance_missing(7.0)
    assert curve.between(0.0, 7.0) == pytest.approx((100, 6.0))
    _counter(curve, (8.0, 800.0))
    assert curve.between(0.0, 8.0) == pytest.approx((800, 0.0))
    assert [name for name, _ in events] == ["gap", "recovered"]
    assert "GPU is lost" in events[0][1]


def test_power_that_is_read_again_after_a_gap_leaves_the_gap_missing() -> None:
    curve, events = _curve()
    _power(curve, (0.0, 100.0), (1.0, 100.0), (9.0, 100.0), (10.0, 100.0))
    assert curve.between(0.0, 10.0) == pytest.approx((200, 8.0))
    assert events[0][0] == "gap"


def test_a_counter_that_runs_backwards_is_a_gap_and_never_negative() -> None:
    curve, events = _curve()
    _counter(curve, (0.0, 5000.0), (1.0, 5100.0), (2.0, 3.0), (3.0, 103.0))
    assert curve.between(0.0, 3.0) == pytest.approx((200, 1.0))
    assert "backwards" in events[0][1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -5.0, "300", [300.0]])
def test_impossible_power_is_a_gap(value: float) -> None:
    curve, events = _curve()
    _power(curve, (0.0, 100.0), (1.0, value), (2.0, 100.0))
    energy_j, missing_s = curve.between(0.0, 2.0)
    assert (energy_j, missing_s) == pytest.approx((0.0, 2.0))
    assert events[0][0] == "gap"


def test_a_clock_that_runs_backwards_drops_the_reading() -> None:
    curve, events = _curve()
    _counter(curve, (0.0, 0.0), (2.0, 200.0), (1.0, 150.0), (3.0, 300.0))
    assert curve.between(0.0, 3.0) == pytest.approx((300, 0.0))
    assert events[0][0] == "warning"


def test_finish_extends_a_ticking_counter_to_the_end() -> None:
    curve, _ = _curve()
    curve.use_tick(0.1, edge_s=0.0)
    for i in range(1, 31):
        t_s = i * 0.097
        _counter(curve, (t_s, 300.0 * 0.1 * math.floor(t_s / 0.1 + 1e-9)))
    curve.finish(2.95)
    assert curve.between(0.0, 2.95)[0] == pytest.approx(300 * 2.95, rel=0.01)


def test_an_idle_counter_does_not_hold_the_books_back() -> None:
    curve, _ = _curve()
    curve.use_tick(0.1, edge_s=0.0)
    for i in range(1, 60):
        _counter(curve, (i * 0.097, 7.0))
    assert curve.frontier_s > 4.0
    assert curve.between(0.5, 4.0) == pytest.approx((0.0, 0.0))


def _ticking(points: list[tuple[float, float]]) -> EnergyCurve:
    """Return the curve of a counter that ticks each 0.1 s and is read 10 ms after each tick."""
    curve, _ = _curve(t0_s=0.01)
    curve.use_tick(0.1, 0.0)
    _counter(curve, *((t_s + 0.01, energy_j) for t_s, energy_j in points))
    return curve


def _tick_energies(power_w: list[float]) -> list[tuple[float, float]]:
    """Return what a counter shows at each tick, of the mean power of each tick."""
    return [(round(0.1 * i, 6), 0.1 * sum(power_w[:i])) for i in range(len(power_w) + 1)]


def test_a_step_of_power_is_found_inside_its_tick() -> None:
    # 100 W up to 0.53 s, 300 W from then on: the tick from 0.5 to 0.6 s has a mean of 240 W.
    curve = _ticking(_tick_energies([100.0] * 5 + [240.0] + [300.0] * 4))
    assert curve.between(0.5, 0.53)[0] == pytest.approx(3.0)
    assert curve.between(0.53, 0.6)[0] == pytest.approx(21.0)
    assert curve.between(0.2, 0.9)[0] == pytest.approx(33.0 + 111.0)


def test_a_step_down_is_found_as_well() -> None:
    curve = _ticking(_tick_energies([300.0] * 5 + [160.0] + [100.0] * 4))  # down at 0.53 s
    assert curve.between(0.5, 0.53)[0] == pytest.approx(9.0)
    assert curve.between(0.53, 0.6)[0] == pytest.approx(7.0)


@pytest.mark.parametrize(
    "power_w",
    [
        pytest.param([100.0 + 20 * i for i in range(10)], id="a slope"),
        pytest.param([100.0, 100, 100, 150, 100, 100, 100, 100, 100, 100], id="a peak"),
        pytest.param([100.0, 160, 100, 160, 220, 260, 260, 200, 260, 200], id="noise"),
        pytest.param([100.0] * 5 + [300.0] * 5, id="a step on a tick"),
    ],
)
def test_what_is_no_step_inside_a_tick_stays_a_straight_line(power_w: list[float]) -> None:
    curve = _ticking(_tick_energies(power_w))
    for i in range(1, 9):
        assert curve.between(0.1 * i, 0.1 * i + 0.03)[0] == pytest.approx(0.03 * power_w[i])


def test_the_energy_at_every_tick_is_the_counters_own() -> None:
    ticks = _tick_energies([50.0, 50, 50, 120, 300, 300, 300, 90, 60, 60])
    curve = _ticking(ticks)
    for t_s, energy_j in ticks[1:-1]:
        assert curve.between(0.0, t_s)[0] == pytest.approx(energy_j)


@pytest.mark.parametrize(("period_s", "silent_s"), [(0.1, 0.19), (1.0, 1.9)])
def test_a_short_rest_at_the_end_is_extended_and_a_long_one_is_missing(period_s: float, silent_s: float) -> None:
    def curve() -> EnergyCurve:
        made, _ = _curve(period_s=period_s)
        _counter(made, *((period_s * i, 100.0 * period_s * i) for i in range(31)))
        return made

    end_s = 30 * period_s
    short, long = curve(), curve()
    short.finish(end_s + silent_s)
    assert short.between(end_s, end_s + silent_s) == pytest.approx((100 * silent_s, 0.0))
    long.finish(end_s + silent_s + 0.2)
    assert long.between(end_s, end_s + silent_s + 0.2) == pytest.approx((0.0, silent_s + 0.2))


@pytest.mark.parametrize(("period_s", "longest_s"), [(0.1, 2.0), (1.0, 5.0)])
def test_power_is_joined_over_five_periods_and_no_longer(period_s: float, longest_s: float) -> None:
    for silent_s, known in ((longest_s - 0.1, True), (longest_s + 0.1, False)):
        curve, events = _curve(period_s=period_s)
        _power(curve, (0.0, 100.0), (period_s, 100.0), (period_s + silent_s, 100.0))
        energy_j, missing_s = curve.between(period_s, period_s + silent_s)
        assert (energy_j, missing_s) == pytest.approx((100 * silent_s, 0.0) if known else (0.0, silent_s))
        assert bool(events) is not known


def test_what_is_missing_stays_missing_as_old_points_make_room() -> None:
    curve, _ = _curve()
    n = CAPACITY + 1000
    for i in range(n):
        if i % 100 == 0:
            curve.append(PowerSample("GPU-1", i * 0.1, note="lost"))
        else:
            _power(curve, (i * 0.1, 50.0))
    end_s = (n - 1) * 0.1
    # Of each 10 s the two tenths of a second around the lost reading are not known.
    assert curve.between(end_s - 600, end_s) == pytest.approx((50 * (600 - 60 * 0.2), 60 * 0.2), rel=1e-6)


def test_old_points_make_room_and_recent_windows_stay_right() -> None:
    curve, _ = _curve()
    n = CAPACITY + 1000
    _counter(curve, *((i * 0.1, i * 10.0) for i in range(n)))
    end_s = (n - 1) * 0.1
    assert curve.oldest_s > 0
    assert curve.between(end_s - 60, end_s)[0] == pytest.approx(6000, rel=1e-9)


@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1000.0)), min_size=3, max_size=40),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=10),
)
def test_parts_sum_to_the_whole_and_the_curve_is_monotone(steps: list[tuple[float, float]], cuts: list[float]) -> None:
    curve, _ = _curve()
    t_s = 0.0
    for dt_s, power_w in steps:
        t_s += dt_s
        _power(curve, (t_s, power_w))
    bounds = np.array([0.0, *sorted(cuts), 1.0]) * t_s
    energy, _ = curve.at(bounds)
    assert np.all(np.diff(energy) >= -1e-9)
    assert np.sum(np.diff(energy)) == pytest.approx(curve.between(0.0, t_s)[0], abs=1e-6)


@pytest.mark.parametrize("t_s", [math.nan, math.inf, 1e9, "now", None])
def test_a_reading_of_a_time_that_cannot_be_is_a_gap_and_the_next_one_counts(t_s: float) -> None:
    curve, events = _curve()
    for sample in (
        PowerSample("GPU-1", 0.0, 0.0),
        PowerSample("GPU-1", t_s, 100.0),
        PowerSample("GPU-1", 2.0, 200.0),
        PowerSample("GPU-1", 3.0, 300.0),
    ):
        curve.append(sample, now_s=3.0)
    assert [name for name, _ in events] == ["gap"]
    assert curve.frontier_s == 3.0
    assert curve.between(0.0, 3.0) == pytest.approx((300, 0.0))


def test_a_sensor_that_is_read_rarely_by_choice_has_no_gaps() -> None:
    curve, events = _curve(period_s=1.0)
    curve.pace_s = 10.0
    _power(curve, (0.0, 100.0), (10.0, 100.0), (20.5, 100.0))
    assert curve.between(0.0, 20.5) == pytest.approx((2050, 0.0))
    _power(curve, (41.0, 100.0))
    assert curve.between(20.5, 41.0) == pytest.approx((0.0, 20.5))
    assert [name for name, _ in events] == ["gap"]


def test_a_pace_that_becomes_quicker_makes_no_gap_of_the_reading_that_was_under_way() -> None:
    curve, events = _curve(period_s=0.1)
    curve.pace_s = 5.0
    _power(curve, (0.0, 100.0), (5.0, 100.0))
    curve.pace_s = 1.0
    _power(curve, (10.2, 100.0), (11.2, 100.0))
    assert not events and curve.between(0.0, 11.2) == pytest.approx((1120, 0.0))
    _power(curve, (16.4, 100.0))
    assert [name for name, _ in events] == ["gap"] and curve.between(11.2, 16.4) == pytest.approx((0.0, 5.2))


def test_a_counter_that_jumps_ahead_is_a_gap_but_what_a_gap_delivers_late_counts() -> None:
    curve, events = _curve()
    _counter(curve, (0.0, 0.0), (1.0, 300.0), (2.0, 5e8), (3.0, 5e8 + 300.0))
    assert curve.between(0.0, 3.0) == pytest.approx((600, 1.0))
    assert [name for name, _ in events] == ["gap"] and "jumped by 5e+08 J" in events[0][1]
    _counter(curve, (103.0, 5e8 + 300.0 + 70_000.0))
    assert curve.between(3.0, 103.0) == pytest.approx((70_000, 0.0))


@pytest.mark.parametrize("leap_j", [5e6, 1e15, 4e18])
def test_a_counter_that_leaps_far_and_back_takes_nothing_back(leap_j: float) -> None:
    curve, _ = _curve()
    _counter(curve, *((t_s, 1e4 + 200.0 * t_s) for t_s in (0.0, 1.0, 2.0)))
    _counter(curve, (3.0, leap_j), (4.0, leap_j), (5.0, leap_j))
    assert curve.between(0.0, 2.0) == pytest.approx((400.0, 0.0))
    assert curve.between(2.0, 5.0) == pytest.approx((0.0, 1.0)), "once it has leapt it stands still"
    _counter(curve, (6.0, 1e4), (7.0, 1e4 + 200.0))
    assert curve.between(5.0, 7.0) == pytest.approx((200.0, 1.0))


@pytest.mark.parametrize("value", [1e308, -1e308, 2.0**63, 10**400, Decimal("1e999"), "12", None, [1], math.nan])
def test_what_no_counter_can_tell_is_no_reading_and_the_next_one_delivers_what_was_used(value: object) -> None:
    curve, events = _curve()
    _counter(curve, (0.0, 1e4), (1.0, 1e4 + 200.0))
    for t_s in (2.0, 3.0, 4.0):
        curve.append(PowerSample(device_uid="GPU-1", t_s=t_s, energy_j=value, power_w=None))  # type: ignore[arg-type]
    assert curve.frontier_s == 1.0
    _counter(curve, (5.0, 1e4 + 1000.0))
    assert curve.between(0.0, 5.0) == pytest.approx((1000.0, 0.0))
    assert [name for name, _ in events] == ["gap"]


def test_a_meter_may_tell_any_kind_of_number() -> None:
    curve, events = _curve()
    kinds: tuple[Any, ...] = (int, Decimal, Fraction, np.float32, float)
    for t_s, kind in enumerate(kinds):
        curve.append(PowerSample(device_uid="GPU-1", t_s=kind(t_s), energy_j=kind(100 * t_s)))
    assert curve.between(0.0, 4.0) == pytest.approx((400.0, 0.0)) and events == []


def test_readings_of_one_time_are_one() -> None:
    for add, first, second in ((_counter, 100.0, 150.0), (_power, 100.0, 100.0)):
        curve, events = _curve()
        for _ in range(3):
            add(curve, (0.5, first))
        add(curve, (1.0, second), (1.0, 2 * second), (2.0, second + 100.0 * (add is _counter)))
        assert curve.between(0.0, 2.0) == pytest.approx((200.0, 0.0)) and events == []


def test_a_device_that_comes_later_counts_from_when_it_came() -> None:
    early, late = _curve()[0], _curve()[0]
    early.start(10.0)
    late.start(10.0, known=False)
    for curve in (early, late):
        assert curve.frontier_s == curve.oldest_s == 10.0
        _power(curve, (10.8, 100.0), (11.0, 100.0))
    assert early.between(10.0, 11.0) == pytest.approx((100.0, 0.0))
    assert late.between(10.0, 11.0) == pytest.approx((20.0, 0.8)), "until its first reading nothing is known of it"


def test_a_sensor_that_never_answers_is_missing_from_the_start_and_says_so_once() -> None:
    curve, events = _curve(t0_s=2.0)
    for t_s in (5.0, 6.0, 6.0, 4.0):
        curve.advance_missing(t_s)
    assert curve.between(2.0, 6.0) == pytest.approx((0.0, 4.0))
    assert [name for name, _ in events] == ["gap"] and "no reading for 3.0 s" in events[0][1]
    _power(curve, (7.0, 100.0), (8.0, 100.0))
    assert curve.between(2.0, 8.0)[1] >= 4.0


def test_a_counter_is_waited_for_until_its_next_tick_is_past_and_a_failed_one_not_at_all() -> None:
    curve, _ = _curve()
    assert curve.wait_s(5.0) == 0.0
    curve.use_tick(0.001)
    assert curve.wait_s(5.0) == 0.0, "a counter as fast as RAPL's needs no date"
    curve.use_tick(0.1, 0.03)
    curve.use_tick(0.2, 0.05)  # a later probe does not start over
    assert curve.wait_s(5.0) == pytest.approx(0.03 + 0.03)
    curve.append(PowerSample("GPU-1", 4.9, note="lost"))
    assert curve.wait_s(5.0) == 0.0


def test_a_ticking_counter_is_final_up_to_the_tick_before_its_last() -> None:
    assert _ticking(_tick_energies([100.0] * 10)).frontier_s == pytest.approx(0.9)
    one, _ = _curve(t0_s=3.0)
    _counter(one, (3.0, 5.0))
    assert one.frontier_s == 3.0


def test_power_that_rises_as_the_run_starts_is_dated_to_the_middle_of_its_mean() -> None:
    curve, _ = _curve(t0_s=10.0, averaging_s=1.0)
    for i in range(20):  # 100 W more each second: what is read is what was half a second before
        t_s = 10.2 + 0.1 * i
        _power(curve, (t_s, 100.0 * (t_s - 0.5 - 9.0)))
    assert curve.between(10.0, 11.0) == pytest.approx((150.0, 0.0))


@pytest.mark.parametrize(("ahead_s", "believed"), [(0.05, True), (0.5, False)])
def test_a_reading_may_be_a_little_ahead_of_the_clock_and_no_more(ahead_s: float, believed: bool) -> None:
    curve, events = _curve()
    _counter(curve, (0.0, 0.0))
    curve.append(PowerSample("GPU-1", 1.0 + ahead_s, 100.0), now_s=1.0)
    assert (not events) is believed


def test_a_counter_that_rises_by_megawatts_has_jumped() -> None:
    curve, events = _curve(t0_s=1e6)  # of a machine that has been up for long
    _counter(curve, (1e6, 0.0), (1e6 + 1.0, 5e6))
    assert curve.between(1e6, 1e6 + 1.0) == pytest.approx((0.0, 1.0)) and "jumped" in events[0][1]


@pytest.mark.parametrize(("rise_j", "believed"), [(2 * 7000.0, True), (2.1 * 7000.0, False)])
def test_a_counter_that_rises_by_more_than_ten_limits_has_jumped(rise_j: float, believed: bool) -> None:
    curve, _ = _curve()
    curve.sensor = dataclasses.replace(curve.sensor, limit_w=700.0)
    _counter(curve, (0.0, 0.0), (1.0, rise_j))  # a second more may have been counted: the read was held up
    assert curve.between(0.0, 1.0) == pytest.approx((rise_j, 0.0) if believed else (0.0, 1.0))


def test_a_model_has_no_counter_that_could_jump() -> None:
    curve, events = _curve()
    curve.sensor = dataclasses.replace(curve.sensor, limit_w=10.0, provenance=Provenance.MODELLED)
    _counter(curve, (0.0, 0.0), (1.0, 5000.0))  # a child's processor time, which its parent tells when it ends
    assert curve.between(0.0, 1.0) == pytest.approx((5000.0, 0.0)) and not events


def test_power_that_no_device_draws_is_no_reading() -> None:
    curve, events = _curve()
    _power(curve, (0.0, 100.0), (1.0, 1e9), (2.0, 100.0))
    assert curve.between(0.0, 2.0) == pytest.approx((0.0, 2.0)) and "1000000000.0" in events[0][1]


def test_two_readings_of_one_time_are_both_right() -> None:
    curve, events = _curve()
    _counter(curve, (0.0, 0.0), (1.0, 100.0), (1.0, 100.0), (2.0, 200.0))
    assert not events and curve.between(0.0, 2.0) == pytest.approx((200.0, 0.0))
    assert curve.between(0.5, 1.5) == pytest.approx((100.0, 0.0))


@pytest.mark.parametrize(("silent_s", "known"), [(1.15, True), (1.25, False)])
def test_a_counter_that_may_still_be_standing_is_extended_at_the_end(silent_s: float, known: bool) -> None:
    curve, _ = _curve()
    curve.use_tick(0.1, 0.0)
    _counter(curve, *((0.01 + 0.1 * i, 10.0 * i) for i in range(31)))
    end_s = 3.0
    curve.finish(end_s + silent_s)
    # A counter that has not moved for eleven ticks is believed; the end may come a tick before that.
    assert curve.between(end_s, end_s + silent_s) == pytest.approx((100 * silent_s, 0.0) if known else (0.0, silent_s))


def test_one_reading_of_power_is_held_to_a_near_end() -> None:
    curve, _ = _curve()
    _power(curve, (0.0, 100.0))
    curve.finish(0.15)
    assert curve.between(0.0, 0.15) == pytest.approx((15.0, 0.0))
    curve.finish(0.1)
    assert curve.frontier_s == 0.15, "nothing is taken back"


def test_one_value_of_a_counter_says_nothing_of_the_time_after_it() -> None:
    curve, events = _curve()
    _counter(curve, (0.0, 1000.0))
    curve.finish(0.15)
    assert curve.between(0.0, 0.15) == pytest.approx((0.0, 0.15)), "unknown, not nothing"
    assert [name for name, _ in events] == ["gap"]


def test_the_end_is_extended_at_the_mean_power_of_the_last_quarter_second() -> None:
    curve, _ = _curve()
    _counter(curve, *((0.1 * i, 10.0 * i) for i in range(12)), (1.2, 130.0), (1.3, 160.0), (1.4, 200.0))
    curve.finish(1.5)
    assert curve.between(1.4, 1.5) == pytest.approx((30.0, 0.0)), "of 200, 300 and 400 W"


@pytest.mark.parametrize("step_s", [0.21, 0.23, 0.29])
def test_a_step_is_found_from_the_third_tick_on_also_over_a_little_noise(step_s: float) -> None:
    third_w = (100.0 * (step_s - 0.2) + 300.0 * (0.3 - step_s)) / 0.1
    curve = _ticking(_tick_energies([104.0, 100.0, third_w, 300.0]))
    assert curve.between(0.2, step_s)[0] == pytest.approx(100.0 * (step_s - 0.2))
    assert curve.between(step_s, 0.3)[0] == pytest.approx(300.0 * (0.3 - step_s))


@pytest.mark.parametrize(("ticks", "found"), [(3, True), (4, False)])
def test_a_step_is_found_between_reads_three_ticks_apart_and_no_more(ticks: int, found: bool) -> None:
    curve, _ = _curve(t0_s=0.01)
    curve.use_tick(0.1, 0.0)
    end_s = 0.2 + 0.1 * ticks
    step_s = end_s - 0.05  # 100 W before, 300 W from then on
    points = [(0.0, 0.0), (0.1, 10.0), (0.2, 20.0), (end_s, 20.0 + 100.0 * (end_s - 0.2) + 200.0 * 0.05)]
    points.append((end_s + 0.1, points[-1][1] + 30.0))
    _counter(curve, *((t_s + 0.01, energy_j) for t_s, energy_j in points))
    before_j = curve.between(0.2, step_s)[0]
    assert (before_j == pytest.approx(100.0 * (step_s - 0.2))) is found


def test_a_step_after_a_gap_leaves_the_gap_as_it_is() -> None:
    curve, _ = _curve(t0_s=0.01)
    curve.use_tick(0.1, 0.0)
    ticks = [(t_s + 0.01, energy_j) for t_s, energy_j in _tick_energies([100.0] * 6 + [240.0, 300.0, 300.0])]
    _counter(curve, *ticks[:2])
    _counter(curve, (0.21, 0.0), *ticks[3:])  # at 0.21 s it ran backwards
    assert curve.between(0.0, 0.8)[1] == pytest.approx(0.11, abs=0.02)
    assert curve.between(0.6, 0.63) == pytest.approx((3.0, 0.0))
    assert curve.between(0.63, 0.8) == pytest.approx((51.0, 0.0))


def test_the_first_value_of_a_slow_start_is_dated_to_its_own_tick() -> None:
    curve, _ = _curve(t0_s=0.01)
    curve.use_tick(0.1, 0.0)
    _counter(curve, (0.01, 50.0), (0.11, 50.0), (0.21, 50.0), (0.31, 80.0), (0.41, 90.0))
    assert curve.oldest_s == pytest.approx(0.0, abs=0.02)
    assert curve.between(0.15, 0.3) == pytest.approx((15.0, 0.0), abs=1.0), "30 J of three ticks, not of the last one"


def test_a_counter_that_stands_for_eleven_ticks_is_believed_and_not_before() -> None:
    curve, events = _curve(t0_s=0.01)
    curve.use_tick(0.1, 0.0)
    _counter(curve, *((0.01 + 0.1 * i, 10.0 * i) for i in range(11)))
    frontiers_s = {}
    for i in range(11, 23):
        _counter(curve, (0.01 + 0.1 * i, 100.0))
        frontiers_s[i] = curve.frontier_s
    assert frontiers_s[19] == pytest.approx(0.9), "the next tick may bring it all"
    assert frontiers_s[20] == pytest.approx(1.0)
    assert frontiers_s[21] == frontiers_s[22] == pytest.approx(1.91, abs=2e-3)
    assert curve.between(1.0, 1.9) == (0.0, 0.0) and not events


def test_each_gap_of_a_counter_is_delivered_on_its_own() -> None:
    curve, events = _curve()
    curve.use_tick(0.1, 0.0)
    _counter(curve, (0.0, 0.0), (1.0, 100.0))
    for begin_s in (1.0, 4.0):
        curve.append(PowerSample("GPU-1", begin_s + 0.5, note="lost"))
        curve.advance_missing(begin_s + 2.0)
        assert curve.between(0.0, begin_s + 2.0)[1] >= 2.0
        _counter(curve, (begin_s + 3.0, 100.0))  # it stood all the time
        assert curve.between(0.0, begin_s + 3.0) == pytest.approx((100.0, 0.0), abs=1e-9)
    assert [name for name, _ in events] == ["gap", "recovered"] * 2


def test_a_counter_that_starts_over_in_a_gap_delivers_nothing_late_and_later_gaps_are_whole() -> None:
    curve, events = _curve()
    _counter(curve, (0.0, 5000.0), (1.0, 5100.0), (1.5, 5150.0))
    curve.append(PowerSample("GPU-1", 2.0, note="lost"))
    curve.advance_missing(3.0)
    _counter(curve, (4.0, 3.0), (5.0, 103.0))
    assert curve.between(0.0, 5.0) == pytest.approx((250.0, 2.5))
    curve.append(PowerSample("GPU-1", 5.5, note="lost"))
    curve.advance_missing(6.0)
    assert curve.between(5.0, 6.0) == pytest.approx((0.0, 1.0))
    _counter(curve, (7.0, 303.0))
    assert curve.between(0.0, 7.0) == pytest.approx((450.0, 2.5))
    assert [name for name, _ in events] == ["gap", "gap", "gap", "recovered"]


SUFFERING = ("failed", "nan", "numbers", "silent", "back", "leap")


def _suffered(seed: int, power_w: float, tick_s: float, end_s: float) -> tuple[float, float, float]:
    """Return what a ticking counter's curve has (J), misses (s), and could not know at most (s), after many faults."""
    chance, (curve, _) = random.Random(seed), _curve()
    curve.use_tick(tick_s, edge_s=0.033)
    t_s = jump_j = blind_s = 0.0
    fault, until_s = "", 2.0
    while t_s < end_s:
        if t_s > until_s:
            fault = "" if fault or t_s > end_s - 4.0 else chance.choice(SUFFERING)
            until_s = t_s + chance.uniform(0.05, 3.0)
            jump_j += {"back": -chance.uniform(2000.0, 9000.0), "leap": 1e9}.get(fault, 0.0)
            blind_s += {"numbers": until_s - t_s + 0.7, "back": 0.7, "leap": 0.7}.get(fault, 0.0)
        value_j: float | None = 1e6 + power_w * (math.floor((t_s - 0.033) / tick_s) * tick_s + 0.033) + jump_j
        if fault == "numbers":
            value_j = chance.uniform(-1e12, 1e12)
        elif fault in ("failed", "nan"):
            value_j = None if fault == "failed" else math.nan
        if fault != "silent":
            curve.append(PowerSample(device_uid="GPU-1", t_s=t_s, energy_j=value_j))
        t_s += 0.97 * tick_s * chance.choice((1, 1, 1, 2, 3)) + chance.choice((0.0, 0.0, 0.0, 0.01, 0.05))
    curve.finish(end_s)
    return *curve.between(0.0, end_s), blind_s


def test_what_is_booked_is_what_was_used_while_a_counter_could_be_read() -> None:
    power_w, tick_s, end_s, off_j = 300.0, 0.1, 60.0, []
    for seed in range(12):
        energy_j, missing_s, blind_s = _suffered(seed, power_w, tick_s, end_s)
        off_j.append(energy_j - power_w * (end_s - missing_s))
        assert 0.0 <= missing_s <= blind_s  # what fails or is silent is delivered late
    assert max(map(abs, off_j)) < 0.01 * power_w * end_s
    assert abs(sum(off_j)) / len(off_j) < tick_s * power_w  # about ten faults each, and no tick too many on the whole


def test_the_end_goes_on_at_the_power_that_was_known_and_not_at_that_of_a_gap() -> None:
    curve, _ = _curve()
    _counter(curve, (0.0, 500.0), (0.9, 770.0), (1.0, 3.0), (1.1, 33.0))  # it fell back within the last quarter second
    curve.finish(1.2)
    assert curve.between(0.0, 1.2) == pytest.approx((270 + 2 * 30, 0.1))


def test_reads_that_find_no_change_tell_where_the_ticks_are_as_well() -> None:
    curve, _ = _curve()
    curve.use_tick(0.1)
    for i in range(300):  # ticks at 0.03 s, 0.13 s and so on; read twice a tick
        t_s = 0.0485 * i
        _counter(curve, (t_s, 30.0 * math.floor((t_s - 0.03) / 0.1)))
    assert 14.6 + curve.wait_s(14.6) == pytest.approx(14.63 + 0.03, abs=2e-3), "a third of a tick after the next"
