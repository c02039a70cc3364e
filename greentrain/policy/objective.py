"""What one action is chosen for, where no policy plans: least energy, least carbon, or least cost of energy and time.

All three are ``weight x (power + what a second costs beside it) / speed``, so on a lower hull of (speed, power) each
has its best row between the one with the fewest joules a token and the fastest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from greentrain.config.schema import OBJECTIVES
from greentrain.errors import ConfigError
from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI
from greentrain.types import J_PER_KWH
from greentrain.utils.validation import bound, choice

TIE: Final = 0.01
"""Two actions whose scores differ by less are a tie, which the faster one wins, unless intervals tell them apart:
time is worth something to everybody, and four blocks of a second seldom resolve one per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a second and a watt of the whole job count for. Speed is in tokens, samples or steps a second."""

    name: str = "energy"
    """``energy``, ``carbon`` or ``cost``."""
    g_per_kwh: float | None = None
    """Carbon intensity that ``carbon`` needs (gCO2e/kWh)."""
    pue: float = 1.0
    embodied_g_per_s: float = 0.0
    """Embodied carbon of all devices, for each second that they are used (g/s)."""
    eta: float = 0.5
    """Weight of energy in ``cost``: eta E + (1 - eta) P t (Zeus, You et al., NSDI 2023, Eq. 2)."""
    limit_w: float | None = None
    """The P that ``cost`` needs: the power limits of all devices together, as found (W)."""
    max_slowdown: float | None = None
    """Largest share of speed that the action may cost, in 0..1; None: any that pays."""

    def __post_init__(self) -> None:
        choice("objective", self.name, OBJECTIVES)
        if self.name == "carbon":
            if self.g_per_kwh is None:
                raise ConfigError(
                    "the objective carbon needs the grid's carbon intensity, and it is not known: set carbon.region,"
                    " or choose the objective energy"
                )
            bound("objective: g_per_kwh", self.g_per_kwh, 0.0, 10_000.0)
            bound("objective: pue", self.pue, 1.0, 10.0)
            bound("objective: embodied_g_per_s", self.embodied_g_per_s, 0.0, 1e6)
        if self.name == "cost":
            bound("objective: eta", self.eta, 0.0, 1.0)
            if self.limit_w is None:
                raise ConfigError(
                    "the objective cost needs the power limit of the devices, and it is not known: choose the objective"
                    " energy, or carbon"
                )
            bound("objective: limit_w", self.limit_w, 1e-3, 1e12)
        if self.max_slowdown is not None:
            bound("objective: max_slowdown", self.max_slowdown, 0.0, 0.95)

    @property
    def unit(self) -> str:
        """Return the unit of :meth:`score`, but for the "a token"."""
        return {"energy": "J", "carbon": "g", "cost": "J of cost"}[self.name]

    def score(self, speed: float, power_w: float) -> float:
        """Return what one token (sample, step) costs; less is better.

        Args:
            speed: Tokens, samples or steps a second, above 0.
            power_w: Of all devices together (W).
        """
        per_w, per_s = 1.0, 0.0
        if self.name == "carbon":
            per_w, per_s = (self.g_per_kwh or 0.0) * self.pue / J_PER_KWH, self.embodied_g_per_s
        elif self.name == "cost":
            per_w, per_s = self.eta, (1.0 - self.eta) * (self.limit_w or 0.0)
        return (per_w * power_w + per_s) / speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The action that was chosen, beside the one that it is compared with."""

    action: Action
    score: float
    """What a token costs in it, in ``Objective.unit``."""
    reference: Action
    """The fastest, or the one that the caller named."""
    reference_score: float | None
    """None where its power is not known."""
    slowdown: float
    """Share of the reference's speed that the action costs; negative where it is faster."""

    def __str__(self) -> str:
        saved = "" if not self.reference_score else f", {1 - self.score / self.reference_score:.1%} saved"
        speed = f"{abs(self.slowdown):.1%} {'faster' if self.slowdown < 0 else 'slower'}"
        return f"{self.action}: {speed} than {self.reference}{saved}"


def choose(
    table: ActionTable,
    objective: Objective,
    *,
    reference: Action | None = None,
    wanted: Callable[[Action], bool] = lambda action: True,
) -> Choice:
    """Return the action with the least score within the bound on speed.

    Means decide. Intervals only break ties (``TIE``): those of two or three blocks are many times wider than what caps
    differ by (Student's t is 12.7 and 4.3), so taking the fastest of all that overlap would give most savings away,
    and a mean is as likely too high as too low.

    Args:
        table: What was measured. Rows of unknown speed or power are never chosen.
        objective: What counts.
        reference: Action whose speed the bound is a share of; None: the fastest that is wanted.
        wanted: Which actions may be chosen.

    Raises:
        ConfigError: No action is left, or the reference is not in the table.
    """
    speeds = _speeds(table)
    rows = [cost for cost in table.costs if wanted(cost.action) and cost.action in speeds]
    base = reference or max((cost.action for cost in rows), key=lambda a: speeds[a].mean, default=None)
    if base is None or base not in speeds:
        raise ConfigError(
            f"the action table of {table.device!r} knows no speed of {base or 'any action that may be used'}:"
            " measure it with profile_gears(), or declare it with policy.actions"
        )
    slowest = 0.0 if objective.max_slowdown is None else (1.0 - objective.max_slowdown) * speeds[base].mean
    scored = [(objective.score(speeds[c.action].mean, c.power_w.mean), c) for c in rows if c.power_w is not None]
    within = [row for row in scored if speeds[row[1].action].mean >= slowest]
    if not within:
        raise ConfigError(
            f"of the {len(rows)} actions of {table.device!r} that may be used, {len(scored)} have a known power, and"
            f" none of these makes {slowest:.4g} a second, where {base} makes {speeds[base].mean:.4g}: raise"
            " max_slowdown, or measure power (it needs a sensor, and max_steps that suffice for blocks of a second)"
        )
    best = min(within, key=lambda row: row[0])
    ties = [row for row in within if row[0] <= best[0] * (1.0 + TIE) and not _apart(best[1], row[1])]
    score, chosen = min(ties, key=lambda row: (-speeds[row[1].action].mean, row[0]))
    return Choice(
        action=chosen.action,
        score=score,
        reference=base,
        reference_score=next((s for s, cost in scored if cost.action == base), None),
        slowdown=1.0 - speeds[chosen.action].mean / speeds[base].mean,
    )


def _speeds(table: ActionTable) -> dict[Action, MeanWithCI]:
    """Return the known speeds, all of one kind: tokens a second, else samples, else steps."""
    for name in ("tokens_per_s", "samples_per_s", "steps_per_s"):
        found: dict[Action, MeanWithCI] = {
            cost.action: speed
            for cost in table.costs
            if (speed := getattr(cost, name)) is not None and speed.mean > 0 and math.isfinite(speed.mean)
        }
        if found:
            return found
    return {}


def _apart(better: ActionCost, other: ActionCost) -> bool:
    """Return True where the joules of two actions differ for certain: intervals that are known do not overlap."""
    one, two = (cost.j_per_token or cost.j_per_step for cost in (better, other))
    if one is None or two is None or one.high is None or two.low is None:
        return False
    return two.low > one.high
