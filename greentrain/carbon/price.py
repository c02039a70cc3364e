"""What a kWh costs, as a function of time: constant, recorded or day-ahead, a tariff by time of use, or asked.

Inside the package a price is in currency/kWh, as in estimates; markets and their files say currency/MWh. It may be
below 0. What nobody knows is None, never 0.
"""

import importlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from greentrain.carbon.client import Secret, find_key
from greentrain.carbon.replayed import GridTime
from greentrain.carbon.series import Reading, Series
from greentrain.carbon.trace import Column, Staircase, read_trace
from greentrain.config.schema import PriceConfig
from greentrain.errors import ConfigError
from greentrain.types import CarbonKind, PricePoint, PriceSignal
from greentrain.utils.background import BackgroundWork
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import once, warn

KWH_PER_MWH: Final = 1000.0
PRICE: Final = Column(
    name="price_per_mwh",
    low=-1e7,
    high=1e7,  # a cap of 5,000 EUR/MWh (SDAC, 2025) is 2e6 HUF
    unit=" a MWh",
    remedy="convert the unit",
    key="price.trace_csv",
)
Found = tuple[float | None, CarbonKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A price by time, whoever tells it."""

    currency: str
    source: str
    of: Callable[[float, float], Found]
    """Returns the time average over an interval (currency/kWh) and how it came to be."""

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> PricePoint:
        """Return the time average over an interval; unknown where not all of it is known."""
        per_kwh, kind = self.of(t0_unix_s, t1_unix_s)
        return PricePoint(
            t0_unix_s=t0_unix_s,
            t1_unix_s=t1_unix_s,
            per_kwh=per_kwh,
            currency=self.currency,
            source=self.source,
            kind=kind,
        )


def price_trace(csv_path: Path | str, *, currency: str) -> Price:
    """Return the prices in a CSV file: columns ``timestamp_utc`` and ``price_per_mwh``. In a hole nothing is known.

    Args:
        csv_path: The file; times carry ``Z`` or an offset.
        currency: Currency of the prices.

    Raises:
        TraceError: The file is malformed.
    """
    rows = read_trace(csv_path, PRICE)
    steps, start_s = Staircase.of(rows, lambda row: ((rows.step_s, 0.0),)), rows.t_unix_s[0]  # a hole, never used

    def of(t0_unix_s: float, t1_unix_s: float) -> Found:
        value, hole = steps.mean(t0_unix_s - start_s, t1_unix_s - start_s)
        return None if hole or value is None else value / KWH_PER_MWH, CarbonKind.ACTUAL

    return Price(currency=currency, source=f"trace {Path(csv_path).name}", of=of)


_CELL_S: Final = 900.0
"""Bands change at quarters of an hour, and offsets of time zones are multiples of one (tzdata, since 1972)."""
_QUARTERS: Final = 96
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_HOURS: Final = re.compile(r"(\d{1,2})(?::(00|15|30|45))?-(\d{1,2})(?::(00|15|30|45))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TariffBand:
    """A price, and the days of the week, months and quarters of an hour that it is for, counted from 0."""

    per_kwh: float
    days: set[int]
    months: set[int]
    quarters: set[int]

    @classmethod
    def of(cls, text: str) -> "TariffBand":
        """Return the band that a line of ``price.tariff`` says.

        Raises:
            ConfigError: A word of it is no price, day, month or span of hours.
        """
        price, *words = text.lower().split() or [""]
        days, months, quarters = set(range(7)), set(range(12)), set(range(_QUARTERS))
        try:
            per_kwh = float(price)
            if not math.isfinite(per_kwh):
                raise ValueError(price)
            for word in words:
                if found := _HOURS.fullmatch(word):
                    h0, m0, h1, m1 = (int(part or 0) for part in found.groups())
                    quarters &= _span(h0 * 4 + m0 // 15, h1 * 4 + m1 // 15 - 1, _QUARTERS)
                else:
                    first, _, last = word.partition("-")
                    names, into = (_DAYS, days) if first in _DAYS else (_MONTHS, months)
                    into &= _span(names.index(first), names.index(last or first), len(names))
        except ValueError as error:
            raise ConfigError(
                f"price.tariff: {text!r} is no band ({error}); write a price a kWh, then days, months and hours, such"
                " as '0.38 mon-fri 17-21', '0.29 jun-sep' or '0.16 22:30-6'"
            ) from error
        return cls(per_kwh=per_kwh, days=days, months=months, quarters=quarters)

    def holds(self, moment: datetime) -> bool:
        """Return whether it is for a moment of its time zone."""
        quarter = moment.hour * 4 + moment.minute // 15
        return moment.weekday() in self.days and moment.month - 1 in self.months and quarter in self.quarters


def _span(first: int, last: int, count: int) -> set[int]:
    if not 0 <= first < count or not -1 <= last < count:
        raise ValueError("there is no such hour")
    return {(first + i) % count for i in range((last - first) % count + 1)}


def tariff(lines: Sequence[str], *, currency: str, time_zone: str = "UTC") -> Price:
    """Return a tariff by time of use.

    Args:
        lines: Bands as in ``price.tariff``; the first that holds counts.
        currency: Currency of the prices.
        time_zone: Time zone of days, months and hours (IANA).

    Raises:
        ConfigError: A band or the zone is wrong, or there are times for which no band is.
    """
    bands = [TariffBand.of(text) for text in lines]
    if len(lines[-1].split()) != 1:
        raise ConfigError(f"price.tariff ends with {lines[-1]!r}; end with a price alone, for all other times")
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"price.time_zone {time_zone!r} is not known; name one such as Europe/Berlin") from error

    def at(cell: int) -> float:
        moment = datetime.fromtimestamp(cell * _CELL_S, UTC).astimezone(zone)
        return next(band.per_kwh for band in bands if band.holds(moment))

    def of(t0_unix_s: float, t1_unix_s: float) -> Found:
        first, area = math.floor(t0_unix_s / _CELL_S), 0.0
        if len(bands) == 1 or t1_unix_s <= t0_unix_s:
            return at(first), CarbonKind.ACTUAL
        for cell in range(first, math.ceil(t1_unix_s / _CELL_S)):
            area += at(cell) * (min(t1_unix_s, (cell + 1) * _CELL_S) - max(t0_unix_s, cell * _CELL_S))
        return area / (t1_unix_s - t0_unix_s), CarbonKind.ACTUAL

    return Price(currency=currency, source=f"price.tariff of the configuration, {time_zone}", of=of)


KEY: Final = "ENTSOE_API_KEY"
"""Variable that entsoe-py reads its key from, too (0.8.1, entsoe/entsoe.py)."""
_HISTORY_S: Final = 22 * 86400.0
"""How far back it is asked: forecasts of what is not known yet use three weeks."""
_AHEAD_S: Final = 2 * 86400.0
_AGAIN_S: Final = 3600.0
"""Time between two questions (s): the auction's result for tomorrow comes once a day, at about 13:00 CET."""


class EntsoePrices:
    """Day-ahead prices of a bidding zone from ENTSO-E's Transparency Platform, through entsoe-py.

    It ran on answers in the platform's form, never on the platform (docs/status.md).

    Args:
        zone: Bidding zone as entsoe-py names it, such as ``DE_LU``.
        currency: Currency of the zone's prices.
        key: Key of the platform.

    Raises:
        MissingExtraError: entsoe-py is not installed.
    """

    def __init__(self, zone: str, *, currency: str, key: Secret) -> None:
        with try_import("price") as imports:
            from entsoe import EntsoePandasClient
        imports.check()
        pandas: Any = importlib.import_module("pandas")  # of entsoe-py, which takes no other times
        self._timestamp, self._client = pandas.Timestamp, EntsoePandasClient(key.reveal(), retry_count=1, timeout=30)
        self._zone, self._series, self._warn = zone, Series(), once(warn)
        self._work: BackgroundWork | None = None
        source = f"ENTSO-E Transparency Platform, day-ahead prices of {zone}"
        self._price = Price(currency=currency, source=source, of=self._of)

    def start(self) -> None:
        """Begin to ask, in a thread."""
        self._work = BackgroundWork("greentrain-price", self.fetch, _AGAIN_S)
        self._work.start()

    def close(self) -> None:
        """End the thread, without waiting for an answer that is under way."""
        work, self._work = self._work, None
        if work is not None:
            work.stop(0.0)

    def fetch(self) -> None:
        """Ask once. Never raises."""
        if self._work is None:  # the last pass of a thread that ends
            return
        now_s = datetime.now(UTC).timestamp()
        t0, t1 = (self._timestamp(t, unit="s", tz="UTC") for t in (now_s - _HISTORY_S, now_s + _AHEAD_S))
        try:
            found = self._client.query_day_ahead_prices(self._zone, start=t0, end=t1)
            self._series = self._series.plus(_readings(found, now_s)).since(now_s - _HISTORY_S)
        except Exception as error:  # its text may hold the address with the key
            why = type(error).__name__
            self._warn(f"{self._price.source} did not answer ({why}): what is not known of them stays unknown")

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> PricePoint:
        """Return the time average; unknown before the first answer, and where it does not cover the interval."""
        return self._price.mean(t0_unix_s, t1_unix_s)

    def _of(self, t0_unix_s: float, t1_unix_s: float) -> Found:
        found = self._series.mean(t0_unix_s, t1_unix_s)
        return found.g_per_kwh, found.kind  # which stands for what was put in: currency/kWh


def _readings(series: Any, fetched_s: float) -> Iterator[Reading]:
    """Yield prices (currency/kWh), each up to the next one, the last for as long as the shortest."""
    times = [moment.timestamp() for moment in series.index]
    steps = [b - a for a, b in itertools.pairwise(times)]
    least_s = min(steps, default=3600.0)
    for t0_s, step_s, price in zip(times, [*steps, least_s], series.tolist(), strict=True):
        length_s = step_s if step_s <= 4 * least_s else least_s  # an hour among quarters is one, a hole is none
        if math.isfinite(price):
            yield Reading(t0_s, t0_s + length_s, price / KWH_PER_MWH, CarbonKind.ACTUAL, None, fetched_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedPrice:
    """A price that is asked in real time and answers of the grid's."""

    signal: PriceSignal
    time: GridTime

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> PricePoint:
        """Return the grid's time average, at the asked times and marked as an estimate."""
        point = self.signal.mean(self.time.at(t0_unix_s), self.time.at(t1_unix_s))
        source = f"{point.source}; replayed: {self.time}"
        return replace(point, t0_unix_s=t0_unix_s, t1_unix_s=t1_unix_s, kind=CarbonKind.ESTIMATED, source=source)


def open_price(config: PriceConfig | None) -> PriceSignal | None:
    """Return the signal of ``price.signal``, checked and ready; None where there is no such section.

    Args:
        config: Section ``price``.

    Raises:
        ConfigError: A key is missing, or a band of the tariff is wrong.
        TraceError: The file of the trace is malformed.
        MissingExtraError: entsoe-py is not installed.
    """
    if config is None:
        return None
    if config.signal == "trace":
        return price_trace(str(config.trace_csv), currency=config.currency)
    if config.signal == "tariff":
        return tariff(config.tariff, currency=config.currency, time_zone=config.time_zone)
    if config.signal == "entsoe":
        return EntsoePrices(str(config.zone), currency=config.currency, key=find_key(KEY, "entsoe", section="price"))
    per_kwh, kind = config.per_kwh, CarbonKind.ESTIMATED
    return Price(
        currency=config.currency, source="price.per_kwh of the configuration", of=lambda t0, t1: (per_kwh, kind)
    )
