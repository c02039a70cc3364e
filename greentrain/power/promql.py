"""Questions to a Prometheus server, one at a time, each within limits of time and size.

HTTP API: https://prometheus.io/docs/prometheus/latest/querying/api/ (read 2026-11-21). An instant query of a range
(``x[60s]``) gives the scraped samples with their own times; one of an instant vector gives the time of the query.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.http_client import HttpClient, HttpError

if TYPE_CHECKING:
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
        self.timeout_s = timeout_s
        monotonic_s = (clock or SystemClock()).monotonic_s
        self._http = HttpClient(
            url,
            extra="prometheus",
            silence_s=timeout_s,
            most_bytes=MAX_REPLY_BYTES,
            transport=transport,
            monotonic_s=monotonic_s,
        )
        self.url = self._http.url
        self.close = self._http.close

    def query(self, promql: str, stop: threading.Event) -> Reply:
        """Return the answer to an instant query.

        Args:
            promql: The question.
            stop: Set from outside to give up.

        Raises:
            ReplyError: There is none that can be used.
        """
        try:
            answer = self._http.ask(
                "GET", "/api/v1/query", params={"query": promql}, within_s=self.timeout_s, stop=stop
            )
        except HttpError as error:
            if error.kind == "large":
                raise ReplyError(f"the answer is longer than {MAX_REPLY_BYTES} bytes; narrow the query") from error
            if error.kind == "late":
                raise ReplyError(f"no complete answer within {self.timeout_s:g} s") from error
            raise ReplyError(f"no answer ({error})") from error
        return _parse(answer.body, answer.status)


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
