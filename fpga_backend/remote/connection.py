"""A client's requests to one server: limits of time and size, and patience with a network that stumbles."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

from greentrain.fpga_backend.errors import ArtifactError, DeviceError, DeviceLostError
from greentrain.fpga_backend.remote import wire
from greentrain.utils.imports import try_import

with try_import("remote") as imports:
    import httpx

PAUSE_S = 0.2
"""Before a request is sent again (s)."""
MOST_BYTES = 2**30
"""Largest reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client waits."""

    batch_s: float = 600.0
    """For a batch's result, from sending it (s)."""
    load_s: float = 600.0
    """For the device to load an artifact, once it is there (s)."""
    silence_s: float = 10.0
    """For a connection, and between two pieces of a request or an answer (s)."""
    lost_s: float = 30.0
    """A server that does not answer for this long is lost, with all that waits (s)."""
    hold_s: float = 1.0
    """A request is held by the server for so long while its batch runs (s): how fast a client notices that it ends."""
    poll_s: float = 2.0
    """Between two readings of the other machine's joules (s)."""


class Answer(NamedTuple):
    """What came."""

    status: int
    body: bytes


class Connection:
    """Asks one server. Any thread may call.

    Args:
        url: The server.
        token: Its token.
        patience: Limits of time.

    Raises:
        MissingExtraError: httpx is not installed.
        ValueError: ``url`` is none, or the token is no ASCII.
    """

    def __init__(self, url: str, token: str, patience: Patience) -> None:
        imports.check()
        self.patience = patience
        self._stop = threading.Event()
        try:
            self.url = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise ValueError(f"url={url!r}: {error}") from error
        if self.url.scheme not in ("http", "https") or not self.url.host:
            raise ValueError(f"url={url!r}: write it like http://127.0.0.1:8765")
        if not token.isascii() or not token.isprintable():
            raise ValueError("token: the one that the server printed, printable ASCII")
        self._http = httpx.Client(
            base_url=self.url,
            headers={
                wire.TOKEN_HEADER: f"Bearer {token}",
                wire.CLIENT_HEADER: uuid4().hex,
                "Accept-Encoding": "identity",
            },
            timeout=httpx.Timeout(patience.silence_s),
            follow_redirects=False,  # a token is for the server it was made for
            trust_env=False,
        )

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: bytes | Iterable[bytes] | None = None,
        length: int | None = None,
        answer_s: float | None = None,
    ) -> Answer:
        """Return the answer of the server; asks again while the network fails.

        Args:
            method: Of HTTP.
            path: Behind ``/v1/``.
            params: Of the query.
            body: To send; an iterable must be able to start anew.
            length: Bytes of an iterable body.
            answer_s: How long the server may be silent (s).

        Raises:
            DeviceLostError: It did not answer for ``lost_s``, or the connection was closed here.
        """
        failing_s: float | None = None
        while True:
            try:
                return self._sent(method, path, params, body, length, answer_s)
            except httpx.TransportError as error:
                now_s = time.monotonic()
                failing_s = now_s if failing_s is None else failing_s
                if now_s - failing_s >= self.patience.lost_s:
                    raise DeviceLostError(
                        f"{self.place} did not answer for {now_s - failing_s:.0f} s ({_said(error)}): is it running, "
                        "and can this machine reach it?"
                    ) from error
            if self._stop.wait(PAUSE_S):
                raise DeviceLostError("the device is closed")

    def once(self, method: str, path: str, *, body: bytes | None = None, answer_s: float | None = None) -> Answer:
        """Return the answer to one request that is not sent again, as :meth:`ask` would.

        Raises:
            DeviceError: There is none.
            DeviceLostError: The connection was closed here.
        """
        try:
            return self._sent(method, path, None, body, None, answer_s)
        except httpx.TransportError as error:
            raise DeviceError(f"{self.place} does not answer ({_said(error)})") from error

    def _sent(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: bytes | Iterable[bytes] | None,
        length: int | None,
        answer_s: float | None,
    ) -> Answer:
        if self._stop.is_set():
            raise DeviceLostError("the device is closed")
        silence_s = self.patience.silence_s
        with self._http.stream(
            method,
            f"/v{wire.VERSION}/{path}",
            params=params,
            content=body,
            headers={} if length is None else {"Content-Length": str(length)},
            timeout=httpx.Timeout(silence_s, read=max(silence_s, answer_s or 0.0)),
        ) as reply:
            pieces, size = [], 0
            for piece in reply.iter_raw():  # as it was sent: nothing that unpacks, and nothing that fails to
                pieces.append(piece)
                size += len(piece)
                if size > MOST_BYTES:
                    raise DeviceError(f"{self.place} answered with more than {MOST_BYTES} bytes")
            return Answer(reply.status_code, b"".join(pieces))

    @property
    def place(self) -> str:
        """The server, for messages."""
        return f"the server at {self.url.host}:{self.url.port or self.url.scheme}"

    def json(self, answer: Answer) -> dict[str, Any]:
        """Return the JSON of an answer that is no failure.

        Raises:
            DeviceError: The failure, as the server tells it, or that it speaks something else.
        """
        try:
            reply = wire.json_of(answer.body)
        except wire.MalformedError as error:
            raise DeviceError(
                f"{self.place} answered HTTP {answer.status} with {error}: is it a GreenTrain server?"
            ) from error
        if answer.status in (200, 202):
            return reply
        failure = wire.read_error(reply, answer.status)
        raise failure if isinstance(failure, DeviceError | ArtifactError) else DeviceError(str(failure))

    def close(self) -> None:
        """End requests that wait for the network. Idempotent."""
        self._stop.set()

    def release(self) -> None:
        """Close the sockets, when no thread asks any more."""
        self._http.close()


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
