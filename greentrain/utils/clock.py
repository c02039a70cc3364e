"""Time, injectable: the same objects run on the machine's clocks and on a test's."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two scales of time."""

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never jumps."""

    def unix_s(self) -> float:
        """Return seconds since the epoch, UTC."""


class SystemClock:
    """The machine's CLOCK_MONOTONIC and CLOCK_REALTIME, without a Python frame between."""

    monotonic_s = staticmethod(time.monotonic)
    unix_s = staticmethod(time.time)
