"""A signal whose values come from a server: asked by one thread, kept in a file, answered from memory.

There is one file a zone and server, shared by all processes of a user. It holds checked values and when each question
was answered, never a key. One process at a time asks the server, under a lock beside the file; the others read what it
has found. A file that is torn, odd or of another version counts as none.
"""

import contextlib
import hashlib
import json
import logging
import os
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from filelock import FileLock, Timeout

from greentrain.carbon.client import GridClient, PermanentError, TemporaryError, Timeouts
from greentrain.carbon.series import LEAD_S, MeanIntensity, Reading, Series, checked
from greentrain.carbon.source import HISTORY_S, Ask, GridSource, SourceFacts, Stated, WrongAnswer, intensity
from greentrain.types import CarbonKind, CarbonPoint
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.files import ENV_DIR, cache_folder, replace_file
from greentrain.utils.http_client import check_httpx
from greentrain.utils.never_raise import warn

FORMAT: Final = 1
_SKEW_S: Final = 60.0
"""Two machines that share the file may differ by this much (s)."""


class AskedState(NamedTuple):
    """How asking went, of one question or of the server as a whole."""

    fetched_unix_s: float | None = None
    """When the last answer came; None before the first."""
    failures: int = 0
    """In a row."""
    rest_until_unix_s: float = 0.0
    """Not to be asked before this."""

    def is_due(self, now_unix_s: float, fresh_s: float, longest_rest_s: float) -> bool:
        """Return True if it is time to ask. A clock that jumped never stops it for long."""
        if 0 < self.rest_until_unix_s - now_unix_s <= longest_rest_s:
            return False
        return self.fetched_unix_s is None or not -_SKEW_S <= now_unix_s - self.fetched_unix_s < fresh_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that is known of one zone from one server."""

    series: Series = field(default_factory=Series)
    asked: Mapping[str, AskedState] = field(default_factory=dict)
    """By name of the question; "" is the server as a whole."""

    def of(self, name: str) -> AskedState:
        """Return how asking one question went."""
        return self.asked.get(name) or AskedState()


class GridCache:
    """The file of one source.

    Args:
        facts: Facts of the source whose answers are kept.
        folder: Folder of the file; None: ``grid`` in the user's cache folder.
    """

    def __init__(self, facts: SourceFacts, folder: Path | None) -> None:
        self._identity = {"format": FORMAT, "source": facts.name, "zone": facts.zone, "variant": facts.variant}
        digest = hashlib.sha256(f"{facts.base_url} {facts.variant}".encode()).hexdigest()[:8]
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", f"{facts.name}-{facts.zone}")
        self._name = f"{plain}-{digest}.json"
        self._folder = folder
        self._seen: tuple[int, ...] | None = None
        self._broken = False

    @property
    def path(self) -> Path:
        """The file.

        Raises:
            RuntimeError: No folder is known.
        """
        return (cache_folder(part="grid") if self._folder is None else self._folder) / self._name

    def read(self) -> Known | None:
        """Return what the file holds; None where it has not changed since, or holds nothing of use. Never raises."""
        try:
            stat = self.path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return None
            self._seen = seen
            return _known(json.loads(self.path.read_bytes()), self._identity)
        except (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError):
            return None

    def write(self, known: Known) -> None:
        """Put what is known into the file, whole or not at all. Never raises."""
        if self._broken:
            return
        data = {
            **self._identity,
            "asked": known.asked,
            "readings": [*known.series.known, *known.series.ahead],
        }
        try:
            path = self.path
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(data, separators=(",", ":")).encode())
            stat = path.stat()
            self._seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except (OSError, RuntimeError) as error:
            self._broken = True
            warn(
                f"answers of {self._identity['source']} cannot be kept on disk ({error}), so every process asks for"
                f" itself; set carbon.cache_dir or {ENV_DIR} to a folder that can be written to"
            )

    @contextlib.contextmanager
    def claim(self) -> Iterator[bool]:
        """Give True to the one process that may ask; to all of them where there is no file to lock."""
        lock: FileLock | None = None
        try:
            lock = FileLock(f"{self.path}.lock", thread_local=False)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        except (OSError, RuntimeError, NotImplementedError):
            lock = None
        try:
            yield True
        finally:
            if lock is not None:
                lock.release()


def _known(data: Any, identity: Mapping[str, Any]) -> Known:
    """Return what a file holds.

    Raises:
        ValueError: It is of another version or source, or a value in it is wrong.
        LookupError, TypeError, AttributeError: It is of another shape.
    """
    if any(data[key] != value for key, value in identity.items()):
        raise ValueError("the file is of another version or source")
    readings = []
    for t0, t1, value, kind, issued, fetched in data["readings"]:
        sound = intensity(value)
        if sound is None:
            raise ValueError("a value is missing")
        issued_unix_s = None if issued is None else float(issued)
        readings.append(Reading(float(t0), float(t1), sound, CarbonKind(kind), issued_unix_s, float(fetched)))
    asked = {
        str(name): AskedState(None if fetched is None else float(fetched), int(failures), float(rest))
        for name, (fetched, failures, rest) in data["asked"].items()
    }
    return Known(series=Series().plus(readings), asked=asked)


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
        source: Server that is asked.
        cache: File with what other processes know.
        patience: Limits of time and of tries.
        clock: Time.
        publish: Takes what is known, each time it changes.
        series: Values that are known already.
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
        server = self._known.of(_SERVER)._replace(fetched_unix_s=None)
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
        asked = {**self._known.asked, ask.name: AskedState(fetched_unix_s=now_s), _SERVER: AskedState()}
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
        after = AskedState(before.fetched_unix_s, failures, self._clock.unix_s() + min(pause_s, _LONGEST_REST_S))
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


class PolledSignal(Stated):
    """The carbon intensity of one zone, as a server tells it.

    One daemon thread asks the server and reads and writes the cache; it starts with :meth:`start` or with the first
    question, and ends with :meth:`close`. No other method waits for anything. In a forked child the signal knows
    what it knew at the fork, and starts a thread of its own when it is used.

    Args:
        source: The server.
        cache_dir: Folder for its answers; None: the user's cache folder.
        patience: Limits of time and of tries.
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
        self.zone, self.basis, self.accounting = source.facts.zone, source.facts.basis, source.facts.accounting
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
        kind = "actual, estimated or forecast, as each value says"
        return self._says(self._facts.name, self._facts.resolution, self._facts.terms, kind)

    def _points(self, readings: Sequence[Reading]) -> list[CarbonPoint]:
        return [self._point(reading.t0_unix_s, reading.t1_unix_s, reading) for reading in readings]

    def _point(self, t0_unix_s: float, t1_unix_s: float, told: Reading | MeanIntensity) -> CarbonPoint:
        return self._at(t0_unix_s, t1_unix_s, told.g_per_kwh, told.kind, issued_unix_s=told.issued_unix_s)

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
