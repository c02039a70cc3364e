"""A signal whose values come from a server: one thread asks and reads and writes the cache, all else is memory."""

import logging
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from greentrain.carbon.cache import Asked, GridCache, Known
from greentrain.carbon.client import GridClient, PermanentError, TemporaryError, Timeouts
from greentrain.carbon.series import LEAD_S, Mean, Reading, Series, checked
from greentrain.carbon.source import HISTORY_S, Ask, GridSource, WrongAnswer
from greentrain.types import CarbonPoint
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.http_client import check_httpx
from greentrain.utils.never_raise import warn

log = logging.getLogger(__name__)

SKEW_S: Final = 300.0
"""Clocks that differ by more than this are worth a warning (s)."""
_LONGEST_REST_S: Final = 86400.0
"""A server may ask to be left alone for this long (s)."""
_TURN_S: Final = 0.5
"""Until the next look, while another process asks (s)."""
_PATIENT_S: Final = 180.0
"""A process that holds the lock for longer than this is stuck, or forked with it (s)."""
_SERVER: Final = ""


class Poller:
    """Keeps what is known of a zone up to date until it is told to stop.

    Args:
        source: Where to ask.
        cache: What other processes know.
        patience: Limits of asking.
        clock: Time.
        publish: Takes what is known, each time it changes.
        series: What is known already.
    """

    def __init__(
        self,
        source: GridSource,
        cache: GridCache,
        patience: Timeouts,
        clock: Clock,
        publish: Callable[[Series], None],
        series: Series,
    ) -> None:
        self.stop = threading.Event()
        self.settled = threading.Event()
        """Set once something is known, or known not to come for now."""
        self.problems: dict[str, str] = {}
        """What is wrong now, by name of the question."""
        self._source = source
        self._cache = cache
        self._patience = patience
        self._clock = clock
        self._publish = publish
        self._known = Known(series=series)
        self._refused: set[str] = set()
        self._said: set[str] = set()
        self._turned_away_s: float | None = None

    def run(self) -> None:
        """Ask until told to stop. Never raises."""
        client: GridClient | None = None
        pause_s = 0.0
        while not self.stop.wait(pause_s):
            try:
                client = client or GridClient(self._source.facts.base_url, self._source.key, self._patience, self.stop)
                self._round(client)
                pause_s = self._patience.poll_s if self._turned_away_s is None else _TURN_S
            except Exception as error:  # a fault of ours must not end the thread; its text may hold anything
                self._say("fault", f"asking {self._source.facts.name} failed with {type(error).__name__}")
                pause_s = 60.0
                self.settled.set()
        if client is not None:
            client.close()

    def _round(self, client: GridClient) -> None:
        self._look()
        if not self._due():
            self._turned_away_s = None
            self.settled.set()
            return
        with self._cache.claim() as mine:
            now_s = self._clock.monotonic_s()
            if not mine:
                self._turned_away_s = now_s if self._turned_away_s is None else self._turned_away_s
                if now_s - self._turned_away_s < _PATIENT_S:
                    return
            self._turned_away_s = None
            self._look()
            for ask in self._due():
                if not self.stop.is_set() and self._is_due(ask):
                    self._ask(client, ask)
                    self.settled.set()

    def _look(self) -> None:
        """Take what another process has found."""
        known = self._cache.read()
        if known is not None:
            self._known = known
            self._publish(known.series)
            if len(known.series):
                self.settled.set()

    def _due(self) -> list[Ask]:
        return [ask for ask in self._source.asks(self._clock.unix_s()) if self._is_due(ask)]

    def _is_due(self, ask: Ask) -> bool:
        if self._refused & {_SERVER, ask.name}:
            return False
        now_s = self._clock.unix_s()
        server = replace(self._known.of(_SERVER), fetched_unix_s=None)
        return server.is_due(now_s, 0.0, _LONGEST_REST_S) and self._known.of(ask.name).is_due(
            now_s, ask.fresh_s, _LONGEST_REST_S
        )

    def _ask(self, client: GridClient, ask: Ask) -> None:
        where = f"{client.host}{ask.path}"
        try:
            answer = client.get(ask.path, ask.params)
            rows = self._source.read(ask, answer.data)
        except PermanentError as refusal:
            self._refuse(ask, refusal)
        except TemporaryError as failure:
            if not self.stop.is_set():
                self._fail(ask, str(failure), failure.rest_s, everywhere=failure.everywhere)
        except WrongAnswer as error:
            self._fail(ask, f"{where}: {error}")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self._fail(ask, f"{where} sent JSON that is not of the documented shape ({type(error).__name__})")
        else:
            now_s = self._clock.unix_s()
            readings, odd = checked(rows, now_s)
            if odd and not readings:
                self._fail(ask, f"{where}: none of {len(odd)} values can be right ({odd[0]})")
            else:
                if odd:
                    self._say(f"odd {ask.name}", f"{where}: {len(odd)} values are left out ({odd[0]})")
                self._compare_clocks(client.host, answer.server_unix_s, now_s)
                self._succeed(ask, self._known.series.plus(readings).since(now_s - HISTORY_S), now_s)

    def _succeed(self, ask: Ask, series: Series, now_s: float) -> None:
        if self.problems.pop(ask.name, None):
            log.info("%s of %s is answered again", ask.name, self._source.facts.name)
        asked = {**self._known.asked, ask.name: Asked(fetched_unix_s=now_s), _SERVER: Asked()}
        self._known = Known(series=series, asked=asked)
        self._publish(series)
        self._cache.write(self._known)

    def _fail(self, ask: Ask, text: str, rest_s: float | None = None, *, everywhere: bool = False) -> None:
        name = _SERVER if everywhere else ask.name
        before = self._known.of(name)
        failures = before.failures + 1
        own_s = min(self._patience.rest_s * 2.0 ** min(failures - 1, 30), self._patience.longest_rest_s)
        own_s = min(own_s * random.uniform(1.0, 1.2), self._patience.longest_rest_s)
        pause_s = own_s if rest_s is None else max(rest_s, own_s)
        after = Asked(
            fetched_unix_s=before.fetched_unix_s,
            failures=failures,
            rest_until_unix_s=self._clock.unix_s() + min(pause_s, _LONGEST_REST_S),
        )
        self._known = replace(self._known, asked={**self._known.asked, name: after})
        self._cache.write(self._known)
        self.problems[ask.name] = text
        log.info("%s; asking again in %.0f s", text, pause_s)
        self._say(f"fail {text.partition(' (')[0]}", f"{text}; asking again in {pause_s:.0f} s, then ever more seldom")

    def _refuse(self, ask: Ask, refusal: PermanentError) -> None:
        final = ask.needed or refusal.status == 401
        self._refused.add(_SERVER if final else ask.name)
        self.problems[ask.name] = str(refusal)
        if final:
            self._say("refused", f"{refusal}, and is not asked again in this run. {self._source.facts.remedy}")
        else:
            self._say(
                f"refused {ask.name}",
                f"{refusal}: this key or zone has no {ask.name!r} data, which is not asked for again in this run. The"
                " rest works without",
            )

    def _compare_clocks(self, host: str, server_unix_s: float | None, now_s: float) -> None:
        if server_unix_s is not None and abs(server_unix_s - now_s) > SKEW_S:
            self._say(
                "clock",
                f"the clocks of this machine and of {host} differ by {abs(server_unix_s - now_s) / 3600:.1f} h;"
                " intensities are looked up by this machine's, so set it if it is the wrong one",
            )

    def _say(self, what: str, text: str) -> None:
        """Warn once of each thing."""
        if what not in self._said:
            self._said.add(what)
            warn(text)


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
        check_httpx("grid")
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
