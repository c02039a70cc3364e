"""Where the constants of the forecast are from: fitted to all grids together, then without the one they are judged on.

    python benchmarks/forecasting_fit.py          # five minutes; prints the constants and the table

The loss is the mean over grids of the absolute error relative to that of fixed fades of 6 h (an hour's anomaly) and
36 h (the day's level), weighted by 1 / sqrt(hours ahead), from 1 to 240 h ahead. SciPy's Nelder-Mead.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from functools import cached_property
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.forecasting import PAST_H, hourly
from benchmarks.held_traces import add_argument, folder_of
from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.scheduling_common import TRACES
from benchmarks.tables import Table
from greentrain.carbon.forecast import FADES, Fades, profile_forecast

Array = NDArray[np.float64]

EVERY_H: Final = 11
"""Hours between two forecasts: no divisor of a day, so that every hour of the day comes about."""
HOURS: Final = np.array([1, 2, 3, 4, 6, 8, 10, 12, 15, 18, 21, 24, 28, 32, 36, 42, 48, 60, 72, 96, 120, 168, 240])
"""Hours ahead that are judged."""
WEIGHTS: Final = 1 / np.sqrt(HOURS) / (1 / np.sqrt(HOURS)).sum()
FIXED: Final = Fades(last=0.894, last_h=6.0, last_growth=0.0, rise=0.0, level=0.894, level_h=36.0, same_hour=0.0)
"""What the errors are relative to: the forecast of the bars, whose profile holds today's own 10.6 %."""


class Grid:
    """Forecasts of a year, and what came.

    Args:
        values: Hourly (g/kWh).
    """

    def __init__(self, values: Array) -> None:
        origins = range(PAST_H, len(values) - int(HOURS[-1]), EVERY_H)
        self._past = np.stack([values[t - PAST_H : t] for t in origins])
        self._truth = np.stack([values[t + HOURS - 1] for t in origins])

    def error(self, fades: Fades) -> float:
        """Return the error relative to that of fixed fades."""
        return float((self._errors(fades) / self._base) @ WEIGHTS)

    @cached_property
    def _base(self) -> Array:
        return self._errors(FIXED)

    def _errors(self, fades: Fades) -> Array:
        found = profile_forecast(self._past, int(HOURS[-1]), fades)[:, HOURS - 1]
        return np.asarray(np.abs(found - self._truth).mean(axis=0))


def fitted(grids: Sequence[Grid], start: Fades, most: int) -> Fades:
    """Return the constants of the least error over grids.

    Args:
        grids: Which.
        start: Where the search begins.
        most: How many constants it may try.
    """
    found = minimize(
        lambda x: float(np.mean([grid.error(_fades(x)) for grid in grids])),
        np.array(astuple(start)),
        method="Nelder-Mead",
        options={"maxfev": most, "xatol": 1e-2, "fatol": 1e-5},
    )
    return _fades(found.x)


def left_out(grids: Mapping[str, Grid], together: Fades, most: int) -> Table:
    """Judge each grid with constants that never saw it."""
    rows, losses = [], []
    for name, grid in grids.items():
        others = fitted([other for other in grids.values() if other is not grid], together, most)
        shipped, all_, without = grid.error(FADES), grid.error(together), grid.error(others)
        losses.append(without / all_ - 1)
        rows.append([name, f"{shipped:.3f}", f"{all_:.3f}", f"{without:.3f}", f"{100 * losses[-1]:.1f}"])
        print(f"{name}: {_text(others)}", file=sys.stderr, flush=True)
    return Table(
        case="fit",
        title="Error relative to fixed fades of 6 and 36 h, 1 to 240 h ahead",
        head=["grid", "shipped", "fitted to all grids", "fitted without this grid", "loss by that, %"],
        rows=rows,
        notes=[
            f"Mean loss {100 * float(np.mean(losses)):.1f} %.",
            f"Shipped: {_text(FADES)}.",
            f"Fitted: {_text(together)}.",
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few tries: to see that it runs")
    add_argument(parser)
    parser.add_argument("--into", type=Path, help="also put the table into this text, between its two marks")
    args = parser.parse_args(argv)
    folder = folder_of(parser, args.traces)
    names = [name for name in TRACES if (folder / f"{name}.csv").exists()][: 2 if args.quick else None]
    grids = {name: Grid(hourly(folder / f"{name}.csv")) for name in names}
    together = fitted(list(grids.values()), FADES, 5 if args.quick else 500)
    text = left_out(grids, together, 5 if args.quick else 150).markdown()
    print(text)
    if args.into is not None:
        about = facts(machine("benchmarks/forecasting_fit.py"))
        put(f"{about}\n\n{text}", args.into, "forecast-fit")
    return 0


def _text(fades: Fades) -> str:
    return ", ".join(f"{field.name} {getattr(fades, field.name):.3g}" for field in fields(Fades))


def _fades(x: Array) -> Fades:
    return Fades(**dict(zip((f.name for f in fields(Fades)), x.tolist(), strict=True)))


if __name__ == "__main__":
    raise SystemExit(main())
