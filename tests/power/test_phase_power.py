"""Phases shorter than a sensor's ticks: what the ticks tell of them, and what they do not."""

from dataclasses import replace

import numpy as np
import pytest

from greentrain.power.phase_power import FADES, FIRST_ROWS, ROWS, PhasePower
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
    assert (fit.error_w > 0.2 * fit.mean_w).all()


def test_a_few_wrong_readings_change_little() -> None:
    recording = replace(EXACT, sensor_noise_w=3.0).made()
    rises_j = np.diff(recording.counter_j)
    rises_j[50::60] *= 8
    fit = told(replace(recording, counter_j=np.concatenate([[0.0], np.cumsum(rises_j)]))).fit
    assert fit is not None
    assert fit.power_w[1:3] == pytest.approx(EXACT.powers_w[1:3], rel=0.05)


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
    alone = told(replace(EXACT, length_s=120.0, sensor_noise_w=3.0).made()).fit
    assert alone is not None and power.fit.error_w.sum() < 0.85 * alone.error_w.sum(), "it is surer than two minutes"


def test_another_load_is_not_mixed_with_the_one_before() -> None:
    recording = replace(EXACT, length_s=280.0, sensor_noise_w=3.0).made()
    rises_j = np.diff(recording.counter_j, prepend=0.0)
    rises_j[recording.ticks_s > 122.0] *= 0.6
    power, _ = fed(recording, np.cumsum(rises_j))
    assert power.fit is not None and power.fit.rows <= ROWS
    assert power.fit.power_w == pytest.approx(0.6 * np.array(EXACT.powers_w), rel=0.05)
