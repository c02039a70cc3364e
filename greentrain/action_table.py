"""What each action costs and brings: the table that policies read, measured by ``greentrain.profiling``.

An action is a gear, a power cap and a width. Of each one the table holds speed, watts and joules a token, as means
with 95 % confidence intervals over blocks of steps. What nobody measured is None, never a guess.
"""

import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.types import Gear

FORMAT: Final = 1
"""Version of :meth:`ActionTable.to_dict`; raised when a reader of the old one would go wrong."""
STUDENT_T_95: Final = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
    15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 100: 1.984,
}  # fmt: skip
"""Student's t by degrees of freedom: the quantile of 0.975, for two-sided intervals of 95 % (NIST/SEMATECH e-Handbook
of Statistical Methods, 1.3.6.7.2, https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm, 2026-11-21).
Between two entries the smaller one counts, whose interval is wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The mean of a quantity that cannot be negative, and where it may lie with 95 % confidence."""

    mean: float
    low: float | None = None
    """Lower end of the interval; None where it is not known: a single block says nothing about its own spread."""
    high: float | None = None

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.mean, self.low, self.high) if value is not None):
            raise ConfigError(f"an estimate of {self.mean} ({self.low} to {self.high}) is not finite")

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Return mean and interval of independent values, one a block, by Student's t.

        Raises:
            ConfigError: There is no value, or one is not finite.
        """
        if not values or not all(map(math.isfinite, values)):
            raise ConfigError(f"an estimate needs finite values, at least one, not {list(values)}")
        mean = statistics.fmean(values)
        if len(values) == 1:
            return cls(mean=mean)
        half = student_t_95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean=mean, low=max(0.0, mean - half), high=mean + half)

    def __str__(self) -> str:
        if self.high is None:
            return _digits(self.mean, 4)
        return f"{_digits(self.mean, 4)} \N{PLUS-MINUS SIGN} {_digits(self.high - self.mean, 2)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What a policy may choose."""

    gear: Gear
    cap: float = 1.0
    """Power cap as a fraction of the administrator's limit, in (0, 1]."""
    ranks: int | None = None
    """Width; None: that of the run in which it was measured."""

    def __post_init__(self) -> None:
        if not 0.0 < self.cap <= 1.0:
            raise ConfigError(f"cap of an action is {self.cap}; it is a fraction of the power limit, in (0, 1]")
        if self.ranks is not None and self.ranks < 1:
            raise ConfigError(f"ranks of an action is {self.ranks}; it must be at least 1, or None")

    def __str__(self) -> str:
        cap = "" if self.cap == 1.0 else f" at {self.cap:.0%}"
        return f"{self.gear}{cap}" + ("" if self.ranks is None else f" on {self.ranks}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCost:
    """What one action brings and costs. Ratios such as J/token are means of the blocks' own ratios."""

    action: Action
    steps_per_s: Estimate
    """Optimizer steps a second."""
    tokens_per_s: Estimate | None = None
    """None where the loop told no tokens."""
    samples_per_s: Estimate | None = None
    power_w: Estimate | None = None
    """Of all devices together; None where the energy of any block is not known."""
    j_per_step: Estimate | None = None
    j_per_token: Estimate | None = None
    provenance: str = "missing"
    """Of the joules: ``measured``, ``modelled``, ``mixed``, or ``missing`` where there are none."""
    steps: int = 0
    """Steps measured, warm-up not counted."""
    blocks: int = 0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ActionCost":
        """Return what ``dataclasses.asdict`` made a mapping of."""
        names = ("tokens_per_s", "samples_per_s", "power_w", "j_per_step", "j_per_token")
        return cls(
            action=Action(**{**data["action"], "gear": Gear(data["action"]["gear"])}),
            steps_per_s=Estimate(**data["steps_per_s"]),
            **{name: None if data[name] is None else Estimate(**data[name]) for name in names},
            provenance=str(data["provenance"]),
            steps=int(data["steps"]),
            blocks=int(data["blocks"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTable:
    """The costs of all actions, measured one beside the other on the same devices."""

    costs: Sequence[ActionCost]
    device: str
    """For people: what the steps ran on."""
    world_size: int = 1
    tokens_per_step: float | None = None
    """Mean over all blocks; None where the loop told no tokens."""
    created_unix_s: float
    versions: Mapping[str, str] = field(default_factory=dict)
    """What it was measured with: torch, driver."""

    def of(self, action: Action) -> ActionCost | None:
        """Return the cost of an action; None where it was never measured."""
        return next((cost for cost in self.costs if cost.action == action), None)

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return the measured actions."""
        return tuple(cost.action for cost in self.costs)

    def to_dict(self) -> dict[str, Any]:
        """Return the table in plain JSON types."""
        return {
            "format": FORMAT,
            "device": self.device,
            "world_size": self.world_size,
            "tokens_per_step": self.tokens_per_step,
            "created_unix_s": self.created_unix_s,
            "versions": dict(self.versions),
            "costs": [asdict(cost) for cost in self.costs],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ActionTable":
        """Return the table that :meth:`to_dict` wrote.

        Raises:
            ValueError: It is no such table, or one of another format.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
            raise ValueError(f"it has format {found!r}, this version reads {FORMAT}")
        try:
            tokens = data["tokens_per_step"]
            return cls(
                costs=tuple(ActionCost.from_dict(cost) for cost in data["costs"]),
                device=str(data["device"]),
                world_size=int(data["world_size"]),
                tokens_per_step=None if tokens is None else float(tokens),
                created_unix_s=float(data["created_unix_s"]),
                versions={str(name): str(version) for name, version in data["versions"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no action table ({error!r})") from error

    def __str__(self) -> str:
        """Return the table for the terminal: one line an action, 95 % intervals behind the sign."""
        tokens = any(cost.tokens_per_s for cost in self.costs)
        what = "token" if tokens else "step"
        rows: list[tuple[str, ...]] = [("action", f"{what}s/s", "W", f"J/{what}", "joules", "steps")]
        for cost in self.costs:
            speed, energy = (cost.tokens_per_s, cost.j_per_token) if tokens else (cost.steps_per_s, cost.j_per_step)
            figures = ("unknown" if value is None else str(value) for value in (speed, cost.power_w, energy))
            rows.append((str(cost.action), *figures, cost.provenance, f"{cost.steps} in {cost.blocks} blocks"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        width = "" if self.world_size == 1 else f", {self.world_size} ranks"
        return "\n".join((f"{self.device}{width}", *lines))


def student_t_95(degrees: int) -> float:
    """Return the factor of a two-sided interval of 95 % by degrees of freedom, from 1 on."""
    known = list(STUDENT_T_95)
    return STUDENT_T_95[known[bisect_right(known, degrees) - 1]]


def _digits(value: float, digits: int) -> str:
    places = digits - 1 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:,.{max(0, places)}f}"
