"""Counts ``chain.npz`` on hourly traces: ``python -m tools.make_chain TRACES_DIR``.

Nothing is drawn, so there is no seed: the same traces give the same counts.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from greentrain.carbon.forecast import profile_forecast
from greentrain.carbon.trace import read_trace
from greentrain.errors import ConfigError
from greentrain.policy.chain import SHIPPED, STATES, TREND_H, IntensityChain, state, trailing_mean
from greentrain.policy.outlook import Array
from greentrain.types import S_PER_HOUR

HISTORY_H: Final = 21 * 24
"""What a forecast looks back on."""
MADE_BY: Final = "python -m tools.make_chain TRACES_DIR"
TRACES: Final = (
    "us_caiso_2022_eia",
    "us_pjm_2022_eia",
    "us_miso_2022_eia",
    "us_ercot_2022_eia",
    "us_nyiso_2022_eia",
    "us_soco_2022_eia",
    "us_bpat_2022_eia",
)
"""Hourly gCO2/kWh of 2022, EIA-930 (U.S. government, public domain), carried by HewlettPackard/dc-rl (MIT)."""


def make_chain(traces_dir: Path, names: Sequence[str] = TRACES) -> IntensityChain:
    """Return the chain counted on some traces.

    Raises:
        TraceError: A trace is missing or malformed.
        ValueError: A trace is not hourly.
    """
    histories = []
    for name in names:
        rows = read_trace(traces_dir / f"{name}.csv")
        if rows.step_s != S_PER_HOUR:
            raise ValueError(f"the trace {name} has a step of {rows.step_s:g} s; an hourly one is needed")
        histories.append(np.array(rows.values))
    return count(histories)


def count(histories: Sequence[Array]) -> IntensityChain:
    """Count the hours of some grids.

    Args:
        histories: One array a grid: hourly intensity without gaps (g/kWh), at least 21 days and a day.

    Raises:
        ConfigError: A history is too short.
    """
    counts = np.zeros((STATES, STATES), np.int64)
    level_sum = np.zeros(STATES)
    for g_per_kwh in histories:
        if len(g_per_kwh) < HISTORY_H + 24:
            raise ConfigError(
                f"a history of {len(g_per_kwh)} h is too short to count a chain on: {HISTORY_H + 24} h are needed"
            )
        relative, trend = _hours(np.asarray(g_per_kwh, np.float64))
        x = state(relative, trend)
        np.add.at(counts, (x[:-1], x[1:]), 1)
        np.add.at(level_sum, x[:-1], relative[:-1])
    return IntensityChain(counts=counts, level_sum=level_sum)


def save(chain: IntensityChain, path: Path, about: dict[str, Any]) -> None:
    """Write the counts of a chain, those that are not 0.

    Args:
        chain: The chain.
        path: File to write.
        about: Facts on its origin: ``made_by``, ``traces`` and what else a reader should know.
    """
    before, after = np.nonzero(chain.counts)
    np.savez_compressed(
        path,
        before=before.astype(np.uint16),
        after=after.astype(np.uint16),
        hours=chain.counts[before, after].astype(np.uint16),
        level_sum=chain.level_sum,
        about=json.dumps(about, sort_keys=True),
    )


def _hours(g_per_kwh: Array) -> tuple[Array, Array]:
    """Return relative intensity and trend of all hours with enough history, oldest first."""
    windows = np.lib.stride_tricks.sliding_window_view(g_per_kwh, HISTORY_H)
    now = windows[:, -1]
    mean = trailing_mean(windows[:, :-1], now, S_PER_HOUR)
    ahead = profile_forecast(windows, TREND_H).mean(axis=1)
    return now / mean, (ahead - now) / mean


def about(traces_dir: Path, names: Sequence[str] = TRACES) -> dict[str, Any]:
    """Return where the counts are from."""
    return {
        "made_by": MADE_BY,
        "traces": list(names),
        "sha256": {name: hashlib.sha256((traces_dir / f"{name}.csv").read_bytes()).hexdigest() for name in names},
        "source": "EIA-930 hourly generation of 2022 (U.S. government, public domain), via HewlettPackard/dc-rl (MIT)",
        "seed": "none: nothing is drawn",
    }


def main() -> None:
    """Write chain.npz."""
    parser = argparse.ArgumentParser(description="Count how hourly carbon intensity goes on, on EIA's traces.")
    parser.add_argument("traces_dir", type=Path, help="folder with us_*_2022_eia.csv")
    parser.add_argument("--output", type=Path, default=SHIPPED)
    arguments = parser.parse_args()
    save(make_chain(arguments.traces_dir), arguments.output, about(arguments.traces_dir))


if __name__ == "__main__":
    main()
