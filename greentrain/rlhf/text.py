"""Texts as a reward model reads them."""

import copy
import threading
from collections.abc import Sequence
from typing import Any, Literal

from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.errors import BatchError


class TextEncoder:
    """Tokenizes texts for one model. Any thread may call.

    Args:
        tokenizer: Tokenizer of transformers.
        max_tokens: Longest text (tokens); longer ones lose tokens.
        special_tokens: Add what the tokenizer puts around a text. TRL's reward models get none.
        truncation: Side on which they lose them; None: the tokenizer's. The tokenizer stays as it is.

    Raises:
        ConfigError: ``max_tokens`` leaves no room beside the special tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_tokens: int,
        *,
        special_tokens: bool = True,
        truncation: Literal["left", "right"] | None = None,
    ) -> None:
        if truncation is not None and truncation != tokenizer.truncation_side:
            tokenizer = copy.deepcopy(tokenizer)
            tokenizer.truncation_side = truncation
        added = getattr(tokenizer, "num_special_tokens_to_add", None)  # which not everything that tokenizes has
        around = added() if added is not None and special_tokens else 0
        if max_tokens <= around:
            raise ConfigError(
                f"max_tokens={max_tokens}: the tokenizer puts {around} tokens around each text; give more"
            )
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.special_tokens = special_tokens
        self._lock = threading.Lock()  # a fast tokenizer holds the truncation of the call that runs

    def ids(self, texts: Sequence[str], *, cut: bool = True) -> list[list[int]]:
        """Return the token ids of each text, at least one and, where it is to be ``cut``, at most ``max_tokens``.

        An empty text of a tokenizer that puts nothing around it becomes one token of padding, or, where there is none,
        of the end.

        Raises:
            BatchError: There is something else than text among them.
        """
        if isinstance(texts, str):
            raise BatchError("texts is one text: give a list of texts")
        given = list(texts)
        for i, text in enumerate(given):
            if not isinstance(text, str):
                raise BatchError(
                    f"texts[{i}] is a {type(text).__name__}, not a str: a conversation goes through the tokenizer's "
                    "apply_chat_template first"
                )
        if not given:
            return []
        length: dict[str, Any] = {"truncation": True, "max_length": self.max_tokens} if cut else {}
        with self._lock:
            encoded = self.tokenizer(given, add_special_tokens=self.special_tokens, **length)
        rows: list[list[int]] = encoded["input_ids"]
        return [row or [self._nothing()] for row in rows]

    def batch(self, texts: Sequence[str]) -> Batch:
        """Return texts as a batch. Raises as :meth:`ids` does."""
        return Batch.of(self.ids(texts))

    def _nothing(self) -> int:
        """Return the token that stands for an empty text."""
        found = (getattr(self.tokenizer, name, None) for name in ("pad_token_id", "eos_token_id", "unk_token_id"))
        return next((int(token) for token in found if token is not None), 0)
