"""The middle between what devices reach of their peak and what runs take beside the search's optimum.

Geometric mean of two device-hours, with equal weights: they err in different ways, the table knowing no layout, batch
or network, the search no software. The interval is ``width`` times as wide (log) as the table's, which knows classes
that nobody ran on; the width comes from families of models left out. ``benchmarks/estimator.py --write`` makes it.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, TypeVar

from greentrain.errors import ConfigError
from greentrain.estimate import mfu
from greentrain.estimate.gemm import Floats
from greentrain.estimate.mfu import MfuTable
from greentrain.estimate.values import Range

WEIGHT: Final = 0.5
"""Of the search's part; set before it was tried."""
_Number = TypeVar("_Number", float, Floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """What the blend has learnt from published runs."""

    peak: MfuTable
    """Share of the 16-bit peak."""
    optimum: MfuTable
    """Share of real hours that the search's optimum is."""
    width: float
    """Of the interval's logarithm, over that of the table's interval."""

    def hours(self, by_table: Range, optimum_h: float, share: float) -> Range:
        """Return device-hours, 10th and 90th percentile over families that were not seen.

        Args:
            by_table: Device-hours by ``peak``.
            optimum_h: Device-hours of the search's optimum.
            share: Which share of real hours that is, by ``optimum``.
        """
        mid = middle(by_table.mid, optimum_h / share)
        return Range(
            low=mid * (by_table.low / by_table.mid) ** self.width,
            mid=mid,
            high=mid * (by_table.high / by_table.mid) ** self.width,
        )


def middle(by_table: _Number, by_search: _Number) -> _Number:
    """Return the blend of two times."""
    blended: _Number = by_table ** (1.0 - WEIGHT) * by_search**WEIGHT
    return blended


@functools.cache
def shipped() -> Blend:
    """Return the package's."""
    text = resources.files("greentrain.estimate").joinpath("blend.toml").read_text(encoding="utf-8")
    return Blend(peak=mfu.shipped(), optimum=mfu.of_optimum(), width=width(tomllib.loads(text)))


def width(data: Mapping[str, Any]) -> float:
    """Read the width as ``blend.toml`` has it.

    Raises:
        ConfigError: It is missing.
    """
    if "width" not in data:
        raise ConfigError("blend.toml lacks 'width': make it with benchmarks/estimator.py --write")
    return float(data["width"])
