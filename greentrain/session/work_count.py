"""What of the tokens and samples that a loop tells this rank books: all of them, or its share of a batch.

Data-parallel ranks have batches of their own. The ranks of one tensor-, pipeline- or context-parallel group work on
the same batch, and each is told the whole of it: summed over journals, every token would be there once a rank. So
each of the ``ranks`` that share a batch books, of the n tokens told since the start, what its ``index`` says::

    floor((n + index) / ranks)          sum over index = 0 ... ranks - 1:  n

(Hermite's identity, https://en.wikipedia.org/wiki/Hermite%27s_identity), so that the sum over ranks is exact after
every step, however ragged the batches are, and every rank's own figures are its part of the job's.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.types import Topology
from greentrain.utils.never_raise import never_raises

OWN: Final = ("dp", "ddp", "fsdp", "hsdp", "data", "replicate", "shard", "ep", "expert")
"""First words of the mesh dimensions along which ranks have batches of their own: torchtitan (dp_replicate, dp_shard),
Lightning (data_parallel), Accelerate (dp_replicate, dp_shard), FSDP's replicate and shard. Read 2026-11-22."""
SHARED: Final = ("tp", "tensor", "model", "pp", "pipe", "pipeline", "cp", "context", "sp", "sequence")
"""The same, of those along which they work on one batch: tp, tensor_parallel, pp, cp, sp, ..."""


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Place of a rank among those that work on the same batch."""

    index: int = 0
    ranks: int = 1

    @classmethod
    def of(cls, source: Any, place: Topology) -> "BatchGroup":
        """Return the group that a user or a framework states.

        Args:
            source: (rank, size) among the ranks with batches of their own, or a torch DeviceMesh of the job with named
                dimensions. A pair says of which ranks a group consists where these are neighbours, or as far apart as
                ``size``; where they are neither, sums over ranks are exact to one token a rank.
            place: Place of this process.

        Raises:
            ConfigError: It is neither, or does not fit the job.
        """
        if isinstance(source, BatchGroup):
            return source
        if hasattr(source, "mesh_dim_names"):
            group = cls._of_mesh(source)
            if group is None:
                raise ConfigError(
                    f"data_parallel is a DeviceMesh with the dimensions {source.mesh_dim_names}; name each so that it"
                    f" begins with one of {', '.join(OWN + SHARED)}, or pass (rank, size) of the ranks with batches of"
                    " their own"
                )
            return group
        pair = tuple(source) if isinstance(source, Sequence) else ()
        are_two = len(pair) == 2 and all(isinstance(n, int) for n in pair)
        if not are_two or not 0 <= pair[0] < pair[1] or place.world_size % pair[1]:
            raise ConfigError(
                f"data_parallel is {source!r}; pass (rank, size) of the ranks with batches of their own, 0 <= rank <"
                f" size and {place.world_size} ranks a multiple of size, or a DeviceMesh with named dimensions"
            )
        rank, size = pair
        ranks = place.world_size // size
        neighbours = place.rank // ranks == rank
        return cls(place.rank % ranks if neighbours else place.rank // size, ranks)

    @classmethod
    @never_raises
    def find(cls, model: Any, place: Topology) -> "BatchGroup | None":
        """Return the group that Megatron, a DeepSpeed engine, a DeviceMesh or a model's DTensors state.

        Args:
            model: The model or engine that is watched, or what a framework says: a mesh, or (rank, size); or None.
            place: Place of this process.

        Returns:
            None where nobody says, as where a mesh's dimensions have no names.
        """
        if isinstance(model, tuple):
            return cls.of(model, place)
        if hasattr(model, "mesh_dim_names"):
            return cls._of_mesh(model)
        megatron = sys.modules.get("megatron.core.parallel_state")
        if megatron is not None and megatron.model_parallel_is_initialized():
            return cls._of_ranks(megatron)
        for name in ("mpu", "grid"):  # DeepSpeedEngine and PipelineEngine, deepspeed/runtime
            if hasattr(getattr(model, name, None), "get_data_parallel_world_size"):
                return cls._of_ranks(getattr(model, name))
        if hasattr(model, "dp_world_size") and hasattr(model, "data_parallel_group"):
            rank = sys.modules["torch.distributed"].get_rank(model.data_parallel_group)
            return cls.of((int(rank), int(model.dp_world_size)), place)
        parameters = model.parameters() if hasattr(model, "parameters") else ()
        meshes = (getattr(p, "device_mesh", None) for p in parameters)
        mesh = next((mesh for mesh in meshes if mesh is not None), None)
        return None if mesh is None else cls._of_mesh(mesh)

    @classmethod
    def _of_mesh(cls, mesh: Any) -> "BatchGroup | None":
        root = getattr(mesh, "_get_root_mesh", lambda: mesh)()  # a submesh does not hold the ranks beside it
        at, index, ranks = root.get_coordinate(), 0, 1
        for i, name in enumerate(root.mesh_dim_names or ("",)):
            word = name.lower().split("_")[0]
            if word in SHARED and at is not None:
                index, ranks = index * root.size(i) + at[i], ranks * root.size(i)
            elif word not in OWN:
                return None
        return cls(index, ranks)

    @classmethod
    def _of_ranks(cls, state: Any) -> "BatchGroup":
        """Return what functions named as in megatron/core/parallel_state.py say (also DeepSpeed's grids)."""
        index, ranks = 0, 1
        tensor = "tensor_model" if hasattr(state, "get_tensor_model_parallel_rank") else "model"
        for kind in ("pipeline_model", "pipe", "context", tensor):
            size = getattr(state, f"get_{kind}_parallel_world_size", None)
            if size is not None:
                index = index * size() + getattr(state, f"get_{kind}_parallel_rank")()
                ranks *= size()
        return cls(index, ranks)


class WorkCount:
    """Shares what is told, and keeps tokens and samples apart.

    The first step that tells anything says what a run's work is: tokens, or samples where it told no tokens. A later
    step that does not tell this makes the run ``mixed``: neither its tokens nor its samples are all there are.

    Args:
        place: Place of this process.
        source: What :meth:`BatchGroup.of` takes; None: it is looked for at ``look`` and at the first step.

    Raises:
        ConfigError: The source does not fit the job.
    """

    def __init__(self, place: Topology, source: Any = None) -> None:
        self.group = BatchGroup() if source is None else BatchGroup.of(source, place)
        self.mixed = False
        """True once some steps have told tokens and others samples alone."""
        self.plain = False
        """True while a step that tells tokens books what it told: nobody shares it, and nothing else was counted."""
        self._place, self._open = place, source is None and place.world_size > 1
        self._unit = ""
        self._since_step = self._told = (0, 0)

    def look(self, model: Any = None) -> None:
        """Look for who shares a batch, unless that is known."""
        if self._open and (found := BatchGroup.find(model, self._place)) is not None:
            self.group, self._open, self._told, self.plain = found, False, (0, 0), False

    def count(self, tokens: int, samples: int) -> tuple[int, int]:
        """Return what this rank books of tokens and samples that were told without a step."""
        self.plain = False
        self._since_step = self._since_step[0] + tokens, self._since_step[1] + samples
        if self._open and self._told == (0, 0):
            self.look()
        group, before = self.group, self._told
        self._told = before[0] + tokens, before[1] + samples
        if group.ranks == 1:
            return tokens, samples
        tokens, samples = ((n + group.index) // group.ranks for n in self._told)
        return tokens - (before[0] + group.index) // group.ranks, samples - (before[1] + group.index) // group.ranks

    def step(self, tokens: int, samples: int) -> tuple[int, int]:
        """Return the same for what was told with a step, which it ends."""
        own = self.count(tokens, samples)
        told, self._since_step = self._since_step, (0, 0)
        unit = "tokens" if told[0] else "samples" if told[1] else self._unit
        self.mixed = self.mixed or unit != (self._unit or unit)
        self._unit = self._unit or unit
        self.plain = self._unit == "tokens" and self.group.ranks == 1
        return own

    def own(self, tokens: Any) -> Any:
        """Return the share of this rank in the tokens of one step that is measured; what is no number, as it is."""
        if self.group.ranks == 1 or not isinstance(tokens, int):
            return tokens
        return (tokens + self.group.index) // self.group.ranks

    def progress(self, tokens: int, samples: int) -> tuple[int, int]:
        """Return what of a rank's own count is in the unit of the run: tokens are never added to samples."""
        if self._unit == "samples":
            return 0, samples
        return tokens, samples if tokens else 0
