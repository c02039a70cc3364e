"""A run in the formats of other tools: emissions.csv, model_card.yaml and boamps.json.

emissions.csv has exactly the columns of CodeCarbon 3.3.2, so that its readers and dashboards work unchanged.
Units are CodeCarbon's: s, kg, kg/s, W, kWh, litres, GB. As there, PUE multiplies power and energy (its
emissions_tracker.py, ``power *= self._pue``), here each interval by its own, and emissions are operational only.
``water_consumed`` is what the site consumes, as there; WUE counts IT energy, as The Green Grid defines it, where
CodeCarbon multiplies it by energy with PUE. A cell is empty where CodeCarbon would write a guess or 0 and we do not
know. Columns:
https://github.com/mlco2/codecarbon, codecarbon/output_methods/emissions_data.py, read 2026-11.

model_card.yaml is Hugging Face's ``co2_eq_emissions``, ready to paste into a model card's metadata.
The Hub documents grams of CO2e (https://huggingface.co/docs/hub/model-cards-co2), which CodeCarbon fills with those of
electricity: so does this, and tells the embodied ones in ``source``. Its filter takes the first
decimal number of ``str(emissions)`` (huggingface_hub/utils/endpoint_helpers.py, read 2026-11), so the number
must never be printed with an exponent: 5e-05 would count as 5 g.

boamps.json is Boavizta's report on the energy of an AI task, format 1.1.0,
https://github.com/Boavizta/BoAmps/tree/main/model (CC BY 4.0), commit 3bfefec, read 2026-11. It holds energy, not
emissions: ``powerConsumption`` is the task's known IT energy in kWh, without PUE.
"""

import csv
import io
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from greentrain.config.schema import WORLD
from greentrain.errors import RunFolderError
from greentrain.report.summary import pue_text
from greentrain.types import G_PER_KG, kwh_from_j
from greentrain.utils import quantities
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


COLUMNS: Final = (
    "timestamp", "project_name", "run_id", "experiment_id", "duration", "emissions", "emissions_rate",
    "cpu_power", "gpu_power", "ram_power", "cpu_energy", "gpu_energy", "ram_energy", "energy_consumed",
    "water_consumed", "country_name", "country_iso_code", "region", "cloud_provider", "cloud_region", "os",
    "python_version", "codecarbon_version", "cpu_count", "cpu_model", "gpu_count", "gpu_model", "longitude",
    "latitude", "ram_total_size", "tracking_mode", "cpu_utilization_percent", "gpu_utilization_percent",
    "ram_utilization_percent", "ram_used_gb", "on_cloud", "pue", "wue",
)  # fmt: skip
_KINDS: Final = {"cpu": "cpu", "dram": "ram", "gpu": "gpu"}


def emissions_row(summary: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return CodeCarbon's columns for a run; None where nothing is known.

    Energy of devices that CodeCarbon has no column for (a whole node, an FPGA) is in ``energy_consumed`` only.

    Args:
        summary: The summary of the run, from ``summarize``.
        run: The content of run.json, for the settings.
    """
    wall_s = summary["time"]["wall_s"]
    operational_g = summary["carbon"]["operational_location_g"]
    emissions_kg = None if operational_g is None else operational_g / G_PER_KG
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    end_s = summary["time"]["end_unix_s"]
    row.update(
        timestamp=None if end_s is None else datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        project_name=summary["run"]["tags"].get("project") or summary["run"]["name"],
        run_id=summary["run"]["run_id"],
        experiment_id=summary["run"]["tags"].get("experiment"),
        duration=wall_s,
        emissions=emissions_kg,
        emissions_rate=emissions_kg / wall_s if emissions_kg is not None and wall_s else None,
        energy_consumed=summary["energy"]["facility_energy_kwh"],
        os=summary["run"]["platform"],
        python_version=summary["run"]["python"],
        codecarbon_version=f"greentrain-{summary['greentrain_version']}",
        tracking_mode=_tracking_mode(run),
        pue=summary["energy"]["pue"],
        wue=(summary.get("water") or {}).get("wue_l_per_kwh"),
        water_consumed=((summary.get("water") or {}).get("site_l") or {}).get("high"),
        **_place(summary),
    )
    for kind, column in _KINDS.items():
        devices = [device for device in summary["devices"] if device["kind"] == kind]
        known = [device["facility_energy_j"] for device in devices if device["facility_energy_j"] is not None]
        if known:
            row[f"{column}_energy"] = kwh_from_j(sum(known))
            row[f"{column}_power"] = sum(known) / wall_s if wall_s else None
        if devices and kind == "gpu":
            row["gpu_count"] = len(devices)
            row["gpu_model"] = device_names(devices)
        if devices and kind == "cpu":
            row["cpu_model"] = device_names(devices)
    return row


def write_emissions_csv(summary: Mapping[str, Any], run: Mapping[str, Any], folder: Path) -> Path:
    """Write emissions.csv (one row: a folder is one run) and return its path.

    Raises:
        RunFolderError: The folder cannot be written.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerow(emissions_row(summary, run))
    return write_atomic(folder / "emissions.csv", text.getvalue())


def device_names(devices: list[dict[str, Any]]) -> str:
    """Return how many devices there are of each name."""
    names = [device["name"] for device in devices]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _tracking_mode(run: Mapping[str, Any]) -> str | None:
    scope = ((run.get("config") or {}).get("power") or {}).get("cpu_scope")
    return {"process_tree": "process", "machine": "machine"}.get(str(scope))


def _place(summary: Mapping[str, Any]) -> dict[str, Any]:
    sources = summary["carbon"]["sources"]
    zone = sources[0]["zone"] if len({source["zone"] for source in sources}) == 1 else ""
    if ":" in zone:
        provider, region = zone.split(":", 1)
        return {"cloud_provider": provider, "cloud_region": region, "on_cloud": "Y"}
    country, _, region = zone.partition("-")
    if len(country) not in (2, 3) or not country.isupper():
        return {}
    return {"country_iso_code": country if len(country) == 3 else None, "region": zone if region else None}


DECIMALS: Final = 4
"""A tenth of a milligram: the finest that Python prints without an exponent."""


def model_card(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata; without ``emissions`` where they are not known, which the Hub reads as not stated.

    The run's tags ``training_type`` (for example ``pre-training``) and ``geographical_location`` are copied.
    """
    carbon, tags = summary["carbon"], summary["run"]["tags"]
    if carbon["operational_location_g"] is None:
        return {}
    card: dict[str, Any] = {"emissions": _plain(carbon["operational_location_g"]), "source": _source(summary)}
    if tags.get("training_type"):
        card["training_type"] = tags["training_type"]
    place = tags.get("geographical_location") or ", ".join(
        dict.fromkeys(s["zone"] for s in carbon["sources"] if s["zone"] != WORLD)
    )
    if place:
        card["geographical_location"] = place
    hardware = _hardware(summary)
    if hardware:
        card["hardware_used"] = hardware
    return {"co2_eq_emissions": card}


def write_model_card(summary: Mapping[str, Any], path: Path) -> Path:
    """Write the metadata, and return the path.

    Args:
        summary: The summary of the run, from ``summarize``.
        path: Of the file. Of one that ends in ``.md``, a model card whose text somebody may have written, only the
            metadata of emissions are put in or replaced, and nothing is where they are not known.

    Raises:
        RunFolderError: The file cannot be read or written, or its metadata are no mapping.
    """
    import yaml

    card = model_card(summary)
    if path.suffix == ".md":
        return _amend(path, card) if card else path
    head = "# Metadata for a Hugging Face model card; emissions in GRAMS of CO2e.\n"
    if not card:
        head += (
            "# Emissions are not known: no carbon intensity or no energy reading. Nothing is stated rather than 0.\n"
        )
    body = yaml.safe_dump(card, sort_keys=False, allow_unicode=True, width=120) if card else ""
    return write_atomic(path, head + body)


_FRONT: Final = re.compile(r"\ufeff?---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_EMISSIONS: Final = re.compile(r"^co2_eq_emissions:.*\n(?:(?:[ \t]+.*)?\n)*", re.MULTILINE)


def _amend(path: Path, card: Mapping[str, Any]) -> Path:
    """Put metadata into a model card; its text, and its other metadata with their comments, stay what they are."""
    import yaml

    try:
        text = path.read_bytes().decode() if path.exists() else ""
        newline = "\r\n" if "\r\n" in text else "\n"
        text = text.replace("\r\n", "\n")
        found = _FRONT.match(text)
        kept = "" if found is None else _EMISSIONS.sub("", found[1])
        metadata = kept + yaml.safe_dump(dict(card), sort_keys=False, allow_unicode=True, width=120)
        if not isinstance(yaml.safe_load(metadata), dict):
            raise ValueError("its metadata are no mapping")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunFolderError(f"the model card {path} is left as it is: {error}") from error
    rest = text if found is None else text[found.end() :]
    return write_atomic(path, f"---\n{metadata}---\n{rest}".replace("\n", newline))


def _plain(value: float) -> float:
    rounded = round(value, DECIMALS)
    return float(round(value)) if rounded >= 1e15 else rounded


def _source(summary: Mapping[str, Any]) -> str:
    energy, carbon = summary["energy"], summary["carbon"]
    parts = [
        f"GreenTrain {summary['greentrain_version']}, grams CO2e of electricity (operational); embodied, beside them:"
        f" {quantities.mass(carbon['embodied_g']['mid'])}",
        f"energy {quantities.energy(energy['energy_j'])} ({quantities.percent(energy['measured_share'])} measured,"
        f" {quantities.percent(energy['modelled_share'])} modelled), PUE {pue_text(energy)}",
    ]
    if not carbon["complete"]:
        parts.append("lower bound: the carbon intensity of part of the energy is not known")
    if energy["missing_device_s"] > 0:
        parts.append(f"{quantities.percent(energy['missing_share_of_device_time'])} of device time without a reading")
    return "; ".join(parts)


def _hardware(summary: Mapping[str, Any]) -> str:
    gpus = [device for device in summary["devices"] if device["kind"] == "gpu"]
    names = [device["name"] for device in gpus or summary["devices"] if device["kind"] != "dram"]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
