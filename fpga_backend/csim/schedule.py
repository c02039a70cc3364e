"""Runs a compiled model on a card: weights written once, then launches for each batch over buffers that stay."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.batch import Batch, Packed, Result, pack
from greentrain.fpga_backend.card import Buffer, Card
from greentrain.fpga_backend.csim.launches import FLOATS, Count, FittedModel, Launch, beats, fit, launches
from greentrain.fpga_backend.csim.layout import BatchSize, CardLayout, write_weights
from greentrain.fpga_backend.program import Score

ACTIVATION_BYTES = 2**30
"""Default bound of the memory for one batch; a larger batch runs in waves."""
ROUND_ROWS = 64
"""Buffers grow by so many rows at least, so that batches of about the same size share them."""

Floats = npt.NDArray[np.float32]


class BatchSchedule:
    """A model on a card. Used from one thread.

    Args:
        model: Program and tensors: an artifact, or what a worker got of one.
        card: Card that it runs on. The schedule frees its buffers but does not close the card.
        activation_bytes: Bound of the memory that a batch's rows take. A batch that needs more runs in several
            waves of whole sequences, with the same results; the longest sequence always has room.

    Raises:
        ArtifactError: The kernels cannot run the program.
        DeviceError: The card has no room for it, or fails.
    """

    def __init__(self, model: FittedModel, card: Card, *, activation_bytes: int = ACTIVATION_BYTES) -> None:
        self.program = model.program
        tensors = {name: np.asarray(tensor) for name, tensor in model.tensors.items()}
        fit(self.program, tensors)
        self._card = card
        self._launches = launches(self.program)
        self._layout = CardLayout(self.program)
        self._most_rows = max(activation_bytes // self._layout.row_bytes, self.program.max_tokens)
        self._capacity = BatchSize(rows=0, sequences=0, targets=0)
        self._work: dict[str, Buffer] = {}
        self._fixed = write_weights(card, self.program, tensors)

    def run(self, batch: Batch) -> Result:
        """Compute a batch.

        Raises:
            BatchError: It does not fit the program.
            DeviceError: The card failed, has no room, or the result is not finite.
        """
        begun_s = time.perf_counter()
        parts = [self._wave(packed) for packed in self._waves(batch)]
        run_s = time.perf_counter() - begun_s
        return replace(Result.joined(parts), run_s=run_s)

    def close(self) -> None:
        """Free the card's memory. Idempotent."""
        self._release()
        while self._fixed:
            self._card.free(self._fixed.popitem()[1])

    def _waves(self, batch: Batch) -> Iterator[Packed]:
        packed = pack(batch, self.program)
        if packed.rows <= self._most_rows:
            yield packed
            return
        first, held = 0, 0
        for i, row in enumerate(batch.ids):
            if held and held + len(row) > self._most_rows:
                yield pack(batch.some(range(first, i)), self.program)
                first, held = i, 0
            held += len(row)
        yield pack(batch.some(range(first, len(batch.ids))), self.program)

    def _wave(self, packed: Packed) -> Result:
        size = BatchSize(rows=packed.rows, sequences=len(packed.sequences), targets=len(packed.target_ids))
        self._reserve(size)
        self._write(packed)
        counts = {
            Count.ROWS: size.rows,
            Count.SEQUENCES: size.sequences,
            Count.SEGMENTS: len(packed.segments),
        }
        by_chunk = [launch for launch in self._launches if launch.by_chunk]
        for launch in self._launches:
            if not launch.by_chunk:
                self._launch(launch, counts)
        if by_chunk:
            for first in range(0, size.targets, self._layout.chunk):
                counts[Count.FIRST] = first
                counts[Count.CHUNK] = min(self._layout.chunk, size.targets - first)
                for launch in by_chunk:
                    self._launch(launch, counts)
        return Result.of(self._read(size), packed.targets, labels=self.program.labels, rows=packed.rows, run_s=0.0)

    def _launch(self, launch: Launch, counts: dict[Count, int]) -> None:
        arguments: list[Buffer | int] = []
        for argument in launch.arguments:
            if isinstance(argument, str):
                arguments.append(self._fixed.get(argument) or self._work[argument])
            elif isinstance(argument, Count):
                arguments.append(counts[argument])
            else:
                arguments.append(argument)
        self._card.launch(launch.kernel, arguments)

    def _write(self, packed: Packed) -> None:
        table = packed.table()
        columns = {
            "ids": packed.ids,
            "positions": packed.positions,
            "types": packed.types,
            "segments": table,
            "sequences": table[list(packed.sequences)],
        }
        if "logprobs" in self._work and len(packed.target_ids):
            columns |= {"target_rows": packed.target_rows, "target_ids": packed.target_ids}
        for name, column in columns.items():
            self._card.write(self._work[f"index:{name}"], np.ascontiguousarray(column))

    def _read(self, size: BatchSize) -> Floats:
        last = self.program.ops[-1]
        if isinstance(last, Score):
            padded = np.empty((size.sequences, beats(last.labels) * FLOATS), dtype=np.float32)
            self._card.read(self._work[f"register:{last.out}"], padded)
            return padded[:, : last.labels].copy()
        found = np.empty(size.targets, dtype=np.float32)
        if size.targets:
            self._card.read(self._work["logprobs"], found)
        return found

    def _reserve(self, size: BatchSize) -> None:
        if self._capacity.holds(size):
            return
        held = self._capacity
        wanted = BatchSize(
            rows=max(held.rows, -(-size.rows // ROUND_ROWS) * ROUND_ROWS),
            sequences=max(held.sequences, size.sequences),
            targets=max(held.targets, size.targets),
        )
        self._release()
        try:
            for name, (nbytes, region) in self._layout.buffers(wanted).items():
                self._work[name] = self._card.allocate(nbytes, region.bank)
        except BaseException:
            self._release()
            raise
        for register, slot in self._layout.slot_of.items():
            self._work[f"register:{register}"] = self._work[f"slot:{slot}"]
        self._capacity = wanted

    def _release(self) -> None:
        self._capacity = BatchSize(rows=0, sequences=0, targets=0)
        for buffer in {buffer.number: buffer for buffer in self._work.values()}.values():
            self._card.free(buffer)
        self._work.clear()
