"""A signal whose values come from a server: asked in the background, answered from memory."""

import os
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from greentrain.carbon.cache import GridCache
from greentrain.carbon.client import Timeouts, imports
from greentrain.carbon.poller import Poller
from greentrain.carbon.series import LEAD_S, Mean, Reading, Series
from greentrain.carbon.source import GridSource
from greentrain.types import CarbonPoint
from greentrain.utils.clock import Clock, SystemClock

_CLOSE_WAIT_S: Final = 2.0
"""A request that hangs is left to its own timeout after this (s)."""


class PolledSignal:
    """The carbon intensity of one zone, as a server tells it.

    One daemon thread asks the server and reads and writes the cache; it starts with :meth:`start` or with the first
    question, and ends with :meth:`close`. No other method waits for anything. In a forked child the signal knows
    what it knew at the fork, and starts a thread of its own when it is used.

    Args:
        source: The server.
        cache_dir: Folder for its answers; None: the user's cache folder.
        patience: Limits of asking.
        clock: Time.

    Raises:
        MissingExtraError: httpx is not installed.
    """

    def __init__(
        self,
        source: GridSource,
        *,
        cache_dir: Path | str | None = None,
        patience: Timeouts | None = None,
        clock: Clock | None = None,
    ) -> None:
        imports.check()
        self._source = source
        self._facts = source.facts
        self._folder = None if cache_dir is None else Path(cache_dir)
        self._patience = patience or Timeouts()
        self._clock: Clock = clock or SystemClock()
        year = datetime.fromtimestamp(self._clock.unix_s(), UTC).year
        self.source = f"{source.facts.citation}, {year}"
        self.zone = source.facts.zone
        self._series = Series()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._poller: Poller | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Begin to ask, also after a close. Returns at once."""
        self._closed = False
        self._run()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first answer, for tools that have nothing else to do; start it before.

        Returns:
            True if anything is known.
        """
        poller = self._poller
        if poller is not None:
            poller.settled.wait(timeout_s)
        return len(self._series) > 0

    def close(self) -> None:
        """Stop asking; what is known stays known. Idempotent."""
        self._closed = True
        if self._pid != os.getpid():
            return
        with self._lock:
            poller, thread, self._thread = self._poller, self._thread, None
        if poller is not None and thread is not None:
            poller.stop.set()
            thread.join(_CLOSE_WAIT_S)

    @property
    def problem(self) -> str:
        """What is wrong now, for people; empty where all is well."""
        return "; ".join(tuple(self._poller.problems.values())) if self._poller is not None else ""

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        """Return the time average; ``g_per_kwh`` is None where it is not known for all of the interval.

        What is known comes first, then a forecast of up to 24 h ahead, then the last known value for up to 2 h.
        """
        self._run()
        mean = self._series.mean(t0_unix_s, t1_unix_s)
        return self._point(t0_unix_s, t1_unix_s, mean)

    def forecast(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        """Return the source's own forecasts that reach into an interval and are at most 24 h old, oldest first."""
        self._run()
        return self._points(self._series.forecast(t0_unix_s, t1_unix_s, self._clock.unix_s() - LEAD_S))

    def history(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        """Return the values behind :meth:`mean` that reach into an interval, oldest first: up to 22 days of them."""
        self._run()
        return self._points(self._series.points(t0_unix_s, t1_unix_s))

    def describe(self) -> Mapping[str, str]:
        """Return what the report says about the signal."""
        return {
            "signal": self._facts.name,
            "zone": self.zone,
            "source": self.source,
            "kind": "actual, estimated or forecast, as each value says",
            "basis": str(self._facts.basis),
            "accounting": self._facts.accounting,
            "resolution": self._facts.resolution,
            "terms": self._facts.terms,
        }

    def _points(self, readings: Sequence[Reading]) -> list[CarbonPoint]:
        return [self._point(reading.t0_unix_s, reading.t1_unix_s, reading) for reading in readings]

    def _point(self, t0_unix_s: float, t1_unix_s: float, told: Reading | Mean) -> CarbonPoint:
        return CarbonPoint(
            t0_unix_s=t0_unix_s,
            t1_unix_s=t1_unix_s,
            g_per_kwh=told.g_per_kwh,
            zone=self.zone,
            source=self.source,
            kind=told.kind,
            basis=self._facts.basis,
            accounting=self._facts.accounting,
            issued_unix_s=told.issued_unix_s,
        )

    def _run(self) -> None:
        if self._pid != os.getpid():  # a forked child: the thread, and whoever held the lock, are the parent's
            self._pid, self._lock, self._thread, self._poller = os.getpid(), threading.Lock(), None, None
        if self._closed:
            return
        with self._lock:
            if self._thread is not None:
                return
            cache = GridCache(self._facts, self._folder)
            poller = Poller(self._source, cache, self._patience, self._clock, self._take, self._series)
            thread = threading.Thread(target=poller.run, name=f"greentrain-{self._facts.name}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be had any more: the interpreter ends, or a limit of the system
                self._closed = True
                return
            self._poller, self._thread = poller, thread

    def _take(self, series: Series) -> None:
        self._series = series
