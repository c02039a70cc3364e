"""Case killed: what can be read back from disk after the process died."""

import csv
import itertools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.metering_common import (
    CODECARBON,
    GREENTRAIN,
    SQUARE,
    TOOLS,
    ZEUS,
    Bench,
    Row,
    Value,
    Worker,
    installed,
    values_of,
)
from greentrain.errors import RunFolderError
from greentrain.ledger.reader import read_run
from greentrain.testing.fake_nvml import FakeGpu

LONG_S: Final = 150.0
"""After 100 s the time between two entries has grown to run.book_s."""
TICK_S: Final = 0.1
"""What the last entry lies behind the moment at which it is written (s)."""
LONG: Final = "the most that SIGKILL can take after minutes: longest time between two entries, and a tick"


def killed(bench: Bench) -> list[Row]:
    """Seconds of energy that cannot be read back from disk after the process died."""
    at_s = bench.pick(12.0, 6.0)
    hows = {"sigterm": signal.SIGTERM, "sigkill": signal.SIGKILL, "exception": None}
    options: dict[str, dict[str, Any]] = {
        GREENTRAIN: {},
        CODECARBON: {"output_methods": None},
        ZEUS: {"log_file": "zeus.csv"},
    }
    workers: dict[tuple[str, str, bool], Worker] = {}
    with bench.driver([FakeGpu(power=SQUARE)]) as driver:
        for how in hows:
            for tool in filter(installed, TOOLS):
                for often in (False, True) if how == "sigkill" else (False,):
                    job: dict[str, Any] = {
                        "how": how,
                        "at_s": at_s,
                        "every_s": 1.0 if often else None,
                        "options": options[tool],
                    }
                    workers[how, tool, often] = Worker("killed", tool, driver, scratch=bench.scratch, **job)
        for worker in workers.values():
            worker.say()
        for worker in workers.values():
            worker.go(time.monotonic())
        starts_s = {key: (worker.say() or {"t0_s": None})["t0_s"] for key, worker in workers.items()}
        lost_s: dict[tuple[str, str, bool], Value] = {}
        for key, worker in sorted(workers.items(), key=lambda item: starts_s[item[0]] or 0.0):
            t0_s, number = starts_s[key], hows[key[0]]
            if t0_s is None:
                worker.end()
                lost_s[key] = worker.last_error()
                continue
            if number is None:
                t1_s = (worker.say() or {"t1_s": t0_s + at_s})["t1_s"]
            else:
                time.sleep(max(0.0, t0_s + at_s - time.monotonic()))
                t1_s = time.monotonic()
                worker.process.send_signal(number)
            worker.end()
            true_j = driver.true_energy_j(0, t0_s, t1_s)
            lost_s[key] = (true_j - _read_back_j(key[1], worker.folder)) / (true_j / (t1_s - t0_s))
    bars = {"sigterm": 0.1, "sigkill": 10.0, "exception": 0.1}
    names = {"sigterm": "SIGTERM", "sigkill": "SIGKILL", "exception": "an uncaught exception"}
    rows = []
    for how, often in [("sigterm", False), ("sigkill", False), ("sigkill", True), ("exception", False)]:
        what = f"lost at {names[how]} after {at_s:.0f} s"
        if often:
            what += "; loop calls codecarbon's flush() / ends a zeus window with log_file once a second"
        values = values_of(lambda tool, k=(how, often): lost_s[k[0], tool, k[1]])  # type: ignore[misc]
        rows.append(Row(case="killed", what=what, unit="s", values=values, bar=bars[how], one_sided=True))
    if LONG in bench.begun:
        values = {GREENTRAIN: bench.begun[LONG](), CODECARBON: "all of it", ZEUS: "all of it"}
        values |= {tool: "not installed" for tool in TOOLS if not installed(tool)}
        rows.append(Row(case="killed", what=LONG, unit="s", values=values, bar=10.0))
    return rows


def begin_long(bench: Bench) -> Callable[[], Value]:
    """Start a run that goes on while other cases are measured; return what ends it and tells its worst moment."""
    driver = bench.driver([FakeGpu(power=SQUARE)])
    job: dict[str, Any] = {"how": "sigkill", "at_s": 600.0, "every_s": None, "options": {}}
    worker = Worker("killed", GREENTRAIN, driver, scratch=bench.scratch, **job)
    worker.say()
    worker.go(time.monotonic())
    t0_s = (worker.say() or {"t0_s": time.monotonic()})["t0_s"]

    def end() -> Value:
        time.sleep(max(0.0, t0_s + LONG_S - time.monotonic()))
        worker.process.kill()
        worker.end()
        driver.close()
        (folder,) = (worker.folder / "runs").iterdir()
        ends_s = [entry.t1_unix_s for entry in read_run(folder).ranks[0].entries]
        return max(b - a for a, b in itertools.pairwise(ends_s)) + TICK_S

    return end


def _read_back_j(tool: str, folder: Path) -> float:
    if tool == GREENTRAIN:
        try:
            return sum(read_run(run).totals.energy_j for run in (folder / "runs").iterdir())
        except (RunFolderError, FileNotFoundError):
            return 0.0
    name = "emissions.csv" if tool == CODECARBON else "zeus.csv"
    if not (folder / name).exists():
        return 0.0
    with (folder / name).open(newline="") as file:
        rows: Sequence[Mapping[str, str]] = list(csv.DictReader(file))
    if tool == ZEUS:
        return sum(float(row["gpu0_energy"]) for row in rows)
    return float(rows[-1]["gpu_energy"]) * 3.6e6 if rows else 0.0
