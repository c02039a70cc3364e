"""model_card.yaml: Hugging Face's ``co2_eq_emissions``, ready to paste into a model card's metadata.

The Hub documents grams of CO2e (https://huggingface.co/docs/hub/model-cards-co2). Its filter takes the first
decimal number of ``str(emissions)`` (huggingface_hub/utils/endpoint_helpers.py, read 2026-11), so the number
must never be printed with an exponent: 5e-05 would count as 5 g.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from greentrain.config.schema import WORLD
from greentrain.report.facility import pue_text
from greentrain.utils import quantities
from greentrain.utils.files import write_atomic

DECIMALS: Final = 4
"""A tenth of a milligram: the finest that Python prints without an exponent."""


def model_card(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata; without ``emissions`` where they are not known, which the Hub reads as not stated.

    The run's tags ``training_type`` (for example ``pre-training``) and ``geographical_location`` are copied.
    """
    carbon, tags = summary["carbon"], summary["run"]["tags"]
    if carbon["emissions_g"] is None:
        return {}
    card: dict[str, Any] = {"emissions": _plain(carbon["emissions_g"]), "source": _source(summary)}
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


def write_model_card(summary: Mapping[str, Any], folder: Path) -> Path:
    """Write model_card.yaml and return its path.

    Raises:
        RunFolderError: The folder cannot be written.
    """
    import yaml

    card = model_card(summary)
    head = "# Metadata for a Hugging Face model card; emissions in GRAMS of CO2e.\n"
    if not card:
        head += (
            "# Emissions are not known: no carbon intensity or no energy reading. Nothing is stated rather than 0.\n"
        )
    body = yaml.safe_dump(card, sort_keys=False, allow_unicode=True, width=120) if card else ""
    return write_atomic(folder / "model_card.yaml", head + body)


def _plain(value: float) -> float:
    rounded = round(value, DECIMALS)
    return float(round(value)) if rounded >= 1e15 else rounded


def _source(summary: Mapping[str, Any]) -> str:
    energy, carbon = summary["energy"], summary["carbon"]
    parts = [
        f"GreenTrain {summary['greentrain_version']}, grams CO2e: {' + '.join(carbon['emissions_include'])}",
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
