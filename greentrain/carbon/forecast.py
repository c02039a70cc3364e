"""The intensity of the coming hours from that of the last three weeks: a profile, and what is left of today's anomaly.

Per hour of the day the last 21 days are averaged, younger ones counting more (half-life a week). What is above or
below that profile now fades in four parts: the anomaly of the last hour, its rise over the hour before, the mean
anomaly of the last day, and a little of each hour's own anomaly a day before. How fast the first fades is measured on
the same three weeks, as wind persists and clouds pass: it is the autocorrelation at 6 h of what remains around the
mean of the day. Eight weeks or more also give the day of the week. Months are in the profile already, as it follows
the seasons.

The ten constants are rounded from those of least absolute error over all ten shared traces, 1 to 240 hours ahead
(``benchmarks/forecasting_fit.py``, 2026-11-21, which also fits them without the grid that they are judged on). Nothing
is fitted when forecasting.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.types import S_PER_HOUR, CarbonPoint, CarbonSignal

Array = NDArray[np.float64]

DAYS: Final = 21
"""Days of history in the profile."""
WEEKS: Final = 8
"""Weeks of history from which on the day of the week counts."""
_HALF_LIFE_D: Final = 7.0
_LAG_H: Final = 6
"""Where the autocorrelation is measured."""
_USUAL: Final = 0.4
"""What it is where three days are not known."""
_CHANCE_WEEKS: Final = 10.0
"""The mean anomaly of a day of the week over w weeks is expected again by w / (w + this): the rest is chance."""
_HALF: Final = 0.5
"""Share of an hour that a signal's own forecast has to cover."""
_TRUST_H: Final = 48
"""How far ahead forecasts are compared with what came (h)."""
_TRUST_PAST_H: Final = 14 * 24
"""What each of them knew (h)."""
_TRUST_ISSUES: Final = 21
"""How many of them: of the last week but for the last two days, which are not over yet."""
_FLOOR: Final = 0.5
"""Of the lowest value seen: nothing below is forecast, as a plan would wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fades:
    """How the parts of today's anomaly fade: the share that is left at once, and the time (h) in which 1/e is left."""

    last: float = 1.03
    """Anomaly of the last hour around the level of the last day."""
    last_h: float = 21.0
    """At the usual autocorrelation, 0.4."""
    last_growth: float = 4.0
    """By how much the logarithm of ``last_h`` grows with the autocorrelation."""
    rise: float = 0.41
    """Its rise over the hour before."""
    rise_h: float = 12.0
    level: float = 1.02
    """Mean anomaly of the last day."""
    level_h: float = 46.0
    same_hour: float = 0.36
    """Anomaly of the same hour in the last day."""
    same_hour_h: float = 100.0
    same_hour_rises_h: float = 11.5
    """Time in which it comes up, as the last hour's fades (h)."""


FADES: Final = Fades()


def profile_forecast(past_g_per_kwh: Array, hours: int, fades: Fades = FADES) -> Array:
    """Return the intensity of the coming hours.

    Args:
        past_g_per_kwh: (n, p) hourly, oldest first, NaN where unknown. The last 21 days count, from 8 weeks on all.
        hours: Number of hours.
        fades: Times and shares by which today's anomaly fades.

    Returns:
        (n, hours); column 0 is the hour after the last past one. Less than a day of history gives its mean, and what
        the last value is off it, fading; none gives NaN.
    """
    past = np.asarray(past_g_per_kwh, dtype=np.float64)
    ahead = np.arange(hours)
    weekday = _weekday(past) if past.shape[1] >= WEEKS * 168 else None
    if weekday is not None:
        past = past - np.tile(weekday, -(-past.shape[1] // 168))[:, -past.shape[1] :]
    days = min(DAYS, past.shape[1] // 24)
    found = _profile(past[:, -days * 24 :].reshape(-1, days, 24), ahead, fades) if days else _fading(past, ahead, fades)
    if weekday is not None:
        found += weekday[:, ahead % 168]
    lowest = np.fmin.reduce(past_g_per_kwh, axis=1, initial=np.inf, keepdims=True)
    floor: Array = np.maximum(found, lowest * np.where(lowest < 0, 2 - _FLOOR, _FLOOR))  # NaN where nothing is known
    return floor


def forecast_trust(past_g_per_kwh: Array, forecast: Callable[[Array, int], Array] = profile_forecast) -> float:
    """Return by how much a grid rose and fell where it was forecast to by 1, in the last week; 0 to 1.

    A plan that waits for a clean hour pays for the wait: on a grid whose swings are not those that were forecast it is
    better to plan with the mean. The slope of the truth on the forecast, both around their means over the 48 hours from
    each sixth hour on, says how much of a forecast to believe.

    Args:
        past_g_per_kwh: (p,) hourly, oldest first, NaN where unknown. Less than two weeks and two days give 1.
        forecast: Returns the coming hours from (n, p) past ones, and their number.
    """
    past = np.asarray(past_g_per_kwh, dtype=np.float64)
    ends = np.arange(_TRUST_PAST_H, len(past) - _TRUST_H + 1, 6)[-_TRUST_ISSUES:]
    if not len(ends):
        return 1.0
    windows = np.lib.stride_tricks.sliding_window_view(past, _TRUST_PAST_H + _TRUST_H)[ends - _TRUST_PAST_H]
    truth = windows[:, _TRUST_PAST_H:]
    told = np.where(np.isnan(truth), np.nan, forecast(windows[:, :_TRUST_PAST_H], _TRUST_H))
    known = np.isfinite(told)
    counts = np.maximum(known.sum(axis=1, keepdims=True), 1)
    swings = [
        np.where(known, x - np.where(known, x, 0.0).sum(axis=1, keepdims=True) / counts, 0.0) for x in (told, truth)
    ]
    square = float((swings[0] ** 2).sum())
    flat = square <= 1e-18 * float(np.nansum(told**2))
    return 1.0 if flat else min(1.0, max(0.0, float((swings[0] * swings[1]).sum()) / square))


def trusted(forecast_g_per_kwh: Array, trust: Array) -> Array:
    """Return (n, h) a forecast whose swings around its mean are as wide as (n,) the trust in it says."""
    mean = forecast_g_per_kwh.mean(axis=1, keepdims=True)
    return np.asarray(mean + (forecast_g_per_kwh - mean) * trust[:, None])


class ProfileForecast:
    """What a signal says of the coming hours, and the profile of its past for what it does not say.

    Args:
        signal: The signal; its own forecast comes first, where it has one.
    """

    def __init__(self, signal: CarbonSignal) -> None:
        self._signal = signal
        self.basis = ""
        """For people: what the last answer rests on."""
        self.own_h = 0
        """Hours of the last answer, the running one among them, that the signal said itself."""

    def ahead(self, t_unix_s: float, hours: int, past_g_per_kwh: Array) -> Array:
        """Return the intensity of the coming hours. Never blocks, never raises.

        Args:
            t_unix_s: Now (s since the epoch, UTC).
            hours: Number of hours.
            past_g_per_kwh: (p,) mean of each hour before now, oldest first, NaN where unknown.

        Returns:
            (hours,); column 0 is the hour that begins now, NaN where nobody knows anything.
        """
        own = self._own(t_unix_s, hours)
        if np.isnan(own[:1]).any():
            now = self._signal.mean(t_unix_s, t_unix_s).g_per_kwh
            own[:1] = np.nan if now is None else now
        until = int(np.max(np.flatnonzero(np.isfinite(own)), initial=-1)) + 1
        known = np.concatenate([past_g_per_kwh, own[:until]])
        rest = profile_forecast(known[None], hours - until)[0]
        if np.isnan(own[:until]).any():
            holes = profile_forecast(np.asarray(past_g_per_kwh)[None], until)[0]
            own[:until] = np.where(np.isnan(own[:until]), holes, own[:until])
        self.own_h = until
        self.basis = _basis(until, int(np.isfinite(past_g_per_kwh).sum()))
        return np.concatenate([own[:until], rest])

    def _own(self, t_unix_s: float, hours: int) -> Array:
        """Return the signal's own forecast by hour: means over time, NaN in hours of which it knows less than half."""
        ask = getattr(self._signal, "forecast", None)
        points: Sequence[CarbonPoint] = () if ask is None else ask(t_unix_s, t_unix_s + hours * S_PER_HOUR)
        total, time_s = np.zeros(hours), np.zeros(hours)
        for point in points:
            if point.g_per_kwh is None:
                continue
            t0_h, t1_h = ((t - t_unix_s) / S_PER_HOUR for t in (point.t0_unix_s, point.t1_unix_s))
            for hour in range(max(0, math.floor(t0_h)), min(hours, math.ceil(t1_h))):
                share = min(t1_h, hour + 1.0) - max(t0_h, float(hour))
                total[hour] += share * point.g_per_kwh
                time_s[hour] += share
        return np.asarray(np.divide(total, time_s, out=np.full(hours, np.nan), where=time_s >= _HALF))


def _basis(own_h: int, past_h: int) -> str:
    own = f"the source's own forecast for {own_h} h, then " if own_h > 1 else ""
    if past_h >= 24:
        return f"{own}the profile of {min(DAYS, past_h // 24)} days"
    if past_h or own_h:
        return f"{own}the mean of {past_h + own_h} h, for want of a day of history"
    return "nothing: no history is known"


def _profile(day: Array, ahead: NDArray[np.int64], fades: Fades) -> Array:
    """Return the forecast from (n, d, 24) whole days."""
    n, d, _ = day.shape
    known = np.isfinite(day)
    whole = bool(known.all())
    weights = 0.5 ** (np.arange(d)[::-1] / _HALF_LIFE_D)
    weights /= weights.sum()
    if whole:
        profile = np.einsum("d,ndh->nh", weights, day)
        left = (day - profile[:, None]).reshape(n, -1)
    else:
        profile = _profile_with_holes(day, known, weights)
        left = np.where(known, day - profile[:, None], 0.0).reshape(n, -1)
    recent, seen = left[:, -24:], known.reshape(n, -1)[:, -24:]
    others = 1.0 / (1.0 - weights[-1]) if d > 1 else 0.0  # what today alone is off the other days
    level = others * recent.sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
    own = np.where(seen, others * recent - level[:, None], 0.0)
    age = np.where(seen.any(axis=1), np.argmax(seen[:, ::-1], axis=1), 0)
    last = own[np.arange(n), 23 - age]
    rise = np.where(seen[:, -1] & seen[:, -2], others * (recent[:, -1] - recent[:, -2]), 0.0)
    k = ahead + 1.0
    last_h = fades.last_h * np.exp(fades.last_growth * (_persistence(left) - _USUAL))
    found = profile[:, ahead % 24]
    found += (fades.last * last)[:, None] * np.exp(-(k + age[:, None]) / last_h[:, None])
    found += np.outer(rise, fades.rise * np.exp(-k / fades.rise_h))
    found += np.outer(level, fades.level * np.exp(-k / fades.level_h))
    comes = fades.same_hour * (np.exp(-k / fades.same_hour_h) - np.exp(-k / fades.same_hour_rises_h))
    found += own[:, ahead % 24] * comes
    return np.asarray(found)


def _profile_with_holes(day: Array, known: NDArray[np.bool_], weights: Array) -> Array:
    """Return (n, 24): an hour that no day knows gets the mean of the hours that are known."""
    sums = np.einsum("d,ndh->nh", weights, np.where(known, day, 0.0))
    parts = np.einsum("d,ndh->nh", weights, known.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        profile = sums / parts
        means = np.nansum(profile, axis=1, keepdims=True) / np.isfinite(profile).sum(axis=1, keepdims=True)
    return np.asarray(np.where(parts > 0, profile, means))


def _persistence(left: Array) -> Array:
    """Return (n,) the autocorrelation of what is left around the mean of the last day, from 0 to 0.8."""
    if left.shape[1] < 72:
        return np.full(len(left), _USUAL)
    sums = np.cumsum(left, axis=1)
    around = left[:, 24:] - (sums[:, 24:] - sums[:, :-24]) / 24
    power = np.einsum("nt,nt->n", around, around)
    same = np.einsum("nt,nt->n", around[:, :-_LAG_H], around[:, _LAG_H:])
    measured = np.divide(same, power, out=np.full(len(left), _USUAL), where=power > 0)
    return np.asarray(np.clip(measured, 0.0, 0.8))


def _fading(past: Array, ahead: NDArray[np.int64], fades: Fades) -> Array:
    """Return the mean of less than a day, and what the last known value is off it, fading."""
    known = np.isfinite(past)
    count = known.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, past, 0.0).sum(axis=1) / count
    age = np.argmax(known[:, ::-1], axis=1) if past.shape[1] else np.zeros(len(past), dtype=np.int64)
    last = past[np.arange(len(past)), -1 - age] if past.shape[1] else mean
    off = np.where(count > 0, last - mean, 0.0)
    return np.asarray(mean[:, None] + off[:, None] * np.exp(-(ahead + 1.0 + age[:, None]) / fades.last_h))


def _weekday(past: Array) -> Array:
    """Return (n, 168) how far a day around each hour of the week is expected off the mean; hour 0 comes next."""
    weeks = past.shape[1] // 168
    some = past[:, -weeks * 168 :]
    known = np.isfinite(some)
    counts = np.maximum(known.sum(axis=1, keepdims=True), 1)
    flat = np.where(known, some, np.where(known, some, 0.0).sum(axis=1, keepdims=True) / counts)
    sums = np.cumsum(np.pad(flat, ((0, 0), (12, 12)), mode="edge"), axis=1)
    around = ((sums[:, 24:] - sums[:, :-24]) / 24).reshape(-1, weeks, 168)
    share = weeks / (weeks + _CHANCE_WEEKS)
    return np.asarray(share * (around - around.mean(axis=2, keepdims=True)).mean(axis=1))
