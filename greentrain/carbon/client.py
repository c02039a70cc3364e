"""HTTP to grid servers: limits of time and size, retries with jitter, and failures told apart.

Texts of failures are made here from what is known to be harmless; bodies and headers never get into them.
"""

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, Protocol

from greentrain.utils.imports import try_import
from greentrain.utils.version import __version__

with try_import("grid") as imports:
    import httpx

log = logging.getLogger(__name__)

MAX_REPLY_BYTES: Final = 8_000_000
"""22 days of WattTime at 5 minutes are 0.7 MB."""
_RETRIED: Final = (408, 425, 500, 502, 503, 504)
"""A second try may help: RFC 9110 section 15, RFC 8470."""
_ASKS_FOR_REST: Final = (429, 503)
"""May carry Retry-After: RFC 6585 section 4, RFC 9110 section 10.2.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait for a server, and how often to try."""

    connect_s: float = 5.0
    silence_s: float = 10.0
    """Between two pieces of an answer (s)."""
    answer_s: float = 30.0
    """For a whole answer (s)."""
    tries: int = 3
    pause_s: float = 1.0
    """Before the second try (s); doubled before each further one, each time by a random factor of 0.5 to 1.5."""
    rest_s: float = 30.0
    """After the last try failed (s); doubled with each failure in a row, by a random factor of 1 to 1.2."""
    longest_rest_s: float = 3600.0
    poll_s: float = 15.0
    """Between two looks at what other processes have fetched (s)."""


class TemporaryError(Exception):
    """No answer that can be used, this time.

    Args:
        text: What happened.
        rest_s: How long the server asks to be left alone (s); None where it does not say.
        everywhere: It is the server that fails, not one address of it.
    """

    def __init__(self, text: str, *, rest_s: float | None = None, everywhere: bool = False) -> None:
        super().__init__(text)
        self.rest_s = rest_s
        self.everywhere = everywhere


class PermanentError(Exception):
    """The server will not answer this, however often it is asked.

    Args:
        text: What happened.
        status: HTTP status.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Answer(NamedTuple):
    """What came."""

    data: Any
    """The JSON."""
    server_unix_s: float | None
    """The server's time by its Date header; None where it has none."""


class Key(Protocol):
    """Signs requests. Never shows what it signs with."""

    def sign(self, request: "httpx.Request", client: "GridClient") -> None:
        """Add what the server wants to see; may ask the server for it first."""
        ...

    def renew(self) -> bool:
        """Forget what the server did not accept; return True if it makes sense to try once more."""
        ...


class GridClient:
    """Asks one server.

    Args:
        base_url: Where it is.
        key: Signs the requests.
        patience: Limits.
        stop: Set from outside to give up.
    """

    def __init__(self, base_url: str, key: Key, patience: Timeouts, stop: threading.Event) -> None:
        imports.check()
        self._base_url = base_url.rstrip("/")
        self._key = key
        self._patience = patience
        self._stop = stop
        self._http = httpx.Client(
            timeout=httpx.Timeout(patience.silence_s, connect=patience.connect_s),
            headers={"User-Agent": f"greentrain-torch/{__version__}", "Accept": "application/json"},
            follow_redirects=False,  # a key is for the server it was made for
        )
        self.host = httpx.URL(self._base_url).host

    def get(self, path: str, params: Mapping[str, str] | None = None) -> Answer:
        """Return the answer of a path; tries again where that may help.

        Raises:
            NoAnswer: There is none for now.
            Refused: There will be none.
        """
        pause_s = self._patience.pause_s
        for tries_left in range(self._patience.tries - 1, -1, -1):
            try:
                return self._signed(path, params or {})
            except TemporaryError as failure:
                if not tries_left or failure.rest_s is not None or self._stop.is_set():
                    raise
                log.info("%s; trying again in about %.1f s", failure, pause_s)
            if self._stop.wait(pause_s * random.uniform(0.5, 1.5)):
                break
            pause_s *= 2
        raise TemporaryError(f"{self.host} was not asked to the end: the signal was closed")

    def _signed(self, path: str, params: Mapping[str, str]) -> Answer:
        try:
            return self.once(path, params, lambda request: self._key.sign(request, self))
        except PermanentError as refusal:
            if refusal.status != 401 or not self._key.renew():
                raise
            return self.once(path, params, lambda request: self._key.sign(request, self))

    def once(self, path: str, params: Mapping[str, str], sign: "Callable[[httpx.Request], None]") -> Answer:
        """Return the answer of a path, asked for once.

        Raises:
            NoAnswer: There is none for now.
            Refused: There will be none.
        """
        request = self._http.build_request("GET", f"{self._base_url}{path}", params=dict(params))
        sign(request)
        give_up_s = time.monotonic() + self._patience.answer_s
        body = bytearray()
        try:
            reply = self._http.send(request, stream=True)
            try:
                for chunk in reply.iter_bytes():
                    body += chunk
                    if len(body) > MAX_REPLY_BYTES:
                        raise TemporaryError(f"{self.host}{path} sent more than {MAX_REPLY_BYTES:,} bytes")
                    if self._stop.is_set() or time.monotonic() > give_up_s:
                        raise TemporaryError(f"{self.host}{path} sent no whole answer in {self._patience.answer_s:g} s")
            finally:
                reply.close()
        except httpx.TimeoutException as error:
            raise TemporaryError(f"{self.host} is silent ({type(error).__name__})", everywhere=True) from None
        except httpx.ConnectError as error:  # its text is the system's: refused, no such host, wrong certificate
            raise TemporaryError(f"{self.host} cannot be reached ({error})", everywhere=True) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TemporaryError(f"{self.host}{path} broke off ({type(error).__name__})") from None
        server_unix_s = _date_unix_s(reply.headers.get("Date"))
        self._check(path, reply, server_unix_s)
        try:
            return Answer(json.loads(body), server_unix_s)
        except (ValueError, RecursionError):
            raise TemporaryError(f"{self.host}{path} sent {len(body)} bytes that are no JSON") from None

    def _check(self, path: str, reply: "httpx.Response", server_unix_s: float | None) -> None:
        status = reply.status_code
        if status == 200:
            return
        text = f"{self.host}{path} answered {status} {reply.reason_phrase[:40]}".rstrip()
        if status in _ASKS_FOR_REST:
            rest_s = _rest_s(reply.headers.get("Retry-After"), server_unix_s)
            if status == 429 or rest_s is not None:
                raise TemporaryError(text, rest_s=0.0 if rest_s is None else rest_s, everywhere=True)
        if status in _RETRIED or not 400 <= status < 500:
            raise TemporaryError(text)
        raise PermanentError(text, status)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _rest_s(text: str | None, server_unix_s: float | None) -> float | None:
    """Return the seconds of a Retry-After header: a number, or a date by the server's own clock."""
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    until_s = _date_unix_s(text)
    if until_s is None:
        return None
    return max(0.0, until_s - (time.time() if server_unix_s is None else server_unix_s))


def _date_unix_s(text: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime(text or "")
    except (ValueError, TypeError, IndexError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
