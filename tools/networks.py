"""Keeps the small networks that some policies are."""

import json
from pathlib import Path

import numpy as np

from greentrain.policy.carl import Network


def save(network: Network, path: Path) -> None:
    """Write a network in float32, as it was trained."""
    arrays = {f"weight_{i}": w.astype(np.float32) for i, w in enumerate(network.weights)}
    arrays |= {f"bias_{i}": b.astype(np.float32) for i, b in enumerate(network.biases)}
    about = json.dumps({**network.about, "layers": len(network.weights)}, sort_keys=True)
    np.savez_compressed(path, about=np.array(about), **arrays)  # type: ignore[arg-type]
