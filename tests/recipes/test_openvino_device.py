import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.compiler import compile
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.errors import ArtifactError, DeviceError
from greentrain.fpga_backend.program import Attention
from greentrain.testing.offload_contract import OffloadContract, raised, rows_of
from greentrain.testing.offload_models import decoder, encoder, sequences
from tests.fpga_backend.devices import binary64
from tests.fpga_backend.devices.changed import with_ops

pytest.importorskip("openvino")
from recipes.common import openvino_device


class TestOpenVinoCpu(OffloadContract):
    exact = False
    shares_prompts = False
    tolerance = 1e-5  # against binary64
    batch_tolerance = 1e-5

    def expected(self, artifact: Artifact, batch: Batch) -> Result:
        return binary64.expected(artifact, batch)

    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = openvino_device.OpenVinoDevice()
        yield device
        device.close()


@pytest.fixture(scope="module")
def cpu() -> Iterator[OffloadDevice]:
    device = openvino_device.OpenVinoDevice()
    yield device
    device.close()


def close_to_binary64(device: OffloadDevice, artifact: Artifact, batch: Batch, tolerance: float = 1e-5) -> None:
    found = rows_of(device.submit(device.load(artifact), batch).result(60))
    for got, wanted in zip(found, rows_of(binary64.expected(artifact, batch)), strict=True):
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max(initial=0.0) <= tolerance


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
def test_every_operator(cpu: OffloadDevice, artifact: Artifact) -> None:
    close_to_binary64(cpu, artifact, sequences(artifact, lengths=(9, 1, 40, 9, 38, 2)))


def test_in_bf16(cpu: OffloadDevice) -> None:
    device = openvino_device.OpenVinoDevice(dtype="bf16")
    close_to_binary64(device, encoder(), sequences(encoder()), tolerance=0.1)
    device.close()


def test_static_shapes_as_the_npu_needs_them() -> None:
    device = openvino_device.OpenVinoDevice(static=True)
    for artifact in (encoder(layers=1, max_tokens=20), decoder(layers=1, max_tokens=20)):
        close_to_binary64(device, artifact, sequences(artifact, lengths=(20, 3)))
    device.close()


def test_a_model_of_transformers_says_what_it_says_itself() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=2, vocab_size=120, **sizes)
    model = transformers.BertForSequenceClassification(config).eval()
    ids = [torch.randint(120, (n,)) for n in (7, 30, 12, 30)]
    device = openvino_device.OpenVinoDevice()
    handle = device.load(compile(model, max_tokens=32, precision="fp32"))
    found = device.submit(handle, Batch.of([row.numpy() for row in ids])).result(60).scores
    device.close()
    with torch.inference_mode():
        wanted = torch.cat([model(row[None]).logits for row in ids])
    assert found is not None and np.abs(found - wanted.numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("lengths", "most_rows", "wanted"),
    [
        ((20, 25, 25), 1000, [(0, 1, 2)]),
        ((25, 20, 25), 50, [(1, 0), (2,)]),
        ((9, 100, 9, 101), 1000, [(0, 2), (1, 3)]),
        ((90, 90), 10, [(0,), (1,)]),
    ],
    ids=["alike", "bounded", "unlike", "one is always a call"],
)
def test_groups_of_like_lengths(lengths: tuple[int, ...], most_rows: int, wanted: list[tuple[int, ...]]) -> None:
    assert openvino_device.length_groups(Batch.of([[1] * n for n in lengths]), most_rows) == wanted


def test_logits_are_bounded(cpu: OffloadDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = decoder(layers=1)
    batch = sequences(artifact, lengths=(20, 25, 25), prompt=3)
    handle = cpu.load(artifact)
    assert cpu.submit(handle, batch).result(60).rows == 3 * 25  # one call, padded
    monkeypatch.setattr(openvino_device, "LOGITS", 101 * 30)
    assert cpu.submit(handle, batch).result(60).rows == 20 + 25 + 25
    close_to_binary64(cpu, artifact, batch)


def test_another_scale_of_attention(cpu: OffloadDevice) -> None:
    for artifact in (encoder(), decoder()):
        scaled = with_ops(artifact, lambda op: dataclasses.replace(op, scale=0.9) if isinstance(op, Attention) else op)
        close_to_binary64(cpu, scaled, sequences(artifact, lengths=(9, 30)))


def test_tensors_that_do_not_fit_are_refused_at_load(cpu: OffloadDevice) -> None:
    artifact = encoder()
    without = {name: tensor for name, tensor in artifact.tensors.items() if name != "linear6.s"}
    error = raised(cpu.load, Artifact.of(artifact.program, without))
    assert isinstance(error, ArtifactError)
    assert "linear6.s" in str(error)


def test_devices_that_are_not_there() -> None:
    error = raised(openvino_device.OpenVinoDevice, "NPU.7")
    assert isinstance(error, DeviceError)
    assert "NPU.7" in str(error) and "CPU" in str(error)
    assert isinstance(raised(openvino_device.OpenVinoDevice, "CPU", "fp8"), ValueError)
