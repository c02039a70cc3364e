"""An entry of the books as a journal holds it: JSON with short keys."""

from collections.abc import Mapping
from typing import Any, Final

from greentrain.types import (
    CarbonBasis,
    CarbonKind,
    CarbonPoint,
    DeviceEnergy,
    GearUse,
    LedgerEntry,
    Provenance,
    PueSource,
)

_GEAR_KEYS: Final = {
    "j": "energy_j", "model_j": "modelled_j", "missing_s": "missing_s", "dev_s": "device_s", "s": "seconds",
    "steps": "steps", "tokens": "tokens", "samples": "samples",
}  # fmt: skip
"""Keys of a gear in an entry's record, and its fields."""


def entry_to_json(entry: LedgerEntry) -> dict[str, Any]:
    """Return the journal record of an entry (kind ``entry``; short keys, it is written for years)."""
    record: dict[str, Any] = {
        "kind": "entry",
        "t0": round(entry.t0_unix_s, 6),
        "t1": round(entry.t1_unix_s, 6),
        "steps": entry.steps,
        "tokens": entry.tokens,
        "samples": entry.samples,
        "devices": {
            uid: {
                "j": d.energy_j,
                "prov": str(d.provenance),
                "missing_s": round(d.missing_s, 6),
                "phases": dict(d.phases),
            }
            for uid, d in entry.devices.items()
        },
        "phase_s": {k: round(v, 6) for k, v in entry.phase_s.items()},
        "phase_incl_j": dict(entry.phase_inclusive_j),
        "carbon": {
            "g_per_kwh": entry.carbon.g_per_kwh,
            "zone": entry.carbon.zone,
            "kind": str(entry.carbon.kind),
            "basis": str(entry.carbon.basis),
            "accounting": entry.carbon.accounting,
            "source": entry.carbon.source,
        },
        "pue": entry.pue,
        "op_g": entry.operational_g,
        "emb_g": entry.embodied_g,
    }
    if entry.pue_source is not PueSource.CONSTANT:
        record["pue_from"] = str(entry.pue_source)
    if entry.gears:
        record["gears"] = {
            name: {key: round(getattr(use, item), 6) for key, item in _GEAR_KEYS.items()}
            for name, use in entry.gears.items()
        }
    record["step_groups"] = [list(group) for group in entry.step_groups]
    return record


def entry_from_json(record: Mapping[str, Any]) -> LedgerEntry:
    """Read what ``entry_to_json`` wrote."""
    carbon = record["carbon"]
    return LedgerEntry(
        t0_unix_s=record["t0"],
        t1_unix_s=record["t1"],
        steps=record["steps"],
        tokens=record["tokens"],
        samples=record["samples"],
        devices={
            uid: DeviceEnergy(
                energy_j=d["j"], provenance=Provenance(d["prov"]), missing_s=d["missing_s"], phases=d["phases"]
            )
            for uid, d in record["devices"].items()
        },
        phase_s=record["phase_s"],
        phase_inclusive_j=record["phase_incl_j"],
        carbon=CarbonPoint(
            t0_unix_s=record["t0"],
            t1_unix_s=record["t1"],
            g_per_kwh=carbon["g_per_kwh"],
            zone=carbon["zone"],
            source=carbon["source"],
            kind=CarbonKind(carbon["kind"]),
            basis=CarbonBasis(carbon["basis"]),
            accounting=carbon["accounting"],
        ),
        pue=record["pue"],
        operational_g=record["op_g"],
        embodied_g=record["emb_g"],
        step_groups=tuple((g[0], g[1], g[2], g[3]) for g in record["step_groups"]),
        gears={
            name: GearUse(**{item: use[key] for key, item in _GEAR_KEYS.items()})
            for name, use in record.get("gears", {}).items()
        },
        pue_source=PueSource(record.get("pue_from", PueSource.CONSTANT)),
    )
