"""The server in a thread of this process."""

import contextlib
import errno
import ipaddress
import socket
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from greentrain.errors import ConfigError
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.limits import Limits
from greentrain.rlhf.text import TextEncoder
from greentrain.utils.imports import try_import

with try_import("serve") as _imports:
    import uvicorn

    from greentrain.rlhf.serve.app import application
    from greentrain.rlhf.serve.connection import protocol
    from greentrain.rlhf.serve.scorer import TooLong

BACKLOG = 2048
"""Connections that may wait to be accepted: a burst of clients is not reset."""
KEEP_ALIVE_S = 60
"""Longer than clients keep idle connections, so that a client never writes into one that is being closed."""


class Server:
    """Answers until it is closed. A context manager; the engine and its devices are the caller's to close.

    Args:
        engine: What runs the passes; its reward and reference are served.
        text: How each pass reads texts; without it only token ids are taken.
        host: Address to listen at.
        port: Of TCP; 0: any that is free.
        token: That clients must have. None: everybody on this machine, and only there, may ask.
        limits: Bounds.
        too_long: ``refuse`` texts of more tokens than the model takes, or ``truncate`` them.

    Raises:
        ConfigError: Another address than this machine's without a token; a token that is too short; neither reward nor
            reference in the engine.
        MissingExtraError: FastAPI, uvicorn or prometheus_client is not installed.
        OSError: The address cannot be listened at.
    """

    def __init__(
        self,
        engine: OffloadEngine,
        text: Mapping[PassKind, TextEncoder] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        limits: Limits | None = None,
        too_long: "TooLong" = "refuse",
    ) -> None:
        _imports.check()
        self.limits = limits or Limits()
        if not {PassKind.REWARD, PassKind.REFERENCE} & engine.passes.keys():
            raise ConfigError("the engine has neither a reward nor a reference pass: there is nothing to serve")
        family, address = _resolved(host, port, token)
        self.application = application(engine, text or {}, token=token, limits=self.limits, too_long=too_long)
        try:
            self._socket = _listening(family, address)
        except BaseException:
            self.application.close()
            raise
        bound: tuple[str, int] = self._socket.getsockname()[:2]
        self.url = f"http://[{bound[0]}]:{bound[1]}" if family == socket.AF_INET6 else f"http://{bound[0]}:{bound[1]}"
        """Where it is, without a slash at its end."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.application.guarded,
                loop="asyncio",
                http=protocol(self.limits),
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=self.limits.connections,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(self.limits.drain_s) + 2,
            )
        )
        self._thread = threading.Thread(target=self._serve, name="greentrain-serve", daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            time.sleep(0.005)

    def _serve(self) -> None:
        with contextlib.closing(self._socket):
            self._server.run(sockets=[self._socket])

    @property
    def is_alive(self) -> bool:
        """True until it is closed."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Take no more requests, let those that run finish within ``drain_s``, and end. Idempotent."""
        self._server.should_exit = True
        self._thread.join(self.limits.drain_s)
        if self._thread.is_alive():
            self.application.give_up()
            self._thread.join(self.limits.drain_s + 5.0)
        self.application.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_installed() -> None:
    """Raise if a server cannot be made.

    Raises:
        MissingExtraError: FastAPI, uvicorn or prometheus_client is not installed.
    """
    _imports.check()


def check_listening(host: str, port: int, token: str | None) -> None:
    """Raise if a server could not listen there, before models are loaded for minutes.

    Raises:
        ConfigError: As of :class:`Server`.
        OSError: As of :class:`Server`.
    """
    _listening(*_resolved(host, port, token)).close()


def _resolved(host: str, port: int, token: str | None) -> tuple[socket.AddressFamily, tuple[str, int]]:
    if not 0 <= port <= 65535:
        raise ConfigError(f"port is {port}; it must be between 0 and 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} is no address of this machine: {error}") from error
    family, _, _, _, address = found[0]
    if token is None and not ipaddress.ip_address(address[0]).is_loopback:
        raise ConfigError(f"host {host} can be reached by other machines: give a token, or listen at 127.0.0.1")
    return family, (str(address[0]), int(address[1]))


def _listening(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        remedy = "; choose another port, or 0 for any that is free" if error.errno == errno.EADDRINUSE else ""
        said = f"{address[0]}:{address[1]} cannot be listened at: {error.strerror}{remedy}"
        raise OSError(error.errno, said) from error
    return made
