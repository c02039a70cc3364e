"""Texts as a reward model reads them."""

from collections.abc import Sequence
from typing import Any

from greentrain.fpga_backend.batch import Batch


class TextEncoder:
    """Tokenizes texts for one model.

    Args:
        tokenizer: Of transformers.
        max_tokens: Longer texts lose tokens on the tokenizer's truncation side.
        special_tokens: Add what the tokenizer puts around a text. TRL's reward models get none.
    """

    def __init__(self, tokenizer: Any, max_tokens: int, *, special_tokens: bool = True) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.special_tokens = special_tokens

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, at least one and at most ``max_tokens``."""
        encoded = self.tokenizer(
            list(texts), add_special_tokens=self.special_tokens, truncation=True, max_length=self.max_tokens
        )
        rows: list[list[int]] = encoded["input_ids"]
        return [row or [self._nothing()] for row in rows]

    def batch(self, texts: Sequence[str]) -> Batch:
        """Return texts as a batch."""
        return Batch.of(self.ids(texts))

    def _nothing(self) -> int:
        """Return the token that stands for an empty text."""
        for name in ("pad_token_id", "eos_token_id", "unk_token_id"):
            found = getattr(self.tokenizer, name, None)
            if found is not None:
                return int(found)
        return 0
