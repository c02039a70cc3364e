"""What a process without rights asks ``greentrain daemon`` for: limits, clocks and RAPL, over its Unix socket.

HTTP as zeusd speaks it (zeus 0.16.0, docs/zeusd/api.md), so zeusd answers the same questions; what this daemon says
beyond that stands under ``granted`` of ``/discover``.
"""

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from greentrain.utils.display import one_line

ENV_SOCKET: Final = "GREENTRAIN_DAEMON_SOCKET"
"""Names the socket; empty: the daemon is not asked."""
SOCKET: Final = "/run/greentrain.sock"
ANSWER_S: Final = 3.0
"""Longest wait for an answer (s)."""
MOST_BYTES: Final = 2**18
"""Longest answer that is read."""
FRESH_S: Final = 0.02
"""Energies of packages and their memory are asked for together, and one answer serves reads within this time (s)."""


class DaemonError(OSError):
    """The daemon refuses, or does not answer; its words are the message."""

    status = 0
    """HTTP status; 0: no answer."""


def socket_path(environ: Mapping[str, str] | None = None) -> str:
    """Return where the daemon listens, whether it does or not; empty: it is not to be asked.

    Args:
        environ: Environment variables; None: those of the process.
    """
    return (os.environ if environ is None else environ).get(ENV_SOCKET, SOCKET)


def find_daemon() -> "DaemonClient | None":
    """Return the daemon of this machine; None where there is none, or it allows this user nothing."""
    path = socket_path()
    try:
        return DaemonClient(path) if path and os.path.exists(path) else None
    except DaemonError:
        return None


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DaemonClient:
    """One process's words with the daemon. From any thread; a forked child connects anew, as itself.

    Args:
        path: The socket.

    Raises:
        DaemonError: It does not answer, or refuses this user.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._pid = os.getpid()
        self._energies: tuple[float, Mapping[str, Any]] = (-FRESH_S, {})
        found = self.ask("/discover")
        self.groups = frozenset(found.get("enabled_api_groups", ()))
        """What this user may ask for: ``gpu-read``, ``gpu-control``, ``cpu-read``."""
        self.gpus: Mapping[str, Mapping[str, Any]] = {gpu["uuid"]: gpu for gpu in found["gpus"] if "uuid" in gpu}
        """By UUID: its number there, and under ``granted`` the ranges of what this user may set."""
        self.cpus = {str(cpu["id"]): bool(cpu["dram_available"]) for cpu in found.get("cpus", ())}
        """Packages whose energy it reads, and whether it reads their memory's."""

    def set(self, uuid: str, what: str, **values: object) -> None:
        """Set something of a GPU.

        Args:
            uuid: The GPU.
            what: Last part of the path, such as ``set_power_limit``.
            values: What it takes beside the GPU.

        Raises:
            DaemonError: The daemon refuses, or does not answer.
        """
        if uuid not in self.gpus:
            raise DaemonError(f"the daemon at {self.path} does not know {uuid}")
        self.ask(f"/gpu/{what}", "POST", gpu_ids=self.gpus[uuid]["id"], block="true", **values)

    def energy_j(self, package: str, kind: str) -> float:
        """Return the energy of a processor since the daemon began to read it (J).

        Args:
            package: Number of the package.
            kind: ``cpu`` or ``dram``.

        Raises:
            DaemonError: It cannot be read.
        """
        read_s, found = self._energies
        if time.monotonic() - read_s > FRESH_S:
            found = self.ask("/cpu/get_cumulative_energy", cpu="true", dram="true")
            self._energies = time.monotonic(), found
        value = found.get(package, {}).get(f"{kind}_energy_uj")
        if not isinstance(value, int):
            raise DaemonError(f"the daemon at {self.path} cannot read {kind} of package {package} now")
        return value / 1e6

    def ask(self, path: str, method: str = "GET", **values: object) -> Any:
        """Return the answer to a request, empty where it says nothing.

        Args:
            path: Path at the daemon.
            method: HTTP method.
            values: The query.

        Raises:
            DaemonError: The daemon refuses, or does not answer.
        """
        target = f"{path}?{urlencode(values)}" if values else path
        with self._lock:
            if self._pid != os.getpid():
                self._connection, self._pid = None, os.getpid()
            for attempt in (1, 2):  # the second where the daemon has closed an idle connection, or was started anew
                is_new = self._connection is None
                connection = self._connection = self._connection or _Connection(self.path)
                try:
                    connection.request(method, target)
                    reply = connection.getresponse()
                    body = reply.read(MOST_BYTES)
                    break
                except (OSError, http.client.HTTPException) as error:
                    connection.close()
                    self._connection = None
                    if is_new or attempt == 2 or isinstance(error, TimeoutError):
                        raise DaemonError(f"the daemon at {self.path} does not answer ({error})") from error
        try:
            found = json.loads(body or b"{}")
        except ValueError:
            found = {"error": one_line(body[:200].decode(errors="replace"))}
        if reply.status != 200:
            words = found.get("errors") or {"": found.get("error", f"status {reply.status}")}
            refused = DaemonError("; ".join(map(str, words.values())))
            refused.status = reply.status
            raise refused
        return found

    def __del__(self) -> None:
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()


def survey_daemon() -> str:
    """Return what ``greentrain doctor`` says of the daemon. Never raises."""
    path = socket_path()
    if not path:
        return f"greentrain daemon: not asked, as {ENV_SOCKET} is empty"
    if not os.path.exists(path):
        return (
            f"greentrain daemon: none at {path}. Where an administrator starts one, jobs without root may set limits"
            " and clocks and read RAPL: sudo greentrain daemon (docs/actuation.md, Without root); $"
            f"{ENV_SOCKET} names another socket"
        )
    try:
        client = DaemonClient(path)
    except DaemonError as error:
        return f"greentrain daemon: at {path}, but not for this user: {error}"
    granted = [
        f"GPU {gpu['id']} " + (", ".join(f"{what} {_range(of)}" for what, of in gpu.get("granted", {}).items()) or "-")
        for gpu in client.gpus.values()
    ]
    may = ", ".join(sorted(client.groups)) or "nothing"
    return f"greentrain daemon: answers at {path}; this user may {may}" + "".join(f"; {one}" for one in granted)


def _range(of: Any) -> str:
    return f"{of[0]:g} to {of[1]:g}" if isinstance(of, list) and len(of) == 2 else str(of)
