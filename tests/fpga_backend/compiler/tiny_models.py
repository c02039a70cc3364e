"""Small random models of each family, and what their own code says of a batch."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import nn

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.compiler import compile

hf: Any = transformers  # its configurations take more than they declare
Floats = npt.NDArray[np.float32]

VOCABULARY = 97
POSITIONS = 40
MAX_TOKENS = 24
COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 80,
    "max_position_embeddings": POSITIONS,
}
LLAMA: Mapping[str, Any] = {
    **COMMON,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
GPT2: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class MeanReward(nn.Module):
    """An encoder, the mean over the mask, a linear head: a reward model as users write it."""

    def __init__(self, encoder: nn.Module, width: int = 48) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, 1)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        reward: torch.Tensor = self.head(pooled).squeeze(-1)
        return reward


class LastReward(nn.Module):
    """A decoder and a head of two layers at the last token that the mask keeps."""

    def __init__(self, decoder: nn.Module, width: int = 48) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.decoder(input_ids, attention_mask=attention_mask).last_hidden_state
        last = (attention_mask.sum(1) - 1).view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
        return {"reward": self.head(hidden.gather(1, last)).flatten()}


class WrittenOut(nn.Module):
    """One causal layer whose attention is written out: softmax of masked, scaled products."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 48)
        self.qkv = nn.Linear(48, 144)
        self.head = nn.Linear(48, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        q, k, v = (y.unflatten(-1, (6, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(later, float("-inf")).softmax(-1)
        scores: torch.Tensor = self.head((x + (weights @ v).transpose(1, 2).flatten(2))[:, -1])
        return scores


PHI3: Mapping[str, Any] = {**LLAMA, "pad_token_id": 0}
LONG: Mapping[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}
GEMMA: Mapping[str, Any] = {**LLAMA, "head_dim": 8, "pad_token_id": 0, "query_pre_attn_scalar": 12, "sliding_window": 6}
MODERN: Mapping[str, Any] = {
    **COMMON,
    **dict.fromkeys(("pad_token_id", "sep_token_id"), 0),
    **dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id"), 1),
    "local_attention": 8,
}
BUILDERS: Mapping[str, Callable[[], nn.Module]] = {
    "bert 3 labels": lambda: hf.BertForSequenceClassification(hf.BertConfig(**COMMON, num_labels=3)),
    "bert mean": lambda: MeanReward(hf.BertModel(hf.BertConfig(**COMMON), add_pooling_layer=False)),
    "roberta": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**COMMON)),
    "distilbert": lambda: hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(
            vocab_size=VOCABULARY, dim=48, hidden_dim=80, n_layers=2, n_heads=6, max_position_embeddings=POSITIONS
        )
    ),
    "albert": lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(**COMMON, embedding_size=16)),
    "llama score": lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**LLAMA, num_labels=1, pad_token_id=0)),
    "llama biases": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True)),
    "llama reward": lambda: LastReward(hf.LlamaModel(hf.LlamaConfig(**LLAMA))),
    "smollm": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, tie_word_embeddings=True, rope_theta=1e5)),
    "llama3 positions": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(
            **LLAMA,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        )
    ),
    "qwen2 score": lambda: hf.Qwen2ForSequenceClassification(hf.Qwen2Config(**LLAMA, num_labels=2, pad_token_id=0)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**LLAMA, tie_word_embeddings=True)),
    "gpt2 score": lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(**GPT2, num_labels=1, pad_token_id=0)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**LLAMA, head_dim=8, pad_token_id=0)),
    "gemma2 score": lambda: hf.Gemma2ForSequenceClassification(
        hf.Gemma2Config(**GEMMA, num_labels=1, attn_logit_softcapping=2.0)
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(
            **{**GEMMA, "num_hidden_layers": 3},
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        )
    ),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**LLAMA, head_dim=10)),
    "qwen3 score": lambda: hf.Qwen3ForSequenceClassification(
        hf.Qwen3Config(**LLAMA, head_dim=10, num_labels=1, pad_token_id=0)
    ),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**LLAMA, sliding_window=7)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**PHI3)),
    "phi3 long": lambda: hf.Phi3ForCausalLM(
        hf.Phi3Config(
            **{**PHI3, "max_position_embeddings": 60, "original_max_position_embeddings": 30},
            rope_parameters=LONG,
            sliding_window=9,
        )
    ),
    "dynamic positions": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**LLAMA, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    ),
    "modernbert": lambda: hf.ModernBertForSequenceClassification(hf.ModernBertConfig(**MODERN, num_labels=1)),
    "modernbert mean": lambda: hf.ModernBertForSequenceClassification(
        hf.ModernBertConfig(**MODERN, num_labels=2, classifier_pooling="mean")
    ),
    "written out": WrittenOut,
    "granite": lambda: hf.GraniteForCausalLM(
        hf.GraniteConfig(**LLAMA, logits_scaling=3.0, residual_multiplier=0.5, embedding_multiplier=2.0)
    ),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=48,
            word_embed_proj_dim=48,
            num_hidden_layers=2,
            num_attention_heads=6,
            ffn_dim=80,
            max_position_embeddings=POSITIONS,
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
}


def build(name: str, seed: int = 0) -> Any:
    """Return a model whose weights, biases and gains are all random, in evaluation mode."""
    model = BUILDERS[name]()
    randomise(model, seed)
    return model.eval()


@functools.cache
def compiled(name: str) -> tuple[nn.Module, Artifact]:
    """Return a model and its artifact, which nobody may change."""
    model = build(name)
    return model, compile(model, max_tokens=MAX_TOKENS)


def randomise(model: nn.Module, seed: int) -> None:
    """Replace every parameter by random numbers that keep rows at their size."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            numbers = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(numbers * 1.3 / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(0.2 * numbers + (1.0 if name.endswith("weight") else 0.0))


def sequences(seed: int = 3, count: int = 8, longest: int = 20) -> list[npt.NDArray[np.int64]]:
    """Return token ids of many lengths; 0, 1 and 2 are special to some models and left out."""
    random = np.random.default_rng(seed)
    return [random.integers(3, VOCABULARY, n) for n in random.integers(2, longest + 1, count)]


@torch.no_grad()
def own_scores(model: nn.Module, batch: Batch, *, mask: bool) -> Floats:
    """Ask the model itself for scores [sequences, labels], one sequence after the other."""
    found = []
    for i, row in enumerate(batch.ids):
        ids = torch.from_numpy(row).long()[None]
        extra: dict[str, Any] = {"attention_mask": torch.ones_like(ids)} if mask else {}
        if batch.types is not None:
            extra["token_type_ids"] = torch.from_numpy(batch.types[i]).long()[None]
        output = model(ids, **extra)
        tensor = output if isinstance(output, torch.Tensor) else next(iter(output.values()))
        found.append(tensor.reshape(-1).numpy())
    return np.stack(found)


@torch.no_grad()
def own_logprobs(model: nn.Module, batch: Batch) -> list[Floats]:
    """Ask the model itself for ln p of every token given those before it."""
    found = []
    for row in batch.ids:
        ids = torch.from_numpy(row).long()
        logits = model(ids[None]).logits[0, :-1]
        found.append(logits.log_softmax(-1)[torch.arange(len(row) - 1), ids[1:]].numpy())
    return found


def own(model: nn.Module, batch: Batch) -> Floats:
    """Ask the model itself for what its program returns, as one row of numbers."""
    if isinstance(model, transformers.PreTrainedModel) and "ForSequence" not in type(model).__name__:
        return np.concatenate(own_logprobs(model, batch))
    return own_scores(model, batch, mask=isinstance(model, MeanReward | LastReward)).reshape(-1)


def flat(result: Result) -> Floats:
    """Return a device's scores or log-probabilities as one row of numbers."""
    return np.concatenate(result.logprobs) if result.logprobs is not None else np.asarray(result.scores).reshape(-1)
