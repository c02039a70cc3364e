"""Keeps the small networks that some policies are."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from greentrain.policy.carl import Network
from greentrain.policy.outlook import Array

EPSILON: Final = 1e-5
"""Of LayerNorm, as in torch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NormedNetwork(Network):
    """A perceptron with LayerNorm and ReLU between layers, which EcoRL-Sched has."""

    norms: tuple[Array, ...] = ()
    """Behind each layer but the last: (2, width), scale and shift."""

    @classmethod
    def load(cls, path: Path) -> "NormedNetwork":
        """Read what :func:`save` wrote."""
        plain = super(NormedNetwork, cls).load(path)
        assert isinstance(plain, NormedNetwork)
        with np.load(path, allow_pickle=False) as file:
            norms = tuple(file[f"norm_{i}"].astype(np.float64) for i in range(len(plain.weights) - 1))
        return replace(plain, norms=norms)

    def __call__(self, inputs: Array) -> Array:
        """Return (n, actions) logits of (n, inputs)."""
        found = inputs
        for weight, bias, (scale, shift) in zip(self.weights, self.biases, self.norms, strict=False):
            found = found @ weight + bias
            found = found - found.mean(axis=1, keepdims=True)
            found = found / np.sqrt((found**2).mean(axis=1, keepdims=True) + EPSILON) * scale + shift
            found = np.maximum(found, 0.0)
        return found @ self.weights[-1] + self.biases[-1]


def save(network: Network, path: Path) -> None:
    """Write a network in float32, as it was trained."""
    arrays = {f"weight_{i}": w.astype(np.float32) for i, w in enumerate(network.weights)}
    arrays |= {f"bias_{i}": b.astype(np.float32) for i, b in enumerate(network.biases)}
    if isinstance(network, NormedNetwork):
        arrays |= {f"norm_{i}": n.astype(np.float32) for i, n in enumerate(network.norms)}
    about = json.dumps({**network.about, "layers": len(network.weights)}, sort_keys=True)
    np.savez_compressed(path, about=np.array(about), **arrays)  # type: ignore[arg-type]
