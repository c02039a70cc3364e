"""Time of matrix products: tiles and waves of the device, the inner dimension's ramp, and the memory below it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from greentrain.estimate.accelerator import Accelerator
from greentrain.estimate.practice import Practice, peak_flop_s
from greentrain.types import Gear

Floats = npt.NDArray[np.float64]
TILE: Final = 128
"""Rows and columns of an output that one unit computes at a time."""
RAMP: Final = 192.0
"""Inner dimension at which half of the rate is reached: filling and draining a tile."""
LAUNCH_S: Final = 4e-6
LONG_WAVES: Final = 4
"""From here on kernels hide the last, half-filled wave."""
LONG_QUALITY: Final = 0.9
LEAST_QUALITY: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What a device does in practice, in one precision."""

    product_flop_s: float
    attention_flop_s: float
    units: float
    memory_bytes_s: float
    link_bytes_s: float
    network_bytes_s: float
    operand_bytes: float
    """Of one operand of a product."""
    result_bytes: float


def rates(accelerator: Accelerator, precision: Gear, practice: Practice) -> DeviceRates:
    """Return a device's rates.

    Raises:
        ConfigError: The device has no such precision.
    """
    around = Gear.BF16 if precision is Gear.FP8 else precision
    wide = 4.0 if precision is Gear.FP32 else 2.0
    return DeviceRates(
        product_flop_s=peak_flop_s(accelerator, precision) * practice.eta.value,
        attention_flop_s=peak_flop_s(accelerator, around) * practice.attention.value,
        units=practice.units.value,
        memory_bytes_s=accelerator.memory_bytes_s.value * practice.memory_rate.value,
        link_bytes_s=accelerator.link_bytes_s.value * practice.link_rate.value,
        network_bytes_s=accelerator.network_bytes_s.value * practice.network_rate.value,
        operand_bytes=1.0 if precision is Gear.FP8 else wide,
        result_bytes=wide,
    )


def gemm_s(rates: DeviceRates, m: Floats, n: Floats, k: Floats | float, groups: Floats | float = 1.0) -> Floats:
    """Return seconds of ``groups`` products of [m, k] by [k, n] in one launch.

    Args:
        rates: The device.
        m: Rows.
        n: Columns.
        k: Inner dimension.
        groups: Products that share the launch, such as the experts of a layer.
    """
    tiles = groups * np.ceil(m / TILE) * np.ceil(n / TILE)
    waves = np.ceil(tiles / rates.units)
    used = groups * m * n / (waves * rates.units * TILE**2)
    used = np.where(waves >= LONG_WAVES, np.maximum(used, LONG_QUALITY), np.maximum(used, LEAST_QUALITY))
    flop = 2.0 * groups * m * n * k
    computing_s = flop / (rates.product_flop_s * np.minimum(used, 1.0) * (k / (k + RAMP)))
    moved = groups * (rates.operand_bytes * (m * k + n * k) + rates.result_bytes * m * n)
    slowest: Floats = np.maximum(computing_s, moved / rates.memory_bytes_s) + LAUNCH_S
    return slowest
