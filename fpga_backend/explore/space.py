"""The design space of a model on cards: precision x batch x sequence x card x number of cards.

The model is a compiled one, a model folder, or a configuration known by name. A batch that is
too large for a card's memory runs in waves.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.fpga_backend.program import Precision, Program, with_activation_bits
from greentrain.fpga_backend.roofline.cards import CardSpec
from greentrain.fpga_backend.roofline.counts import BatchLayout, footprint
from greentrain.fpga_backend.roofline.cycles import KERNEL_CARD
from greentrain.fpga_backend.roofline.latency import Bound, service
from greentrain.fpga_backend.roofline.shape import Head, program_of
from greentrain.utils.files import packaged_toml
from greentrain.utils.validation import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRun:
    """A card's share of a batch, modelled."""

    run_s: float
    energy_j: float
    assumed_j: float
    bound: Bound | None


def in_waves(
    program: Program, card: CardSpec, *, sequence: int, wave: int, sequences: int, kernels: bool = False
) -> GroupRun:
    """Return what a card takes for so many sequences, in waves one after the other.

    Args:
        program: Compiled, or built from a configuration.
        card: Card with all constants that the model needs.
        sequence: Length of each sequence (tokens).
        wave: Sequences at a time.
        sequences: Sequences in all.
        kernels: Whether on the kernels of ``hls/``, not an ideal array.
    """
    full, rest = divmod(sequences, wave)
    waves = ((full, wave), (1 if rest else 0, rest))
    parts = [
        (number, service(program, BatchLayout.equal(size, sequence), card, kernels=kernels))
        for number, size in waves
        if number
    ]
    return GroupRun(
        run_s=sum(number * found.run_s for number, found in parts),
        energy_j=sum(number * found.energy_j for number, found in parts),
        assumed_j=sum(number * found.assumed_j for number, found in parts),
        bound=parts[0][1].bound if parts else None,
    )


def most_sequences(program: Program, sequence: int, room_bytes: int, wanted: int) -> int:
    """Return how many sequences a card has room for beside the weights, up to ``wanted``; 0: not even one."""
    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if footprint(program, BatchLayout.equal(middle, sequence)).total_bytes <= room_bytes:
            low = middle
        else:
            high = middle - 1
    return low


PRECISIONS: Mapping[str, Precision] = {
    "kernel": "w8a8",
    "kernel-a16": "w8a8",
    "fp16": "fp16",
    "int8": "w8a8",
    "int8a16": "w8a8",
    "int4": "w4a16",
}
"""What they are compiled to. ``kernel`` and ``kernel-a16`` are int8 and int8a16 on the kernels of ``hls/``, the others
an ideal array. ``int8a16`` has activations of 16 bits: each product is two of 8 bits. ``int4`` is of
weights only: products are of 16 bits."""
RANKED: Mapping[str, Precision] = {**PRECISIONS, "bf16": "bf16", "w8a16": "w8a16"}
"""Those whose ranks can be measured: also the two that have no model of a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignPoint:
    """One design and one batch. Times and joules are modelled."""

    card: str
    cards: int
    wave: int
    """Sequences of a card at a time: fewer than its share where their registers have no room, 0 where not
    even one has."""
    precision: str
    batch: int
    sequence: int
    need_bytes: int
    """Weights and registers on each card."""
    memory_bytes: int
    fits: bool
    reason: str = ""
    """Why it cannot run."""
    tokens_per_s: float | None = None
    power_w: float | None = None
    """Of all cards, those that wait for the others included."""
    j_per_token: float | None = None
    bound: Bound | None = None
    assumed_share: float | None = None
    """Share of the joules that rests on assumed constants."""
    flip_rate: float | None = None
    """Measured rank flips against FP32; None: not measured."""


def explore(
    program: Program,
    *,
    cards: Sequence[CardSpec],
    precisions: Sequence[str],
    batches: Sequence[int],
    sequences: Sequence[int],
    numbers: Sequence[int],
    flip_rates: Mapping[str, float] | None = None,
) -> tuple[DesignPoint, ...]:
    """Return all points.

    Args:
        program: Program in any precision.
        cards: Cards with all constants that the model needs.
        precisions: Keys of ``PRECISIONS``.
        batches: Sizes of batches (sequences), over all cards.
        sequences: Lengths of sequences (tokens).
        numbers: Numbers of cards.
        flip_rates: Measured rates of rank flips against FP32, by precision.

    Raises:
        ConfigError: A card lacks a constant.
        BatchError: A batch or a sequence is below 1.
    """
    rates = flip_rates or {}
    return tuple(
        dataclasses.replace(_point(program, card, number, precision, batch, sequence), flip_rate=rates.get(precision))
        for card, precision, sequence, batch, number in itertools.product(
            cards, precisions, sequences, batches, numbers
        )
    )


def compiled_to(program: Program, precision: str) -> Program:
    """Return a program in a precision of ``RANKED``."""
    compiled = dataclasses.replace(program, precision=RANKED[precision])
    return with_activation_bits(compiled, 16 if precision.endswith("a16") and RANKED[precision] == "w8a8" else 8)


def _point(program: Program, card: CardSpec, cards: int, precision: str, batch: int, sequence: int) -> DesignPoint:
    compiled = compiled_to(program, precision)
    room = int(card.value("memory_bytes"))
    wave = most_sequences(compiled, sequence, room, math.ceil(batch / cards))
    need_bytes = footprint(compiled, BatchLayout.equal(max(wave, 1), sequence)).total_bytes
    reason = ""
    if sequence > program.max_tokens:
        reason = f"the model takes {program.max_tokens} tokens at most"
    elif precision.startswith("kernel") and card.name != KERNEL_CARD:
        reason = f"the kernels are laid out for a {KERNEL_CARD}"
    elif not wave:
        reason = f"one sequence needs {need_bytes / 1e9:.1f} GB of {room / 1e9:.1f} GB a card"
    point = DesignPoint(
        card=card.name,
        cards=cards,
        wave=wave,
        precision=precision,
        batch=batch,
        sequence=sequence,
        need_bytes=need_bytes,
        memory_bytes=room,
        fits=not reason,
        reason=reason,
    )
    return point if reason else _served(point, compiled, card)


def _served(point: DesignPoint, program: Program, card: CardSpec) -> DesignPoint:
    """Return the point with time and energy: cards take equal shares of the batch, the rest one less.

    Cards that have nothing to do, or are done before the others, draw idle power.
    """
    low, more = divmod(point.batch, point.cards)
    kernels = point.precision.startswith("kernel")
    runs = [
        (number, in_waves(program, card, sequence=point.sequence, wave=point.wave, sequences=share, kernels=kernels))
        for number, share in ((more, low + 1), (point.cards - more, low))
    ]
    run_s = max(run.run_s for number, run in runs if number)
    energy_j = sum(number * run.energy_j for number, run in runs)
    assumed_j = sum(number * run.assumed_j for number, run in runs)
    busy_s = sum(number * run.run_s for number, run in runs)
    idle_j = (point.cards * run_s - busy_s) * card.value("idle_power_w")
    energy_j += idle_j
    assumed_j += idle_j if card.kind("idle_power_w") == "assumed" else 0.0
    tokens = point.batch * point.sequence
    return dataclasses.replace(
        point,
        tokens_per_s=tokens / run_s,
        power_w=energy_j / run_s,
        j_per_token=energy_j / tokens,
        bound=runs[0][1].bound if more else runs[1][1].bound,
        assumed_share=assumed_j / energy_j,
    )


PRESETS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    name: (row["repository"], row["config"])
    for name, row in packaged_toml("greentrain.fpga_backend.explore", "models.toml").items()
}
"""Repository and configuration of known models, by name."""
MANIFEST = "artifact.json"
CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to explore."""

    name: str
    source: str
    """Where its shape is from."""
    program: Program
    folder: Path | None = None
    """Where its weights may be: a model folder."""


def open_subject(model: str, *, head: Head = "score", max_tokens: int | None = None) -> Subject:
    """Find a model.

    Args:
        model: A folder with ``artifact.json`` or ``config.json``, or a name of ``PRESETS``.
        head: Head that is asked for; a compiled model has its own.
        max_tokens: Longest sequence; None: what the model allows. Rotary tables have that length.

    Raises:
        ConfigError: It is neither.
        ArtifactError: The compiled model cannot be read.
        UnsupportedModelError: A configuration that cannot be compiled.
    """
    folder = Path(model)
    if (folder / MANIFEST).is_file():
        program = Program.from_json(json.dumps(_json(folder / MANIFEST).get("program")))
        if max_tokens is not None:
            program = dataclasses.replace(program, max_tokens=min(max_tokens, program.max_tokens))
        return Subject(name=folder.name, source=f"compiled model {folder / MANIFEST}", program=program)
    if (folder / CONFIG).is_file():
        program = program_of(_json(folder / CONFIG), head=head, max_tokens=max_tokens)
        return Subject(name=folder.name, source=f"{folder / CONFIG}", program=program, folder=folder)
    if model in PRESETS:
        repository, config = PRESETS[model]
        program = program_of(config, head=head, max_tokens=max_tokens)
        return Subject(name=model, source=f"configuration of {repository}", program=program)
    raise ConfigError(
        f"{model!r} is no folder with {MANIFEST} or {CONFIG}, and no known name; known: {', '.join(PRESETS)}"
        f"{nearest(model, PRESETS)}"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return found
