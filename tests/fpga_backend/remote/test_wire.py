from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.errors import (
    ArtifactError,
    BatchError,
    DeviceError,
    DeviceLostError,
    OffloadError,
    QueueFullError,
)
from greentrain.fpga_backend.remote import wire
from greentrain.fpga_backend.remote.wire import PIECE_BYTES, MalformedError, Upload, received
from greentrain.testing.offload_contract import raised
from greentrain.testing.offload_models import decoder, encoder


@pytest.mark.parametrize(
    "batch",
    [
        Batch.of([[1, 2, 3], [4]]),
        Batch.of([[1, 2, 3], []], types=[[0, 1, 0], []], prompt_tokens=[2, 0]),
        Batch.of([]),
    ],
)
def test_a_batch_comes_back(batch: Batch) -> None:
    found = wire.read_batch(wire.batch_body(batch))
    assert [row.tolist() for row in found.ids] == [row.tolist() for row in batch.ids]
    assert all(row.dtype == np.int32 for row in found.ids)
    assert (found.types is None) == (batch.types is None)
    if found.types is not None and batch.types is not None:
        assert [row.tolist() for row in found.types] == [row.tolist() for row in batch.types]
    assert found.prompt_tokens == batch.prompt_tokens


def test_a_result_comes_back_by_its_bits() -> None:
    odd = np.array([1e-45, -0.0, np.float32(1) / 3, 3e38], dtype=np.float32)
    scores = Result(scores=odd.reshape(2, 2), run_s=0.1 + 0.2, modelled=True, rows=7, notes=("größer", ""))
    found = wire.read_result(wire.result_body(scores))
    assert found.scores is not None
    assert found.scores.tobytes() == odd.tobytes() and found.scores.shape == (2, 2)
    assert (found.run_s, found.modelled, found.rows, found.notes, found.logprobs) == (
        0.1 + 0.2,
        True,
        7,
        ("größer", ""),
        None,
    )
    logprobs = Result(logprobs=(odd, odd[:0], odd[:1]), run_s=0.0, rows=1)
    back = wire.read_result(wire.result_body(logprobs)).logprobs
    assert back is not None
    assert [row.tobytes() for row in back] == [odd.tobytes(), b"", odd[:1].tobytes()]


@pytest.mark.parametrize(
    "arrays",
    [
        {"ids": np.zeros(3, np.int32)},
        {"ids": np.zeros(3, np.int64), "lengths": np.array([3])},
        {"ids": np.zeros((1, 3), np.int32), "lengths": np.array([3])},
        {"ids": np.zeros(3, np.int32), "lengths": np.array([2])},
        {"ids": np.zeros(3, np.int32), "lengths": np.array([4, -1])},
        {"ids": np.zeros(3, np.int32), "lengths": np.array([2**62, 2**62, 2**62, 2**62 + 3])},
        {"ids": np.zeros(3, np.int32), "lengths": np.array([3]), "types": np.zeros(2, np.int32)},
    ],
)
def test_a_batch_that_does_not_add_up_is_malformed(
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int32]]],
) -> None:
    with pytest.raises(MalformedError):
        wire.read_batch(save(arrays))


@pytest.mark.parametrize("body", [b"", b"x" * 40, wire.batch_body(Batch.of([[1]]))])
def test_a_result_that_is_none_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError):
        wire.read_result(body)


@pytest.mark.parametrize("kind", [BatchError, ArtifactError, DeviceError, DeviceLostError, QueueFullError])
def test_errors_keep_their_type_and_text(kind: type[OffloadError]) -> None:
    status, body = wire.error_json(kind("value, bound, remedy"))
    found = wire.read_error(body, status)
    assert type(found) is kind
    assert str(found) == "value, bound, remedy"


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"energy_j": 1},
        {"energy_j": -1, "provenance": "measured", "note": ""},
        {"energy_j": float("nan"), "provenance": "measured", "note": ""},
        {"energy_j": None, "provenance": "measured", "note": ""},
        {"energy_j": 0, "provenance": "missing", "note": ""},
    ],
)
def test_joules_that_cannot_be_are_malformed(reply: dict[str, object]) -> None:
    with pytest.raises(MalformedError):
        wire.read_energy(reply)


@pytest.mark.parametrize("large", [False, True])
def test_an_artifact_comes_back(tmp_path: Path, large: bool) -> None:
    artifact = encoder(vocabulary=40_000) if large else decoder()
    with Upload(artifact) as upload:
        pieces = list(upload)
        assert list(upload) == pieces and sum(map(len, pieces)) == upload.nbytes
    assert max(map(len, pieces)) <= PIECE_BYTES
    (tmp_path / "upload").write_bytes(b"".join(pieces))
    found = received(tmp_path / "upload", artifact.digest)
    (tmp_path / "upload").unlink()
    assert found.digest == artifact.digest
    assert found.source == artifact.source
    assert found.program == artifact.program


def test_an_upload_cut_short_or_of_another_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, path = decoder(), tmp_path / "upload"
    with Upload(artifact) as upload:
        whole = b"".join(upload)
    path.write_bytes(whole[:-1])
    assert isinstance(raised(received, path, artifact.digest), MalformedError)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert isinstance(raised(received, path, artifact.digest), ArtifactError)
    path.write_bytes(whole)
    monkeypatch.setattr("greentrain.fpga_backend.contract.VERSION", 99)
    error = raised(received, path, artifact.digest)
    assert isinstance(error, ArtifactError)
    assert "99" in str(error) and "same version" in str(error)
