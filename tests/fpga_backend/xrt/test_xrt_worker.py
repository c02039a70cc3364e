"""The worker's own work, in this process, on a card that a stand-in for XRT drives."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.csim.card import functions
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.xrt import ipc, worker
from greentrain.fpga_backend.xrt.ipc import SharedRegion
from greentrain.testing.offload_models import decoder, encoder, sequences
from tests.fpga_backend.xrt.fake_xrt import FakeXrt, put_in_place

Run = Callable[[str, Sequence[int]], None]
OPEN = {
    "do": "open",
    "address": 0,
    "silicon": None,
    "memory_bytes": None,
    "activation_bytes": 2**20,
}


class Bench:
    """A worker and a card, without a process between."""

    def __init__(self, design: Path, compute: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeXrt(compute=compute)
        put_in_place(self.fake, monkeypatch)
        self.worker = worker.Worker()
        self.worker.answer({**OPEN, "xclbin": str(design)}, ())

    def load(self, artifact: Artifact, number: int = 1) -> dict[str, Any]:
        arrays = {name: tensor.numpy() for name, tensor in artifact.tensors.items()}
        region = ipc.put_model(artifact.program, arrays, artifact.digest)
        try:
            return self.worker.answer({"do": "load", "model": number}, (os.dup(region.fd),))
        finally:
            region.close()

    def run(self, artifact: Artifact, batch: Batch, number: int = 1) -> Any:
        shape = ipc.BatchShape.of(batch, artifact.program)
        region = SharedRegion.of(shape.nbytes)
        try:
            self.worker.answer({"do": "region"}, (os.dup(region.fd),))
            ipc.put_batch(batch, shape, region)
            fields = {name: getattr(shape, name) for name in ("sequences", "tokens", "types", "prompts", "values")}
            message = {"do": "run", "model": number, "digest": artifact.digest, "shape": fields}
            return ipc.get_result(batch, artifact.program, shape, region, self.worker.answer(message, ()))
        finally:
            region.close()


@pytest.fixture
def compute(library: Path) -> Run:
    found = functions(library)
    return lambda name, raw: found[name](*raw)


def test_a_program_runs_through_xrt_bit_for_bit(design: Path, compute: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers have two sides here: a transfer that is forgotten, or goes the wrong way, gives other numbers."""
    bench = Bench(design, compute, monkeypatch)
    for number, artifact in enumerate((encoder(layers=1), decoder(layers=1))):
        bench.load(artifact, number)
        for lengths in ((5, 20, 1), (64, 9, 9, 33)):
            batch = sequences(artifact, lengths=lengths)
            got, wanted = bench.run(artifact, batch, number), Engine(artifact).run(batch)
            if wanted.scores is not None:
                assert got.scores.tobytes() == wanted.scores.tobytes()
            else:
                assert [r.tobytes() for r in got.logprobs] == [r.tobytes() for r in wanted.logprobs or ()]
    bench.worker.close()
    assert bench.fake.bytes_now == 0


def test_a_card_that_was_reset_is_noticed(design: Path, compute: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(design, compute, monkeypatch)
    artifact = decoder(layers=1)
    bench.load(artifact)
    batch = sequences(artifact)
    bench.run(artifact, batch)
    bench.fake.reset()
    with pytest.raises(DeviceLostError, match=r"does not hold model .* any more: somebody has reset it"):
        bench.run(artifact, batch)
    bench.worker.close()


def test_a_card_that_vanishes_fails_its_batch(design: Path, compute: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = False

    def vanishing(name: str, raw: Sequence[int]) -> None:
        if gone:
            raise OSError(errno.ENODEV, "no such device")
        compute(name, raw)

    bench = Bench(design, vanishing, monkeypatch)
    artifact = decoder(layers=1)
    bench.load(artifact)
    batch = sequences(artifact)
    bench.run(artifact, batch)
    gone = True
    with pytest.raises(DeviceError, match="XRT failed in starting gt_embed: code -19"):
        bench.run(artifact, batch)
    bench.worker.close()


def test_a_model_that_does_not_fit_leaves_nothing(design: Path, compute: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(design, compute, monkeypatch)
    bench.worker.close()
    monkeypatch.setitem(OPEN, "memory_bytes", 500_000)
    bench.worker.answer({**OPEN, "xclbin": str(design)}, ())
    bench.load(decoder(layers=1))
    used = bench.fake.bytes_now
    assert used > 0
    free = 500_000 - used
    with pytest.raises(DeviceError, match=rf"weights take \d+ bytes, {free} of the card's 500000 are free"):
        bench.load(decoder(layers=1, hidden=256), 2)
    almost = decoder(layers=1, vocabulary=(free - 120_000) // 96)  # the weights fit, the padding and the tables do not
    assert almost.nbytes <= free
    with pytest.raises(DeviceError, match=r"bytes do not fit on the card: HBM.* the card \d+ of 500000"):
        bench.load(almost, 2)
    assert bench.fake.bytes_now == used
    bench.load(decoder(layers=1, seed=4), 3)
    bench.worker.answer({"do": "unload", "model": 1}, ())
    assert bench.fake.bytes_now == used
    bench.worker.close()


def test_models_are_known_by_number_and_digest(design: Path, compute: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(design, compute, monkeypatch)
    one, other = decoder(layers=1), decoder(layers=1, seed=1)
    bench.load(one)
    with pytest.raises(DeviceError, match=f"holds {one.digest[:12]} as model 1, not {other.digest[:12]}"):
        bench.run(other, sequences(other))
    with pytest.raises(DeviceError, match="holds nothing as model 7"):
        bench.run(one, sequences(one), 7)
    bench.worker.close()


def test_every_failure_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = ipc.pair()
    for message in (
        {"do": "dance"},
        {"do": "load", "model": 1},
        {"do": "run", "model": 1, "digest": "", "shape": {}},
        {},
    ):
        ours.send(message)
    ours.socket.shutdown(1)  # no more will come
    worker.serve(theirs, worker.Worker())
    replies = [ours.receive() for _ in range(4)]
    assert all(reply is not None and reply[0]["error"] == "DeviceError" for reply in replies)
    assert "knows no 'dance'" in str(ipc.to_error(replies[0][0] if replies[0] else {}))
    ours.close()
    theirs.close()


def test_errors_keep_their_kind_and_long_ones_are_cut() -> None:
    lost = ipc.to_error(ipc.from_error(DeviceLostError("gone")))
    assert type(lost) is DeviceLostError and str(lost) == "gone"
    message = ipc.from_error(KeyError("x" * 100_000))
    assert len(message["text"]) == ipc.TEXT_CHARS
    strange = ipc.to_error(message)
    assert type(strange) is DeviceError and str(strange).startswith("the worker failed with KeyError('xxx")
    assert ipc.to_error({"ok": 1}) is None


def test_batches_travel_whole(open_files: None) -> None:
    program = decoder().program
    batches = (
        Batch.of([[1, 2, 3], [4]]),
        Batch.of([[1, 2, 3], [4], [5, 6]], types=[[0, 1, 0], [0], [1, 1]], prompt_tokens=[0, 1, 2]),
        Batch.of([[9]], prompt_tokens=[1]),
    )
    for batch in batches:
        shape = ipc.BatchShape.of(batch, program)
        region = SharedRegion.of(shape.nbytes)
        ipc.put_batch(batch, shape, region)
        got = ipc.get_batch(shape, region)
        assert [row.tolist() for row in got.ids] == [row.tolist() for row in batch.ids]
        assert got.prompt_tokens == batch.prompt_tokens
        assert (got.types is None) == (batch.types is None)
        assert (
            np.concatenate(got.types or (got.ids[0],)).tolist()
            == np.concatenate(batch.types or (batch.ids[0],)).tolist()
        )
        region.close()
