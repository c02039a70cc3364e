"""A day for plans that passes with the training, however busy the machine is."""

import functools
import threading
import time

import pytest

from greentrain.control.plan import schedule


class PacedClock:
    """Real time that never jumps, and a time of day that passes only while the training or a pause of it sleeps.

    A busy machine makes the day longer, and no step slower than the declared table says.
    """

    monotonic_s = monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.now_s = time.time()
        self.set_by_s = 0.0
        """By how much somebody has set the time of the day (s)."""
        self.held = threading.Event()
        """Set as soon as a training is held between two steps."""
        self.held_in: list[str] = []
        """Names of the threads that slept in a pause."""

    def unix_s(self) -> float:
        return self.now_s + self.set_by_s

    def elapsed_s(self) -> float:
        return self.now_s

    time = unix_s

    def train(self, seconds: float) -> None:
        """Sleep in a step. Time is rank 0's."""
        time.sleep(seconds)
        if threading.current_thread().name != "rank 1":
            self.now_s += seconds

    def sleep(self, seconds: float) -> None:
        """Sleep in a pause."""
        self.held_in.append(threading.current_thread().name)
        self.held.set()
        self.train(seconds)

    def rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have every session and plan of a test live in this time."""
        monkeypatch.setattr("greentrain.session.session.SystemClock", lambda: self)
        monkeypatch.setattr(
            schedule, "Schedule", functools.partial(schedule.Schedule, unix_s=self.unix_s, elapsed_s=self.elapsed_s)
        )
        monkeypatch.setattr(schedule, "time", self)
