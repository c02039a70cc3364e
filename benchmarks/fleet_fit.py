"""Where the constants of the fleet's workload generator are from: fitted to public traces of clusters that are not
shipped.

    python benchmarks/fleet_fit.py FOLDER         # ten seconds; prints the constants and how well they fit

FOLDER holds ``philly_runtime_s.csv`` (a column ``runtime``, s: how long jobs of Microsoft's Philly cluster ran) and
``openb_pods_2023.csv`` (a pod a line, with ``num_gpu`` and ``creation_time``, s: Alibaba's GPU cluster of 2023).
Their terms are unclear, so only what follows from them is kept in ``greentrain/simulator/cluster/workload.py``, as
these figures:

* lengths: a mixture of two log-normals of those above a minute, by expectation maximisation;
* widths: the shares of pods with 1, 2, 4 and 8 GPUs, among those that take any;
* arrivals: what the hours of the day and the days of the week bring over the mean, smoothed over three hours, and the
  shape of the gamma distribution by which an hour is busier than these say. The first percent of pods came before the
  recording was dense and is left out; its clock starts at an unknown hour, so the phase says nothing.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from greentrain.types import S_PER_HOUR

Array = NDArray[np.float64]

SHORTEST_S: Final = 60.0
"""Below it jobs failed at once: they are nobody's plan."""
TURNS: Final = 300
WIDTHS: Final = (1, 2, 4, 8)


def column(path: Path, name: str) -> Array:
    """Return the numbers of a column of a CSV file.

    Args:
        path: Path of the file.
        name: Name of the column.

    Raises:
        SystemExit: The file is not there or has no such column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return np.array([float(row[name]) for row in csv.DictReader(file)])
    except (OSError, KeyError) as error:
        raise SystemExit(f"{path}: {error}: name a folder with the traces that this script's head describes") from error


def lengths(runtime_s: Array) -> tuple[Array, Array, Array, float]:
    """Return weights, means and deviations of ln(s) of two log-normals, and how far the distributions are apart."""
    x = np.log(runtime_s[runtime_s > SHORTEST_S])
    weight, mean, deviation = np.array([0.5, 0.5]), np.quantile(x, [0.3, 0.8]), np.array([x.std(), x.std()])
    for _ in range(TURNS):
        density = weight * np.exp(-0.5 * ((x[:, None] - mean) / deviation) ** 2) / deviation
        share = density / density.sum(axis=1, keepdims=True)
        total = share.sum(axis=0)
        weight, mean = total / len(x), (share * x[:, None]).sum(axis=0) / total
        deviation = np.sqrt((share * (x[:, None] - mean) ** 2).sum(axis=0) / total)
    rng = np.random.default_rng(0)
    part = rng.choice(2, size=len(x), p=weight)
    drawn = rng.normal(mean[part], deviation[part])
    at = np.sort(x)
    far = np.abs(np.searchsorted(np.sort(drawn), at) / len(x) - np.arange(len(x)) / len(x))
    return weight, mean, deviation, float(far.max())


def rhythm(t_s: Array) -> tuple[Array, Array, float]:
    """Return (24,) and (7,) factors of the hours and days, and the shape of what is left of an hour's rate."""
    t_s = t_s[t_s > np.quantile(t_s, 0.01)]
    hour = (t_s // S_PER_HOUR).astype(np.int64)
    hour -= hour.min()
    counts = np.bincount(hour)[: len(np.bincount(hour)) // 168 * 168].astype(np.float64)
    weeks = counts.reshape(-1, 7, 24)
    by_hour = weeks.mean(axis=(0, 1)) / weeks.mean()
    by_hour = (np.roll(by_hour, 1) + by_hour + np.roll(by_hour, -1)) / 3
    by_day = weeks.mean(axis=(0, 2)) / weeks.mean()
    expected = weeks.mean() * by_day[:, None] * by_hour
    excess = ((weeks - expected) ** 2 - weeks).mean() / (expected**2).mean()
    return by_hour, by_day, float(1 / excess)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the two traces")
    folder = parser.parse_args(argv).folder
    weight, mean, deviation, far = lengths(column(folder / "philly_runtime_s.csv", "runtime"))
    gpus = column(folder / "openb_pods_2023.csv", "num_gpu")
    by_hour, by_day, shape = rhythm(column(folder / "openb_pods_2023.csv", "creation_time"))
    shares = np.array([np.sum(gpus == width) for width in WIDTHS]) / np.sum(gpus > 0)
    for name, values in (
        ("LENGTH_WEIGHT", weight),
        ("LENGTH_LN_S", mean),
        ("LENGTH_LN_SD", deviation),
        ("NARROW_SHARE", shares),
        ("BY_HOUR", by_hour),
        ("BY_DAY", by_day),
    ):
        print(f"{name} = ({', '.join(f'{value:.3g}' for value in values)})")
    print(f"BURST_SHAPE = {shape:.2f}")
    print(f"largest distance of the distributions of lengths: {far:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
