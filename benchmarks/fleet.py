"""Thousands of runs: how long the first index, a refresh and the totals take, and how much memory; beside others.

    python benchmarks/fleet.py                 # 2000 runs, two minutes on two idle cores, 0.6 GB of scratch
    python benchmarks/fleet.py --quick         # 40 runs: to see that it runs
    python benchmarks/fleet.py --into docs/fleet.md

Every figure is of a process of its own, the whole commands with its start. Others are pandas over CodeCarbon's
emissions.csv (its columns, the same totals by project; a file a run, and one file of all) and our own report of every
single run, of a sample and scaled. CodeCarbon's files have a line a run: no months within a run, no zones, no
provenance, and nothing of a run that was killed.
"""

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fleet_runs import append, size_of, write_emissions, write_runs
from benchmarks.marks import facts, put
from benchmarks.metering import machine
from greentrain.ledger.reader import read_run
from greentrain.report.fleet.index import Index
from greentrain.report.summary import summarize

BY: Final = ("project", "month", "zone", "provenance")
CHANGED: Final = 10
SAMPLE: Final = 40
"""Runs that are summarized one by one."""
PANDAS: Final = """
import sys, glob, pandas
files = glob.glob(sys.argv[1] + "/**/emissions.csv", recursive=True)
table = pandas.concat(pandas.read_csv(file) for file in files)
print(table.groupby("project_name")[["energy_consumed", "emissions"]].sum()["energy_consumed"].sum())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    unit: str
    value: float | None
    bar: float | None = None
    """Largest value that is fine; None: reported without one."""

    @property
    def verdict(self) -> str:
        """PASS or MISS; empty without a bar."""
        if self.bar is None:
            return ""
        return "PASS" if self.value is not None and self.value <= self.bar else "MISS"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="40 runs")
    parser.add_argument("--runs", type=int, default=2000, help="how many")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--into", type=Path, help="also put the table into this text, between its two marks")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        print(json.dumps(WORKERS[args.worker[0]](Path(args.worker[1]), Path(args.worker[2]))))
        return 0
    if args.into is not None and args.quick:
        parser.error("--into replaces the whole table, so it goes without --quick")
    count = 40 if args.quick else args.runs
    with tempfile.TemporaryDirectory(prefix="greentrain-fleet-") as scratch:
        about, rows = measure(Path(scratch), count)
    head = facts({**machine("benchmarks/fleet.py"), **about})
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("PASS", "MISS")}
    text = f"{head}\n\n{markdown(rows).strip()}\n\n{counts['PASS']} bars reached, {counts['MISS']} missed"
    print(text)
    if args.into is not None:
        put(text, args.into)
    if args.json is not None:
        lines = [{**dataclasses.asdict(row), "verdict": row.verdict} for row in rows]
        args.json.write_text(json.dumps({"about": about, "rows": lines}, indent=1), encoding="utf-8")
    return 0


def measure(scratch: Path, count: int) -> tuple[dict[str, str], list[Row]]:
    """Write the runs and measure."""
    runs, cache = scratch / "runs", scratch / "cache.duckdb"
    write_runs(runs, count)
    size, entries = size_of(runs)
    about = {"load": f"{os.getloadavg()[0]:.1f} before the runs were written"}
    about |= {"runs": f"{count}, {entries} intervals of 10 s, {size / 1e6:.0f} MB of journals"}
    first = _worker("refresh", runs, cache)
    again = _worker("refresh", runs, cache)
    for folder in sorted(runs.glob("*/*"))[: min(CHANGED, count)]:
        append(folder)
    changed = _worker("refresh", runs, cache)
    totals = _worker("totals", runs, cache)
    assert (first["added"], again["added"], changed["changed"]) == (count, 0, min(CHANGED, count))
    with Index(runs, cache) as index:
        write_emissions(index.runs(), scratch / "codecarbon")
    ours = _command([sys.executable, "-m", "greentrain", "report", "--all", str(runs), "--cache", str(cache), "--json"])
    each, whole = (
        _command([sys.executable, "-c", PANDAS, str(scratch / "codecarbon" / name)]) for name in ("each", "all")
    )
    single_s = _worker("single", runs, cache)["seconds"] * count
    return about, [
        Row(what="first index, all runs read", unit="s", value=first["seconds"], bar=0.015 * count),
        Row(what="the same, a run", unit="ms", value=1e3 * first["seconds"] / count),
        Row(what="the same, peak memory of the process", unit="MB", value=first["rss_mb"], bar=400),
        Row(what="refresh, nothing new", unit="s", value=again["seconds"], bar=1.0),
        Row(what=f"refresh, {min(CHANGED, count)} runs changed", unit="s", value=changed["seconds"], bar=1.5),
        Row(what=f"totals by {', '.join(BY)}", unit="s", value=totals["totals_s"], bar=0.2),
        Row(what="all rows", unit="s", value=totals["rows_s"], bar=0.5),
        Row(what="export of all runs, Parquet", unit="s", value=totals["parquet_s"], bar=1.0),
        Row(what="cache on disk", unit="MB", value=cache.stat().st_size / 1e6),
        Row(what="greentrain report --all, the whole command, nothing new", unit="s", value=ours),
        Row(what="pandas over CodeCarbon's files, one a run, the whole command", unit="s", value=each),
        Row(what="that / ours", unit="x", value=each / ours),
        Row(what="pandas over one emissions.csv of all runs, the whole command", unit="s", value=whole),
        Row(what="that / ours", unit="x", value=whole / ours),
        Row(what="our own summary of every single run (a sample, scaled)", unit="s", value=single_s),
        Row(what="that / first index", unit="x", value=single_s / first["seconds"]),
        Row(what="that / refresh, nothing new", unit="x", value=single_s / again["seconds"]),
    ]


def markdown(rows: Sequence[Row]) -> str:
    """Return the table."""
    lines = ["", "| what | | unit | limit | |", "|---|---|---|---|---|"]
    for row in rows:
        value = "n/a" if row.value is None else f"{row.value:.3g}"
        lines.append(
            f"| {row.what} | {value} | {row.unit} | {'' if row.bar is None else f'{row.bar:g}'} | {row.verdict} |"
        )
    return "\n".join(lines)


def _refresh(root: Path, cache: Path) -> dict[str, Any]:
    begin_s = time.perf_counter()
    with Index(root, cache) as index:
        found = index.refresh()
    seconds = time.perf_counter() - begin_s
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux, getrusage(2)
    return {"seconds": seconds, "rss_mb": rss_mb, "added": found.added, "changed": found.changed}


def _totals(root: Path, cache: Path) -> dict[str, Any]:
    with Index(root, cache) as index:
        index.refresh()
        return {
            "totals_s": _seconds(lambda: index.totals(BY)),
            "rows_s": _seconds(index.runs),
            "parquet_s": _seconds(lambda: index.export(cache.with_name("runs.parquet"))),
        }


def _single(root: Path, cache: Path) -> dict[str, Any]:
    folders = sorted(root.glob("*/*"))
    sample = folders[:: max(1, len(folders) // SAMPLE)]
    return {"seconds": _seconds(lambda: [summarize(read_run(folder)) for folder in sample]) / len(sample)}


WORKERS: Final[Mapping[str, Callable[[Path, Path], dict[str, Any]]]] = {
    "refresh": _refresh,
    "totals": _totals,
    "single": _single,
}


def _worker(name: str, root: Path, cache: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", name, str(root), str(cache)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def _command(words: list[str]) -> float:
    """Return seconds of a process, the best of three."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    return min(_seconds(lambda: subprocess.run(words, check=True, capture_output=True, env=environ)) for _ in range(3))


def _seconds(work: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s


if __name__ == "__main__":
    raise SystemExit(main())
