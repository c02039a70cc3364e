"""Colours of pictures: a hue a gear, deeper the faster; lines that people with colour blindness can tell apart."""

from collections.abc import Mapping
from typing import Final

from greentrain.policy.menu import OFF, Menu

OFF_COLOUR: Final = "#e4e4e7"
GRID_COLOUR: Final = "#64748b"
_HUES: Final[Mapping[str, tuple[str, str]]] = {
    "fp8": ("#bfe8d2", "#0a6b3d"),
    "bf16": ("#c7dbf5", "#1d4f91"),
    "fp16": ("#e3d3f4", "#5b2b8c"),
    "fp32": ("#f8dcb8", "#a2560a"),
}
"""Pale and deep tint of each gear."""
LINES: Final = (
    "#0a6b3d", "#d55e00", "#0072b2", "#cc79a7", "#b58900", "#56b4e9", "#7f3fbf", "#7b3f00", "#00897b", "#a3123f",
)  # fmt: skip
"""After Okabe and Ito's palette (https://jfly.uni-koeln.de/color/, 2026-11-21), darkened for thin lines."""


def row_colours(menu: Menu) -> list[str]:
    """Return the colour of each row of a menu: that of its gear, deeper the faster among those of the gear."""
    found = []
    for row, action in enumerate(menu.actions):
        if row == OFF or action is None:
            found.append(OFF_COLOUR)
            continue
        peers = [menu.tokens_per_s[k] for k, a in enumerate(menu.actions) if a is not None and a.gear == action.gear]
        low, high = float(min(peers)), float(max(peers))
        share = 1.0 if high <= low else (float(menu.tokens_per_s[row]) - low) / (high - low)
        pale, deep = _HUES.get(action.gear.value, _HUES["bf16"])
        found.append(_between(pale, deep, 0.15 + 0.85 * share))
    return found


def _between(first: str, second: str, share: float) -> str:
    pairs = [(int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)
