"""A typical year: month x hour-of-day means of a zone, times a factor for the day of the week.

The profiles in ``typical.json`` are statistics that ``make_typical.py`` computed from one year of hourly data.
Months, hours and weekdays are those of UTC, so that no time-zone database is needed; daylight-saving time blurs
the hours of March and November a little. The profile says what is usual, not what happens: ``spread`` is how far
the year's hours were from it.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final

from greentrain.carbon.source import Stated
from greentrain.errors import CarbonSignalError, UnknownZoneError
from greentrain.types import S_PER_HOUR, CarbonPoint

ATTRIBUTION: Final = "U.S. Energy Information Administration, Form EIA-930 (hourly generation by fuel)"
"""Public domain, citation asked for; carried as hourly intensity by HewlettPackard/dc-rl (MIT)."""
BASIS: Final = "production"
_S_PER_DAY: Final = 24 * S_PER_HOUR
_LAST_UNIX_S: Final = 4_102_444_800.0
"""2100-01-01T00:00Z; beyond it, as before 1970, a typical year says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The typical year of one zone."""

    zone: str
    aliases: Sequence[str]
    name: str
    year: int
    """Year of the data."""
    mean_g_per_kwh: float
    """Mean of the year."""
    spread: float
    """Root mean square of (actual / profile - 1) over the hours of the year."""
    weekday: Sequence[float]
    """Factor by UTC day of the week, Monday first."""
    month_hour: Sequence[Sequence[float]]
    """Mean (gCO2e/kWh) by month, January first, and UTC hour of the day."""


def load_profiles() -> Sequence[Profile]:
    """Return the embedded profiles.

    Raises:
        CarbonSignalError: The package's typical.json is missing or damaged.
    """
    try:
        data = json.loads(files("greentrain.carbon").joinpath("typical.json").read_text(encoding="utf-8"))
        return [Profile(zone=zone, year=data["year"], **row) for zone, row in data["zones"].items()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CarbonSignalError(f"greentrain/carbon/typical.json is damaged ({error}); reinstall GreenTrain") from error


class TypicalSignal(Stated):
    """The usual carbon intensity of a zone at this month, hour and day of the week.

    Args:
        zone: ``US-CAL-CISO`` or its short form ``CISO``; case does not matter.

    Raises:
        UnknownZoneError: There is no profile; the message lists the nearest and all zones.
    """

    accounting = BASIS

    def __init__(self, zone: str) -> None:
        self.profile = _find(zone, load_profiles())
        self.zone = self.profile.zone
        self.source = f"typical year of {self.profile.name}; {ATTRIBUTION}, {self.profile.year}"
        self._day_mean = [sum(hours) / 24 for hours in self.profile.month_hour]

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        """Return the time average of the profile; None for times outside 1970 to 2100."""
        value: float | None = None
        if 0 <= t0_unix_s <= t1_unix_s < _LAST_UNIX_S:
            value = self._mean(t0_unix_s, t1_unix_s)
        return self._at(t0_unix_s, t1_unix_s, value, relative_error=self.profile.spread)

    def describe(self) -> Mapping[str, str]:
        """Return what the report says about the signal."""
        spread = f"{self.profile.spread:.0%} of the hour's value (root mean square, {self.profile.year})"
        terms = "public domain; cite the U.S. Energy Information Administration"
        return self._says("typical", "hour of a typical year", terms, name=self.profile.name, spread=spread)

    def _mean(self, t0: float, t1: float) -> float:
        first, last = int(t0 // S_PER_HOUR), int(t1 // S_PER_HOUR)
        if first == last:
            return self._hour(first)
        area = self._hour(first) * ((first + 1) * S_PER_HOUR - t0)
        hour = first + 1
        while hour < last:
            if hour % 24 == 0 and hour + 24 <= last:
                month, weekday = _calendar(hour)
                area += self._day_mean[month] * self.profile.weekday[weekday] * _S_PER_DAY
                hour += 24
            else:
                area += self._hour(hour) * S_PER_HOUR
                hour += 1
        if t1 > last * S_PER_HOUR:
            area += self._hour(last) * (t1 - last * S_PER_HOUR)
        return area / (t1 - t0)

    def _hour(self, hour: int) -> float:
        """Return the value of an hour, counted since the epoch."""
        month, weekday = _calendar(hour)
        return self.profile.month_hour[month][hour % 24] * self.profile.weekday[weekday]


def _calendar(hour: int) -> tuple[int, int]:
    moment = datetime.fromtimestamp(hour * S_PER_HOUR, UTC)
    return moment.month - 1, moment.weekday()


def _find(zone: str, profiles: Sequence[Profile]) -> Profile:
    names = {name.casefold(): p for p in profiles for name in (p.zone, *p.aliases)}
    key = zone.strip().casefold()
    if key in names:
        return names[key]
    near = difflib.get_close_matches(key, names, n=3, cutoff=0.5)
    hint = f" The nearest are {', '.join(dict.fromkeys(names[n].zone for n in near))}." if near else ""
    known = ", ".join(f"{p.zone} ({p.name})" for p in profiles)
    raise UnknownZoneError(
        f"carbon.zone {zone!r} has no typical profile.{hint} Known: {known}. For other places use carbon.signal"
        " 'constant' with a country or region, or 'trace' with a file"
    )
