"""Ways to split a training run over devices, many at once, and the bytes that each needs on its fullest device.

A sequence is not split (context parallelism). Only the total parameters of a mixture count for its memory: every expert
lies in some device's memory, met by a token or not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from greentrain.errors import ConfigError
from greentrain.estimate.hardware import Accelerator, Practice
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.values import Assumption
from greentrain.estimate.workload import Workload
from greentrain.types import Gear
from greentrain.utils.quantities import SourceKind

Ints = npt.NDArray[np.int64]
WIDEST_TENSOR: Final = 64
MICRO: Final = (1, 2, 4, 8)
ZERO: Final = (0, 1, 2, 3)
INTERLEAVE: Final = (1, 2, 3, 4, 8)


class Recompute(IntEnum):
    """What the backward pass computes again instead of keeping it."""

    SELECTIVE = 0
    """Attention's scores (arXiv 2205.05198, section 5)."""
    LIGHT = 1
    """Norms and activation functions too: little work, a third of the memory."""
    FULL = 2
    """Whole layers, from their inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """One way: ``tensor * pipeline * data`` devices."""

    tensor: int
    """Devices that share each layer; with sequence parallelism between its products."""
    pipeline: int
    """Stages of layers."""
    data: int
    """Replicas of the batch."""
    expert: int = 1
    """Devices, out of ``tensor * data``, over which the experts of a layer are spread."""
    zero: int = 0
    """What replicas share out: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too (arXiv 1910.02054)."""
    micro: int = 1
    """Sequences of a micro-batch."""
    recompute: Recompute = Recompute.SELECTIVE
    interleave: int = 1
    """Pieces of the model on each stage."""

    @property
    def count(self) -> int:
        """Devices."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        """Return it in one line."""
        return (
            f"tp={self.tensor} pp={self.pipeline} dp={self.data} ep={self.expert} zero={self.zero} "
            f"micro={self.micro} recompute={self.recompute.name.lower()} interleave={self.interleave}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Many ways: one array a key of :class:`Layout`, all of one length."""

    tensor: Ints
    pipeline: Ints
    data: Ints
    expert: Ints
    zero: Ints
    micro: Ints
    recompute: Ints
    interleave: Ints

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.tensor)

    @property
    def count(self) -> Ints:
        """Devices of each."""
        return self.tensor * self.pipeline * self.data

    @classmethod
    def of(cls, given: Sequence[ParallelLayout]) -> Self:
        """Return layouts as arrays."""
        return cls(**{f.name: np.array([getattr(each, f.name) for each in given], np.int64) for f in fields(cls)})

    def take(self, where: npt.NDArray[np.bool_] | Ints) -> Self:
        """Return some of them, by mask or by indices."""
        return type(self)(**{field.name: getattr(self, field.name)[where] for field in fields(self)})

    def at(self, index: int) -> ParallelLayout:
        """Return one of them."""
        found: dict[str, Any] = {field.name: int(getattr(self, field.name)[index]) for field in fields(self)}
        return ParallelLayout(**{**found, "recompute": Recompute(found["recompute"])})

    def micro_batches(self, sequences: int) -> Ints:
        """Return how many micro-batches the replica with the most sequences runs in a step."""
        return _batches(sequences, self.data, self.micro)


def enumerate_layouts(shape: ModelShape, workload: Workload, node: int, counts: Sequence[int]) -> Layouts:
    """Return every way that the shape's divisors allow, for each number of devices.

    Heads divide by tensor, devices by tensor and pipeline, experts and ``tensor * data`` by expert. Layers need not
    divide by stages (Llama 3 405B: 126 by 16), nor the batch by replicas: the largest stage and the fullest replica
    count. ZeRO 2 and 3 go without a pipeline, since each micro-batch would move all gradients.

    Args:
        shape: The model.
        workload: Workload, whose batch is split.
        node: Devices of a fast network: tensor parallelism stays inside.
        counts: Numbers of devices.

    Raises:
        ConfigError: A count is not positive.
    """
    if not len(counts) or min(counts) < 1:
        raise ConfigError(f"devices: {list(counts)}; give at least one number, none below 1")
    table = _splits(shape, node, counts)
    table = _cross(table, "micro", MICRO)
    batches = _batches(workload.sequences, table["data"], np.ones_like(table["data"]))
    table = _keep(table, (table["data"] <= workload.sequences) & (table["micro"] <= batches))
    table = _cross(table, "interleave", INTERLEAVE)
    table = _keep(table, _may_interleave(table, shape, workload))
    table = _cross(table, "zero", ZERO)
    shared = table["data"] * (table["tensor"] if shape.is_moe else 1) > 1
    table = _keep(table, ((table["zero"] == 0) | shared) & ((table["zero"] < 2) | (table["pipeline"] == 1)))
    table = _cross(table, "recompute", tuple(Recompute))
    table = _cross(table, "expert", _divisors(shape.experts) if shape.is_moe else (1,))
    table = _keep(table, table["tensor"] * table["data"] % table["expert"] == 0)
    return Layouts(**table)


def _splits(shape: ModelShape, node: int, counts: Sequence[int]) -> dict[str, Ints]:
    widths = [t for t in _divisors(shape.heads) if node % t == 0 and t <= WIDEST_TENSOR]
    number = np.repeat(np.asarray(counts, np.int64), len(widths))
    table = {"count": number, "tensor": np.tile(np.array(widths, np.int64), len(counts))}
    table = _keep(table, number % table["tensor"] == 0)
    table = _cross(table, "pipeline", range(1, shape.layers + 1))
    per_stage = table["count"] // table["tensor"]
    table = _keep(table, per_stage % table["pipeline"] == 0)
    data = table["count"] // (table["tensor"] * table["pipeline"])
    return {"tensor": table["tensor"], "pipeline": table["pipeline"], "data": data}


def _may_interleave(table: Mapping[str, Ints], shape: ModelShape, workload: Workload) -> npt.NDArray[np.bool_]:
    pipeline, pieces = table["pipeline"], table["interleave"]
    enough = _batches(workload.sequences, table["data"], table["micro"]) >= pipeline
    fits = (pipeline > 1) & (pipeline * pieces <= shape.layers) & enough
    allowed: npt.NDArray[np.bool_] = (pieces == 1) | fits
    return allowed


def _batches(sequences: int, data: Ints, micro: Ints) -> Ints:
    """Return the micro-batches of the replica with the most sequences."""
    most = (sequences + data - 1) // data
    return (most + micro - 1) // micro


def _cross(table: Mapping[str, Ints], name: str, options: Sequence[int]) -> dict[str, Ints]:
    """Return every row with every option."""
    rows = len(next(iter(table.values())))
    crossed = {key: np.repeat(column, len(options)) for key, column in table.items()}
    return {**crossed, name: np.tile(np.array(options, np.int64), rows)}


def _keep(table: Mapping[str, Ints], where: npt.NDArray[np.bool_]) -> dict[str, Ints]:
    return {key: column[where] for key, column in table.items()}


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


Floats = npt.NDArray[np.float64]
WEIGHT_BYTES: Final = 2.0
GRADIENT_BYTES: Final = 4.0
OPTIMIZER_BYTES: Final = 12.0
ACTIVATION_BYTES: Final = 2.0
LOGIT_BYTES: Final = 6.0
"""FP32 logits and their 16-bit gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of the fullest device, by term; arrays of one length."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats
    reserve: Floats
    """Context, libraries, buffers of collectives."""

    @property
    def total(self) -> Floats:
        """Their sum."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.reserve

    def bytes_by_term(self, index: int) -> dict[str, float]:
        """Return the terms of one layout by name."""
        return {field.name: float(getattr(self, field.name)[index]) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Parameters on one device of the fullest stage, before ZeRO shares anything out."""

    shared: Floats
    """Attention, dense perceptrons, embedding: the same on every replica."""
    experts: Floats
    """Routed experts: the same on ``tensor * data / expert`` devices."""
    shared_group: Floats
    experts_group: Floats

    @property
    def all(self) -> Floats:
        """Both."""
        return self.shared + self.experts


def held(shape: ModelShape, layouts: Layouts) -> Held:
    """Return the parameters that a device of the fullest stage holds."""
    depth = stage_layers(shape, layouts)
    ends = np.where((layouts.pipeline == 1) & (not shape.tied), 2.0, 1.0)
    of_layers = layer_parameters(shape) / layouts.tensor * depth
    return Held(
        shared=of_layers + ends * shape.vocabulary * shape.d_model / layouts.tensor,
        experts=expert_parameters(shape) / shape.layers * depth / layouts.expert,
        shared_group=layouts.data.astype(float),
        experts_group=layouts.tensor * layouts.data / layouts.expert,
    )


def stage_layers(shape: ModelShape, layouts: Layouts) -> Floats:
    """Return how many layers the longest stage has."""
    return np.ceil(shape.layers / layouts.pipeline)


def expert_parameters(shape: ModelShape) -> float:
    """Return the parameters of all routed experts, in all layers."""
    return shape.expert_layers * shape.experts * shape.perceptron_parameters(shape.d_expert)


def layer_parameters(shape: ModelShape) -> float:
    """Return the parameters of an average layer without its routed experts.

    What the makers state beyond the shape (or below it, as where attention is compressed) is spread over the layers.
    """
    rest = shape.total_parameters - expert_parameters(shape) - shape.embedding_parameters
    return max(rest, 0.0) / shape.layers


def activation_bytes_per_token(shape: ModelShape, recompute: Recompute) -> float:
    """Return what an average layer keeps of a token for its backward pass.

    Korthikanti et al., arXiv 2205.05198, section 4, with the shape's own widths: 34 * d_model for a layer of theirs,
    attention computed again. Models with gated perceptrons have no dropout, and no masks to keep.
    """
    if recompute is Recompute.FULL:
        return ACTIVATION_BYTES * shape.d_model
    mask = 0.0 if shape.gated else 1.0 * shape.d_model
    norms = 4.0 * shape.d_model
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inner = 3 if shape.gated else 2
    entering = ACTIVATION_BYTES * shape.d_model
    if recompute is Recompute.LIGHT:
        inner, entering = inner - 1, 0.0
    attention = entering + ACTIVATION_BYTES * 2 * (heads + kv) + mask
    perceptron = entering + ACTIVATION_BYTES * inner * shape.d_ff + mask
    sparse = entering + ACTIVATION_BYTES * inner * shape.d_shared + mask
    sparse += shape.experts_per_token * ACTIVATION_BYTES * (2 * shape.d_model + inner * shape.d_expert)
    share = shape.expert_layers / shape.layers
    return attention + norms + (1 - share) * perceptron + share * sparse


def memory(shape: ModelShape, workload: Workload, layouts: Layouts, practice: Practice) -> MemoryUse:
    """Return the bytes on each layout's fullest device: of its first stage, or its last where the head weighs more."""
    weight, gradient, optimizer = (
        (4.0, 4.0, 8.0) if workload.precision is Gear.FP32 else (WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES)
    )
    wide = weight / WEIGHT_BYTES
    on = held(shape, layouts)
    zero = layouts.zero
    sharded = on.shared / on.shared_group + on.experts / on.experts_group
    gathered = 2.0 * on.all / stage_layers(shape, layouts)
    tokens = (layouts.micro * workload.sequence).astype(float)
    a_token = np.array([activation_bytes_per_token(shape, each) for each in Recompute])
    kept = wide * a_token[layouts.recompute] * tokens / layouts.tensor * stage_layers(shape, layouts)
    whole = wide * a_token[Recompute.SELECTIVE] * tokens / layouts.tensor
    at_work = np.where(layouts.recompute == Recompute.FULL, whole, 0.0)
    last = kept + at_work
    first = kept * _in_flight(layouts, workload) + at_work
    logits = wide * LOGIT_BYTES * shape.vocabulary * tokens / layouts.tensor
    head_weighs = (layouts.pipeline == 1) | (last + logits > first)
    return MemoryUse(
        weights=weight * np.where(zero >= 3, sharded + gathered, on.all),
        gradients=gradient * np.where(zero >= 2, sharded, on.all),
        optimizer=optimizer * np.where(zero >= 1, sharded, on.all),
        activations=np.where(head_weighs, last, first),
        logits=np.where(head_weighs, logits, 0.0),
        reserve=np.full(len(layouts), practice.reserve_bytes.value),
    )


def capacity_bytes(accelerator: Accelerator, practice: Practice) -> float:
    """Return what a device has for a run."""
    return accelerator.memory_bytes.value * practice.memory_share.value


def refusal(
    layout: ParallelLayout, terms: Mapping[str, float], accelerator: Accelerator, practice: Practice
) -> ConfigError:
    """Return the error that says what does not fit, and why, by the bytes of each term."""
    largest = max(terms, key=lambda name: terms[name])
    named = ", ".join(f"{name} {value / 1e9:.1f}" for name, value in terms.items())
    return ConfigError(
        f"{layout.count} x {accelerator.name}: the leanest layout ({layout}) needs {sum(terms.values()) / 1e9:.1f} GB "
        f"of {capacity_bytes(accelerator, practice) / 1e9:.1f} GB a device. The largest term is {largest} "
        f"(GB: {named}). {_REMEDY[largest]}"
    )


def assumptions() -> tuple[Assumption, ...]:
    """Return the bytes a parameter that are taken for granted."""
    source = "mixed precision as Megatron-LM keeps it: 16-bit weights, FP32 gradients, FP32 weights and two moments"
    value = f"{WEIGHT_BYTES:g} + {GRADIENT_BYTES:g} + {OPTIMIZER_BYTES:g} bytes"
    return (Assumption(name="memory.bytes_per_parameter", value=value, source=source, kind=SourceKind.ASSUMED),)


def _in_flight(layouts: Layouts, workload: Workload) -> Floats:
    """Return how many micro-batches the first stage holds at a time (1F1B; arXiv 2104.04473, section 2.2)."""
    stages, pieces = layouts.pipeline, layouts.interleave
    deep = stages * np.where(pieces > 1, 1.0 + (stages - 1) / (stages * pieces), 1.0)
    return np.minimum(deep, layouts.micro_batches(workload.sequences))


_REMEDY: Final = {
    "weights": "Give more devices, or devices with more memory",
    "gradients": "Give more devices, or devices with more memory",
    "optimizer": "Give more devices, or devices with more memory",
    "activations": "Give shorter sequences, more devices, or devices with more memory",
    "logits": "Give shorter sequences, more devices, or devices with more memory",
    "reserve": "Give devices with more memory",
}
