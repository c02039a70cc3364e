"""A reward model of Hugging Face that scores fifteen words: a folder with weights and tokenizer, made in a moment."""

from pathlib import Path

import pytest

WORDS = ["a", "good", "bad", "film", "plot", "was", "the", "very", "not", "at", "all", "fine", "dull", "bright", "slow"]
MAX_TOKENS = 32


def write(path: Path) -> Path:
    """Write the model and return its folder."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    import torch

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(["?", *WORDS])}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(path)
    config = transformers.BertConfig(
        vocab_size=1 + len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=MAX_TOKENS,
        num_labels=1,
        initializer_range=0.3,
    )
    torch.manual_seed(3)
    transformers.BertForSequenceClassification(config).save_pretrained(path)
    return path
