"""Random rows with the extremes that quantisation must survive."""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Floats = npt.NDArray[np.float32]

KINDS = ("normal", "zero", "huge", "tiny", "subnormal", "outlier", "ties", "equal")


def rows(rng: np.random.Generator, count: int, width: int, kind: str) -> Floats:
    """Return rows [count, width] of a kind.

    ``normal``; all ``zero``; ``huge``; ``tiny``, beside the floor of a row's maximum; ``subnormal``; one ``outlier`` a
    row; ``ties``, where a quantised element lies halfway between two integers; all elements ``equal``.
    """
    x = rng.standard_normal((count, width))
    match kind:
        case "zero":
            x *= rng.choice([0.0, -0.0], size=x.shape)
        case "huge":
            x *= 1e17
        case "tiny":
            x *= 2.0**-40
        case "subnormal":
            x *= 2.0**-130
        case "outlier":
            x[:, rng.integers(0, width)] = 1e4
        case "ties":
            x = rng.integers(-254, 255, x.shape) / 2
            x[:, 0] = 127
        case "equal":
            x = np.full_like(x, rng.standard_normal())
    return x.astype(np.float32)


seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from(KINDS)
starts = st.sampled_from([0, 0, 1, 15, 16, 21])
