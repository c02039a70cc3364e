"""The overhead of the building around the devices: power usage effectiveness (PUE) over time.

PUE is facility energy / IT energy (ISO/IEC 30134-2:2016). It comes from the configuration as one number, from a file
of the facility's own records, or from a Prometheus server. Where the last two know nothing, the configured number
counts, and the books say so. One daemon thread asks the server; whoever wants a PUE gets what it last learned. An
instant query answers with what was scraped up to five minutes before
(https://prometheus.io/docs/prometheus/latest/querying/basics/#staleness, read 2026-11-21).
"""

import contextlib
import logging
import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

from greentrain.carbon.replayed import GridTime, ReplayedSignal
from greentrain.carbon.trace import Column, Staircase, read_trace
from greentrain.config.schema import CarbonConfig
from greentrain.errors import ConfigError
from greentrain.power.prometheus import PrometheusClient, QueryResult, ReplyError
from greentrain.types import CarbonSignal, PueSource
from greentrain.utils import redact
from greentrain.utils.clock import Clock, SystemClock

if TYPE_CHECKING:
    import httpx


LOWEST: Final = 1.0
"""Every joule of the devices is one of the facility."""
HIGHEST: Final = 5.0
"""As ``carbon.pue``: no facility that runs needs four times as much for cooling as for computing."""
_EDGE_S: Final = 1e-3
"""Times closer than this are the same."""
_PROVENANCE: Final = {PueSource.TRACE: "recorded", PueSource.PROMETHEUS: "measured"}
COLUMN: Final = Column(
    name="pue",
    low=LOWEST,
    high=HIGHEST,
    unit="",
    remedy="write facility energy / IT energy, not its inverse (DCiE) or a percentage",
    key="carbon.pue_csv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PuePoint:
    """The PUE over one interval."""

    value: float
    """Time average."""
    source: PueSource
    """FALLBACK where the configured number stood in for any part of the interval."""

    @property
    def provenance(self) -> str:
        """``recorded`` by the facility, ``measured`` through Prometheus, or ``assumed`` in the configuration."""
        return _PROVENANCE.get(self.source, "assumed")


@runtime_checkable
class Facility(Protocol):
    """The PUE of one facility as a function of time."""

    def pue(self, t0_unix_s: float, t1_unix_s: float) -> PuePoint:
        """Return the time average over an interval. Never blocks, never raises.

        Args:
            t0_unix_s: Start of the interval (s since the epoch, UTC).
            t1_unix_s: End of the interval; equal to the start for the value at an instant.
        """

    def covers(self, t0_unix_s: float, t1_unix_s: float) -> bool:
        """Return True if records say what the PUE is throughout an interval, its future part too."""
        return False

    def start(self) -> None:
        """Begin to ask, where there is anybody to be asked. Returns at once."""
        return

    def close(self) -> None:
        """End what asks. Idempotent; what was known stays known."""
        return


class ConstantPue(Facility):
    """One number for all time, which nobody recorded.

    Args:
        value: Facility energy / IT energy.
    """

    def __init__(self, value: float) -> None:
        self._point = PuePoint(value=value, source=PueSource.CONSTANT)

    def pue(self, t0_unix_s: float, t1_unix_s: float) -> PuePoint:
        """Return the number."""
        return self._point


class TracePue(Facility):
    """The facility's own records: a CSV file with columns ``timestamp_utc`` and ``pue``.

    Each value holds until the next row, the last for one regular step. Outside the file, and in holes of more than one
    and a half regular steps, the constant stands in.

    Args:
        csv_path: The file; times carry ``Z`` or an offset.
        constant: PUE that counts where the file says nothing.

    Raises:
        TraceError: The file is malformed, or a value is outside 1 to 5.
    """

    def __init__(self, csv_path: Path | str, constant: float) -> None:
        rows = read_trace(csv_path, COLUMN)
        self._constant = constant
        self._steps = Staircase.of(rows, lambda row: [(rows.step_s, constant)])
        self.start_unix_s = rows.t_unix_s[0]
        self.end_unix_s = self.start_unix_s + self._steps.t_s[-1]

    def pue(self, t0_unix_s: float, t1_unix_s: float) -> PuePoint:
        """Return the time average; the constant stands in for what the file does not cover."""
        length_s = t1_unix_s - t0_unix_s
        t0_s, t1_s = max(t0_unix_s, self.start_unix_s), min(t1_unix_s, self.end_unix_s)
        mean, filled = self._steps.mean(t0_s - self.start_unix_s, t1_s - self.start_unix_s)
        if mean is None:
            return PuePoint(value=self._constant, source=PueSource.FALLBACK)
        outside_s = length_s - (t1_s - t0_s)
        if outside_s > 0:
            mean = (mean * (t1_s - t0_s) + self._constant * outside_s) / length_s
        fell = filled or outside_s > _EDGE_S
        return PuePoint(value=mean, source=PueSource.FALLBACK if fell else PueSource.TRACE)

    def covers(self, t0_unix_s: float, t1_unix_s: float) -> bool:
        """Return True if no part of an interval is outside the file or in a hole of it."""
        return self.pue(t0_unix_s, t1_unix_s).source is PueSource.TRACE


class ReplayedPue(Facility):
    """Records that are asked in real time and answer of the grid's: a replayed day has the PUE of that day.

    Args:
        facility: The records, in the grid's own time.
        time: Relation of the grid's time to the machine's.
    """

    def __init__(self, facility: TracePue, time: GridTime) -> None:
        self._facility = facility
        self._time = time

    def pue(self, t0_unix_s: float, t1_unix_s: float) -> PuePoint:
        """Return the time average of the grid's interval."""
        return self._facility.pue(self._time.at(t0_unix_s), self._time.at(t1_unix_s))

    def covers(self, t0_unix_s: float, t1_unix_s: float) -> bool:
        """Return what the records cover of the grid's interval."""
        return self._facility.covers(self._time.at(t0_unix_s), self._time.at(t1_unix_s))


def open_facility(config: CarbonConfig, tell: Callable[[str], None], clock: Clock | None = None) -> Facility:
    """Return the facility that the configuration names, checked; it asks nobody before its ``start``.

    Args:
        config: Section ``carbon``.
        tell: Function that takes a warning, called from another thread.
        clock: Clock to take the time from; None: the system's.

    Raises:
        TraceError: The file of ``carbon.pue_csv`` is malformed.
        ConfigError: ``carbon.pue_prometheus_url`` is no URL.
        MissingExtraError: Prometheus is to be asked, and httpx is not installed.
    """
    if config.pue_csv is not None:
        return TracePue(config.pue_csv, config.pue)
    if config.pue_prometheus_url is not None and config.pue_prometheus_query is not None:
        return PrometheusPue(
            config.pue_prometheus_url, config.pue_prometheus_query, constant=config.pue, tell=tell, clock=clock
        )
    return ConstantPue(config.pue)


def in_run_time(facility: Facility, signal: CarbonSignal) -> Facility:
    """Return a facility to be asked in real time: records follow a grid that is replayed, what is asked live does not.

    Args:
        facility: The facility, in the grid's own time.
        signal: Carbon signal of the run.
    """
    if isinstance(facility, TracePue) and isinstance(signal, ReplayedSignal):
        return ReplayedPue(facility, signal.time)
    return facility


log = logging.getLogger(__name__)

POLL_S: Final = 30.0
"""Time between two questions (s): half of Prometheus's default scrape interval of 60 s."""
STALE_S: Final = 300.0
"""How long an answer holds while the server gives no further one (s): as long as Prometheus itself would repeat it."""
_KEEP_S: Final = 7200.0
"""Answers are forgotten after this (s): no interval is booked so late."""
_JITTER: Final = 0.1
"""Ranks that began together do not ask together for ever."""


class PrometheusPue(Facility):
    """Follows one number in a Prometheus server, which does not know what comes.

    An answer holds until the next one, and for at most ``stale_s`` while the server is silent. Where the server has no
    data, or says what cannot be a PUE, the constant counts from then on until it says better.

    Args:
        url: The server, for example ``http://prometheus:9090``.
        query: PromQL whose result is one number.
        constant: PUE that counts where the server says nothing.
        tell: Function that takes the one warning of a run, called from the thread that asks.
        poll_s: Time between two questions (s).
        stale_s: Time for which an answer holds (s).
        timeout_s: Longest wait for one answer (s).
        transport: An httpx transport, for tests.
        clock: Clock to take the time from; None: the system's.

    Raises:
        MissingExtraError: httpx is not installed.
        ConfigError: The URL is none, or the query is empty.
    """

    def __init__(
        self,
        url: str,
        query: str,
        *,
        constant: float,
        tell: Callable[[str], None],
        poll_s: float = POLL_S,
        stale_s: float = STALE_S,
        timeout_s: float = 2.0,
        transport: "httpx.BaseTransport | None" = None,
        clock: Clock | None = None,
    ) -> None:
        self._where = _place(url)
        if not query.strip():
            raise ConfigError("carbon.pue_prometheus_query is empty; write PromQL whose result is one number, the PUE")
        self._query = query.strip()
        self._constant = constant
        self._tell = tell
        self._poll_s = poll_s
        self._stale_s = stale_s
        self._clock = clock or SystemClock()
        self._offset_s = self._clock.unix_s() - self._clock.monotonic_s()
        self._answers: tuple[tuple[float, float | None], ...] = ()
        self._told = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._client = PrometheusClient(url, timeout_s=timeout_s, transport=transport, clock=clock)

    def pue(self, t0_unix_s: float, t1_unix_s: float) -> PuePoint:
        """Return the time average; the constant stands in for times of which no answer tells."""
        length_s = t1_unix_s - t0_unix_s
        known_s = area = 0.0
        end_s = -math.inf
        answers = self._answers
        for i, (t_s, value) in enumerate(answers):
            start_s = max(t_s - self._poll_s, end_s)  # what was scraped before the first question held then, too
            end_s = answers[i + 1][0] if i + 1 < len(answers) else math.inf
            if value is None:
                continue
            end_s = min(end_s, t_s + self._stale_s)
            if length_s <= 0 and start_s <= t0_unix_s < end_s:
                return PuePoint(value=value, source=PueSource.PROMETHEUS)
            inside_s = max(0.0, min(end_s, t1_unix_s) - max(start_s, t0_unix_s))
            known_s += inside_s
            area += value * inside_s
        if known_s <= 0:
            return PuePoint(value=self._constant, source=PueSource.FALLBACK)
        blind_s = max(0.0, length_s - known_s)
        return PuePoint(
            value=(area + self._constant * blind_s) / (known_s + blind_s),
            source=PueSource.FALLBACK if blind_s > _EDGE_S else PueSource.PROMETHEUS,
        )

    def start(self) -> None:
        """Begin to ask. Returns at once."""
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="greentrain-pue", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop asking; waits at most a little longer than the timeout. Idempotent."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(self._client.timeout_s + 1.0)
        if thread is None or not thread.is_alive():
            with contextlib.suppress(Exception):
                self._client.close()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            try:
                self._ask()
            except Exception as error:  # a fault of ours must not end the thread
                self._say(f"failed with {error!r}")
            pause_s = self._poll_s * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _ask(self) -> None:
        now_s = self._clock.monotonic_s() + self._offset_s
        try:
            value: float | None = _number(self._client.query(self._query, self._stop))
        except ReplyError as error:
            if self._stop.is_set():
                return
            log.info("PUE: %s: %s", self._where, error)
            if self.pue(now_s, now_s).source is PueSource.FALLBACK:
                self._say(f"says no PUE: {error}")
            return
        except _NoPueError as error:
            value = None
            self._say(str(error))
        self._answers = (*(a for a in self._answers if a[0] > now_s - _KEEP_S), (now_s, value))

    def _say(self, text: str) -> None:
        """Warn once."""
        log.info("PUE: %s: %s", self._where, text)
        if not self._told:
            self._told = True
            self._tell(
                f"Prometheus at {self._where} {text}. carbon.pue = {self._constant:g} counts until it says one: check"
                " carbon.pue_prometheus_url and carbon.pue_prometheus_query"
            )


class _NoPueError(Exception):
    """The server answered, and it is not one PUE."""


def _number(reply: QueryResult) -> float:
    if reply.kind == "matrix":
        raise _NoPueError("gives a range of values where one number, the PUE now, is wanted")
    if not reply.series:
        raise _NoPueError("has no data for the query")
    if len(reply.series) > 1:
        raise _NoPueError(f"gives {len(reply.series)} series where one is wanted: choose or aggregate them")
    value = reply.series[0].points[-1][1]
    if not LOWEST <= value <= HIGHEST:
        raise _NoPueError(f"says {value:g}, which is no PUE (it is between {LOWEST:g} and {HIGHEST:g})")
    return value


def _place(url: str) -> str:
    """Return a server's address for people, without name and password.

    Raises:
        ConfigError: It is none.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        raise ConfigError(f"carbon.pue_prometheus_url is {redact.text(url)!r}; it must be like http://prometheus:9090")
    return f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")
