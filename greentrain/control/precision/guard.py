"""Leave a gear of 8 or 4 bits where its noise drowns the gradient.

Quantised training stops being effective where the gradient's norm falls under about sqrt(3) times the quantisation
noise: Chmiel, Fishman, Banner and Soudry, "FP4 All the Way", arXiv 2505.19115 (abstract). They find it with FP4; here
it is applied to each gear of 8 or 4 bits, whose noise is measured as a share of the same gradient (``noise.py``).
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from greentrain.types import Gear

if TYPE_CHECKING:
    from greentrain.control.precision.noise import Noise  # loads torch

LEAVE: Final = math.sqrt(3)
"""Norm over noise under which FP8 is left: arXiv 2505.19115."""
RETURN: Final = 1.5 * LEAVE
"""And above which it may be used again. The factor is our own choice: single probes of the ratio vary by a quarter, and
their mean over ten by less than a tenth."""


class QualityGuard:
    """Says whether a gear must not be used, with hysteresis.

    Args:
        gear: FP8, MXFP8 or NVFP4.
    """

    def __init__(self, gear: Gear = Gear.FP8) -> None:
        self._gear, self._left = gear, False

    def judge(self, noise: "Noise") -> str | None:
        """Return why the gear must not be used now, in a sentence; None if it may.

        Args:
            noise: The smoothed noise of the gears, after each probe; in whatever gear training runs.
        """
        sigma = noise.sigma.get(self._gear)
        if sigma is None or not (sigma > 0 and math.isfinite(noise.grad_norm)):
            return None
        ratio = noise.grad_norm / sigma
        self._left = ratio < (RETURN if self._left else LEAVE)
        if not self._left:
            return None
        name = self._gear.upper()
        text = f"gradient norm is {ratio:.2g} x {name}'s noise"
        if ratio < LEAVE:
            return f"{text}, under sqrt(3) (arXiv 2505.19115)"
        return f"{text}; it fell under sqrt(3) (arXiv 2505.19115), and {name} comes back above {RETURN:.2g}"

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, in plain JSON types."""
        return {"left": self._left}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        self._left = bool(state.get("left", False))
