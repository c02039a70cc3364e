"""A run folder replayed: what would other policies have done on the same grid, with the same actions?

The grid is what the run saw of it, completed by its signal where that can be asked again. The result is a table for the
terminal and for other programs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from greentrain.carbon.detect import open_signal
from greentrain.carbon.forecast import profile_forecast
from greentrain.config.schema import LIVE_SIGNALS, CarbonConfig, PolicyConfig
from greentrain.control.plan.planner import means
from greentrain.errors import ConfigError, GreenTrainError, TraceError
from greentrain.policy.action_sources import Actions
from greentrain.policy.hindsight import HindsightScore, judge
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array
from greentrain.simulator.grid_trace import GridTrace, Sight
from greentrain.simulator.grids import Grid
from greentrain.simulator.jobs import HISTORY_H, Jobs
from greentrain.simulator.recorded_run import RecordedRun, read_happened
from greentrain.simulator.scene import ORACLE, RAN, Course, Scene, course_of, oracle_course
from greentrain.simulator.simulate import CARBON_BLIND, kernel_of, named_policy
from greentrain.simulator.study import FORMAT, KNOWN, STATIC, USUAL, cautions, csv_text, plain_table
from greentrain.simulator.world import World
from greentrain.types import S_PER_HOUR, CarbonBasis, CarbonSignal, iso
from greentrain.utils import quantities
from greentrain.utils.quantities import count, duration
from greentrain.utils.validation import build, choice
from greentrain.utils.version import __version__

if TYPE_CHECKING:
    from rich.console import RenderableType


_DAY_H: Final = 24
_ALIKE: Final = 0.05
"""Two means of an hour that differ by less are of one signal: what the books have may be a part of the hour."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenGrid:
    """A grid, or why there is none."""

    trace: GridTrace | None
    label: str
    """For people: what it is."""
    missing: str = ""
    """What a replay lacks, with the remedy."""


def recording(told: RecordedRun, deadline_s: float, grid: Grid) -> SeenGrid:
    """Return a recording in place of what the run saw.

    Raises:
        TraceError: It does not cover the run from start to deadline.
    """
    if told.with_pue:
        return SeenGrid(
            trace=None, label="", missing="the PUE of each hour, which its plan counted: replay it on its own grid"
        )
    trace = grid.trace
    if trace.start_unix_s > told.start_s + 1 or trace.end_unix_s < deadline_s - 1:
        raise TraceError(
            f"the run goes from {iso(told.start_s)} to {iso(deadline_s)}, but trace {trace.name!r} covers"
            f" {iso(trace.start_unix_s)} to {iso(trace.end_unix_s)}: name one that covers it"
        )
    return SeenGrid(trace=trace, label=grid.label)


def seen_grid(told: RecordedRun, deadline_s: float) -> SeenGrid:
    """Return the hours from the run's start to its deadline, behind three weeks of its signal's past where it tells."""
    end_s = max(deadline_s, told.end_s)
    hours = int(np.ceil((end_s - told.start_s) / S_PER_HOUR - 1e-6))
    known: Array = np.full(hours, np.nan)
    known[: min(hours, len(told.g_per_kwh))] = told.g_per_kwh[:hours]
    edges = told.start_s + np.arange(hours + 1) * S_PER_HOUR
    holes = np.isnan(known)
    signal, why = _reopened(told)
    if signal is not None:
        again = means(signal, edges)
        if _agree(again, known):
            known = np.where(holes, again, known)
        else:
            signal, why = None, ": its signal tells another story today"
    needed = edges[:-1] < deadline_s - 1e-6
    blind = int(np.isnan(known[needed]).sum())
    if blind:
        return SeenGrid(
            trace=None,
            label="",
            missing=f"the carbon intensity of {blind} of {int(needed.sum())} hours until the deadline{why} (--trace)",
        )
    known = known[: int(np.max(np.flatnonzero(np.isfinite(known)))) + 1]
    past = _since_known(told.past_g_per_kwh) if signal is None else _past(signal, told.start_s)
    label = told.intensity_from
    if signal is not None and holes.any():
        label += f"; {int(holes.sum())} of {hours} hours from its signal, asked again"
    if len(past) < _DAY_H:
        label += "; of the time before its start nothing is known, so policies learn as they go (--trace tells it)"
    trace = GridTrace(
        name=told.run_id,
        zone=str(told.carbon.get("zone", told.run_id)),
        source=label,
        start_unix_s=told.start_s - len(past) * S_PER_HOUR,
        step_s=S_PER_HOUR,
        g_per_kwh=np.concatenate([past, known]),
        basis=CarbonBasis(told.basis),
        accounting=told.accounting,
    )
    return SeenGrid(trace=trace, label=label)


def _reopened(told: RecordedRun) -> tuple[CarbonSignal | None, str]:
    """Return the run's signal, if it tells today what it told then, else why not."""
    if told.with_pue:
        return None, ": its signal does not tell the PUE that the plan counted"
    try:
        config = replace(build(CarbonConfig, dict(told.carbon), "carbon."), fallback=())
        if config.signal in LIVE_SIGNALS:
            return None, f": {config.signal} was asked live"
        return open_signal(config), ""
    except GreenTrainError as error:
        return None, f": its signal cannot be opened again: {error}"


def _agree(again: Array, known: Array) -> bool:
    """Return whether a signal says what the run saw of it: as the mean over an hour that is known, or nothing."""
    both = np.isfinite(again) & np.isfinite(known)
    return bool((np.abs(again - known)[both] <= _ALIKE * known[both]).all())


def _past(signal: CarbonSignal, start_s: float) -> Array:
    """Return the hours before a time, oldest first, as far back as all are known, three weeks at most."""
    count = round(HISTORY_H)
    return _since_known(means(signal, start_s - np.arange(count, -1, -1) * S_PER_HOUR))


def _since_known(past: Array) -> Array:
    """Return the hours after the last one that is not known."""
    unknown = np.flatnonzero(np.isnan(past))
    return past[unknown[-1] + 1 :] if unknown.size else past


LEAST_H: Final = 1.0
"""Grids are hourly: a plan of less has nothing to choose (h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    name: str
    grams: float | None
    """None where not known."""
    done_s: float | None
    """Grid time at which the tokens were done (s since the epoch, UTC); None where they were not in time."""
    tokens_left: float
    """At the deadline."""
    changes: int | None
    """Of width, pauses among them; of the row in what ran; None where nobody counted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunReplay:
    """What ran, and what could have."""

    happened: RecordedRun
    menu: Menu
    deadline_s: float
    lines: Sequence[Line]
    """What ran first, the oracle last."""
    verdict: HindsightScore
    """The three numbers of what ran."""
    scene: Scene
    notes: Sequence[str]
    """What the numbers rest on."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result in plain JSON types."""
        ran, verdict = self.happened, self.verdict
        return {
            "format": FORMAT,
            "greentrain_version": __version__,
            "kind": "replay",
            "run_id": ran.run_id,
            "policy": ran.policy,
            ran.unit: ran.tokens,
            "start_utc": iso(ran.start_s),
            "deadline_utc": iso(self.deadline_s),
            "end_utc": iso(ran.end_s),
            "actions": {"source": ran.menu_from, "provenance": self.menu.provenance, "static": verdict.static_name},
            "grams_of": ran.grams_of,
            "provenance": ran.provenance,
            "saving_vs_static": verdict.saving_vs_static,
            "saving_vs_blind": verdict.saving_vs_blind,
            "regret": verdict.regret,
            "unknown": dict(verdict.unknown),
            "rows": self.rows(),
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the table in plain JSON types; null where nothing is known."""
        return [
            {
                "policy": line.name,
                "g": line.grams,
                "saving_vs_static": less(line.grams, self.verdict.static_g),
                "saving_vs_run": less(line.grams, self.happened.grams),
                "done_utc": None if line.done_s is None else iso(line.done_s),
                "tokens_left": line.tokens_left,
                "changes": line.changes,
            }
            for line in self.lines
        ]


def replay(
    folder: Path | str,
    *,
    policy: PolicyConfig | None = None,
    policies: Sequence[str] = (),
    actions: Actions | None = None,
    grid: Grid | None = None,
) -> RunReplay:
    """Run policies over the grid that a run had, from its start to its deadline, for the tokens that it trained.

    Args:
        folder: The run's folder.
        policy: Section ``policy`` in place of the run's own; its tokens do not count.
        policies: Names as in ``policy.name``; none: the usual ones.
        actions: A table in place of the run's own.
        grid: A recording in place of what the run saw, best with three weeks before its start.

    Raises:
        RunFolderError: It is no run folder.
        ConfigError: The folder lacks what a replay needs; the message says what, and how to give it.
        TraceError: The recording does not cover the run.
    """
    for name in policies:
        choice("--policy", name, (*KNOWN, ORACLE))
    told = read_happened(folder, actions, policy)
    deadline_s = told.end_s if told.deadline_s is None else told.deadline_s
    seen = _grid(told, deadline_s, grid)
    missing = [*told.missing, *([seen.missing] if seen.missing else [])]
    if missing or told.menu is None or seen.trace is None:
        raise ConfigError(f"run {told.run_id} cannot be replayed, as it lacks {'; and '.join(missing)}")
    settings = _settings(told, policy, deadline_s)
    names = [name for name in dict.fromkeys((STATIC, CARBON_BLIND, *(policies or USUAL))) if name != ORACLE]
    notes = [
        f"What ran: {_grams_from(told)}",
        f"Watts and speeds of the others {told.menu_from}",
        f"Grid {seen.label}",
        *cautions(settings, names),
        f"CO2e of IT power, with{' the PUE of each hour' if told.with_pue else 'out PUE'}, for what the run trained",
    ]
    return _compared(told, told.menu, seen.trace, deadline_s, settings, names, notes)


def less(grams: float | None, other: float | None) -> float | None:
    """Return which share of other grams was not emitted; None where either is not known."""
    return None if grams is None or not other else 1.0 - grams / other


def _grid(told: RecordedRun, deadline_s: float, grid: Grid | None) -> SeenGrid:
    span_s = deadline_s - told.start_s
    if span_s < LEAST_H * S_PER_HOUR:
        missing = f"an hour of the grid's time: from start to deadline it has {duration(span_s)}; a CONFIG with a"
        return SeenGrid(trace=None, label="", missing=f"{missing} later policy.deadline_h says what could have been")
    return seen_grid(told, deadline_s) if grid is None else recording(told, deadline_s, grid)


def _compared(
    told: RecordedRun,
    menu: Menu,
    trace: GridTrace,
    deadline_s: float,
    settings: PolicyConfig,
    names: Sequence[str],
    notes: Sequence[str],
) -> RunReplay:
    start_s, wall_s = told.start_s, deadline_s - told.start_s
    jobs = Jobs.alike(np.array([start_s]), tokens=told.tokens, deadline_s=wall_s)
    sight = Sight(trace, profile_forecast, horizon_h=int(np.ceil(wall_s / S_PER_HOUR)) + 1)
    world = World(trace, sight, settings.decide_s)
    horizon_s = min(max(deadline_s, told.end_s), trace.end_unix_s) - start_s
    best = oracle_course(trace, start_s, horizon_s, told.tokens, menu)
    late = told.finished_s is None or told.finished_s > deadline_s
    lines = [Line(name=RAN, grams=told.grams, done_s=told.finished_s, tokens_left=0.0, changes=told.changes)]
    courses = [Course(name=RAN, edges_unix_s=told.edges_s, rows=told.rows, grams=told.emitted_g, late=late)]
    for name in names:
        track = world.run(kernel_of(settings, named_policy(name, settings, menu), menu), jobs, history=True)
        missed = bool(track.missed[0])
        lines.append(
            Line(
                name=name,
                grams=float(track.grams[0]),
                done_s=None if missed else start_s + float(track.end_s[0]),
                tokens_left=float(track.tokens_left[0]),
                changes=int(track.switches[0]),
            )
        )
        courses.append(course_of(name, track, 0, start_s, wall_s))
    lines.append(Line(name=ORACLE, grams=best.total_g, done_s=None, tokens_left=0.0, changes=None))
    g_per_kwh, weights_s = trace.window(start_s, horizon_s)
    return RunReplay(
        happened=told,
        menu=menu,
        deadline_s=deadline_s,
        lines=lines,
        verdict=judge(
            g_per_kwh, weights_s, menu, told.tokens, told.grams, why_unknown=told.why_unknown,
        ),
        scene=Scene(
            title=f"{told.run_id}: {count(told.tokens)} {told.unit}, {told.policy}; and what others would have done",
            grid_name=trace.name,
            grid=notes[2],
            edges_unix_s=start_s + np.concatenate([[0.0], np.cumsum(weights_s)]),
            g_per_kwh=g_per_kwh,
            deadline_unix_s=deadline_s,
            menu=menu,
            courses=[*courses, best],
            against=STATIC,
            notes=notes[:2],
        ),
        notes=notes,
    )  # fmt: skip


def _settings(told: RecordedRun, policy: PolicyConfig | None, deadline_s: float) -> PolicyConfig:
    """Return the section that policies read, for the job that was done."""
    if policy is None:
        try:
            policy = build(PolicyConfig, dict(told.policy_section), "policy.")
        except ConfigError:
            policy = PolicyConfig()  # of another version: what it does not know has no effect here
    return replace(
        policy,
        name=STATIC,
        objective="carbon",
        gear=None,
        schedule=(),
        tokens=max(told.tokens, 1.0),
        deadline_h=(deadline_s - told.start_s) / S_PER_HOUR,
    )


def _grams_from(told: RecordedRun) -> str:
    """Return where the grams of the run are from."""
    if told.grams is None:
        return f"grams unknown, as {told.why_unknown}"
    if told.grams_of == "table":
        return "what was decided, weighed with the declared table: assumed"
    return f"the run's own joules, {told.provenance}"


_HEAD: Final = ("Policy", "CO2e", "vs static", "vs the run", "Done (UTC)", "Changes")


def render(result: RunReplay) -> "RenderableType":
    """Return a rich renderable: what ran, what others would have done, and what the numbers rest on."""
    from rich.console import Group
    from rich.markup import escape
    from rich.text import Text

    told = result.happened
    title = f"{told.run_id}: {quantities.count(told.tokens)} {told.unit} under {told.policy}, replayed"
    table = plain_table(title, _HEAD)
    for line in result.lines:
        style = "bold" if line.name == RAN else "dim" if line.name == ORACLE else ""
        table.add_row(
            escape(line.name),
            quantities.mass(line.grams),
            _share(less(line.grams, result.verdict.static_g)),
            "" if line.name == RAN else _share(less(line.grams, told.grams)),
            _done(line),
            "" if line.changes is None else str(line.changes),
            style=style,
        )
    return Group(
        table,
        Text("Shares are of grams not emitted; below 0: more was.", style="dim"),
        *(Text(f"{note}.", style="dim") for note in result.notes),
    )


def to_csv(result: RunReplay) -> str:
    """Return the rows as CSV text, shares as fractions; empty where nothing is known."""
    return csv_text(result.rows())


def _share(share: float | None) -> str:
    return quantities.UNKNOWN if share is None else quantities.signed(share)


def _done(line: Line) -> str:
    if line.name == ORACLE:
        return ""
    if line.done_s is None:
        return f"late, {quantities.count(line.tokens_left)} left" if line.tokens_left else "not all"
    return quantities.clock(line.done_s)
