"""Which actions a study has: declared in a file, measured by a run, or assumed by this package. Each says which.

The action table of the scheduling benchmarks: 1 to 8 nodes of eight H100s, two gears, three power caps.

Nobody measured it here: it is assumed, from published figures, so that grids and policies can be compared. A run's own
table is what ``GreenSession.profile_gears`` measures.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.policy.action_table import ActionCost, ActionTable, MeanWithCI, declared
from greentrain.policy.menu import menu_of

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


REFERENCE: Final = "reference"
"""Word for the table of the benchmarks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """A table of actions, and where it is from."""

    table: ActionTable
    source: str
    """For people: the file, the run, or that this package assumes it."""

    @property
    def unit(self) -> str:
        """What the job's "tokens" are: ``tokens``, or ``samples`` where the loop of the table told no tokens."""
        told = any(cost.tokens_per_s is not None for cost in self.table.costs)
        return "tokens" if told or not self.table.costs else "samples"


def read_actions(where: str) -> Actions:
    """Return the table that a word or a path names.

    Args:
        where: A run folder, a declared table (YAML), or ``reference``: the assumed table of the benchmarks.

    Raises:
        ConfigError: There is no such thing, or no table in it; the message says what there is instead.
    """
    path = Path(where)
    if path.is_dir():
        return _of_run(path)
    if where == REFERENCE and not path.exists():
        table = reference_table()
        return Actions(table=table, source=f"reference table of the benchmarks ({table.device})")
    return Actions(table=declared(path), source=f"declared in {path}")


def table_of_run(run: Mapping[str, Any], where: str) -> ActionTable | None:
    """Return the table in a run.json: measured in the run, or behind its plan; None where there is none.

    Args:
        run: The content of run.json.
        where: Path of run.json, for errors.

    Raises:
        ConfigError: The table is of a format that this version does not read.
    """
    try:
        if run.get("action_table"):
            return ActionTable.from_dict(run["action_table"])
        return _of_plan(run["plan"]) if run.get("plan") else None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: the action table cannot be read: {error}") from error


def _of_run(folder: Path) -> Actions:
    path = folder / "run.json"
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is no run folder, its run.json cannot be read ({error}): name another") from error
    table = table_of_run(run, str(path))
    if table is None:
        raise ConfigError(
            f"{path} has no action table: the run neither measured its gears (session.profile_gears) nor planned. Name"
            " a run that did, or declare a table in a YAML file"
        )
    return Actions(table=table, source=f"run {run.get('run_id', folder.name)} on {table.device}")


def _of_plan(plan: Mapping[str, Any]) -> ActionTable:
    """Return the table that a plan had, in the machine's time."""
    menu, speed = menu_of(plan), float(plan["grid"]["speed"])
    costs = [
        ActionCost(
            action=action,
            steps_per_s=None,
            tokens_per_s=MeanWithCI(mean=float(menu.tokens_per_s[row]) * speed),
            power_w=MeanWithCI(mean=float(menu.power_w[row]) * speed),
            provenance=menu.provenance,
        )
        for row, action in enumerate(menu.actions)
        if action is not None
    ]
    return ActionTable(
        costs=costs, device="the devices of its plan", world_size=int(menu.width.max()), created_unix_s=0.0
    )
