"""Which grids a study is made on: recorded files, or the typical year of a zone. Each says what it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from greentrain.carbon.typical import TypicalSignal
from greentrain.config.schema import WORLD, CarbonConfig
from greentrain.control.plan.grid_outlook import means
from greentrain.errors import ConfigError
from greentrain.simulator.grid_trace import GridTrace
from greentrain.types import S_PER_HOUR, CarbonBasis, iso
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
        text: Its path; what it is may follow behind an ``@``: ``grid.csv@marginal``, ``grid.csv@average:production``.
            Without, its values are averages and nobody says how they were accounted.
        max_gap_h: Holes up to this long are bridged (h).

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
