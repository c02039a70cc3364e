"""Padded matrices as devices read them, and log-probabilities back in TRL's places."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.errors import BatchError

IGNORED = -100
"""Label of a token that is not scored, as everywhere in transformers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The sequences of a padded matrix that hold at least one label."""

    ids: tuple[npt.NDArray[np.int32], ...]
    """Without padding, [tokens] each."""
    prompt_tokens: tuple[int, ...]
    """How many of them precede the first label."""
    targets: tuple[npt.NDArray[np.intp], ...]
    """Flat places of a sequence's log-probabilities in [sequences, tokens - 1]."""
    picked: tuple[npt.NDArray[np.bool_], ...]
    """Which of the tokens behind the prompt have a label."""
    shape: tuple[int, int]
    """[sequences, tokens] of the matrix."""

    @classmethod
    def of(cls, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> "Rows":
        """Read a padded batch.

        Args:
            input_ids: [sequences, tokens].
            attention_mask: The same shape; 0 marks padding.
            labels: The same shape; ``IGNORED`` where no log-probability is wanted.

        Raises:
            BatchError: A sequence has no prompt: nothing predicts its first token.
        """
        matrix = input_ids.detach().cpu().numpy().astype(np.int32)
        kept = attention_mask.detach().cpu().numpy() != 0
        wanted = (labels.detach().cpu().numpy() != IGNORED) & kept
        wanted[:, 0] = False
        found = []
        for row in np.flatnonzero(wanted.any(axis=1)):
            places = np.flatnonzero(kept[row])
            marked = wanted[row, places]
            prompt = int(marked.argmax())
            if prompt == 0:
                raise BatchError(
                    f"sequence {row} has no prompt: its first token has nothing to be predicted from; give every "
                    "prompt at least one token, such as the beginning-of-sequence token"
                )
            picked = marked[prompt:]
            targets = row * (matrix.shape[1] - 1) + places[prompt:][picked] - 1
            found.append((matrix[row, places], prompt, targets, picked))
        return cls(
            ids=tuple(ids for ids, _, _, _ in found),
            prompt_tokens=tuple(prompt for _, prompt, _, _ in found),
            targets=tuple(targets for _, _, targets, _ in found),
            picked=tuple(picked for _, _, _, picked in found),
            shape=(matrix.shape[0], matrix.shape[1]),
        )

    @property
    def keys(self) -> tuple[bytes, ...]:
        """What each sequence is known by."""
        return tuple(key_of(ids, prompt) for ids, prompt in zip(self.ids, self.prompt_tokens, strict=True))

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return some of the sequences as a batch."""
        return Batch(
            ids=tuple(self.ids[i] for i in numbers), prompt_tokens=tuple(self.prompt_tokens[i] for i in numbers)
        )

    def spread(self, logprobs: Sequence[npt.NDArray[np.float32]]) -> torch.Tensor:
        """Return log-probabilities [sequences, tokens - 1] of the next token, 0 where there is no label."""
        out = np.zeros(self.shape[0] * (self.shape[1] - 1), dtype=np.float32)
        for row, targets, picked in zip(logprobs, self.targets, self.picked, strict=True):
            out[targets] = row[picked]
        return torch.from_numpy(out.reshape(self.shape[0], self.shape[1] - 1))


def key_of(ids: Any, prompt_tokens: int = 0) -> bytes:
    """Return what a sequence is known by: its tokens, and where its prompt ends."""
    return prompt_tokens.to_bytes(4, "little") + np.asarray(ids, dtype=np.int32).tobytes()
