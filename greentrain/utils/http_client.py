"""HTTP requests to one server, over httpx, within the limits that every client of GreenTrain keeps.

No redirect is followed, as a key is for the server it was made for. A connection, each silence, the whole answer and
its size have bounds. Failures are told by kind, in texts made of what is known to be harmless: no header, no body.
httpx is optional, and imported when a client is made.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote, urlsplit

from greentrain.utils.imports import try_import

if TYPE_CHECKING:
    import httpx

TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be better next time: RFC 9110 section 15, RFC 8470, RFC 6585."""


Kind = Literal["large", "late", "silent", "unreachable", "broken"]


class HttpError(Exception):
    """No whole answer came.

    Args:
        kind: ``large``: more bytes than are taken. ``late``: not whole in time, or given up from outside. ``silent``: a
            connection or a piece took too long. ``unreachable``: no connection. ``broken``: anything else.
        text: Words of the system, or of the client.
        name: Name of httpx's exception, empty where a limit of the client ended it.
    """

    def __init__(self, kind: Kind, text: str, name: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """A whole answer, of any status."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """Names in any case."""
    body: bytes

    @property
    def server_unix_s(self) -> float | None:
        """The server's time by its Date header (s since the epoch); None where it has none."""
        return _date_unix_s(self.headers.get("Date"))

    @property
    def rest_s(self) -> float | None:
        """How long the server asks to be left alone (s): a number, or a date by its own clock; None if it does not."""
        text = self.headers.get("Retry-After")
        if text is None or text.strip().replace(".", "", 1).isdecimal():
            return None if text is None else float(text)
        until_s, now_s = _date_unix_s(text), self.server_unix_s
        return None if until_s is None else max(0.0, until_s - (time.time() if now_s is None else now_s))


class HttpClient:
    """Asks one server. Any thread may call, also several at a time.

    Args:
        url: Address of the server. A name and password in it are sent in a header and appear in no log.
        extra: Extra of ``greentrain-torch`` that installs httpx for the caller.
        silence_s: Longest wait for a connection, and between two pieces (s).
        most_bytes: Largest body that is taken.
        connect_s: Longest wait for a connection, where it is another one (s).
        headers: Headers of every request.
        env_proxies: Take proxies from the environment.
        unpack: Unpack bodies that were sent compressed; False takes them as they were sent.
        transport: A transport of httpx, for tests.
        monotonic_s: Function that returns the monotonic time (s).

    Raises:
        MissingExtraError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        extra: str,
        silence_s: float,
        most_bytes: int,
        connect_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        env_proxies: bool = True,
        unpack: bool = True,
        transport: "httpx.BaseTransport | None" = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        check_httpx(extra)
        import httpx

        self.url, self.host, user = _split(url.rstrip("/"))
        self._silence_s = silence_s
        self._most_bytes = most_bytes
        self._unpack = unpack
        self._monotonic_s = monotonic_s
        self._http = httpx.Client(
            timeout=httpx.Timeout(silence_s, connect=silence_s if connect_s is None else connect_s),
            headers=headers,
            auth=user,
            transport=transport,
            trust_env=env_proxies,
            follow_redirects=False,
        )

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
        read_s: float = 0.0,
        within_s: float = float("inf"),
        stop: threading.Event | None = None,
    ) -> HttpAnswer:
        """Return the answer to one request, of any status.

        Args:
            method: Method of HTTP.
            path: Path behind the address, with its slash.
            params: Query of the URL.
            headers: Headers of this request alone.
            body: Body that is sent; with an iterable, give a Content-Length among the headers.
            read_s: Longest silence of the server, where that is longer than for other requests (s).
            within_s: Time within which the whole answer must be there (s), looked at with each piece.
            stop: Event; the request is given up when it is set.

        Raises:
            HttpError: No whole answer came.
        """
        import httpx

        give_up_s = self._monotonic_s() + within_s
        found = bytearray()
        timeout = self._http.timeout if read_s <= self._silence_s else httpx.Timeout(self._silence_s, read=read_s)
        try:
            with self._http.stream(
                method, self.url + path, params=params, headers=headers, content=body, timeout=timeout
            ) as reply:
                for piece in reply.iter_bytes() if self._unpack else reply.iter_raw():
                    found += piece
                    if len(found) > self._most_bytes:
                        raise HttpError("large", f"more than {self._most_bytes} bytes")
                    if (stop is not None and stop.is_set()) or self._monotonic_s() > give_up_s:
                        raise HttpError("late", f"no whole answer within {within_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            kind: Kind = "unreachable" if isinstance(error, httpx.ConnectError) else "broken"
            kind = "silent" if isinstance(error, httpx.TimeoutException) else kind
            name = type(error).__name__
            raise HttpError(kind, str(error) or name, name) from error
        return HttpAnswer(
            status=reply.status_code, reason=reply.reason_phrase, headers=reply.headers, body=bytes(found)
        )

    def close(self) -> None:
        """Close the connections, when no thread asks any more."""
        self._http.close()


def check_httpx(extra: str) -> None:
    """Raise if no client can be made.

    Args:
        extra: Extra of ``greentrain-torch`` that installs httpx for the caller.

    Raises:
        MissingExtraError: httpx is not installed.
    """
    with try_import(extra) as found:
        import httpx  # noqa: F401
    found.check()


def _split(url: str) -> tuple[str, str, tuple[str, str] | None]:
    """Return a URL without name and password, its host, and both decoded: httpx logs every address that it asks."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return url, "", None  # the first question says what is wrong
    user, at, place = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    return (
        parts._replace(netloc=place).geturl() if at else url,
        host,
        (unquote(name), unquote(password)) if at else None,
    )


def _date_unix_s(text: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime(text or "")
    except (ValueError, TypeError, IndexError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
