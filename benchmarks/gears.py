"""What gears cost and bring, beside plain PyTorch, torchao, bitsandbytes and Transformer Engine: one run, one table.

    python benchmarks/gears.py                        # all but quality: eight minutes on two cores, eight more on a GPU
    python benchmarks/gears.py --only quality         # ten minutes
    python benchmarks/gears.py --only gpu             # on a machine with a CUDA device
    python benchmarks/gears.py --into docs/gears-benchmarks.md

Peers are shown as "not installed" where they are not. One thread; times are CPU times, so that neighbours count little.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import gears_gpu, gears_memory, gears_optimizer, gears_quality, gears_step
from benchmarks.gears_common import BITSANDBYTES, TORCHAO, Bench, Row, Value
from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.tables import log

CASES: Mapping[str, Callable[[Bench], list[Row]]] = {
    "step": gears_step.step,
    "shift": gears_step.shift,
    "optimizer": gears_optimizer.optimizer,
    "memory": gears_memory.memory,
    "fp8": gears_step.fp8,
    "gpu": gears_gpu.gpu,
    "quality": gears_quality.quality,
}
SECTIONS: Mapping[str, Sequence[str]] = {
    "cpu": ("step", "shift", "optimizer", "memory", "fp8"),
    "gpu": ("gpu",),
    "quality": ("quality",),
}
"""Tables of the documentation, each replaced as a whole."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small models and few repeats: to see that it runs")
    parser.add_argument("--only", action="append", choices=list(CASES), help="run this case (may be repeated)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, each between its two marks")
    args = parser.parse_args(argv)
    names = args.only or [name for name in CASES if name != "quality"]
    sections = [section for section, cases in SECTIONS.items() if set(cases) & set(names)]
    if args.into is not None:
        for section in sections:
            missing = [case for case in SECTIONS[section] if case not in names]
            if missing:
                parser.error(f"--into replaces the table {section} as a whole, so it needs --only {missing[0]} too")
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="gears-") as folder:
        bench = Bench(quick=args.quick, scratch=Path(folder), say=log)
        for name in names:
            began_s = time.monotonic()
            rows += CASES[name](bench)
            log(f"{name}: {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    about = machine("benchmarks/gears.py") | {"versions": _versions()}
    print(_markdown(rows, about, bench.notes))
    if args.into is not None:
        for section in sections:
            some = [row for row in rows if row.case in SECTIONS[section]]
            notes = bench.notes if section == "gpu" else []  # no other case has any
            if any(isinstance(row.ours, float) for row in some):  # what a machine cannot measure stays as it is
                put(_markdown(some, about, notes), args.into, section)
    if args.json is not None:
        data = {"machine": about, "rows": [asdict(row) | {"verdict": row.verdict} for row in rows]}
        args.json.write_text(json.dumps(data | {"notes": bench.notes}, indent=1) + "\n", encoding="utf-8")
    return 0


def _markdown(rows: Sequence[Row], about: Mapping[str, str], notes: Sequence[str]) -> str:
    lines = [facts(about)]
    head = ["case", "figure", "unit", "GreenTrain", "limit: without it", "ours / limit", "bar", "verdict", "peers"]
    lines += ["", f"| {' | '.join(head)} |", f"|{'|'.join('---' for _ in head)}|"]
    for row in rows:
        cells = [row.case, row.what, row.unit, _text(row.ours), "" if row.plain is None else _text(row.plain)]
        cells += ["" if row.ratio is None else f"{row.ratio:.3f}", "" if row.bar is None else f"<= {row.bar:g}"]
        cells += [row.verdict, ", ".join(_peer(name, value, row.ours) for name, value in row.peers.items())]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {note}" for note in notes)]
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("PASS", "MISS", "n/a")}
    lines += ["", f"{counts['PASS']} bars reached, {counts['MISS']} missed, {counts['n/a']} not measured"]
    return "\n".join(line for i, line in enumerate(lines) if line or lines[i - 1])


def _text(value: Value) -> str:
    if isinstance(value, str) or value is None:
        return value or "n/a"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def _peer(name: str, value: Value, ours: Value) -> str:
    times = f" ({value / ours:.3g}x ours)" if isinstance(value, float) and isinstance(ours, float) and ours else ""
    return f"{name}: {_text(value)}{times}"


def _versions() -> str:
    packages = {"greentrain": "greentrain-torch", "torch": "torch", TORCHAO: TORCHAO, BITSANDBYTES: BITSANDBYTES}
    packages["Transformer Engine"] = "transformer-engine-torch"
    return ", ".join(f"{name} {_version(package)}" for name, package in packages.items())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    raise SystemExit(main())
