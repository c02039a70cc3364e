"""A process of its own for one tool: ``python metering_worker.py TASK TOOL SETTINGS``. Started by metering.py."""

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.metering_tools import make


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def wait_until(t_s: float) -> None:
    while (left_s := t_s - time.monotonic()) > 0:
        time.sleep(left_s)


def begin_together() -> float:
    """Tell that everything is imported and warm; return the monotonic time to start at (s)."""
    say(ready=True)
    return float(sys.stdin.readline())


def warm(tool: str, options: dict[str, Any]) -> None:
    """Use the tool once: first calls detect hardware and import, for more than a second."""
    extra = {"folder": "warm"} if tool == "greentrain" else {}
    once = make(tool, **(options | extra))
    once.start()
    time.sleep(0.05)
    once.stop()


def total(tool: str, duration_s: float, options: dict[str, Any]) -> None:
    """Measure one run of so many seconds."""
    warm(tool, options)
    start_s = begin_together()
    wait_until(start_s)
    it = make(tool, **options)
    it.start()
    t0_s = time.monotonic()
    wait_until(start_s + duration_s)
    t1_s = time.monotonic()
    energies_j = it.stop()
    say(t0_s=t0_s, t1_s=t1_s, energies_j=energies_j)


def windows(tool: str, plan: dict[str, tuple[float, float]], options: dict[str, Any]) -> None:
    """Measure windows, each given as start and end (s) from the common start; the run begins 1 s earlier."""
    warm(tool, options)
    events = sorted(
        [(t0_s, 1, name) for name, (t0_s, _) in plan.items()] + [(t1_s, 0, name) for name, (_, t1_s) in plan.items()]
    )
    start_s = begin_together()
    wait_until(start_s)
    it = make(tool, **options)
    if tool == "greentrain":
        it.start()
    spans: dict[str, list[float]] = {}
    for at_s, is_begin, name in events:
        wait_until(start_s + 1.0 + at_s)
        if is_begin:
            it.begin(name)
            spans[name] = [time.monotonic()]
        else:
            spans[name].append(time.monotonic())
            it.end(name)
    time.sleep(0.3)
    energies_j = it.windows()
    if tool == "greentrain":
        it.stop()
    say(spans=spans, energies_j=energies_j)


def steps(tool: str, kind: str, repeats: int, options: dict[str, Any]) -> None:
    """Time single calls of what a training loop would make a step."""
    it = make(tool, **options)
    if tool == "greentrain":
        it.start()
    begin_together()
    call = it.steps(kind)
    for _ in range(min(1000, repeats // 10)):
        call()
    clock = time.perf_counter_ns
    costs_ns = []
    for _ in range(repeats):
        before_ns = clock()
        call()
        costs_ns.append(clock() - before_ns)
    say(costs_us=[cost_ns / 1000 for cost_ns in costs_ns])
    if tool == "greentrain":
        it.stop()


def cpu_s(pid: int) -> float:
    """Return the CPU time of another process (s), finer than its clock ticks of 10 ms."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def background(tool: str, settle_s: float, duration_s: float, options: dict[str, Any]) -> None:
    """Measure the CPU time of everything but the main thread while that sleeps; helper processes included."""
    import psutil

    it: Any = None
    monitor: Any = None
    if tool == "zeus" and "period_s" in options:
        from zeus.monitor.power import PowerMonitor

        monitor = PowerMonitor(update_period=options["period_s"])
    elif tool != "idle":
        it = make(tool, **options)
        it.start()
    begin_together()
    time.sleep(settle_s)
    me = psutil.Process()
    helpers = [child for child in me.children(recursive=True)]

    def spent_s() -> list[float]:
        return [
            time.process_time() - time.thread_time(),
            sum(cpu_s(child.pid) for child in helpers),
            time.monotonic(),
        ]

    before = spent_s()
    time.sleep(duration_s)
    threads_s, helpers_s, wall_s = (b - a for a, b in zip(before, spent_s(), strict=True))
    say(
        threads_share=threads_s / wall_s,
        helpers_share=helpers_s / wall_s,
        helpers=len(helpers),
        helpers_mb=sum(child.memory_info().rss for child in helpers) / 1e6,
        threads=threading.active_count() - 1,
    )
    if it is not None:
        it.stop()
    del monitor


def main(argv: Sequence[str]) -> None:
    task, tool, settings = argv
    tasks: dict[str, Any] = {"total": total, "windows": windows, "steps": steps, "background": background}
    tasks[task](tool, **json.loads(settings))


if __name__ == "__main__":
    main(sys.argv[1:])
