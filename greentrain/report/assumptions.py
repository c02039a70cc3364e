"""Everything that went into a report besides measurements: name, value, source."""

from collections.abc import Mapping
from typing import Any

from greentrain.report.facility import facility_rows


def assumptions(summary: Mapping[str, Any], run: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the assumptions behind a summary, each with value and source.

    Args:
        summary: The summary so far.
        run: run.json, for the settings.
    """
    config = run.get("config") or {}
    carbon_config = config.get("carbon") or {}
    rows = [_row(*row) for row in facility_rows(summary, carbon_config)]
    rows += _intensity(summary["carbon"])
    if carbon_config.get("market_g_per_kwh") is not None:
        rows.append(
            _row(
                "Contracted carbon intensity",
                f"{carbon_config['market_g_per_kwh']:g} g/kWh",
                "carbon.market_g_per_kwh in the configuration; GHG Protocol scope 2, market-based",
            )
        )
    if summary["carbon"]["embodied_g"]["mid"] is not None and "lifetime_years" in carbon_config:
        rows.append(
            _row(
                "Life of a device",
                f"{carbon_config['lifetime_years']:g} years",
                "carbon.lifetime_years; low and high estimates use 6 and 3 years",
            )
        )
    rows += _devices(summary)
    rows += _plan(summary["plan"])
    for rank in summary["ranks"]:
        for item in rank["excluded"]:
            rows.append(_row(f"Left out: {item['name']}", "not counted", item["reason"]))
    return _unique(rows)


def _intensity(carbon: Mapping[str, Any]) -> list[dict[str, str]]:
    rows = []
    for source in carbon["sources"]:
        rows.append(
            _row(
                f"Carbon intensity of {source['zone']}",
                _range(carbon) if len(carbon["sources"]) == 1 else "by interval",
                f"{source['source']} ({source['kind']}, {source['basis']}, {source['accounting']})",
            )
        )
    signal = carbon["signal"]
    if signal.get("resolution"):
        rows.append(_row("Time resolution of the intensity", signal["resolution"], signal.get("source", "")))
    if carbon["unpriced_j"]:
        rows.append(_row("Energy without a carbon intensity", f"{carbon['unpriced_j']:.4g} J", "in no figure of grams"))
    return rows


def _range(carbon: Mapping[str, Any]) -> str:
    low, high = carbon["intensity_min_g_per_kwh"], carbon["intensity_max_g_per_kwh"]
    if low is None:
        return "unknown"
    return f"{low:.4g} g/kWh" if high - low < 1e-3 * max(high, 1e-9) else f"{low:.4g} to {high:.4g} g/kWh"


def _plan(plan: Mapping[str, Any] | None) -> list[dict[str, str]]:
    rows = []
    if plan is not None and plan["provenance"] == "assumed":
        count = len(plan["rows"]) - 1
        source = "policy.actions in the configuration; nobody measured it on these devices"
        rows.append(_row("Action table of the plan", f"speed and watts of {count} action{'s' * (count > 1)}", source))
    if plan is not None and plan["replayed"]:
        speed = plan["grid"]["speed"]
        value = f"from {plan['start_utc']} on" + ("" if speed == 1 else f", {speed:g} times as fast")
        rows.append(_row("Time of the grid", value, "carbon.replay_start and carbon.speed in the configuration"))
    return rows


def _devices(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    rows = []
    for device in summary["devices"]:
        if device["provenance"] in ("modelled", "mixed"):
            rows.append(
                _row(f"Power model of {device['name']}", device["method"] or "model", device["note"] or "not measured")
            )
        rate = device["embodied_g_per_h"]
        if rate:
            rows.append(
                _row(
                    f"Embodied carbon of {device['name']}",
                    f"{rate['mid']:.3g} g/h ({rate['low']:.3g} to {rate['high']:.3g})",
                    rate.get("source", ""),
                )
            )
        elif device["embodied_note"]:
            rows.append(_row(f"Embodied carbon of {device['name']}", "no figure of its own", device["embodied_note"]))
    return rows


def _row(name: str, value: object, source: object) -> dict[str, str]:
    return {"name": name, "value": str(value), "source": str(source)}


def _unique(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    seen: set[tuple[str, str, str]] = set()
    out = []
    for row in rows:
        key = (row["name"], row["value"], row["source"])
        if key not in seen:
            seen.add(key)
            out.append(row)
    return out
