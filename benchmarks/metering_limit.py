"""The least error that anybody could reach on a run of the case phase: an oracle that knows how its noise is made.

It is told when phases were (also where the power changed, to the millisecond of the generator), what each reading saw,
and the covariance of all noise, and says the energy of each phase by generalised least squares for the powers and the
conditional mean for the noise within phases (universal kriging: Cressie, Statistics for Spatial Data, 1993, 3.4). No
estimator that is unbiased in the powers has a smaller variance. Window and lag of the sensor it either knows, or finds
as well as can be: the bound of Cramér and Rao, to first order in both around the truth.
"""

from dataclasses import dataclass

import numpy as np

from greentrain.power.phase_power import PRIOR, LabelSeconds
from tests.power.phased_device import FINE_S, MEMORY_S, NAMES, Floats, Recording

BY_S = 0.001
"""By how much window and lag are turned to see what that changes (s)."""
FAR = 20
"""After how many times ``MEMORY_S`` noise has forgotten."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What an oracle says of each phase, in the order of ``NAMES``."""

    energy_j: Floats
    error_j: Floats
    """Its standard error (J)."""


def limits(recording: Recording, t0_s: float, t1_s: float) -> tuple[Limit, Limit]:
    """Return what an oracle says of the phases between two times: one that knows window and lag, one that finds them.

    Args:
        recording: What the device did; readings up to ``t1_s`` are used.
        t0_s: Start (s), at the first reading or later.
        t1_s: End (s).
    """
    device, count = recording.device, len(NAMES)
    seen_s = device.sees * device.tick_s
    read = (recording.ticks_s[1:] <= t1_s + FINE_S) & (recording.ticks_s[1:] >= device.late_s + seen_s)
    ends_s = recording.ticks_s[1:][read] - device.late_s
    power_w = (np.diff(recording.counter_j) / device.tick_s)[read]
    cells_s: Floats = np.arange(len(recording.fine_s), dtype=np.float64) * FINE_S
    label = np.arange(len(recording.bounds_s)) % count
    phase = label[np.searchsorted(recording.bounds_s, cells_s[:-1] + FINE_S / 2, side="right") - 1]
    seconds = LabelSeconds(cells_s, phase, count)

    def shares(late_s: float, width_s: float) -> Floats:
        to_s = ends_s - late_s
        return (seconds(to_s) - seconds(to_s - width_s)) / width_s

    columns, powers_w = [shares(0.0, seen_s)], np.array(device.powers_w)
    for late_s, width_s in ((BY_S, 0.0), (0.0, BY_S))[: 1 + (device.sees < 1)]:
        turned = shares(late_s, seen_s + width_s) - shares(-late_s, seen_s - width_s)
        columns.append((turned @ powers_w)[:, None])
    told = np.hstack(columns)
    own = LabelSeconds(np.append(recording.bounds_s, device.length_s), label, count)
    in_cell_s = np.diff(own(np.clip(cells_s, t0_s, t1_s)), axis=0)
    mixed_s = np.stack([in_cell_s[phase == other].sum(axis=0) for other in range(count)], axis=1)
    between, across, within = _covariances(recording, ends_s, seen_s, in_cell_s)
    solved = np.linalg.solve(between, np.hstack([told, across, power_w[:, None]]))
    mean_w = float(power_w.mean())
    found = []
    for known in (count, told.shape[1]):
        columns_k, weak = told[:, :known], np.zeros(known)
        weak[:count] = 1 / (PRIOR * mean_w) ** 2
        inverse = np.linalg.inv(columns_k.T @ solved[:, :known] + np.diag(weak))
        said = inverse @ (columns_k.T @ solved[:, -1] + weak * mean_w)
        kriged = solved[:, told.shape[1] : -1]
        energy_j = mixed_s @ said[:count] + kriged.T @ (power_w - columns_k @ said)
        apart = np.hstack([mixed_s, np.zeros((count, known - count))]) - kriged.T @ columns_k
        variance = np.diag(within - across.T @ kriged + apart @ inverse @ apart.T)
        found.append(Limit(energy_j=energy_j, error_j=np.sqrt(variance)))
    return found[0], found[1]


def _covariances(recording: Recording, ends_s: Floats, seen_s: float, in_cell_s: Floats) -> tuple[Floats, ...]:
    """Return the covariances of readings with each other (W^2), with phases (W J), and of phases (J^2)."""
    device = recording.device
    far = int(FAR * MEMORY_S / FINE_S)
    alike = device.noise_w**2 * np.exp(-FINE_S / MEMORY_S) ** np.abs(np.arange(-far, far + 1))
    last = np.floor(ends_s / FINE_S + 1e-6).astype(int)
    part = float(np.mean(ends_s / FINE_S - last))
    width = round(seen_s / FINE_S)
    window = np.ones(width + 1) / width
    window[0], window[-1] = (1 - part) / width, part / width
    seen = np.convolve(alike, window)  # of what a reading sees with each cell, from far before it to far behind it
    both = np.convolve(seen, window[::-1])
    apart = np.abs(np.subtract.outer(last, last))
    middle = len(both) // 2
    between = np.where(apart <= middle, both[middle + np.minimum(apart, middle)], 0.0)
    between[np.diag_indices(len(last))] += device.sensor_noise_w**2
    smooth = np.stack([_convolved(line, alike)[far : far + len(line)] for line in in_cell_s.T], axis=1)
    at = np.stack([_convolved(line, seen[::-1]) for line in in_cell_s.T], axis=1)
    place = last - width - far + len(seen) - 1
    inside = (place >= 0) & (place < len(at))
    across = np.where(inside[:, None], at[np.clip(place, 0, len(at) - 1)], 0.0)
    return between, across, smooth.T @ in_cell_s


def _convolved(line: Floats, kernel: Floats) -> Floats:
    count = len(line) + len(kernel) - 1
    size = 1 << (count - 1).bit_length()
    found: Floats = np.fft.irfft(np.fft.rfft(line, size) * np.fft.rfft(kernel, size), size)[:count]
    return found
