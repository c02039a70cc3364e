"""The server of the page, in a thread of this process."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from greentrain.report.cluster import Cluster
from greentrain.report.fleet.find import find_runs
from greentrain.utils.http_access import HostNames
from greentrain.utils.http_server import AsgiHost, HostLimits, listen_checked, url_of
from greentrain.utils.imports import try_import
from greentrain.utils.validation import bound

with try_import("ui") as _imports:
    import uvicorn  # noqa: F401

    from greentrain.report.ui.app import LinkAuth, application
    from greentrain.report.ui.watching import Watching


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server listens, and for whom."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any that is free."""
    token: str | None = None
    """That is sent as ``Authorization: Bearer TOKEN``."""
    names: Sequence[str] = ()
    """Under which it is asked, besides localhost and its address."""


class PageServer:
    """Serves the page until it is closed. A context manager.

    Args:
        root: Folder of run folders.
        at: Address to listen at, and who may ask there.
        cache: File of the index; None: in the user's cache folder.
        every_s: Time between two looks at the folders while a page is open (s).
        used: Function that is called with the next link when one was used.
        fleet: State of a fleet's controller: a file, or ``postgresql://...``; None: ``fleet.db`` of the root, if there.

    Raises:
        ConfigError: The port or a name is none; the host is no address of this machine, or can be reached by others
            without a token; ``every_s`` is out of bounds; the cache is somebody else's.
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
        fleet: str | None = None,
    ) -> None:
        _imports.check()
        at = at or Listening()
        bound("--every-s", every_s, 0.05, 3600.0)
        next(find_runs(root), None)
        listener = listen_checked(at.host, at.port, has_token=at.token is not None, option="--")
        try:
            name, port = listener.getsockname()[:2]
            shown = socket.gethostname() if name in ("0.0.0.0", "::") else name
            self.url = url_of(listener).replace(name, shown) if ":" in shown else f"http://{shown}:{port}"
            """Without a slash at its end."""
            names = HostNames(at.host, [*at.names, shown])
            told = None if used is None else lambda word: used(self._link(word))
            self.door = LinkAuth(f"greentrain_ui_{port}", at.token, told)
            self._watching = Watching(root, cache, every_s)
            self._cluster = Cluster(root, fleet)
        except BaseException:
            listener.close()
            raise
        self._host = AsgiHost(
            application(self._watching, self._cluster, self.door, names),
            listener,
            name="greentrain-ui",
            limits=HostLimits(),
        )

    @property
    def link(self) -> str:
        """Opens the page in one browser, once."""
        return self._link(self.door.word)

    @property
    def is_alive(self) -> bool:
        """True until it is closed."""
        return self._host.is_alive

    def close(self) -> None:
        """End. Idempotent."""
        self._host.close()
        self._watching.close()
        self._cluster.close()

    def __enter__(self) -> "PageServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _link(self, word: str) -> str:
        return f"{self.url}/#token={word}"
