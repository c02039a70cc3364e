"""emissions.csv with exactly the columns of CodeCarbon 3.3.2, so that its readers and dashboards work unchanged.

Units are CodeCarbon's: s, kg, kg/s, W, kWh, litres, GB. As there, PUE multiplies power and energy (its
emissions_tracker.py, ``power *= self._pue``), here each interval by its own, and emissions are operational only. A cell
is empty where CodeCarbon would write a guess or 0 and we do not know. Columns:
https://github.com/mlco2/codecarbon, codecarbon/output_methods/emissions_data.py, read 2026-11.
"""

import csv
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from greentrain.types import G_PER_KG, kwh_from_j
from greentrain.utils.files import write_atomic

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
        summary: From ``summarize``.
        run: run.json, for the settings.
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
            row["gpu_model"] = _models(devices)
        if devices and kind == "cpu":
            row["cpu_model"] = _models(devices)
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


def _models(devices: list[dict[str, Any]]) -> str:
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
