"""The overhead of the building in a run's figures: PUE, where it is from, and CUE.

CUE, carbon usage effectiveness, is what the energy of the facility emits / IT energy, in kgCO2e/kWh (The Green Grid,
white paper 32, December 2010; https://ictfootprint.eu/greengrid-cue-factsheet, read 2026-11-21; now ISO/IEC 30134-8).
Here it is that of the run: its grams, location-based and with PUE, per kWh of its devices. What the facility burns
itself is not in it, nor is embodied carbon, as in the definition.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from greentrain.ledger.reader import RunRecord
from greentrain.ledger.totals import EntrySums, Totals
from greentrain.types import G_PER_KG, PueSource, kwh_from_j
from greentrain.utils import quantities

CUE_SOURCE: Final = (
    "The Green Grid, white paper 32 (2010), ISO/IEC 30134-8: emissions of the facility's energy / IT energy; here of"
    " this run's electricity, location-based"
)


def facility_figures(record: RunRecord, sums: EntrySums, energy_j: float | None) -> dict[str, Any]:
    """Return facility energy, PUE (its mean by energy), its range, and the energy by source of PUE.

    Args:
        record: The run.
        sums: Sums over the entries of all ranks.
        energy_j: Its IT energy (J), None where nothing is known.
    """
    pue = _mean(record, sums)
    facility_j = None
    if energy_j is not None:
        facility_j = sums.facility_j + sum(_carried_j(rank.carried, pue) for rank in record.ranks)
        pue = round(facility_j / energy_j, 9) if energy_j > 0 else pue
    known_j = sum(sums.pue_j.values())
    return {
        "facility_energy_j": facility_j,
        "facility_energy_kwh": None if facility_j is None else kwh_from_j(facility_j),
        "pue": pue,
        "pue_min": (sums.pue or (pue,))[0],
        "pue_max": (sums.pue or (pue,))[-1],
        "pue_by_source_j": dict(sums.pue_j),
        "pue_fallback_share": sums.pue_j.get(PueSource.FALLBACK, 0.0) / known_j if known_j > 0 else None,
    }


def cue_kg_per_kwh(operational_g: float | None, priced_j: float) -> float | None:
    """Return the CUE of the energy whose intensity is known (kgCO2e/kWh); None where there is none.

    Args:
        operational_g: Location-based emissions, PUE included (g).
        priced_j: IT energy whose intensity is known (J).
    """
    return None if operational_g is None or priced_j <= 0 else operational_g / G_PER_KG / kwh_from_j(priced_j)


def it_grams(carried: Totals, pue: float) -> float:
    """Return the operational grams of totals without PUE; by the mean PUE where they do not tell.

    Args:
        carried: Totals of an earlier part of the run.
        pue: Mean of the run.
    """
    return carried.it_g if carried.it_g > 0 else carried.operational_g / pue


def pue_text(energy: Mapping[str, Any]) -> str:
    """Return the PUE for people: its mean, and between what it changed."""
    mean, low, high = (f"{energy[key]:.4g}" for key in ("pue", "pue_min", "pue_max"))
    return mean if low == high else f"{mean} (mean by energy; {low} to {high})"


def facility_rows(summary: Mapping[str, Any], carbon_config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what is to be said of PUE and CUE among the assumptions: name, value, source.

    Args:
        summary: The summary so far.
        carbon_config: Section ``carbon`` of the run's configuration.
    """
    energy, cue = summary["energy"], summary["carbon"]["cue_kg_per_kwh"]
    by_source = energy["pue_by_source_j"]
    constant = float(carbon_config.get("pue") or 1.0)
    told = not energy["pue_min"] == energy["pue_max"] == constant
    recorded = _recorded(carbon_config, by_source, told=told)
    rows = [("PUE (facility energy / IT energy)", pue_text(energy), recorded or _assumed(energy["pue"]))]
    if energy["pue_fallback_share"] and recorded:
        share = quantities.percent(energy["pue_fallback_share"])
        rows.append(
            (f"PUE of {share} of the energy", f"{constant:g}", f"assumed where nobody told: {_assumed(constant)}")
        )
    if cue is not None:
        rows.append(("CUE (carbon usage effectiveness)", quantities.cue(cue), CUE_SOURCE))
    return rows


def _mean(record: RunRecord, sums: EntrySums) -> float:
    if sums.energy_j > 0:
        return round(sums.facility_j / sums.energy_j, 9)
    for rank in record.ranks:
        for entry in rank.entries:
            return entry.pue
    return float((record.run.get("config") or {}).get("carbon", {}).get("pue") or 1.0)


def _carried_j(carried: Totals, pue: float) -> float:
    """Return the facility energy of totals; by the mean PUE where they do not tell."""
    return carried.facility_j if carried.facility_j >= carried.energy_j else carried.energy_j * pue


def _recorded(carbon_config: Mapping[str, Any], by_source: Mapping[str, float], *, told: bool) -> str:
    """Return who told the PUE, or was to tell it, if it was not the configuration.

    Args:
        carbon_config: Section ``carbon`` of the run's configuration.
        by_source: Energy by source of PUE (J).
        told: False: all of it is the configured number, which a fall-back of a whole run is.
    """
    sources = set(by_source) - {PueSource.CONSTANT}
    if not sources:
        return ""
    silent = sources == {PueSource.FALLBACK} and not told
    if carbon_config.get("pue_csv"):
        verb = "not in the facility's records" if silent else "recorded by the facility"
        return f"{verb}: carbon.pue_csv, {carbon_config['pue_csv']}"
    query, url = carbon_config.get("pue_prometheus_query"), carbon_config.get("pue_prometheus_url")
    host = urlsplit(url).hostname if url else "a server that the configuration no longer names"
    verb = "not told by the facility" if silent else "measured by the facility"
    return f"{verb}: {query} of Prometheus at {host}"


def _assumed(pue: float) -> str:
    if pue != 1.0:
        return "carbon.pue in the configuration"
    return "default 1: cooling and power conversion of the building are not counted"
