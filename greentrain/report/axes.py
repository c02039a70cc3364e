"""Round ticks for axes of values and of elapsed time."""

import math
from collections.abc import Sequence
from typing import Final

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
