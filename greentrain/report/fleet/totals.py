"""Totals of many runs by project, user, zone, month, device, provenance or tag, added up from the cells of the runs."""

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from greentrain.errors import ConfigError
from greentrain.utils.validation import choice

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KEYS: Final = ("project", "user", "zone", "month", "device", "provenance")
"""What totals can be by, and ``tag:NAME``."""
WHERE: Final = ("project", "user", "name", "policy", "zone", "device", "provenance")
"""What a selection can ask for, and ``tag:NAME``."""
_TAG: Final = "tag:"
_MONTH: Final = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?")
_OF_RUN: Final = ("project", "user", "name", "policy")
_OF_DEVICE: Final = ("device", "provenance")
_MONTH_OF_DAY: Final = "strftime(DATE '1970-01-01' + c.day, '%Y-%m')"
_COUNTED: Final = "r.error IS NULL AND r.duplicate_of IS NULL"
_SUMS: Final = (
    "energy_j", "facility_j", "unpriced_j", "device_s", "missing_s", "operational_g", "market_g", "embodied_g",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotal:
    """Sums over what a group of runs used. None: not known, or not to be told by this key."""

    key: Mapping[str, str | None]
    """By name of the key; None: the run does not tell, or its day and zone are in no journal here."""
    runs: int
    energy_j: float | None
    """Known IT energy (J), without PUE."""
    measured_j: float | None
    modelled_j: float | None
    facility_j: float | None
    unpriced_j: float | None
    """Energy without a carbon intensity (J)."""
    device_s: float | None
    """Device-seconds whose energy is known."""
    missing_s: float | None
    """Device-seconds without knowledge."""
    operational_g: float | None
    market_g: float | None
    """Of the runs that have a contracted factor."""
    embodied_g: float | None
    total_g: float | None
    """operational_g plus what is known of embodied_g."""
    rank_s: float | None = None
    """Wall time, summed over ranks (s); None by device or provenance, as tokens and samples."""
    tokens: int | None = None
    samples: int | None = None
    energy_low_j: float | None = None
    """What it is at least if the errors of all runs lie the same way, as those of the same sensors do: sum of the lower
    bounds. None as saved_g, and where a run has no such bound."""
    energy_high_j: float | None = None
    total_low_g: float | None = None
    total_high_g: float | None = None
    saved_g: float | None = None
    """Of the runs that had a plan; None by zone, month, device or provenance: a plan is judged as a whole."""

    @property
    def missing_share(self) -> float | None:
        """Share of the device time without knowledge."""
        missing_s = max(self.missing_s or 0.0, 0.0)
        whole_s = (self.device_s or 0.0) + missing_s
        return missing_s / whole_s if whole_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; what is unknown is null."""
        return {name: finite(value) for name, value in {**asdict(self), "missing_share": self.missing_share}.items()}


def finite(value: Any) -> Any:
    """Return a value that JSON can hold: None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSelection:
    """Which runs, and which part of them, are looked at.

    Args:
        since: First month or day (UTC), ``2026-01`` or ``2026-01-15``.
        until: Last month or day, itself included.
        where: Wanted values by name; an empty one stands for runs that have none.

    Raises:
        ConfigError: A month is none, or a name is not known.
    """

    since: str | None = None
    until: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, last = self.days
        if first is not None and last is not None and last < first:
            raise ConfigError(f"--until {self.until} is before --since {self.since}: exchange them")
        for name in self.where:
            _check_key("--where", name, WHERE)

    @property
    def days(self) -> tuple[int | None, int | None]:
        """First and last day wanted, since 1970-01-01 (UTC)."""
        first = None if self.since is None else _day("--since", self.since, last=False)
        return first, None if self.until is None else _day("--until", self.until, last=True)


NO_SELECTION: Final = RunSelection()
"""All runs, whole."""


def parse_where(texts: Sequence[str]) -> dict[str, str]:
    """Return ``NAME=VALUE`` texts as a mapping.

    Raises:
        ConfigError: One has no ``=``.
    """
    out = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--where is {text!r}; give NAME=VALUE, for example project=demo")
        if name.strip() in out:
            raise ConfigError(f"--where names {name.strip()} twice, and a run has one: give one value")
        out[name.strip()] = value
    return out


def check_keys(by: Sequence[str]) -> None:
    """Check what totals are asked by.

    Raises:
        ConfigError: A key is not known, or there twice.
    """
    for key in by:
        _check_key("--by", key, KEYS)
    if len(set(by)) < len(by):
        raise ConfigError(f"--by is {','.join(by)!r}, which names a key twice: name each once")


def totals(connection: "DuckDBPyConnection", by: Sequence[str], only: RunSelection) -> list[FleetTotal]:
    """Return a total for each group: by month in its order, else the one with most energy first.

    Args:
        connection: The connection to the tables.
        by: The keys of the groups, of KEYS or ``tag:NAME``; none: one total of all.
        only: The selection that is looked at.

    Raises:
        ConfigError: A key is not known.
    """
    check_keys(by)
    query = _Query(by, only)
    sums = ", ".join(f"fsum(c.{name})" for name in _SUMS)
    found = query.run(
        connection,
        f"count(DISTINCT r.folder), {sums}, fsum(c.energy_j) FILTER (c.provenance = 'measured'),"
        " fsum(c.energy_j) FILTER (c.provenance = 'modelled')",
        "cells",
    )
    asked = {*by, *only.where}
    of_device = bool(asked & set(_OF_DEVICE))
    in_parts = of_device or bool(asked & {"zone", "month"}) or only.days != (None, None)
    work = {} if of_device else _by_key(query.run(connection, _WORK, "work"), len(by))
    of_runs = {} if in_parts else _by_key(query.run(connection, _PER_RUN, None), len(by))
    out = [_total(by, line, work, of_runs) for line in found]
    return sorted(out, key=_place)


def _place(total: FleetTotal) -> tuple[Any, ...]:
    month = total.key.get("month") or ""
    return month, -(total.energy_j or 0.0), *(str(value) for value in total.key.values())


def run_condition(only: RunSelection) -> tuple[str, list[Any]]:
    """Return a condition on the table ``runs`` and its values: runs that have a part in the selection."""
    query = _Query((), only)
    if not query.conditions:
        return "", []
    sql = f"folder IN (SELECT r.folder FROM {query.tables('cells')} WHERE {' AND '.join(query.conditions)})"
    return sql, query.values


_WORK: Final = "fsum(c.rank_s), sum(c.tokens)::BIGINT, sum(c.samples)::BIGINT"


_BOUNDS: Final = ("energy_low_j", "energy_high_j", "total_low_g", "total_high_g")
_WHOLE: Final = ("energy_j", "energy_j", "total_g", "total_g")
_PER_RUN: Final = "fsum(r.saved_g), " + ", ".join(
    f"CASE WHEN count(r.{bound}) = count(r.{whole}) THEN fsum(r.{bound}) END"
    for bound, whole in zip(_BOUNDS, _WHOLE, strict=True)
)


class _Query:
    """What totals by some keys of some runs have in common."""

    def __init__(self, by: Sequence[str], only: RunSelection) -> None:
        self.joins: list[str] = []
        self.conditions: list[str] = []
        self.values: list[Any] = []
        self.keys = [self._column(key) for key in by]
        for name, value in only.where.items():
            column = self._column(name)
            if value:
                self.values.append(value)
                self.conditions.append(f"{column} = ${len(self.values)}")
            else:
                self.conditions.append(f"{column} IS NULL")
        for day, sign in zip(only.days, (">=", "<="), strict=True):
            if day is not None:
                self.values.append(day)
                self.conditions.append(f"c.day {sign} ${len(self.values)}")

    def tables(self, parts: str | None) -> str:
        """Return the joined tables: runs, a table of their parts, and a tag each."""
        join = [] if parts is None else [f"LEFT JOIN {parts} c ON c.folder = r.folder"]
        return " ".join(["runs r", *join, *self.joins])

    def run(self, connection: "DuckDBPyConnection", figures: str, parts: str | None) -> list[tuple[Any, ...]]:
        """Return a line for each group: keys, then figures."""
        columns = "".join(f"{key} AS k{i}, " for i, key in enumerate(self.keys))
        group = "GROUP BY " + ", ".join(f"k{i}" for i in range(len(self.keys))) if self.keys else ""
        conditions = " AND ".join([_COUNTED, *self.conditions])
        sql = f"SELECT {columns}{figures} FROM {self.tables(parts)} WHERE {conditions} {group}"
        return connection.execute(sql, self.values).fetchall()

    def _column(self, key: str) -> str:
        if key.startswith(_TAG):
            name = f"t{len(self.joins)}"
            self.values.append(key.removeprefix(_TAG))
            self.joins.append(f"LEFT JOIN tags {name} ON {name}.folder = r.folder AND {name}.tag = ${len(self.values)}")
            return f"{name}.value"
        if key in _OF_RUN:
            return f"r.{key}"
        return _MONTH_OF_DAY if key == "month" else f"c.{key}"


def _total(by: Sequence[str], line: tuple[Any, ...], work: Mapping[Any, Any], of_runs: Mapping[Any, Any]) -> FleetTotal:
    key, (runs, *figures) = line[: len(by)], line[len(by) :]
    *sums, measured_j, modelled_j = figures
    values = dict(zip(_SUMS, sums, strict=True))
    known, operational_g = values["energy_j"] is not None, values["operational_g"]
    rank_s, tokens, samples = work.get(key, (None, None, None))
    return FleetTotal(
        key=dict(zip(by, key, strict=True)),
        runs=runs,
        **values,
        measured_j=measured_j or 0.0 if known else None,
        modelled_j=modelled_j or 0.0 if known else None,
        total_g=None if operational_g is None else operational_g + (values["embodied_g"] or 0.0),
        rank_s=rank_s,
        tokens=tokens or None,
        samples=samples or None,
        **dict(zip(("saved_g", *_BOUNDS), of_runs.get(key, ()), strict=False)),
    )


def _by_key(lines: list[tuple[Any, ...]], keys: int) -> dict[Any, tuple[Any, ...]]:
    return {line[:keys]: line[keys:] for line in lines}


def _check_key(option: str, name: str, known: Sequence[str]) -> None:
    if not (name.startswith(_TAG) and len(name) > len(_TAG)):
        choice(option, name, (*known, "tag:..."))


def _day(option: str, text: str, *, last: bool) -> int:
    found = _MONTH.fullmatch(text)
    try:
        if found is None:
            raise ValueError("it is neither")
        year, month, day = int(found[1]), int(found[2]), int(found[3] or 1)
        date = datetime.date(year, month, day)
        if last and found[3] is None:
            date = datetime.date(year + month // 12, month % 12 + 1, 1) - datetime.timedelta(days=1)
    except ValueError as error:
        raise ConfigError(
            f"{option} is {text!r}; give a month or a day (UTC), for example 2026-01 or 2026-01-15"
        ) from error
    return (date - datetime.date(1970, 1, 1)).days
