"""The grid of a run that is replayed: what the run saw of it, completed by its signal where that can be asked again."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from greentrain.carbon.detect import open_signal
from greentrain.config.schema import LIVE_SIGNALS, CarbonConfig
from greentrain.control.plan.grid_outlook import means
from greentrain.errors import GreenTrainError, TraceError
from greentrain.policy.outlook import Array
from greentrain.simulator.grid_trace import GridTrace
from greentrain.simulator.grids import Grid
from greentrain.simulator.jobs import HISTORY_H
from greentrain.simulator.recorded_run import RecordedRun
from greentrain.types import S_PER_HOUR, CarbonBasis, CarbonSignal, iso
from greentrain.utils.validation import build

_DAY_H: Final = 24
_ALIKE: Final = 0.05
"""Two means of an hour that differ by less are of one signal: what the books have may be a part of the hour."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenGrid:
    """A grid, or why there is none."""

    trace: GridTrace | None
    label: str
    """For people: what it is."""
    missing: str = ""
    """What a replay lacks, with the remedy."""


def recording(told: RecordedRun, deadline_s: float, grid: Grid) -> SeenGrid:
    """Return a recording in place of what the run saw.

    Raises:
        TraceError: It does not cover the run from start to deadline.
    """
    if told.with_pue:
        return SeenGrid(
            trace=None, label="", missing="the PUE of each hour, which its plan counted: replay it on its own grid"
        )
    trace = grid.trace
    if trace.start_unix_s > told.start_s + 1 or trace.end_unix_s < deadline_s - 1:
        raise TraceError(
            f"the run goes from {iso(told.start_s)} to {iso(deadline_s)}, but trace {trace.name!r} covers"
            f" {iso(trace.start_unix_s)} to {iso(trace.end_unix_s)}: name one that covers it"
        )
    return SeenGrid(trace=trace, label=grid.label)


def seen_grid(told: RecordedRun, deadline_s: float) -> SeenGrid:
    """Return the hours from the run's start to its deadline, behind three weeks of its signal's past where it tells."""
    end_s = max(deadline_s, told.end_s)
    hours = int(np.ceil((end_s - told.start_s) / S_PER_HOUR - 1e-6))
    known: Array = np.full(hours, np.nan)
    known[: min(hours, len(told.g_per_kwh))] = told.g_per_kwh[:hours]
    edges = told.start_s + np.arange(hours + 1) * S_PER_HOUR
    holes = np.isnan(known)
    signal, why = _reopened(told)
    if signal is not None:
        again = means(signal, edges)
        if _agree(again, known):
            known = np.where(holes, again, known)
        else:
            signal, why = None, ": its signal tells another story today"
    needed = edges[:-1] < deadline_s - 1e-6
    blind = int(np.isnan(known[needed]).sum())
    if blind:
        return SeenGrid(
            trace=None,
            label="",
            missing=f"the carbon intensity of {blind} of {int(needed.sum())} hours until the deadline{why} (--trace)",
        )
    known = known[: int(np.max(np.flatnonzero(np.isfinite(known)))) + 1]
    past = _since_known(told.past_g_per_kwh) if signal is None else _past(signal, told.start_s)
    label = told.intensity_from
    if signal is not None and holes.any():
        label += f"; {int(holes.sum())} of {hours} hours from its signal, asked again"
    if len(past) < _DAY_H:
        label += "; of the time before its start nothing is known, so policies learn as they go (--trace tells it)"
    trace = GridTrace(
        name=told.run_id,
        zone=str(told.carbon.get("zone", told.run_id)),
        source=label,
        start_unix_s=told.start_s - len(past) * S_PER_HOUR,
        step_s=S_PER_HOUR,
        g_per_kwh=np.concatenate([past, known]),
        basis=CarbonBasis(told.basis),
        accounting=told.accounting,
    )
    return SeenGrid(trace=trace, label=label)


def _reopened(told: RecordedRun) -> tuple[CarbonSignal | None, str]:
    """Return the run's signal, if it tells today what it told then, else why not."""
    if told.with_pue:
        return None, ": its signal does not tell the PUE that the plan counted"
    try:
        config = replace(build(CarbonConfig, dict(told.carbon), "carbon."), fallback=())
        if config.signal in LIVE_SIGNALS:
            return None, f": {config.signal} was asked live"
        return open_signal(config), ""
    except GreenTrainError as error:
        return None, f": its signal cannot be opened again: {error}"


def _agree(again: Array, known: Array) -> bool:
    """Return whether a signal says what the run saw of it: as the mean over an hour that is known, or nothing."""
    both = np.isfinite(again) & np.isfinite(known)
    return bool((np.abs(again - known)[both] <= _ALIKE * known[both]).all())


def _past(signal: CarbonSignal, start_s: float) -> Array:
    """Return the hours before a time, oldest first, as far back as all are known, three weeks at most."""
    count = round(HISTORY_H)
    return _since_known(means(signal, start_s - np.arange(count, -1, -1) * S_PER_HOUR))


def _since_known(past: Array) -> Array:
    """Return the hours after the last one that is not known."""
    unknown = np.flatnonzero(np.isnan(past))
    return past[unknown[-1] + 1 :] if unknown.size else past
