"""Numbers as SVG paths on a plot of 1000 units, and as what stands beside it.

Round ticks for axes of values and of elapsed time.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

_TIME_STEPS_S: Final = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
    172800, 604800, 1209600, 2592000,
)  # fmt: skip


def value_ticks(top: float, most: int = 4) -> Sequence[float]:
    """Return ticks from 0 to at least ``top``, in steps of 1, 2, 2.5 or 5 times a power of ten."""
    if not top > 0 or not math.isfinite(top):
        return (0.0, 1.0)
    raw = top / most
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if base * factor >= raw * (1 - 1e-9))
    return tuple(step * i for i in range(math.ceil(top / step - 1e-9) + 1))


def time_ticks(span_s: float, most: int = 8) -> Sequence[tuple[float, str]]:
    """Return (seconds since the start, label) of round elapsed times within ``span_s``."""
    step = next((s for s in _TIME_STEPS_S if span_s / s <= most), _TIME_STEPS_S[-1])
    unit_s, unit = next(
        ((u, n) for u, n in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")) if span_s >= 2 * u), (1.0, "s")
    )
    times = [step * i for i in range(int(span_s / step + 1e-9) + 1)]
    return [(t, f"{tick_text(t / unit_s)} {unit}" if t else "0") for t in times]


def tick_text(value: float) -> str:
    """Return a round number without trailing zeros, thousands set apart."""
    text = f"{value:,.6f}".rstrip("0").rstrip(".") if abs(value) >= 1e-4 else f"{value:g}"
    return text.replace(",", "\N{THIN SPACE}")


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

WIDTH: Final = 1000


def unit_of(top: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Return size and name of the largest unit of which ``top`` is at least one, else of the smallest."""
    return next(((size, name) for size, name in units if top >= size), units[-1])


def at_percent(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Return where on its axis each tick is (percent), and its label."""
    return [(round(100 * tick / ticks[-1], 2), tick_text(tick)) for tick in ticks]


def numbers(values: "Floats") -> list[float | None]:
    """Return values for JSON, with four digits; NaN is null."""
    return [None if value != value else float(f"{value:.4g}") for value in values.tolist()]


def runs(mask: "npt.NDArray[np.bool_]") -> list[tuple[int, int]]:
    """Return the (first, past last) indices of each run of true values."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _x(index: int, bins: int) -> str:
    return f"{WIDTH * index / bins:.2f}".rstrip("0").rstrip(".")


def _y(value: float, height: int) -> str:
    return f"{height - value:.2f}".rstrip("0").rstrip(".")


def area(mask: "npt.NDArray[np.bool_]", lower: "Floats", upper: "Floats", height: int) -> str:
    """Return a stepped area between two heights, one closed piece a run of the mask."""
    pieces = []
    for start, end in runs(mask):
        there = [f"M{_x(start, len(mask))},{_y(upper[start], height)}"]
        there += [f"V{_y(upper[i], height)}H{_x(i + 1, len(mask))}" for i in range(start, end)]
        back = [f"V{_y(lower[i], height)}H{_x(i, len(mask))}" for i in range(end - 1, start - 1, -1)]
        pieces.append("".join([*there, *back, "Z"]))
    return "".join(pieces)


def steps(values: "Floats", height: int) -> str:
    """Return a stepped line, broken where a value is NaN."""
    import numpy as np

    pieces = []
    for start, end in runs(np.isfinite(values)):
        pieces.append(f"M{_x(start, len(values))},{_y(values[start], height)}")
        pieces += [f"V{_y(values[i], height)}H{_x(i + 1, len(values))}" for i in range(start, end)]
    return "".join(pieces)


def line(values: "Floats", height: int) -> str:
    """Return a line through values at the edges of bins, broken where one is NaN."""
    import numpy as np

    bins = len(values) - 1
    pieces = []
    for start, end in runs(np.isfinite(values)):
        points = (f"{_x(i, bins)},{_y(values[i], height)}" for i in range(start, end))
        pieces.append("M" + "L".join(points))
    return "".join(pieces)


def _ramp_points(values: "Floats", height: int) -> list[str]:
    """Return the points of a cumulative line: 0 at the start, each value at its bin's end."""
    points = [f"0,{height}"]
    return points + [f"{_x(i + 1, len(values))},{_y(value, height)}" for i, value in enumerate(values.tolist())]


def ramp_line(values: "Floats", height: int) -> str:
    """Return a cumulative line."""
    return "M" + "L".join(_ramp_points(values, height))


def ramp(lower: "Floats", upper: "Floats", height: int) -> str:
    """Return the area between two cumulative lines."""
    return "M" + "L".join(_ramp_points(upper, height)) + "L" + "L".join(reversed(_ramp_points(lower, height))) + "Z"
