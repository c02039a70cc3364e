"""A process of its own for one tool: ``python metering_worker.py TASK TOOL SETTINGS``. Started by metering.py."""

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.metering_tools import make
from benchmarks.metering_victims import die, mean_g_per_kwh, patch_electricity_maps, write_trace


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


def total(tool: str, duration_s: float, options: dict[str, Any], late_s: float = 0.0) -> None:
    """Measure one run of so many seconds."""
    warm(tool, options)
    start_s = begin_together() + late_s
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


def steps(tool: str, repeats: dict[str, int], options: dict[str, Any]) -> None:
    """Time single calls of what a training loop would make a step, of each kind so many."""
    it = make(tool, **options)
    if tool == "greentrain":
        it.start()
    begin_together()
    costs_us = {kind: step_costs_us(it.steps(kind), count) for kind, count in repeats.items()}
    say(costs_us=costs_us)
    if tool == "greentrain":
        it.stop()


def step_costs_us(call: Callable[[], None], repeats: int) -> list[float]:
    """Return what single calls take (us), the clock's own 0.05 us included."""
    for _ in range(repeats // 20):
        call()
    clock = time.perf_counter_ns
    costs_ns = []
    for _ in range(repeats):
        before_ns = clock()
        call()
        costs_ns.append(clock() - before_ns)
    return [cost_ns / 1000 for cost_ns in costs_ns]


def cpu_s(pid: int) -> float:
    """Return the CPU time of another process (s), finer than its clock ticks of 10 ms."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def sleep_for_ever(period_s: float) -> None:
    while True:
        time.sleep(period_s)


def background(tool: str, settle_s: float, duration_s: float, options: dict[str, Any]) -> None:
    """Measure the CPU time of everything but the main thread while that sleeps; helper processes included."""
    import psutil

    it: Any = None
    monitor: Any = None
    if tool == "zeus" and "period_s" in options:
        from zeus.monitor.power import PowerMonitor

        monitor = PowerMonitor(update_period=options["period_s"])
    elif tool == "sleeper":
        threading.Thread(target=sleep_for_ever, args=(options["period_s"],), daemon=True).start()
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


def carbon(tool: str, duration_s: float, best: bool) -> None:
    """Measure one run in whose middle the grid changes."""
    options: dict[str, Any] = {}
    if tool == "codecarbon":
        options = {"electricitymaps_api_token": "none", "country_2letter_iso_code": "FR", "output_methods": None}
        options |= {"period_s": 0.5, "api_call_interval": 1} if best else {"period_s": 15.0}
    warm(tool, {} if tool == "greentrain" else {"period_s": 15.0})
    start_s = begin_together()
    step_unix_s = time.time() - time.monotonic() + start_s + duration_s / 2
    if tool == "codecarbon":
        patch_electricity_maps(step_unix_s, keep_cache=not best)
    else:
        write_trace(Path("trace.csv"), step_unix_s)
        options = {"signal": "trace", "trace_csv": "trace.csv"}
    wait_until(start_s)
    it = make(tool, **options)
    it.start()
    t0_s = time.monotonic()
    wait_until(start_s + duration_s)
    t1_s = time.monotonic()
    it.stop()
    say(t0_s=t0_s, t1_s=t1_s, g_per_kwh=mean_g_per_kwh(it))


def killed(tool: str, how: str, at_s: float, every_s: float | None, options: dict[str, Any]) -> None:
    """Run until killed, or raise."""
    quiet: dict[str, dict[str, Any]] = {"zeus": {"log_file": "warm.csv"}, "codecarbon": {"output_methods": []}}
    warm(tool, options | quiet.get(tool, {}))
    begin_together()
    die(tool, how, at_s, every_s, options, say)


def rapl(tool: str, root: str) -> None:
    """Count the helper processes that a GPU and a RAPL tree need."""
    import psutil

    options: dict[str, Any] = {"meters": ["nvml", "rapl"], "rapl_root": root} if tool == "greentrain" else {}
    if tool == "zeus":
        import zeus.device.cpu.rapl

        zeus.device.cpu.rapl.RAPL_DIR = root
        options = {"cpus": None}
    it = make(tool, **options)
    it.start()
    begin_together()
    time.sleep(3.0)
    helpers = psutil.Process().children(recursive=True)
    say(helpers=len(helpers), helpers_mb=sum(child.memory_info().rss for child in helpers) / 1e6)
    it.stop()


def main(argv: Sequence[str]) -> None:
    task, tool, settings = argv
    tasks: dict[str, Any] = {
        "background": background,
        "carbon": carbon,
        "killed": killed,
        "rapl": rapl,
        "steps": steps,
        "total": total,
        "windows": windows,
    }
    tasks[task](tool, **json.loads(settings))


if __name__ == "__main__":
    main(sys.argv[1:])
