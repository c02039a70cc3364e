"""What cannot be compiled is refused, with the module, the path to it, the operator and what to do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from greentrain.fpga_backend.compiler import compile, lower
from greentrain.fpga_backend.errors import ArtifactError, UnsupportedModelError
from tests.fpga_backend.compiler.tiny_models import COMMON, LLAMA, POSITIONS, LastReward, build, hf

ONE_LAYER = {**LLAMA, "num_hidden_layers": 1}


class Convolved(nn.Module):
    """An encoder whose rows go through a convolution over neighbouring tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.mix = nn.Sequential(nn.Identity(), nn.Conv1d(16, 16, 3, padding=1))
        self.head = nn.Linear(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.mix(self.words(ids).transpose(1, 2))
        scores: torch.Tensor = self.head(rows.transpose(1, 2).mean(1))
        return scores


class Bag(nn.Module):
    """The mean of token embeddings, through what a test puts between it and the score."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.between = between
        self.head = nn.Linear(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.between(self.words(ids)))
        return scores


@pytest.mark.parametrize(
    ("build_model", "words"),
    [
        (
            lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**ONE_LAYER)),
            (
                "model.layers.0.mlp.gate",
                "MixtralTopKRouter",
                "aten.softmax",
                "GPU",
                "a choice of experts by token",
                "program.py",
            ),
        ),
        (Convolved, ("mix.1", "Conv1d", "aten.conv1d.default", "GPU", "a convolution over neighbouring tokens")),
        (
            lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=4)),
            ("transformer.h.0.self_attention", "BloomAttention", "aten.baddbmm.default", "ALiBi"),
        ),
        (
            lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**ONE_LAYER, pad_token_id=0, partial_rotary_factor=0.5)),
            ("model.layers.0.self_attn", "Phi3Attention", "aten.cat", "rotary positions of a part of a head"),
        ),
        (
            lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**ONE_LAYER, head_dim=8, pad_token_id=0)),
            ("Gemma2ForCausalLM", "aten.mul", "their soft cap"),
        ),
        (lambda: hf.BertModel(hf.BertConfig(**COMMON)), ("BertModel", "ends in Norm", "torch.nn.Linear")),
        (lambda: hf.BertForMaskedLM(hf.BertConfig(**COMMON)), ("BertForMaskedLM", "97 columns", "causal")),
        (lambda: Bag(lambda rows: functional.normalize(rows.mean(1))), ("Bag", "aten.linalg_vector_norm.default")),
        (lambda: Bag(lambda rows: rows.mean(1) * rows.amax(1)), ("Bag", "aten.amax.default")),
        (lambda: Bag(lambda rows: rows.transpose(1, 2).mean(1)[:, :16]), ("Bag", "aten")),
        (lambda: Bag(lambda rows: rows[:, 3]), ("head (Linear)", "only some of the tokens")),
        (lambda: Bag(lambda rows: rows[:, 0] * rows[:, 1:].mean(1)), ("Bag",)),
        (lambda: Bag(lambda rows: torch.sigmoid(rows.mean(1))), ("Bag", "'sigmoid'")),
    ],
)
def test_the_message_names_place_and_remedy(build_model: Callable[[], nn.Module], words: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedModelError) as raised:
        compile(build_model(), max_tokens=16)
    for word in words:
        assert word in str(raised.value), str(raised.value)


def test_a_window_as_long_as_the_longest_sequence_is_causal() -> None:
    model = hf.MistralForCausalLM(hf.MistralConfig(**ONE_LAYER, sliding_window=8))
    assert compile(model, max_tokens=8).program.causal


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [("bert 3 labels", "logprob", "head='score'"), ("gpt2", "score", "head='logprob'")],
)
def test_a_head_that_the_model_has_not(name: str, head: Any, words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        compile(build(name), max_tokens=8, head=head)


def test_more_tokens_than_positions() -> None:
    with pytest.raises(UnsupportedModelError, match=f"max_tokens=41.*positions for {POSITIONS} tokens"):
        compile(build("gpt2"), max_tokens=POSITIONS + 1)


def test_positions_of_a_module_without_a_config() -> None:
    class Positioned(Bag):
        def __init__(self) -> None:
            super().__init__(lambda rows: rows.mean(1))
            self.positions = nn.Embedding(12, 16)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            places = torch.arange(ids.shape[1])[None]
            scores: torch.Tensor = self.head((self.words(ids) + self.positions(places)).mean(1))
            return scores

    assert compile(Positioned(), max_tokens=12).program.max_tokens == 12
    with pytest.raises(UnsupportedModelError, match="positions for 12"):
        compile(Positioned(), max_tokens=13)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_tokens": 1}, "max_tokens=1"),
        ({"max_tokens": 8193}, "8192"),
        ({"max_tokens": 8, "precision": "int8"}, "'int8' is none of w8a8"),
        ({"max_tokens": 8, "activations": "row"}, "'row' is none of token"),
        ({"max_tokens": 8, "head": "value"}, "'value' is none of auto"),
    ],
)
def test_arguments_out_of_bounds(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compile(nn.Linear(1, 1), **arguments)


def test_a_name_is_no_model() -> None:
    with pytest.raises(ValueError, match=r"model='bert' is a str, not a torch\.nn\.Module"):
        compile("bert", max_tokens=8)  # type: ignore[arg-type]


def test_broken_weights_are_named() -> None:
    model = build("gpt2")
    with torch.no_grad():
        model.get_parameter("transformer.h.1.mlp.c_fc.weight")[3, 4] = float("nan")
    with pytest.raises(ArtifactError, match=r"transformer.h.1.mlp.c_fc.weight holds NaN or infinity in 1 of 9216"):
        compile(model, max_tokens=8)


def test_weights_beyond_binary16_are_named() -> None:
    model = build("gpt2")
    with torch.no_grad():
        model.get_parameter("transformer.h.0.ln_1.bias")[3] = 1e6
    with pytest.raises(ArtifactError, match=r"transformer.h.0.ln_1.*65504.*bf16"):
        compile(model, max_tokens=8, precision="fp16")


def test_models_that_are_not_there_or_quantised_already() -> None:
    with torch.device("meta"):
        empty = nn.Embedding(5, 4)
    with pytest.raises(UnsupportedModelError, match=r"weight.*meta.*load"):
        compile(empty, max_tokens=8)
    packed = nn.Module()
    packed.weight = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedModelError, match=r"weight is of torch.int8"):
        compile(packed, max_tokens=8)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft reads a name that transformers has renamed
def test_adapters_that_are_not_merged() -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(build("gpt2"), peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    with pytest.raises(UnsupportedModelError, match="merge_and_unload"):
        compile(adapted, max_tokens=8)
    assert compile(adapted.merge_and_unload(), max_tokens=8).program.layers == 2


def test_a_forward_that_wants_more_than_tokens() -> None:
    class Images(nn.Module):
        def forward(self, input_ids: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
            return input_ids + pixels

    with pytest.raises(UnsupportedModelError, match="pixels"):
        compile(Images(), max_tokens=8)


@pytest.mark.parametrize("wrong", ["silu", "tanh"])
def test_a_wrong_lowering_never_passes(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The activation of the head is taken for another one: the comparison with the model finds it."""
    monkeypatch.setattr(lower, "_ACTIVATIONS", {**lower._ACTIVATIONS, "relu": wrong})
    model = LastReward(hf.LlamaModel(hf.LlamaConfig(**ONE_LAYER)))
    with pytest.raises(UnsupportedModelError, match="differs from the model"):
        compile(model, max_tokens=8)


def test_a_model_with_a_memory_is_found_out() -> None:
    class Counting(Bag):
        calls = 0

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            scores: torch.Tensor = self.head(self.words(ids).mean(1) * self.calls)
            return scores

    with pytest.raises(UnsupportedModelError, match="differs from the model"):
        compile(Counting(lambda rows: rows), max_tokens=8)
