"""The hourly carbon intensity of seven grids in 2022 that the repository holds (benchmarks/data), as files to read.

Where a benchmark is given another folder with ``--traces``, it reads that one: with the traces of Electricity Maps that
benchmarks/data/SOURCES.md names, all ten grids are compared.

    python benchmarks/held_traces.py FOLDER                # as CSV files, for greentrain simulate --trace
    python benchmarks/held_traces.py FOLDER --step-s 300   # in steps of five minutes too, interpolated and named so
"""

import argparse
import atexit
import lzma
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from greentrain.simulator.grid_trace import GridTrace
from greentrain.types import iso

HELD: Final = Path(__file__).resolve().parent / "data" / "traces"


def unpack(folder: Path) -> Path:
    """Write the held traces as CSV files into a folder, and return it.

    Args:
        folder: Folder that exists.
    """
    for path in HELD.glob("*.csv.xz"):
        (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return folder


@cache
def unpacked() -> Path:
    """Return a folder with the held traces as CSV files; it goes with the process."""
    folder = tempfile.mkdtemp(prefix="greentrain-traces-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return unpack(Path(folder))


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--traces`` to a benchmark's command line."""
    parser.add_argument("--traces", type=Path, help="folder of traces; without it, the seven grids of benchmarks/data")


def folder_of(parser: argparse.ArgumentParser, given: Path | None) -> Path:
    """Return the folder of traces that a command line asks for.

    Args:
        parser: Says so, and ends the program, where the folder is not there.
        given: What ``--traces`` was given, if anything.
    """
    if given is None:
        return unpacked()
    if not given.is_dir():
        parser.error(f"there is no folder {given}: --traces takes one with traces as in benchmarks/data, unpacked")
    return given


def interpolated(trace: GridTrace, step_s: float) -> GridTrace:
    """Return a grid in finer steps, whose means over the old steps are what was recorded.

    The finer values are differences of a monotone cubic through the sums of the old ones (Fritsch and Butland, SIAM J.
    Sci. Stat. Comput. 5, 1984), so that none is below 0 and no mean changes. Nobody recorded them: name and source say
    so, and noise within an old step is not in them.

    Args:
        trace: The grid.
        step_s: The finer step, a whole fraction of the old one (s).
    """
    from scipy.interpolate import PchipInterpolator

    each = round(trace.step_s / step_s)
    if each < 1 or each * step_s != trace.step_s:
        raise ValueError(f"step_s is {step_s:g}; it must be a whole fraction of the {trace.step_s:g} s of {trace.name}")
    steps = np.arange(len(trace.g_per_kwh) + 1)
    sums = PchipInterpolator(steps, np.concatenate([[0.0], np.cumsum(trace.g_per_kwh)]))
    fine = np.diff(sums(np.arange(len(trace.g_per_kwh) * each + 1) / each)) * each
    return replace(
        trace,
        name=f"{trace.name}_{step_s:g}s_interpolated",
        source=f"{trace.source}, interpolated to {step_s:g} s",
        step_s=step_s,
        g_per_kwh=np.maximum(fine, 0.0),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the CSV files go; made where there is none")
    parser.add_argument("--step-s", type=float, help="also in steps of so many seconds, interpolated")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(unpack(args.folder).glob("us_*_eia.csv")):
        if args.step_s is not None:
            fine = interpolated(GridTrace.read(path), args.step_s)
            times = fine.start_unix_s + np.arange(len(fine.g_per_kwh)) * fine.step_s
            rows = (f"{iso(t)},{value:.2f}" for t, value in zip(times.tolist(), fine.g_per_kwh.tolist(), strict=True))
            text = "\n".join(("timestamp_utc,g_per_kwh", *rows)) + "\n"
            (args.folder / f"{fine.name}.csv").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
