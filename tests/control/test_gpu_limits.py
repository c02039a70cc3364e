"""What the thread that books tells clocks."""

from collections.abc import Mapping
from typing import Any

from greentrain.control.controller import GpuLimits
from greentrain.types import CarbonPoint, LedgerEntry


class Stall:
    """Remembers which intervals count."""

    below, changes, reason = 0.0, 0, ""

    def __init__(self) -> None:
        self.ordinary: list[bool] = []

    def observe(
        self, seconds: float, phase_s: Mapping[str, float], steps: int, states: object, *, ordinary: bool = True
    ) -> None:
        self.ordinary.append(ordinary)


def entry(t_s: float) -> LedgerEntry:
    fields: dict[str, Any] = {"phase_inclusive_j": {}, "pue": 1.0, "operational_g": None, "embodied_g": None}
    point = CarbonPoint(t0_unix_s=t_s, t1_unix_s=t_s + 10.0, g_per_kwh=None, zone="", source="")
    return LedgerEntry(t0_unix_s=t_s, t1_unix_s=t_s + 10.0, devices={}, phase_s={}, carbon=point, steps=30, **fields)


def test_an_interval_in_which_profiling_ended_says_nothing_about_stalls() -> None:
    stall: Any = Stall()
    clocks: Any = object()
    limits = GpuLimits(None, clocks, stall)
    before, within, after = entry(0.0), entry(10.0), entry(20.0)
    limits.look(before)
    limits.look(before, profiling=True)
    limits.look(before)  # over, and not booked yet
    limits.look(within)
    limits.look(after)
    assert stall.ordinary == [True, False, True]
