"""GreenTrain beside codecarbon and zeus on the same fake GPUs, whose true energy is known: one run, one table.

    python benchmarks/metering.py                    # everything, in a quarter of an hour on two idle cores
    python benchmarks/metering.py --quick            # shorter runs, fewer windows
    python benchmarks/metering.py --only window --json out.json

Needs gcc; codecarbon and zeus are shown as "not installed" where they are not. No GPU, no network.
"""

import argparse
import importlib.metadata
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import (
    metering_accuracy,
    metering_background,
    metering_cost,
    metering_killed,
    metering_phases,
    metering_robust,
    metering_size,
)
from benchmarks.marks import facts
from benchmarks.metering_common import CODECARBON, OUT_OF_REACH, TOOLS, ZEUS, Bench, Row, Value
from benchmarks.tables import log
from greentrain.testing.fake_nvml import build_library

CASES: Mapping[str, Callable[[Bench], list[Row]]] = {
    "total": metering_accuracy.total,
    "window": metering_accuracy.window,
    "phase": metering_phases.phase,
    "carbon": metering_robust.carbon,
    "ranks": metering_robust.ranks,
    "step": metering_cost.steps,
    "background": metering_background.background,
    "import": metering_cost.imports,
    "size": metering_size.size,
    "killed": metering_killed.killed,
}
MARK = "<!-- results: python benchmarks/metering.py --into docs/benchmarks.md -->"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter runs and fewer windows")
    parser.add_argument("--only", action="append", choices=list(CASES), help="run this case (may be repeated)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--into", type=Path, help=f"also put the table into this text, after the line {MARK!r}")
    args = parser.parse_args(argv)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="metering-") as folder:
        scratch = Path(folder)
        bench = Bench(quick=args.quick, library=build_library(scratch), scratch=scratch, say=log)
        if not args.quick and "killed" in (args.only or CASES):
            bench.begun[metering_killed.LONG] = metering_killed.begin_long(bench)
        for name in args.only or CASES:
            began_s = time.monotonic()
            rows += CASES[name](bench)
            log(f"{name}: {time.monotonic() - began_s:.0f} s")
    about = machine("benchmarks/metering.py")
    table = _markdown(rows, about, bench.notes)
    print(table)
    if args.into is not None:
        kept = args.into.read_text(encoding="utf-8").partition(MARK)[0]
        args.into.write_text(f"{kept}{MARK}\n\n{table}\n", encoding="utf-8")
    if args.json is not None:
        data = {"machine": about, "rows": [asdict(row) | {"verdict": row.verdict} for row in rows]}
        args.json.write_text(json.dumps(data | {"notes": bench.notes}, indent=1) + "\n", encoding="utf-8")
    return 0


def _markdown(rows: Sequence[Row], about: Mapping[str, str], notes: Sequence[str]) -> str:
    lines = [facts(about)]
    head = ["case", "figure", "unit", *(_title(tool) for tool in TOOLS), "bar", "verdict", "codecarbon / ours"]
    head.append("zeus / ours")
    lines += ["", f"| {' | '.join(head)} |", f"|{'|'.join('---' for _ in head)}|"]
    for row in rows:
        cells = [row.case, row.what, row.unit, *(_text(row.values.get(tool)) for tool in TOOLS)]
        cells += ["" if row.bar is None else f"<= {row.bar:g}", row.verdict]
        cells += [_times(row.ratio(tool)) for tool in (CODECARBON, ZEUS)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {note}" for note in notes)]
    missed = [row.verdict for row in rows if row.verdict.startswith("MISS")]
    beyond = sum(verdict.endswith(OUT_OF_REACH) for verdict in missed)
    words = f", of these {beyond} out of reach" if beyond else ""
    lines += ["", f"{sum(row.verdict == 'PASS' for row in rows)} bars reached, {len(missed)} missed{words}"]
    return "\n".join(lines)


def _title(tool: str) -> str:
    try:
        return f"{tool} {importlib.metadata.version('greentrain-torch' if tool == 'greentrain' else tool)}"
    except importlib.metadata.PackageNotFoundError:
        return tool


def _text(value: Value) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def machine(script: str) -> dict[str, str]:
    """Return where and how a table was made.

    Args:
        script: Path of the benchmark.
    """
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = f"{names[0]}, {len(names)} cores" if names else cpu
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": cpu,
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "command": " ".join(["python", script, *_arguments()]),
    }


def _arguments() -> list[str]:
    """Return the arguments that change the figures: not where the table goes, nor where on a machine a folder lies."""
    words = iter(sys.argv[1:])
    kept = (word for word in words if word not in ("--json", "--into") or not next(words, ""))
    return [Path(word).name if Path(word).is_absolute() else word for word in kept]


if __name__ == "__main__":
    raise SystemExit(main())
