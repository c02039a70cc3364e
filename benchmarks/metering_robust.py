"""Cases carbon, ranks and killed: grams on a changing grid, several processes, and processes that die."""

import csv
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
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
    error_percent,
    installed,
    run_together,
    values_of,
)
from benchmarks.metering_victims import HIGH_G_PER_KWH, LOW_G_PER_KWH
from greentrain.errors import RunFolderError
from greentrain.ledger import read_run
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
        "best": "codecarbon asks its grid every second, cache off",
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
            job = partial(_rank_error, bench, driver, count=count, uuids=uuids, by_hand=by_hand, duration_s=duration_s)
            values = values_of(job)
            rows.append(Row(case="ranks", what=what, unit="%", values=values, bar=1.0))
    return rows


def _rank_error(
    bench: Bench, driver: FakeDriver, tool: str, *, count: int, uuids: bool, by_hand: bool, duration_s: float
) -> Value:
    shared = bench.scratch / f"ranks-{tool}-{count}-{uuids}-{by_hand}"
    workers = []
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
    for answer in answers:
        if "error" in answer:
            return str(answer["error"])
    truth_j = sum(driver.true_energy_j(i, answer["t0_s"], answer["t1_s"]) for i, answer in enumerate(answers))
    if tool != GREENTRAIN:
        return error_percent(sum(sum(answer["energies_j"]) for answer in answers), truth_j)
    (folder,) = (shared / "runs").iterdir()
    return error_percent(read_run(folder).totals.energy_j, truth_j)


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
    return rows


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
