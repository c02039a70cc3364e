"""The time-energy frontier of a pipeline: how fast each pass of a stage is to run, so that none waits in vain.

A stage off the critical path may run slower and finish as early as it is needed (Perseus: Chung et al., SOSP 2024). The
frontier is that of the package lowtime (by Perseus' authors), with the lower hull of a pass's options as its cost; its
passes are then put on real knobs, and what slack is left is taken. Its points become rows of
an action table, among which a plan chooses point, gear, width and hour at once.

Experimental: no pipeline has run at such a point here; what sets a stage's clocks is the pipeline's engine.
"""

import csv
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.types import Gear
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn_experimental
from greentrain.utils.validation import bound, choice

SCHEDULES: Final = ("1f1b", "gpipe")
COLUMNS: Final = ("stage", "instruction", "frequency", "time", "energy")
"""Of a profile (CSV): those of Perseus; a frequency may be any knob, such as a power limit. ``gear`` may be beside."""
STEPS: Final = 200
"""Steps between the slowest and the fastest pipeline in which lowtime looks for the frontier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOption:
    """One way to run a pass of a stage."""

    knob: float
    time_s: float
    energy_j: float


Pass = tuple[int, bool, int]
"""Stage, whether backward, micro-batch."""
Profile = Mapping[tuple[int, bool], Sequence[PassOption]]
"""Options of one gear by stage and whether the pass is the backward one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One step of the pipeline."""

    step_s: float
    energy_j: float
    """Of all stages, waiting included."""
    knobs: Mapping[Pass, float]
    """By stage, whether backward, and micro-batch."""


def read_profile(path: Path) -> dict[Gear, Profile]:
    """Read a profile of stages: a row for each stage, instruction (forward, backward), frequency and gear (else bf16).

    Raises:
        ConfigError: The file cannot be read, lacks a column or a stage, or holds a wrong value.
    """
    found: dict[Gear, dict[tuple[int, bool], list[PassOption]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):
                where = f"{path}, line {line}"
                if missing := [name for name in COLUMNS if not row.get(name)]:
                    raise ConfigError(f"{where}: {missing[0]} is missing; the columns are {', '.join(COLUMNS)}")
                choice(f"{where}: gear", gear := row.get("gear") or "bf16", tuple(gear.value for gear in Gear))
                choice(f"{where}: instruction", row["instruction"], ("forward", "backward"))
                knob, time_s, energy_j = (float(row[name]) for name in COLUMNS[2:])
                bound(f"{where}: time", time_s, 1e-9, 1e6)
                bound(f"{where}: energy", energy_j, 1e-9, 1e12)
                options = found.setdefault(Gear(gear), {}).setdefault(
                    (int(row["stage"]), row["instruction"] == "backward"), []
                )
                options.append(PassOption(knob=knob, time_s=time_s, energy_j=energy_j))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a profile of stages: {error}") from error
    for gear_of, profile in found.items():
        wanted = itertools.product(range(max(stage for stage, _ in profile) + 1), (False, True))
        if lacks := [key for key in wanted if key not in profile]:
            raise ConfigError(
                f"{path}: {gear_of} lacks the {('forward', 'backward')[lacks[0][1]]} of stage {lacks[0][0]}"
            )
    if not found:
        raise ConfigError(f"{path} holds no row: profile each stage at each frequency")
    return dict(found)


class Pipeline:
    """The passes of one step of a pipeline and what each waits for.

    Args:
        profile: Options of each pass.
        micro_batches: Micro-batches of a step.
        schedule: ``1f1b`` or ``gpipe``.
        waiting_w: Power of a stage that waits for another (W).
    """

    def __init__(self, profile: Profile, micro_batches: int, *, schedule: str = "1f1b", waiting_w: float) -> None:
        choice("schedule", schedule, SCHEDULES)
        bound("micro_batches", micro_batches, 1, 10_000)
        bound("waiting_w", waiting_w, 0.0, 1e6)
        self.profile, self.waiting_w, self.stages = profile, waiting_w, max(stage for stage, _ in profile) + 1
        before: dict[Pass, list[Pass]] = {}
        for stage in range(self.stages):
            ahead = micro_batches if schedule == "gpipe" else min(micro_batches, self.stages - stage)
            passes = [(stage, False, i) for i in range(ahead)]
            for i in range(micro_batches):
                passes.append((stage, True, i))
                passes += [(stage, False, ahead + i)] if ahead + i < micro_batches else []
            for last, key in itertools.pairwise([None, *passes]):
                _, backward, i = key  # type: ignore[misc]
                other = (stage + 1, True, i) if backward else (stage - 1, False, i)
                waits = [last] if last else []
                before[key] = waits + ([other] if 0 <= other[0] < self.stages else [])  # type: ignore[index]
        self.before = before
        from graphlib import TopologicalSorter

        self.order = list(TopologicalSorter(before).static_order())

    def step(self, chosen: Mapping[Pass, PassOption]) -> FrontierPoint:
        """Return what a step takes with an option for each pass."""
        step_s, busy_s = self._step_s(chosen), sum(option.time_s for option in chosen.values())
        energy_j = sum(option.energy_j for option in chosen.values()) + self.waiting_w * (self.stages * step_s - busy_s)
        return FrontierPoint(step_s=step_s, energy_j=energy_j, knobs={key: chosen[key].knob for key in self.order})

    def _step_s(self, chosen: Mapping[Pass, PassOption]) -> float:
        end: dict[Pass, float] = {}
        for key in self.order:
            end[key] = max((end[other] for other in self.before[key]), default=0.0) + chosen[key].time_s
        return max(end.values())

    def hull(self, key: tuple[int, bool]) -> list[PassOption]:
        """Return the options on the lower hull of time and of joules above those of waiting, fastest first."""
        by_place = {(o.time_s, self.extra_j(o)): o for o in self.profile[key]}
        return [by_place[place] for place in lower_hull(by_place)]

    def extra_j(self, option: PassOption) -> float:
        """Return the joules of an option above those of waiting as long."""
        return option.energy_j - self.waiting_w * option.time_s

    def frontier(self) -> list[FrontierPoint]:
        """Return the points that no other beats in time and energy, fastest first.

        Raises:
            MissingExtraError: lowtime is not installed.
        """
        with try_import("pipeline") as imports:
            import networkx as nx
            from lowtime.cost_model import CostModel
            from lowtime.operation import (
                CandidateExecutionOptions,
                DummyOperation,
                ExecutionOption,
                Operation,
                OperationSpec,
            )
            from lowtime.solver import PhillipsDessouky
        imports.check()
        warn_experimental("the frontier of a pipeline", "it was judged on recorded profiles, and no pipeline ran by it")
        hulls = {key: self.hull(key) for key in self.profile}
        slow, fast = (self.step({k: hulls[k[:2]][i] for k in self.order}).step_s for i in (-1, 0))
        unit_s = max((slow - fast) / STEPS, min(hull[0].time_s for hull in hulls.values()) / 100)
        scale = 100.0 / max(abs(self.extra_j(option)) for hull in hulls.values() for option in hull)

        class Hull(CostModel):
            def __init__(self, times: Sequence[int], costs: Sequence[float]) -> None:
                self.times, self.costs = times, costs

            def __call__(self, quant_time: int) -> float:
                import numpy as np

                return float(np.interp(quant_time, self.times, self.costs))

        specs, least = {}, min(self.extra_j(option) for hull in hulls.values() for option in hull)
        for key, hull in hulls.items():
            options = [
                ExecutionOption(real_time=o.time_s, unit_time=unit_s, cost=(self.extra_j(o) - least) * scale, knob=o)
                for o in hull
            ]
            kept = CandidateExecutionOptions(options=options)
            lines = lower_hull((o.quant_time, o.cost) for o in kept.options)
            specs[key] = OperationSpec(options=kept, cost_model=Hull(*zip(*lines, strict=True)))
        dag = nx.DiGraph(source_node=0, sink_node=1)
        ids = {key: i for i, key in enumerate(self.order, start=2)}
        operations = {key: Operation(spec=specs[key[:2]]) for key in self.order}
        dag.add_nodes_from([(0, {"op": DummyOperation()}), (1, {"op": DummyOperation()})])
        dag.add_nodes_from((ids[key], {"op": operations[key]}) for key in self.order)
        dag.add_edges_from((ids[a], ids[key]) for key in self.order for a in self.before[key])
        dag.add_edges_from([(0, n) for n in ids.values() if not dag.in_degree(n)])
        dag.add_edges_from([(n, 1) for n in ids.values() if not dag.out_degree(n)])
        plans = [{key: hulls[key[:2]][i] for key in self.order} for i in (0, -1)]
        for knob in set.intersection(*({option.knob for option in found} for found in self.profile.values())):
            alike = {key: next(o for o in found if o.knob == knob) for key, found in self.profile.items()}
            plans.append({key: alike[key[:2]] for key in self.order})
        for _ in PhillipsDessouky(dag).run():
            plans.append({key: operation.assigned_knob for key, operation in operations.items()})
        return pareto([self.step(self._slowed(plan, hulls)) for plan in plans])

    def _slowed(self, plan: Mapping[Pass, PassOption], hulls: Profile) -> dict[Pass, PassOption]:
        """Return a plan in which passes with slack take it, the largest savings first, and the step takes as long."""
        chosen, most_s = dict(plan), self._step_s(plan) * (1 + 1e-9)
        for key in sorted(self.order, key=lambda k: -plan[k].energy_j):
            for option in reversed(hulls[key[:2]]):
                if option.time_s <= chosen[key].time_s:
                    break
                if self._step_s(chosen | {key: option}) <= most_s:
                    chosen[key] = option
                    break
        return chosen


def lower_hull(places: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of the falling part of the lower convex hull, from the left."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(places):
        if found and y >= found[-1][1]:
            continue
        while len(found) > 1 and (found[-1][1] - found[-2][1]) * (x - found[-1][0]) >= (y - found[-1][1]) * (
            found[-1][0] - found[-2][0]
        ):
            found.pop()
        found.append((x, y))
    return found


def pareto(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Return the points that no other beats in time and energy, fastest first."""
    kept: list[FrontierPoint] = []
    for point in sorted(points, key=lambda p: (p.step_s, p.energy_j)):
        if not kept or point.energy_j < kept[-1].energy_j:
            kept.append(point)
    return kept


def action_rows(
    points: Sequence[FrontierPoint], gear: Gear, *, tokens: float, stages: int, devices: int = 1, pipelines: int = 1
) -> list[dict[str, Any]]:
    """Return points as rows of an action table that ``policy.actions`` reads.

    The ``cap`` of a row is the point's speed as a share of the fastest, in whole per cent: it names the point.

    Args:
        points: The frontier, fastest first.
        gear: Gear that it is of.
        tokens: Tokens of a step of one pipeline.
        stages: Stages of a pipeline.
        devices: Devices of a stage, each of which runs and draws what its profile says.
        pipelines: Pipelines side by side, each with tokens of its own; what they exchange is not counted.
    """
    rows: dict[float, dict[str, Any]] = {}
    for point in points:
        cap, scale = round(points[0].step_s / point.step_s, 2), pipelines / point.step_s
        row = {"gear": str(gear), "ranks": pipelines * stages * devices, "cap": max(cap, 0.01)}
        rows[cap] = row | {"tokens_per_s": scale * tokens, "power_w": scale * devices * point.energy_j}
    return list(rows.values())
