"""How models, batches and results lie in shared memory.

Control messages between the training process and a card's worker: small JSON packets, descriptors beside them.

Memory that two processes share, passed as a file descriptor. It has no name, so nothing can be left over.
"""

import array
import json
import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend import errors
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.program import Program

ALIGNMENT = 64
"""Arrays begin at multiples of this: a beat of the card's memory."""


class SharedRegion:
    """Shared memory.

    Args:
        fd: File descriptor of the memory, which the region owns from now on.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.nbytes = os.fstat(fd).st_size
        self._map: mmap.mmap | None = mmap.mmap(fd, self.nbytes)

    @classmethod
    def of(cls, nbytes: int) -> "SharedRegion":
        """Return new memory, zeros."""
        fd = os.memfd_create("greentrain-xrt", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, max(nbytes, 1))
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    def array(self, dtype: Any, count: int, offset: int) -> npt.NDArray[Any]:
        """Return a view of ``count`` numbers from byte ``offset`` on.

        Raises:
            ValueError: They lie outside, or the region is closed.
        """
        if self._map is None:
            raise ValueError("the shared memory is closed")
        return np.frombuffer(self._map, dtype, count, offset) if count else np.empty(0, dtype)

    def close(self) -> None:
        """Give it back, once the last view is gone. Idempotent."""
        if self._map is not None:
            self._map = None
            os.close(self.fd)


def aligned(nbytes: int) -> int:
    """Return the next multiple of ``ALIGNMENT``."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


HEAD_BYTES = 8
"""A model begins with the length of its description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What of an artifact a card needs; the process that has it needs no torch."""

    program: Program
    tensors: Mapping[str, npt.NDArray[Any]]
    digest: str


def put_model(program: Program, tensors: Mapping[str, npt.NDArray[Any]], digest: str) -> SharedRegion:
    """Return shared memory that holds a model."""
    table, offset = {}, 0
    for name, tensor in tensors.items():
        table[name] = (tensor.dtype.str, tensor.shape, offset)
        offset += aligned(tensor.nbytes)
    text = json.dumps({"program": program.to_json(), "tensors": table, "digest": digest}).encode()
    start = aligned(HEAD_BYTES + len(text))
    region = SharedRegion.of(start + offset)
    region.array(np.int64, 1, 0)[0] = len(text)
    region.array(np.uint8, len(text), HEAD_BYTES)[:] = np.frombuffer(text, np.uint8)
    for name, tensor in tensors.items():
        region.array(tensor.dtype, tensor.size, start + table[name][2])[:] = tensor.reshape(-1)
    return region


def get_model(region: SharedRegion) -> Weights:
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
class BatchShape:
    """Where a batch and its answer lie in a region."""

    sequences: int
    tokens: int
    types: bool
    prompts: bool
    values: int
    """Numbers of the answer."""

    @classmethod
    def of(cls, batch: Batch, program: Program) -> "BatchShape":
        """Return the shape of a batch."""
        return cls(
            sequences=len(batch.ids),
            tokens=batch.tokens,
            types=batch.types is not None,
            prompts=batch.prompt_tokens is not None,
            values=len(batch.ids) * program.labels if program.labels else sum(batch.targets),
        )

    @property
    def rows(self) -> tuple[int, ...]:
        """Numbers of each array of the batch: lengths, prompts, ids, types."""
        return (self.sequences, self.sequences * self.prompts, self.tokens, self.tokens * self.types)

    @property
    def answer(self) -> int:
        """Offset of the answer (bytes)."""
        return aligned(4 * sum(self.rows))

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.answer + 4 * self.values


def put_batch(batch: Batch, shape: BatchShape, region: SharedRegion) -> None:
    """Write a batch."""
    lengths, prompts, ids, types = _views(shape, region)
    lengths[:] = [len(row) for row in batch.ids]
    if batch.prompt_tokens is not None:
        prompts[:] = batch.prompt_tokens
    np.concatenate(batch.ids, out=ids)
    if batch.types is not None:
        np.concatenate(batch.types, out=types)


def get_batch(shape: BatchShape, region: SharedRegion) -> Batch:
    """Return the batch, copied."""
    lengths, prompts, ids, types = _views(shape, region)
    cuts = np.cumsum(lengths)[:-1]
    return Batch(
        ids=tuple(np.split(ids.copy(), cuts)),
        types=tuple(np.split(types.copy(), cuts)) if shape.types else None,
        prompt_tokens=tuple(prompts.tolist()) if shape.prompts else None,
    )


def put_result(result: Result, shape: BatchShape, region: SharedRegion) -> None:
    """Write the numbers of an answer.

    Raises:
        ValueError: They are not as many as the batch asks for.
    """
    if result.scores is not None:
        found = result.scores.reshape(-1)
    else:
        found = np.concatenate([np.empty(0, np.float32), *(result.logprobs or ())])
    region.array(np.float32, shape.values, shape.answer)[:] = found


def get_result(
    batch: Batch, program: Program, shape: BatchShape, region: SharedRegion, reply: Mapping[str, Any]
) -> Result:
    """Return the answer, copied."""
    values = region.array(np.float32, shape.values, shape.answer).copy()
    if program.labels:
        values = values.reshape(shape.sequences, program.labels)
    made = Result.of(values, batch.targets, labels=program.labels, rows=reply["rows"], run_s=reply["run_s"])
    return replace(made, notes=tuple(reply["notes"]))


def _views(shape: BatchShape, region: SharedRegion) -> list[npt.NDArray[np.int32]]:
    found, offset = [], 0
    for count in shape.rows:
        found.append(region.array(np.int32, count, offset))
        offset += 4 * count
    return found


PACKET_BYTES = 65536
"""Longest message; whatever is larger goes through shared memory."""
TEXT_CHARS = 8000
"""Longest text of an error."""
MAX_FDS = 4

_KINDS: dict[str, type[errors.OffloadError]] = {
    kind.__name__: kind
    for kind in (errors.DeviceError, errors.DeviceLostError, errors.ArtifactError, errors.BatchError)
}


class WorkerLink:
    """One end of a pair of sockets that keep the borders of messages (``SOCK_SEQPACKET``)."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message.

        Raises:
            OSError: The other side is gone.
        """
        data = json.dumps(message).encode()
        if fds:
            socket.send_fds(self.socket, [data], fds)
        else:
            self.socket.send(data)

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Wait for a message and its descriptors; None: the other side is gone."""
        size = socket.CMSG_LEN(MAX_FDS * array.array("i").itemsize)
        try:
            data, ancillary, _, _ = self.socket.recvmsg(PACKET_BYTES, size, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        if not data:
            return None
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        message: dict[str, Any] = json.loads(data)
        return message, fds.tolist()

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def pair() -> tuple[WorkerLink, WorkerLink]:
    """Return two ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return WorkerLink(ours), WorkerLink(theirs)


def from_error(error: BaseException) -> dict[str, Any]:
    """Return an error as a message."""
    known = type(error).__name__ if type(error).__name__ in _KINDS else "DeviceError"
    text = str(error) if isinstance(error, errors.OffloadError) else f"the worker failed with {error!r}"
    return {"error": known, "text": text[:TEXT_CHARS]}


def to_error(message: dict[str, Any]) -> errors.OffloadError | None:
    """Return the error that a message carries, or None."""
    if "error" not in message:
        return None
    return _KINDS.get(message["error"], errors.DeviceError)(message["text"])
