"""An estimate as a table of actions, for planning on a cluster that cannot be profiled.

Everything in it is assumed: speed and watts are the middle of the estimate, and a part of the devices is taken to make
the same part of the tokens. Power caps are in no row: the tables do not say what they cost.
"""

from collections.abc import Sequence
from typing import Any, Final

from greentrain.estimate.mfu import fp8_speedup
from greentrain.estimate.result import Estimate
from greentrain.policy.action_table import ActionTable
from greentrain.types import S_PER_HOUR, Gear

SHARES: Final = (1.0, 0.5, 0.25)
"""Of the devices; those that are no whole number are left out."""


def action_rows(found: Estimate) -> list[dict[str, Any]]:
    """Return the actions as ``declared`` of the action table reads them, the whole job's tokens/s and watts."""
    tokens_per_s = found.workload.tokens / (found.duration_h.mid * S_PER_HOUR)
    speeds = {found.workload.precision: tokens_per_s}
    if Gear.FP8 in found.device.peak_flop_s:
        if found.workload.precision is Gear.FP8:
            speeds[Gear.BF16] = tokens_per_s / fp8_speedup(found.device).mid
        elif found.workload.precision is Gear.BF16:
            speeds[Gear.FP8] = tokens_per_s * fp8_speedup(found.device).mid
    widths = [round(found.count * share) for share in SHARES if (found.count * share).is_integer()]
    return [
        {
            "gear": gear.value,
            "ranks": ranks,
            "tokens_per_s": float(f"{speed * ranks / found.count:.4g}"),
            "power_w": float(f"{found.node_w.mid * ranks:.4g}"),
        }
        for gear, speed in speeds.items()
        for ranks in widths
    ]


def action_table(found: Estimate) -> ActionTable:
    """Return the table that policies read; every figure in it is ``assumed``."""
    return ActionTable.declare(action_rows(found), device=_device(found))


def action_document(found: Estimate) -> str:
    """Return the table as YAML, for ``greentrain plan --actions FILE`` and ``policy.actions``."""
    import yaml

    told: Sequence[dict[str, Any]] = action_rows(found)
    head = "# From greentrain estimate: nothing here was measured. tokens/s and watts of the whole job, without PUE.\n"
    text: str = yaml.safe_dump({"device": _device(found), "actions": told}, sort_keys=False)
    return head + text


def _device(found: Estimate) -> str:
    return f"{found.count} x {found.device.name}, {found.shape.name}, estimated by {found.method}"
