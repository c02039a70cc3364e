import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.devices.torch_device import TorchDevice
from greentrain.fpga_backend.errors import ArtifactError, DeviceError
from greentrain.fpga_backend.program import Attention, Gate, Pool
from greentrain.testing.offload_contract import OffloadContract, raised, rows_of
from greentrain.testing.offload_models import decoder, encoder, sequences
from tests.fpga_backend.devices import binary64
from tests.fpga_backend.devices.changed import with_ops


class TestTorchFp32(OffloadContract):
    exact = False
    tolerance = 1e-5  # against binary64; scores and ln p are of the order of 1 to 10
    batch_tolerance = 1e-5

    def expected(self, artifact: Artifact, batch: Batch) -> Result:
        return binary64.expected(artifact, batch)

    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = TorchDevice()
        yield device
        device.close()


class TestTorchBf16(TestTorchFp32):
    tolerance = 0.1
    batch_tolerance = 0.1

    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = TorchDevice(dtype="bf16")
        yield device
        device.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestTorchCuda(TestTorchFp32):
    tolerance = 1e-4
    batch_tolerance = 1e-4

    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = TorchDevice("cuda")
        yield device
        device.close()


@pytest.fixture(scope="module")
def cpu() -> Iterator[TorchDevice]:
    device = TorchDevice()
    yield device
    device.close()


def close_to_binary64(device: OffloadDevice, artifact: Artifact, batch: Batch, tolerance: float = 1e-5) -> None:
    found = rows_of(device.submit(device.load(artifact), batch).result(60))
    for got, wanted in zip(found, rows_of(binary64.expected(artifact, batch)), strict=True):
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max(initial=0.0) <= tolerance


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=12).map(tuple),
    prompt=st.integers(0, 12),
    seed=st.integers(0, 3),
)
def test_any_lengths_and_prompts(cpu: TorchDevice, lengths: tuple[int, ...], prompt: int, seed: int) -> None:
    close_to_binary64(cpu, encoder(seed=seed, layers=1), sequences(encoder(), seed=seed, lengths=lengths))
    artifact = decoder(seed=seed, layers=1)
    close_to_binary64(cpu, artifact, sequences(artifact, seed=seed, lengths=lengths, prompt=prompt))


@pytest.mark.parametrize("groups", [(1, 6), (4, 3)])
def test_groups_with_prompts_of_their_own(cpu: TorchDevice, groups: tuple[int, int]) -> None:
    artifact, rng = decoder(), np.random.default_rng(0)
    ids, prompts = [], []
    for _ in range(groups[0]):
        prompt = rng.integers(0, 101, rng.integers(2, 20))
        for _ in range(groups[1]):
            ids.append(np.concatenate([prompt, rng.integers(0, 101, rng.integers(0, 30))]))
            prompts.append(len(prompt))
    close_to_binary64(cpu, artifact, Batch.of(ids, prompt_tokens=prompts))


@pytest.mark.parametrize(
    "artifact",
    [
        encoder(head="first", pooler=True, gate="gelu_tanh", labels=3),
        encoder(head="last", types=0, bias=False),
        decoder(head="score", kv_heads=4, bias=True),
        decoder(head="score", kv_heads=1, head_width=6),
    ],
    ids=["first", "last", "score", "one key head"],
)
def test_every_operator(cpu: TorchDevice, artifact: Artifact) -> None:
    close_to_binary64(cpu, artifact, sequences(artifact, lengths=(9, 1, 40, 9, 38, 2)))


@pytest.mark.parametrize("table", ["relu", "tanh", "silu", "gelu"])
def test_every_activation(cpu: TorchDevice, table: Literal["relu", "tanh", "silu", "gelu"]) -> None:
    artifact = with_ops(encoder(), lambda op: dataclasses.replace(op, table=table) if isinstance(op, Gate) else op)
    close_to_binary64(cpu, artifact, sequences(artifact))


def test_another_scale_of_attention(cpu: TorchDevice) -> None:
    for artifact in (encoder(), decoder()):
        scaled = with_ops(artifact, lambda op: dataclasses.replace(op, scale=0.9) if isinstance(op, Attention) else op)
        close_to_binary64(cpu, scaled, sequences(artifact, lengths=(9, 30)))


def test_layers_of_both_directions_and_of_one_in_a_model(cpu: TorchDevice) -> None:
    first = next(op.out for op in encoder().program.ops if isinstance(op, Attention))
    mixed = with_ops(
        encoder(),
        lambda op: dataclasses.replace(op, causal=True) if isinstance(op, Attention) and op.out == first else op,
    )
    close_to_binary64(cpu, mixed, sequences(mixed, lengths=(5, 1, 9)))


@pytest.mark.parametrize("how", ["first", "last", "mean"])
def test_pooling_over_shared_prompts(cpu: TorchDevice, how: Literal["first", "last", "mean"]) -> None:
    artifact = with_ops(
        decoder(head="score"), lambda op: dataclasses.replace(op, how=how) if isinstance(op, Pool) else op
    )
    close_to_binary64(cpu, artifact, sequences(artifact, lengths=(9, 30, 6, 6, 2), prompt=6))


def test_weights_that_are_stored_as_floats(cpu: TorchDevice) -> None:
    artifact = encoder()
    stems = {name.removesuffix(".q") for name in artifact.tensors if name.endswith(".q")}
    tensors = {
        name: t for name, t in artifact.tensors.items() if name.rpartition(".")[0] not in stems or name.endswith(".b")
    }
    for stem in stems:
        tensors[f"{stem}.w"] = artifact.tensors[f"{stem}.q"].float() * artifact.tensors[f"{stem}.s"][:, None]
    plain = Artifact.of(dataclasses.replace(artifact.program, precision="fp32"), tensors)
    close_to_binary64(cpu, plain, sequences(artifact))
    one, other = (rows_of(cpu.submit(cpu.load(a), sequences(artifact)).result(60)) for a in (artifact, plain))
    assert [row.tobytes() for row in one] == [row.tobytes() for row in other]


def test_shared_prompts_cost_their_rows_once(cpu: TorchDevice) -> None:
    artifact = decoder()
    handle = cpu.load(artifact)
    assert cpu.submit(handle, sequences(artifact, lengths=(30, 30, 30), prompt=20)).result(60).rows == 20 + 3 * 10


def test_a_vocabulary_larger_than_a_block_of_logits(cpu: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greentrain.fpga_backend.devices.torch_device.LOGITS", 250)
    artifact = decoder()
    close_to_binary64(cpu, artifact, sequences(artifact, lengths=(1, 30, 8)))


def test_tensors_that_do_not_fit_are_refused_at_load(cpu: TorchDevice) -> None:
    artifact = encoder()
    name = next(name for name in artifact.tensors if name.endswith(".q"))
    without = {n: t for n, t in artifact.tensors.items() if n != name}
    assert name in str(raised(cpu.load, Artifact.of(artifact.program, without)))
    wider = {**artifact.tensors, "linear6.q": torch.zeros(96, 33, dtype=torch.int8)}
    error = raised(cpu.load, Artifact.of(artifact.program, wider))
    assert isinstance(error, ArtifactError)
    assert "[96, 33]" in str(error) and "[96, 32]" in str(error)


def test_devices_that_are_not_there() -> None:
    for name, word in (("cuda:77", "cuda:77"), ("meta", "cpu and cuda"), ("nonsense", "no torch device")):
        error = raised(TorchDevice, name)
        assert isinstance(error, DeviceError)
        assert word in str(error)
    assert isinstance(raised(TorchDevice, "cpu", "fp8"), ValueError)
