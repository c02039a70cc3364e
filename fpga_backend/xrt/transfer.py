"""How models, batches and results lie in shared memory."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.xrt.shared import Region, aligned

HEAD_BYTES = 8
"""A model begins with the length of its description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What of an artifact a card needs; the process that has it needs no torch."""

    program: Program
    tensors: Mapping[str, npt.NDArray[Any]]
    digest: str


def put_model(program: Program, tensors: Mapping[str, npt.NDArray[Any]], digest: str) -> Region:
    """Return shared memory that holds a model."""
    table, offset = {}, 0
    for name, tensor in tensors.items():
        table[name] = (tensor.dtype.str, tensor.shape, offset)
        offset += aligned(tensor.nbytes)
    text = json.dumps({"program": program.to_json(), "tensors": table, "digest": digest}).encode()
    start = aligned(HEAD_BYTES + len(text))
    region = Region.of(start + offset)
    region.array(np.int64, 1, 0)[0] = len(text)
    region.array(np.uint8, len(text), HEAD_BYTES)[:] = np.frombuffer(text, np.uint8)
    for name, tensor in tensors.items():
        region.array(tensor.dtype, tensor.size, start + table[name][2])[:] = tensor.reshape(-1)
    return region


def get_model(region: Region) -> Weights:
    """Return the model in shared memory; its tensors are views."""
    size = int(region.array(np.int64, 1, 0)[0])
    found = json.loads(region.array(np.uint8, size, HEAD_BYTES).tobytes())
    start = aligned(HEAD_BYTES + size)
    tensors = {
        name: region.array(np.dtype(kind), int(np.prod(shape, dtype=np.int64)), start + offset).reshape(shape)
        for name, (kind, shape, offset) in found["tensors"].items()
    }
    return Weights(program=Program.from_json(found["program"]), tensors=tensors, digest=found["digest"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Where a batch and its answer lie in a region."""

    sequences: int
    tokens: int
    types: bool
    prompts: bool
    values: int
    """Numbers of the answer."""

    @classmethod
    def of(cls, batch: Batch, program: Program) -> "Shape":
        """Return the shape of a batch."""
        return cls(
            sequences=len(batch.ids),
            tokens=batch.tokens,
            types=batch.types is not None,
            prompts=batch.prompt_tokens is not None,
            values=len(batch.ids) * program.labels if program.labels else sum(targets(batch)),
        )

    @property
    def rows(self) -> tuple[int, ...]:
        """Numbers of each array of the batch: lengths, prompts, ids, types."""
        return (
            self.sequences,
            self.sequences * self.prompts,
            self.tokens,
            self.tokens * self.types,
        )

    @property
    def answer(self) -> int:
        """Offset of the answer (bytes)."""
        return aligned(4 * sum(self.rows))

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.answer + 4 * self.values


def targets(batch: Batch) -> list[int]:
    """Return how many log-probabilities each sequence gets."""
    prompts: Sequence[int] = batch.prompt_tokens or (1,) * len(batch.ids)
    return [len(ids) - max(prompt, 1) if len(ids) else 0 for ids, prompt in zip(batch.ids, prompts, strict=True)]


def put_batch(batch: Batch, shape: Shape, region: Region) -> None:
    """Write a batch."""
    lengths, prompts, ids, types = _views(shape, region)
    lengths[:] = [len(row) for row in batch.ids]
    if batch.prompt_tokens is not None:
        prompts[:] = batch.prompt_tokens
    np.concatenate(batch.ids, out=ids)
    if batch.types is not None:
        np.concatenate(batch.types, out=types)


def get_batch(shape: Shape, region: Region) -> Batch:
    """Return the batch, copied."""
    lengths, prompts, ids, types = _views(shape, region)
    cuts = np.cumsum(lengths)[:-1]
    return Batch(
        ids=tuple(np.split(ids.copy(), cuts)),
        types=tuple(np.split(types.copy(), cuts)) if shape.types else None,
        prompt_tokens=tuple(prompts.tolist()) if shape.prompts else None,
    )


def put_result(result: Result, shape: Shape, region: Region) -> None:
    """Write the numbers of an answer.

    Raises:
        ValueError: They are not as many as the batch asks for.
    """
    if result.scores is not None:
        found = result.scores.reshape(-1)
    else:
        found = np.concatenate([np.empty(0, np.float32), *(result.logprobs or ())])
    region.array(np.float32, shape.values, shape.answer)[:] = found


def get_result(batch: Batch, program: Program, shape: Shape, region: Region, reply: Mapping[str, Any]) -> Result:
    """Return the answer, copied."""
    values = region.array(np.float32, shape.values, shape.answer).copy()
    scores = logprobs = None
    if program.labels:
        scores = values.reshape(shape.sequences, program.labels)
    else:
        logprobs = tuple(np.split(values, np.cumsum(targets(batch))[:-1]))
    return Result(
        scores=scores, logprobs=logprobs, run_s=reply["run_s"], rows=reply["rows"], notes=tuple(reply["notes"])
    )


def _views(shape: Shape, region: Region) -> list[npt.NDArray[np.int32]]:
    found, offset = [], 0
    for count in shape.rows:
        found.append(region.array(np.int32, count, offset))
        offset += 4 * count
    return found
