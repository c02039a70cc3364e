"""Two hosts for all local servers: uvicorn for ASGI applications, the standard library where uvicorn is not installed.

The page over runs and the served passes are applications; the exporter inside a training and the lent device answer
with the standard library alone. All of them hold a client to the same limits: connections at a time, size and time of a
request's head, time to take an answer. Where all connections are taken, a new one gets the place of the one that has
waited longest without a whole request, so clients that are silent or slow keep nobody out. Who may ask is for
:mod:`greentrain.utils.http_access` to say.
"""

import asyncio
import contextlib
import errno
import io
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from greentrain.errors import ConfigError
from greentrain.utils.validation import bound

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG: Final = 2048
"""Connections that may wait to be accepted: a burst of clients is not reset."""
KEEP_ALIVE_S: Final = 60
"""Longer than clients keep idle connections, so that a client never writes into one that is being closed."""
GRACE_S: Final = 1.0
"""More than an application has to answer 408 by itself (s)."""
DROPPED_BYTES: Final = 2**20
"""Of a body that nobody wants, so much is read: a connection closed over unread bytes takes the reply with it."""
_TURN_S: Final = 0.1
"""Between two looks whether a host was closed (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """How much of a server a client can hold, and for how long."""

    connections: int = 256
    """Connections that are open at a time; where as many requests are answered, more are refused with 503."""
    head_bytes: int = 2**16
    """Size of a request's head."""
    receive_s: float = 30.0
    """Time within which a request's head must have arrived, and longest wait for its first byte (s)."""
    send_s: float = 30.0
    """Time within which a client must take its answer (s)."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: Name or address of this machine.
        port: TCP port; 0: any that is free.

    Raises:
        OSError: The address cannot be listened at, or is none.
        OverflowError: The port is above 65535.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address[0], port))
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def listen_checked(host: str, port: int, *, has_token: bool, option: str = "") -> socket.socket:
    """Return a socket that listens, or say what is wrong with the address that somebody gave.

    Args:
        host: Name or address of this machine.
        port: TCP port; 0: any that is free.
        has_token: Clients must send a token; without one, only this machine may be able to ask.
        option: Prefix of ``host`` and ``port`` where messages name them, such as ``--``.

    Raises:
        ConfigError: The host is no address of this machine, or can be reached by others without a token; the port is
            out of bounds.
        OSError: The address cannot be listened at.
    """
    bound(f"{option}port", port, 0, 65535)
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{option}host is {host!r}, which is no address of this machine: {error}") from error
    if not has_token and not ipaddress.ip_address(address).is_loopback:
        token = f"{option}token-file FILE" if option else "a token"
        raise ConfigError(
            f"{option}host is {host!r}, which can be reached by other machines: give {token}, or listen at 127.0.0.1"
            " and forward the port by ssh -L"
        )
    try:
        return listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"{option}host is {host!r}, which is no address of this machine: {error.strerror}"
            ) from error
        remedy = f"; choose another {option}port, or 0 for any that is free" if error.errno == errno.EADDRINUSE else ""
        raise OSError(error.errno, f"{host}:{port} cannot be listened at: {error.strerror}{remedy}") from error


def url_of(listener: socket.socket) -> str:
    """Return where a socket listens, without a slash at the end."""
    if isinstance(listener.getsockname(), str):
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class AsgiHost:
    """Runs an ASGI application with uvicorn, in a thread of this process. Its caller has seen that uvicorn is there.

    Args:
        application: The application.
        listener: Socket that listens; closed by the host.
        name: Name of the thread.
        limits: Bounds of what a client can hold.
        lifespan: The application wants to know when it begins and ends.
        grace_s: Time that answers under way get at the end (s).
    """

    def __init__(
        self,
        application: Any,
        listener: socket.socket,
        *,
        name: str,
        limits: HostLimits,
        lifespan: bool = False,
        grace_s: float = 2.0,
    ) -> None:
        import uvicorn

        self.listener = listener
        self._grace_s = grace_s
        self.server = uvicorn.Server(
            uvicorn.Config(
                application,
                loop="asyncio",
                http=_protocol(limits),
                h11_max_incomplete_event_size=limits.head_bytes,
                ws="none",
                lifespan="on" if lifespan else "off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=limits.connections + 1,  # uvicorn counts the one that asks
                backlog=min(BACKLOG, limits.connections),  # it accepts as many at once, before it looks at any
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(grace_s),
            )
        )
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not self.server.started:
            time.sleep(0.005)
        with contextlib.suppress(OSError):  # closed again already
            listener.listen(BACKLOG)  # uvicorn has made the queue as short as what it accepts at once

    def _serve(self) -> None:
        with contextlib.closing(self.listener):
            self.server.run(sockets=[self.listener])

    @property
    def is_alive(self) -> bool:
        """True until it is closed."""
        return self._thread.is_alive()

    def close(self, late: Callable[[], None] | None = None, late_s: float = 0.0) -> None:
        """Take no more requests, let those that run finish, and end. Idempotent.

        Args:
            late: Function that is called where some still run after ``late_s``.
            late_s: Time that they get until then (s).
        """
        self.server.should_exit = True
        if late is not None:
            self._thread.join(late_s)
            if self._thread.is_alive():
                late()
        self._thread.join(self._grace_s + 3.0)
        self.server.force_exit = True
        self._thread.join(5.0)


def _protocol(limits: HostLimits) -> "type[H11Protocol]":
    """Return the class of connections with these limits."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedProtocol(H11Protocol):
        """uvicorn's, with two clocks and a bound on connections. uvicorn itself has a clock for idle ones only."""

        receiving: asyncio.TimerHandle | None = None
        sending: asyncio.TimerHandle | None = None
        waits_since_s: float

        def connection_made(self, transport: Any) -> None:
            others: set[Any] = self.connections  # all of this class
            waiting = [one for one in others if one.waits]
            if waiting and len(others) >= limits.connections:
                oldest = min(waiting, key=lambda one: one.waits_since_s)
                others.discard(oldest)
                oldest.transport.abort()
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)
            self.waits_since_s = self.loop.time()
            self._start_receiving()

        @property
        def waits(self) -> bool:
            """True without a whole request: there is none, its answer is out, or its body still comes."""
            return self.cycle is None or self.cycle.response_complete or self.conn.their_state is h11.SEND_BODY

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.waits_since_s = self.loop.time()
            self._look()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.sending = self.sending or self.loop.call_later(limits.send_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.sending is not None:
                self.sending.cancel()
                self.sending = None

        def connection_lost(self, exc: Exception | None) -> None:
            for clock in (self.receiving, self.sending):
                if clock is not None:
                    clock.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            """Start or stop the clock of the request that arrives."""
            state = self.conn.their_state
            begun = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
            if begun:
                self._start_receiving()
            elif self.receiving is not None:
                self.receiving.cancel()
                self.receiving = None

        def _start_receiving(self) -> None:
            self.receiving = self.receiving or self.loop.call_later(limits.receive_s + GRACE_S, self.transport.abort)

    return TimedProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request whose head has been read."""

    method: str
    path: str
    """Path without the query."""
    query: str
    """What stands behind the question mark."""
    headers: Mapping[str, str]
    """Names in small letters."""
    length: int | None
    """Bytes of the body; None: the client does not say."""
    read: Callable[[int], bytes]
    """Reads up to so many bytes of the body, or raises OSError."""
    connection: socket.socket | None = None
    """Where it came from."""

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers as :class:`greentrain.utils.http_access.Access` takes them."""
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """An answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


class ThreadHost:
    """Answers with the standard library, in a thread a connection.

    Args:
        listener: Socket that listens; closed by the host.
        answer: Function from a request to its reply. It may raise OSError of the body, which ends the connection.
        name: Name of the threads.
        limits: Bounds of what a client can hold.
        busy: Reply to clients for whom no connection is left, as all of them are being answered.
        slowest_bytes_per_s: Least speed of a body (bytes/s); a slower one is given up, after ``receive_s``.
        keeps_open: A client may send several requests over one connection.
        drain_s: Time that answers under way get at the end (s).
        admits: Function from a new connection, and those that are open, to whether it is taken; None: all are.
    """

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[HttpRequest], HttpReply],
        *,
        name: str,
        limits: HostLimits,
        busy: HttpReply,
        slowest_bytes_per_s: float = 1e5,
        keeps_open: bool = True,
        drain_s: float = 2.0,
        admits: Callable[[socket.socket, list[socket.socket]], bool] | None = None,
    ) -> None:
        self.url = url_of(listener)
        self.port = 0 if self.url.startswith("unix:") else int(listener.getsockname()[1])
        self._admits = admits
        self.answer = answer
        self.limits = limits
        self.slowest_bytes_per_s = slowest_bytes_per_s
        self.keeps_open = keeps_open
        self._listener = listener
        self._name = name
        length = f"Content-Length: {len(busy.body)}\r\nConnection: close\r\n\r\n"
        self._busy = f"HTTP/1.1 {busy.status} Service Unavailable\r\n{length}".encode() + busy.body
        self._drain_s = drain_s
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._waiting: dict[socket.socket, None] = {}
        """Those without a whole request, in the order in which they began to wait."""
        self._pid = os.getpid()
        self._closed = False
        listener.settimeout(_TURN_S)
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:  # a forked child has no such threads, whose end would be waited for
            self._listener.close()
            return
        self._thread.join(2.0)
        with contextlib.suppress(OSError):  # a forked data loader has the socket too, and must not keep the port
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            left = dict(self._open)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        end_s = time.monotonic() + self._drain_s
        for thread in left.values():
            thread.join(max(0.0, end_s - time.monotonic()))

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._closed or self._listener.fileno() < 0:
                    return
                time.sleep(_TURN_S)  # no file can be opened for now, say
                continue
            with self._lock:
                others = list(self._open)
            if self._admits is not None and not self._admits(connection, others):
                connection.close()
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name=f"{self._name}-connection")
            thread.daemon = True
            self._make_room()
            with self._lock:
                is_free = len(self._open) < self.limits.connections
                if is_free:
                    self._open[connection] = thread
                    self._waiting[connection] = None
            try:
                if is_free:
                    thread.start()
                    continue
                connection.settimeout(_TURN_S)
                connection.sendall(self._busy)
            except (OSError, RuntimeError):  # the latter: no thread can be had
                pass
            self._end(connection)

    def waits(self, connection: socket.socket, *, for_request: bool) -> None:
        """Note whether a connection waits for a request or has one that is being answered."""
        with self._lock:
            if not for_request:
                self._waiting.pop(connection, None)
            elif connection in self._open:
                self._waiting[connection] = None

    def _make_room(self) -> None:
        """Where all connections are taken, end the one that has waited longest for its request."""
        with self._lock:
            oldest = next(iter(self._waiting), None) if len(self._open) >= self.limits.connections else None
            thread = None if oldest is None else self._open[oldest]
        if oldest is not None and thread is not None:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
            thread.join(GRACE_S)  # it hears at once, and only then its file is free

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(Exception):  # a connection that broke is its client's business
            _RequestHandler(connection, None, self)  # type: ignore[arg-type]
        self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        with self._lock:
            self._waiting.pop(connection, None)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        connection.close()
        with self._lock:
            self._open.pop(connection, None)


class _Incoming(io.RawIOBase):
    """What a client sends, with a clock, and with a bound on the size of a head."""

    def __init__(self, connection: socket.socket, limits: HostLimits) -> None:
        self._connection = connection
        self._limits = limits
        self.expect_head()

    def expect_head(self) -> None:
        """Start with a request: its clock begins with its first byte."""
        self._end_s = float("inf")
        self._left: float = self._limits.head_bytes

    def expect_body(self, within_s: float) -> None:
        """Go on with a body, all of which must have come within so many seconds."""
        self._end_s = time.monotonic() + within_s
        self._left = float("inf")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has come.

        Raises:
            TimeoutError: The client is silent, too slow, or sends too large a head.
        """
        wait_s = min(self._limits.receive_s, self._end_s - time.monotonic())
        if wait_s <= 0 or self._left <= 0:
            raise TimeoutError("the request came too slowly, or its head is too large")
        self._connection.settimeout(wait_s)
        count = self._connection.recv_into(buffer)
        self._left -= count
        if self._end_s == float("inf"):
            self._end_s = time.monotonic() + self._limits.receive_s
        return count


class _RequestHandler(BaseHTTPRequestHandler):
    """One connection."""

    server_version = "greentrain"
    sys_version = ""
    server: ThreadHost  # type: ignore[assignment]

    def setup(self) -> None:
        super().setup()
        if not self.server.url.startswith("unix:"):
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.protocol_version = "HTTP/1.1" if self.server.keeps_open else "HTTP/1.0"
        self.rfile.close()
        self._incoming = _Incoming(self.connection, self.server.limits)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        self._incoming.expect_head()
        self.server.waits(self.connection, for_request=True)
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.waits(self.connection, for_request=False)
        length = self._length()
        self._left = length or 0
        limits = self.server.limits
        self._incoming.expect_body(limits.receive_s + self._left / self.server.slowest_bytes_per_s)
        target = urlsplit(self.path)
        reply = self.server.answer(
            HttpRequest(
                method=self.command,
                path=target.path,
                query=target.query,
                headers={name.lower(): value for name, value in self.headers.items()},
                length=length,
                read=self._read,
                connection=self.connection,
            )
        )
        self.connection.settimeout(limits.send_s)
        self._send(reply, reusable=length is not None and not self._left)
        self.server.waits(self.connection, for_request=True)
        self._incoming.expect_body(limits.receive_s)  # however long the client has said that its body is
        until = max(0, self._left - DROPPED_BYTES)
        while self._left > until:
            self._read(2**16)

    do_POST = do_PUT = do_DELETE = do_OPTIONS = do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing: what matters is answered to the client."""

    def _length(self) -> int | None:
        if "Transfer-Encoding" in self.headers:
            return None
        text = self.headers.get("Content-Length", "" if self.command in ("POST", "PUT") else "0")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    def _read(self, count: int) -> bytes:
        """Read up to so many bytes of the body.

        Raises:
            OSError: The client is gone, silent or too slow.
        """
        piece: bytes = self.rfile.read1(min(count, self._left))
        if not piece:
            raise ConnectionError("the body broke off")
        self._left -= len(piece)
        return piece

    def _send(self, reply: HttpReply, *, reusable: bool) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        if not reusable:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)
