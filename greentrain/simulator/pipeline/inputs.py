"""From what a user says to a table, a grid and a footprint.

What passes would take on a card comes from the roofline model, and on a GPU from its data sheet.
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from greentrain.carbon.typical import TypicalSignal
from greentrain.errors import CarbonSignalError, ConfigError
from greentrain.fpga_backend.explore.gpu import computed, gpu_named
from greentrain.fpga_backend.explore.space import (
    PRECISIONS,
    Subject,
    compiled_to,
    in_waves,
    most_sequences,
    open_subject,
)
from greentrain.fpga_backend.program import Linear, LogProb
from greentrain.fpga_backend.roofline.cards import CONSTANTS, CardSpec, assume, named
from greentrain.fpga_backend.roofline.counts import BatchLayout, count
from greentrain.fpga_backend.roofline.latency import check_card, peak_macs_per_s
from greentrain.policy.offload.stages import MOVABLE, Stage
from greentrain.policy.offload.timeline import MOST_PARTS
from greentrain.simulator.pipeline.bounds import NAME, CardFootprint, footprint, published
from greentrain.simulator.pipeline.simulate import GridIntensity
from greentrain.simulator.pipeline.table import FIGURE_KINDS, PipelineTable
from greentrain.simulator.pipeline.table_sources import read_table, table_of_run, with_engine
from greentrain.simulator.pipeline.what_if import batch_sized
from greentrain.types import S_PER_YEAR
from greentrain.utils.quantities import SourcedNumber, SourceKind
from greentrain.utils.validation import bound, choice


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """Rollouts of a step, as passes see them."""

    sequences: int
    length: int
    """Tokens of each, prompt included."""

    def __post_init__(self) -> None:
        if self.sequences < 1 or self.length < 1:
            raise ConfigError(f"{self.sequences} rollouts of {self.length} tokens: both are at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardBound:
    """The least time of a pass on one card, whatever the design: each of both is a floor."""

    dsp_s: float
    """Every slice that a design may use, multiplying in every clock (s)."""
    memory_s: float
    """The weights read once at the memory's peak (s)."""
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """The most tokens a second."""
        return self.tokens / max(self.dsp_s, self.memory_s)


def card_figures(
    subject: Subject, card: CardSpec, work: RolloutBatch, precision: str = "int8"
) -> tuple[SourcedNumber, SourcedNumber]:
    """Return seconds and watts of a pass on one card, modelled.

    Args:
        subject: The model.
        card: Card with all of its constants.
        work: Rollouts.
        precision: Precision on the card, named as by ``greentrain fpga explore``.

    Raises:
        ConfigError: The card lacks a constant, or has no room for the model; or the rollouts are too long for it.
    """
    check_card(card)
    if work.length > subject.program.max_tokens:
        raise ConfigError(
            f"{subject.name} takes {subject.program.max_tokens} tokens at most, and rollouts have {work.length}"
        )
    program = compiled_to(subject.program, precision)
    wave = most_sequences(program, work.length, int(card.value("memory_bytes")), work.sequences)
    if not wave:
        raise ConfigError(f"{subject.name} in {precision} has no room on a {card.name}: leave it on the GPUs")
    run = in_waves(program, card, sequence=work.length, wave=wave, sequences=work.sequences)
    assumed = [name for name in CONSTANTS if name in card.constants and card.kind(name) == "assumed"]
    source = f"roofline model of {subject.name}, {precision}, on a {card.name}, bound by {run.bound}"
    source += f"; assumed: {', '.join(assumed)}" if assumed else ""
    return (
        SourcedNumber(value=run.run_s, unit="s", kind=SourceKind.MODELLED, source=source),
        SourcedNumber(value=run.energy_j / run.run_s, unit="W", kind=SourceKind.MODELLED, source=source),
    )


def card_bound(subject: Subject, card: CardSpec, work: RolloutBatch) -> CardBound:
    """Return the floors of a pass in INT8: what the card's slices and its memory cannot undercut.

    Raises:
        ConfigError: The card's clock or another constant is not known.
    """
    program = compiled_to(subject.program, "int8")
    whole = card.with_(dsp_share=1.0)
    macs = count(program, BatchLayout.equal(work.sequences, work.length)).macs
    products = [op for op in program.ops if isinstance(op, Linear | LogProb)]
    weights = sum(op.x.width * (op.outputs if isinstance(op, Linear) else op.vocabulary) for op in products)
    return CardBound(
        dsp_s=macs / peak_macs_per_s(whole, 8),
        memory_s=weights / card.value("memory_bytes_per_s"),
        tokens=work.sequences * work.length,
    )


def gpu_figures(
    subject: Subject, gpu: str, gpus: int, work: RolloutBatch, mfu: float | None = None
) -> tuple[SourcedNumber, SourcedNumber]:
    """Return seconds of all GPUs and watts of one for a pass, by its data sheet.

    Raises:
        ConfigError: There is no such GPU, or ``mfu`` is no share.
    """
    row = computed(gpu_named(gpu), subject.program, work.length, mfu)
    source = f"{subject.name} on {row.name}: {row.how}"
    seconds = work.sequences * work.length / row.tokens_per_s / gpus
    return (
        SourcedNumber(value=seconds, unit="s", kind=SourceKind.MODELLED, source=source),
        SourcedNumber(value=row.power_w, unit="W", kind=SourceKind.MODELLED, source=source),
    )


def with_models(
    table: PipelineTable,
    models: Mapping[Stage, Subject],
    card: CardSpec,
    work: RolloutBatch,
    *,
    precision: str = "int8",
    gpu: str | None = None,
    mfu: float | None = None,
) -> PipelineTable:
    """Return the table with passes of given models on a card.

    Args:
        table: Table with what all other stages take.
        models: Model of each stage.
        card: Card with all of its constants.
        work: Rollouts of a step.
        precision: Precision on the card.
        gpu: Model the same passes on this GPU too, so that both sides run the same models; None: the table's own
            times of the GPU stay, and are taken to be of these models.
        mfu: Share of its peak that the GPU reaches; None: assumed.

    Raises:
        ConfigError: As :func:`card_figures` and :func:`gpu_figures`, or the step has no such stage.
    """
    rows = dict(table.rows)
    for stage, subject in models.items():
        if gpu is not None and stage in rows:
            gpu_s, gpu_w = gpu_figures(subject, gpu, table.gpus, work, mfu)
            rows[stage] = dataclasses.replace(rows[stage], gpu_s=gpu_s, gpu_w=gpu_w)
    passes = {stage: card_figures(subject, card, work, precision) for stage, subject in models.items()}
    floors = [_floor(stage, subject, card, work) for stage, subject in models.items()] if precision == "int8" else []
    idle_w = card.constant("idle_power_w")
    if idle_w.kind is SourceKind.DATASHEET:
        idle_w = dataclasses.replace(idle_w, kind=SourceKind.MODELLED)
    return dataclasses.replace(table, rows=rows).with_card(
        passes, card=card.name, card_idle_w=idle_w, notes=(*table.notes, *floors)
    )


def _floor(stage: Stage, subject: Subject, card: CardSpec, work: RolloutBatch) -> str:
    least = card_bound(subject, card, work)
    return (
        f"No design takes less for {stage} ({subject.name}) on one {card.name} than {least.dsp_s:.3g} s, every DSP "
        f"slice in every clock at {card.value('clock_hz') / 1e6:g} MHz, nor than {least.memory_s:.3g} s to read the "
        f"weights once: {least.tokens_per_s:,.0f} tokens/s at most."
    )


FILES: Final = (".yaml", ".yml", ".csv")
GIVEN: Final = "given by the user"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInputs:
    """What was asked for."""

    table: str
    """``published``, a file or a run folder."""
    tokens: float | None = None
    slowdown: float | None = None
    """A card that takes so many times the GPUs' time."""
    engine: Path | None = None
    """Statistics of an engine (JSON)."""
    card: str | None = None
    """A card to model passes on."""
    models: Mapping[Stage, str] = field(default_factory=dict)
    sequences: int | None = None
    length: int | None = None
    precision: str = "int8"
    given: Sequence[str] = ()
    """Constants of the card."""
    assume: bool = False
    gpu: str | None = None
    """Model the same passes on this GPU too."""
    mfu: float | None = None
    card_w: str | None = None
    card_idle_w: str | None = None
    gpu_idle_w: str | None = None
    micro_batches: int | None = None
    batch: float = 1.0
    """So many times the rollouts of the table."""


def open_table(wanted: PipelineInputs) -> PipelineTable:
    """Return the table.

    Raises:
        ConfigError: Something is missing or contradicts something else; the message says what to give.
        RunFolderError: The run folder cannot be read.
    """
    for option, number in (("--tokens", wanted.tokens), ("--sequences", wanted.sequences), ("--length", wanted.length)):
        if number is not None:
            bound(option, number, 1e-9 if option == "--tokens" else 1, 1e15)
    table = _base(wanted)
    if wanted.card is not None:  # the model of the card is asked for the larger batch
        table = batch_sized(table, wanted.batch)
    changed: dict[str, Any] = {}
    if wanted.micro_batches is not None:
        bound("--micro-batches", wanted.micro_batches, 1, MOST_PARTS)
        changed["micro_batches"] = wanted.micro_batches
    if wanted.gpu_idle_w is not None:
        changed["gpu_idle_w"] = watts("--gpu-idle-w", wanted.gpu_idle_w)
    table = _with_card(dataclasses.replace(table, **changed), wanted)
    if wanted.card_idle_w is not None:
        table = dataclasses.replace(table, card_idle_w=watts("--card-idle-w", wanted.card_idle_w))
    if wanted.card_w is not None:
        busy_w = watts("--card-w", wanted.card_w)
        rows = {
            stage: dataclasses.replace(row, card_w=busy_w) if row.card_s is not None else row
            for stage, row in table.rows.items()
        }
        table = dataclasses.replace(table, rows=rows)
    return table if wanted.card is not None else batch_sized(table, wanted.batch)


def open_grid(grid: str | None, pue: float = 1.0) -> GridIntensity:
    """Return what a joule emits: a number of g/kWh, or the mean of a zone's typical year; None: unknown.

    Raises:
        ConfigError: It is neither, or the PUE is no PUE.
    """
    bound("--pue", pue, 1.0, 10.0)
    if grid is None:
        return GridIntensity(pue=pue)
    try:
        value = float(grid)
    except ValueError:
        return _zone(grid, pue)
    bound("--grid", value, 0, 2000)
    return GridIntensity(g_per_kwh=value, pue=pue, source=f"{value:g} g/kWh, {GIVEN}")


def open_footprint(table: PipelineTable, given: str | None) -> CardFootprint | None:
    """Return the embodied carbon of the table's card: given, of the table, or of the table of devices.

    Raises:
        ConfigError: What was given is no figure, or three that are not in order.
    """
    if given is not None:
        try:
            return footprint(table.card, [float(word) for word in given.split(",")])
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"--embodied-kg is {given!r}; give one figure, or low,mid,high (kg)") from None
    if table.embodied_kg is not None:
        low, mid, high = table.embodied_kg
        return CardFootprint(low_kg=low, mid_kg=mid, high_kg=high, source=table.embodied_source)
    return footprint(table.card)


def watts(option: str, text: str) -> SourcedNumber:
    """Return ``75`` or ``75:measured`` as a figure.

    Raises:
        ConfigError: It is neither.
    """
    number, _, kind = text.partition(":")
    try:
        value = float(number)
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; write watts, as in 75, or 75:measured") from None
    bound(option, value, 0, 1e6)
    choice(f"{option}: kind", kind or SourceKind.ASSUMED, FIGURE_KINDS)
    return SourcedNumber(value=value, unit="W", kind=SourceKind(kind or SourceKind.ASSUMED), source=GIVEN)


def _base(wanted: PipelineInputs) -> PipelineTable:
    path = Path(wanted.table)
    if wanted.table == NAME and not path.exists():
        table = published()
        return table if wanted.tokens is None else dataclasses.replace(table, tokens=wanted.tokens)
    if path.is_dir():
        return table_of_run(path, tokens=wanted.tokens)
    if path.suffix.lower() in FILES:
        return read_table(path, tokens=wanted.tokens)
    raise ConfigError(
        f"{wanted.table!r} is no run folder, no {', '.join(FILES)} file, and not {NAME!r}: name the table of stages"
    )


def _with_card(table: PipelineTable, wanted: PipelineInputs) -> PipelineTable:
    ways = {
        "--slowdown": wanted.slowdown is not None,
        "--engine": wanted.engine is not None,
        "--card": wanted.card is not None,
    }
    named_ways = [option for option, used in ways.items() if used]
    if len(named_ways) > 1:
        raise ConfigError(f"{' and '.join(named_ways)} each say what the card takes: give one of them")
    if wanted.models and wanted.card is None:
        raise ConfigError("models are given but no card to model them on: add --card U55C")
    if wanted.slowdown is not None:
        bound("--slowdown", wanted.slowdown, 1e-6, 1e6)
        return table.slowed(wanted.slowdown)
    if wanted.engine is not None:
        return with_engine(table, _json(wanted.engine), str(wanted.engine))
    if wanted.card is not None:
        return _modelled(table, wanted)
    if table.offloadable or wanted.table != NAME:
        return _checked(table)
    note = "The published table has no card: one as fast as the GPUs is assumed (--slowdown, or --card with models)."
    return dataclasses.replace(table.slowed(1.0), notes=(*table.notes, note))


def _checked(table: PipelineTable) -> PipelineTable:
    if not table.offloadable:
        there = [str(stage) for stage in MOVABLE if stage in table.rows]
        raise ConfigError(
            f"{table.name} says of no pass what it takes on a card (passes: {', '.join(there) or 'none'}): give card_s "
            "in the file, or --slowdown, --engine, or --card with --reward-model"
        )
    return table


def _modelled(table: PipelineTable, wanted: PipelineInputs) -> PipelineTable:
    if not wanted.models:
        raise ConfigError("--card needs to know what runs on it: --reward-model, --reference-model (minilm, a folder)")
    choice("--precision", wanted.precision, tuple(PRECISIONS))
    sequences = table.sequences if wanted.sequences is None else max(1, round(wanted.sequences * wanted.batch))
    if sequences is None:
        raise ConfigError(f"{table.name} does not say how many rollouts a step has: give --sequences")
    length = wanted.length or round(table.tokens / sequences)
    card = named(wanted.card or "")
    for text in wanted.given:
        card = card.given(text.removeprefix(f"{card.name}."))
    subjects = {
        stage: open_subject(model, head="logprob" if stage is Stage.REFERENCE else "score")
        for stage, model in wanted.models.items()
    }
    return with_models(
        table,
        subjects,
        assume(card) if wanted.assume else card,
        RolloutBatch(sequences=sequences, length=length),
        precision=wanted.precision,
        gpu=wanted.gpu,
        mfu=wanted.mfu,
    )


def _zone(zone: str, pue: float) -> GridIntensity:
    try:
        year = TypicalSignal(zone)
        now_s = time.time()
        mean = year.mean(now_s, now_s + S_PER_YEAR)
    except CarbonSignalError as error:
        raise ConfigError(f"--grid: {error}") from error
    return GridIntensity(g_per_kwh=mean.g_per_kwh, pue=pue, source=f"mean of the typical year of {zone}")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
