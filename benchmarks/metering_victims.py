"""Worker tasks in which the grid changes, or the process dies. See metering_worker.py."""

import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.metering_tools import CodeCarbonTool, GreenTrainTool, Tool, make

LOW_G_PER_KWH, HIGH_G_PER_KWH = 100.0, 900.0


def write_trace(path: Path, step_unix_s: float) -> None:
    """Write a trace that goes from low to high at a moment."""
    rows = [(step_unix_s - 3600, LOW_G_PER_KWH), (step_unix_s, HIGH_G_PER_KWH), (step_unix_s + 3600, HIGH_G_PER_KWH)]
    lines = [f"{datetime.fromtimestamp(t_s, UTC).isoformat()},{value}" for t_s, value in rows]
    path.write_text("\n".join(["timestamp_utc,g_per_kwh", *lines, ""]), encoding="utf-8")


def mean_g_per_kwh(tool: Tool) -> float:
    """Return grams over kilowatt-hours of a closed run."""
    if isinstance(tool, GreenTrainTool):
        totals = tool.session.totals()
        return totals.operational_g / (totals.energy_j / 3.6e6)
    assert isinstance(tool, CodeCarbonTool)
    data = tool.tracker.final_emissions_data
    return float(1000 * data.emissions / data.energy_consumed)


def patch_electricity_maps(step_unix_s: float, keep_cache: bool) -> None:
    """Let codecarbon's client of Electricity Maps get its answer from here."""
    import codecarbon.core.electricitymaps_api

    client: Any = codecarbon.core.electricitymaps_api

    class Answer:
        status_code = 200

        def json(self) -> dict[str, float]:
            return {"carbonIntensity": LOW_G_PER_KWH if time.time() < step_unix_s else HIGH_G_PER_KWH}

    class Requests:
        def get(self, *args: Any, **settings: Any) -> Answer:
            return Answer()

    client.requests = Requests()
    if not keep_cache:
        client.ELECTRICITYMAPS_CACHE_TTL = 0


def die(tool: str, how: str, at_s: float, every_s: float | None, options: dict[str, Any], say: Any) -> None:
    """Run until killed, or raise after ``at_s`` seconds; write to disk every so often where the tool must be told."""
    it = make(tool, **options)
    if isinstance(it, CodeCarbonTool):
        tracker: Any = it.tracker

        def stop(number: int, frame: FrameType | None) -> None:
            tracker.service_shutdown(number, frame)
            sys.exit(128 + number)

        signal.signal(signal.SIGTERM, stop)
    it.start()
    t0_s = next_s = time.monotonic()
    say(t0_s=t0_s)
    try:
        _train(it, t0_s + at_s if how == "exception" else t0_s + at_s + 120.0, next_s, every_s)
        say(t1_s=time.monotonic())
        raise ArithmeticError("loss is NaN")
    except ArithmeticError:
        if isinstance(it, GreenTrainTool):
            it.session.__exit__(*sys.exc_info())
        elif isinstance(it, CodeCarbonTool):
            it.tracker.__exit__(*sys.exc_info())
        raise


def _train(it: Tool, end_s: float, next_s: float, every_s: float | None) -> None:
    window = ""
    while time.monotonic() < end_s:
        time.sleep(0.05)
        if isinstance(it, GreenTrainTool):
            it.session.step(tokens=100)
        if every_s is None or time.monotonic() < next_s:
            continue
        next_s += every_s
        if isinstance(it, CodeCarbonTool):
            it.tracker.flush()
        elif not isinstance(it, GreenTrainTool):
            if window:
                it.end(window)
            window = f"{next_s}"
            it.begin(window)
