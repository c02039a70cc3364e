"""How fast the search for a layout is.

python benchmarks/estimator_search.py                       # five seconds
python benchmarks/estimator_search.py --into docs/estimate-benchmarks.md
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.marks import facts, put, table
from benchmarks.metering import machine
from greentrain.estimate import hardware, shapes
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.search import search, smallest_count, sweep
from greentrain.estimate.workload import Workload

COUNT: Final = 16_384
MANY: Final = 250_000
DENSE: Final = ("llama-3.1-405b", 8192, 16e6)
SPARSE: Final = ("deepseek-v3", 4096, 63e6)
LIMIT_S: Final = 80 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A time and what it is held to."""

    what: str
    layouts: int
    median_s: float
    worst_s: float
    most_s: float | None
    """None: shown without a bar."""
    found: str

    @property
    def verdict(self) -> str:
        """PASS or MISS, by the median; empty without a bar."""
        return "" if self.most_s is None else "PASS" if self.median_s <= self.most_s else "MISS"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11, help="of each time; the median counts")
    parser.add_argument("--into", type=Path, help="also put the table into this text, between its marks")
    args = parser.parse_args(argv)
    about = {**machine("benchmarks/estimator_search.py"), "load": f"{os.getloadavg()[0]:.1f}"}
    text = markdown(measured(args.repeats), about)
    print(text)
    if args.into is not None:
        put(text, args.into, "search")
    return 0


def measured(repeats: int) -> list[Bar]:
    """Return the times of searches and sweeps."""
    device = hardware.find("H100-SXM")
    bars = []
    for kind, given, most_s in (("dense", DENSE, 0.020), ("256 experts", SPARSE, 0.100)):
        shape, workload = _task(given)
        found = search(shape, workload, device, COUNT)
        took = _seconds(partial(search, shape, workload, device, COUNT), repeats)
        bars.append(_bar(f"search, {COUNT:,} devices, {kind}", found.tried, took, most_s, str(found.layout)))
    for kind, given in (("dense", DENSE), ("256 experts", SPARSE)):
        shape, workload = _task(given)
        counts: list[int] = []
        tried = 0
        while tried < MANY:  # whole multiples, so that there are many ways to split
            counts.append(64 * (len(counts) + 1))
            tried = sweep(shape, workload, device, counts).tried if len(counts) % 8 == 0 else tried
        took = _seconds(partial(sweep, shape, workload, device, counts), repeats)
        what = f"sweep of {len(counts)} numbers of devices, {kind}"
        bars.append(_bar(what, tried, took, 0.5, f"{64:,} to {counts[-1]:,} devices"))
    shape, workload = _task(DENSE)
    least = smallest_count(shape, workload, device, LIMIT_S)
    took = _seconds(partial(smallest_count, shape, workload, device, LIMIT_S), repeats)
    what = f"fewest devices for {workload.tokens:g} tokens in {LIMIT_S / 86_400:.0f} days, dense"
    bars.append(_bar(what, least.tried, took, None, f"{least.count:,} devices: {least.layout}"))
    return bars


def markdown(bars: Sequence[Bar], about: dict[str, str]) -> str:
    """Return the table, and where it was made."""
    rows = [
        (
            bar.what,
            f"{bar.layouts:,}",
            f"{1e3 * bar.median_s:.1f}",
            f"{1e3 * bar.worst_s:.1f}",
            "" if bar.most_s is None else f"{1e3 * bar.most_s:.0f}",
            bar.verdict,
            bar.found,
        )
        for bar in bars
    ]
    head = ("what", "layouts", "median ms", "worst ms", "at most ms", "verdict", "found")
    return "\n".join([facts(about), "", table(head, rows)])


def _task(given: tuple[str, int, float]) -> tuple[ModelShape, Workload]:
    name, sequence, batch_tokens = given
    return shapes.find(name), Workload(tokens=15e12, sequence=sequence, batch_tokens=batch_tokens)


def _bar(what: str, layouts: int, took: Sequence[float], most_s: float | None, found: str) -> Bar:
    return Bar(what=what, layouts=layouts, median_s=median(took), worst_s=max(took), most_s=most_s, found=found)


def _seconds(work: Callable[[], object], repeats: int) -> list[float]:
    took = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        work()
        took.append(time.perf_counter() - start_s)
    return took


if __name__ == "__main__":
    raise SystemExit(main())
