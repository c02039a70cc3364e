"""What the policies save on the shared grids, against their bars: 24 windows of 14 days a grid.

    python benchmarks/scheduling.py                       # all cases
    python benchmarks/scheduling.py --only bars           # a minute
    python benchmarks/scheduling.py --into docs/scheduling-benchmarks.md

The grids are recorded; the action table is assumed (``greentrain.simulator.reference_table``). One thread.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import scheduling_savings, scheduling_speed, scheduling_switching
from benchmarks.metering import machine
from benchmarks.scheduling_common import Bench, Table

CASES: Mapping[str, Callable[[Bench], list[Table]]] = {
    "bars": scheduling_savings.bars,
    "policies": scheduling_savings.policies,
    "ablation": scheduling_savings.ablation,
    "switching": scheduling_switching.switching,
    "speed": scheduling_speed.speed,
}
MARKS = ("<!-- results: {} -->", "<!-- end of {} -->")
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two grids and four windows: to see that it runs")
    parser.add_argument("--only", action="append", choices=list(CASES), help="run this case (may be repeated)")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the traces (beside the checkout)")
    parser.add_argument("--json", type=Path, help="also write the tables here")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, each between its two marks")
    args = parser.parse_args(argv)
    if not args.traces.is_dir():
        parser.error(f"there is no folder {args.traces}: name the one with the shared traces with --traces")
    bench = Bench(quick=args.quick, folder=args.traces, say=_log)
    about = machine("benchmarks/scheduling.py")
    tables: list[Table] = []
    for name in args.only or list(CASES):
        began_s = time.monotonic()
        found = CASES[name](bench)
        tables += found
        _log(f"{name}: {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}")
        text = "\n\n".join(markdown(table) for table in found)
        print(text, end="\n\n", flush=True)
        if args.into is not None:
            facts = "\n".join(f"- {key}: {value}" for key, value in about.items())
            old = args.into.read_text(encoding="utf-8")
            args.into.write_text(replaced(old, name, f"{facts}\n\n{text}"), encoding="utf-8")
    print(f"{sum(t.passed for t in tables)} bars reached, {sum(t.missed for t in tables)} missed")
    if args.json is not None:
        data = {"machine": about, "tables": [asdict(table) for table in tables]}
        args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


def markdown(table: Table) -> str:
    """Return a table as Markdown, its verdicts counted below."""
    lines = [f"### {table.title}", "", f"| {' | '.join(table.head)} |", f"|{'|'.join('---' for _ in table.head)}|"]
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    notes = list(table.notes)
    if table.passed or table.missed:
        notes.append(f"{table.passed} bars reached, {table.missed} missed.")
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def replaced(text: str, case: str, table: str) -> str:
    """Return a text with another table between the two marks of a case."""
    begin, end = (mark.format(case) for mark in MARKS)
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the text lacks {begin} or, behind it, {end}: add both lines where the table goes")
    return f"{head}{begin}\n\n{table}\n\n{end}{tail}"


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
