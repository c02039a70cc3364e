"""Case background: CPU time and helper processes beside the training thread."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.metering_common import (
    CODECARBON,
    CONSTANT,
    GREENTRAIN,
    SQUARE,
    TOOLS,
    ZEUS,
    Bench,
    Row,
    Value,
    Worker,
    installed,
    run_together,
    values_of,
)
from greentrain.testing.fake_nvml import FakeGpu, Wave


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table: the GPUs, and how each tool is set up."""

    what: str
    gpus: int
    power: tuple[Wave, ...] = SQUARE
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By tool; a tool that is not in it is not run."""
    bar: float | None = None


FAST: dict[str, dict[str, Any]] = {GREENTRAIN: {}, CODECARBON: {"period_s": 0.1}, ZEUS: {"period_s": 0.1}}
SETTINGS = (
    Setting(
        what="1 GPU at 100 ms, square; codecarbon at 0.1 s; zeus PowerMonitor at 0.1 s", gpus=1, options=FAST, bar=0.1
    ),
    Setting(what="1 GPU at 100 ms, constant power", gpus=1, power=CONSTANT, options={GREENTRAIN: {}}),
    Setting(what="8 GPUs at 100 ms, square; peers as above", gpus=8, options=FAST),
    Setting(
        what="1 GPU, all defaults: CPU and memory model too; codecarbon 15 s; ZeusMonitor, which has no thread",
        gpus=1,
        options={GREENTRAIN: {"meters": "auto"}, CODECARBON: {"period_s": 15.0, "model": True}, ZEUS: {}},
    ),
    Setting(what="no GPU, CPU and memory model alone", gpus=0, options={GREENTRAIN: {"meters": ["cpu_model"]}}),
)


def background(bench: Bench) -> list[Row]:
    """CPU time of every thread but the main one and of helper processes, while the main thread sleeps."""
    duration_s, settle_s = bench.pick(25.0, 5.0), bench.pick(8.0, 2.0)
    shares: dict[tuple[int, str], Value] = {}
    helpers: list[str] = []
    for tools in [TOOLS] if bench.quick else [(GREENTRAIN,), (CODECARBON, ZEUS)]:
        drivers, jobs = [], []
        for i, setting in enumerate(SETTINGS):
            drivers.append(bench.driver([FakeGpu(power=setting.power) for _ in range(setting.gpus)]))
            for tool in tools:
                if tool in setting.options and installed(tool):
                    job: dict[str, Any] = {"settle_s": settle_s, "duration_s": duration_s}
                    job["options"] = setting.options[tool]
                    driver = drivers[-1] if setting.gpus else None
                    jobs.append((i, Worker("background", tool, driver, scratch=bench.scratch, **job)))
        if tools[0] == GREENTRAIN:
            bare: dict[str, Any] = {"settle_s": settle_s, "duration_s": duration_s, "options": {"period_s": 0.1}}
            jobs.append((-1, Worker("background", "idle", None, scratch=bench.scratch, **bare)))
            jobs.append((-1, Worker("background", "sleeper", None, scratch=bench.scratch, **bare)))
        for (i, worker), answer in zip(jobs, run_together([worker for _, worker in jobs]), strict=True):
            if "error" in answer:
                shares[i, worker.tool] = answer["error"]
                continue
            shares[i, worker.tool] = 100 * (answer["threads_share"] + answer["helpers_share"])
            if answer["helpers"]:
                text = f"{worker.tool} ({SETTINGS[i].gpus} GPUs): {answer['helpers']}, {answer['helpers_mb']:.0f} MB"
                helpers.append(text)
        for driver in drivers:
            driver.close()
    bench.notes.append(
        f"background: an idle process reads {shares[-1, 'idle']:.2g} % of a core by the same method, one whose"
        f" thread sleeps 100 ms and does nothing else {shares[-1, 'sleeper']:.2g} %"
    )
    bench.notes.append(f"background: helper processes: {'; '.join(helpers) or 'none'}; those not named have none")
    return [
        Row(
            case="background",
            what=f"{setting.what}; over {duration_s:.0f} s",
            unit="% of a core",
            values=values_of(lambda tool, i=i: shares.get((i, tool))),  # type: ignore[misc]
            bar=setting.bar,
        )
        for i, setting in enumerate(SETTINGS)
    ]
