"""A function that is constant between its edges, and its exact mean over any interval."""

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

GAP_STEPS: Final = 1.5
"""Two rows further apart than this many regular steps have a hole between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """A function that is ``values[i]`` from ``t_s[i]`` to ``t_s[i + 1]``, and unknown outside."""

    t_s: "array[float]"
    """n + 1 edges (s), the first at 0."""
    values: "array[float]"
    """n values."""
    integral: "array[float]"
    """n + 1 integrals from 0 to each edge."""
    filled_before: "array[int]"
    """n + 1 numbers of filled-in values before each edge."""
    filled_s: float
    """Time of filled-in values (s)."""

    @classmethod
    def of(cls, t_s: "array[float]", values: "array[float]", filled: "array[int]") -> "Staircase":
        """Return the function of n + 1 edges (s), n values, and n flags: 1 for a value that is only filled in."""
        widths = [b - a for a, b in pairwise(t_s)]
        areas = (value * width for value, width in zip(values, widths, strict=True))
        return cls(
            t_s=t_s,
            values=values,
            integral=array("d", accumulate(areas, initial=0.0)),
            filled_before=array("L", accumulate(filled, initial=0)),
            filled_s=sum(width for width, flag in zip(widths, filled, strict=True) if flag),
        )

    def mean(self, t0: float, t1: float) -> tuple[float | None, bool]:
        """Return the mean from t0 to t1 and whether a filled-in value is in it; None outside."""
        t = self.t_s
        if not (0 <= t0 <= t1 <= t[-1] and t0 < t[-1]):
            return None, False
        i0 = bisect_right(t, t0) - 1
        i1 = max(i0, bisect_left(t, t1) - 1)
        filled = self.filled_before[i1 + 1] > self.filled_before[i0]
        if i0 == i1:
            return self.values[i0], filled
        inner = self.integral[i1] - self.integral[i0 + 1]
        area = self.values[i0] * (t[i0 + 1] - t0) + inner + self.values[i1] * (t1 - t[i1])
        return area / (t1 - t0), filled
