"""Cases step and import: what measuring costs the training thread."""

import json
import subprocess
import sys
from typing import Any

from benchmarks.metering_common import (
    CODECARBON,
    GREENTRAIN,
    TOOLS,
    ZEUS,
    Bench,
    Row,
    Value,
    Worker,
    installed,
    median,
    quantile,
    run_together,
    values_of,
)

IMPORTS = {GREENTRAIN: "greentrain", CODECARBON: "codecarbon", ZEUS: "zeus.monitor"}
_TIMED = (
    "import json,time;c=time.process_time();w=time.perf_counter();{statement};"
    "print(json.dumps([1e3*(time.perf_counter()-w),1e3*(time.process_time()-c)]))"
)


def imports(bench: Bench) -> list[Row]:
    """Import time in a fresh process."""
    repeats = int(bench.pick(7, 3))
    statements = {tool: f"import {IMPORTS[tool]}" for tool in TOOLS}
    statements[GREENTRAIN + " session"] = "from greentrain import GreenSession"
    wall_ms: dict[str, float] = {}
    cpu_ms: dict[str, float] = {}
    for name, statement in statements.items():
        if not installed(name.split()[0]):
            continue
        command = [sys.executable, "-c", _TIMED.format(statement=statement)]
        runs = [
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
            for _ in range(repeats)
        ]
        wall_ms[name], cpu_ms[name] = (median(run[i] for run in runs) for i in (0, 1))
    rows = []
    for kind, found, bar in (("wall", wall_ms, 100.0), ("CPU", cpu_ms, None)):
        values = values_of(lambda tool, found=found: found[tool])  # type: ignore[misc]
        what = f"import greentrain / codecarbon / zeus.monitor, {kind}, median of {repeats}"
        rows.append(Row(case="import", what=what, unit="ms", values=values, bar=bar))
        session: dict[str, Value] = {**values, GREENTRAIN: found[GREENTRAIN + " session"]}
        what = f"from greentrain import GreenSession, {kind}"
        rows.append(Row(case="import", what=what, unit="ms", values=session))
    return rows


def steps(bench: Bench) -> list[Row]:
    """Cost of one step on the training thread."""
    return [row for gpus in ((0, 8) if bench.quick else (0, 1, 8)) for row in _steps(bench, gpus)]


def _steps(bench: Bench, gpus: int) -> list[Row]:
    repeats = {"step": int(bench.pick(20_000, 1_000)), "phases": int(bench.pick(2_000, 300))}
    costs_us: dict[str, dict[str, list[float]] | str] = {}
    with bench.driver(gpus) as driver:
        for tool in filter(installed, TOOLS):
            options = {"meters": ["nvml"] if gpus else ["null"]} if tool == GREENTRAIN else {}
            job: dict[str, Any] = {"repeats": repeats, "options": options}
            worker = Worker("steps", tool, driver if gpus else None, scratch=bench.scratch, **job)
            answer = run_together([worker], lead_s=0.0)[0]
            costs_us[tool] = answer.get("costs_us") or answer["error"]

    def value(tool: str, kind: str, share: float) -> Value:
        found = costs_us[tool]
        return found if isinstance(found, str) else quantile(found[kind], share)

    calls = {
        "step": "step() / start_task+stop_task / begin+end_window",
        "phases": "four phases and step() / four tasks / four windows in one",
    }
    return [
        Row(
            case="step",
            what=f"{gpus} GPUs, {text}: {word}",
            unit="us",
            values=values_of(lambda tool, k=kind, s=share: value(tool, k, s)),  # type: ignore[misc]
            bar=3.0 if kind == "step" and share == 0.5 else None,
        )
        for kind, text in calls.items()
        for word, share in (("median", 0.5), ("p99", 0.99))
    ]
