"""The overhead of the building around the devices: power usage effectiveness (PUE) over time.

PUE is facility energy / IT energy (ISO/IEC 30134-2:2016). It comes from the configuration as one number, from a file
of the facility's own records, or from a Prometheus server (``greentrain.accounting.facility_prometheus``). Where the
last two know nothing, the configured number counts, and the books say so.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from greentrain.carbon.replayed import GridTime, ReplayedSignal
from greentrain.carbon.staircase import GAP_STEPS, Staircase
from greentrain.carbon.trace import Column, TraceRows, read_trace
from greentrain.clock import Clock
from greentrain.config import CarbonConfig
from greentrain.types import CarbonSignal, PueSource

LOWEST: Final = 1.0
"""Every joule of the devices is one of the facility."""
HIGHEST: Final = 5.0
"""As ``carbon.pue``: no facility that runs needs four times as much for cooling as for computing."""
_EDGE_S: Final = 1e-3
"""Times closer than this are the same."""
_PROVENANCE: Final = {PueSource.TRACE: "recorded", PueSource.PROMETHEUS: "measured"}
COLUMN: Final = Column(
    name="pue",
    low=LOWEST,
    high=HIGHEST,
    unit="",
    remedy="write facility energy / IT energy, not its inverse (DCiE) or a percentage",
    key="carbon.pue_csv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PuePoint:
    """The PUE over one interval."""

    value: float
    """Time average."""
    source: PueSource
    """FALLBACK where the configured number stood in for any part of the interval."""

    @property
    def provenance(self) -> str:
        """``recorded`` by the facility, ``measured`` through Prometheus, or ``assumed`` in the configuration."""
        return _PROVENANCE.get(self.source, "assumed")


@runtime_checkable
class Facility(Protocol):
    """The PUE of one facility as a function of time."""

    def pue(self, t0_unix_s: float, t1_unix_s: float) -> PuePoint:
        """Return the time average over an interval. Never blocks, never raises.

        Args:
            t0_unix_s: Start of the interval (s since the epoch, UTC).
            t1_unix_s: End of the interval; equal to the start for the value at an instant.
        """
        ...

    def covers(self, t0_unix_s: float, t1_unix_s: float) -> bool:
        """Return True if records say what the PUE is throughout an interval, its future part too."""
        ...

    def start(self) -> None:
        """Begin to ask, where there is anybody to be asked. Returns at once."""
        ...

    def close(self) -> None:
        """End what asks. Idempotent; what was known stays known."""
        ...


class ConstantPue:
    """One number for all time.

    Args:
        value: Facility energy / IT energy.
    """

    def __init__(self, value: float) -> None:
        self._point = PuePoint(value=value, source=PueSource.CONSTANT)

    def pue(self, t0_unix_s: float, t1_unix_s: float) -> PuePoint:
        """Return the number."""
        return self._point

    def covers(self, t0_unix_s: float, t1_unix_s: float) -> bool:
        """Return False: nobody recorded it."""
        return False

    def start(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TracePue:
    """The facility's own records: a CSV file with columns ``timestamp_utc`` and ``pue``.

    Each value holds until the next row, the last for one regular step. Outside the file, and in holes of more than one
    and a half regular steps, the constant stands in.

    Args:
        csv_path: The file; times carry ``Z`` or an offset.
        constant: What counts where the file says nothing.

    Raises:
        TraceError: The file is malformed, or a value is outside 1 to 5.
    """

    def __init__(self, csv_path: Path | str, constant: float) -> None:
        rows = read_trace(csv_path, COLUMN)
        self._constant = constant
        self._steps = _staircase(rows, constant)
        self.start_unix_s = rows.t_unix_s[0]
        self.end_unix_s = self.start_unix_s + self._steps.t_s[-1]

    def pue(self, t0_unix_s: float, t1_unix_s: float) -> PuePoint:
        """Return the time average; the constant stands in for what the file does not cover."""
        length_s = t1_unix_s - t0_unix_s
        t0_s, t1_s = max(t0_unix_s, self.start_unix_s), min(t1_unix_s, self.end_unix_s)
        mean, filled = self._steps.mean(t0_s - self.start_unix_s, t1_s - self.start_unix_s)
        if mean is None:
            return PuePoint(value=self._constant, source=PueSource.FALLBACK)
        outside_s = length_s - (t1_s - t0_s)
        if outside_s > 0:
            mean = (mean * (t1_s - t0_s) + self._constant * outside_s) / length_s
        fell = filled or outside_s > _EDGE_S
        return PuePoint(value=mean, source=PueSource.FALLBACK if fell else PueSource.TRACE)

    def covers(self, t0_unix_s: float, t1_unix_s: float) -> bool:
        """Return True if no part of an interval is outside the file or in a hole of it."""
        return self.pue(t0_unix_s, t1_unix_s).source is PueSource.TRACE

    def start(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class ReplayedPue:
    """Records that are asked in real time and answer of the grid's: a replayed day has the PUE of that day.

    Args:
        facility: The records, in the grid's own time.
        time: What belongs to what.
    """

    def __init__(self, facility: Facility, time: GridTime) -> None:
        self._facility = facility
        self._time = time

    def pue(self, t0_unix_s: float, t1_unix_s: float) -> PuePoint:
        """Return the time average of the grid's interval."""
        return self._facility.pue(self._time.at(t0_unix_s), self._time.at(t1_unix_s))

    def covers(self, t0_unix_s: float, t1_unix_s: float) -> bool:
        """Return what the records cover of the grid's interval."""
        return self._facility.covers(self._time.at(t0_unix_s), self._time.at(t1_unix_s))

    def start(self) -> None:
        """Start the records."""
        self._facility.start()

    def close(self) -> None:
        """Close the records."""
        self._facility.close()


def open_facility(config: CarbonConfig, tell: Callable[[str], None], clock: Clock | None = None) -> Facility:
    """Return the facility that the configuration names, checked; it asks nobody before its ``start``.

    Args:
        config: Section ``carbon``.
        tell: Takes a warning, from another thread.
        clock: Time.

    Raises:
        TraceError: The file of ``carbon.pue_csv`` is malformed.
        ConfigError: ``carbon.pue_prometheus_url`` is no URL.
        MissingExtraError: Prometheus is to be asked, and httpx is not installed.
    """
    if config.pue_csv is not None:
        return TracePue(config.pue_csv, config.pue)
    if config.pue_prometheus_url is not None and config.pue_prometheus_query is not None:
        from greentrain.accounting.facility_prometheus import PrometheusPue

        return PrometheusPue(
            config.pue_prometheus_url, config.pue_prometheus_query, constant=config.pue, tell=tell, clock=clock
        )
    return ConstantPue(config.pue)


def in_run_time(facility: Facility, signal: CarbonSignal) -> Facility:
    """Return a facility to be asked in real time: records follow a grid that is replayed, what is asked live does not.

    Args:
        facility: In the grid's own time.
        signal: Of the run.
    """
    if isinstance(facility, TracePue) and isinstance(signal, ReplayedSignal):
        return ReplayedPue(facility, signal.time)
    return facility


def _staircase(rows: TraceRows, constant: float) -> Staircase:
    """Return the rows, with the constant in their holes."""
    start_s, step_s = rows.t_unix_s[0], rows.step_s
    t_s, values, filled = array("d"), array("d"), array("b")
    ends = (*rows.t_unix_s[1:], rows.t_unix_s[-1] + step_s)
    for t0_s, t1_s, value in zip(rows.t_unix_s, ends, rows.values, strict=True):
        t_s.append(t0_s - start_s)
        values.append(value)
        filled.append(0)
        if t1_s - t0_s > GAP_STEPS * step_s:
            t_s.append(t0_s + step_s - start_s)
            values.append(constant)
            filled.append(1)
    t_s.append(ends[-1] - start_s)
    return Staircase.of(t_s, values, filled)
