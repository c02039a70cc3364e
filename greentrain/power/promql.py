"""Questions to a Prometheus server, one at a time, each within limits of time and size.

HTTP API: https://prometheus.io/docs/prometheus/latest/querying/api/ (read 2026-11-21). An instant query of a range
(``x[60s]``) gives the scraped samples with their own times; one of an instant vector gives the time of the query.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.imports import try_import

with try_import("prometheus") as imports:
    import httpx

MAX_REPLY_BYTES: Final = 8_000_000


class ReplyError(Exception):
    """The server did not answer, or not as Prometheus does."""


@dataclass(frozen=True, slots=True)
class SampleSeries:
    """One series of an answer."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    """(unix s, value), oldest first."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    kind: str
    """``matrix``, ``vector`` or ``scalar``; a scalar is one series without labels."""
    series: Sequence[SampleSeries]


class PrometheusClient:
    """Asks one server.

    Args:
        url: The server, for example ``http://prometheus:9090``; a name and password in it go into a header.
        timeout_s: Longest wait for one answer (s).
        transport: An httpx transport, for tests.
        clock: Time.

    Raises:
        MissingExtraError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 2.0,
        transport: "httpx.BaseTransport | None" = None,
        clock: Clock | None = None,
    ) -> None:
        imports.check()
        self.url, auth = _without_user(url.rstrip("/"))
        self.timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._http = httpx.Client(timeout=timeout_s, transport=transport, auth=auth)

    def query(self, promql: str, stop: threading.Event) -> Reply:
        """Return the answer to an instant query.

        Args:
            promql: The question.
            stop: Set from outside to give up.

        Raises:
            ReplyError: There is none that can be used.
        """
        give_up_s = self._clock.monotonic_s() + self.timeout_s
        body = bytearray()
        try:
            with self._http.stream("GET", f"{self.url}/api/v1/query", params={"query": promql}) as reply:
                for chunk in reply.iter_bytes():
                    body += chunk
                    if len(body) > MAX_REPLY_BYTES:
                        raise ReplyError(f"the answer is longer than {MAX_REPLY_BYTES} bytes; narrow the query")
                    if stop.is_set() or self._clock.monotonic_s() > give_up_s:
                        raise ReplyError(f"no complete answer within {self.timeout_s:g} s")
                status = reply.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ReplyError(f"no answer ({str(error) or type(error).__name__})") from error
        return _parse(bytes(body), status)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _without_user(url: str) -> tuple[str, tuple[str, str] | None]:
    """Take name and password out of a URL: httpx logs every address that it asks."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, None  # the first question says what is wrong
    user, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, None
    name, _, password = user.partition(":")
    return parts._replace(netloc=place).geturl(), (unquote(name), unquote(password))


def _parse(body: bytes, status: int) -> Reply:
    try:
        reply: Any = json.loads(body)
        if reply["status"] != "success":
            raise ReplyError(f"HTTP {status}: {reply.get('error', 'unknown error')}")
        data = reply["data"]
        kind, result = str(data["resultType"]), data["result"]
        if kind == "scalar":
            result = [{"metric": {}, "value": result}]
        elif kind not in ("matrix", "vector"):
            raise ReplyError(f"the query gives a {kind}, not numbers")
        series = []
        for item in result:
            pairs = item["values"] if kind == "matrix" else [item["value"]]
            points = [(float(t), float(v)) for t, v in pairs]
            if points:
                series.append(SampleSeries({str(k): str(v) for k, v in item["metric"].items()}, points))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReplyError(f"HTTP {status}, and the answer is not that of a Prometheus server") from error
    return Reply(kind, series)
