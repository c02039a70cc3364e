"""Water of a run: what the site consumes (WUE) and what generating its electricity does (EWIF). Always modelled.

litres = IT energy x WUE + facility energy x EWIF (P. Li, J. Yang, M. Islam, S. Ren, Making AI Less "Thirsty", arXiv
2304.03271, section 3; WUE: The Green Grid, white paper 35, 2011). Consumed is what evaporates; what a plant withdraws
and gives back is not in it, nor is the water in chips.
"""

from collections.abc import Mapping
from typing import Any, Final

L_PER_GALLON: Final = 3.785411784
"""Litres in a US gallon, exact (NIST Handbook 44, appendix C)."""
SOURCE: Final = (
    "J. Macknick et al., Environ. Res. Lett. 7 (2012) 045802: medians of operational water consumption, the lowest and"
    " the highest over ways of cooling"
)
GALLONS_PER_MWH: Final[Mapping[str, tuple[float, float]]] = {
    "nuclear": (269.0, 672.0),  # once-through, tower
    "coal": (250.0, 687.0),  # generic: once-through, tower
    "gas": (2.0, 826.0),  # combined cycle, dry; steam, tower
    "gas_cc": (2.0, 240.0),  # combined cycle: dry, pond
    "gas_steam": (240.0, 826.0),  # once-through, tower
    "biomass": (300.0, 553.0),  # steam: once-through, tower
    "geothermal": (5.0, 505.0),  # flash, dry; enhanced, dry
    "csp": (26.0, 1000.0),  # power tower, dry; Fresnel, tower
    "solar": (1.0, 26.0),  # photovoltaics: this review, and its first version (NREL/TP-6A20-50900, 2011)
    "wind": (0.0, 1.0),  # median and most
    "hydro": (1425.0, 18000.0),  # least and most: evaporation of reservoirs, all of it counted for electricity
}
"""By source of electricity."""


def water_figures(config: Mapping[str, Any] | None, energy: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the litres of a run as ranges; None without the section ``water``, and of a part that nobody knows.

    Args:
        config: Section ``water`` of the run's configuration.
        energy: Figures of the energy; ``energy_kwh`` and ``facility_energy_kwh`` are read.
    """
    if config is None:
        return None
    wue, ewif, mix = (config.get(key) for key in ("wue_l_per_kwh", "ewif_l_per_kwh", "mix"))
    factor, source = (None, "") if ewif is None else ((ewif, ewif), "water.ewif_l_per_kwh of the configuration")
    if mix:
        low, high = (
            sum(share * GALLONS_PER_MWH[name][i] for name, share in mix.items()) * L_PER_GALLON / 1000 for i in (0, 1)
        )
        factor, source = (low, high), f"water.mix of the configuration; {SOURCE}"
    site = _litres(None if wue is None else (wue, wue), energy["energy_kwh"])
    electricity = _litres(factor, energy["facility_energy_kwh"])
    rows = []
    if wue is not None:
        rows.append(
            {"name": "WUE", "value": f"{wue:g} L/kWh of IT", "source": "water.wue_l_per_kwh of the configuration"}
        )
    if factor is not None:
        value = f"{factor[0]:.3g}" if factor[0] == factor[1] else f"{factor[0]:.3g} to {factor[1]:.3g}"
        rows.append({"name": "Water of electricity (EWIF)", "value": f"{value} L/kWh", "source": source})
    known = [part for part in (site, electricity) if part is not None]
    return {
        "provenance": "modelled",
        "site_l": site,
        "electricity_l": electricity,
        "total_l": {key: sum(part[key] for part in known) for key in ("low", "high")} if known else None,
        "complete": len(known) == 2,
        "wue_l_per_kwh": wue,
        "ewif_l_per_kwh": None if factor is None else {"low": factor[0], "high": factor[1]},
        "assumptions": rows,
    }


def _litres(factor: tuple[float, float] | None, kwh: float | None) -> dict[str, float] | None:
    return None if factor is None or kwh is None else {"low": factor[0] * kwh, "high": factor[1] * kwh}


def water_text(water: Mapping[str, Any] | None) -> str:
    """Return the litres for people; empty where nobody asked for them."""
    if water is None:
        return ""
    if water["total_l"] is None:
        return "unknown"
    low, high = water["total_l"]["low"], water["total_l"]["high"]
    amount = f"{low:.3g} l" if low == high else f"{low:.3g} to {high:.3g} l"
    left = "" if water["complete"] else ", the site's alone" if water["site_l"] else ", of electricity alone"
    return f"{amount} (modelled{left})"
