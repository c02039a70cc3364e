"""A small GPT: pre-norm blocks, learned positions, fused attention, tied output weights.

Shapes: B batch, T time, C width, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a GPT. The default has 10.5 M parameters with a vocabulary of 2,048."""

    vocab: int
    context: int = 128
    width: int = 320
    layers: int = 8
    heads: int = 5


class Block(nn.Module):
    """Attention and a four times wider MLP, each added to the residual stream."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_1 = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.attend = nn.Linear(size.width, size.width, bias=False)
        self.norm_2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        b, t, c = x_BTC.shape
        q, k, v = self.qkv(self.norm_1(x_BTC)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.attend(y.transpose(1, 2).reshape(b, t, c))
        x_BTC = x_BTC + self.down(F.gelu(self.up(self.norm_2(x_BTC))))
        return x_BTC


class GPT(nn.Module):
    """Next-token model.

    Args:
        size: Its size.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:  # GPT-2 (Radford et al. 2019, section 2.3): residual projections start smaller
                scale = math.sqrt(2 * size.layers) if name.endswith(("attend.weight", "down.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 / scale)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross entropy (nats a token) of ``labels`` (B, T), already shifted by one."""
        x_BTC = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]]
        x_BTC = self.norm(self.blocks(x_BTC))
        logits_BTV = F.linear(x_BTC, self.tokens.weight)
        return F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten())


def build_optimizer(model: nn.Module, steps: int, peak: float) -> tuple[torch.optim.AdamW, "Schedule"]:
    """Return AdamW with decay on matrices only, and its schedule: 10 % warm-up, then a cosine down to 5 %."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95))

    def factor(step: int) -> float:
        warm = max(1, steps // 10)
        done = min(1.0, max(0.0, (step - warm) / max(1, steps - warm)))
        return min(1.0, (step + 1) / warm) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


Schedule = torch.optim.lr_scheduler.LambdaLR
