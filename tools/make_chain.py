"""Counts ``chain.npz`` on hourly traces: ``python -m tools.make_chain TRACES_DIR``.

Nothing is drawn, so there is no seed: the same traces give the same counts.
"""

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from greentrain.carbon.trace import read_trace
from greentrain.policy.chain import SHIPPED, IntensityChain
from greentrain.types import S_PER_HOUR

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
    return IntensityChain.count(histories, made_by=MADE_BY, sources=names)


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
    make_chain(arguments.traces_dir).save(arguments.output, about(arguments.traces_dir))


if __name__ == "__main__":
    main()
