"""A picture of an RLHF step in each mode: its time beside what physics allows, and its joules by stage (E20).

Run: ``python tools/pipeline_picture.py published step.png --slowdown 2 --cards 1``
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from greentrain.policy.offload.stages import Hardware, Stage
from greentrain.simulator.picture import OFF_COLOUR, check_format, check_pictures, clean, save
from greentrain.simulator.pipeline.bounds import caps
from greentrain.simulator.pipeline.inputs import PipelineInputs, open_grid, open_table
from greentrain.simulator.pipeline.simulate import Mode, Setting, StepOutcome, simulate
from greentrain.simulator.pipeline.table import PipelineTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = dict(zip(Stage, ("#1d4f91", "#0a6b3d", "#56b4e9", "#7f3fbf", "#d55e00"), strict=True))
_WAITS: Final = {Hardware.GPU: "#9ca3af", Hardware.OFFLOAD: OFF_COLOUR}
_WAIT_NAMES: Final = {Hardware.GPU: "GPUs wait", Hardware.OFFLOAD: "cards wait"}
_BOUND: Final = "#b91c1c"


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
    figure.suptitle(f"{table.name}: modelled", x=0.01, ha="left", fontsize=11, fontweight="bold")


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a table (YAML, CSV), a run folder, or 'published'")
    parser.add_argument("file", type=Path, help="picture: .png, .svg or .pdf")
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--slowdown", type=float, help="a card takes so many times the GPUs' time (assumed)")
    asked = parser.parse_args()
    check_format(asked.file.suffix.removeprefix("."))
    table = open_table(PipelineInputs(table=asked.table, slowdown=asked.slowdown))
    found = [simulate(table, mode, Setting(cards=asked.cards), open_grid(None, 1.0)) for mode in Mode]
    print(f"Picture: {save(draw_bars(table, [str(mode) for mode in Mode], found), asked.file)}")


if __name__ == "__main__":
    main()
