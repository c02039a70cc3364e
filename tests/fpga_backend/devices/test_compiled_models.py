"""From a model of transformers to the floating-point device, against the model itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile
from greentrain.fpga_backend.devices.torch_device import TorchDevice
from greentrain.testing.offload_contract import rows_of

transformers = pytest.importorskip("transformers")

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 120,
}


def bert() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=2, **SMALL))


def qwen() -> Any:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(num_key_value_heads=2, **SMALL))


def answer(model: Any, ids: Any) -> Any:
    """Return what the model says: scores, or ln p of each token after the first."""
    tokens = torch.from_numpy(ids.astype(np.int64))
    with torch.inference_mode():
        logits = model(tokens[None]).logits[0]
    return (logits if logits.ndim == 1 else logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]).numpy()


@pytest.mark.parametrize("make", [bert, qwen])
def test_the_device_says_what_the_model_says(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    rng = np.random.default_rng(0)
    batch = Batch.of([rng.integers(0, 120, n) for n in (7, 30, 12, 30)])
    artifact = compile(model, max_tokens=32, precision="fp32")
    device = TorchDevice()
    found = rows_of(device.submit(device.load(artifact), batch).result(60))
    device.close()
    for row, ids in zip(found, batch.ids, strict=True):
        assert np.abs(row - answer(model, ids)).max() < 1e-5
