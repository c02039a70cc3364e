"""A model by a name, a config.json, a number of parameters, or the flags of its shape; and their wrong mixes."""

import json
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import ConfigError
from greentrain.estimate import hf_config, shapes
from greentrain.estimate.model_shape import Flags
from greentrain.estimate.shapes import model_of
from tests.estimate.test_hf_config import DEEPSEEK_V3, LLAMA

LLAMA_FLAGS: dict[str, Any] = {
    "layers": 32, "d_model": 4096, "heads": 32, "kv_heads": 8, "d_ff": 14336, "vocabulary": 128256,
}  # fmt: skip
MIXTRAL_FLAGS: dict[str, Any] = {
    "layers": 32, "d_model": 4096, "heads": 32, "kv_heads": 8, "vocabulary": 32000,
    "experts": 8, "experts_per_token": 2, "d_expert": 14336,
}  # fmt: skip


def _without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in keys}


@pytest.mark.parametrize(("flags", "preset"), [(LLAMA_FLAGS, "llama-3-8b"), (MIXTRAL_FLAGS, "mixtral-8x7b")])
def test_flags_give_the_shape_of_a_published_model(flags: dict[str, Any], preset: str) -> None:
    by_flags, published = model_of(flags=Flags(**flags)).shape, shapes.find(preset)
    assert by_flags.total_parameters == pytest.approx(published.total_parameters, rel=1e-3)
    assert by_flags.active_parameters == pytest.approx(published.active_parameters, rel=1e-3)
    assert (by_flags.layers, by_flags.kv_heads, by_flags.experts) == (
        published.layers,
        published.kv_heads,
        published.experts,
    )


def test_what_flags_do_not_say_is_what_most_models_have() -> None:
    shape = Flags(**_without(LLAMA_FLAGS, "kv_heads")).shape()
    assert (shape.kv_heads, shape.head_dim, shape.gated, shape.tied) == (32, 128, True, False)
    other = Flags(**LLAMA_FLAGS, head_dim=64, gated=False, tied=True).shape()
    assert (other.kv_heads, other.head_dim, other.gated, other.tied) == (8, 64, False, True)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (_without(LLAMA_FLAGS, "d_model", "d_ff"), "--d-model, --d-ff missing beside --layers --heads --kv-heads"),
        (_without(MIXTRAL_FLAGS, "experts_per_token"), "--experts-per-token missing beside .*--d-expert"),
        ({**MIXTRAL_FLAGS, "d_ff": 14336}, "--d-ff is the width of dense layers, but --d-expert .*--d-expert instead"),
        ({**MIXTRAL_FLAGS, "experts_per_token": 9}, "experts_per_token is 9; it must be between 1 and 8"),
        ({**LLAMA_FLAGS, "layers": 0}, "--layers is 0; it must be between 1 and"),
        ({**LLAMA_FLAGS, "d_ff": -1}, "--d-ff is -1; it must be"),
        ({**LLAMA_FLAGS, "kv_heads": 5}, "32 heads are not a multiple of 5 kv_heads"),
        (
            {**LLAMA_FLAGS, "heads": 33, "kv_heads": 3},
            "--d-model 4096 is not a multiple of --heads 33: .*--head-dim",
        ),
    ],
)
def test_flags_that_are_no_shape_are_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Flags(**flags).shape()


def _file(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("key", "flag"),
    [
        ("num_hidden_layers", "layers"), ("hidden_size", "d_model"), ("num_attention_heads", "heads"),
        ("intermediate_size", "d_ff"), ("vocab_size", "vocabulary"),
    ],
)  # fmt: skip
def test_a_flag_gives_what_a_configuration_lacks(tmp_path: Path, key: str, flag: str) -> None:
    path = _file(tmp_path, _without(LLAMA, key))
    with pytest.raises(ConfigError, match=f"{key} is missing.*give --{flag.replace('_', '-')}$"):
        model_of(config=path)
    found = model_of(config=path, flags=Flags(**{flag: LLAMA[key]}))
    whole = hf_config.read(LLAMA).shape
    assert found.shape.total_parameters == whole.total_parameters and found.notes == ()


@pytest.mark.parametrize(
    ("key", "flag"),
    [
        ("n_routed_experts", "experts"),
        ("num_experts_per_tok", "experts_per_token"),
        ("moe_intermediate_size", "d_expert"),
    ],
)  # fmt: skip
def test_flags_give_the_experts_that_a_configuration_lacks(key: str, flag: str) -> None:
    flags = Flags(**{flag: DEEPSEEK_V3[key]})
    found = hf_config.read(_without(DEEPSEEK_V3, key), flags).shape
    whole = hf_config.read(DEEPSEEK_V3).shape
    assert (found.total_parameters, found.active_parameters) == (whole.total_parameters, whole.active_parameters)


def test_a_flag_that_takes_the_place_of_a_size_is_noted() -> None:
    found = hf_config.read(LLAMA, Flags(layers=40, kv_heads=32, d_ff=14336, tied=True, gated=False))
    assert (found.shape.layers, found.shape.kv_heads, found.shape.tied, found.shape.gated) == (40, 32, True, False)
    assert found.notes == (
        "--layers 40 is taken in place of num_hidden_layers 32",
        "--kv-heads 32 is taken in place of num_key_value_heads 8",
    )


def test_one_key_value_head_of_a_type_may_be_corrected() -> None:
    falcon = {**_without(LLAMA, "num_key_value_heads"), "model_type": "falcon"}
    assert hf_config.read(falcon).shape.kv_heads == 1
    assert hf_config.read(falcon, Flags(kv_heads=4)).shape.kv_heads == 4


@pytest.mark.parametrize(
    ("config", "flags", "says"),
    [
        (LLAMA, {"experts": 8}, "--experts: the shape of a model of type 'llama' is read without; drop it"),
        (DEEPSEEK_V3, {"kv_heads": 8, "head_dim": 64}, "--kv-heads, --head-dim: .*'deepseek_v3'"),
    ],
)
def test_a_flag_that_changes_nothing_is_refused(config: dict[str, Any], flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        hf_config.read(config, Flags(**flags))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "give the model, one of: --config .*, --parameters, or its shape by --layers"),
        ({"config": "llama-3-8b", "parameters": 8e9}, "--parameters and --config both say which model"),
        ({"parameters": 8e9, "flags": Flags(layers=3, tied=True)}, "--parameters and --layers --tied both say"),
        ({"config": "llama-3-8b", "active": 8e9}, "--active goes with --parameters"),
        ({"flags": Flags(**LLAMA_FLAGS), "active": 8e9}, "--active goes with --parameters"),
        (
            {"config": "llama-3-8b", "flags": Flags(layers=3)},
            "a preset, whose shape is whole, so --layers cannot",
        ),
        ({"config": "llama-3-9b"}, "Did you mean 'llama-3-8b'"),
        ({"config": "nowhere/config.json"}, "nowhere/config.json cannot be read: No such file"),
    ],
)
def test_a_model_is_given_in_one_way(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        model_of(**given)


def test_a_folder_is_a_model_if_it_has_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama-3-8b").mkdir()  # of checkpoints, say
    (tmp_path / "mine").mkdir()
    assert model_of(config="llama-3-8b").shape == shapes.find("llama-3-8b")
    with pytest.raises(ConfigError, match="mine is a folder without"):
        model_of(config="mine")
    _file(tmp_path / "mine", LLAMA)
    assert model_of(config="mine").shape.name == "mine"
