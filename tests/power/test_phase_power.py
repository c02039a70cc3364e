"""Phases shorter than a sensor's ticks: what the ticks tell of them, and what they do not."""

from dataclasses import replace

import numpy as np
import pytest

from greentrain.power import phase_power
from greentrain.power.phase_power import FADES, FIRST_ROWS, LONGEST_ROW, ROWS, LabelSeconds, PhaseFit, PhasePower
from tests.power.phased_device import NAMES, PhasedDevice, Recording

EXACT = PhasedDevice(noise_w=0.0, sensor_noise_w=0.0, length_s=40.0)
"""A device that draws the same in each phase, and a sensor without noise."""


def told(recording: Recording, every: int = 1) -> PhasePower:
    """Return what is known of a device once all of its ticks are read, or each second, third, ... of them."""
    power = PhasePower(recording.device.tick_s)
    bounds_s = np.append(recording.bounds_s, recording.device.length_s)
    label = np.arange(len(recording.bounds_s)) % len(NAMES)
    power.add(bounds_s, label, recording.ticks_s[::every], recording.counter_j[::every])
    power.refit()
    return power


@pytest.mark.parametrize("step_s", [0.06, 0.29, 1.2])
@pytest.mark.parametrize("sees", [0.25, 1.0])
def test_powers_and_what_is_seen_of_a_tick_are_found(sees: float, step_s: float) -> None:
    fit = told(replace(EXACT, sees=sees, step_s=step_s, late_s=0.003).made()).fit
    assert fit is not None
    assert fit.width == pytest.approx(sees, abs=0.03) and fit.lag == pytest.approx(0.03, abs=0.015)
    assert fit.power_w == pytest.approx(EXACT.powers_w, abs=0.03 * fit.mean_w)


@pytest.mark.parametrize("every", [2, 3])
def test_readings_of_several_ticks_are_as_good(every: int) -> None:
    fit = told(replace(EXACT, sees=0.25, length_s=60.0).made(), every).fit
    assert fit is not None
    assert fit.power_w == pytest.approx(EXACT.powers_w, rel=0.05)


def test_errors_say_how_far_off_powers_are() -> None:
    off = []
    for seed in range(8):
        device = PhasedDevice(seed=seed, step_s=0.15, sees=(0.25, 1.0)[seed % 2], length_s=30.0)
        fit = told(device.made()).fit
        assert fit is not None
        off += (np.abs(fit.power_w - device.powers_w) / fit.error_w).tolist()
    assert np.mean(np.array(off) < 2) > 0.85 and np.median(off) > 0.2


def test_phases_that_are_locked_to_the_ticks_cannot_be_told_apart() -> None:
    fit = told(replace(EXACT, step_s=0.1, jitter=0.0).made()).fit
    assert fit is not None
    assert fit.power_w == pytest.approx([fit.mean_w] * 4, rel=0.05)
    assert (fit.error_w > 0.2 * fit.mean_w).all() and (fit.error_w <= 0.5 * fit.mean_w).all()


def test_a_beat_that_takes_the_whole_run_is_not_judged_by_its_last_part() -> None:
    device = replace(EXACT, step_s=0.2001, jitter=0.004, noise_w=25.0, sensor_noise_w=3.0, sees=0.25, length_s=120.0)
    fit = told(device.made()).fit
    assert fit is not None and fit.width == pytest.approx(0.25, abs=0.03)
    assert (np.abs(fit.power_w - device.powers_w) < 3 * fit.error_w)[1:].all()


@pytest.mark.parametrize("seed", [0, 1])
def test_what_looks_the_same_through_another_window_is_not_told(seed: int) -> None:
    device = replace(EXACT, seed=seed, step_s=0.096, jitter=0.012, noise_w=38.0, sensor_noise_w=3.0, length_s=120.0)
    fit = told(device.made()).fit
    assert fit is not None and not fit.sure
    assert (np.abs(fit.power_w - device.powers_w) < 3 * fit.error_w).all()
    assert (fit.error_w > 0.1 * fit.power_w)[[0, 3]].all(), "both are called blurred"
    sure = told(replace(device, step_s=0.29).made()).fit
    assert sure is not None and sure.sure and (5 * sure.error_w < fit.error_w)[1:3].all()


def test_a_few_wrong_readings_change_little() -> None:
    recording = replace(EXACT, sensor_noise_w=3.0).made()
    rises_j = np.diff(recording.counter_j)
    rises_j[50::60] *= 8
    fit = told(replace(recording, counter_j=np.concatenate([[0.0], np.cumsum(rises_j)]))).fit
    assert fit is not None
    assert fit.power_w[1:3] == pytest.approx(EXACT.powers_w[1:3], rel=0.01)


def test_readings_beside_a_gap_are_left_out() -> None:
    recording = EXACT.made()
    counter_j = recording.counter_j.copy()
    counter_j[100] = np.nan
    counter_j[101:] -= 50.0
    fit = told(replace(recording, counter_j=counter_j)).fit
    assert fit is not None and fit.rows == len(counter_j) - 3
    assert fit.power_w == pytest.approx(EXACT.powers_w, rel=0.05)


def test_nothing_is_known_of_few_ticks() -> None:
    recording = replace(EXACT, length_s=2.0).made()
    assert len(recording.ticks_s) < FIRST_ROWS // 2
    power = told(recording)
    assert power.fit is None and power.spread(np.array([0.5, 1.0]), 10.0) is None


def test_what_is_spread_sums_to_the_counter_and_never_falls() -> None:
    power = told(PhasedDevice(sees=0.25, length_s=40.0, noise_w=80.0).made())
    nodes_s = power.nodes_s(10.0, 20.0)
    used_j = power.spread(nodes_s, 3210.0)
    assert used_j is not None
    assert (used_j[0], used_j[-1]) == (0.0, pytest.approx(3210.0)) and (np.diff(used_j) >= 0).all()


def test_half_a_second_behind_a_sensor_that_sees_a_quarter() -> None:
    recording = PhasedDevice(sees=0.25, step_s=0.29, length_s=60.0).made()
    power = told(recording)
    t0_s, t1_s = 5.0, 55.0
    total_j = float(np.interp(t1_s, recording.ticks_s, recording.counter_j))
    total_j -= float(np.interp(t0_s, recording.ticks_s, recording.counter_j))
    nodes_s = power.nodes_s(t0_s, t1_s)
    used_j = power.spread(nodes_s, total_j)
    assert used_j is not None
    starts_s = np.random.default_rng(0).uniform(t0_s, t1_s - 0.5, 300)
    true_j = recording.energy_j(starts_s, starts_s + 0.5)

    def off(t_s: np.ndarray, energy_j: np.ndarray) -> float:
        found_j = np.interp(starts_s + 0.5, t_s, energy_j) - np.interp(starts_s, t_s, energy_j)
        return float(np.mean(np.abs(found_j / true_j - 1)))

    assert off(recording.ticks_s, recording.counter_j) > 0.05, "straight between ticks"
    assert off(nodes_s, used_j) < 0.025


def test_a_phase_that_is_new_draws_what_the_others_do_until_it_is_known() -> None:
    recording = EXACT.made()
    power = told(recording)
    end_s = recording.device.length_s
    power.add(np.array([end_s, end_s + 1.0, end_s + 2.0]), np.array([4, 1]), np.empty(0), np.empty(0))
    used_j = power.spread(np.array([end_s, end_s + 1.0, end_s + 2.0]), 100.0)
    assert power.fit is not None and used_j is not None
    assert used_j[1] == pytest.approx(100 * power.fit.mean_w / (power.fit.mean_w + 300), rel=0.1)


def fed(recording: Recording, counter_j: np.ndarray) -> tuple[PhasePower, list[float]]:
    """Return what is known of a device that is booked every two seconds, and when it was fitted (s)."""
    power, fits = PhasePower(0.1), list[float]()
    label = np.arange(len(recording.bounds_s)) % len(NAMES)
    for t0_s in np.arange(0.0, recording.device.length_s - 10.0, 2.0).tolist():
        inside = (recording.bounds_s > t0_s) & (recording.bounds_s < t0_s + 2.0)
        bounds_s = np.concatenate([[t0_s], recording.bounds_s[inside], [t0_s + 2.0]])
        first = int(np.searchsorted(recording.bounds_s, t0_s, side="right")) - 1
        ticks = (recording.ticks_s > t0_s) & (recording.ticks_s <= t0_s + 2.0)
        before = power.fit
        power.add(bounds_s, label[first : first + len(bounds_s) - 1], recording.ticks_s[ticks], counter_j[ticks])
        if power.fit is not before:
            fits.append(t0_s + 2.0)
    return power, fits


def test_it_looks_at_two_minutes_remembers_more_and_fits_more_and_more_rarely() -> None:
    recording = replace(EXACT, length_s=280.0, sensor_noise_w=3.0).made()
    power, fits = fed(recording, recording.counter_j)
    assert len(fits) == 5 and fits[-1] - fits[-2] == pytest.approx(ROWS / 10, abs=3)
    assert power.fit is not None and power.fit.power_w == pytest.approx(EXACT.powers_w, rel=0.03)
    assert power.covers(160.0) and not power.covers(120.0)
    assert power.fit.rows == pytest.approx((1 + FADES) * ROWS, rel=0.02)
    again = power.since(0.0)
    again._seen, again._closed, again._older = power._seen, power._closed, power._older
    again.refit()
    new = power._seen - power._closed
    assert again.fit is not None and 250 < new < 320
    assert again.fit.rows == pytest.approx(new + FADES * power.fit.rows, rel=0.02), "each tick counts once"
    alone = told(replace(EXACT, length_s=120.0, sensor_noise_w=3.0).made()).fit
    assert alone is not None and power.fit.error_w.sum() < 0.85 * alone.error_w.sum(), "it is surer than two minutes"


def test_another_load_is_not_mixed_with_the_one_before() -> None:
    recording = replace(EXACT, length_s=280.0, sensor_noise_w=3.0).made()
    rises_j = np.diff(recording.counter_j, prepend=0.0)
    rises_j[recording.ticks_s > 122.0] *= 0.6
    power, _ = fed(recording, np.cumsum(rises_j))
    assert power.fit is not None and power.fit.rows <= ROWS
    assert power.fit.power_w == pytest.approx(0.6 * np.array(EXACT.powers_w), rel=0.05)


# -- by hand -------------------------------------------------------------------------------------------------------

TWO = PhaseFit(
    power_w=np.array([100.0, 300.0]), error_w=np.array([1.0, 1.0]), mean_w=200.0, width=1.0, lag=0.0, rows=50, kept=1.0,
    information=np.eye(2), scores=np.array([100.0, 300.0]),
)  # fmt: skip
"""Two labels, at a tick of 1 s all of which is seen at once."""


def halves(ticks_s: np.ndarray | None = None, ticks_j: np.ndarray | None = None) -> PhasePower:
    """Return what knows 20 s of two labels in turn, half a second each: 200 W, and 40 W more from 11 s to 12 s."""
    power = PhasePower(1.0)
    ticks_s = np.arange(1.0, 21.0) if ticks_s is None else ticks_s
    ticks_j = 200.0 * ticks_s + 40.0 * (ticks_s >= 12.0) if ticks_j is None else ticks_j
    power.add(np.arange(0.0, 20.5, 0.5), np.arange(40) % 2, ticks_s, ticks_j)
    power.fit = TWO
    return power


def test_seconds_of_each_label_are_counted_from_the_first_bound_on() -> None:
    seconds = LabelSeconds(np.array([2.0, 3.0, 5.0, 6.0]), np.array([0, 1, 0]), 3)
    found = seconds(np.array([1.5, 2.0, 2.5, 3.0, 4.5, 6.0, 7.0]))
    assert found.tolist() == [[-0.5, 0, 0], [0, 0, 0], [0.5, 0, 0], [1, 0, 0], [1, 1.5, 0], [2, 2, 0], [3, 2, 0]]


def test_power_may_change_at_bounds_and_at_ticks_and_a_label_is_that_of_its_segment() -> None:
    power = halves(np.array([1.0, 2.25]))
    assert power.nodes_s(1.0, 2.5).tolist() == [1.0, 1.5, 2.0, 2.25, 2.5]
    assert power.labels(np.array([1.0, 1.5, 2.0, 2.25, 2.5, 3.0, 20.0, 21.0])).tolist() == [0, 1, 0, 0, 1, 0, 1]
    assert power.covers(0.0) and not power.covers(-0.1) and not PhasePower(1.0).covers(0.0)


def test_what_does_not_follow_the_interval_before_begins_anew() -> None:
    power = halves()
    power.add(np.array([20.0, 21.0]), np.array([0]), np.empty(0), np.empty(0))
    assert power.covers(0.0) and power.nodes_s(19.0, 21.0).tolist() == [19.0, 19.5, 20.0, 21.0]
    power.add(np.array([22.0, 23.0]), np.array([1]), np.empty(0), np.empty(0))
    assert power.covers(22.0) and not power.covers(21.9)
    assert power.nodes_s(0.0, 23.0).tolist() == [0.0, 22.0, 23.0], "no tick of before"


def test_what_a_tick_drew_more_than_its_phases_lies_in_that_tick() -> None:
    power = halves()
    t_s = np.array([10.0, 10.5, 11.0, 11.25, 11.5, 12.0, 12.5])
    told_j = np.array([0.0, 50.0, 200.0, 200 + 25 + 10, 200 + 50 + 20, 400 + 40, 490.0])
    assert power.spread(t_s, 490.0) == pytest.approx(told_j)
    assert power.spread(t_s, 980.0) == pytest.approx(2 * told_j), "the counter's sum holds"
    power.fit = replace(TWO, kept=0.5)
    assert power.spread(t_s, 470.0) == pytest.approx([0.0, 50.0, 200.0, 230.0, 260.0, 420.0, 470.0])
    power.fit = replace(TWO, lag=0.5)
    late_j = power.spread(t_s, 1.0)
    assert late_j is not None
    # The half that is seen before 11.5 s is of the tick that is told at 12 s: its 40 J lie between 10.5 s and 11.5 s.
    assert late_j / late_j[-1] * 490.0 == pytest.approx([0.0, 50.0, 220.0, 255.0, 290.0, 440.0, 490.0])
    power.fit = replace(TWO, power_w=np.zeros(2), kept=0.0)
    assert power.spread(t_s, 1.0) is None, "nothing to spread by"


def test_a_copy_from_a_time_on_says_the_same_of_what_comes_after_and_fits_nothing() -> None:
    power = halves()
    since = power.since(6.0)
    assert since.covers(6.0) and not since.covers(5.9) and power.since(6.2).covers(6.0)
    assert since.nodes_s(0.0, 7.0).tolist() == [0.0, 6.0, 6.5, 7.0], "the tick at 6 s is there, too"
    t_s = np.array([10.0, 11.0, 11.5, 12.0])
    assert since.spread(t_s, 440.0) == pytest.approx(power.spread(t_s, 440.0))
    for n in range(20, 120):
        since.add(np.array([n, n + 0.5, n + 1.0]), np.array([0, 1]), np.array([n + 1.0]), np.array([300.0 * n]))
    assert since.fit is TWO


@pytest.mark.parametrize(("every", "known"), [(1, 18), (LONGEST_ROW, 18), (LONGEST_ROW + 1, 0)])
def test_readings_count_behind_two_ticks_and_up_to_the_longest(every: int, known: int) -> None:
    ticks_s = np.arange(1.0, 1.0 + 20 * every, every)
    power = PhasePower(1.0)
    power.add(np.arange(0.0, 20 * every + 0.5, 0.5), np.arange(40 * every) % 2, ticks_s, 200.0 * ticks_s)
    rows = power._rows()
    assert rows.count == known
    assert (rows.ticks == every).all() and rows.power_w == pytest.approx(200.0)


def test_two_readings_of_one_tick_are_none_of_another() -> None:
    ticks_s = np.array([5.0, 6.0, 6.2, 7.0])
    rows = halves(ticks_s, 200.0 * ticks_s)._rows()
    assert rows.ticks.tolist() == [1, 1] and rows.ends_s.tolist() == [6.0, 7.0]


def test_a_load_without_phases_is_not_fitted() -> None:
    power = PhasePower(1.0)
    ticks_s = np.arange(0.5, 80.0)
    power.add(np.arange(0.0, 81.0), np.zeros(80, dtype=np.intp), ticks_s, 200.0 * ticks_s)
    power.refit()
    PhasePower(1.0).refit()
    assert power.fit is None


def test_segments_that_are_looked_at_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_power, "SEGMENTS", 30)
    power = halves()
    assert power.covers(5.0) and not power.covers(4.9)
    monkeypatch.setattr(phase_power, "ROWS", 8)
    power = halves()
    power.add(np.array([20.0, 20.5]), np.array([0]), np.empty(0), np.empty(0))
    assert power.covers(9.5) and not power.covers(9.4), "the segment that ends two ticks before the first, at 12 s"


def test_the_share_of_a_label_is_that_in_what_is_seen_of_each_tick() -> None:
    power = PhasePower(1.0)
    bounds_s = np.array([0.0, 3.25, 3.5, 5.0, 6.0, 9.0])
    power.add(bounds_s, np.array([0, 1, 0, 1, 0]), np.array([2.0, 4.0, 6.0, 7.0]), np.array([0.0, 2.0, 4.0, 5.0]))
    rows = power._rows()
    assert rows.ticks.tolist() == [2, 2, 1] and rows.last(2).ticks.tolist() == [2, 1]
    assert rows.shares(1.0, 0.0)[:, 1] == pytest.approx([0.25 / 2, 1.0 / 2, 0.0])
    assert rows.shares(0.5, 0.0)[:, 1] == pytest.approx([0.0, 1.0 / 2, 0.0])
    assert rows.shares(0.5, 0.5)[:, 1] == pytest.approx([0.5 / 2, 1.0 / 2, 0.0])
    assert rows.shares(0.5, 1.5)[:, 1] == pytest.approx([0.0, 0.5 / 2, 1.0])
    assert rows.last(1).shares(1.0, 0.5) == pytest.approx(np.array([[0.5, 0.5]]))
    # By 1 % later the window of the last reading loses that of label 0 at its end, and gains it of label 1.
    watts = np.array([100.0, 300.0])
    assert phase_power._turns(rows, watts, 1.0, 0.5, free=True)[2] == pytest.approx([200.0, 100.0], rel=0.01)
    assert phase_power._turns(rows, watts, 0.5, 0.25, free=True)[2, 1] == pytest.approx(0.0, abs=1e-6)
    assert phase_power._turns(rows, watts, 1.0, 0.5, free=False)[2] == pytest.approx([200.0])


def test_no_power_is_negative_and_what_is_not_told_is_the_mean() -> None:
    assert phase_power._powers(np.eye(3), np.array([4.0, -1.0, 0.5]), 0.0, 7.0).tolist() == [4.0, 0.0, 0.5]
    coupled = np.array([[2.0, 1.0], [1.0, 2.0]])
    assert phase_power._powers(coupled, np.array([3.0, 0.0]), 0.0, 7.0) == pytest.approx([1.5, 0.0])
    assert phase_power._powers(np.zeros((2, 2)), np.zeros(2), 2.0, 7.0).tolist() == [7.0, 7.0]
    assert phase_power._powers(np.eye(1), np.array([1.0]), 1.0, 7.0).tolist() == [4.0]
    assert phase_power._powers(np.eye(2), np.array([-1.0, -1.0]), 0.0, 7.0).tolist() == [0.0, 0.0]


def test_readings_say_as_much_as_they_are_exact_and_independent() -> None:
    count, mean_w = 1000, 1e6
    shares, none, weight = np.ones((count, 1)), np.zeros((count, 1)), np.ones(count)
    swings_w = np.where(np.arange(count) % 2, 5e3, -5e3)
    apart = phase_power._information(shares, none, swings_w, weight, mean_w)
    assert apart == pytest.approx(np.array([[count / 25e6]]), rel=1e-6)
    together = phase_power._information(shares, none, np.full(count, 5e3), weight, mean_w)
    among = 1 + 2 * sum((1 - k / 9) * (count - k) for k in range(1, 9)) / count
    assert together == pytest.approx(np.array([[count / 25e6 / among]]), rel=1e-3)
    exact = phase_power._information(shares, none, np.zeros(count), weight, mean_w)
    assert exact == pytest.approx(np.array([[count / 1e6]]), rel=1e-6), "no reading is better than a thousandth"
    half = (np.arange(count) < count / 2).astype(float)[:, None]
    turned = phase_power._information(shares, half, swings_w, weight, mean_w)
    assert turned == pytest.approx(apart / 2, rel=1e-3), "what turns with the width says nothing of the power"
    heavy = phase_power._information(shares, none, swings_w, 2 * weight, mean_w)
    assert heavy == pytest.approx(2 * apart, rel=1e-6), "a reading of two ticks says twice as much"
    two = phase_power._information(np.hstack([half, 1 - half]), none, swings_w, weight, mean_w)
    assert two == pytest.approx(np.eye(2) * count / 50e6, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize(("apart_w", "other"), [(2.5, False), (2.6, True), (-2.6, True)])
def test_older_ticks_are_forgotten_where_the_new_ones_contradict_them(apart_w: float, other: bool) -> None:
    older = replace(TWO, power_w=np.array([200.0]), information=np.eye(1), scores=np.array([200.0]))
    found = phase_power._contradicts(np.eye(2), np.array([200.0 + apart_w, 9e9]), older, 1.0)
    assert found is other, "the errors of both are 0.5 W^2: 4 deviations of chi squared lie at 2.58 W"


def test_of_a_part_that_is_seen_the_rest_is_like_it_as_far_as_neighbours_are_alike() -> None:
    plain = replace(EXACT, sees=0.25, sensor_noise_w=6.0)
    white = told(plain.made()).fit
    assert white is not None and white.kept == pytest.approx(white.width, abs=0.06)
    recording = plain.made()
    slow_j = np.cumsum(40.0 * np.sin(recording.ticks_s / 2)) * 0.1
    slow = told(replace(recording, counter_j=recording.counter_j + slow_j)).fit
    assert slow is not None and 0.9 < slow.kept <= 1.0
    whole = told(replace(EXACT, sensor_noise_w=6.0).made()).fit
    assert whole is not None and whole.kept == 1.0
    assert white.rows == whole.rows == len(recording.ticks_s) - 1


@pytest.mark.parametrize(("noise_w", "sees", "width"), [(3.0, 0.25, 0.25), (60.0, 0.25, 0.26), (3.0, 1.0, 1.0)])
def test_a_part_is_taken_to_be_seen_where_that_fits_better_than_two_parameters_would(
    noise_w: float, sees: float, width: float
) -> None:
    fit = told(replace(EXACT, sees=sees, sensor_noise_w=noise_w, late_s=0.031, length_s=60.0).made()).fit
    assert fit is not None
    assert fit.width == (1.0 if sees == 1.0 else pytest.approx(width, abs=0.01))
    assert fit.lag == pytest.approx(0.31, abs=0.012 if noise_w < 10 else 0.05)


def said(rows: "phase_power._Rows", width: float, lag: float) -> np.ndarray:
    """Return what readings say of the powers (1/W^2), where the lag, and a width below 1, is found by them, too."""
    shares, power_w, left = phase_power._Fitting(rows).solved(width, lag)
    turns = [
        (rows.shares(width + by[0], lag + by[1]) - rows.shares(width - by[0], lag - by[1])) @ power_w / 0.02
        for by in (((0.0, 0.01), (0.01, 0.0)) if width < 1 else ((0.0, 0.01),))
    ]
    weight, mean_w = rows.ticks.astype(float), float(np.average(rows.power_w))
    return phase_power._information(shares, np.stack(turns, axis=1), left, weight, mean_w)


@pytest.mark.parametrize("sees", [0.25, 1.0])
def test_what_is_known_of_the_powers_lacks_what_width_and_lag_may_turn(
    sees: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phase_power, "OUTLIER", 1e9)
    power = told(replace(EXACT, sees=sees, sensor_noise_w=9.0).made())
    fit, rows = power.fit, power._rows()
    assert fit is not None
    power_w = phase_power._Fitting(rows).solved(fit.width, fit.lag)[1]
    known = said(rows, fit.width, fit.lag)
    assert fit.information == pytest.approx(known, rel=1e-6)
    few = phase_power._fit(rows.last(300), replace(fit, rows=phase_power.SURE), fit)
    assert few.information == pytest.approx(said(rows.last(300), fit.width, fit.lag) + FADES * fit.information)
    prior = 1 / (0.5 * fit.mean_w) ** 2 * np.eye(4)
    assert fit.error_w == pytest.approx(np.sqrt(np.diag(np.linalg.inv(known + prior))))
    assert fit.scores == pytest.approx(known @ power_w)
    assert fit.mean_w == pytest.approx(float(np.average(rows.power_w)))


def test_few_new_ticks_leave_what_is_seen_of_a_tick_and_add_to_what_is_known_of_the_powers() -> None:
    power = told(replace(EXACT, sees=0.25, sensor_noise_w=20.0, length_s=110.0).made())
    rows, first = power._rows(), power.fit
    assert first is not None and first.rows >= phase_power.SURE
    few, many = (phase_power._fit(rows.last(n), first, first) for n in (phase_power.FEW - 1, phase_power.FEW))
    assert (few.width, few.lag) == (first.width, first.lag) != (many.width, many.lag)
    assert few.rows == round(399 + FADES * first.rows)
    alone = phase_power._fit(rows.last(399), None, None)
    assert alone.rows == 399 and (alone.error_w > few.error_w).all()
    other = phase_power._fit(rows.last(399), first, replace(first, power_w=first.power_w + 300.0))
    assert other.rows == 399, "another load is not added"
    sure = replace(first, rows=phase_power.SURE - 1)
    assert phase_power._fit(rows.last(399), sure, None).width == alone.width
