"""What each action costs and brings: the table that policies read, measured while training.

An action is a gear, a power cap and a width. Of each one the table holds speed, watts and joules a token, as means
with 95 % confidence intervals over blocks of steps. What nobody measured is None, never a guess.

Where no policy plans, one action is chosen from it for the least energy, the least carbon, or the least cost of energy
and time (:class:`Objective`). All three are ``weight x (power + what a second costs beside it) / speed``, so on a lower
hull of (speed, power) each has its best row between the one with the fewest joules a token and the fastest.

Tables are kept on disk, so that a model is profiled once on a machine (:class:`ActionCache`): one JSON file a table.
Nothing there stops a run: a file that is torn, unreadable or of another version counts as none, a disk that cannot
be written to means that the next run profiles again. Both are said in a warning.
"""

import functools
import hashlib
import json
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from greentrain.config.schema import OBJECTIVES
from greentrain.errors import ConfigError
from greentrain.types import J_PER_KWH, Gear
from greentrain.utils.background import BackgroundCall
from greentrain.utils.devices import check_keys, number
from greentrain.utils.files import ENV_DIR, cache_folder, write_json
from greentrain.utils.never_raise import warn
from greentrain.utils.validation import bound, choice

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
class MeanWithCI:
    """The mean of a quantity that cannot be negative, and where it may lie with 95 % confidence."""

    mean: float
    low: float | None = None
    """Lower end of the interval; None where it is not known: a single block says nothing about its own spread."""
    high: float | None = None

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.mean, self.low, self.high) if value is not None):
            raise ConfigError(f"an estimate of {self.mean} ({self.low} to {self.high}) is not finite")

    @classmethod
    def of(cls, values: Sequence[float]) -> "MeanWithCI":
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
    steps_per_s: MeanWithCI | None
    """Optimizer steps a second; None in a declared table."""
    tokens_per_s: MeanWithCI | None = None
    """None where the loop told no tokens."""
    samples_per_s: MeanWithCI | None = None
    power_w: MeanWithCI | None = None
    """Of all devices together; None where the energy of any block is not known."""
    j_per_step: MeanWithCI | None = None
    j_per_token: MeanWithCI | None = None
    provenance: str = "missing"
    """Of the joules: ``measured``, ``modelled``, ``mixed``, ``assumed`` where somebody declared them, or ``missing``
    where there are none."""
    steps: int = 0
    """Steps measured, warm-up not counted."""
    blocks: int = 0
    speed_ratio: MeanWithCI | None = None
    """Speed over that of the safe gear (BF16, else FP32, else the first), of blocks side by side; None where there are
    no two such pairs."""
    efficiency_ratio: MeanWithCI | None = None
    """Steps a joule, so compared; None also where joules are not known."""

    @property
    def is_better(self) -> bool:
        """True if speed or steps a joule exceed those of the safe gear by more than the error of the difference."""
        return any(
            ratio is not None and (ratio.low or 0.0) > 1.0 for ratio in (self.speed_ratio, self.efficiency_ratio)
        )

    @property
    def is_doubtful(self) -> bool:
        """True if it may be better by more than DOUBT, and nobody can tell."""
        ratios = (self.speed_ratio, self.efficiency_ratio)
        return not self.is_better and any(ratio is not None and (ratio.high or 0.0) > 1.0 + DOUBT for ratio in ratios)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ActionCost":
        """Return what ``dataclasses.asdict`` made a mapping of."""
        names = ("steps_per_s", "tokens_per_s", "samples_per_s", "power_w", "j_per_step", "j_per_token")
        ratios = ("speed_ratio", "efficiency_ratio")  # not in tables of versions before them
        return cls(
            action=Action(**{**data["action"], "gear": Gear(data["action"]["gear"])}),
            **{name: None if data[name] is None else MeanWithCI(**data[name]) for name in names},
            **{name: MeanWithCI(**data[name]) for name in ratios if data.get(name) is not None},
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

    @classmethod
    def declare(cls, rows: Sequence[Mapping[str, Any]], *, device: str, where: str = "actions") -> "ActionTable":
        """Return a table that nobody measured: every figure in it is ``assumed``.

        Args:
            rows: One an action: ``gear``, ``tokens_per_s`` and ``power_w`` of the whole job; ``cap`` (1.0) and
                ``ranks`` may be left out.
            device: Device that the table is of, for people.
            where: Name of the rows in errors: the file.

        Raises:
            ConfigError: There is no row, or one lacks a key, has an unknown one or a value out of bounds, or two are of
                the same action.
        """
        costs: list[ActionCost] = []
        for i, row in enumerate(rows, start=1):
            cost = _declared_cost(row, f"{where}, row {i}")
            twin = next((k for k, other in enumerate(costs, start=1) if other.action == cost.action), None)
            if twin is not None:
                raise ConfigError(f"{where}, row {i}: {cost.action} is row {twin} already: keep one of them")
            costs.append(cost)
        if not costs:
            raise ConfigError(
                f"{where} declares no action: list at least one, such as {{gear: bf16, ranks: 8, cap: 1.0,"
                " tokens_per_s: 5.2e5, power_w: 62400}"
            )
        widest = max(cost.action.ranks or 1 for cost in costs)
        return cls(costs=tuple(costs), device=device, world_size=widest, created_unix_s=0.0)

    def of(self, action: Action) -> ActionCost | None:
        """Return the cost of an action; None where it was never measured."""
        return next((cost for cost in self.costs if cost.action == action), None)

    def better(self, action: Action) -> bool:
        """Return whether a plan may use an action: the safe gear, what is better for certain, what was declared."""
        cost = self.of(action)
        return cost is None or cost.speed_ratio is None or action.gear is self.safe or cost.is_better

    @property
    def safe(self) -> Gear:
        """The gear that another must be better than: BF16, else FP32, else the first."""
        return safe_gear([action.gear for action in self.actions])

    @property
    def doubts(self) -> str:
        """Which gears could not be told from the safe one, as a sentence; "" where all were."""
        lines = []
        for cost in self.costs:
            speed, tokens = cost.speed_ratio, cost.efficiency_ratio
            if cost.is_doubtful and speed is not None:
                line = f"{cost.action} makes {speed.low:.2f} to {speed.high:.2f} times {self.safe}'s steps a second"
                per_j = "" if tokens is None else f" and {tokens.low:.2f} to {tokens.high:.2f} times its steps a joule"
                lines.append(f"after {cost.blocks} blocks each {line}{per_j} (95 %)")
        remedy = f": a plan keeps to {self.safe}. Measure while no other program runs, or declare policy.actions"
        return f"gears cannot be told apart: {'; '.join(lines)}{remedy}" if lines else ""

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return the measured actions."""
        return tuple(cost.action for cost in self.costs)

    def to_dict(self) -> dict[str, Any]:
        """Return the table in plain JSON types."""
        return {"format": FORMAT, **asdict(self)}

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
            steps = f"{cost.steps} in {cost.blocks} blocks" if cost.blocks else "none"
            steps = f"{cost.steps} in 1 block: no interval" if cost.blocks == 1 else steps
            rows.append((str(cost.action), *figures, cost.provenance, steps))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        width = "" if self.world_size == 1 else f", {self.world_size} ranks"
        return "\n".join((f"{self.device}{width}", *lines))


def declared(path: Path | str) -> ActionTable:
    """Read a declared table: a YAML list of actions, or a mapping with ``device`` and that list as ``actions``.

    Raises:
        ConfigError: The file cannot be read or is no such table; names file, row, key, value and bound.
    """
    from greentrain.utils import yaml_file  # loads yaml

    path = Path(path)
    data = yaml_file.read(path, "action table of policy.actions or --actions,")
    device = f"declared in {path.name}"
    if isinstance(data, Mapping):
        unknown = [key for key in data if key not in ("device", "actions")]
        if unknown:
            raise ConfigError(f"{path}: unknown key {unknown[0]!r}; a declared table has 'device' and 'actions'")
        device, data = str(data.get("device", device)), data.get("actions")
    if not isinstance(data, list):
        raise ConfigError(f"{path} holds a {type(data).__name__}; a declared table is a list of actions")
    return ActionTable.declare(data, device=device, where=str(path))


def _declared_cost(row: Any, where: str) -> ActionCost:
    check_keys(row, where, _DECLARED)
    missing = [key for key in ("gear", "tokens_per_s", "power_w") if row.get(key) is None]
    if missing:
        raise ConfigError(f"{where}: {missing[0]} is missing: an action needs gear, tokens_per_s and power_w")
    choice(f"{where}: gear", str(row["gear"]), tuple(gear.value for gear in Gear))
    numbers: dict[str, float] = {}
    for key, low, high in (("cap", 0.01, 1.0), ("tokens_per_s", 1e-9, 1e15), ("power_w", 1e-3, 1e12)):
        numbers[key] = float(number(row.get(key, 1.0), f"{where}: {key}", least=low, most=high))
    ranks = row.get("ranks")
    if ranks is not None and (type(ranks) is not int or ranks < 1):
        raise ConfigError(f"{where}: ranks is {ranks!r}; it must be a whole number from 1 on")
    return ActionCost(
        action=Action(gear=Gear(row["gear"]), cap=numbers["cap"], ranks=ranks),
        steps_per_s=None,
        tokens_per_s=MeanWithCI(mean=numbers["tokens_per_s"]),
        power_w=MeanWithCI(mean=numbers["power_w"]),
        j_per_token=MeanWithCI(mean=numbers["power_w"] / numbers["tokens_per_s"]),
        provenance="assumed",
    )


_DECLARED: Final = ("gear", "ranks", "cap", "tokens_per_s", "power_w")


def student_t_95(degrees: int) -> float:
    """Return the factor of a two-sided interval of 95 % by degrees of freedom, from 1 on."""
    known = list(STUDENT_T_95)
    return STUDENT_T_95[known[bisect_right(known, degrees) - 1]]


def _digits(value: float, digits: int) -> str:
    places = digits - 1 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:,.{max(0, places)}f}"


def safe_gear(gears: Sequence[Gear]) -> Gear:
    """Return BF16, else FP32, else the first of some gears, NVFP4 last of all."""
    return next((gear for gear in (Gear.BF16, Gear.FP32, *gears) if gear in gears and gear is not Gear.NVFP4), gears[0])


DOUBT: Final = 0.05
"""Advantage of a gear (as a share) that is worth more blocks, and a warning, where nobody can tell whether it is there:
two blocks of one action differ by as much (``greentrain.control.profiling.profiler.NOISE``)."""
TIE: Final = 0.01
"""Two actions whose scores differ by less are a tie, which the faster one wins, unless intervals tell them apart:
time is worth something to everybody, and four blocks of a second seldom resolve one per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionObjective:
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
            power_w: Power of all devices together (W).
        """
        per_w, per_s = 1.0, 0.0
        if self.name == "carbon":
            per_w, per_s = (self.g_per_kwh or 0.0) * self.pue / J_PER_KWH, self.embodied_g_per_s
        elif self.name == "cost":
            per_w, per_s = self.eta, (1.0 - self.eta) * (self.limit_w or 0.0)
        return (per_w * power_w + per_s) / speed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenAction:
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
    objective: ActionObjective,
    *,
    reference: Action | None = None,
    wanted: Callable[[Action], bool] = lambda action: True,
) -> ChosenAction:
    """Return the action with the least score within the bound on speed.

    Means decide. Intervals only break ties (``TIE``): those of two or three blocks are many times wider than what caps
    differ by (Student's t is 12.7 and 4.3), so taking the fastest of all that overlap would give most savings away,
    and a mean is as likely too high as too low.

    Args:
        table: Table of the costs that were measured. Rows of unknown speed or power are never chosen.
        objective: Objective that gives the score and the bound.
        reference: Action whose speed the bound is a share of; None: the fastest that is wanted.
        wanted: Says whether an action may be chosen.

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
    return ChosenAction(
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


def cache_key(
    *,
    actions: Iterable[Action],
    parameters: Iterable[tuple[Sequence[int], str]],
    layers: Iterable[Mapping[str, Any]],
    backend: str,
    device: str,
    world_size: int,
    versions: Mapping[str, str],
    tokens_per_step: float | None,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return the key of a table: another one as soon as something changes that speed or power depend on.

    Args:
        actions: Actions that are profiled.
        parameters: Shape and dtype of every parameter, in the order of the model.
        layers: The layers and whether they run in 8 or 4 bits, as ``session.gears.describe()`` says.
        backend: Name of the FP8 backend; "" for none.
        device: Name of the device.
        world_size: Ranks of the job.
        versions: Versions of torch, and of what else counts.
        tokens_per_step: Tokens, or samples, of an optimizer step; rounded to two digits, as packed batches vary.
        settings: Whatever else makes steps faster or slower here: compiled or not, micro-batches a step.
    """
    facts = {
        "actions": sorted(str(action) for action in actions),
        "parameters": [[list(map(int, shape)), str(dtype)] for shape, dtype in parameters],
        "layers": [dict(layer) for layer in layers],
        "backend": backend,
        "device": device,
        "world_size": world_size,
        "versions": dict(versions),
        "tokens_per_step": None if tokens_per_step is None else f"{tokens_per_step:.1e}",
        "settings": dict(settings or {}),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


class ActionCache:
    """Keeps action tables in a folder.

    Args:
        folder: The folder; None: that of :func:`cache_folder`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.saving: BackgroundCall[Path | None] | None = None
        """The writing of what :meth:`save_soon` was given."""

    def path(self, key: str) -> Path:
        """Return where the table of a key is kept.

        Raises:
            RuntimeError: No folder is known.
        """
        return (self._folder / "actions" if self._folder else cache_folder(part="actions")) / f"{key}.json"

    def load(self, key: str) -> ActionTable | None:
        """Return the table of a key; None where there is none that can be read. Never raises."""
        self.wait()
        try:
            return ActionTable.from_dict(json.loads(self.path(key).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RuntimeError) as error:
            warn(f"the action table in {self._where(key)} is not used ({error}) and will be measured again")
            return None

    def save(self, key: str, table: ActionTable) -> Path | None:
        """Write the table of a key and return the file; None where that is not possible. Never raises."""
        try:
            path = self.path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, table.to_dict())
        except (OSError, RuntimeError) as error:
            warn(
                f"the action table cannot be kept in {self._where(key)} ({error}), so the next run measures it again;"
                f" set {ENV_DIR} to a folder that can be written to"
            )
            return None
        return path

    def save_soon(self, key: str, table: ActionTable) -> None:
        """Write the table of a key in a thread of its own, as the disk may hang. Never raises."""
        self.saving = BackgroundCall("greentrain-cache", functools.partial(self.save, key, table))

    def wait(self, wait_s: float = 1.0) -> bool:
        """Return True if what :meth:`save_soon` was given is written, or refused, within so long (s)."""
        try:
            if self.saving is not None:
                self.saving.result(wait_s)
        except TimeoutError:
            return False
        return True

    def _where(self, key: str) -> str:
        try:
            return str(self.path(key))
        except RuntimeError:
            return f"the user's cache folder (set {ENV_DIR})"
