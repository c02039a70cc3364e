"""The small GPT as the models of RLHF: policy, critic and reward model.

Shapes: B sequences, T tokens, V vocabulary.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.common.model import GPT


class Policy(nn.Module):
    """Token ids [B, T] to logits [B, T, V].

    Args:
        gpt: Its weights.
    """

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, input_ids: Tensor) -> Tensor:
        return F.linear(hidden(self.gpt, input_ids), self.gpt.tokens.weight)

    def logprobs(self, ids: Tensor, prompt: int, temperature: float = 1.0) -> Tensor:
        """Return ln p of each token behind the prompts [B, T - prompt]."""
        logits = self(ids)[:, prompt - 1 : -1] / temperature
        return -F.cross_entropy(logits.transpose(1, 2), ids[:, prompt:], reduction="none")

    @torch.no_grad()
    def generate(
        self,
        prompts: Tensor,
        new: int,
        ends: Tensor,
        *,
        draw: torch.Generator,
        temperature: float = 1.0,
        finished: Callable[[int, Tensor], None] = lambda row, ids: None,
    ) -> tuple[Tensor, Tensor]:
        """Continue prompts by tokens drawn from the policy.

        Args:
            prompts: [B, P]
            new: Most tokens of a completion, N.
            ends: For each token of the vocabulary, True if it ends a completion.
            draw: Where chance comes from.
            temperature: Divides the logits.
            finished: Called with a row and its ids, without padding, as soon as it ends.

        Returns:
            Token ids [B, P + N], zeros behind the end, and the mask of the completions [B, N].
        """
        ids = F.pad(prompts, (0, new))
        mask = torch.zeros(len(prompts), new)
        alive = torch.arange(len(prompts))
        for t in range(prompts.shape[1], ids.shape[1]):
            logits = self(ids[alive, :t])[:, -1] / temperature
            token = torch.multinomial(logits.softmax(-1), 1, generator=draw)[:, 0]
            ids[alive, t] = token
            mask[alive, t - prompts.shape[1]] = 1
            over = ends[token] if t < ids.shape[1] - 1 else torch.ones_like(token, dtype=torch.bool)
            for row in alive[over].tolist():
                finished(row, ids[row, : t + 1])
            alive = alive[~over]
            if not len(alive):
                break
        return ids, mask


class Critic(nn.Module):
    """Token ids [B, T] to the value expected behind each token [B, T].

    Args:
        gpt: Its weights.
    """

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt
        self.value = zeros(gpt)

    def forward(self, input_ids: Tensor) -> Tensor:
        found: Tensor = self.value(hidden(self.gpt, input_ids))[..., 0]
        return found


class Reward(nn.Module):
    """Token ids [B, T], all of one length, to a score a sequence [B, 1], read at its last token.

    Args:
        gpt: Its weights.
    """

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt
        self.score = zeros(gpt)

    def forward(self, input_ids: Tensor) -> Tensor:
        found: Tensor = self.score(hidden(self.gpt, input_ids)[:, -1])
        return found

    def at(self, ids: Tensor, last: Tensor) -> Tensor:
        """Return scores [B] of padded sequences, read at the token of this index [B]."""
        rows = hidden(self.gpt, ids)[torch.arange(len(ids)), last]
        found: Tensor = self.score(rows)[:, 0]
        return found


def hidden(gpt: GPT, ids: Tensor) -> Tensor:
    """Return what the GPT's vocabulary head reads [B, T, width]."""
    found: Tensor = gpt.norm(gpt.blocks(gpt.tokens(ids) + gpt.positions.weight[: ids.shape[1]]))
    return found


def zeros(gpt: GPT) -> nn.Linear:
    """Return a layer of one output that begins as zero."""
    layer = nn.Linear(gpt.tokens.embedding_dim, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
