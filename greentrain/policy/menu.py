"""What a job can do at any moment, as arrays: off, and every action of its table.

The cheapest mixtures of all choices lie on the lower convex hull of (tokens/s, W); what is above it is never part of a
best plan, whatever the grid does.

A deadline as ``policy.deadline_h`` takes it.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.policy.action_table import Action, ActionTable
from greentrain.types import S_PER_HOUR, Gear

_BESIDE_FP8 = (Gear.BF16, Gear.FP32, Gear.FP16)
OFF = 0
"""Row of the pause."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Menu:
    """The m choices of one job. Row 0 is off."""

    actions: tuple[Action | None, ...]
    """None in row 0."""
    tokens_per_s: NDArray[np.float64]
    """(m,)"""
    power_w: NDArray[np.float64]
    """(m,) IT power of the whole job, idle devices that are held included."""
    width: NDArray[np.int64]
    """(m,) ranks or nodes at work; 0 when off."""
    provenance: str
    """Of the watts: ``measured``, ``modelled``, ``mixed`` or ``assumed``."""

    @classmethod
    def of(
        cls,
        table: ActionTable,
        *,
        released: bool = True,
        idle_w: float | None = None,
        wanted: Callable[[Action], bool] = lambda action: True,
    ) -> "Menu":
        """Return the choices of a table. Where its loop told samples and no tokens, "tokens" are samples.

        Args:
            table: Costs of actions; those whose speed or power nobody knows are left out.
            released: Whether ranks that do not work are given back and cost nothing.
            idle_w: Power of one rank that is held and does not work (W).
            wanted: Says whether an action may be chosen.

        Raises:
            ConfigError: No action is left, or ranks are held and nobody says what that costs.
        """
        tokens = any(cost.tokens_per_s is not None for cost in table.costs)
        speed = {cost.action: cost.tokens_per_s if tokens else cost.samples_per_s for cost in table.costs}
        known = [(c, v.mean, c.power_w.mean) for c in table.costs if (v := speed[c.action]) and c.power_w]
        rows = [row for row in known if row[1] > 0 and wanted(row[0].action)]
        if not rows:
            known_ones = ", ".join(str(cost.action) for cost in table.costs) or "no action"
            raise ConfigError(
                f"the action table of {table.device!r} has {known_ones}, and of none that may be used here are both"
                " tokens/s and watts known: it needs the run's own gears, limits and number of ranks; count tokens in"
                " step(tokens=...), measure power, or declare such a table with policy.actions"
            )
        if not released and idle_w is None:
            raise ConfigError(
                "policy.released is false, so policy.idle_w must say what one rank draws (W) that is held and idle"
            )
        width = np.array([0] + [c.action.ranks or table.world_size for c, _, _ in rows])
        idle = 0.0 if released or idle_w is None else idle_w
        power_w = np.array([0.0] + [w for _, _, w in rows]) + (width.max() - width) * idle
        sources = {c.provenance for c, _, _ in rows}
        return cls(
            actions=(None, *(c.action for c, _, _ in rows)),
            tokens_per_s=np.array([0.0] + [v for _, v, _ in rows]),
            power_w=power_w,
            width=width,
            provenance=sources.pop() if len(sources) == 1 else "mixed",
        )

    def with_fp8_share(self, share: float) -> "Menu":
        """Return the choices of a job that may take only a share of its steps in FP8, and the others in another gear.

        A row in FP8 then stands for the mixture of the two at this share, at the same width and cap.

        Args:
            share: Largest share of the steps in FP8, in 0..1.
        """
        if share >= 1.0 or not self.fp8.any():
            return self
        speed, power_w = self.tokens_per_s.copy(), self.power_w.copy()
        for row in np.flatnonzero(self.fp8).tolist():
            fp8 = self.actions[row]
            other = self.find(lambda a, b=fp8: a.gear in _BESIDE_FP8 and (a.cap, a.ranks) == (b.cap, b.ranks))  # type: ignore[misc]
            if other is None:
                continue
            times = np.array([share / self.tokens_per_s[row], (1.0 - share) / self.tokens_per_s[other]])
            speed[row] = 1.0 / times.sum()
            power_w[row] = times @ [self.power_w[row], self.power_w[other]] / times.sum()
        return replace(self, tokens_per_s=speed, power_w=power_w)

    def only(self, rows: NDArray[np.int64]) -> "Menu":
        """Return some of the choices as a menu; its row 0 need not be off."""
        return replace(
            self,
            actions=tuple(self.actions[row] for row in rows),
            tokens_per_s=self.tokens_per_s[rows],
            power_w=self.power_w[rows],
            width=self.width[rows],
        )

    def __len__(self) -> int:
        return len(self.actions)

    @cached_property
    def hull(self) -> NDArray[np.int64]:
        """(v,) rows on the lower convex hull, from off to the fastest: both speed and marginal W per token/s grow."""
        order = np.lexsort((self.power_w, self.tokens_per_s))
        hull: list[int] = []
        for i in order.tolist():
            if hull and self.tokens_per_s[i] <= self.tokens_per_s[hull[-1]]:
                continue  # as slow, and no cheaper
            while len(hull) > 1 and self._slope(hull[-1], i) <= self._slope(hull[-2], hull[-1]):
                hull.pop()
            hull.append(i)
        return np.array(hull)

    def _slope(self, a: int, b: int) -> float:
        return float((self.power_w[b] - self.power_w[a]) / (self.tokens_per_s[b] - self.tokens_per_s[a]))

    @cached_property
    def fp8(self) -> NDArray[np.bool_]:
        """(m,) which choices run in 8 or 4 bits: FP8, MXFP8, NVFP4."""
        return np.array([action is not None and action.gear.is_low for action in self.actions])

    @cached_property
    def gear(self) -> NDArray[np.int64]:
        """(m,) which gear each choice runs in, as a number; that of off is its own."""
        names = [-1 if action is None else list(Gear).index(action.gear) for action in self.actions]
        return np.array(names, dtype=np.int64)

    @property
    def fastest(self) -> int:
        """Row of the highest speed, the cheapest of these."""
        return int(self.hull[-1])

    def find(self, wanted: Callable[[Action], bool]) -> int | None:
        """Return the fastest row (the cheapest of these) with such an action; None if there is none."""
        rows = [i for i, action in enumerate(self.actions) if action is not None and wanted(action)]
        return min(rows, key=lambda i: (-self.tokens_per_s[i], self.power_w[i]), default=None)

    @property
    def static(self) -> int:
        """Row of the usual training: full power, BF16 (else FP32, else any gear), as wide and fast as can be."""
        for gears in ((Gear.BF16,), (Gear.FP32,), tuple(Gear)):
            found = self.find(lambda a, gears=gears: a.gear in gears and a.cap == 1.0)  # type: ignore[misc]
            if found is not None:
                return found
        return self.fastest

    def names(self) -> Sequence[str]:
        """Return what each row is called."""
        return ["off" if action is None else str(action) for action in self.actions]


def hours_up(time_s: float) -> str:
    """Return a time (s) in hours with two decimals, rounded up: what can be done in it can be done in these."""
    hours = time_s / S_PER_HOUR
    return f"{math.ceil(hours * 100 - 1e-9) / 100 if math.isfinite(hours) else hours:.10g} h"


_NAME: Final = re.compile(r"(?P<gear>\w+)(?: at (?P<cap>\d+)%)?(?: on (?P<ranks>\d+))?")
"""What ``str`` of an action looks like."""


_MOST: Final = 2.0**63
"""No speed, power or width of a job is so large."""


def menu_of(facts: Mapping[str, Any], speed: float = 1.0, power: float = 1.0) -> "Menu":
    """Return the choices of a job as it was, in the grid's time.

    Args:
        facts: Facts on the job's menu from run.json.
        speed: Speed of the job over that of its table.
        power: Power of the job over that of its table.

    Raises:
        ValueError: A row has figures that no job has: the file was damaged, or is none of ours.
    """
    import numpy as np

    rows = facts["rows"]
    for row in rows:
        figures = float(row["power_w"]), float(row["tokens_per_s"]), float(row["width"])
        if not all(0 <= figure < _MOST for figure in figures):  # of NaN, too
            raise ValueError(f"run.json: the plan's row {str(row['name'])[:40]!r} has a figure that no job has")
    power_w = np.array([float(row["power_w"]) for row in rows]) * power
    if not facts.get("pausable", True):
        power_w[OFF] = power_w.max()  # never worth it: these plans could not pause either
    return Menu(
        actions=tuple(None if i == OFF else _action(row["name"]) for i, row in enumerate(rows)),
        tokens_per_s=np.array([float(row["tokens_per_s"]) for row in rows]) * speed,
        power_w=power_w,
        width=np.array([int(row["width"]) for row in rows]),
        provenance=str(facts["provenance"]),
    )


def _action(name: str) -> Action:
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"run.json: {name!r} is no name of an action, such as 'fp8 at 70% on 4'")
    cap, ranks = found["cap"], found["ranks"]
    return Action(
        gear=Gear(found["gear"]),
        cap=1.0 if cap is None else int(cap) / 100,
        ranks=None if ranks is None else int(ranks),
    )
