"""The grids of a study or a plan: recorded files, typical years of zones, or live forecasts. Each says what it is."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from greentrain.carbon.detect import open_signal
from greentrain.carbon.typical import TypicalSignal
from greentrain.config.schema import LIVE_SIGNALS, WORLD, CarbonConfig
from greentrain.control.plan.planner import PAST_H, GridOutlook, means
from greentrain.errors import CarbonSignalError, ConfigError, TraceError
from greentrain.policy.outlook import Array
from greentrain.simulator.grid_trace import GridTrace
from greentrain.types import S_PER_HOUR, CarbonBasis, CarbonSignal, iso
from greentrain.utils.never_raise import call_if_present
from greentrain.utils.validation import choice

_BASES: Final = tuple(basis.value for basis in CarbonBasis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid, and what it is."""

    trace: GridTrace
    recorded: bool
    """False: a typical year, in which nothing happens that a forecast would not expect."""

    @property
    def label(self) -> str:
        """For people: what is replayed."""
        trace = self.trace
        if not self.recorded:
            return f"{trace.name}: {trace.source}: a profile, not a recording; forecasts have it easy"
        what = f"{trace.basis}, accounting {trace.accounting}"
        return f"{trace.name}: recorded, {iso(trace.start_unix_s)} to {iso(trace.end_unix_s)}, replayed ({what})"


def grids_of(carbon: CarbonConfig, files: Sequence[str] = ()) -> list[Grid]:
    """Return the grids that somebody names, else that of a configuration.

    Args:
        carbon: Section ``carbon``: its trace counts where no file is named, else the typical year of its zone.
        files: Trace files, each as :func:`recorded_grid` reads it.

    Raises:
        ConfigError: Two files have one name, or no zone is named.
        TraceError: A file is malformed.
        UnknownZoneError: The zone has no typical year; the message lists those that have.
    """
    if not files and carbon.trace_csv is not None:
        files = (carbon.trace_csv,)
    found = [recorded_grid(text, max_gap_h=carbon.trace_max_gap_h) for text in files]
    names = [grid.trace.name for grid in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two traces are called {twice!r}, so nobody could tell their results apart: rename a file")
    return found or [typical_year(_zone(carbon))]


def recorded_grid(text: str, *, max_gap_h: float = 0.0) -> Grid:
    """Read a trace file.

    Args:
        text: Path of the file; its basis may follow an ``@``: ``grid.csv@marginal``, ``grid.csv@average:production``.
            Without, its values are averages and nobody says how they were accounted.
        max_gap_h: Longest hole that is bridged (h).

    Raises:
        ConfigError: What follows the ``@`` is no basis.
        TraceError: The file is malformed, has a time without a zone or a hole.
    """
    path, basis, accounting = text, CarbonBasis.AVERAGE.value, "unspecified"
    if "@" in text and not Path(text).exists():
        path, _, stated = text.rpartition("@")
        basis, _, told = stated.partition(":")
        choice(f"the basis of trace {path}", basis, _BASES)
        accounting = told or accounting
    trace = GridTrace.read(path, max_gap_h=max_gap_h, basis=CarbonBasis(basis), accounting=accounting)
    return Grid(trace=trace, recorded=True)


def typical_year(zone: str) -> Grid:
    """Return the typical year of a zone, hour by hour, in the year of its data.

    Raises:
        UnknownZoneError: There is none; the message lists the zones.
    """
    signal = TypicalSignal(zone)
    year = signal.profile.year
    start_s, end_s = (datetime(y, 1, 1, tzinfo=UTC).timestamp() for y in (year, year + 1))
    trace = GridTrace(
        name=signal.zone,
        zone=signal.zone,
        source=signal.source,
        start_unix_s=start_s,
        step_s=S_PER_HOUR,
        g_per_kwh=means(signal, np.arange(start_s, end_s + 1.0, S_PER_HOUR)),
        accounting=signal.describe()["accounting"],
    )
    return Grid(trace=trace, recorded=False)


def check_bases(grids: Sequence[tuple[str, str, str]]) -> None:
    """Check that grams of several grids may be compared.

    Args:
        grids: Name, basis and accounting of each.

    Raises:
        ConfigError: Average and marginal intensities are mixed, or two ways of accounting that are stated.
    """
    for key, values in (("basis", [grid[1] for grid in grids]), ("accounting", [grid[2] for grid in grids])):
        stated = [value for value in values if value != "unspecified"]
        if len(set(stated)) > 1:
            said = "; ".join(f"{grid[0]} is {value}" for grid, value in zip(grids, values, strict=True))
            raise ConfigError(
                f"the grids are of more than one {key} ({said}), so their grams must not be compared: choose grids of"
                " one kind"
            )


def _zone(carbon: CarbonConfig) -> str:
    if carbon.zone == WORLD:
        raise ConfigError(
            "no grid is named: set carbon.zone to a zone with a typical year, such as US-CAL-CISO, or name a recorded"
            " one with --trace or carbon.trace_csv"
        )
    return carbon.zone


WAIT_S: Final = 20.0
"""How long a live signal may take to answer (s): two tries of a server that is slow."""
QUIET_S: Final = 2.0
"""A signal from which nothing new has come for so long has said what it knows (s): its requests follow each other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZoneGrid:
    """The hours of one zone from a start on."""

    zone: str
    trace: GridTrace
    """From the start to the first full hour after the deadline, in steps of an hour."""
    label: str
    """For people: where the intensity is from, and what it is worth."""


def next_hour(now_s: float | None = None) -> float:
    """Return the next full hour (s since the epoch, UTC)."""
    return math.ceil((time.time() if now_s is None else now_s) / S_PER_HOUR) * S_PER_HOUR


def recordings(carbon: CarbonConfig, files: Sequence[str], zones: Sequence[str]) -> list[Grid]:
    """Return the recordings to plan on: the files, else the configured trace where no zone is named.

    Raises:
        TraceError: A file is malformed.
    """
    if not files and not zones and carbon.signal == "trace" and carbon.trace_csv is not None:
        files = (carbon.trace_csv,)
    return [recorded_grid(text, max_gap_h=carbon.trace_max_gap_h) for text in files]


def zone_grids(
    carbon: CarbonConfig, zones: Sequence[str], recorded: Sequence[Grid], start_s: float, deadline_s: float
) -> list[ZoneGrid]:
    """Return what is expected of each zone: by a live signal if one is configured, else of a typical year.

    Args:
        carbon: Section ``carbon``; its zone counts where none is named.
        zones: Names of the zones.
        recorded: Recordings, which come after the zones.
        start_s: Start (s since the epoch, UTC).
        deadline_s: Deadline (s since the epoch, UTC).

    Raises:
        ConfigError: No zone is named, one twice, or bases are mixed.
        UnknownZoneError: A zone has no typical year; the message lists those that have.
        CarbonSignalError: A live signal did not answer.
        TraceError: A recording does not cover the plan.
    """
    if not zones and not recorded:
        if carbon.zone == WORLD:
            raise ConfigError("no zone is named: say --zones US-CAL-CISO,US-MIDA-PJM, or set carbon.zone")
        zones = (carbon.zone,)
    live = carbon.signal in LIVE_SIGNALS
    hours = math.ceil((deadline_s - start_s) / S_PER_HOUR - 1e-9)
    found = [_live(carbon, zone, start_s, hours) if live else _typical(zone, start_s, hours) for zone in zones]
    found += [_recorded(grid, start_s, deadline_s, hours) for grid in recorded]
    names = [grid.zone for grid in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"zone {twice!r} is named twice: drop one, or rename its file")
    check_bases([(grid.zone, str(grid.trace.basis), grid.trace.accounting) for grid in found])
    return found


def _typical(zone: str, start_s: float, hours: int) -> ZoneGrid:
    signal = TypicalSignal(zone)
    spread = f"its hours are off by {signal.profile.spread:.0%} (root mean square)"
    expected = means(signal, start_s + np.arange(hours + 1) * S_PER_HOUR)
    return _expected(signal, signal.zone, expected, start_s, f"{signal.source}; {spread}")


def _live(carbon: CarbonConfig, zone: str, start_s: float, hours: int) -> ZoneGrid:
    with _opened(replace(carbon, zone=zone)) as signal:
        _listen(signal, start_s, hours)
        outlook = GridOutlook(signal)
        _, ahead = outlook.at(start_s, hours * S_PER_HOUR)
        facts = signal.describe()
        if np.isnan(ahead).any():
            problem = getattr(signal, "problem", "") or "it knows nothing of the coming hours"
            raise CarbonSignalError(
                f"carbon.signal {carbon.signal!r} cannot say what {zone!r} will be like from {iso(start_s)} on:"
                f" {problem}. Leave carbon.signal out to plan on a typical year, or name a recording with --trace"
            )
        return _expected(signal, facts["zone"], ahead[:hours], start_s, f"{facts['source']}: {outlook.basis}")


@contextlib.contextmanager
def _opened(carbon: CarbonConfig) -> Iterator[CarbonSignal]:
    """Open a live signal, wait for its first answer, and close it in the end."""
    signal = open_signal(carbon)
    try:
        call_if_present(signal, "start")
        if (wait := getattr(signal, "wait", None)) is not None:
            wait(WAIT_S)
        yield signal
    finally:
        call_if_present(signal, "close")


def _listen(signal: CarbonSignal, start_s: float, hours: int) -> None:
    """Wait until a signal knows all that a forecast can use, or nothing more comes."""
    before_s, until_s = start_s - PAST_H * S_PER_HOUR, start_s + hours * S_PER_HOUR
    begun_s = quiet_s = time.monotonic()
    known: tuple[float, float] = (0.0, 0.0)
    while (now_s := time.monotonic()) < min(quiet_s + QUIET_S, begun_s + WAIT_S):
        found = _span_s(signal, "history", before_s, start_s), _span_s(signal, "forecast", start_s, until_s)
        if found != known:
            known, quiet_s = found, now_s
        if found[0] >= 0.95 * (start_s - before_s) and found[1] >= until_s - start_s:
            return
        time.sleep(0.05)


def _span_s(signal: CarbonSignal, method: str, t0_s: float, t1_s: float) -> float:
    """Return of how much time in an interval a signal has values (s)."""
    ask = getattr(signal, method, None)
    points = () if ask is None else ask(t0_s, t1_s)
    return float(sum(min(p.t1_unix_s, t1_s) - max(p.t0_unix_s, t0_s) for p in points))


def _expected(signal: CarbonSignal, zone: str, g_per_kwh: Array, start_s: float, source: str) -> ZoneGrid:
    point = signal.mean(start_s, start_s)
    trace = GridTrace(
        name=zone,
        zone=zone,
        source=source,
        start_unix_s=start_s,
        step_s=S_PER_HOUR,
        g_per_kwh=g_per_kwh,
        basis=point.basis,
        accounting=point.accounting,
    )
    return ZoneGrid(zone=zone, trace=trace, label=f"{zone}: {source}")


def _recorded(grid: Grid, start_s: float, deadline_s: float, hours: int) -> ZoneGrid:
    whole = grid.trace
    if start_s < whole.start_unix_s - 1 or deadline_s > whole.end_unix_s + 1:
        raise TraceError(
            f"the plan goes from {iso(start_s)} to {iso(deadline_s)}, but trace {whole.name!r} covers"
            f" {iso(whole.start_unix_s)} to {iso(whole.end_unix_s)}: choose another --start, a shorter --deadline or a"
            " longer trace"
        )
    edges = np.minimum(start_s + np.arange(hours + 1) * S_PER_HOUR, whole.end_unix_s)
    values = np.diff(whole.integral(edges)) / np.diff(edges)
    trace = replace(whole, start_unix_s=start_s, step_s=S_PER_HOUR, g_per_kwh=values)
    return ZoneGrid(zone=whole.name, trace=trace, label=grid.label)
