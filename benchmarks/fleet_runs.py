"""Run folders as trainings leave them, for benchmarks/fleet.py: through ledger and journal, on a stepped clock."""

import csv
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from greentrain.config.schema import GreenConfig
from greentrain.ledger.journal import Journal, rank_path
from greentrain.ledger.run_folder import run_json
from greentrain.ledger.totals import EnergyLedger
from greentrain.report.exports import COLUMNS
from greentrain.report.fleet.row import RunRow
from greentrain.types import G_PER_KG, CarbonPoint, DeviceEnergy, LedgerEntry, Provenance, Topology, grams, kwh_from_j
from greentrain.utils.files import write_json

T0_S: Final = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""
YEAR_S: Final = 365 * 86_400.0
BOOK_S: Final = 10.0
"""run.book_s by default."""
MEDIAN_S: Final = 600.0
"""Of a run's length, which is log-normal with sigma 1: most runs are short, the energy is in the long ones."""
LONGEST_S: Final = 6 * 3600.0
ZONES: Final = {"FRA": 45.0, "DEU": 350.0, "US-CAL-CISO": 240.0}
_PHASES: Final = {"forward": 0.3, "backward": 0.45, "optimizer": 0.1, "data": 0.1, "other": 0.05}


class SteppedClock:
    """A clock that goes only when told."""

    def __init__(self, t_unix_s: float) -> None:
        self.now_s = t_unix_s

    def unix_s(self) -> float:
        """Return the time (s since the epoch)."""
        return self.now_s

    def step(self, seconds: float) -> None:
        """Go on."""
        self.now_s += seconds


def write_runs(root: Path, count: int) -> None:
    """Write run folders, 50 a project."""
    chance = random.Random(0)
    for i in range(count):
        _write_run(root / f"project-{i // 50:03d}", f"run-{i:05d}", f"project-{i // 50:03d}", chance)


def append(folder: Path) -> None:
    """Let a run go on for one interval."""
    chance = random.Random(1)
    journal = Journal(rank_path(folder, 0))
    EnergyLedger(journal).record(_entry(SteppedClock(T0_S + YEAR_S), "FRA", ("GPU-0",), chance))
    journal.close()


def write_emissions(rows: list[RunRow], root: Path) -> None:
    """Write the same runs as CodeCarbon does: a file a run, and one file of all below ``all``."""
    (root / "all").mkdir(parents=True)
    with (root / "all" / "emissions.csv").open("w", newline="", encoding="utf-8") as every:
        whole = csv.DictWriter(every, COLUMNS)
        whole.writeheader()
        for row in rows:
            line = _emissions(row)
            whole.writerow(line)
            folder = root / "each" / row.run_id
            folder.mkdir(parents=True)
            with (folder / "emissions.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerow(line)


def _emissions(row: RunRow) -> dict[str, Any]:
    line: dict[str, Any] = dict.fromkeys(COLUMNS)
    line.update(
        timestamp="2026-01-01T00:00:00",
        project_name=row.project,
        run_id=row.run_id,
        duration=row.wall_s,
        emissions=(row.operational_g or 0.0) / G_PER_KG,
        energy_consumed=kwh_from_j(row.facility_j or 0.0),
    )
    return line


def _write_run(root: Path, run_id: str, project: str, chance: random.Random) -> None:
    ranks = chance.choices((1, 2, 4), (80, 15, 5))[0]
    zone = chance.choice(list(ZONES))
    length_s = min(MEDIAN_S * chance.lognormvariate(0.0, 1.0), LONGEST_S)
    start_s = T0_S + chance.uniform(0.0, YEAR_S)
    config = GreenConfig.load(
        {"run": {"name": "gpt", "tags": {"project": project, "user": f"u{chance.randrange(20)}"}}}
    )
    for rank in range(ranks):
        folder, clock = root / run_id, SteppedClock(start_s)
        uids = (f"GPU-{rank}", "model:cpu") if rank == 0 else (f"GPU-{rank}",)
        place = Topology(rank=rank, world_size=ranks, local_rank=rank, local_world_size=ranks, host="node-1")
        journal = Journal(rank_path(folder, rank))
        if rank == 0:
            carbon = {"signal": "typical", "zone": zone, "source": "typical hours, 2025"}
            write_json(
                folder / "run.json",
                run_json(
                    run_id=run_id, config=config, topology=place, created_unix_s=start_s, carbon=carbon,
                    parameters=124_000_000,
                ),
            )  # fmt: skip
        journal.append(
            {"kind": "open", "format": 1, "run_id": run_id, "rank": rank, "local_rank": rank, "world_size": ranks,
             "local_world_size": ranks, "host": "node-1", "pid": 1, "t": start_s,
             "sensors": [_sensor(uid) for uid in uids], "carried": None}
        )  # fmt: skip
        ledger = EnergyLedger(journal)
        for _ in range(max(1, round(length_s / BOOK_S))):
            ledger.record(_entry(clock, zone, uids, chance))
        journal.append({"kind": "close", "t": clock.unix_s(), "reason": "finished", "totals": ledger.totals.to_dict()})
        journal.close()


def _sensor(uid: str) -> dict[str, Any]:
    gpu = uid.startswith("GPU")
    return {
        "uid": uid, "kind": "gpu" if gpu else "cpu", "name": "NVIDIA H100 80GB HBM3" if gpu else "AMD EPYC 9654",
        "provenance": "measured" if gpu else "modelled", "method": "NVML energy counter" if gpu else "TDP x load",
        "period_s": 0.1, "tick_s": 0.1, "averaging_s": 0.0, "read_cost_s": 0.0003, "uncertainty": 0.05, "note": "",
        "embodied_g_per_h": {"low": 3.0, "mid": 5.0, "high": 9.0, "source": "benchmark"} if gpu else None,
    }  # fmt: skip


def _entry(clock: SteppedClock, zone: str, uids: tuple[str, ...], chance: random.Random) -> LedgerEntry:
    t0_s = clock.unix_s()
    clock.step(BOOK_S)
    devices = dict(_devices(uids, chance))
    energy_j = sum(device.energy_j for device in devices.values())
    intensity = ZONES[zone] * chance.uniform(0.7, 1.3)
    groups = tuple((1, t0_s + 0.3 * i, energy_j / 33, 16_384) for i in range(33))  # a step takes 0.3 s
    return LedgerEntry(
        t0_unix_s=t0_s,
        t1_unix_s=clock.unix_s(),
        devices=devices,
        phase_s={name: BOOK_S * share for name, share in _PHASES.items()},
        phase_inclusive_j={name: energy_j * share for name, share in _PHASES.items()},
        carbon=CarbonPoint(
            t0_unix_s=t0_s, t1_unix_s=clock.unix_s(), g_per_kwh=intensity, zone=zone, source="benchmark"
        ),
        pue=1.2,
        operational_g=grams(energy_j * 1.2, intensity),
        embodied_g=5.0 * BOOK_S / 3600,
        steps=33,
        tokens=33 * 16_384,
        step_groups=groups,
    )


def _devices(uids: tuple[str, ...], chance: random.Random) -> Iterator[tuple[str, DeviceEnergy]]:
    for uid in uids:
        gpu = uid.startswith("GPU")
        energy_j = BOOK_S * (chance.uniform(400, 650) if gpu else chance.uniform(60, 120))
        provenance = Provenance.MEASURED if gpu else Provenance.MODELLED
        phases = {name: energy_j * share for name, share in _PHASES.items()}
        yield uid, DeviceEnergy(energy_j=energy_j, provenance=provenance, phases=phases)


def size_of(root: Path) -> tuple[int, int]:
    """Return bytes of the journals and the number of their entries."""
    paths = list(root.rglob("rank-*.jsonl"))
    entries = 0
    for path in paths:
        with path.open("rb") as file:
            entries += sum(json.loads(line)["kind"] == "entry" for line in file)
    return sum(path.stat().st_size for path in paths), entries
