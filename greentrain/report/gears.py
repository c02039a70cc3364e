"""The precision gears of a run: what each used for what it did, and which layers got FP8."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from greentrain.ledger.totals import EntrySums, Totals
from greentrain.policy.action_table import ActionTable
from greentrain.utils import quantities

NAMES: Final = 3
"""Layers named as examples in a group."""


def gear_rows(
    by_rank: Sequence[Totals], totals: Totals, sums: EntrySums, total_j: float | None
) -> list[dict[str, Any]]:
    """Return a row for each gear that ran, the one with most energy first; none where the run had no gears.

    A gear has all time from the shift to it up to the shift away from it, evaluation and checkpoints included.
    Energy and work are sums over ranks, ``seconds`` and ``steps`` those of the rank with most. ``g_per_ktoken`` is of
    the intervals in this folder whose carbon intensity is known, embodied share included.

    Args:
        by_rank: Totals of each rank.
        totals: Totals of the job.
        sums: Sums over the entries of all ranks, for the grams.
        total_j: Known energy of the whole run (J), or None.
    """
    rows = []
    for gear, use in totals.by_gear.items():
        seconds = max(part.by_gear[gear].seconds for part in by_rank if gear in part.by_gear)
        energy_j = use.energy_j if use.is_known else None
        grams = sums.gear_g.get(gear)
        row: dict[str, Any] = {
            "gear": gear,
            "energy_j": energy_j,
            "share": _ratio(energy_j, total_j),
            "modelled_share": _ratio(use.modelled_j, energy_j),
            "seconds": seconds,
            "steps": use.steps or None,
            "tokens": use.tokens or None,
            "samples": use.samples or None,
            "mean_power_w": _ratio(energy_j, seconds),
            "operational_g": grams["operational_g"] if grams else None,
            "g_per_ktoken": _ratio(1000 * grams["emissions_g"], grams["tokens"]) if grams else None,
            "device_s": use.device_s,
            "missing_device_s": use.missing_s,
            "coverage": 0.0 if energy_j is None else max(1.0 - max(use.missing_s, 0.0) / (use.device_s or 1.0), 0.0),
        }
        for one, done in (("token", use.tokens), ("sample", use.samples), ("step", use.steps)):
            row[f"j_per_{one}"] = _ratio(energy_j, done)
            row[f"{one}s_per_s"] = _ratio(done or None, seconds)
        rows.append(row)
    return sorted(rows, key=lambda row: -(row["energy_j"] or 0.0))


def profiled(summary: Mapping[str, Any]) -> str | None:
    """Return the gears side by side as ``profile_gears()`` has measured them, as text; None where it has not."""
    table = summary["action_table"]
    return None if table is None else str(ActionTable.from_dict(table))


def gear_table(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what tables show of the gears: the rows, per token, sample or step, and where their energy is from.

    None where the run had no gears.
    """
    rows = summary["gears"]
    if not rows:
        return None
    one = next((one for one in ("token", "sample") if any(row[f"{one}s"] for row in rows)), "step")
    base = max(rows, key=lambda row: float(row[f"j_per_{one}"] or 0.0))  # the dearest: the others show what they save
    shown = []
    for row in rows:
        ratio = _ratio(row[f"j_per_{one}"], base[f"j_per_{one}"]) if row is not base else None
        shown.append(
            {
                **row,
                "rate_per_s": row[f"{one}s_per_s"],
                "j_per_one": row[f"j_per_{one}"],
                "relative": "" if ratio is None else f"{quantities.significant(ratio)}x {base['gear']}",
                "provenance": _provenance(row),
                "source": _source(row),
            }
        )
    return {
        "unit": one,
        "rows": shown,
        "modelled": any(row["modelled_share"] for row in rows),
        "whole": sum(row["seconds"] for row in rows) >= 0.995 * (summary["time"]["wall_s"] or 0.0),
    }


def _provenance(row: Mapping[str, Any]) -> str:
    if row["energy_j"] is None:
        return "missing"
    return "modelled" if row["modelled_share"] else "measured"


def _source(row: Mapping[str, Any]) -> str:
    """Say how much of a gear's energy is modelled, and of how much device time nothing is known."""
    if row["energy_j"] is None:
        return "no reading"
    share = row["modelled_share"]
    text = f"{quantities.percent(share)} modelled" if share else "measured"
    if row["coverage"] < 0.9995:
        text += f", {quantities.percent(row['coverage'])} of device time"
    elif row["missing_device_s"] < 0:
        text += ", with energy of a gap in another gear"
    return text


def layer_figures(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how many linear layers may run in FP8, on which backend, and the others by reason; None without a plan.

    Args:
        run: run.json; ``layers`` and ``gear_backend`` are read.
    """
    layers = run.get("layers")
    if not layers:
        return None
    groups: dict[tuple[bool, str], dict[str, Any]] = {}
    for layer in layers:
        chosen, reason = bool(layer["chosen"]), str(layer["reason"])
        group = groups.setdefault(
            (chosen, reason), {"chosen": chosen, "reason": reason, "count": 0, "weights": 0, "names": []}
        )
        group["count"] += 1
        group["weights"] += layer["in_features"] * layer["out_features"]
        if len(group["names"]) < NAMES:
            group["names"].append(layer["name"])
    ordered = sorted(groups.values(), key=lambda group: (not group["chosen"], -group["weights"]))
    chosen_weights = sum(group["weights"] for group in ordered if group["chosen"])
    return {
        "backend": run.get("gear_backend") or None,
        "count": len(layers),
        "chosen": sum(group["count"] for group in ordered if group["chosen"]),
        "weight_share": _ratio(chosen_weights, sum(group["weights"] for group in ordered)),
        "groups": ordered,
    }


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
