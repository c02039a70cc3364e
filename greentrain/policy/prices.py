"""What a rank costs by the hour: from a file, or made up and labelled so."""

import csv
import math
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import numpy as np

from greentrain.errors import ConfigError
from greentrain.policy.outlook import Array
from greentrain.types import S_PER_HOUR
from greentrain.utils.validation import moment

TIME: Final = "timestamp_utc"
VALUE: Final = "price_per_h"


@runtime_checkable
class Prices(Protocol):
    """The price of one rank and hour as a function of time. Policies ask for the present and the past only."""

    name: str
    """For reasons; says where the prices come from."""
    currency: str
    """For reasons; empty where it is not known."""

    def at(self, t_unix_s: Array) -> Array:
        """Return the prices at some times (s since the epoch, UTC), of the same shape; NaN where nobody knows."""
        ...


class PriceFile:
    """A CSV file with the columns ``timestamp_utc`` and ``price_per_h``; each value holds until the next one.

    Args:
        path: The file; times carry ``Z`` or an offset.
        currency: For reasons.

    Raises:
        ConfigError: The file cannot be read or is malformed; names file, line, value and remedy.
    """

    def __init__(self, path: Path | str, currency: str = "") -> None:
        path = Path(path)
        self.name = f"prices of {path.name}"
        self.currency = currency
        self._t_s, self._price = _read(path)

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
        seed: Of the noise.
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


def _read(path: Path) -> tuple[Array, Array]:
    times: list[float] = []
    prices: list[float] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if TIME not in (reader.fieldnames or ()) or VALUE not in (reader.fieldnames or ()):
                raise ConfigError(f"{path}:1: the columns are {reader.fieldnames}; prices need {TIME!r} and {VALUE!r}")
            for row in reader:
                where = f"{path}:{reader.line_num}: "
                times.append(moment(f"{where}{TIME}", str(row[TIME]).strip()).timestamp())
                prices.append(_price(row[VALUE], where))
                if len(times) > 1 and not times[-1] > times[-2]:
                    raise ConfigError(f"{where}{TIME} {row[TIME]!r} is not after that of the row before; sort the rows")
    except OSError as error:
        raise ConfigError(
            f"cannot read the prices {path}: {error.strerror or error}; check policy.prices_csv"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV text in UTF-8: {error}") from error
    if len(times) < 2:
        raise ConfigError(f"{path} has {len(times)} rows of data; prices need two or more, to know their step")
    return np.array(times), np.array(prices)


def _price(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise ConfigError(
            f"{where}{VALUE} is {text!r}, not a number; remove the line to keep the price before"
        ) from None
    if not (math.isfinite(value) and -1e6 <= value <= 1e6):
        raise ConfigError(f"{where}{VALUE} is {text!r}; it must be between -1e6 and 1e6")
    return value
