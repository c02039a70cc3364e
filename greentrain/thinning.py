"""Reading long journals in bounded memory: neighbouring entries are added up while the file is read.

A week of 10 s intervals is 60,480 lines a rank. A report draws 480 points, so it reads a journal with ``thin``:
sums of joules, grams, seconds, steps and tokens stay exact; the time resolution and the energy of single steps
are given up. Entries are only merged with a direct neighbour that has the same devices, provenance, and sources of
carbon and PUE, so gaps, restarts and unknown intensities keep their edges. Intensity and PUE become means by energy.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from greentrain.errors import RunFolderError
from greentrain.journal import parse_line

_CARBON = ("zone", "kind", "basis", "accounting", "source")


def thin(path: Path, most: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal with at most about ``most`` entries (more only where they cannot be merged).

    Args:
        path: The journal.
        most: Entries wanted; a shorter journal is not changed.

    Raises:
        RunFolderError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            lines = sum(1 for _ in file)
            file.seek(0)
            size = -(-lines // most)
            held: dict[str, Any] | None = None
            count = 0
            for line in file:
                record = parse_line(line, short=size > 1)
                if record is None:
                    continue
                if held is not None and count < size and _mergeable(held, record):
                    _merge(held, record)
                    count += 1
                    continue
                if held is not None:
                    yield _priced(held)
                    held = None
                if record["kind"] == "entry" and size > 1:
                    held, count = record, 1
                    _weigh(held)
                else:
                    yield record
            if held is not None:
                yield _priced(held)
    except OSError as error:
        raise RunFolderError(f"cannot read the run file {path}: {error.strerror}") from error


def _mergeable(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if b["kind"] != "entry" or abs(b["t0"] - a["t1"]) > 1e-3 or a.get("pue_from") != b.get("pue_from"):
        return False
    if (a["op_g"] is None) != (b["op_g"] is None) or (a["emb_g"] is None) != (b["emb_g"] is None):
        return False
    old, new = a["carbon"], b["carbon"]
    if (old["g_per_kwh"] is None) != (new["g_per_kwh"] is None) or any(old[key] != new[key] for key in _CARBON):
        return False
    devices = b["devices"]
    return a["devices"].keys() == devices.keys() and all(
        device["prov"] == devices[uid]["prov"] and (device["missing_s"] > 0) == (devices[uid]["missing_s"] > 0)
        for uid, device in a["devices"].items()
    )


def _weigh(entry: dict[str, Any]) -> None:
    """Turn the intensity into a sum that can be added up: g/kWh times joules."""
    joules = _joules(entry)
    entry["weight"] = joules
    if entry["carbon"]["g_per_kwh"] is not None:
        entry["carbon"]["g_per_kwh"] *= joules


def _priced(entry: dict[str, Any]) -> dict[str, Any]:
    """Turn the sum back into a mean."""
    weight = entry.pop("weight")
    if entry["carbon"]["g_per_kwh"] is not None:
        entry["carbon"]["g_per_kwh"] /= weight
    return entry


def _joules(entry: Mapping[str, Any]) -> float:
    """Return the energy that an intensity is weighted with (J); a trace of it where there is none."""
    joules = 1e-9
    for device in entry["devices"].values():
        joules += device["j"]
    return joules


def _merge(a: dict[str, Any], b: Mapping[str, Any]) -> None:
    a["t1"] = b["t1"]
    for key in ("steps", "tokens", "samples"):
        a[key] += b[key]
    for key in ("op_g", "emb_g"):
        if b[key] is not None:
            a[key] += b[key]
    joules = _joules(b)
    a["weight"] += joules
    if b["pue"] != a["pue"]:
        a["pue"] += (b["pue"] - a["pue"]) * joules / a["weight"]
    if b["carbon"]["g_per_kwh"] is not None:
        a["carbon"]["g_per_kwh"] += b["carbon"]["g_per_kwh"] * joules
    _add(a["phase_s"], b["phase_s"])
    _add(a["phase_incl_j"], b["phase_incl_j"])
    devices = b["devices"]
    for uid, device in a["devices"].items():
        other = devices[uid]
        device["j"] += other["j"]
        device["missing_s"] += other["missing_s"]
        _add(device["phases"], other["phases"])
    for name, use in b.get("gears", {}).items():
        _add(a.setdefault("gears", {}).setdefault(name, {}), use)


def _add(a: dict[str, float], b: Mapping[str, float]) -> None:
    for key, value in b.items():
        if key in a:
            a[key] += value
        else:
            a[key] = value
