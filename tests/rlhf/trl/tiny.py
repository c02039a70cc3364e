"""A policy, a reward model, a tokenizer and prompts that take milliseconds, and the weights' hash."""

import hashlib
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.text import TextEncoder
from greentrain.rlhf.trl.reward import OffloadedReward

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}: {{ m['content'] }} {% endfor %}"
TEMPERATURE = 0.9
MAX_TOKENS = 64


def tokenizer() -> Any:
    """Return a tokenizer of characters."""
    words = ["<pad>", "<eos>", "<unk>", *string.ascii_lowercase, *string.digits, *" .,!?':"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=made, padding_side="left", chat_template=TEMPLATE, **special)


def policy(hidden: int = 64, layers: int = 2) -> Any:
    """Return a Llama that ends a rollout with every eighth token."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=46,
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def reward_model(labels: int = 1) -> Any:
    """Return a BERT with scores."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=46,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_TOKENS,
        pad_token_id=0,
    )
    config.num_labels = labels
    model: Any = BertForSequenceClassification(config)
    return model.eval()


def artifacts() -> Mapping[PassKind, Artifact]:
    """Return both passes' models, compiled."""
    return {
        PassKind.REWARD: compile_model(reward_model(), max_tokens=MAX_TOKENS),
        PassKind.REFERENCE: compile_model(policy().eval(), max_tokens=MAX_TOKENS, temperature=TEMPERATURE),
    }


def engine(compiled: Mapping[PassKind, Artifact], device: OffloadDevice, **options: Any) -> OffloadEngine:
    """Return an engine with both passes on a device."""
    passes = [
        place(kind, one, device, temperature=TEMPERATURE if kind is PassKind.REFERENCE else 1.0)
        for kind, one in compiled.items()
    ]
    return OffloadEngine(passes, **options)


def reward(found: OffloadEngine) -> OffloadedReward:
    """Return the engine's reward."""
    return OffloadedReward(found, TextEncoder(tokenizer(), MAX_TOKENS))


def prompts(count: int = 32) -> Any:
    """Return prompts of several lengths."""
    words = ["the cat sat", "a dog ran", "one two", "hello", "blue sky is", "count to 3", "why not", "red fish"]
    return Dataset.from_dict({"prompt": [f"{words[i % 8]} {words[i * 5 % 7]}" for i in range(count)]})


def options(folder: Path, **changed: Any) -> dict[str, Any]:
    """Return settings of a short training on the CPU."""
    return {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "gradient_accumulation_steps": 2,
        "max_completion_length": 12,
        "temperature": TEMPERATURE,
        "beta": 0.1,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "report_to": "none",
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "seed": 7,
    } | changed


def digest(trainer: Any) -> str:
    """Return the SHA-256 over all parameters, by name."""
    found = hashlib.sha256()
    for name, value in sorted(trainer.accelerator.unwrap_model(trainer.model).state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
