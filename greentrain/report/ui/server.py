"""The server of the page, in a thread of this process."""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from greentrain.errors import ConfigError
from greentrain.report.fleet.find import find_runs
from greentrain.utils.http_access import is_loopback
from greentrain.utils.imports import try_import
from greentrain.utils.validation import bound

with try_import("ui") as _imports:
    import uvicorn

    from greentrain.report.ui.app import application
    from greentrain.report.ui.link_auth import LinkAuth, Names
    from greentrain.report.ui.watching import Watching

GRACE_S: Final = 2
"""Time that answers under way get at the end (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server listens, and for whom.

    Raises:
        ConfigError: The port is none; other machines could ask and there is no token; a name is none.
        MissingExtraError: FastAPI or uvicorn is not installed.
    """

    host: str = "127.0.0.1"
    port: int = 0
    """0: any that is free."""
    token: str | None = None
    """That is sent as ``Authorization: Bearer TOKEN``."""
    names: Sequence[str] = ()
    """Under which it is asked, besides localhost and its address."""

    def __post_init__(self) -> None:
        _imports.check()
        bound("--port", self.port, 0, 65535)
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host is {self.host!r}, which other machines can reach: give --token-file FILE, or listen at"
                " 127.0.0.1 and forward the port by ssh -L"
            )
        Names(self.host, self.names)


class Server:
    """Serves the page until it is closed. A context manager.

    Args:
        root: Folder of run folders.
        at: Where it listens.
        cache: Of the index.
        every_s: Time between two looks at the folders while a page is open (s).
        used: Called with the next link when one was used.

    Raises:
        ConfigError: As of :class:`Listening`; ``every_s`` is out of bounds; the cache is somebody else's.
        MissingExtraError: FastAPI, uvicorn or DuckDB is not installed.
        RunFolderError: The root cannot be read.
        OSError: The address cannot be listened at.
    """

    def __init__(
        self,
        root: Path,
        at: Listening | None = None,
        *,
        cache: Path | None = None,
        every_s: float = 3.0,
        used: Callable[[str], None] | None = None,
    ) -> None:
        at = at or Listening()
        bound("--every-s", every_s, 0.05, 3600.0)
        next(find_runs(root), None)
        self._socket = _listening(at.host, at.port)
        try:
            name, port = self._socket.getsockname()[:2]
            shown = socket.gethostname() if name in ("0.0.0.0", "::") else name
            self.url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
            """Without a slash at its end."""
            told = None if used is None else lambda word: used(self._link(word))
            self.door = LinkAuth(f"greentrain_ui_{port}", at.token, told)
            self._watching = Watching(root, cache, every_s)
        except BaseException:
            self._socket.close()
            raise
        names = Names(at.host, [*at.names, shown])
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(self._watching, self.door, names),
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._thread = threading.Thread(target=self._serve, name="greentrain-ui", daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            time.sleep(0.005)

    @property
    def link(self) -> str:
        """Opens the page in one browser, once."""
        return self._link(self.door.word)

    @property
    def is_alive(self) -> bool:
        """True until it is closed."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End. Idempotent."""
        self._server.should_exit = True
        self._thread.join(GRACE_S + 1)
        self._server.force_exit = True
        self._thread.join()
        self._watching.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _link(self, word: str) -> str:
        return f"{self.url}/#token={word}"

    def _serve(self) -> None:
        with contextlib.closing(self._socket):
            self._server.run(sockets=[self._socket])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=128)
    except UnicodeError as error:
        raise ConfigError(f"--host is {host!r}, which is no address of this machine: {error}") from error
    except OSError as error:
        number = error.errno or 0
        if number < 0 or number == errno.EADDRNOTAVAIL:  # below 0: of getaddrinfo
            raise ConfigError(f"--host is {host!r}, which is no address of this machine: {error.strerror}") from error
        remedy = "; choose another --port, or 0 for any that is free" if error.errno == errno.EADDRINUSE else ""
        raise OSError(error.errno, f"{host}:{port} cannot be listened at: {error.strerror}{remedy}") from error
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
