"""Run folders of chance: several ranks, zones and months, gaps, unknown intensities, carried parts."""

import random
from pathlib import Path
from typing import Any

from greentrain.ledger.totals import Totals
from greentrain.types import DeviceEnergy, LedgerEntry, Provenance
from tests.report.run_folders import T0_S, Folder, device, entry, sensor

ZONES = ("FRA", "DEU", "US-CAL-CISO", "")
MONTH_S = 31 * 86_400.0


def random_run(root: Path, name: str, chance: random.Random) -> Path:
    """Write a run of one to three ranks, over up to a few months."""
    tags = {key: chance.choice(values) for key, values in _TAGS.items() if chance.random() < 0.8}
    carbon: dict[str, Any] = {"pue": 1.2}
    if chance.random() < 0.3:
        carbon["market_g_per_kwh"] = chance.uniform(0.0, 50.0)
    ranks = chance.randint(1, 3)
    folder = Folder(root, name, world_size=ranks, tags=tags, config={"carbon": carbon})
    start_s = T0_S + chance.uniform(0, 6 * MONTH_S)
    for rank in range(ranks):
        uids = {f"GPU-{rank}": "gpu"} | ({"cpu": "cpu", "rapl:1": "dram"} if rank == 0 else {})
        sensors = [sensor(uid, kind, f"{kind} of {name}") for uid, kind in uids.items()]
        entries, t_s = [], start_s
        for _ in range(chance.randint(0, 6)):
            t1_s = t_s + chance.choice((10.0, 3600.0, 40_000.0, 200_000.0))
            entries.append(_entry(chance, t_s, t1_s, list(uids)))
            t_s = t1_s + chance.choice((0.0, 0.0, 5.0, 20 * 86_400.0))
        carried = None
        if chance.random() < 0.1:
            carried = Totals.of(_entry(chance, start_s - 100.0, start_s, list(uids)))
        folder.rank(rank, sensors, entries, reason=chance.choice(("finished", None)), carried=carried, t_s=start_s)
    return folder.path


def _entry(chance: random.Random, t0_s: float, t1_s: float, uids: list[str]) -> LedgerEntry:
    return entry(
        t0_s,
        t1_s,
        {uid: _device(chance, t1_s - t0_s) for uid in uids},
        g_per_kwh=None if chance.random() < 0.2 else chance.uniform(0.0, 900.0),
        zone=chance.choice(ZONES),
        pue=chance.uniform(1.0, 2.0),
        tokens=chance.randint(0, 10**6),
        samples=chance.randint(0, 100),
        steps=chance.randint(0, 50),
        embodied_g=None if chance.random() < 0.2 else chance.uniform(0.0, 5.0),
    )


def _device(chance: random.Random, span_s: float) -> DeviceEnergy:
    kind = chance.random()
    if kind < 0.1:
        return device(0.0, Provenance.MISSING, missing_s=span_s)
    if kind < 0.2:
        return device(0.0, missing_s=span_s)
    provenance = Provenance.MEASURED if kind < 0.7 else Provenance.MODELLED
    gap_s = chance.choice((0.0, 0.0, 0.4 * span_s, -0.1 * span_s))
    return device(chance.uniform(0.0, 700.0) * span_s, provenance, missing_s=gap_s)


_TAGS = {"project": ("a", "b", "=HYPERLINK(1)", "Ünï 🌱"), "user": ("ann", "bo"), "cost centre": ("1", "2")}
