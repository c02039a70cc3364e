"""The action table of the scheduling benchmarks: 1 to 8 nodes of eight H100s, two gears, three power caps.

Nobody measured it here: it is assumed, from published figures, so that grids and policies can be compared. A run's own
table is what ``GreenSession.profile_gears`` measures.
"""

from collections.abc import Mapping
from typing import Any, Final

from greentrain.action_table import ActionTable

NODES: Final = 8
NODE_W: Final = 2200.0
"""Power of a node of eight H100s without its GPUs' boards (W). With these at 700 W it draws 7.8 kW: 8.4 kW is the most
that Latif et al. saw in training (https://arxiv.org/abs/2412.08602), and 76 % of the 10.2 kW rated is usual under heavy
load (Newkirk et al., https://arxiv.org/abs/2506.14551; both 2026-11-21)."""
BOARD_W: Final = 700.0
"""Board power of an H100 SXM (W; NVIDIA H100 data sheet, 2026-11-21)."""
FP8_SPEEDUP: Final = 1.35
"""FP8 over BF16 at equal power: PyTorch's torchtitan is published with 34 % for Llama-2-7B and 50 % for Llama3-70B on
128 H100s (read 2026-11-21)."""
CAPS: Final[Mapping[float, float]] = {1.0: 1.0, 0.8: 0.95, 0.6: 0.82}
"""Power cap of a board and the share of speed it leaves: assumed, to be measured."""
SHARED: Final = 0.02
"""Loss of speed by each further node: n nodes do n / (1 + 0.02 (n - 1)), 88 % of ideal at 8: assumed (as above)."""
NODE_TOKENS_PER_S: Final = 100_000.0
"""Speed of one node in BF16 at full power: a scale only, no result depends on it."""
IDLE_NODE_W: Final = 2100.0
"""A node that is held and idle (W): 27 % of its full power, assumed."""

SETS: Final[Mapping[str, str]] = {
    "T1": "on or off, BF16",
    "T2": "width, BF16",
    "T3": "width and caps, BF16",
    "T4": "on or off, BF16 or FP8",
    "T5": "width, BF16 or FP8",
    "T6": "width and caps, BF16 or FP8",
}
"""The sets of actions of the ablation."""


def reference_table(actions: str = "T6") -> ActionTable:
    """Return the table with one of the SETS of actions.

    Args:
        actions: Name of the set.
    """
    widths = (NODES,) if actions in ("T1", "T4") else range(1, NODES + 1)
    gears = {"bf16": 1.0} if actions in ("T1", "T2", "T3") else {"bf16": 1.0, "fp8": FP8_SPEEDUP}
    caps = CAPS if actions in ("T3", "T6") else {1.0: 1.0}
    rows: list[Mapping[str, Any]] = [
        {
            "gear": gear,
            "ranks": nodes,
            "cap": cap,
            "tokens_per_s": NODE_TOKENS_PER_S * nodes / (1 + SHARED * (nodes - 1)) * speedup * left,
            "power_w": nodes * (NODE_W + 8 * BOARD_W * cap),
        }
        for nodes in widths
        for gear, speedup in gears.items()
        for cap, left in caps.items()
    ]
    return ActionTable.declare(rows, device=f"{NODES} nodes of 8 x H100, {SETS[actions]}", where=f"reference {actions}")
