"""A clock that stands still but for who moves it."""

from dataclasses import dataclass


@dataclass
class HandClock:
    """Both scales of time, moved by the test."""

    now_s: float = 1000.0
    """Monotonic time (s)."""
    unix_offset_s: float = 1.7e9
    """Unix time minus monotonic time (s)."""

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s + self.unix_offset_s
