"""How fast the simulation of the array is on this machine: ``python -m tools.rtl_speed``."""

import time
from dataclasses import dataclass

import numpy as np

from tools.rtl_simulator import Simulator

INNER = 768
"""Inner dimension of the measured products: the hidden width of a BERT-base encoder (arXiv 1810.04805)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Of the simulation on the CPU, measured. Nothing of it holds for a card."""

    macs: int
    """Multiply-accumulates of the array at one clock."""
    cycles: int
    """Clocks that were simulated."""
    cycles_per_s: float
    mac_per_s: float
    """Useful ones: without filling and draining."""


def measure(simulator: Simulator, *, least_s: float = 1.0) -> Speed:
    """Simulate products of random integers until ``least_s`` seconds have passed.

    Args:
        simulator: The array; its compilation is not in the time.
        least_s: How long to measure (s).
    """
    random = np.random.default_rng(0)
    m, n = 8 * simulator.row_pairs, 4 * simulator.columns
    a = random.integers(-127, 128, (m, INNER), dtype=np.int8)
    w = random.integers(-127, 128, (n, INNER), dtype=np.int8)
    simulator.gemm(a, w)  # not in the time: caches, the clock of the CPU
    cycles, products = 0, 0
    begun_s = time.perf_counter()
    while (taken_s := time.perf_counter() - begun_s) < least_s or not products:
        cycles += simulator.gemm(a, w).cycles
        products += 1
    return Speed(
        macs=simulator.macs,
        cycles=cycles,
        cycles_per_s=cycles / taken_s,
        mac_per_s=products * m * n * INNER / taken_s,
    )


def main() -> None:
    """Print the speed of arrays of several sizes."""
    for row_pairs, columns in ((4, 8), (8, 8), (8, 16)):
        with Simulator(row_pairs=row_pairs, columns=columns) as simulator:
            speed = measure(simulator)
        print(
            f"{2 * row_pairs} x {columns} array: {speed.cycles_per_s / 1e3:.0f} kcycles/s, "
            f"{speed.mac_per_s / 1e6:.0f} million multiply-accumulates a second (measured, simulation on this CPU)"
        )


if __name__ == "__main__":
    main()
