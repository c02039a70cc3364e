"""Everything that only a real device can tell, in slices that run alone: one JSON and one table.

    python benchmarks/silicon.py --out build/silicon                   # all slices, an hour
    python benchmarks/silicon.py --out build/silicon --slice phases    # one, at most 8 minutes (may be repeated)
    python benchmarks/silicon.py --out build/silicon --within 570      # what fits; called again, what is left
    python benchmarks/silicon.py --out build/silicon --dry-run         # small, on a CPU, with a fake driver: needs gcc
    python benchmarks/silicon.py --list

Where a device is lent for half an hour, ten minutes a command, three commands with ``--within 570`` and one folder (or
``--add`` of the one before) do the most: a slice that had no error is not run again then, unless it is named.

Nothing is installed or fetched, and no setting of the device is changed. Each slice is a process of its own: one that
fails, hangs or crashes the device's driver leaves its reason and what it had found, and the others go on. What it
finds is on disk within seconds, and it ends with this process, should that be killed. Slices that were run before into
the same folder stay in the table; ``--add`` puts those of another folder's JSON beside them.
Exit status: 0, or 1 if a slice failed or ran out of time.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LIMIT_S: Final = 480.0
"""Longest time of a slice, its process's start and end included."""
SPARE_S: Final = 30.0
"""Of that, what is left to start and to end."""
OFTEN_S: Final = 3.0
"""Time between two looks at what a slice has found."""
LEAST_S: Final = 120.0
"""A slice that would have less time is not begun."""
TICK_S: Final = 0.05
"""Of the fake driver of a dry run: shorter than a device's, so that a second has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part that runs alone."""

    question: str
    module: str
    """Of this folder; its function has the name of the slice."""
    period_s: float = 0.0
    """Of the square load that the fake driver plays in a dry run; 0: a constant one."""
    window_s: float = 0.0
    """What its sensor sees of each tick; 0: all."""


SLICES: Final[Mapping[str, Slice]] = {
    "sensor": Slice(
        question="how fast the counter ticks, what a read costs, what it sees",
        module="silicon_sensor",
        period_s=0.037,
        window_s=0.0125,
    ),
    "marks": Slice(
        question="what marks cost beside a busy device; anchors and drift of its clock", module="silicon_time"
    ),
    "phases": Slice(question="joules by phase against synchronised truth, beside the peers", module="silicon_time"),
    "peers": Slice(question="the same windows measured by all tools at once", module="silicon_sensor", period_s=0.73),
    "fp8": Slice(
        question="the FP8 product of either call, eager and compiled, against BF16", module="silicon_training"
    ),
    "gears_eager": Slice(question="J/token and tokens/s of the gears, eager", module="silicon_training"),
    "gears_compiled": Slice(question="the same, compiled", module="silicon_training"),
    "te": Slice(question="whether Transformer Engine is what its stub says", module="silicon_training"),
    "optimizer": Slice(question="AdamW under gamma on the device's kernels", module="silicon_training"),
    "offload": Slice(question="the offload device torch, against the CPU", module="silicon_training"),
    "tests": Slice(question="every test marked gpu", module="silicon_training"),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of silicon.json, silicon.md and silicon.log")
    parser.add_argument("--slice", action="append", choices=list(SLICES), help="run this one (may be repeated)")
    parser.add_argument("--dry-run", action="store_true", help="small, on a CPU, with a fake driver")
    parser.add_argument("--add", type=Path, action="append", default=[], help="a silicon.json of another folder")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help=f"longest time of a slice (s), default {LIMIT_S:g}"
    )
    parser.add_argument("--within", type=float, help="time of all slices together (s): what does not fit is left out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.list:
        for name, each in SLICES.items():
            print(f"{name:15s} {each.question}")
        return 0
    if args.worker:
        return work(**json.loads(args.worker))
    if args.out is None:
        parser.error("--out is missing: the folder of the results")
    if args.limit <= SPARE_S:
        parser.error(f"--limit is {args.limit:g}: a slice needs more than {SPARE_S:g} s to start and end")
    args.out.mkdir(parents=True, exist_ok=True)
    results = Results(args.out, args.dry_run)
    for path in args.add:
        results.add(path)
    end_s = time.monotonic() + (math.inf if args.within is None else args.within)
    fine = [name for name, each in results.slices.items() if not each["error"]]
    left_out = []
    for name in args.slice or [name for name in SLICES if args.within is None or name not in fine]:
        limit_s = min(args.limit, end_s - time.monotonic())
        if limit_s < min(LEAST_S, args.limit):
            left_out.append(name)
            continue
        print(f"{name}: {SLICES[name].question} ...", file=sys.stderr, flush=True)
        results.put(name, run(name, args.out, limit_s, functools.partial(results.put, name), dry=args.dry_run))
    print(results.markdown())
    if left_out:
        print(f"not begun, as --within {args.within:g} is over: {', '.join(left_out)}", file=sys.stderr)
    return int(bool(left_out) or any(each["error"] for each in results.slices.values()))


class Results:
    """What all slices found, written after each.

    Args:
        folder: Of silicon.json and silicon.md.
        dry: Whether this is a dry run: its figures never stand beside those of a device.
    """

    def __init__(self, folder: Path, dry: bool) -> None:
        self._folder, self._dry = folder, dry
        self.slices: dict[str, dict[str, Any]] = {}
        if (folder / "silicon.json").exists():
            self.add(folder / "silicon.json")

    def add(self, path: Path) -> None:
        """Add the slices of a file.

        Raises:
            SystemExit: It is none of ours, or a dry run where this is none, or the other way round.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            slices, dry = found["slices"], found["dry_run"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path} is no result of silicon.py ({error!r}): move it away") from error
        if dry is not self._dry:
            raise SystemExit(f"{path} is {'' if dry else 'no '}dry run, unlike this one: use another folder")
        self.slices |= slices

    def put(self, name: str, found: dict[str, Any]) -> None:
        """Add a slice and write everything."""
        self.slices[name] = found
        data = {"dry_run": self._dry, "slices": self.slices}
        for file, text in (("silicon.json", json.dumps(data, indent=1)), ("silicon.md", self.markdown())):
            new = self._folder / f"{file}.new"
            new.write_text(text + "\n", encoding="utf-8")
            new.replace(self._folder / file)

    def markdown(self) -> str:
        """Return the table, provenance first."""
        lines = ["A dry run with a fake driver: no figure here is a device's.", ""] if self._dry else []
        abouts: dict[str, list[str]] = {}
        for name, each in self.slices.items():
            about = "; ".join(f"{key} {value}" for key, value in each["about"].items())
            abouts.setdefault(about, []).append(name)
        lines += [f"- {', '.join(names)}: {about}" for about, names in abouts.items()]
        lines += ["", "| slice | figure | unit | here | beside | bar | verdict |", "|---|---|---|---|---|---|---|"]
        notes: list[str] = []
        for name, each in self.slices.items():
            for row in each["rows"]:
                beside = ", ".join(f"{key.replace('_', ' ')}: {_text(value)}" for key, value in row["beside"].items())
                bar = "" if row["bar"] is None else f"<= {row['bar']:g}"
                cells = [name, row["what"], row["unit"], _text(row["ours"]), beside, bar, row["verdict"]]
                lines.append(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |")
            ended = f"{name}: {each['seconds']:.0f} s of {each['limit_s']:.0f}, {each['date']}"
            notes.append(f"- {ended}; {each['error'] or 'fine'}")
            notes += [f"- {name}: {note}" for note in each["notes"]]
        verdicts = [row["verdict"] for each in self.slices.values() for row in each["rows"]]
        notes += ["", f"{verdicts.count('PASS')} bars reached, {verdicts.count('MISS')} missed"]
        return "\n".join([*lines, "", *notes])


def run(name: str, out: Path, limit_s: float, put: Callable[[dict[str, Any]], None], *, dry: bool) -> dict[str, Any]:
    """Run a slice in a process of its own and return what it said; never raises for what happens there.

    Args:
        name: Its name.
        out: Folder of the log.
        limit_s: Longest time (s).
        put: Called with what it has said so far, now and then.
        dry: Whether a fake driver plays the device.
    """
    began_s, date = time.monotonic(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    found: dict[str, Any] = {"rows": [], "notes": [], "error": "", "about": {}}

    def heard(scratch: Path, ended: str) -> dict[str, Any]:
        for line in (scratch / "words").read_text("utf-8", "replace").splitlines():
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    found.update(json.loads(line))
        took = {"seconds": time.monotonic() - began_s, "limit_s": limit_s, "date": date}
        return found | {"error": found["error"] or ended} | took

    def so_far(scratch: Path) -> None:
        if (now := heard(scratch, "not finished: the command ended before it"))["rows"]:
            put(now)

    with tempfile.TemporaryDirectory(prefix="silicon-") as folder, contextlib.ExitStack() as stack:
        scratch = Path(folder)
        words: dict[str, Any] = {"name": name, "folder": folder, "time_s": limit_s - SPARE_S, "played": None}
        words["parent"] = os.getpid()
        try:
            environ = dict(os.environ) | {"GREENTRAIN_CLAIMS_DIR": str(scratch / "claims")}
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
            if dry:
                more, words["played"] = stack.enter_context(_fake(SLICES[name]))
                environ |= more
            command = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(words)]
            often = functools.partial(so_far, scratch)
            return heard(scratch, _ended(command, scratch, out / "silicon.log", limit_s, environ, often))
        except Exception as error:
            took = {"seconds": time.monotonic() - began_s, "limit_s": limit_s, "date": date}
            return found | {"error": f"not started: {error!r}"} | took


def _ended(
    command: Sequence[str],
    scratch: Path,
    log: Path,
    limit_s: float,
    environ: Mapping[str, str],
    often: Callable[[], None] = lambda: None,
) -> str:
    """Run a process and all that it starts; return how it ended, nothing where it ended well."""
    end_s = time.monotonic() + limit_s
    with (scratch / "words").open("wb") as words, log.open("ab") as errors:
        process = subprocess.Popen(
            command, cwd=scratch, env=environ, stdout=words, stderr=errors, start_new_session=True
        )
        try:
            while (left_s := end_s - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(min(left_s, OFTEN_S))
                    return "" if code == 0 else f"exit {code}: see {log.name}"
                often()
            return f"out of time after {limit_s:.0f} s; what it had found by then is here"
        finally:  # also on Ctrl-C: nothing that it started stays behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def _fake(played: Slice) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """Make a driver with one GPU; yield the environment that finds it, and the load that it plays."""
    from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, Wave

    wave = {"low_w": 300.0, "high_w": 300.0, "period_s": 1.0, "duty": 0.45}
    if played.period_s:
        wave |= {"low_w": 100.0, "high_w": 500.0, "period_s": played.period_s}
    with FakeDriver([FakeGpu(power=(Wave(**wave),), tick_s=TICK_S, window_s=played.window_s)]) as driver:
        yield driver.env(), {"epoch_s": driver.epoch_s, **wave}


def _end_with(parent: int) -> None:
    """End this process, and what it has started, when the one that started it is gone: a device is for one slice."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


def work(name: str, folder: str, time_s: float, played: dict[str, float] | None, parent: int) -> int:
    """Run one slice in this process, which leads a group of its own."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    import importlib

    import torch

    from benchmarks.metering import machine
    from benchmarks.silicon_common import Played, Rig, failed, provenance

    about = {key: text for key, text in machine("benchmarks/silicon.py").items() if key in ("machine", "system")}
    print(json.dumps({"about": about}), flush=True)
    if played:
        torch.set_num_threads(1)  # sizes are tiny, and other tests run beside it
    try:
        rig = Rig(Path(folder), time_s, Played(**played) if played else None)
    except Exception as error:
        print(json.dumps({"error": failed(error)}), flush=True)
        return 1
    print(json.dumps({"about": about | provenance(rig.device)}), flush=True)
    try:
        getattr(importlib.import_module(f"benchmarks.{SLICES[name].module}"), name)(rig)
    except Exception as error:
        import traceback

        traceback.print_exc()
        rig.say(failed(error))
        return 1
    rig.say()
    return 0


def _text(value: float | str | None) -> str:
    if isinstance(value, str | None):
        return value or ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    raise SystemExit(main())
