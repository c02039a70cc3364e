"""Ways to split a training run over devices, many at once. A sequence is not split (context parallelism)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from greentrain.errors import ConfigError
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.workload import Workload

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
        return ParallelLayout(
            tensor=int(self.tensor[index]),
            pipeline=int(self.pipeline[index]),
            data=int(self.data[index]),
            expert=int(self.expert[index]),
            zero=int(self.zero[index]),
            micro=int(self.micro[index]),
            recompute=Recompute(int(self.recompute[index])),
            interleave=int(self.interleave[index]),
        )

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
        workload: Its batch.
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
