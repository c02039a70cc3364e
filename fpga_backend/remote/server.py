"""Lends a device to other machines over HTTP, with the standard library alone."""

import contextlib
import secrets
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.remote.service import Limits, Reply, Request, Service

_BUSY = b'{"error": "QueueFullError", "message": "the server has no free connection"}'
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BUSY), _BUSY)
DROPPED_BYTES = 2**20


def serve(
    device: OffloadDevice,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    limits: Limits | None = None,
) -> "Server":
    """Lend a device to whoever has the token, until the server is closed; the device stays its owner's to close.

    Args:
        device: What to lend.
        host: Address to listen at: by default this machine's own alone. Another one sends token and tokens in the clear
            through the network; ``ssh -L`` or a proxy with TLS does not.
        port: TCP port; 0: any that is free.
        token: What clients must send; None: a new one.
        limits: What is taken.

    Raises:
        OSError: The port is taken.
        ValueError: The token is shorter than 16 characters or not ASCII.
    """
    return Server(device, host, port, token or secrets.token_urlsafe(32), limits or Limits())


class Server:
    """A listening server, made by :func:`serve`."""

    def __init__(self, device: OffloadDevice, host: str, port: int, token: str, limits: Limits) -> None:
        if len(token) < 16 or not token.isascii() or not token.isprintable():
            raise ValueError("token: at least 16 printable ASCII characters; leave it out to get a good one")
        self.token = token
        self._service = Service(device, token, limits)
        try:
            self._http = _Http((host, port), self._service, limits)
        except BaseException:
            self._service.close()
            raise
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="offload-server", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._http.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Stop listening, end what waits, close every connection. Idempotent."""
        self._service.close()
        self._http.shutdown()
        self._http.server_close()
        self._http.disconnect()
        self._thread.join()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    """A thread a connection, and only so many."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], service: Service, limits: Limits) -> None:
        super().__init__(address, _Handler)
        self.service = service
        self.limits = limits
        self._free = threading.Semaphore(limits.connections)
        self._lock = threading.Lock()
        self._open: dict[Any, threading.Thread | None] = {}

    def server_bind(self) -> None:
        """Bind without asking the name service who we are, as HTTPServer does."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or not at all."""
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(BUSY)
            self.shutdown_request(request)
            return
        thread = threading.Thread(
            target=self._answer, args=(request, client_address), name="offload-server-connection", daemon=True
        )
        with self._lock:
            self._open[request] = thread
        thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is its client's business."""

    def disconnect(self) -> None:
        """Close every connection and wait for their threads."""
        with self._lock:
            left = list(self._open.items())
        for request, _ in left:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        for _, thread in left:
            if thread is not None:
                thread.join(self.limits.longest_hold_s)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
            self._free.release()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "greentrain-offload"
    sys_version = ""
    server: _Http

    def setup(self) -> None:
        self.request.settimeout(self.server.limits.silence_s)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def do_GET(self) -> None:
        body = _Body(self.rfile, self._length(), self.server.limits)
        target = urlsplit(self.path)
        reply = self.server.service.answer(
            Request(
                method=self.command,
                path=target.path,
                query=dict(parse_qsl(target.query)),
                headers={name.lower(): value for name, value in self.headers.items()},
                length=body.length,
                read=body.read,
            )
        )
        self._send(reply, reusable=body.length is not None and not body.left)
        body.drop()

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing: what matters is answered to the client."""

    def _length(self) -> int | None:
        if "Transfer-Encoding" in self.headers:
            return None
        text = self.headers.get("Content-Length", "0" if self.command in ("GET", "DELETE") else "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    def _send(self, reply: Reply, *, reusable: bool) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        if not reusable:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.body)


class _Body:
    """The body of a request, as far as it is read, within limits of time."""

    def __init__(self, file: Any, length: int | None, limits: Limits) -> None:
        self.length = length
        self.left = length or 0
        self._file = file
        self._end_s = time.monotonic() + limits.silence_s + self.left / limits.slowest_bytes_per_s

    def read(self, count: int) -> bytes:
        """Read up to so many bytes.

        Raises:
            OSError: The client is gone, silent or too slow.
        """
        piece: bytes = self._file.read1(min(count, self.left)) if time.monotonic() < self._end_s else b""
        if not piece:
            raise ConnectionError("the body broke off, or came too slowly")
        self.left -= len(piece)
        return piece

    def drop(self) -> None:
        """Read a little of what nobody wants: a connection closed over unread bytes takes the reply with it."""
        until = max(0, self.left - DROPPED_BYTES)
        while self.left > until:
            self.read(2**16)
