"""A reference model that is none: its log-probabilities come from an offload device.

TRL's padded matrices are read as the sequences in them, and the log-probabilities go back to TRL's places.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.errors import BatchError
from greentrain.rlhf.engine import OffloadEngine, Ticket
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from greentrain.rlhf.trl.late_values import submit_ahead

IGNORED = -100
"""Label of a token that is not scored, as everywhere in transformers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledRow:
    """A sequence of a padded matrix that holds at least one label."""

    ids: npt.NDArray[np.int32]
    """Without padding [tokens]."""
    prompt_tokens: int
    """How many of them precede the first label."""
    targets: npt.NDArray[np.intp]
    """Flat places of its log-probabilities in [sequences, tokens - 1]."""
    picked: npt.NDArray[np.bool_]
    """Which of the tokens behind the prompt have a label."""


def labelled_rows(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> list[LabelledRow]:
    """Return the labelled sequences of a padded batch.

    Args:
        input_ids: Token ids [sequences, tokens].
        attention_mask: Matrix of the same shape; 0 marks padding.
        labels: Matrix of the same shape; ``IGNORED`` where no log-probability is wanted.

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
        found.append(LabelledRow(ids=matrix[row, places], prompt_tokens=prompt, targets=targets, picked=picked))
    return found


def key_of(ids: Any, prompt_tokens: int = 0) -> bytes:
    """Return what a sequence is known by: its tokens, and where its prompt ends."""
    return prompt_tokens.to_bytes(4, "little") + np.asarray(ids, dtype=np.int32).tobytes()


_HARMLESS = {"use_cache", "output_router_logits"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOutput:
    """What TRL reads of a reference's forward."""

    log_probs: torch.Tensor
    """Of the next token [sequences, tokens - 1], 0 where the label is ignored."""
    entropy: None = None
    aux_loss: None = None


class OffloadedReference(torch.nn.Module):
    """Stands where TRL keeps its ``ref_model``; has no parameters.

    Positions count from a sequence's first token. A model with learnt positions that TRL feeds left-padded rows, as
    GPT-2, sees others there.

    Args:
        engine: Engine that has a reference pass.
        temperature: Temperature of the trainer; None: it is not checked here.

    Raises:
        ConfigError: There is no reference pass, it has no log-probabilities, or it was compiled for another
            temperature.
    """

    def __init__(self, engine: OffloadEngine, temperature: float | None = None) -> None:
        super().__init__()
        self.engine = engine
        frozen = engine.of(PassKind.REFERENCE)
        if frozen.program.labels:
            raise ConfigError(
                f"the reference pass returns {frozen.program.labels} scores a sequence: compile the language model, "
                "not a sequence classifier"
            )
        if temperature is not None and temperature != frozen.temperature:
            raise ConfigError(
                f"the policy samples at temperature {temperature}, and the reference pass was placed with "
                f"{frozen.temperature}: compile(..., temperature={temperature}) and place(..., "
                f"temperature={temperature}), since TRL divides both models' logits by it"
            )

    def submit(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        *,
        stream: Stream | None = None,
    ) -> Callable[[], torch.Tensor]:
        """Hand in a padded batch.

        Args:
            input_ids: Token ids [sequences, tokens].
            attention_mask: Matrix of the same shape, 0 at padding.
            labels: Matrix of the same shape, -100 where no log-probability is wanted.
            stream: Stream in which some sequences may be under way already, by :func:`key_of`.

        Returns:
            Waits for the log-probabilities: float32 [sequences, tokens - 1] on the trainer's device, 0 where the label
            is ignored. It raises OffloadError where the device failed and there is no other.

        Raises:
            BatchError: A sequence does not fit the model.
        """
        rows = labelled_rows(input_ids, attention_mask, labels)
        keys = [key_of(row.ids, row.prompt_tokens) for row in rows]
        known = [i for i, key in enumerate(keys) if stream is not None and key in stream]
        fresh = sorted(set(range(len(keys))) - set(known))

        def hand_in() -> Ticket:
            ids, prompts = zip(*((rows[i].ids, rows[i].prompt_tokens) for i in fresh), strict=True)
            return self.engine.submit(PassKind.REFERENCE, Batch(ids=ids, prompt_tokens=prompts))

        ticket: Ticket | None = None
        if fresh:
            with submit_ahead("a reference pass"):
                ticket = hand_in()

        def wait() -> torch.Tensor:
            found: dict[int, npt.NDArray[np.float32]] = {}
            if stream is not None and known:
                found |= zip(known, stream.result([keys[i] for i in known]).logprobs or (), strict=True)
            if fresh:
                found |= zip(fresh, (ticket or hand_in()).result().logprobs or (), strict=True)
            sequences, tokens = input_ids.shape
            spread = np.zeros(sequences * (tokens - 1), dtype=np.float32)
            for i, row in enumerate(rows):
                spread[row.targets] = found[i][row.picked]
            return torch.from_numpy(spread.reshape(sequences, tokens - 1)).to(input_ids.device)

        return wait

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        fused_lm_head: bool = False,
        **others: Any,
    ) -> ReferenceOutput:
        """Compute log-probabilities as a model under TRL's fused head does, and wait for them.

        Raises:
            ConfigError: Called in a way that TRL 1.15 and 1.16 do not, or with images.
        """
        strange = sorted(name for name, value in others.items() if value is not None and name not in _HARMLESS)
        if attention_mask is None or labels is None or not fused_lm_head or strange:
            given = f"with {', '.join(strange)}" if strange else "without attention_mask, labels or fused_lm_head=True"
            raise ConfigError(
                f"the offloaded reference was called {given}: it reads padded token ids alone, so images, packed "
                "sequences and other inputs need a reference in the trainer"
            )
        return ReferenceOutput(log_probs=self.submit(input_ids, attention_mask, labels)())
