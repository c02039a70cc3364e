"""Small language models: a GPT (pre-norm blocks, learned positions), and one in the style of LLaMA.

Both have fused attention and tied output weights.

Shapes: B batch, T time, C width, V vocabulary.
"""

import hashlib
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
        _initialize(self, size.layers)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross entropy (nats a token) of ``labels`` (B, T), already shifted by one."""
        x_BTC = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]]
        x_BTC = self.norm(self.blocks(x_BTC))
        logits_BTV = F.linear(x_BTC, self.tokens.weight)
        return F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten())


class Llama(nn.Module):
    """A small next-token model after LLaMA (Touvron et al., arXiv:2302.13971, section 2.2), with tied output weights.

    Args:
        size: Its size.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.width)
        self.blocks = nn.Sequential(*(LlamaBlock(size) for _ in range(size.layers)))
        self.norm = nn.RMSNorm(size.width, eps=1e-5)
        _initialize(self, size.layers)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross entropy (nats a token) of ``labels``, already shifted by one."""
        logits = F.linear(self.norm(self.blocks(self.tokens(input_ids))), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class LlamaBlock(nn.Module):
    """Attention with rotary positions and SwiGLU, each behind an RMSNorm."""

    turn: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, hidden = size.width, 64 * math.ceil(8 * size.width / 3 / 64)
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.attend = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        half = width // size.heads // 2
        angles = torch.outer(torch.arange(size.context), 1e4 ** (-torch.arange(half) / half))
        self.register_buffer("turn", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Return the residual stream behind the block."""
        b, t, c = x_BTC.shape
        q, k, v = self.qkv(self.norm_1(x_BTC)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self._turned(q), self._turned(k), v, is_causal=True)
        x_BTC = x_BTC + self.attend(y.transpose(1, 2).reshape(b, t, c))
        n = self.norm_2(x_BTC)
        mlp: Tensor = self.down(F.silu(self.gate(n)) * self.up(n))
        return x_BTC + mlp

    def _turned(self, x: Tensor) -> Tensor:
        cos, sin = self.turn[:, : x.shape[2]]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def _initialize(model: nn.Module, layers: int) -> None:
    """Draw matrices as GPT-2 does (Radford et al. 2019, section 2.3): residual projections start smaller."""
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            scale = math.sqrt(2 * layers) if name.endswith(("attend.weight", "down.weight")) else 1.0
            nn.init.normal_(weight, std=0.02 / scale)


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


def weights_of(*modules: nn.Module) -> str:
    """Return the SHA-256 of all parameters in FP32: the same in all modes, on devices that are exact."""
    found = hashlib.sha256()
    for module in modules:
        for parameter in module.parameters():
            found.update(parameter.detach().cpu().float().numpy().tobytes())
    return found.hexdigest()
