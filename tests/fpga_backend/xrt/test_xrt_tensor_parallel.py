"""One model over several cards gives the bits of one card."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.card import Buffer
from greentrain.fpga_backend.csim.card import CsimCard
from greentrain.fpga_backend.csim.schedule import BatchSchedule
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.program import Attention, Linear, LogProb
from greentrain.fpga_backend.xrt.device import XrtDevice
from greentrain.fpga_backend.xrt.tensor_parallel import TensorParallelSchedule, split
from greentrain.testing.offload_models import decoder, encoder, sequences

Open = Callable[..., XrtDevice]
ROOMY = 2**20


class Limited(CsimCard):
    """A card with little memory."""

    def __init__(self, library: Path, limit_bytes: int) -> None:
        super().__init__(library, poison=True)
        self.limit_bytes = limit_bytes
        self.fails = False

    def allocate(self, nbytes: int, bank: int = 0) -> Buffer:
        if self.nbytes + nbytes > self.limit_bytes:
            raise DeviceError(f"{nbytes} bytes do not fit: {self.nbytes} of {self.limit_bytes} are used")
        return super().allocate(nbytes, bank)

    def launch(self, kernel: str, arguments: Sequence[Buffer | int]) -> None:
        if self.fails:
            raise DeviceLostError("this card has left the bus")
        super().launch(kernel, arguments)

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        super().write(buffer, data, offset)


def bits(result: Result) -> list[bytes]:
    return [row.tobytes() for row in (result.scores if result.scores is not None else result.logprobs or ())]


def alone(library: Path, artifact: Artifact, batch: Batch) -> Result:
    card = CsimCard(library)
    try:
        return BatchSchedule(artifact, card).run(batch)
    finally:
        card.close()


def deep(layers: int = 6) -> Artifact:
    """Return a model whose weights are most of what it needs on a card."""
    return decoder(layers=layers, hidden=128, heads=4, kv_heads=4, inner=256)


MODELS: dict[str, Callable[[], Artifact]] = {
    "encoder with pooler": lambda: encoder(pooler=True),
    "encoder of odd widths": lambda: encoder(heads=4, hidden=36, labels=3, inner=50, vocabulary=57),
    "decoder": lambda: decoder(),
    "decoder with a score": lambda: decoder(head="score"),
    "decoder of three key heads": lambda: decoder(heads=6, kv_heads=3, hidden=36, bias=True),
    "encoder of 16-bit activations": lambda: encoder(pooler=True, activation_bits=16),
    "decoder of 16-bit activations": lambda: decoder(activation_bits=16),
    "decoder of one key head": lambda: decoder(heads=4, kv_heads=1, layers=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_bits_are_those_of_one_card(library: Path, name: str) -> None:
    artifact = MODELS[name]()
    for count in (2, 3):
        cards = [CsimCard(library, poison=True) for _ in range(count)]
        schedule = TensorParallelSchedule(artifact, cards)
        for seed, lengths in enumerate(((9, 30, 17), (8, 8, 40, 23, 9, 1))):
            batch = sequences(artifact, seed=seed, lengths=lengths, prompt=8 if artifact.program.causal else 0)
            got, wanted = schedule.run(batch), alone(library, artifact, batch)
            assert bits(got) == bits(wanted)
            assert got.rows == wanted.rows
        schedule.close()
        schedule.close()
        assert all(card.nbytes == 0 for card in cards)


def test_a_model_too_large_for_one_card_runs_on_two(library: Path) -> None:
    artifact = deep()
    batch = sequences(artifact, lengths=(20, 20, 9), prompt=8)
    whole = CsimCard(library)
    schedule = BatchSchedule(artifact, whole)
    wanted = schedule.run(batch)
    limit_bytes = int(whole.nbytes * 0.8)
    with pytest.raises(DeviceError, match="do not fit"):
        BatchSchedule(artifact, Limited(library, limit_bytes)).run(batch)
    cards = [Limited(library, limit_bytes) for _ in range(2)]
    assert bits(TensorParallelSchedule(artifact, cards).run(batch)) == bits(wanted)
    for card in cards:
        assert 0.3 * whole.nbytes < card.nbytes <= limit_bytes
    small = [Limited(library, limit_bytes // 4) for _ in range(2)]
    with pytest.raises(DeviceError, match="do not fit"):
        TensorParallelSchedule(artifact, small)
    assert all(card.nbytes == 0 for card in small)


def test_every_weight_of_a_large_product_lies_on_one_card_only() -> None:
    artifact = decoder(layers=2, hidden=32, heads=4, kv_heads=2)
    tensors = {name: tensor.numpy() for name, tensor in artifact.tensors.items()}
    for cards in (2, 3):
        made = split(artifact.program, tensors, cards)
        for op in artifact.program.ops:
            if isinstance(op, Linear | LogProb):
                parts = [share.tensors[f"{op.weight}.q"] for share in made.shares]
                assert np.concatenate(parts).tobytes() == tensors[f"{op.weight}.q"].tobytes()
                assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1
            if isinstance(op, Attention) and cards == 2:
                heads = [
                    next(o for o in share.program.ops if isinstance(o, Attention)).kv_heads for share in made.shares
                ]
                assert sum(heads) == op.kv_heads


def test_a_batch_larger_than_the_bound_runs_in_waves_and_chunks(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greentrain.fpga_backend.csim.layout.MOST_CHUNK", 5)  # targets whose logits are held at a time
    artifact = decoder(layers=1, max_tokens=16)
    batch = sequences(artifact, lengths=(16,) * 9, prompt=4)
    cards = [CsimCard(library) for _ in range(2)]
    schedule = TensorParallelSchedule(artifact, cards, activation_bytes=1)
    assert bits(schedule.run(batch)) == bits(alone(library, artifact, batch))
    schedule.close()


def test_a_card_that_fails_fails_the_batch_and_leaves_no_thread(library: Path) -> None:
    artifact = decoder(layers=1)
    cards = [Limited(library, ROOMY), Limited(library, ROOMY)]
    schedule = TensorParallelSchedule(artifact, cards)
    batch = sequences(artifact)
    wanted = bits(schedule.run(batch))
    cards[1].fails = True
    with pytest.raises(DeviceLostError, match="left the bus"):
        schedule.run(batch)
    cards[1].fails = False
    assert bits(schedule.run(batch)) == wanted


def test_one_card_is_not_enough(library: Path) -> None:
    with pytest.raises(DeviceError, match="1 cards: a model is divided over at least 2"):
        TensorParallelSchedule(encoder(), [CsimCard(library)])


def test_two_cards_through_xrt(opened: Open, library: Path) -> None:
    """The worker owns both; the model's weights would not fit one of them."""
    artifact = deep(layers=10)
    batch = sequences(artifact, lengths=(20, 12, 25), prompt=8)
    limit_bytes = int(artifact.nbytes * 0.95)
    one = opened(memory_bytes=limit_bytes)
    with pytest.raises(
        DeviceError, match=rf"\d+ of the card's {limit_bytes} are free.*or divide this one over more cards"
    ):
        one.load(artifact)
    device = opened(addresses=("first", "second"), memory_bytes=limit_bytes)
    assert device.probe().memory_bytes == 2 * limit_bytes
    assert device.probe().name == "2 cards: XRT in noop emulation"
    assert bits(device.submit(device.load(artifact), batch).result(60)) == bits(alone(library, artifact, batch))
