"""Policies that others are compared with: they look at the grid or at a bill by a plain rule, or at neither.

* :class:`Threshold` suspends and resumes: it trains while the grid is cleaner than usual. The rule of "Let's wait
  awhile" (Wiesner et al., Middleware 2021, https://doi.org/10.1145/3464298.3493399) with a threshold that follows the
  work: a job that needs a share q of the time it has left runs while the intensity is within the lowest q of the last
  seven days.
* :class:`Spot` buys rank-hours while they are cheap, the more the cheaper they are (SPOT-ONLY of CarbonGearRL: width
  follows the price). Prices are from a file, or made up and labelled so.
* :class:`LowestWindow` takes the cheapest hours of the next day, the interruptible rule of the same paper on a rolling
  window: the work is spread evenly over the time left, and within each window it goes where the forecast is lowest.
* :class:`StaticSchedule` and :class:`CarbonBlind` do not look at the grid: the usual training, and the constant pace of
  least energy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.trace import Column, read_trace
from greentrain.errors import ConfigError, TraceError
from greentrain.policy.decision_kernel import ROUNDING
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array, Choice, Outlook
from greentrain.policy.waterfill import deadline_price, row_at
from greentrain.types import S_PER_HOUR

PRICE: Final = Column(
    name="price_per_h",
    low=-1e6,
    high=1e6,
    unit="",
    remedy="give the price of one rank and hour",
    key="policy.prices_csv",
    removed="to keep the price before",
)


@runtime_checkable
class Prices(Protocol):
    """The price of one rank and hour as a function of time. Policies ask for the present and the past only."""

    name: str
    """For reasons; says where the prices come from."""
    currency: str
    """For reasons; empty where it is not known."""

    def at(self, t_unix_s: Array) -> Array:
        """Return the prices at some times (s since the epoch, UTC), of the same shape; NaN where nobody knows."""


class PriceFile:
    """A CSV file with the columns ``timestamp_utc`` and ``price_per_h``; each value holds until the next one.

    Args:
        path: The file; times carry ``Z`` or an offset.
        currency: Currency of the prices, shown in reasons.

    Raises:
        ConfigError: The file cannot be read or is malformed; names file, line, value and remedy.
    """

    def __init__(self, path: Path | str, currency: str = "") -> None:
        path = Path(path)
        self.name = f"prices of {path.name}"
        self.currency = currency
        try:
            rows = read_trace(path, PRICE)
        except TraceError as error:
            raise ConfigError(str(error)) from error
        self._t_s, self._price = np.array(rows.t_unix_s), np.array(rows.values)

    def at(self, t_unix_s: Array) -> Array:
        """Return the prices; NaN before the first row, and past the last one by more than the usual distance."""
        i = np.searchsorted(self._t_s, t_unix_s, side="right") - 1
        known = (i >= 0) & (t_unix_s < self._t_s[-1] + np.median(np.diff(self._t_s)))
        return np.where(known, self._price[np.maximum(i, 0)], np.nan)


class SyntheticPrices:
    """Made-up prices, for trials without a file: dearer by day, and wandering by up to a third over hours.

    They are nobody's prices: only their shape, a daily wave and slow noise, is like that of a spot market. The same
    seed gives the same prices for ever.

    Args:
        seed: Seed of the noise.
        mean_per_h: Their mean.
    """

    KNOT_S: Final = 6 * S_PER_HOUR

    def __init__(self, seed: int = 0, mean_per_h: float = 2.0) -> None:
        self.name = f"synthetic prices, seed {seed}"
        self.currency = ""
        self._seed, self._mean = seed, mean_per_h

    def at(self, t_unix_s: Array) -> Array:
        """Return the prices."""
        knot, part = np.divmod(t_unix_s / self.KNOT_S, 1.0)
        noise = (1 - part) * self._noise(knot) + part * self._noise(knot + 1)
        day = np.sin(2 * np.pi * (t_unix_s / (24 * S_PER_HOUR) - 0.5))
        prices: Array = self._mean * (1.0 + 0.2 * day + noise / 3.0)
        return prices

    def _noise(self, knot: Array) -> Array:
        """Return numbers in -1..1 that depend on the seed and the knot alone (splitmix64's mixing of bits)."""
        x = np.asarray(knot).astype(np.int64).astype(np.uint64) + np.uint64(self._seed * 0x9E3779B97F4A7C15 % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
        found: Array = x.astype(np.float64) / 2.0**63 - 1.0
        return found


TRAILING_S = 7 * 24 * S_PER_HOUR
"""A week, so that working days and weekends are in it."""


def _needed(seen: Outlook, speed: float) -> tuple[Array, NDArray[np.bool_]]:
    """Return (n,) which share of the time left a speed (tokens/s) needs, and where there is no time to wait."""
    need_s = seen.tokens_left / speed
    return need_s / np.maximum(seen.left_s, 1e-9), need_s >= seen.left_s - seen.epoch_s


def _run_or_wait(
    row: int, run: NDArray[np.bool_], urgent: NDArray[np.bool_], reasons: Sequence[str], figures: Mapping[str, Array]
) -> Choice:
    """Return the row where it pays to run or there is no time to wait, else off; reasons: run, wait, urgent."""
    rows = np.where(run | urgent, row, OFF)
    return Choice(rows=rows, reasons=reasons, reason=np.where(urgent, 2, np.where(run, 0, 1)), figures=figures)


class Threshold:
    """Runs one row, or nothing.

    Args:
        menu: Menu of the choices of a job.
        row: The row; None: the usual training, ``menu.static``.
    """

    past_s = TRAILING_S
    ahead_s = 0.0

    def __init__(self, menu: Menu, row: int | None = None) -> None:
        self.name = "threshold"
        self._row = menu.static if row is None else row
        self._speed = float(menu.tokens_per_s[self._row])

    def choose(self, seen: Outlook) -> Choice:
        """Return the row where the running step is clean enough, else off."""
        now = seen.now_g_per_kwh
        steps = min(seen.past_g_per_kwh.shape[1], round(TRAILING_S / seen.step_s))
        trailing = seen.past_g_per_kwh[:, seen.past_g_per_kwh.shape[1] - steps :]
        duty, urgent = _needed(seen, self._speed)
        rank = np.count_nonzero(trailing < now[:, None], axis=1) / max(1, steps)
        return _run_or_wait(self._row, rank <= duty, urgent, _THRESHOLD_REASONS, {"duty": duty, "rank": rank})


_THRESHOLD_REASONS = (
    "{now:.0f} g/kWh: only {rank:.0%} of the last 7 days were cleaner, and {duty:.0%} of the time left is needed: run",
    "{now:.0f} g/kWh: {rank:.0%} of the last 7 days were cleaner, and {duty:.0%} of the time left is needed: wait",
    "{duty:.0%} of the time left is needed: run, at {now:.0f} g/kWh",
)


class Spot:
    """Runs one gear at the width at which the rest of the job costs least, if prices stay like the last week's.

    A rank more buys less speed than the one before, so that the best width falls as the price rises, down to nothing.
    That is the best plan of :mod:`greentrain.policy.waterfill` with ranks in place of watts and prices in place of
    intensities. Where a job has one width, it runs or waits.

    Args:
        menu: Menu of the choices of a job.
        prices: Source of prices; None makes them up, and says so in name and reasons.
        row: The row whose gear and power limit are used, at all widths; None: the usual training, ``menu.static``.
    """

    past_s = 0.0
    ahead_s = 0.0

    def __init__(self, menu: Menu, prices: Prices | None = None, row: int | None = None) -> None:
        self._prices = SyntheticPrices() if prices is None else prices
        self.name = "spot (synthetic prices)" if isinstance(self._prices, SyntheticPrices) else "spot"
        self._row = menu.static if row is None else row
        self._speed = float(menu.tokens_per_s[self._row])
        full = menu.actions[self._row]
        alike = [full is not None and a is not None and (a.gear, a.cap) == (full.gear, full.cap) for a in menu.actions]
        self._rows = np.append(OFF, np.flatnonzero(np.array(alike) & (menu.width <= menu.width[self._row])))
        bought = menu.only(self._rows)
        self._bought = replace(bought, power_w=bought.width.astype(np.float64))
        source = self._prices.name.replace("{", "{{").replace("}", "}}")
        unit = f" {self._prices.currency}".rstrip()
        paid = f"{{paid:.3g}}{unit} a rank and hour ({source}): "
        self._reasons = (
            paid + "{rank:.0%} of the last 7 days were cheaper, and {duty:.0%} of the time left is needed: {row}",
            paid + "{rank:.0%} of the last 7 days were cheaper, and {duty:.0%} of the time left is needed: wait",
            paid + "{duty:.0%} of the time left is needed: run",
        )

    def choose(self, seen: Outlook) -> Choice:
        """Return the row whose width pays at the price of now, the widest where nobody knows a price, or off."""
        paid = seen.price_per_h[:, 0] if seen.price_per_h is not None else self._prices.at(seen.t_unix_s)
        trailing = self._prices.at(_hours_before(seen.t_unix_s))
        known = np.isfinite(trailing)
        rank = ((trailing < paid[:, None]) & known).sum(axis=1) / np.maximum(1, known.sum(axis=1))
        duty, urgent = _needed(seen, self._speed)
        weights_s = np.where(known, (seen.left_s / np.maximum(1, known.sum(axis=1)))[:, None], 0.0)
        worth = deadline_price(np.maximum(trailing, _CHEAPEST), weights_s, seen.tokens_left, self._bought)
        worth[~known.any(axis=1)] = np.inf
        rows = np.where(paid <= 0, self._row, self._rows[row_at(self._bought, np.maximum(paid, _CHEAPEST), worth)])
        return Choice(
            rows=np.where(urgent, self._row, rows),
            reasons=self._reasons,
            reason=np.where(urgent, 2, np.where(rows == OFF, 1, 0)),
            figures={"paid": paid, "rank": rank, "duty": duty},
        )


_CHEAPEST: Final = 1e-9
"""A price of 0 or below counts as this in the week that was; now, it buys the widest row."""


def _hours_before(t_unix_s: Array) -> Array:
    """Return (n, 168): the hours of the last seven days."""
    hours = np.arange(round(TRAILING_S / S_PER_HOUR), 0, -1)
    before: Array = t_unix_s[:, None] - hours * S_PER_HOUR
    return before


class LowestWindow:
    """Runs one row in the cheapest steps of the window ahead, or nothing.

    Args:
        menu: Menu of the choices of a job.
        window_h: Length of the look ahead (h).
        row: The row; None: the usual training, ``menu.static``.
    """

    past_s = 0.0

    def __init__(self, menu: Menu, window_h: float = 24.0, row: int | None = None) -> None:
        self.name = "lowest_window"
        self.ahead_s = window_h * S_PER_HOUR
        self._row = menu.static if row is None else row
        self._speed = float(menu.tokens_per_s[self._row])

    def choose(self, seen: Outlook) -> Choice:
        """Return the row where the running step is among the cheapest of its window, else off."""
        steps = min(seen.forecast_g_per_kwh.shape[1], math.ceil(self.ahead_s / seen.step_s))
        ahead = seen.forecast_g_per_kwh[:, :steps]
        starts_s = np.arange(steps) * seen.step_s
        weight_s = np.clip(np.minimum(seen.left_s, self.ahead_s)[:, None] - starts_s, 0.0, seen.step_s)
        duty, urgent = _needed(seen, self._speed)
        cleaner_s = np.where(ahead < ahead[:, :1], weight_s, 0.0).sum(axis=1)
        wanted_s = duty * weight_s.sum(axis=1)
        figures = {
            "duty": duty,
            "cleaner_h": cleaner_s / S_PER_HOUR,
            "wanted_h": wanted_s / S_PER_HOUR,
            "window_h": np.full(len(duty), self.ahead_s / S_PER_HOUR),
        }
        return _run_or_wait(self._row, cleaner_s < wanted_s, urgent, _REASONS, figures)


_REASONS = (
    "{now:.0f} g/kWh: {cleaner_h:.0f} h of the next {window_h:.0f} h are cleaner, {wanted_h:.1f} h are needed: run",
    "{now:.0f} g/kWh: {cleaner_h:.0f} h of the next {window_h:.0f} h are cleaner, {wanted_h:.1f} h are needed: wait",
    "{duty:.0%} of the time left is needed: run, at {now:.0f} g/kWh",
)


class StaticSchedule:
    """One row from the start until all tokens are done.

    Args:
        menu: Menu of the choices of a job.
        row: The row; None: the usual training, ``menu.static``.
    """

    past_s = 0.0
    ahead_s = 0.0

    def __init__(self, menu: Menu, row: int | None = None) -> None:
        self.name = "static"
        self._row = menu.static if row is None else row

    def choose(self, seen: Outlook) -> Choice:
        """Return the row."""
        n = len(seen.left_s)
        return Choice(rows=np.full(n, self._row), reasons=_STATIC, reason=np.zeros(n, np.int64))


class CarbonBlind:
    """The least energy by the deadline, whatever the grid does: what is left, spread evenly over the time left.

    Between two rows of the hull it takes the faster one first, which changes row once instead of every epoch and keeps
    the deadline safe. Where idle ranks are held, no row pays that is slower than the one of least energy a token: the
    job ends when its tokens are done, and the holding with it.

    Args:
        menu: Menu of the choices of a job.
    """

    past_s = 0.0
    ahead_s = 0.0

    def __init__(self, menu: Menu) -> None:
        self.name = "carbon_blind"
        self._rows = menu.hull[menu.tokens_per_s[menu.hull] > 0]
        self._speeds = menu.tokens_per_s[self._rows]
        self._leanest = int(np.argmin(menu.power_w[self._rows] / self._speeds))

    def choose(self, seen: Outlook) -> Choice:
        """Return the slowest row on the hull that is in time."""
        pace = seen.tokens_left / np.maximum(seen.left_s, 1e-9)
        step = np.searchsorted(self._speeds, pace * (1 - ROUNDING))
        rows = self._rows[np.clip(step, self._leanest, len(self._rows) - 1)]
        return Choice(rows=rows, reasons=_BLIND, reason=np.zeros(len(rows), np.int64), figures={"pace": pace})


_STATIC = ("static: {row} until all tokens are done",)
_BLIND = ("{pace:.4g} tokens/s are needed until the deadline, whatever the grid does: {row}",)
