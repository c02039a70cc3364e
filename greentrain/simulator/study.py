"""A study: policies on grids with a table of actions, as ``greentrain simulate`` makes, shows and writes it."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from greentrain.config.schema import SCHEDULERS, GreenConfig, PolicyConfig, PrecisionConfig
from greentrain.errors import ConfigError, RunFolderError
from greentrain.policy.action_sources import Actions
from greentrain.policy.menu import Menu
from greentrain.simulator.grids import Grid
from greentrain.simulator.jobs import HISTORY_H
from greentrain.simulator.picture import draw_scene, save
from greentrain.simulator.scene import ORACLE, Course, Scene, course_of, oracle_course
from greentrain.simulator.simulate import CARBON_BLIND, PolicyOutcome, SimulationResult, menu_of, simulate
from greentrain.types import G_PER_KG, S_PER_HOUR, iso
from greentrain.utils import quantities
from greentrain.utils.quantities import count
from greentrain.utils.validation import bound, choice
from greentrain.utils.version import __version__

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


FORMAT: Final = 1
"""Version of :meth:`StudyResult.to_dict`; keys are only ever added."""
STATIC: Final = "static"
USUAL: Final = (STATIC, "threshold", "lowest_window", "mpc", "carbongear")
"""What is compared where nobody names policies; ``carbon_blind`` and the oracle are always there."""
KNOWN: Final = (STATIC, CARBON_BLIND, *SCHEDULERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to try."""

    config: GreenConfig
    """Section ``policy`` says what has to be done; ``released``, ``switch_s`` and so on hold for all policies."""
    grids: Sequence[Grid]
    actions: Actions
    policies: Sequence[str] = ()
    """Names as in ``policy.name``; none: the usual ones, and that of the configuration."""
    slacks: Sequence[float] = ()
    """Times to the deadline over the time of the usual training; none: ``policy.deadline_h``."""
    windows: int = 24
    seeds: int = 1
    history_h: float = HISTORY_H

    @property
    def names(self) -> tuple[str, ...]:
        """What is simulated: the usual training and the constant pace first."""
        own = (self.config.policy.name,) if self.config.policy.plans else ()
        asked = [name for name in (tuple(self.policies) or (*USUAL, *own)) if name != ORACLE]
        return tuple(dict.fromkeys((STATIC, CARBON_BLIND, *asked)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One slack of a study."""

    slack: float
    tokens: float
    deadline_h: float
    result: SimulationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """What came out."""

    study: Study
    cases: Sequence[Case]

    def rows(self) -> list[dict[str, Any]]:
        """Return the table in plain JSON types: a policy on one grid at one slack, grid by grid, the oracle last.

        ``kg`` and ``kwh`` are of all jobs together, IT power; kWh of the oracle are None, as its table is of grams.
        Savings are shares of the grams of static and of the constant pace of least energy, ``mean_saving_vs_static``
        the mean over the jobs, ``excess_over_oracle`` a share of the oracle's grams.
        """
        found: list[dict[str, Any]] = []
        for case in self.cases:
            for grid in self.study.grids:
                outcomes = [o for o in case.result.outcomes if o.trace == grid.trace.name]
                found += [_row(outcome, case.slack) for outcome in outcomes]
                found.append(_oracle_row(outcomes[0], case.slack))
        return found

    def notes(self) -> list[str]:
        """Return what the numbers rest on: the table, the grids, what is free."""
        return [
            f"Watts and speeds {self.cases[0].result.menu.provenance}: {self.study.actions.source}",
            *(f"Grid {grid.label}" for grid in self.study.grids),
            resting(self.study.config, self.cases[0].result),
            *share_note(self.study.config.precision, self.cases[0].result.menu),
            *cautions(self.study.config.policy, self.study.names),
            "CO2e of IT power, without PUE; all jobs together",
        ]

    def scenes(self) -> list[tuple[Case, Scene]]:
        """Return one job of each case and grid to draw: the one of median saving."""
        return [(case, _scene(self, case, grid, i)) for case in self.cases for i, grid in enumerate(self.study.grids)]

    def to_dict(self) -> dict[str, Any]:
        """Return the result in plain JSON types."""
        first = self.cases[0].result
        return {
            "format": FORMAT,
            "greentrain_version": __version__,
            "kind": "simulation",
            "actions": {
                "source": self.study.actions.source,
                "provenance": first.menu.provenance,
                "static": first.menu.names()[first.menu.static],
                "count": len(first.menu) - 1,
            },
            "cases": [
                {
                    "slack": case.slack,
                    self.study.actions.unit: case.tokens,
                    "deadline_h": case.deadline_h,
                    "starts": {
                        grid.trace.name: [iso(t) for t in dict.fromkeys(jobs.start_unix_s.tolist())]
                        for grid, jobs in zip(self.study.grids, case.result.jobs, strict=True)
                    },
                }
                for case in self.cases
            ],
            "seeds": self.study.seeds,
            "grids": [
                {
                    "name": grid.trace.name,
                    "zone": grid.trace.zone,
                    "source": grid.trace.source,
                    "recorded": grid.recorded,
                    "basis": str(grid.trace.basis),
                    "accounting": grid.trace.accounting,
                    "mean_g_per_kwh": float(grid.trace.g_per_kwh.mean()),
                }
                for grid in self.study.grids
            ],
            "rows": self.rows(),
            "notes": self.notes(),
        }


def run_study(study: Study, progress: Callable[[int, int], None] = lambda done, of: None) -> StudyResult:
    """Simulate every policy on every grid at every slack.

    Args:
        study: Study to make.
        progress: Called with the number of runs done and that of all.

    Raises:
        ConfigError: A policy is unknown, tokens or a deadline are missing or cannot be met, or bases are mixed.
        TraceError: A trace is shorter than its jobs.
    """
    for name in study.policies:
        choice("--policy", name, (*KNOWN, ORACLE))
    bound("--seeds", study.seeds, 1, 10_000)
    bound("--history-h", study.history_h, 0, 24 * 366)
    dark = next((grid.trace.name for grid in study.grids if not grid.trace.g_per_kwh.any()), None)
    if dark is not None:
        raise ConfigError(f"trace {dark!r} is 0 g/kWh throughout: there is nothing to save on it, take another")
    jobs = _jobs(study)
    each, cases = len(study.names) * len(study.grids), []
    for i, (slack, tokens, deadline_h) in enumerate(jobs):
        policy = replace(study.config.policy, name=STATIC, gear=None, schedule=(), tokens=tokens, deadline_h=deadline_h)
        result = simulate(
            replace(study.config, policy=policy),
            [grid.trace for grid in study.grids],
            policies=study.names,
            table=study.actions.table,
            count=study.windows,
            history_h=study.history_h,
            seeds=study.seeds,
            history=True,
            progress=lambda done, of, before=i * each: progress(before + done, each * len(jobs)),  # type: ignore[misc]
        )
        cases.append(Case(slack=slack, tokens=tokens, deadline_h=deadline_h, result=result))
    return StudyResult(study=study, cases=cases)


def resting(config: GreenConfig, result: SimulationResult) -> str:
    """Return what a rank that does not work costs, and a change of width."""
    policy = config.policy
    held = "given back, and cost nothing" if policy.released is not False else f"held, at {policy.idle_w:g} W each"
    changes = f"; a change of width costs {policy.switch_s:g} s" if policy.switch_s else ""
    if len(np.unique(result.menu.gear)) > 2:
        changes += (
            f"; a change of gear {f'costs {policy.shift_s:g} s' if policy.shift_s else 'is assumed to cost nothing'}"
        )
    return f"Static is {result.menu.names()[result.menu.static]} at once; ranks that do not work are {held}{changes}"


def share_note(precision: PrecisionConfig, menu: Menu) -> list[str]:
    """Return what has to be said of FP8 where only a share of the steps may run in it."""
    if precision.fp8_max_share >= 1.0 or not menu.fp8.any():
        return []
    return [f"At most {precision.fp8_max_share:.0%} of the steps are in FP8: its actions stand for that mixture"]


def cautions(policy: PolicyConfig, names: Sequence[str]) -> list[str]:
    """Return what has to be said of policies that stand on made-up ground."""
    said = []
    if "spot" in names and policy.prices_csv is None:
        said.append(f"Spot prices are synthetic (seed {policy.seed}): policy.prices_csv names real ones")
    if "carbongear-printed" in names:
        said.append("carbongear-printed is there for the record: without the shield it would miss its deadlines")
    return said


def _jobs(study: Study) -> list[tuple[float, float, float]]:
    """Return slack, tokens and hours of each case."""
    policy = study.config.policy
    menu = menu_of(policy, study.actions.table, study.config.precision)
    per_h = float(menu.tokens_per_s[menu.static]) * S_PER_HOUR
    for slack in study.slacks:
        bound("--slack", slack, 0.01, 1000.0)
    tokens, deadline_h = policy.tokens, policy.deadline_h
    if tokens is not None and study.slacks:
        return [(slack, tokens, slack * tokens / per_h) for slack in study.slacks]
    if deadline_h is not None and study.slacks:
        return [(slack, deadline_h * per_h / slack, deadline_h) for slack in study.slacks]
    if tokens is None or deadline_h is None:
        raise ConfigError(
            "a simulation needs two of three: policy.tokens (the tokens of a job), policy.deadline_h (its hours), and"
            " --slack (its hours over those of the usual training)"
        )
    return [(deadline_h * per_h / tokens, tokens, deadline_h)]


def _row(outcome: PolicyOutcome, slack: float) -> dict[str, Any]:
    return {
        "trace": outcome.trace,
        "slack": slack,
        "policy": outcome.policy,
        "kg": outcome.grams / G_PER_KG,
        "kwh": outcome.kwh,
        "saving_vs_static": outcome.saving,
        "mean_saving_vs_static": outcome.mean_saving,
        "saving_vs_blind": outcome.saving_over_blind,
        "excess_over_oracle": outcome.excess,
        "jobs": len(outcome.track.grams),
        "misses": outcome.misses,
        "switches_per_day": outcome.switches_per_day,
    }


def _oracle_row(outcome: PolicyOutcome, slack: float) -> dict[str, Any]:
    known = outcome.references
    grams = float(known.oracle_g.sum())
    return _row(outcome, slack) | {
        "policy": ORACLE,
        "kg": grams / G_PER_KG,
        "kwh": None,
        "saving_vs_static": 1.0 - grams / float(known.static_g.sum()),
        "mean_saving_vs_static": float(np.mean(1.0 - known.oracle_g / known.static_g)),
        "saving_vs_blind": 1.0 - grams / float(known.blind_g.sum()),
        "excess_over_oracle": 0.0,
        "misses": 0,
        "switches_per_day": None,
    }


def _scene(result: StudyResult, case: Case, grid: Grid, i: int) -> Scene:
    outcomes = [o for o in case.result.outcomes if o.trace == grid.trace.name]
    planned = [o for o in outcomes if o.policy not in (STATIC, CARBON_BLIND)]
    shown = next((o for o in planned if o.policy == "mpc"), [*outcomes, *planned][-1])
    savings = 1.0 - shown.track.grams / shown.references.static_g
    job = int(np.argsort(savings, kind="stable")[(len(savings) - 1) // 2])
    start_s, deadline_s = float(case.result.jobs[i].start_unix_s[job]), case.deadline_h * S_PER_HOUR
    courses: list[Course] = [course_of(o.policy, o.track, job, start_s, deadline_s) for o in outcomes]
    courses.append(oracle_course(grid.trace, start_s, deadline_s, case.tokens, case.result.menu))
    g_per_kwh, weights_s = grid.trace.window(start_s, deadline_s)
    of = "" if len(savings) == 1 else f", the job of median saving of {len(savings)}"
    return Scene(
        title=f"{grid.trace.name}: {count(case.tokens)} {result.study.actions.unit} in {case.deadline_h:.4g} h, slack"
        f" {case.slack:.3g}{of}",
        grid_name=grid.trace.name,
        grid=grid.label,
        edges_unix_s=start_s + np.concatenate([[0.0], np.cumsum(weights_s)]),
        g_per_kwh=g_per_kwh,
        deadline_unix_s=start_s + deadline_s,
        menu=case.result.menu,
        courses=courses,
        against=STATIC,
        notes=result.notes()[:1],
    )


_HEAD: Final = ("Policy", "CO2e", "Saved", "vs blind", "Over best", "Missed", "Changes/d")


def render(result: StudyResult) -> "RenderableType":
    """Return a rich renderable: one table a grid and slack, and what the numbers rest on."""
    from rich.console import Group
    from rich.text import Text

    rows = result.rows()
    parts: list[RenderableType] = []
    for case in result.cases:
        for grid in result.study.grids:
            mine = [row for row in rows if (row["trace"], row["slack"]) == (grid.trace.name, case.slack)]
            jobs = mine[0]["jobs"]
            title = f"{grid.trace.name}, {jobs} job{'' if jobs == 1 else 's'} of {quantities.count(case.tokens)}"
            title += f" {result.study.actions.unit} in {case.deadline_h:.4g} h (slack {case.slack:.3g})"
            parts.append(_table(title, mine))
    parts.append(Text("Saved: against static; vs blind: against the constant pace of least energy.", style="dim"))
    parts += [Text(f"{note}.", style="dim") for note in result.notes()]
    return Group(*parts)


def to_csv(result: StudyResult) -> str:
    """Return the rows as CSV text, shares as fractions; empty where nothing is known."""
    return csv_text(result.rows())


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the same keys as CSV text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def plain_table(title: str, columns: Sequence[str]) -> "Table":
    """Return a table without borders, whose first column is at the left and whose others are at the right."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    return table


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> "Table":
    from rich.markup import escape

    table = plain_table(title, _HEAD)
    best = min((row for row in rows if row["policy"] != ORACLE), key=lambda row: (row["misses"] > 0, row["kg"]))
    for row in rows:
        is_oracle, changes = row["policy"] == ORACLE, row["switches_per_day"]
        table.add_row(
            escape(row["policy"]),
            quantities.mass(row["kg"] * G_PER_KG),
            "" if row["policy"] == STATIC else quantities.signed(row["saving_vs_static"]),
            quantities.signed(row["saving_vs_blind"]),
            "" if is_oracle else quantities.signed(row["excess_over_oracle"]),
            "" if is_oracle else f"[red]{row['misses']}[/]" if row["misses"] else "0",
            "" if changes is None else f"{changes:.1f}",
            style="bold" if row is best else "dim" if is_oracle else "",
        )
    return table


def write_results(
    folder: Path, result: Mapping[str, Any], table_csv: str, scenes: Sequence[tuple[str, Scene]], suffix: str = ".png"
) -> list[Path]:
    """Write ``table.csv``, ``result.json`` and one picture a scene, and return their paths.

    Args:
        folder: Folder to write to; made where there is none.
        result: Result in plain JSON types.
        table_csv: The table, as the text of a CSV file.
        scenes: Names of pictures and what is on them; none: no picture.
        suffix: Format of the pictures.

    Raises:
        RunFolderError: The folder cannot be written.
        MissingExtraError: There are pictures to draw, and matplotlib is not installed.
    """
    texts = {"table.csv": table_csv, "result.json": json.dumps(result, indent=1, allow_nan=False) + "\n"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"cannot write to {folder}: {error.strerror or error}; choose another with --out"
        ) from error
    written = [folder / name for name in texts]
    for name, scene in scenes:
        written.append(save(draw_scene(scene), folder / f"{safe(name)}{suffix}"))
    return written


def safe(name: str) -> str:
    """Return a name as that of a file."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "picture"
