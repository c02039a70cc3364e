"""A run as curves over time, at most so many points: power by device, cumulative energy and grams, intensity.

Every ledger entry is a box of energy over its interval; boxes are added exactly and averaged over the bins of the
chart, so the area under a drawn curve is the booked energy whatever the number of bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from greentrain.ledger.reader import RunRecord
from greentrain.types import Provenance

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

BINS = 480
"""Points of a line: enough for a screen, far below what a browser minds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSeries:
    """The power of one device by bin."""

    host: str
    uid: str
    power_w: "Floats"
    """Mean power over the bin (W); NaN where nothing is known."""
    energy_j: "Floats"
    """Energy in the bin (J)."""
    modelled: bool
    """True if more of its energy is modelled than measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """All curves of a run on one grid of bins."""

    edges_unix_s: "Floats"
    devices: Sequence[DeviceSeries]
    booked: "npt.NDArray[np.bool_]"
    """True where any rank booked: False in the pause before a resume."""
    total_w: "Floats"
    """Sum of all devices (W), NaN where nothing is booked."""
    fine_w: "Floats | None"
    """The same from the energy of single steps, where that is finer than the entries; None where it is not."""
    measured_j: "Floats"
    """Cumulative measured energy at the bins' ends (J)."""
    modelled_j: "Floats"
    """Cumulative modelled energy at the bins' ends (J)."""
    operational_g: "Floats"
    """Cumulative operational grams of the energy whose intensity is known, at the bins' ends."""
    it_g: "Floats"
    """The same without PUE."""
    intensity_g_per_kwh: "Floats"
    """Energy-weighted mean intensity of the bin; NaN where not known."""
    window_s: float
    """The finest power window the bins stand on: no entry is shorter (s)."""

    @property
    def peak_w(self) -> float | None:
        """Highest mean power of all devices over ``window_s`` (W)."""
        import numpy as np

        return float(np.nanmax(self.total_w)) if np.any(np.isfinite(self.total_w)) else None


def build_series(record: RunRecord, bins: int = BINS) -> RunSeries | None:
    """Return the curves of a run, or None where no interval was booked."""
    import numpy as np

    spans = [(e.t0_unix_s, e.t1_unix_s) for rank in record.ranks for e in rank.entries if e.t1_unix_s > e.t0_unix_s]
    if not spans:
        return None
    spans_s = np.array(spans)
    edges = np.linspace(spans_s[:, 0].min(), spans_s[:, 1].max(), bins + 1)
    boxes: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}
    kinds: dict[tuple[str, str], float] = {}
    measured: list[tuple[float, float, float]] = []
    modelled: list[tuple[float, float, float]] = []
    grams: list[tuple[float, float, float]] = []
    it_grams: list[tuple[float, float, float]] = []
    weighted: list[tuple[float, float, float, float]] = []
    fine: list[tuple[float, float, float]] = []
    for rank in record.ranks:
        step_t = None
        for entry in rank.entries:
            t0, t1 = entry.t0_unix_s, entry.t1_unix_s
            if t1 <= t0:
                continue
            for uid, share in entry.devices.items():
                start = t0 + min(share.missing_s, 0.0)
                known_s = max(t1 - t0 - max(share.missing_s, 0.0), 0.0)
                if share.provenance is Provenance.MISSING:
                    known_s = 0.0
                key = (rank.host, uid)
                boxes.setdefault(key, []).append((start, t1, share.energy_j, known_s + t0 - start))
                is_model = share.provenance is Provenance.MODELLED
                kinds[key] = kinds.get(key, 0.0) + (share.energy_j if is_model else -share.energy_j)
                (modelled if is_model else measured).append((start, t1, share.energy_j))
            if entry.operational_g is not None:
                grams.append((t0, t1, entry.operational_g))
                it_grams.append((t0, t1, entry.it_g or 0.0))
            if entry.carbon.g_per_kwh is not None:
                weight = max(entry.energy_j, 1e-9)
                weighted.append((t0, t1, entry.carbon.g_per_kwh * weight, weight))
            for _, end, energy_j, _ in entry.step_groups:
                if step_t is not None and step_t < end and step_t >= t0 - 60:
                    fine.append((step_t, end, energy_j))
                step_t = end
    window_s = max(float(np.median(spans_s[:, 1] - spans_s[:, 0])), float(edges[1] - edges[0]))
    devices = []
    for (host, uid), rows in sorted(boxes.items()):
        data = np.array(rows)
        energy = _bin(edges, data[:, 0], data[:, 1], data[:, 2])
        known = _bin(edges, data[:, 0], data[:, 1], data[:, 3])
        with np.errstate(divide="ignore", invalid="ignore"):
            power = np.where(known > 0.01 * (edges[1] - edges[0]), energy / known, np.nan)
        devices.append(
            DeviceSeries(host=host, uid=uid, power_w=power, energy_j=energy, modelled=kinds[(host, uid)] > 0)
        )
    covered = _bin(edges, spans_s[:, 0], spans_s[:, 1], np.ones(len(spans_s)) * (spans_s[:, 1] - spans_s[:, 0]))
    booked = covered > 0.02 * (edges[1] - edges[0])
    total = np.sum([np.nan_to_num(d.power_w) for d in devices], axis=0) if devices else np.full(bins, np.nan)
    return RunSeries(
        edges_unix_s=edges,
        devices=devices,
        booked=booked,
        total_w=np.where(booked, total, np.nan),
        fine_w=_fine(edges, fine, booked, window_s, sum(1 for r in record.ranks if any(e.energy_j for e in r.entries))),
        measured_j=np.cumsum(_bin_rows(edges, measured)),
        modelled_j=np.cumsum(_bin_rows(edges, modelled)),
        operational_g=np.cumsum(_bin_rows(edges, grams)),
        it_g=np.cumsum(_bin_rows(edges, it_grams)),
        intensity_g_per_kwh=_mean(edges, weighted),
        window_s=window_s,
    )


def _bin(edges: "Floats", start: "Floats", end: "Floats", amount: "Floats") -> "Floats":
    """Spread each amount evenly over its interval and add up what falls into each bin."""
    import numpy as np

    rate = amount / np.maximum(end - start, 1e-9)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    slope = np.cumsum(np.concatenate([rate, -rate])[order])
    cumulative = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(times))])
    inside = np.diff(np.interp(edges, times, cumulative))
    return np.asarray(np.maximum(inside, 0.0), dtype=np.float64)


def _bin_rows(edges: "Floats", rows: Sequence[tuple[float, float, float]]) -> "Floats":
    import numpy as np

    if not rows:
        return np.zeros(len(edges) - 1)
    data = np.array(rows)
    return _bin(edges, data[:, 0], data[:, 1], data[:, 2])


def _mean(edges: "Floats", rows: Sequence[tuple[float, float, float, float]]) -> "Floats":
    import numpy as np

    if not rows:
        return np.full(len(edges) - 1, np.nan)
    data = np.array(rows)
    value = _bin(edges, data[:, 0], data[:, 1], data[:, 2])
    weight = _bin(edges, data[:, 0], data[:, 1], data[:, 3])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(weight > 1e-6 * weight.max(), value / weight, np.nan), dtype=np.float64)


def _fine(
    edges: "Floats",
    rows: Sequence[tuple[float, float, float]],
    booked: "npt.NDArray[np.bool_]",
    window_s: float,
    ranks: int,
) -> "Floats | None":
    """Return the power of single steps where they are at least three times finer than the entries.

    Bins that the steps of some rank with energy do not cover are NaN: there the sum would be too small.
    """
    import numpy as np

    if not rows:
        return None
    data = np.array(rows)
    if float(np.median(data[:, 1] - data[:, 0])) > window_s / 3 or float(edges[1] - edges[0]) > window_s / 3:
        return None
    energy = _bin(edges, data[:, 0], data[:, 1], data[:, 2])
    covered = _bin(edges, data[:, 0], data[:, 1], data[:, 1] - data[:, 0])
    width = float(edges[1] - edges[0])
    return np.where(booked & (covered > 0.97 * width * ranks), energy / width, np.nan)
