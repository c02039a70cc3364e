"""Which actions a study has: declared in a file, measured by a run, or assumed by this package. Each says which."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.action_table import ActionCost, ActionTable, Estimate, declared
from greentrain.errors import ConfigError
from greentrain.report.plan_hindsight import menu_of
from greentrain.simulator.reference_table import reference_table

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
        where: Its path, for errors.

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
            tokens_per_s=Estimate(mean=float(menu.tokens_per_s[row]) * speed),
            power_w=Estimate(mean=float(menu.power_w[row]) * speed),
            provenance=menu.provenance,
        )
        for row, action in enumerate(menu.actions)
        if action is not None
    ]
    return ActionTable(
        costs=costs, device="the devices of its plan", world_size=int(menu.width.max()), created_unix_s=0.0
    )
