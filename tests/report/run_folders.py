"""Builds real run folders, through the journal, for the tests of the report."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from greentrain.config.schema import GreenConfig
from greentrain.ledger.journal import Journal, entry_to_json, rank_path
from greentrain.ledger.totals import Totals
from greentrain.report import RunReport
from greentrain.types import CarbonPoint, DeviceEnergy, GearUse, LedgerEntry, Provenance

T0_S = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""
PHASES = {"forward": 0.3, "backward": 0.45, "optimizer": 0.1, "data": 0.1, "other": 0.05}
EMBODIED = {"low": 3.0, "mid": 25.0, "high": 40.0, "source": "test table, 2026"}


def sensor(uid: str, kind: str, name: str, provenance: str = "measured", **more: Any) -> dict[str, Any]:
    """Return a SENSOR record."""
    return {
        "uid": uid,
        "kind": kind,
        "name": name,
        "provenance": provenance,
        "method": "NVML energy counter" if provenance == "measured" else "TDP x load",
        "period_s": 0.1,
        "tick_s": 0.1 if provenance == "measured" else None,
        "averaging_s": 0.0,
        "read_cost_s": 0.0003,
        "uncertainty": 0.05 if provenance == "measured" else 0.4,
        "note": "",
        "embodied_g_per_h": EMBODIED if kind == "gpu" else None,
        **more,
    }


def device(
    energy_j: float,
    provenance: Provenance = Provenance.MEASURED,
    missing_s: float = 0.0,
    phases: Mapping[str, float] | None = None,
) -> DeviceEnergy:
    """Return the energy of a device over one entry, spread over phases by share."""
    shares = PHASES if phases is None else phases
    return DeviceEnergy(
        energy_j=energy_j,
        provenance=provenance,
        missing_s=missing_s,
        phases={} if provenance is Provenance.MISSING else {name: energy_j * share for name, share in shares.items()},
    )


def entry(
    t0_s: float,
    t1_s: float,
    devices: Mapping[str, DeviceEnergy],
    *,
    g_per_kwh: float | None = 400.0,
    zone: str = "FRA",
    pue: float = 1.2,
    tokens: int = 0,
    samples: int = 0,
    steps: int = 10,
    embodied_g: float | None = None,
    step_groups: Sequence[tuple[int, float, float, int]] = (),
    gears: Mapping[str, GearUse] | None = None,
    relative_error: float | None = None,
) -> LedgerEntry:
    """Return an entry whose grams follow from its joules."""
    energy_j = sum(d.energy_j for d in devices.values())
    return LedgerEntry(
        t0_unix_s=t0_s,
        t1_unix_s=t1_s,
        devices=devices,
        phase_s={name: (t1_s - t0_s) * share for name, share in PHASES.items()},
        phase_inclusive_j={**{n: energy_j * s for n, s in PHASES.items() if n != "other"}, "epoch": energy_j},
        carbon=CarbonPoint(
            t0_unix_s=t0_s,
            t1_unix_s=t1_s,
            g_per_kwh=g_per_kwh,
            zone=zone,
            source="test grid, 2025",
            relative_error=relative_error,
        ),
        pue=pue,
        operational_g=None if g_per_kwh is None else energy_j / 3.6e6 * pue * g_per_kwh,
        embodied_g=embodied_g,
        steps=steps,
        tokens=tokens,
        samples=samples,
        step_groups=step_groups,
        gears=gears or {},
    )


class Folder:
    """A run folder being written."""

    def __init__(self, root: Path, run_id: str = "demo", world_size: int = 1, **run: Any) -> None:
        self.path = root / run_id
        self.run_id = run_id
        self.world_size = world_size
        self.path.mkdir(parents=True)
        config = run.pop("config", {"carbon": {"pue": 1.2}, "run": {"name": "gpt-small"}})
        data = {
            "format": 1,
            "run_id": run_id,
            "created_unix_s": T0_S,
            "name": "gpt-small",
            "tags": {},
            "config": GreenConfig.load(config).to_dict(),
            "greentrain_version": "0.1.0",
            "python": "3.11.2",
            "platform": "Linux-6.1-x86_64",
            "packages": {"torch": "2.13.0", "codecarbon": "3.3.2"},
            "world_size": world_size,
            "command": ["train.py"],
            "carbon": {"signal": "constant", "zone": "FRA", "source": "test grid, 2025"},
            "parameters": 10_000_000,
            **run,
        }
        (self.path / "run.json").write_text(json.dumps(data), encoding="utf-8")

    def rank(
        self,
        rank: int,
        sensors: Sequence[Mapping[str, Any]],
        entries: Sequence[LedgerEntry],
        *,
        host: str = "node-a",
        reason: str | None = "finished",
        carried: Totals | None = None,
        events: Sequence[Mapping[str, Any]] = (),
        excluded: Sequence[Mapping[str, str]] = (),
        t_s: float | None = None,
        opened: Mapping[str, Any] | None = None,
    ) -> "Folder":
        """Append one process of a rank: open, entries, events and, if it has a reason, close."""
        journal = Journal(rank_path(self.path, rank))
        journal.append(
            {
                "kind": "open",
                "format": 1,
                "run_id": self.run_id,
                "rank": rank,
                "local_rank": rank,
                "world_size": self.world_size,
                "local_world_size": self.world_size,
                "host": host,
                "pid": 1000 + rank,
                "t": entries[0].t0_unix_s if t_s is None and entries else t_s or T0_S,
                "sensors": list(sensors),
                "carried": carried.to_dict() if carried else None,
                **(opened or {}),
            }
        )
        if excluded:
            journal.append({"kind": "sensors", "sensors": list(sensors), "excluded": list(excluded)})
        for item in entries:
            journal.append(entry_to_json(item))
        for event in events:
            journal.append({"kind": "event", **event})
        if reason is not None:
            journal.append({"kind": "close", "t": entries[-1].t1_unix_s if entries else T0_S, "reason": reason})
        assert journal.close(60.0)
        return self


GPU = sensor("GPU-0", "gpu", "NVIDIA H100 80GB HBM3")
CPU = sensor("cpu", "cpu", "AMD EPYC 9654", "modelled", note="No RAPL: install the udev rule.")
DRAM = sensor("dram", "dram", "Memory 64 GB", "modelled")


def one_rank(root: Path, *, tokens: int = 5000, samples: int = 50, g_per_kwh: float | None = 400.0) -> Path:
    """Three minutes: one GPU measured at 300 W, the CPU modelled at 50 W."""
    entries = [
        entry(
            T0_S + 10 * i,
            T0_S + 10 * (i + 1),
            {"GPU-0": device(3000.0), "cpu": device(500.0, Provenance.MODELLED)},
            tokens=tokens,
            samples=samples,
            g_per_kwh=g_per_kwh,
            embodied_g=25.0 / 360,
        )
        for i in range(18)
    ]
    return Folder(root).rank(0, [GPU, CPU], entries).path


def four_ranks(root: Path) -> Path:
    """Four ranks on one host, a GPU each; rank 0 also books the CPU."""
    folder = Folder(root, "four", world_size=4)
    for rank in range(4):
        uid = f"GPU-{rank}"
        entries = []
        for i in range(12):
            devices = {uid: device(3000.0 + 100 * rank)}
            if rank == 0:
                devices["cpu"] = device(500.0, Provenance.MODELLED)
            entries.append(entry(T0_S + 10 * i, T0_S + 10 * (i + 1), devices, tokens=1000, embodied_g=25.0 / 360))
        sensors = [sensor(uid, "gpu", "NVIDIA H100 80GB HBM3")] + ([CPU] if rank == 0 else [])
        folder.rank(rank, sensors, entries)
    return folder.path


LAYERS = [
    *(
        {"name": f"h.{i}.mlp.{n}", "in_features": a, "out_features": b, "chosen": True, "reason": f"{a} inputs fit FP8"}
        for i in range(4)
        for n, a, b in (("up", 1024, 4096), ("down", 4096, 1024))
    ),
    {"name": "lm_head", "in_features": 1024, "out_features": 8192, "chosen": False, "reason": "an <output> layer"},
    {"name": "gate", "in_features": 1024, "out_features": 8, "chosen": False, "reason": "8 is no multiple of 16"},
]


def two_gears(root: Path, ranks: int = 2, *, tokens: int = 1000, **run: Any) -> Path:
    """Two minutes in bf16 at 400 W a GPU, then two in fp8 at 500 W and twice the pace; rank 0 books a CPU of 50 W."""
    run = {"layers": LAYERS, "gear_backend": "scaled_mm: runs on <this> device", **run}
    folder = Folder(root, "gears", world_size=ranks, **run)
    for rank in range(ranks):
        uid = f"GPU-{rank}"
        entries = []
        for i in range(24):
            gear, watt, pace = ("bf16", 400.0, 1) if i < 12 else ("fp8", 500.0, 2)
            devices = {uid: device(10 * watt)}
            if rank == 0:
                devices["cpu"] = device(500.0, Provenance.MODELLED)
            use = GearUse(
                energy_j=sum(d.energy_j for d in devices.values()),
                modelled_j=500.0 if rank == 0 else 0.0,
                device_s=10.0 * len(devices),
                seconds=10.0,
                steps=5 * pace,
                tokens=tokens * pace,
                samples=10 * pace,
            )
            entries.append(
                entry(
                    T0_S + 10 * i, T0_S + 10 * (i + 1), devices, gears={gear: use}, steps=use.steps, tokens=use.tokens,
                    samples=use.samples, pue=1.0, g_per_kwh=360.0, embodied_g=0.01,
                )
            )  # fmt: skip
        events = [
            {"t": T0_S + 120 + rank * 0.01, "name": "gear", "text": "bf16 -> fp8 after step 60: <schedule>",
             "step": 60, "gear": "fp8"}
        ]  # fmt: skip
        sensors = [sensor(uid, "gpu", "NVIDIA H100 80GB HBM3")] + ([CPU] if rank == 0 else [])
        folder.rank(rank, sensors, entries, events=events)
    return folder.path


def showcase(root: Path, *, hours: float = 6.0, ranks: int = 4, step_s: float = 60.0) -> Path:
    """A long run with everything in it: changing grid, modelled CPU, a gap, a pause, an evaluation, events."""
    config = {
        "carbon": {"pue": 1.2, "market_g_per_kwh": 12.0, "signal": "typical", "zone": "US-CAL-CISO"},
        "run": {"name": "gpt-350m <fineweb>", "tags": {"training_type": "pre-training", "project": "demo"}},
    }
    folder = Folder(
        root,
        "gpt-350m-20260101-000000-1a2b",
        world_size=ranks,
        config=config,
        name="gpt-350m <fineweb>",
        tags={"training_type": "pre-training", "project": "demo"},
        carbon={
            "signal": "typical", "zone": "US-CAL-CISO", "source": "EIA hourly grid data 2024, typical profile",
            "resolution": "month x hour",
        },
    )  # fmt: skip
    count = int(hours * 3600 / step_s)
    for rank in range(ranks):
        uid = f"GPU-{rank}"
        entries = []
        for i in range(count):
            if count * 0.55 < i < count * 0.6:
                continue
            t0_s = T0_S + i * step_s
            evaluating = i % 60 > 54
            phases = {"eval": 0.95, "other": 0.05} if evaluating else PHASES
            watt = (430 if evaluating else 610) + 30 * math.sin(i * 0.7 + rank) - 20 * rank
            gone = rank == 2 and count * 0.3 < i < count * 0.34
            devices = {
                uid: device(
                    0.0 if gone else watt * step_s,
                    missing_s=step_s if gone else 0.0,
                    phases=phases,
                )
            }
            if rank == 0:
                devices["cpu"] = device((160 + 25 * math.sin(i * 0.3)) * step_s, Provenance.MODELLED, phases=phases)
                devices["dram"] = device(48 * step_s, Provenance.MODELLED, phases=phases)
                devices["rapl:1"] = device(0.0, Provenance.MISSING, missing_s=step_s)
            grid = 260 + 150 * math.cos((i * step_s / 3600 - 1) / 12 * math.pi)
            entries.append(
                entry(
                    t0_s, t0_s + step_s, devices, g_per_kwh=grid, zone="US-CAL-CISO", tokens=int(3100 * step_s),
                    samples=6, embodied_g=25.0 * step_s / 3600,
                )
            )  # fmt: skip
        sensors = [sensor(uid, "gpu", "NVIDIA H100 80GB HBM3")]
        events: list[Mapping[str, Any]] = []
        if rank == 0:
            missing = sensor("rapl:1", "cpu", "CPU package 1", "missing", uncertainty=None, method="RAPL package")
            missing["note"] = "energy_uj is readable by root only: sudo chmod a+r /sys/class/powercap/*/energy_uj"
            sensors += [CPU, DRAM, missing]
            events = [
                {"t": T0_S + hours * 1800, "name": "checkpoint", "text": "step 12000"},
                {"t": T0_S + hours * 3600 * 0.9, "name": "warning", "text": "disk <nearly> full"},
            ]
        if rank == 2:
            events = [{"t": T0_S + hours * 3600 * 0.3, "name": "gap", "text": "GPU-2: GPU is lost"}]
        cut = next(i for i, e in enumerate(entries) if e.t0_unix_s >= T0_S + count * 0.59 * step_s)
        folder.rank(rank, sensors, entries[:cut], reason="sigterm", events=events)
        folder.rank(rank, sensors, entries[cut:])
    return folder.path


def write_report(folder: Path) -> Path:
    """Read a run folder, write all report files into it and return the path of report.html."""
    return RunReport.read(folder).write()
