"""Launches and copies are those that the card's schedule makes: seen by a card that only counts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, pack
from greentrain.fpga_backend.card import Buffer
from greentrain.fpga_backend.csim.schedule import BatchSchedule
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.fpga_backend.roofline.counts import count
from greentrain.fpga_backend.roofline.cycles import kernel_work
from greentrain.testing.offload_models import decoder, encoder


class _CountingCard:
    """Computes nothing."""

    def __init__(self) -> None:
        self.buffers = 0
        self.launches = self.written = self.read_bytes = 0
        self.kernels: set[str] = set()

    def allocate(self, nbytes: int, bank: int = 0) -> Buffer:
        self.buffers += 1
        return Buffer(self.buffers, nbytes)

    def free(self, buffer: Buffer) -> None:
        pass

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        self.written += data.nbytes

    def read(self, buffer: Buffer, out: npt.NDArray[Any], offset: int = 0) -> None:
        out[...] = 0
        self.read_bytes += out.nbytes

    def launch(self, kernel: str, arguments: Sequence[Buffer | int]) -> None:
        self.launches += 1
        self.kernels.add(kernel)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "artifact",
    [encoder(layers=3), encoder(types=0, pooler=True, labels=20), decoder(), decoder(vocabulary=20_000)],
    ids=["encoder", "pooler", "decoder", "wide vocabulary"],
)
def test_launches_and_copies(artifact: Artifact) -> None:
    rng = np.random.default_rng(0)
    length = min(artifact.program.max_tokens, 40)
    ids = [rng.integers(0, 100, n) for n in (length, 7, length, 3)]
    ids[2][:5] = ids[0][:5]
    repeated = Batch.of(ids * 16, prompt_tokens=[5, 0, 5, 0] * 16)
    card = _CountingCard()
    schedule = BatchSchedule(artifact, card)
    card.launches = card.written = 0
    schedule.run(repeated)
    counts = count(artifact.program, pack(repeated, artifact.program))
    work = kernel_work(artifact.program, pack(repeated, artifact.program), assume(U55C))
    assert (work.launches, set(work.clocks)) == (card.launches, card.kernels)
    assert (counts.launches, counts.pcie_in_bytes, counts.pcie_out_bytes) == (
        card.launches,
        card.written,
        card.read_bytes,
    )
