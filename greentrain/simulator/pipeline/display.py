"""Outcomes for people: tables with what physics allows and what each figure rests on."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from greentrain.policy.offload.stages import Hardware, Stage, Where
from greentrain.simulator.pipeline.bounds import BreakEven, caps
from greentrain.simulator.pipeline.simulate import GridIntensity, Mode, StepOutcome, said
from greentrain.simulator.pipeline.table import PipelineTable
from greentrain.simulator.pipeline.what_if import Fall, Scaled, SensitivityPoint
from greentrain.utils import quantities

UNKNOWN = "?"
_FIGURES = ("step s", "x", "tokens/s", "bubble", "useful", "wasted", "J/token", "g/Mtoken")


def simulated(table: PipelineTable, outcomes: Sequence[StepOutcome], notes: Sequence[str]) -> RenderableType:
    """Return the modes, the joules by stage and device, and what stands beside them."""
    shown = _table(("mode", "cards"), _FIGURES)
    for outcome in outcomes:
        shown.add_row(_mode(outcome), str(outcome.cards) if outcome.cards else "", *figures(outcome))
    return Group(_title(table), shown, joules(table, outcomes), *_lines([*physics(table), *notes, *rests(table)]))


def joules(table: PipelineTable, outcomes: Sequence[StepOutcome]) -> Table:
    """Return the joules of a step by stage and device; ``*``: on the card."""
    shown = _table(("joules", "cards"), (*table.rows, "GPU waits", "card waits"))
    for outcome in outcomes:
        cells = []
        for stage in table.rows:
            away = outcome.plan.get(stage, Where.GPU) is not Where.GPU
            hardware = Hardware.OFFLOAD if away else Hardware.GPU
            cells.append(_joule(outcome.line.stage_j.get((stage, hardware))) + ("*" if away else ""))
        waits = [_joule(outcome.line.idle_j[hardware]) for hardware in Hardware]
        shown.add_row(str(outcome.mode), str(outcome.cards) if outcome.cards else "", *cells, *waits)
    return shown


def fallen(table: PipelineTable, rows: Sequence[Fall], notes: Sequence[str]) -> RenderableType:
    """Return the ablation."""
    shown = _table(("what is added",), _FIGURES)
    for row in rows:
        shown.add_row(row.name, *figures(row.outcome))
    chosen = f"The scheduler's choice: {_choice(rows[-1].outcome)}."
    return Group(_title(table), shown, *_lines([chosen, *physics(table), *notes, *rests(table)]))


def _choice(outcome: StepOutcome) -> str:
    """Return the plan, and the mode where it matters: where a pass runs beside the GPUs."""
    return said(outcome) + (f", mode {outcome.mode}" if Where.CONCURRENT in outcome.plan.values() else "")


def varied(table: PipelineTable, over: str, points: Sequence[SensitivityPoint], notes: Sequence[str]) -> RenderableType:
    """Return a sensitivity."""
    shown = _table((over,), ("GPU step s", "with card s", "x", "cap", "GPU J/token", "with card", "break-even h"))
    shown.add_column("best", no_wrap=True)
    for point in points:
        shown.add_row(
            point.value if isinstance(point.value, str) else f"{point.value:g}",
            f"{point.home.line.step_s:.3g}",
            f"{point.away.line.step_s:.3g}",
            f"{point.away.speedup:.2f}",
            f"{point.away.cap:.2f}",
            _number(point.home.line.j_per_token),
            _number(point.away.line.j_per_token),
            hours(point.paid),
            "GPU" if not point.best.line.busy_s[Hardware.OFFLOAD] else str(point.best.mode),
        )
    return Group(_title(table), shown, *_lines([*notes, *rests(table)]))


def scaled(rows: Sequence[Scaled]) -> RenderableType:
    """Return T(N)."""
    title = f"Strong scaling, the same step on more GPUs; cards: {rows[0].away.cards}, {rows[0].away.mode}"
    shown = _table(("GPUs",), ("T(N) s", "efficiency", "all-reduce s", "with cards s", "x", "J/token", "with cards"))
    for row in rows:
        shown.add_row(
            str(row.gpus),
            f"{row.home.line.step_s:.3g}",
            f"{row.efficiency:.0%}",
            f"{row.comm_s:.3g}",
            f"{row.away.line.step_s:.3g}",
            f"{row.away.speedup:.2f}",
            _number(row.home.line.j_per_token),
            _number(row.away.line.j_per_token),
        )
    return Group(Text(title, style="italic"), shown)


def figures(outcome: StepOutcome) -> tuple[str, ...]:
    """Return an outcome's cells, ``?`` for what nobody knows."""
    line = outcome.line
    return (
        f"{line.step_s:.2f}" if line.step_s >= 1 else f"{line.step_s:.3g}",
        f"{outcome.speedup:.2f}",
        f"{outcome.tokens_per_s:,.0f}",
        f"{line.bubble:.0%}",
        _joule(line.useful_j),
        _joule(line.wasted_j),
        _number(line.j_per_token),
        UNKNOWN if outcome.g_per_mtoken is None else f"{outcome.g_per_mtoken:.3g}",
    )


def hours(paid: BreakEven | None) -> str:
    """Return the hours of a break-even, low to high."""
    if paid is None:
        return UNKNOWN
    if paid.hours is None:
        return "never"
    low, _, high = paid.hours
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def physics(table: PipelineTable) -> list[str]:
    """Return what physics allows the step."""
    return [
        f"At most, by Amdahl: x{cap.speedup:.2f} if {', '.join(cap.passes)} took no time ({cap.share:.0%} of the step)."
        for cap in caps(table)
    ]


def paid_lines(name: str, paid: BreakEven | None, grid: GridIntensity) -> list[str]:
    """Return when cards have saved what making them emitted."""
    if grid.g_per_kwh is None:
        return ["Grams: nobody said what a kWh emits (--grid)."]
    lines = [f"Grid: {grid.source}, PUE {grid.pue:g}."]
    if paid is None:
        return [*lines, f"Break-even: unknown; joules or the embodied carbon of {name} are (--embodied-kg, watts)."]
    low, _, high = paid.embodied_kg
    made = f"{low:g} to {high:g} kg of {paid.cards} x {name} ({paid.source})"
    if paid.hours is None or paid.steps is None:
        return [*lines, f"Break-even: never. The cards save {paid.saved_g_per_step:.3g} g a step, against {made}."]
    return [
        *lines,
        f"Break-even: after {paid.hours[0]:,.0f} to {paid.hours[2]:,.0f} h of training "
        f"({paid.steps[0]:,.0f} to {paid.steps[2]:,.0f} steps), {paid.saved_g_per_step:.3g} g saved a step, {made}.",
    ]


def rests(table: PipelineTable) -> list[str]:
    """Return what each figure of a table is and who says so, alike ones together."""
    by_source: dict[tuple[str, str], list[str]] = {}
    for stage, row in table.rows.items():
        for name, figure, unit in (
            ("", row.gpu_s, "s"), ("", row.gpu_w, "W"), (" on card", row.card_s, "s"), (" on card", row.card_w, "W"),
        ):  # fmt: skip
            if figure is not None:
                told = f"{stage}{name} {figure.value:.3g} {unit}"
                by_source.setdefault((figure.kind, figure.source), []).append(told)
    for name, figure in (("GPU waiting", table.gpu_idle_w), ("card waiting", table.card_idle_w)):
        if figure is not None:
            by_source.setdefault((figure.kind, figure.source), []).append(f"{name} {figure.value:.3g} W")
    unknown = [str(stage) for stage, row in table.rows.items() if row.gpu_w is None]
    lines = [f"{origin}, {source}: {', '.join(told)}." for (origin, source), told in by_source.items()]
    if unknown:
        lines.append(f"Watts of the GPUs are unknown in {', '.join(unknown)}, and so are all joules.")
    if any(row.card_s is not None and row.card_w is None for row in table.rows.values()):
        lines.append("Watts of the card are unknown (--card-w), and so are joules with it.")
    if table.card_idle_w is None and table.offloadable:
        lines.append("Watts of a waiting card are unknown (--card-idle-w), and so are joules with it.")
    if table.gpu_idle_w is None:
        lines.append("Watts of a waiting GPU are unknown (--gpu-idle-w), and so are joules where one waits.")
    return [*lines, *table.notes]


def _title(table: PipelineTable) -> Text:
    size = f"{quantities.count(table.tokens)} tokens a step, {table.gpus} x {table.gpu}"
    return Text(f"{table.name}: {size}; modelled from the figures below", style="italic")


def _mode(outcome: StepOutcome) -> str:
    return f"{outcome.mode} +" if outcome.mode is Mode.OFF_POLICY else str(outcome.mode)


def _table(left: Sequence[str], right: Sequence[str | Stage]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in left:
        shown.add_column(column, no_wrap=True)
    for column in right:
        shown.add_column(str(column), justify="right", no_wrap=True)
    return shown


def _lines(lines: Iterable[str]) -> list[Text]:
    return [Text(line) for line in lines]


def _joule(value: float | None) -> str:
    return UNKNOWN if value is None else "0" if not value else quantities.joules(value)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"
