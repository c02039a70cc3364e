"""What acting on a run costs, beside Zeus and torchrun where these do the same: one run, one table.

    python benchmarks/actuation.py                       # five minutes on two cores
    python benchmarks/actuation.py --quick               # to see that it runs
    python benchmarks/actuation.py --only overhead --only limits
    python benchmarks/actuation.py --into docs/actuation-benchmarks.md

Power limits are those of the fake driver (``greentrain.testing.fake_nvml``), called by the real pynvml: the time of a
real driver is not in them.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import actuation_local, actuation_profile, actuation_resize
from benchmarks.gears_common import Bench, Row, Value
from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.tables import log


def profile(bench: Bench) -> list[Row]:
    """Steps until a limit is chosen, the worst trace, and by how much it misses the best one, the mean."""
    out: list[Row] = []
    for title, found in actuation_profile.cases(bench.pick(20, 1)).items():
        what = title[0].lower() + title[1:]
        zeus, ours = (max(row.steps[i] for row in found) for i in (0, 1))
        steps = Row(case="profile", what=f"steps of profiling, {what}", unit="steps", ours=float(ours), bar=200.0)
        out.append(_beside(steps, zeus=float(zeus)))
        for name in found[0].regret:
            theirs, mine = (100 * statistics.fmean(row.regret[name][i] for row in found) for i in (0, 1))
            label = "energy" if name == "energy" else "cost of eta 0.5"
            regret = Row(case="profile", what=f"{label} above the best limit's, {what}", unit="%", ours=mine)
            out.append(_beside(regret, zeus=theirs))
    return out


CASES: Mapping[str, Callable[[Bench], list[Row]]] = {
    "overhead": actuation_local.overhead,
    "pause": actuation_local.pause,
    "limits": actuation_local.limits,
    "resize": actuation_resize.resize,
    "profile": profile,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it runs")
    parser.add_argument("--only", action="append", choices=list(CASES), help="run this case (may be repeated)")
    parser.add_argument("--into", type=Path, help="also put the table into this text, between its two marks")
    args = parser.parse_args(argv)
    if args.into is not None and (args.only or args.quick):
        parser.error("--into replaces the whole table, so it goes without --only and --quick")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="actuation-") as folder:
        bench = Bench(quick=args.quick, scratch=Path(folder), say=log)
        for name in args.only or CASES:
            began_s = time.monotonic()
            rows += CASES[name](bench)
            log(f"{name}: {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    text = markdown(rows, machine("benchmarks/actuation.py"))
    print(text)
    if args.into is not None:
        put(text, args.into)
    return 0


def markdown(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """Return the table, where it was made, and how many bars were reached."""
    lines = [facts(about)]
    lines += [
        "",
        "| case | figure | unit | GreenTrain | bar | verdict | others (ratio to ours) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        peers = ", ".join(_peer(name, value, row.ours) for name, value in row.peers.items())
        bar = "" if row.bar is None else f"<= {row.bar:g}"
        lines.append(f"| {row.case} | {row.what} | {row.unit} | {_text(row.ours)} | {bar} | {row.verdict} | {peers} |")
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("PASS", "MISS", "n/a")}
    lines += ["", f"{counts['PASS']} bars reached, {counts['MISS']} missed, {counts['n/a']} not measured"]
    return "\n".join(lines)


def _beside(row: Row, **peers: Value) -> Row:
    return Row(case=row.case, what=row.what, unit=row.unit, ours=row.ours, bar=row.bar, peers=peers)


def _peer(name: str, value: Value, ours: Value) -> str:
    known = isinstance(value, float) and isinstance(ours, float) and ours > 0 and value > 0
    ratio = f" ({value / ours:.1f}x)" if known and isinstance(value, float) and isinstance(ours, float) else ""
    return f"{name} {_text(value)}{ratio}"


def _text(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else value or "n/a"


if __name__ == "__main__":
    raise SystemExit(main())
