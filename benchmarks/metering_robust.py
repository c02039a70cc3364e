"""Cases carbon and ranks: grams on a changing grid, and several processes of one node."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.metering_common import (
    CODECARBON,
    CONSTANT,
    GREENTRAIN,
    TOOLS,
    ZEUS,
    Bench,
    Row,
    Value,
    Worker,
    error_percent,
    installed,
    run_together,
    values_of,
)
from benchmarks.metering_victims import HIGH_G_PER_KWH, LOW_G_PER_KWH
from greentrain.ledger.reader import read_run
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, Wave


def carbon(bench: Bench) -> list[Row]:
    """Error of the grams when the grid goes from 100 to 900 g/kWh in the middle of the run."""
    duration_s = bench.pick(20.0, 8.0)
    jobs: dict[tuple[str, int], Worker] = {}
    with bench.driver([FakeGpu(power=CONSTANT), FakeGpu(power=(Wave(low_w=200),))]) as driver:
        names = [GREENTRAIN] if installed(GREENTRAIN) else []
        names += ["best", "default"] if installed(CODECARBON) else []
        for device in (0, 1):
            for name in names:
                jobs[name, device] = Worker(
                    "carbon",
                    GREENTRAIN if name == GREENTRAIN else CODECARBON,
                    driver,
                    scratch=bench.scratch,
                    environ={"CUDA_VISIBLE_DEVICES": str(device)},
                    duration_s=duration_s,
                    best=name != "default",
                )
        for worker in jobs.values():
            worker.say()
        start_s = time.monotonic() + 0.2
        middle_s = start_s + duration_s / 2
        driver.update(1, power=(Wave(low_w=600),), at_s=middle_s)
        for worker in jobs.values():
            worker.go(start_s)
        errors: dict[tuple[str, int], Value] = {}
        for (name, device), worker in jobs.items():
            answer = worker.result()
            errors[name, device] = answer.get("error") or error_percent(
                answer["g_per_kwh"], _true_g_per_kwh(driver, device, answer["t0_s"], middle_s, answer["t1_s"])
            )
    powers = ("constant power", "power goes 200 -> 600 W at the same moment")
    notes = {
        "best": "codecarbon asks its grid every 0.5 s, cache off",
        "default": "codecarbon with its defaults: 15 s, asks at the end of a short run",
    }
    return [
        Row(
            case="carbon",
            what=f"error of grams, 100 -> 900 g/kWh mid-run, {duration_s:.0f} s, {power}; {notes[name]}",
            unit="%",
            values={
                GREENTRAIN: errors[GREENTRAIN, device],
                CODECARBON: errors.get((name, device), "not installed"),
                ZEUS: None if installed(ZEUS) else "not installed",
            },
        )
        for device, power in enumerate(powers)
        for name in notes
    ]


def _true_g_per_kwh(driver: FakeDriver, device: int, t0_s: float, middle_s: float, t1_s: float) -> float:
    low_j, high_j = driver.true_energy_j(device, t0_s, middle_s), driver.true_energy_j(device, middle_s, t1_s)
    return (low_j * LOW_G_PER_KWH + high_j * HIGH_G_PER_KWH) / (low_j + high_j)


def ranks(bench: Bench) -> list[Row]:
    """Sum over the ranks of one node against the truth; GPUs of constant, different power: counting is the matter."""
    duration_s = bench.pick(4.0, 2.0)
    counts = (1, 2, 4, 8) if not bench.quick else (4,)
    jobs = [(count, False, False) for count in counts] + [(4, True, False)]
    jobs += [] if bench.quick else [(8, False, True)]
    with bench.driver([FakeGpu(power=(Wave(low_w=200 + 40 * i),)) for i in range(max(counts))]) as driver:
        rows = []
        for count, uuids, by_hand in jobs:
            what = f"sum of {count} ranks on one node, error, CUDA_VISIBLE_DEVICES by {'UUID' if uuids else 'index'}"
            if by_hand:
                what += "; peers told by hand which GPU is theirs (gpu_ids, gpu_indices)"
            found = _rank_errors(bench, driver, count, uuids, by_hand, duration_s)
            values = values_of(lambda tool, found=found: found[tool])  # type: ignore[misc]
            rows.append(Row(case="ranks", what=what, unit="%", values=values, bar=1.0))
    return rows


def _rank_errors(
    bench: Bench, driver: FakeDriver, count: int, uuids: bool, by_hand: bool, duration_s: float
) -> dict[str, Value]:
    shared = Path(tempfile.mkdtemp(prefix="ranks-", dir=bench.scratch))
    tools = list(filter(installed, TOOLS))
    workers = []
    for tool in tools:
        for rank in range(count):
            environ = {
                "CUDA_VISIBLE_DEVICES": ",".join(driver.uuid(i) if uuids else str(i) for i in range(count)),
                "GREENTRAIN_CLAIMS_DIR": str(shared / "claims"),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29500",
                "TORCHELASTIC_RUN_ID": "benchmark",
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
            }
            options: dict[str, Any] = {"folder": str(shared / "runs")} if tool == GREENTRAIN else {}
            if by_hand and tool != GREENTRAIN:
                options = {"gpu_ids": [rank]} if tool == CODECARBON else {"gpus": [rank]}
            job: dict[str, Any] = {"duration_s": duration_s, "options": options}
            workers.append(Worker("total", tool, driver, scratch=bench.scratch, environ=environ, **job))
    answers = run_together(workers)
    return {
        tool: _rank_error(driver, tool, answers[i * count : (i + 1) * count], shared) for i, tool in enumerate(tools)
    }


def _rank_error(driver: FakeDriver, tool: str, answers: Sequence[Mapping[str, Any]], shared: Path) -> Value:
    for answer in answers:
        if "error" in answer:
            return str(answer["error"])
    truth_j = sum(driver.true_energy_j(i, answer["t0_s"], answer["t1_s"]) for i, answer in enumerate(answers))
    if tool != GREENTRAIN:
        return error_percent(sum(sum(answer["energies_j"]) for answer in answers), truth_j)
    (folder,) = (shared / "runs").iterdir()
    return error_percent(read_run(folder).totals.energy_j, truth_j)
