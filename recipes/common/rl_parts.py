"""What the recipes for TRL train: a policy, what it is asked, and who judges it."""

import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.rlhf.text import TextEncoder
from recipes.common import minilm
from recipes.common.smollm2 import smollm2

BEGINNINGS: Final = (
    "The movie was",
    "I watched this film and",
    "The acting in it is",
    "Overall the plot felt",
    "What I will remember of the film is",
    "The last scene made me",
    "If you like the director, this picture",
    "My friends and I thought that the story",
)
PROMPT_TOKENS: Final = 16
"""Room for the longest of them."""
JUDGED_TOKENS: Final = 80
"""Room of the judge, whose tokens are others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All but the trainer."""

    policy: Any
    tokenizer: Any
    prompts: Dataset
    reward: Artifact
    judge: TextEncoder
    """How the reward model reads texts."""
    reference: Artifact
    """The policy as it begins, with 16-bit activations."""


def real(new: int, temperature: float) -> Parts:
    """Return SmolLM2-135M, and MiniLM as its judge.

    Args:
        new: Tokens of the longest completion.
        temperature: Of sampling.
    """
    folder = smollm2()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    policy: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    longest = PROMPT_TOKENS + new
    return Parts(
        policy=policy,
        tokenizer=tokenizer,
        prompts=Dataset.from_dict({"prompt": list(BEGINNINGS) * 16}),
        reward=minilm.reward_model(max(longest, JUDGED_TOKENS)),
        judge=minilm.encoder(max(longest, JUDGED_TOKENS)),
        reference=compile_model(policy, max_tokens=longest, activation_bits=16, temperature=temperature),
    )


def small(new: int, temperature: float, *, width: int = 64, layers: int = 2, seed: int = 0) -> Parts:
    """Return a random policy of 0.1 M parameters that reads letters, and a random judge: to see that all runs.

    Args:
        new: Tokens of the longest completion.
        temperature: Of sampling.
        width: Of both models.
        layers: Of both models.
        seed: Of their weights.
    """
    torch.manual_seed(seed)
    tokenizer = letter_tokenizer()
    settings: Any = LlamaConfig
    config = settings(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=1,
    )
    policy: Any = LlamaForCausalLM(config)
    judge: Any = LlamaForSequenceClassification(config)  # type: ignore[no-untyped-call]
    longest = max(map(len, _plain())) + 2 + new
    return Parts(
        policy=policy,
        tokenizer=tokenizer,
        prompts=Dataset.from_dict({"prompt": list(_plain()) * 16}),
        reward=compile_model(judge.eval(), max_tokens=max(longest, JUDGED_TOKENS)),
        judge=TextEncoder(tokenizer, max(longest, JUDGED_TOKENS)),
        reference=compile_model(policy, max_tokens=longest, activation_bits=16, temperature=temperature),
    )


def letter_tokenizer() -> Any:
    """Return a tokenizer of single characters."""
    letters = string.ascii_letters + string.digits + string.punctuation + " "
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<end>", "<unknown>", *letters])}
    made: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    wrapped: Any = PreTrainedTokenizerFast
    return wrapped(
        tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>", padding_side="left"
    )


def save(parts: Parts, folder: Path) -> None:
    """Write policy and tokenizer as a Hugging Face folder."""
    parts.policy.save_pretrained(folder)
    parts.tokenizer.save_pretrained(folder)


def _plain() -> Iterator[str]:
    yield from ("count to 3:", "the cat sat", "one two", "why not")
