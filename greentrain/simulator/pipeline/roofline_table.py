"""What passes would take on a card, from the roofline model, and on a GPU, from its data sheet."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from greentrain.errors import ConfigError
from greentrain.fpga_backend.explore.gpu import computed, gpu_named
from greentrain.fpga_backend.explore.group import CardGroup, most_sequences
from greentrain.fpga_backend.explore.space import compiled_to
from greentrain.fpga_backend.explore.subject import Subject
from greentrain.fpga_backend.program import Linear, LogProb
from greentrain.fpga_backend.roofline.card_spec import CONSTANTS, CardSpec
from greentrain.fpga_backend.roofline.counts import count
from greentrain.fpga_backend.roofline.latency import check_card, peak_macs_per_s
from greentrain.fpga_backend.roofline.layout import BatchLayout
from greentrain.policy.offload.stages import Stage
from greentrain.simulator.pipeline.figure import Figure, Origin
from greentrain.simulator.pipeline.table import PipelineTable


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


def card_figures(subject: Subject, card: CardSpec, work: RolloutBatch, precision: str = "int8") -> tuple[Figure, Figure]:
    """Return seconds and watts of a pass on one card, modelled.

    Args:
        subject: The model.
        card: With all constants.
        work: Rollouts.
        precision: As of ``greentrain fpga explore``.

    Raises:
        ConfigError: The card lacks a constant, or has no room for the model; or the rollouts are too long for it.
    """
    check_card(card)
    if work.length > subject.program.max_tokens:
        raise ConfigError(
            f"{subject.name} takes {subject.program.max_tokens} tokens at most, and rollouts have {work.length}"
        )
    program = compiled_to(subject.program, precision)
    wave = most_sequences(program, work.length, int(card.value("memory_bytes")), work.sequences, ways=1)
    if not wave:
        raise ConfigError(f"{subject.name} in {precision} has no room on a {card.name}: leave it on the GPUs")
    run = CardGroup(program=program, card=card, sequence=work.length, ways=1, wave=wave).run(work.sequences)
    assumed = [name for name in CONSTANTS if getattr(card, name) is not None and card.kind(name) == "assumed"]
    source = f"roofline model of {subject.name}, {precision}, on a {card.name}, bound by {run.bound}"
    source += f"; assumed: {', '.join(assumed)}" if assumed else ""
    return (
        Figure(value=run.run_s, origin=Origin.MODELLED, source=source),
        Figure(value=run.energy_j / run.run_s, origin=Origin.MODELLED, source=source),
    )


def card_bound(subject: Subject, card: CardSpec, work: RolloutBatch) -> CardBound:
    """Return the floors of a pass in INT8: what the card's slices and its memory cannot undercut.

    Raises:
        ConfigError: The card's clock or another constant is not known.
    """
    program = compiled_to(subject.program, "int8")
    whole = card.with_(dsp_share=1.0)
    macs = count(program, BatchLayout.equal(work.sequences, work.length)).macs
    products = [(op, op.outputs if isinstance(op, Linear) else op.vocabulary) for op in _products(program.ops)]
    weights = sum(op.x.width * outputs for op, outputs in products)
    return CardBound(
        dsp_s=macs / peak_macs_per_s(whole, 8),
        memory_s=weights / card.value("memory_bytes_per_s"),
        tokens=work.sequences * work.length,
    )


def gpu_figures(subject: Subject, gpu: str, gpus: int, work: RolloutBatch, mfu: float | None = None) -> tuple[Figure, Figure]:
    """Return seconds of all GPUs and watts of one for a pass, by its data sheet.

    Raises:
        ConfigError: There is no such GPU, or ``mfu`` is no share.
    """
    row = computed(gpu_named(gpu), subject.program, work.length, mfu)
    source = f"{subject.name} on {row.name}: {row.how}"
    seconds = work.sequences * work.length / row.tokens_per_s / gpus
    return (
        Figure(value=seconds, origin=Origin.MODELLED, source=source),
        Figure(value=row.power_w, origin=Origin.MODELLED, source=source),
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
        table: What all else takes.
        models: By stage.
        card: With all constants.
        work: Rollouts of a step.
        precision: On the card.
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
    kind = card.kind("idle_power_w")
    idle = Figure(
        value=card.value("idle_power_w"),
        origin=Origin.MEASURED if kind == "measured" else Origin.ASSUMED if kind == "assumed" else Origin.MODELLED,
        source=card.idle_power_w.source if card.idle_power_w is not None else "",
    )
    return dataclasses.replace(table, rows=rows).with_card(
        passes, card=card.name, card_idle_w=idle, notes=(*table.notes, *floors)
    )


def _floor(stage: Stage, subject: Subject, card: CardSpec, work: RolloutBatch) -> str:
    least = card_bound(subject, card, work)
    return (
        f"No design takes less for {stage} ({subject.name}) on one {card.name} than {least.dsp_s:.3g} s, every DSP "
        f"slice in every clock at {card.value('clock_hz') / 1e6:g} MHz, nor than {least.memory_s:.3g} s to read the "
        f"weights once: {least.tokens_per_s:,.0f} tokens/s at most."
    )


def _products(ops: object) -> list[Linear | LogProb]:
    return [op for op in ops if isinstance(op, Linear | LogProb)]  # type: ignore[attr-defined]
