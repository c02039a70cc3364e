"""Outcomes as pictures: what an ablation brings, what a sensitivity shows, what each mode takes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from greentrain.policy.offload.stages import Hardware, Stage
from greentrain.simulator.picture import LINES, OFF_COLOUR, check_format, check_pictures, clean
from greentrain.simulator.pipeline.bounds import NOT_REPRODUCED, caps, published_figures
from greentrain.simulator.pipeline.sensitivity import SensitivityPoint
from greentrain.simulator.pipeline.simulate import StepOutcome
from greentrain.simulator.pipeline.table import PipelineTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = dict(zip(Stage, ("#1d4f91", "#0a6b3d", "#56b4e9", "#7f3fbf", "#d55e00"), strict=True))
_WAITS: Final = {Hardware.GPU: "#9ca3af", Hardware.OFFLOAD: OFF_COLOUR}
_WAIT_NAMES: Final = {Hardware.GPU: "GPUs wait", Hardware.OFFLOAD: "cards wait"}
_BOUND: Final = "#b91c1c"


def check_plot(path: Path) -> None:
    """Check that a picture can be drawn, before anything is computed.

    Raises:
        ConfigError: The file's ending names no format.
        MissingExtraError: matplotlib is not installed.
    """
    check_format(path.suffix.removeprefix("."))
    check_pictures()


def draw_bars(table: PipelineTable, names: Sequence[str], outcomes: Sequence[StepOutcome]) -> "Figure":
    """Return one bar an outcome: its step time with the cap of all passes, and its joules by stage.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, (left, right) = _two(max(3.2, 0.34 * len(names) + 1.9))
    places = range(len(names))
    left.barh(places, [outcome.line.step_s for outcome in outcomes], color="#1d4f91", height=0.62)
    for i, outcome in enumerate(outcomes):
        left.annotate(
            f"x{outcome.speedup:.2f}", (outcome.line.step_s, i), xytext=(3, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
    most = max(caps(table), key=lambda cap: cap.speedup, default=None)
    if most is not None:
        left.axvline(table.step_s / most.speedup, color=_BOUND, linewidth=1.2, linestyle=(0, (4, 2)))
        left.annotate(
            f"no pass took time: x{most.speedup:.2f}", (table.step_s / most.speedup, 1.0), xytext=(0, 3),
            xycoords=("data", "axes fraction"), textcoords="offset points", ha="center", color=_BOUND, fontsize=8,
        )  # fmt: skip
    left.set_xlabel("step (s)", fontsize=9)
    left.set_yticks(list(places), names, fontsize=8)
    _joules(right, outcomes)
    for axes in (left, right):
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.margins(x=0.12)
        clean(axes)
    _caption(figure, table)
    return figure


def draw_points(table: PipelineTable, over: str, points: Sequence[SensitivityPoint]) -> "Figure":
    """Return joules a token, or grams where the grid was varied, and hours to the break-even.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, (left, right) = _two(4.2)
    named = any(isinstance(point.value, str) for point in points)
    xs = [float(i) if named else float(point.value) for i, point in enumerate(points)]
    priced = len({point.home.line.energy_j for point in points}) == 1 and points[0].home.g is not None
    for name, colour, style, outcomes in (
        ("all on the GPUs", LINES[2], "-", [point.home for point in points]),
        ("with cards", LINES[1], "-", [point.away for point in points]),
        ("scheduled", LINES[0], "--", [point.best for point in points]),
    ):
        values = [one.g_per_mtoken if priced else one.line.j_per_token for one in outcomes]
        known = [(x, value) for x, value in zip(xs, values, strict=True) if value is not None]
        if known:
            left.plot(*zip(*known, strict=True), color=colour, linestyle=style, marker="o", markersize=3, label=name)
    if left.get_legend_handles_labels()[1]:
        left.legend(fontsize=8, frameon=False)
    left.set_ylabel("g/Mtoken" if priced else "J/token", fontsize=9)
    paid = [(x, point.paid.hours) for x, point in zip(xs, points, strict=True) if point.paid and point.paid.hours]
    if paid:
        right.fill_between([x for x, _ in paid], [h[0] for _, h in paid], [h[2] for _, h in paid], alpha=0.25)
        right.plot([x for x, _ in paid], [h[1] for _, h in paid], marker="o", markersize=3, color=LINES[0])
        right.set_yscale("log")
    else:
        word = "never" if all(point.paid is not None for point in points) else "unknown"
        right.text(0.5, 0.5, word, transform=right.transAxes, ha="center", va="center", fontsize=10)
        right.set_yticks([])
    right.set_ylabel("hours until the cards' making is paid", fontsize=9)
    for axes in (left, right):
        axes.set_xlabel(over, fontsize=9)
        if named:
            axes.set_xticks(xs, [str(point.value) for point in points], fontsize=8)
        clean(axes)
    _caption(figure, table)
    return figure


def _two(height_in: float) -> "tuple[Figure, tuple[Axes, Axes]]":
    check_pictures()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, height_in), layout="constrained")
    left, right = figure.subplots(1, 2)
    return figure, (left, right)


def _joules(axes: "Axes", outcomes: Sequence[StepOutcome]) -> None:
    """Stack the joules by stage, and behind them those of waiting; an outcome with unknown ones has no bar."""
    axes.set_yticks([])
    axes.set_xlabel("J a step", fontsize=9)
    seen: set[str] = set()
    for i, outcome in enumerate(outcomes):
        line = outcome.line
        if line.energy_j is None:
            axes.text(0, i, " unknown", va="center", fontsize=8)
            continue
        parts = [(str(stage), _COLOURS[stage], energy_j or 0.0) for (stage, _), energy_j in line.stage_j.items()]
        parts += [(_WAIT_NAMES[hardware], _WAITS[hardware], line.idle_j[hardware] or 0.0) for hardware in Hardware]
        start_j = 0.0
        for name, colour, energy_j in parts:
            axes.barh(i, energy_j, left=start_j, color=colour, height=0.62, label=None if name in seen else name)
            seen.add(name)
            start_j += energy_j
    if seen:
        axes.legend(fontsize=7, frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _caption(figure: "Figure", table: PipelineTable) -> None:
    heads = ", ".join(found.said for found in published_figures() if found.verdict == NOT_REPRODUCED)
    figure.suptitle(f"{table.name}: modelled", x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(f"{heads}: {NOT_REPRODUCED}", x=0.01, ha="left", fontsize=7.5, color="#555555")
