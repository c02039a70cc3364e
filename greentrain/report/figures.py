"""The figures of a run: energy, power, carbon and work, each with its unit in its name and null for unknown."""

from collections.abc import Mapping
from typing import Any

from greentrain.ledger.reader import RunRecord
from greentrain.ledger.totals import EntrySums, Totals
from greentrain.report.facility import cue_kg_per_kwh, facility_figures
from greentrain.report.series import RunSeries
from greentrain.types import J_PER_KWH, S_PER_HOUR, kwh_from_j


def energy_figures(record: RunRecord, totals: Totals, sums: EntrySums) -> dict[str, Any]:
    """Return joules and kWh, PUE, provenance shares, coverage and uncertainty; earlier parts of the run count."""
    known = any(device.energy_j is not None for device in sums.devices.values())
    carried_j = sum(rank.carried.energy_j for rank in record.ranks)
    energy_j = totals.energy_j if known or carried_j > 0 else None
    booked_s = sum(device.booked_s for device in sums.devices.values())
    booked_s += sum(rank.carried.device_s for rank in record.ranks)
    missing_s = max(sum(totals.missing_s.values()), 0.0)
    shares = {name: totals.by_provenance.get(name, 0.0) for name in ("measured", "modelled")}
    return {
        "energy_j": energy_j,
        "energy_kwh": None if energy_j is None else kwh_from_j(energy_j),
        **facility_figures(record, sums, energy_j),
        "carried_j": carried_j,
        "by_provenance_j": {name: None if energy_j is None else value for name, value in shares.items()},
        "measured_share": shares["measured"] / energy_j if energy_j else None,
        "modelled_share": shares["modelled"] / energy_j if energy_j else None,
        "device_s": booked_s,
        "missing_device_s": missing_s,
        "carried_missing_device_s": max(sum(sum(rank.carried.missing_s.values()) for rank in record.ranks), 0.0),
        "missing_share_of_device_time": missing_s / booked_s if booked_s > 0 else None,
        "uncertainty": _uncertainty(record, sums, energy_j),
    }


def _uncertainty(record: RunRecord, sums: EntrySums, energy_j: float | None) -> float | None:
    """Worst case: relative uncertainties of all devices in the same direction; None if one states none."""
    if not energy_j:
        return None
    total = known_j = 0.0
    sensors = record.sensors
    for place, device in sums.devices.items():
        if energy_of_device_j := device.energy_j:
            stated = sensors.get(place, {}).get("uncertainty")
            if stated is None:
                return None
            total += stated * energy_of_device_j
            known_j += energy_of_device_j
    return total / known_j if known_j > 0 else None


def power_figures(wall_s: float, energy: Mapping[str, Any], series: RunSeries | None) -> dict[str, Any]:
    """Return mean power and the peak over a stated window."""
    return {
        "mean_w": energy["energy_j"] / wall_s if energy["energy_j"] is not None and wall_s > 0 else None,
        "peak_w": series.peak_w if series is not None and energy["energy_j"] is not None else None,
        "peak_window_s": series.window_s if series is not None else None,
    }


def carbon_figures(record: RunRecord, totals: Totals, sums: EntrySums, energy: Mapping[str, Any]) -> dict[str, Any]:
    """Return grams (operational, embodied, both), CUE, intensity and who states it."""
    energy_j = energy["energy_j"]
    priced_j = totals.energy_j - totals.unpriced_j
    operational_g = totals.operational_g if energy_j is not None and (priced_j > 0 or energy_j == 0) else None
    carried = any(rank.carried.embodied_g > 0 for rank in record.ranks)
    mid = totals.embodied_g if sums.embodied or carried else None
    ratio = _embodied_ratio(record, sums)
    embodied = {
        "low": None if mid is None or ratio is None else mid * ratio[0],
        "mid": mid,
        "high": None if mid is None or ratio is None else mid * ratio[1],
    }
    market = ((record.run.get("config") or {}).get("carbon") or {}).get("market_g_per_kwh")
    facility_kwh = energy["facility_energy_kwh"]
    carried_g = sum(rank.carried.operational_g for rank in record.ranks)
    priced_facility_j = sums.priced_facility_j
    grams_here = totals.operational_g - carried_g
    return {
        "operational_location_g": operational_g,
        "operational_market_g": None if market is None or facility_kwh is None else market * facility_kwh,
        "market_g_per_kwh": market,
        "embodied_g": embodied,
        "devices_without_embodied": sum(
            1 for place in sums.devices if not record.sensors.get(place, {}).get("embodied_g_per_h")
        ),
        "emissions_g": None if operational_g is None else operational_g + (mid or 0.0),
        "emissions_include": ["operational"] + (["embodied (mid)"] if mid is not None else []),
        "complete": energy_j is not None and totals.unpriced_j == 0,
        "unpriced_j": totals.unpriced_j if energy_j is not None else None,
        "cue_kg_per_kwh": cue_kg_per_kwh(operational_g, priced_j),
        "intensity_g_per_kwh": grams_here / priced_facility_j * J_PER_KWH if priced_facility_j > 0 else None,
        "intensity_min_g_per_kwh": sums.g_per_kwh and sums.g_per_kwh[0],
        "intensity_max_g_per_kwh": sums.g_per_kwh and sums.g_per_kwh[1],
        "sources": [
            {"zone": z, "source": s, "kind": k, "basis": b, "accounting": a, "energy_j": joules}
            for (z, s, k, b, a), joules in sorted(sums.zone_j.items(), key=lambda item: -item[1])
        ],
        "signal": dict(record.run.get("carbon") or {}),
    }


def _embodied_ratio(record: RunRecord, sums: EntrySums) -> tuple[float, float] | None:
    """Return low / mid and high / mid of the embodied share, weighted by device-hours; None if unknown."""
    low = mid = high = 0.0
    for place, sensor in record.sensors.items():
        rate = sensor.get("embodied_g_per_h")
        if rate:
            hours = sums.devices[place].booked_s / S_PER_HOUR
            low, mid, high = low + rate["low"] * hours, mid + rate["mid"] * hours, high + rate["high"] * hours
    return (low / mid, high / mid) if mid > 0 else None


def work_figures(wall_s: float, totals: Totals, energy: Mapping[str, Any], carbon: Mapping[str, Any]) -> dict[str, Any]:
    """Return steps, tokens, samples and their ratios to joules, grams and seconds."""
    tokens, samples = totals.tokens or None, totals.samples or None
    energy_j, emissions_g = energy["energy_j"], carbon["emissions_g"]
    return {
        "steps": totals.steps or None,
        "tokens": tokens,
        "samples": samples,
        "tokens_per_j": _ratio(tokens, energy_j),
        "samples_per_j": _ratio(samples, energy_j),
        "j_per_token": _ratio(energy_j, tokens),
        "j_per_sample": _ratio(energy_j, samples),
        "j_per_step": _ratio(energy_j, totals.steps or None),
        "g_per_ktoken": _ratio(emissions_g, tokens / 1000 if tokens else None),
        "g_per_ksample": _ratio(emissions_g, samples / 1000 if samples else None),
        "tokens_per_s": _ratio(tokens, wall_s),
        "samples_per_s": _ratio(samples, wall_s),
    }


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
