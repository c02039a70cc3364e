"""How wrong the forecast is on recorded grids, against its bars and two forecasts that cost nothing.

    python benchmarks/forecasting.py                                       # a minute
    python benchmarks/forecasting.py --into docs/scheduling-benchmarks.md

One forecast every 7 h over a year, after 21 days of history; each knows the hours before and nothing else. One thread.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from benchmarks.held_traces import add_argument, folder_of
from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.scheduling_common import TRACES
from benchmarks.tables import Table
from greentrain.carbon.forecast import DAYS, profile_forecast
from greentrain.simulator.grid_trace import GridTrace

Array = NDArray[np.float64]
Forecast = Callable[[Array, int], Array]

BARS: Final[Mapping[str, tuple[float, float]]] = {
    "us_caiso_2022_eia": (7.8, 10.5),
    "us_pjm_2022_eia": (2.9, 4.1),
    "us_miso_2022_eia": (5.1, 7.5),
    "us_ercot_2022_eia": (10.3, 14.3),
    "de_2023_em": (13.7, 22.0),
    "gb_2023_em": (18.1, 28.1),
}
"""Largest error at 6 and 24 h (% of the year's mean), set before it was written."""
PAST_H: Final = DAYS * 24
AHEAD_H: Final = 240
EVERY_H: Final = 7
HISTORIES: Final[Mapping[str, int]] = {
    "1 day": 24,
    "3 days": 72,
    "7 days": 168,
    "14 days": 336,
    "21 days": PAST_H,
    "12 weeks": 12 * 168,
}
_SHOWN: Final = (6, 24, 72, 240)
"""Hours ahead."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the forecasts: to see that it runs")
    add_argument(parser)
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between its two marks")
    args = parser.parse_args(argv)
    folder = folder_of(parser, args.traces)
    every = EVERY_H * (4 if args.quick else 1)
    years = {name: hourly(path) for name in TRACES if (path := folder / f"{name}.csv").exists()}
    tables = [errors(years, every), histories(years, every), speed(next(iter(years.values())))]
    text = "\n\n".join(table.markdown() for table in tables)
    print(text)
    print(f"\n{tables[0].passed} bars reached, {tables[0].missed} missed")
    if args.into is not None:
        about = facts(machine("benchmarks/forecasting.py"))
        put(f"{about}\n\n{text}", args.into, "forecast")
    return 0


def hourly(path: Path) -> Array:
    """Return the hours of a trace (g/kWh)."""
    trace = GridTrace.read(path)
    hours = int((trace.end_unix_s - trace.start_unix_s) // 3600)
    edges = trace.start_unix_s + 3600.0 * np.arange(hours + 1, dtype=np.float64)
    return np.asarray(np.diff(trace.integral(np.asarray(edges))) / 3600.0)


def nmae(values: Array, forecast: Forecast, every: int, past_h: int = PAST_H, first: int = PAST_H) -> Array:
    """Return (AHEAD_H,) the mean absolute error by hour ahead, in % of the mean of all values.

    Args:
        values: Of a year, hourly.
        forecast: Makes (n, hours) of (n, past) and hours.
        every: Hours from one forecast to the next.
        past_h: Hours that it is given.
        first: Hour of the first forecast.
    """
    origins = range(max(first, past_h), len(values) - AHEAD_H, every)
    past = np.stack([values[t - past_h : t] for t in origins])
    truth = np.stack([values[t : t + AHEAD_H] for t in origins])
    return np.asarray(100.0 * np.abs(forecast(past, AHEAD_H) - truth).mean(axis=0) / values.mean())


def errors(years: Mapping[str, Array], every: int) -> Table:
    """Hold the errors at 6 and 24 h to the bars, beside the last value and yesterday again."""
    rows, passed, missed = [], 0, 0
    for name, values in years.items():
        ours = nmae(values, profile_forecast, every)
        last = nmae(values, lambda past, hours: np.repeat(past[:, -1:], hours, axis=1), every)
        naive = nmae(values, lambda past, hours: past[:, -24 + np.arange(hours) % 24], every)
        bar = BARS.get(name)
        verdict = ""
        if bar is not None:
            held = [ours[hour - 1] <= limit for hour, limit in zip((6, 24), bar, strict=True)]
            passed, missed = passed + sum(held), missed + len(held) - sum(held)
            verdict = "PASS" if all(held) else "MISS"
        rows.append(
            [
                name,
                _pair(ours),
                "" if bar is None else f"{bar[0]:.1f} / {bar[1]:.1f}",
                verdict,
                _pair(last),
                _pair(naive),
                f"{ours[:24].mean():.1f}",
                f"{ours[71]:.1f}",
                f"{ours[239]:.1f}",
            ]
        )
    return Table(
        case="forecast",
        title="Error 6 / 24 h ahead, in % of the year's mean",
        head=["grid", "ours", "bar", "verdict", "last value", "yesterday again", "1 to 24 h", "72 h", "240 h"],
        rows=rows,
        notes=[
            f"One forecast every {every} h. The last three columns are ours; from three days on the error is that of"
            " the profile alone, as a grid's own past says no more about the wind of next week."
        ],
        passed=passed,
        missed=missed,
    )


def histories(years: Mapping[str, Array], every: int) -> Table:
    """Tell what more or less history buys: the error relative to that of 21 days, over the same hours."""
    first = max(HISTORIES.values())
    base = {name: nmae(values, profile_forecast, every, PAST_H, first) for name, values in years.items()}
    rows = []
    for label, past_h in HISTORIES.items():
        ratio = np.mean(
            [nmae(values, profile_forecast, every, past_h, first) / base[name] for name, values in years.items()],
            axis=0,
        )
        rows.append([label, *(f"{ratio[hour - 1]:.2f}" for hour in _SHOWN)])
    return Table(
        case="forecast",
        title="What history buys: error relative to that with 21 days, mean of all grids",
        head=["history", *(f"{hour} h ahead" for hour in _SHOWN)],
        rows=rows,
        notes=["From eight weeks on the day of the week counts as well."],
    )


def speed(values: Array) -> Table:
    """Tell what forecasts of 14 days cost, alone and side by side."""
    rows = []
    for n in (1, 24, 256):
        past = np.stack([values[t : t + PAST_H] for t in range(n)])
        spent = []
        for _ in range(20):
            began_s = time.process_time()
            profile_forecast(past, 14 * 24)
            spent.append(time.process_time() - began_s)
        rows.append([f"{n}", f"{1e6 * min(spent) / n:.0f}"])
    return Table(case="forecast", title="Cost of a forecast of 336 h", head=["forecasts at once", "us each"], rows=rows)


def _pair(found: Array) -> str:
    return f"{found[5]:.1f} / {found[23]:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
