"""When and where to start: each zone's best start for a plain run, and the plan that pauses and shifts.

The advice is a table with a sentence, and a picture: each zone's intensity, and below it when it would train.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from greentrain.config.schema import PolicyConfig, PrecisionConfig
from greentrain.errors import ConfigError
from greentrain.policy.action_sources import Actions
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array
from greentrain.policy.waterfill import shortest_s, solve
from greentrain.simulator.grid_trace import Sight
from greentrain.simulator.grids import ZoneGrid
from greentrain.simulator.jobs import Jobs
from greentrain.simulator.picture import (
    WIDTH_IN,
    action_legend,
    check_pictures,
    clean,
    dates,
    intensity,
    strips,
    when,
)
from greentrain.simulator.scene import NOTHING, Course, course_of
from greentrain.simulator.simulate import constant_pace, kernel_of, menu_of, named_policy
from greentrain.simulator.study import share_note
from greentrain.simulator.world import World
from greentrain.types import G_PER_KG, J_PER_KWH, S_PER_HOUR, iso
from greentrain.utils import quantities
from greentrain.utils.quantities import clock, count, mass
from greentrain.utils.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType


FORMAT: Final = 1
"""Version of :meth:`Advice.to_dict`; keys are only ever added."""
_ROUNDING_S: Final = 1.0
_MOST_TOKENS: Final = 1e18
_NEAR: Final = 1e-4
"""Share by which tokens for a budget of grams may be too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRun:
    """The usual training without a pause."""

    start_s: float
    """s since the epoch, UTC"""
    grams: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZoneAdvice:
    """What to do in one zone."""

    grid: ZoneGrid
    now: PlainRun | None
    """The usual training at once; None where it would miss the deadline."""
    best: PlainRun | None
    """At the best start that is in time."""
    plan: Course
    """What the policy would do if the grid is as expected."""
    end_s: float
    """When that is done (s since the epoch, UTC)."""
    blind_g: float
    """Of the constant pace of least energy: what somebody would emit who does not look at the grid."""
    optimum_g: float
    """No plan can emit less on this grid."""

    @property
    def plan_g(self) -> float:
        """Emitted by the plan."""
        return self.plan.total_g

    @property
    def work_s(self) -> float:
        """Time in which the plan trains (s)."""
        lengths = np.diff(self.plan.edges_unix_s)
        lengths = np.minimum(lengths, np.maximum(self.end_s - self.plan.edges_unix_s[:-1], 0.0))
        return float(lengths[(self.plan.rows != OFF) & (self.plan.rows != NOTHING)].sum())

    @property
    def first_s(self) -> float:
        """When the plan begins to train (s since the epoch, UTC)."""
        return float(self.plan.edges_unix_s[int(np.argmax(self.plan.rows > OFF))])

    @property
    def pauses(self) -> int:
        """How often the plan pauses between its first and its last work."""
        working = np.flatnonzero(self.plan.rows > OFF)
        return int(np.count_nonzero(np.diff(working) > 1))

    def saving(self, other_g: float | None = None) -> float | None:
        """Return what the plan saves as a share of other grams, else of the usual training at once; None: unknown."""
        base = other_g if other_g is not None else None if self.now is None else self.now.grams
        return None if not base else 1.0 - self.plan_g / base


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advice:
    """Where and when."""

    tokens: float
    start_s: float
    deadline_s: float
    static_s: float
    """Length of the usual training (s)."""
    policy: PolicyConfig
    """Who plans, and what a change of width or a rank that rests costs."""
    precision: PrecisionConfig
    """Which gears may be used, and how much of FP8."""
    actions: Actions
    menu: Menu
    zones: Sequence[ZoneAdvice]
    """In the order in which they were named."""

    @property
    def best(self) -> ZoneAdvice:
        """The zone whose plan emits least."""
        return min(self.zones, key=lambda zone: zone.plan_g)

    def notes(self) -> list[str]:
        """Return what the numbers rest on."""
        policy, menu = self.policy, self.menu
        rest = "given back, and cost nothing" if policy.released is not False else f"held, at {policy.idle_w:g} W each"
        return [
            f"Watts and speeds {menu.provenance}: {self.actions.source}",
            *(f"Grid {zone.grid.label}" for zone in self.zones),
            *share_note(self.precision, menu),
            "Saved: of the usual training's grams; vs blind: of those of the constant pace of least energy",
            f"Ranks that do not work are {rest}. CO2e of IT power, without PUE",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the advice in plain JSON types."""
        names = self.menu.names()
        return {
            "format": FORMAT,
            "greentrain_version": __version__,
            "kind": "plan",
            self.actions.unit: self.tokens,
            "start_utc": iso(self.start_s),
            "deadline_utc": iso(self.deadline_s),
            "policy": self.policy.name,
            "actions": {
                "source": self.actions.source,
                "provenance": self.menu.provenance,
                "static": names[self.menu.static],
                "static_h": self.static_s / S_PER_HOUR,
            },
            "best_zone": self.best.grid.zone,
            "zones": [_zone_dict(zone, names) for zone in self.zones],
            "notes": self.notes(),
        }


def advise(
    grids: Sequence[ZoneGrid],
    *,
    tokens: float,
    start_s: float,
    deadline_s: float,
    actions: Actions,
    policy: PolicyConfig,
    precision: PrecisionConfig | None = None,
) -> Advice:
    """Return where and when to train, if the grids are as expected.

    Args:
        grids: Grids that are expected of each zone.
        tokens: Tokens of the job.
        start_s: Earliest start (s since the epoch, UTC).
        deadline_s: Time by which the job has to be done (s since the epoch, UTC).
        actions: Actions that the job can take.
        policy: Section ``policy``; ``mpc`` plans where it names no policy that does.
        precision: Section ``precision``: gears that may be used, and the largest share of FP8; None: all.

    Raises:
        ConfigError: The tokens cannot be done in time; the message says by when they can.
    """
    policy = _settings(policy, tokens, deadline_s - start_s)
    precision = precision or PrecisionConfig()
    menu = menu_of(policy, actions.table, precision)
    check_feasible(tokens, start_s, deadline_s, actions, menu)
    static_s = tokens / float(menu.tokens_per_s[menu.static])
    jobs = Jobs.alike(np.array([start_s]), tokens=tokens, deadline_s=deadline_s - start_s)
    zones = [_zone(grid, jobs, policy, menu, static_s) for grid in grids]
    late = next((zone for zone in zones if zone.plan.late), None)
    if late is not None:
        raise ConfigError(
            f"{tokens:g} {actions.unit} cannot be done by {iso(deadline_s)} where a change of width costs"
            f" {policy.switch_s:g} s and {policy.margin_s:g} s are to spare: set a later --deadline"
        )
    return Advice(
        tokens=tokens,
        start_s=start_s,
        deadline_s=deadline_s,
        static_s=static_s,
        policy=policy,
        precision=precision,
        actions=actions,
        menu=menu,
        zones=zones,
    )


def most_tokens(plan: Callable[[float], Advice], grams: float) -> Advice:
    """Return the advice for most tokens whose plan emits no more than so many grams, in whichever zone: plans' dual.

    More tokens never take fewer grams, so tokens are bisected, to a hundredth of a percent.

    Args:
        plan: Advice for so many tokens, as of ``advise``, which raises ConfigError where they cannot be done in time.
        grams: Grams (CO2e) that may be emitted.

    Raises:
        ConfigError: One token takes more.
    """
    found, low, high = plan(1.0), 1.0, _MOST_TOKENS
    if not found.best.plan_g <= grams:
        raise ConfigError(f"--grams is {grams:g}; a plan of one token takes {found.best.plan_g:.3g}: give more")
    while high > low * (1 + _NEAR):
        tokens = math.sqrt(low * high)
        try:
            tried = plan(tokens)
        except ConfigError:  # not in time
            high = tokens
            continue
        if tried.best.plan_g <= grams:
            found, low = tried, tokens
        else:
            high = tokens
    return found


def check_feasible(tokens: float, start_s: float, deadline_s: float, actions: Actions, menu: Menu) -> None:
    """Check that the fastest action is in time.

    Raises:
        ConfigError: It is not; the message says the earliest deadline that can be met.
    """
    needed_s = shortest_s(tokens, menu)
    if needed_s > (deadline_s - start_s) * (1 + 1e-9):
        hours = math.ceil(needed_s / S_PER_HOUR * 100) / 100
        earliest = iso(start_s + math.ceil(needed_s / 60.0) * 60.0)
        raise ConfigError(
            f"{tokens:g} {actions.unit} cannot be done from {iso(start_s)} to {iso(deadline_s)}, in"
            f" {(deadline_s - start_s) / S_PER_HOUR:.4g} h: the fastest action, {menu.names()[menu.fastest]}, needs"
            f" {needed_s / S_PER_HOUR:.4g} h. The earliest feasible deadline is {earliest} (--deadline"
            f" {hours:g})"
        )


def _settings(policy: PolicyConfig, tokens: float, wall_s: float) -> PolicyConfig:
    name = policy.name if policy.plans else "mpc"
    return replace(policy, name=name, gear=None, schedule=(), tokens=tokens, deadline_h=wall_s / S_PER_HOUR)


def _zone(grid: ZoneGrid, jobs: Jobs, policy: PolicyConfig, menu: Menu, static_s: float) -> ZoneAdvice:
    start_s, wall_s, tokens = float(jobs.start_unix_s[0]), float(jobs.deadline_s[0]), float(jobs.tokens[0])
    pace, pace_w = constant_pace(jobs, menu)
    sight = Sight(grid.trace, None, horizon_h=math.ceil(wall_s / S_PER_HOUR) + 1)
    kernel = kernel_of(policy, named_policy(policy.name, policy, menu), menu)
    track = World(grid.trace, sight, policy.decide_s).run(kernel, jobs, history=True)
    return ZoneAdvice(
        grid=grid,
        now=_plain(grid, start_s, static_s, menu) if static_s <= wall_s + _ROUNDING_S else None,
        best=_best_start(grid, start_s, wall_s, static_s, menu),
        plan=course_of(policy.name, track, 0, start_s, wall_s),
        end_s=start_s + float(track.end_s[0]),
        blind_g=_steady(grid, start_s, tokens / float(pace[0]), float(pace_w[0])),
        optimum_g=solve(*grid.trace.window(start_s, wall_s), tokens, menu).grams,
    )


def _plain(grid: ZoneGrid, start_s: float, length_s: float, menu: Menu) -> PlainRun:
    return PlainRun(start_s=start_s, grams=_steady(grid, start_s, length_s, float(menu.power_w[menu.static])))


def _steady(grid: ZoneGrid, start_s: float, length_s: float, power_w: float) -> float:
    """Return the grams of constant power."""
    ends = grid.trace.integral(np.array([start_s, start_s + length_s]))
    return float(power_w * (ends[1] - ends[0]) / J_PER_KWH)


def _best_start(grid: ZoneGrid, start_s: float, wall_s: float, length_s: float, menu: Menu) -> PlainRun | None:
    """Return the usual training at its best full hour after the start; of equal ones the first."""
    last = math.floor((wall_s - length_s + _ROUNDING_S) / S_PER_HOUR)
    runs = [_plain(grid, start_s + hour * S_PER_HOUR, length_s, menu) for hour in range(last + 1)]
    return min(runs, key=lambda run: (round(run.grams, 9), run.start_s), default=None)


def _zone_dict(zone: ZoneAdvice, names: Sequence[str]) -> dict[str, Any]:
    trace = zone.grid.trace
    hours = [
        {"start_utc": iso(t), "action": names[row]}
        for t, row in zip(zone.plan.edges_unix_s[:-1].tolist(), zone.plan.rows.tolist(), strict=True)
        if row != NOTHING
    ]
    return {
        "zone": zone.grid.zone,
        "source": trace.source,
        "basis": str(trace.basis),
        "accounting": trace.accounting,
        "mean_g_per_kwh": float(trace.g_per_kwh.mean()),
        "hourly_g_per_kwh": trace.g_per_kwh.tolist(),
        "static_now_kg": None if zone.now is None else zone.now.grams / G_PER_KG,
        "best_start_utc": None if zone.best is None else iso(zone.best.start_s),
        "static_best_kg": None if zone.best is None else zone.best.grams / G_PER_KG,
        "plan_kg": zone.plan_g / G_PER_KG,
        "plan_start_utc": iso(zone.first_s),
        "plan_end_utc": iso(zone.end_s),
        "plan_work_h": zone.work_s / S_PER_HOUR,
        "plan_pauses": zone.pauses,
        "saving_vs_static_now": zone.saving(),
        "saving_vs_static_best": None if zone.best is None else zone.saving(zone.best.grams),
        "saving_vs_blind": zone.saving(zone.blind_g),
        "blind_kg": zone.blind_g / G_PER_KG,
        "optimum_kg": zone.optimum_g / G_PER_KG,
        "hours": hours,
    }


_HEAD: Final = ("Zone", "g/kWh", "Plain, now", "Plain, best start", "Planned", "Saved", "vs blind")


def render(advice: Advice) -> "RenderableType":
    """Return a rich renderable: the zones, one sentence of advice, and what it rests on."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    title = f"{quantities.count(advice.tokens)} {advice.actions.unit} from {clock(advice.start_s)} to"
    table = Table(
        title=f"{title} {clock(advice.deadline_s)} UTC",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    for name in _HEAD:
        table.add_column(name, justify="left" if name == "Zone" else "right", no_wrap=name != "Zone", overflow="fold")
    for zone in advice.zones:
        share = zone.saving()
        table.add_row(
            escape(zone.grid.zone),
            f"{zone.grid.trace.g_per_kwh.mean():.0f}",
            "too slow" if zone.now is None else quantities.mass(zone.now.grams),
            "" if zone.best is None else f"{quantities.mass(zone.best.grams)}, {clock(zone.best.start_s)}",
            quantities.mass(zone.plan_g),
            "" if share is None else quantities.signed(share),
            quantities.signed(zone.saving(zone.blind_g) or 0.0),
            style="bold" if zone is advice.best else "",
        )
    return Group(table, Text(sentence(advice)), *(Text(f"{note}.", style="dim") for note in advice.notes()))


def sentence(advice: Advice) -> str:
    """Return in one sentence what to do."""
    best, static = advice.best, advice.menu.names()[advice.menu.static]
    where = f"Train in {best.grid.zone}" if len(advice.zones) > 1 else "Train"
    pauses = {0: "without a pause", 1: "with one pause"}.get(best.pauses, f"with {best.pauses} pauses")
    text = f"{where}, planned by {advice.policy.name} from {clock(best.first_s)} to {clock(best.end_s)} UTC {pauses}:"
    text += f" {quantities.carbon(best.plan_g)} expected"
    if best.now is not None:
        text += f", {_than(best.plan_g, best.now.grams)} than {static} at once there"
    other = min((zone for zone in advice.zones if zone is not best), key=lambda zone: zone.plan_g, default=None)
    if other is not None:
        text += f" and {_than(best.plan_g, other.plan_g)} than the plan in {other.grid.zone}"
    return f"{text}; {_plainly(advice, best, static)}."


def _plainly(advice: Advice, zone: ZoneAdvice, static: str) -> str:
    """Return when a plain run is best begun."""
    needs = f"a plain run ({static}, {quantities.duration(advice.static_s)})"
    if zone.now is None or zone.best is None:
        return f"{needs} would miss the deadline"
    if zone.best.start_s == zone.now.start_s:
        return f"{needs} is best begun at once"
    than = _than(zone.best.grams, zone.now.grams)
    return f"{needs} is best begun at {clock(zone.best.start_s)} UTC, for {than} than at once"


def _than(grams: float, other: float) -> str:
    share = 1.0 - grams / other if other > 0 else 0.0
    if abs(share) < 0.0005:
        return "no less"
    return f"{quantities.percent(abs(share))} {'less' if share > 0 else 'more'}"


_ZONE_IN: Final = 2.6
"""Height of a zone (inch)."""


def draw_advice(advice: Advice) -> "Figure":
    """Return the picture.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_pictures()
    from matplotlib.figure import Figure

    zones = advice.zones
    figure = Figure(figsize=(WIDTH_IN, 1.6 + _ZONE_IN * len(zones)), layout="constrained")
    heights = [1.7, 0.9] * len(zones)
    rows = figure.subplots(2 * len(zones), 1, sharex=True, gridspec_kw={"height_ratios": heights}, squeeze=False)
    top = max(float(zone.grid.trace.g_per_kwh.max()) for zone in zones)
    used: set[int] = set()
    for zone, above, below in zip(zones, rows[::2, 0], rows[1::2, 0], strict=True):
        used |= _draw_zone(above, below, advice, zone, top)
    action_legend(rows[0, 0], advice.menu, used)
    rows[0, 0].set_xlim(when(advice.start_s), when(advice.deadline_s))
    dates(rows[-1, 0])
    title = (
        f"{count(advice.tokens)} {advice.actions.unit} from {clock(advice.start_s)} to {clock(advice.deadline_s)} UTC"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel("\n".join(advice.notes()), x=0.01, ha="left", fontsize=7.5, color="#555555", wrap=True)
    return figure


def _draw_zone(above: "Axes", below: "Axes", advice: Advice, zone: ZoneAdvice, top_g_per_kwh: float) -> set[int]:
    g_per_kwh = zone.grid.trace.g_per_kwh
    edges = np.minimum(advice.start_s + np.arange(len(g_per_kwh) + 1) * 3600.0, advice.deadline_s)
    intensity(above, edges, g_per_kwh, top_g_per_kwh)
    best = len(advice.zones) > 1 and zone is advice.best
    name = f"{zone.grid.zone}{', the cleanest plan' if best else ''}"
    above.set_title(name, loc="left", fontsize=10, fontweight="bold" if best else "normal")
    courses = [
        _plain_course("plain, at once", zone.now, advice),
        _plain_course("plain, best start", zone.best, advice),
        zone.plan,
    ]
    grams = [run.grams if run is not None else None for run in (zone.now, zone.best)] + [zone.plan_g]
    used = strips(below, courses, advice.menu)
    for i, value in enumerate(grams):
        text = "too slow" if value is None else mass(value)
        if i and value is not None and zone.now is not None:
            text += f" ({quantities.signed(value / zone.now.grams - 1.0, plus=True)})"
        below.annotate(
            text, (1.0, i), xycoords=("axes fraction", "data"), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=8.5, fontweight="bold" if i == 2 else "normal", annotation_clip=False,
        )  # fmt: skip
    for axes in (above, below):
        clean(axes)
    return used


def _plain_course(name: str, run: PlainRun | None, advice: Advice) -> Course:
    """Return a run without a pause as a course."""
    if run is None:
        return Course(name=name, edges_unix_s=_pair(advice.start_s, 1.0), rows=np.array([NOTHING]), grams=np.zeros(2))
    return Course(
        name=name,
        edges_unix_s=_pair(run.start_s, advice.static_s),
        rows=np.array([advice.menu.static]),
        grams=np.array([0.0, run.grams]),
    )


def _pair(start_s: float, length_s: float) -> Array:
    return np.array([start_s, start_s + length_s])
