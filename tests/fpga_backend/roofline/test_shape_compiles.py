"""A program from a configuration asks for exactly what compiling such a model gives."""

from typing import Any

import pytest

from greentrain.fpga_backend.compiler.compiling import compile as compiled
from greentrain.fpga_backend.roofline.counts import BatchLayout, count, footprint
from greentrain.fpga_backend.roofline.shape import Head, program_of

transformers = pytest.importorskip("transformers")
SMALL: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_labels": 1,
}
GPT2 = {
    "vocab_size": 120,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("kind", "task", "config"),
    [
        ("bert", "SequenceClassification", SMALL),
        ("llama", "SequenceClassification", {**SMALL, "num_key_value_heads": 2}),
        ("qwen2", "CausalLM", {**SMALL, "num_key_value_heads": 1}),
        ("gpt2", "CausalLM", GPT2),
    ],
)
def test_the_same_work_and_the_same_memory(kind: str, task: str, config: dict[str, Any]) -> None:
    made = transformers.AutoConfig.for_model(kind, **config)
    model = getattr(transformers, f"AutoModelFor{task}").from_config(made).eval()
    head: Head = "logprob" if task == "CausalLM" else "score"
    real = compiled(model, max_tokens=64, head=head, activation_bits=8)
    shape = program_of(made.to_dict(), head=head, max_tokens=64)
    layout = BatchLayout.equal(3, 20)
    found, expected = (count(program, layout) for program in (shape, real.program))
    for name in ("macs8", "macs16", "launches", "memory_bytes", "pcie_in_bytes", "pcie_out_bytes"):
        assert getattr(found, name) == getattr(expected, name), name
    assert footprint(shape, layout) == footprint(real.program, layout)
    assert footprint(shape, layout).weights_bytes == real.nbytes
