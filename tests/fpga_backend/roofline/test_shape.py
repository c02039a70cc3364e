"""Programs from configurations, against transformers' own parameter counts."""

from typing import Any

import pytest
import torch

from greentrain.fpga_backend.errors import UnsupportedModelError
from greentrain.fpga_backend.explore.space import PRESETS
from greentrain.fpga_backend.program import Embed, Linear, LogProb, Program, Score, widths
from greentrain.fpga_backend.roofline.shape import program_of


@pytest.mark.parametrize("name", PRESETS)
def test_products_have_the_parameters_of_the_real_model(name: str) -> None:
    """The model without weights, on torch's meta device; matrices of two dimensions but for the embeddings."""
    transformers = pytest.importorskip("transformers")
    config: dict[str, Any] = dict(PRESETS[name][1])
    kind = config.pop("model_type")
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **config))
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    matrices = [p for p in model.parameters() if p.dim() == 2]
    program = program_of(PRESETS[name][1])
    linear = sum(op.x.width * op.outputs for op in program.ops if isinstance(op, Linear))
    assert linear == sum(p.numel() for p in matrices if id(p) not in tables)
    assert sum(_entries(op, program) * op.width for op in program.ops if isinstance(op, Embed)) == sum(
        p.numel() for p in matrices if id(p) in tables
    )


def _entries(op: Embed, program: Program) -> int:
    return {"token": program.vocabulary, "type": program.types, "position": program.max_tokens}[op.index]


@pytest.mark.parametrize("name", PRESETS)
def test_registers_fit_together(name: str) -> None:
    program = program_of(PRESETS[name][1], max_tokens=128)
    known = widths(program)
    assert list(known) == list(range(len(known)))
    assert isinstance(program.ops[-1], Score)
    assert program.labels == 1
    assert Program.from_json(program.to_json()) == program


def test_a_vocabulary_head() -> None:
    program = program_of(PRESETS["gpt2"][1], head="logprob")
    last = program.ops[-1]
    assert isinstance(last, LogProb) and last.vocabulary == 50257
    with pytest.raises(UnsupportedModelError, match="head is score"):
        program_of(PRESETS["minilm"][1], head="logprob")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "mamba"}, "known: bert"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "many"),
    ],
)
def test_a_configuration_that_cannot_be(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        program_of({**PRESETS["minilm"][1], **change})
