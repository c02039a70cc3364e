"""boamps.json: Boavizta's report on the energy of an AI task.

Format 1.1.0, https://github.com/Boavizta/BoAmps/tree/main/model (CC BY 4.0), commit 3bfefec, read 2026-11. It
holds energy, not emissions: ``powerConsumption`` is the task's known IT energy in kWh, without PUE.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from greentrain.utils.files import write_atomic

FORMAT: Final = "1.1.0"
SPECIFICATION: Final = "https://github.com/Boavizta/BoAmps/tree/main/model"
_QUALITY: Final = ((0.10, "high"), (0.25, "medium"), (0.50, "low"))
"""Percentage error by quality, from report_schema.json."""
_TYPES: Final = {"dram": "ram"}
_FRAMEWORKS: Final = ("lightning", "transformers", "accelerate", "torch")


def boamps_report(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a BoAmps report, or None where a required figure is not known.

    The run's tags fill what a meter cannot know: ``task_stage`` (training), ``task_family``, ``algorithm``,
    ``infra_type`` (publicCloud, privateCloud, onPremise, other), ``country``, ``data_type``.
    """
    energy_kwh = summary["energy"]["energy_kwh"]
    if energy_kwh is None or not summary["devices"]:
        return None
    tags = summary["run"]["tags"]
    report: dict[str, Any] = {
        "header": {
            "formatVersion": FORMAT,
            "formatVersionSpecificationUri": SPECIFICATION,
            "reportId": summary["run"]["run_id"],
            "reportDatetime": _when(summary["time"]["end_utc"]),
            "reportStatus": "final" if summary["state"]["finished"] else "draft",
        },
        "task": {
            "taskStage": tags.get("task_stage", "training"),
            "taskFamily": tags.get("task_family", "unspecified"),
            "algorithms": [_algorithm(summary)],
            "dataset": [_dataset(summary)],
        },
        "measures": [_measure(summary, energy_kwh)],
        "infrastructure": {
            "infraType": tags.get("infra_type") or _infra(summary),
            "components": _components(summary["devices"]),
        },
    }
    if summary["run"]["platform"]:
        report["system"] = {"os": summary["run"]["platform"]}
    if summary["run"]["python"]:
        report["software"] = {"language": "python", "version": summary["run"]["python"]}
    environment = _environment(summary)
    if environment:
        report["environment"] = environment
    quality = _quality(summary)
    if quality:
        report["quality"] = quality
    return report


def write_boamps(summary: Mapping[str, Any], folder: Path) -> Path | None:
    """Write boamps.json; return its path, or None where the energy is not known (the format requires it).

    Raises:
        RunFolderError: The folder cannot be written.
    """
    report = boamps_report(summary)
    if report is None:
        return None
    return write_atomic(folder / "boamps.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def _when(utc: str | None) -> str:
    return (utc or "1970-01-01T00:00:00Z").replace("T", " ").rstrip("Z")


def _algorithm(summary: Mapping[str, Any]) -> dict[str, Any]:
    packages, tags = summary["run"]["packages"], summary["run"]["tags"]
    out: dict[str, Any] = {}
    if tags.get("algorithm"):
        out["algorithmName"] = tags["algorithm"]
    if tags.get("training_type"):
        out["trainingType"] = tags["training_type"]
    framework = next((name for name in _FRAMEWORKS if name in packages), None)
    if framework:
        out["framework"] = framework
        out["frameworkVersion"] = packages[framework]
    if summary["run"]["parameters"]:
        out["parametersNumber"] = summary["run"]["parameters"] / 1e9
    return out


def _dataset(summary: Mapping[str, Any]) -> dict[str, Any]:
    work = summary["work"]
    out: dict[str, Any] = {"dataUsage": "input"}
    out["dataType"] = summary["run"]["tags"].get("data_type") or ("token" if work["tokens"] else "other")
    quantity = work["tokens"] or work["samples"]
    if quantity:
        out["dataQuantity"] = quantity
    return out


def _measure(summary: Mapping[str, Any], energy_kwh: float) -> dict[str, Any]:
    out: dict[str, Any] = {
        "measurementMethod": "greentrain",
        "version": summary["greentrain_version"],
        "powerConsumption": energy_kwh,
    }
    for kind in ("cpu", "gpu"):
        methods = [d["method"] for d in summary["devices"] if d["kind"] == kind and d["method"] and d["energy_j"]]
        if methods:
            out[f"{kind}TrackingMode"] = ", ".join(dict.fromkeys(methods))
    if summary["time"]["wall_s"]:
        out["measurementDuration"] = summary["time"]["wall_s"]
    if summary["time"]["start_utc"]:
        out["measurementDateTime"] = _when(summary["time"]["start_utc"])
    return out


def _components(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counts: dict[tuple[str, str], int] = {}
    for device in devices:
        key = (_TYPES.get(device["kind"], device["kind"] or "other"), device["name"])
        counts[key] = counts.get(key, 0) + 1
    return [
        {"componentName": name, "componentType": kind, "nbComponent": count} for (kind, name), count in counts.items()
    ]


def _infra(summary: Mapping[str, Any]) -> str:
    return "publicCloud" if any(":" in s["zone"] for s in summary["carbon"]["sources"]) else "other"


def _environment(summary: Mapping[str, Any]) -> dict[str, Any]:
    carbon = summary["carbon"]
    country = summary["run"]["tags"].get("country") or next((s["zone"] for s in carbon["sources"]), None)
    if not country:
        return {}
    out: dict[str, Any] = {"country": country}
    if carbon["intensity_g_per_kwh"] is not None:
        out["powerSourceCarbonIntensity"] = carbon["intensity_g_per_kwh"]
    return out


def _quality(summary: Mapping[str, Any]) -> str | None:
    error = summary["energy"]["uncertainty"]
    if error is None:
        return None
    error += summary["energy"]["missing_share_of_device_time"] or 0.0
    return next((word for bound, word in _QUALITY if error <= bound), None)
