import json
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import ConfigError
from greentrain.estimate import hf_config, shapes

EXACT = 5e-4
"""Norms and biases of models of a billion parameters."""
POSITIONS = 0.015
"""Learned positions too, of small models."""


def real_parameters(kind: str, sizes: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return how many parameters transformers gives a model, and its configuration as it would be saved."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **sizes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters()), config.to_diff_dict()


MODELS: list[tuple[str, dict[str, Any], float]] = [
    ("llama", {"num_key_value_heads": 8, "head_dim": 64}, EXACT),
    ("mistral", {}, EXACT),
    ("qwen2", {"num_key_value_heads": 4, "tie_word_embeddings": True}, EXACT),
    ("qwen3", {"num_key_value_heads": 8}, EXACT),
    ("phi", {}, EXACT),
    ("phi3", {}, EXACT),
    ("olmo", {}, EXACT),
    ("olmo2", {}, EXACT),
    ("olmo3", {}, EXACT),
    ("glm", {}, EXACT),
    ("glm4", {}, EXACT),
    ("gemma", {}, EXACT),
    ("gemma2", {}, EXACT),
    ("gemma3_text", {}, EXACT),
    ("smollm3", {}, EXACT),
    ("granite", {}, EXACT),
    ("starcoder2", {"bos_token_id": 0, "eos_token_id": 0}, EXACT),
    ("gpt_neox", {}, EXACT),
    ("gpt2", {}, POSITIONS),
    ("gpt_bigcode", {}, POSITIONS),
    ("opt", {}, POSITIONS),
    ("bloom", {"hidden_size": 1024, "n_layer": 24, "n_head": 16}, 1e-3),
    ("falcon", {}, EXACT),
    ("falcon", {"multi_query": False}, EXACT),
    (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 8, "hidden_size": 4096, "num_attention_heads": 64},
        EXACT,
    ),
    ("mixtral", {}, EXACT),
    ("olmoe", {}, EXACT),
    ("gpt_oss", {}, EXACT),
    ("qwen2_moe", {}, EXACT),
    ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, EXACT),
    ("qwen3_moe", {"head_dim": 128}, EXACT),
    ("glm4_moe", {"head_dim": 128, "first_k_dense_replace": 3}, EXACT),
    ("deepseek_v2", {"num_experts_per_tok": 6, "q_lora_rank": None, "first_k_dense_replace": 1}, EXACT),
    ("deepseek_v3", {}, EXACT),
]


@pytest.mark.parametrize(
    ("kind", "sizes", "within"), MODELS, ids=[f"{kind}-{i}" for i, (kind, *_) in enumerate(MODELS)]
)
def test_a_configuration_gives_the_parameters_of_the_real_model(
    kind: str, sizes: dict[str, Any], within: float
) -> None:
    real, config = real_parameters(kind, sizes)
    assert hf_config.read(config).shape.total_parameters == pytest.approx(real, rel=within)


def test_every_type_is_held_to_a_real_model() -> None:
    assert {kind for kind, *_ in MODELS} == set(hf_config._FAMILIES)


DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "intermediate_size": 18432, "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip


def test_latent_attention_is_counted_exactly_and_said_to_be_approximated() -> None:
    found = hf_config.read(DEEPSEEK_V3)
    preset = shapes.find("deepseek-v3")
    assert found.shape.published_total == preset.published_total
    assert found.shape.published_active == preset.published_active
    assert "latent attention (MLA) is approximated" in found.notes[0]
    assert "at 128 a head where they are 160" in found.notes[0]


def test_experts_of_a_configuration() -> None:
    shape = hf_config.read(DEEPSEEK_V3).shape
    assert (shape.experts, shape.experts_per_token, shape.expert_layers, shape.d_shared) == (256, 8, 58, 2048)
    assert shape.active_parameters == pytest.approx(37e9, rel=0.02)


LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_folder_a_file_and_a_mapping_are_read_alike(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    shape = hf_config.read(folder).shape
    assert shape == hf_config.read(folder / "config.json").shape
    assert shape.name == "mine"
    assert shape.total_parameters == shapes.find("llama-3-8b").total_parameters
    assert hf_config.read(LLAMA).shape.name == "llama"


def test_the_text_of_a_model_that_also_sees_is_read_and_said() -> None:
    found = hf_config.read({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "num_hidden_layers": 34,
                                                                    "intermediate_size": 10240}})  # fmt: skip
    assert found.shape.total_parameters == shapes.find("gemma-3-4b").total_parameters
    assert "vision and audio towers are left out" in found.notes[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "lama"},
            r"type 'lama' cannot be read.*Did you mean 'llama'\? Leave out --config.*--layers, --d-model",
        ),
        ({"model_type": "t5", "is_encoder_decoder": True}, "type 't5' cannot be read"),
        ({"hidden_size": None}, "hidden_size is missing in a configuration of type 'llama': give --d-model"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'; it must be a whole number, 0 or more"),
        ({"num_key_value_heads": 5}, "not a multiple of 5 kv_heads"),
        ({"model_type": "qwen2", "num_key_value_heads": None}, "num_key_value_heads is missing.*give --kv-heads"),
    ],
)
def test_a_wrong_configuration_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        hf_config.read({**LLAMA, **change})


def test_a_size_without_a_flag_is_to_be_added_to_the_file() -> None:
    with pytest.raises(ConfigError, match=r"kv_lora_rank is missing.*add it to the file"):
        hf_config.read({**DEEPSEEK_V3, "kv_lora_rank": None})


@pytest.mark.parametrize(("text", "says"), [("{", "is no JSON"), ("[]", "holds a list")])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"config\.json {says}.*name a config\.json"):
        hf_config.read(path)
    with pytest.raises(ConfigError, match=r"none\.json cannot be read: No such file.*name of a preset"):
        hf_config.read(tmp_path / "none.json")
