"""``greentrain daemon``: root's hand for jobs that have no rights, over a Unix socket.

::

    job --connects--> who is it (SO_PEERCRED) --in the list?--> in its ranges? --> GPU free, or its own?
        --> the record of what was found is written --> set
    the job's process ends, by whatever --> what was found is put back --> the record goes

It speaks zeusd's HTTP (zeus 0.16.0, docs/zeusd/api.md), so that Zeus' own client can use it, and differs where that is
safer: who may do what is in a list, a GPU is one process's at a time, and nothing outlives the process that set it. The
lease is bound to the process, not to its connection: HTTP clients drop idle connections, and forked data loader workers
hold copies of them. Records are those of :mod:`greentrain.control.actuators.guardian_main`; a daemon that starts again
puts back what the dead have left, and takes over what the living have set.
"""

import contextlib
import grp
import json
import os
import pwd
import re
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import parse_qsl

from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.guardian_main import Library, Record
from greentrain.errors import ConfigError, GreenTrainError, MeterError
from greentrain.power.nvml import NvmlGpu, list_gpus, open_nvml
from greentrain.power.rapl import ROOT, RaplMeter
from greentrain.utils import private_files
from greentrain.utils.http_server import HostLimits, HttpReply, HttpRequest, ThreadHost
from greentrain.utils.never_raise import warn_experimental
from greentrain.utils.validation import Bound, check_fields, load

STATE: Final = "/run/greentrain-daemon"
LOOK_S: Final = 0.2
"""How often the holders of leases are looked for (s)."""
RETRY_S: Final = 2.0
"""Wait after a driver that refused to put something back (s)."""
RAPL_S: Final = 30.0
"""RAPL is read at least this often (s), well below the time in which a counter wraps at 1000 W."""
LIMITS: Final = HostLimits(connections=256, head_bytes=4096, receive_s=10.0, send_s=10.0)
NUMBER: Final = re.compile(r"[0-9]{1,9}")
NUMBERS: Final = re.compile(r"[0-9]{1,4}(,[0-9]{1,4}){0,63}")
Watts = Annotated[float, Bound(0.0, 100_000.0)]
Megahertz = Annotated[float, Bound(0.0, 100_000.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What some users may do. A range is its lowest and its highest value; without one, nothing of it may be set."""

    users: tuple[str, ...] = ()
    """Names, or numbers in quotes."""
    groups: tuple[str, ...] = ()
    """Names, or numbers in quotes; of any group that a user is in."""
    gpus: tuple[str, ...] = ()
    """Numbers, in quotes, or UUIDs; empty: all."""
    power_w: tuple[Watts, ...] = ()
    """Power limits (W)."""
    graphics_mhz: tuple[Megahertz, ...] = ()
    """Locked graphics clocks (MHz)."""
    memory_mhz: tuple[Megahertz, ...] = ()
    """Locked memory clocks (MHz)."""
    profiles: bool = False
    """Workload power profiles."""
    read: bool = True
    """Energy and power of GPUs and processors."""

    def __post_init__(self) -> None:
        check_fields(self, "allow")
        for key in ("power_w", "graphics_mhz", "memory_mhz"):
            given = getattr(self, key)
            if given and (len(given) != 2 or given[0] > given[1]):
                raise ConfigError(f"allow.{key} is {list(given)}; give the lowest and the highest value")
        if not self.users and not self.groups:
            raise ConfigError("allow: a rule names neither users nor groups, so it allows nobody anything: name some")
        for names, look in ((self.users, _uid), (self.groups, _gid)):
            for name in names:
                look(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """Settings of ``greentrain daemon``."""

    allow: tuple[Rule, ...] = ()
    """Who may do what; what one of the rules allows is allowed."""
    requests_per_s: Annotated[float, Bound(1.0, 10_000.0)] = 100.0
    """Requests of one user, on the average; twice as many may come at once."""
    connections: Annotated[int, Bound(1, 256)] = 32
    """Connections of one user."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.allow:
            raise ConfigError("allow is empty, so nobody may do anything: name users or groups and what they may")


def _number_of(name: str, kind: str, found: Callable[[], int]) -> int:
    try:
        return int(name) if name.isdigit() else found()
    except KeyError as error:
        raise ConfigError(f"allow.{kind} names {name!r}, whom this machine does not know") from error


def _uid(name: str) -> int:
    return _number_of(name, "users", lambda: pwd.getpwnam(name).pw_uid)


def _gid(name: str) -> int:
    return _number_of(name, "groups", lambda: grp.getgrnam(name).gr_gid)


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a connection, as the kernel names it."""

    pid: int
    """0: it is in a PID namespace that this one does not see."""
    uid: int
    gid: int
    owner: tuple[int, int, int]
    """As in a record: PID namespace, pid, start time."""

    @classmethod
    def of(cls, connection: socket.socket) -> "Peer":
        """Return who has connected (unix(7), SO_PEERCRED)."""
        pid, uid, gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return cls(pid, uid, gid, guardian_main.this_process(pid))

    def matches(self, rule: Rule) -> bool:
        """Return True if a rule is for this user."""
        groups = {self.gid}
        with contextlib.suppress(KeyError):
            groups.update(os.getgrouplist(pwd.getpwuid(self.uid).pw_name, self.gid))
        return self.uid in map(_uid, rule.users) or not groups.isdisjoint(map(_gid, rule.groups))


class Write(NamedTuple):
    """A request that changes something."""

    takes: tuple[str, ...]
    part: str
    """Of the record."""
    right: str
    """Field of a rule."""
    function: str
    """Of NVML; it takes the values as they come. ``both``: of two resets."""


_BOTH: Final = ("min_clock_mhz", "max_clock_mhz")
WRITES: Final = {
    "set_power_limit": Write(("power_limit_mw",), "limit", "power_w", "nvmlDeviceSetPowerManagementLimit"),
    "set_persistence_mode": Write(("enabled",), "persistence", "power_w", "nvmlDeviceSetPersistenceMode"),
    "set_gpu_locked_clocks": Write(_BOTH, "clocks", "graphics_mhz", "nvmlDeviceSetGpuLockedClocks"),
    "set_mem_locked_clocks": Write(_BOTH, "memory", "memory_mhz", "nvmlDeviceSetMemoryLockedClocks"),
    "reset_gpu_locked_clocks": Write((), "clocks", "graphics_mhz", ""),
    "reset_mem_locked_clocks": Write((), "memory", "memory_mhz", ""),
    "reset_locked_clocks": Write((), "clocks", "graphics_mhz", "both"),
    "set_power_profiles": Write(("mask",), "profiles", "profiles", ""),
}
"""zeusd's (zeus 0.16.0, docs/zeusd/api.md); the last is ours."""
READS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "get_cumulative_energy": ("nvmlDeviceGetTotalEnergyConsumption", ("energy_mj",)),
    "get_power": ("nvmlDeviceGetPowerUsage", ("mw",)),
    "get_power_limit": ("nvmlDeviceGetPowerManagementLimit", ("power_limit_mw",)),
    "get_power_limit_constraints": (
        "nvmlDeviceGetPowerManagementLimitConstraints",
        ("min_power_limit_mw", "max_power_limit_mw"),
    ),
    "get_persistence_mode": ("nvmlDeviceGetPersistenceMode", ("enabled",)),
}
RIGHTS: Final = ("power_w", "graphics_mhz", "memory_mhz", "profiles")


class _No(Exception):
    """A request is refused: status, and a sentence or one a GPU."""

    def __init__(self, status: int, why: str | dict[str, str]) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class _Card:
    """One GPU, its lock and the record of what somebody has changed."""

    def __init__(self, gpu: NvmlGpu) -> None:
        self.index, self.gpu = gpu.index, gpu
        self.lock = threading.Lock()
        self.record: Record | None = None
        self.retry_s = 0.0


class Daemon:
    """Serves until it is closed; then everything is put back as it was found.

    Experimental: it ran on a fake driver, never on a card (docs/status.md).

    Args:
        config: Who may do what.
        socket_path: Where it listens.
        state: Folder of the records, root's alone, which lasts until the next boot.
        powercap: The tree of RAPL's counters.
        peer: Function from a connection to who is at its other end.
        say: Called with each sentence for the log.

    Raises:
        GreenTrainError: Another daemon is at work, or the socket or the folder cannot be used.
    """

    def __init__(
        self,
        config: DaemonConfig,
        *,
        socket_path: str,
        state: str = STATE,
        powercap: str | Path = ROOT,
        peer: Callable[[socket.socket], Peer] = Peer.of,
        say: Callable[[str], object] = print,
    ) -> None:
        self._config, self._state, self._path, self._say = config, state, socket_path, say
        self._peer_of, self._now_s = peer, time.monotonic
        self._peers: weakref.WeakKeyDictionary[socket.socket, Peer] = weakref.WeakKeyDictionary()
        self._buckets: dict[int, tuple[float, float]] = {}
        self._lock = threading.Lock()
        self._cards: list[_Card] = []
        self._nvml: Any = None
        try:
            self._only = guardian_main.take_lock(os.path.join(state, "daemon.state"))
        except OSError as error:
            raise GreenTrainError(f"the folder {state} cannot be used: {error.strerror}; it must be root's") from error
        if self._only is None:
            raise GreenTrainError(f"another daemon is at work with {state}")
        try:
            self._nvml = open_nvml()
            self._cards = [_Card(gpu) for gpu in list_gpus(self._nvml) if gpu.handle is not None]
            if not hasattr(self._nvml.nvmlLib, "fake_nvml_configure"):
                warn_experimental("greentrain daemon", "it ran on a fake driver, never on a card")
            self._library = Library(self._nvml.nvmlLib._name, self._nvml.nvmlLib)
        except MeterError as error:
            say(f"no GPU is served: {error}")
        try:
            self._rapl: RaplMeter | None = RaplMeter(powercap, strict=False, ask_daemon=False)
        except MeterError:
            self._rapl = None
        self._rapl_lock, self._rapl_s = threading.Lock(), 0.0
        self._take_over()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="greentrain-daemon-watch", daemon=True)
        self._watcher.start()
        busy = HttpReply(status=503, body=b'{"error": "too many connections"}')
        try:
            listener = self._listen()
        except OSError as error:
            self.close()
            raise GreenTrainError(f"cannot listen at {socket_path}: {error.strerror}") from error
        self._host: ThreadHost | None = ThreadHost(
            listener, self.answer, name="greentrain-daemon", limits=LIMITS, busy=busy, admits=self._admits
        )

    def close(self) -> None:
        """Put everything back, and end. Idempotent."""
        host, self._host = getattr(self, "_host", None), None
        if host is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            host.close()
        if self._only is None:
            return
        self._ended.set()
        self._watcher.join(5.0)
        for card in self._cards:
            with card.lock:
                self._give_back(card, "the daemon ends")
        if self._rapl is not None:
            self._rapl.close()
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
        guardian_main.let_go(self._only)
        self._only = None

    # -- requests ----------------------------------------------------------------------------------------------

    def answer(self, request: HttpRequest) -> HttpReply:
        """Return the reply to a request."""
        try:
            assert request.connection is not None
            peer = self._peers.get(request.connection) or self._peer_of(request.connection)
            self._count(peer)
            rules = [rule for rule in self._config.allow if peer.matches(rule)]
            if not rules:
                raise _No(403, f"user {peer.uid} is in no rule of the daemon's list; ask the administrator")
            if request.length != 0:
                raise _No(413, "requests have no body here")
            found = self._answer(request, peer, rules)
        except _No as no:
            return _reply(no.status, {"errors": no.why} if isinstance(no.why, dict) else {"error": no.why})
        return _reply(200, found)

    def _answer(self, request: HttpRequest, peer: Peer, rules: Sequence[Rule]) -> object:
        room, _, what = request.path.strip("/").partition("/")
        reads, given = request.method == "GET", _query(request.query)
        if reads and request.path == "/time":
            return {"timestamp_ms": time.time_ns() // 10**6}
        if reads and request.path == "/discover":
            return self._discover(rules)
        if reads and not any(rule.read for rule in rules):
            raise _No(403, f"user {peer.uid} may not read here")
        if reads and request.path == "/cpu/get_cumulative_energy":
            return self._cpu_energy(given)
        write = WRITES.get(what) if request.method == "POST" else None
        if room != "gpu" or not (write or (reads and what in READS)):
            raise _No(404, f"{request.method} {request.path[:80]!r} is nothing that this daemon does")
        takes = write.takes if write else ()
        needs = {*takes, "gpu_ids"} if write else set()
        if not needs <= set(given) <= {*takes, "gpu_ids", *(("block",) if write else ())}:
            raise _No(400, f"{what} takes gpu_ids{''.join(f', {key}' for key in takes)}")
        cards, values, errors, worst = self._named(given.get("gpu_ids")), [_value(k, given[k]) for k in takes], {}, 0
        if write is None:
            return self._read(what, cards)
        for card in cards:  # all of them before the first is set
            with card.lock:
                self._check(write, card, values, peer, rules)
        for card in cards:
            try:
                with card.lock:
                    self._check(write, card, values, peer, rules)
                    self._set(write, card, values, peer)
            except Exception as error:
                errors[str(card.index)], worst = str(error), max(worst, _status(error))
        if errors:
            raise _No(worst, errors)
        return None

    def _read(self, what: str, cards: Sequence[_Card]) -> object:
        name, keys = READS[what]
        found: dict[str, Any] = {}
        for card in cards:
            try:
                told = getattr(self._nvml, name)(card.gpu.handle)
            except Exception as error:
                raise _No(_status(error), f"the driver does not answer as it should ({error})") from error
            values = told if isinstance(told, (list, tuple)) else (told,)
            found[str(card.index)] = dict(zip(keys, map(int, values), strict=True))
        if what == "get_power":
            return {"timestamp_ms": time.time_ns() // 10**6, "power_mw": {i: one["mw"] for i, one in found.items()}}
        return found

    def _discover(self, rules: Sequence[Rule]) -> object:
        groups = {"gpu-read", "cpu-read"} if any(rule.read for rule in rules) else set()
        gpus = []
        for card in self._cards:
            granted = _granted(card, rules)
            groups |= {"gpu-control"} if granted else set()
            gpus.append({"id": card.index, "name": card.gpu.name, "uuid": card.gpu.uuid, "granted": granted})
        cpus = [{"id": int(package), "dram_available": "dram" in kinds} for package, kinds in self._energies().items()]
        return {"gpus": gpus, "cpus": cpus, "enabled_api_groups": sorted(groups), "auth_required": False}

    def _check(self, write: Write, card: _Card, values: Sequence[int], peer: Peer, rules: Sequence[Rule]) -> None:
        """Raise _No if a user may not set this, or another process holds the GPU."""
        who, granted = f"GPU {card.index} ({card.gpu.name} {card.gpu.uuid})", _granted(card, rules)
        if card.gpu.slices:
            raise _No(400, f"{who}: MIG is on, and its settings are those of the whole card, of other slices too")
        if not peer.pid:
            raise _No(
                403,
                "the daemon does not see your process, so it could not put back what you set: let it see your PID"
                " namespace (Kubernetes: hostPID for the daemon)",
            )
        if write.right not in granted:
            raise _No(403, f"{who}: user {peer.uid} may not set {write.right} there")
        record = card.record
        if record is not None and record.owner != peer.owner:
            raise _No(409, f"{who} is held by process {record.owner[1]}, which has changed its settings")
        if write.right == "profiles" or write.part == "persistence" or not values:
            return
        scale = 1000 if write.part == "limit" else 1
        low, high = granted[write.right]
        back = write.part == "limit" and values[0] in (record and record.found_mw, self._limit_mw(card))
        if not back and not all(low * scale <= value <= high * scale for value in values):
            wanted = " to ".join(f"{value / scale:g}" for value in values)
            raise _No(403, f"{who}: {write.right} of {wanted} is outside {low:g} to {high:g}, which is allowed")
        if values[0] > values[-1]:
            raise _No(400, f"{who}: min_clock_mhz is above max_clock_mhz")

    def _set(self, write: Write, card: _Card, values: Sequence[int], peer: Peer) -> None:
        """Write what was found, then set; a part that is as it was found is no longer held."""
        part, uuid, handle = write.part, card.gpu.uuid, card.gpu.handle
        record = card.record or Record(uuid, guardian_main.boot_id(), peer.owner)
        back = False
        if not values:  # a reset; what an administrator has locked stays
            for one in ("clocks", "memory") if write.function == "both" else (part,):
                if one in record.kept:
                    self._library.restore(uuid, one, "")
                    record.forget(one)
        elif part == "limit":
            now_mw = self._limit_mw(card)
            back = values[0] == (now_mw if record.found_mw is None else record.found_mw)
            record.announce(now_mw, values[0])
        elif part in ("persistence", "profiles"):
            now = self._library.profiles if part == "profiles" else self._persistence
            found = record.kept.get(part, f"{now(uuid):x}").split()[0]
            back = int(found, 16) == values[0]
            record.kept[part] = found if part == "persistence" else f"{found} {values[0]:x}"
        else:
            record.kept[part] = "locked"
        if card.record is None and not record.is_empty and not back:
            self._say(f"GPU {card.index}: process {peer.pid} of user {peer.uid} holds it ({part})")
        self._write(card, record)
        if values and part == "profiles":
            self._library.request_profiles(uuid, values[0])
        elif values:
            getattr(self._nvml, write.function)(handle, *values)
        if back:
            record.forget(part)
            self._write(card, record)

    def _limit_mw(self, card: _Card) -> int:
        return int(self._nvml.nvmlDeviceGetPowerManagementLimit(card.gpu.handle))

    def _persistence(self, uuid: str) -> int:
        return int(self._nvml.nvmlDeviceGetPersistenceMode(self._nvml.nvmlDeviceGetHandleByUUID(uuid)))

    def _named(self, text: str | None) -> list[_Card]:
        by_index = {card.index: card for card in self._cards}
        if text is None:
            return self._cards
        if not NUMBERS.fullmatch(text):
            raise _No(400, "gpu_ids must be numbers with commas between them")
        wanted = sorted(set(map(int, text.split(","))))
        if unknown := [index for index in wanted if index not in by_index]:
            raise _No(400, f"there is no GPU {unknown[0]}")
        return [by_index[index] for index in wanted]

    def _cpu_energy(self, given: Mapping[str, str]) -> object:
        if set(given) - {"cpu_ids", "cpu", "dram"} or {given.get("cpu"), given.get("dram")} - {"true", "false"}:
            raise _No(400, "get_cumulative_energy takes cpu_ids, cpu and dram, both true or false")
        found, text = self._energies(), given.get("cpu_ids")
        if text is not None and (not NUMBERS.fullmatch(text) or set(text.split(",")) - set(found)):
            raise _No(400, f"cpu_ids may be of {', '.join(found) or 'no package'}")
        return {
            package: {f"{kind}_energy_uj": kinds.get(kind) if given[kind] == "true" else None for kind in given
                      if kind != "cpu_ids"}
            for package, kinds in found.items() if text is None or package in text.split(",")
        }  # fmt: skip

    def _energies(self) -> dict[str, dict[str, int]]:
        """Return microjoules by package and kind, of what can be read."""
        found: dict[str, dict[str, int]] = {}
        with self._rapl_lock:
            self._rapl_s = time.monotonic()
            for sample in () if self._rapl is None else self._rapl.read():
                name, _, package = sample.device_uid.removeprefix("rapl:").partition("-")
                if sample.energy_j is not None and package.isdigit():
                    found.setdefault(package, {})["cpu" if name == "package" else name] = round(sample.energy_j * 1e6)
        return found

    # -- who, and how often ------------------------------------------------------------------------------------

    def _admits(self, connection: socket.socket, others: list[socket.socket]) -> bool:
        try:
            peer = self._peers[connection] = self._peer_of(connection)
        except OSError:
            return False
        uids = [other.uid for other in map(self._peers.get, others) if other is not None]
        return uids.count(peer.uid) < self._config.connections

    def _count(self, peer: Peer) -> None:
        """Take one request from a user's bucket.

        Raises:
            _No: It is empty.
        """
        rate, now_s = self._config.requests_per_s, self._now_s()
        with self._lock:
            if len(self._buckets) > 1024:
                self._buckets.clear()
            left, then_s = self._buckets.get(peer.uid, (2 * rate, now_s))
            left = min(2 * rate, left + (now_s - then_s) * rate)
            self._buckets[peer.uid] = (max(left - 1.0, 0.0), now_s)
        if left < 1.0:
            raise _No(429, f"more than {rate:g} requests/s of user {peer.uid}")

    # -- what is put back --------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Put back what the dead have left in the folder of records, and keep what the living have set."""
        cards = {card.gpu.uuid: card for card in self._cards}
        for path in guardian_main.records(self._state):
            record = guardian_main.read(path)
            card = cards.get(record.uuid) if record is not None else None
            if record is None or record.boot != guardian_main.boot_id():
                private_files.remove(path)
            elif card is not None:
                card.record = record
                if not guardian_main.owner_lives(record):
                    self._give_back(card, "it had died together with the daemon")

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            for card in self._cards:
                record = card.record
                if record is None or time.monotonic() < card.retry_s or guardian_main.owner_lives(record):
                    continue
                if card.lock.acquire(timeout=LOOK_S):  # else the driver hangs on this GPU: later
                    try:
                        if card.record is record:
                            self._give_back(card, "it has ended")
                    finally:
                        card.lock.release()
            if self._rapl is not None and time.monotonic() - self._rapl_s > RAPL_S:
                self._energies()

    def _give_back(self, card: _Card, why: str) -> None:
        record = card.record
        if record is None:
            return
        try:
            done = guardian_main.give_back(self._library, record)
            self._write(card, record)
        except OSError as error:
            card.retry_s = time.monotonic() + RETRY_S
            self._say(f"GPU {card.index}: what process {record.owner[1]} set cannot be put back now ({error})")
            return
        self._say(f"GPU {card.index}: process {record.owner[1]} had set {done or 'nothing that is left'}; {why}")

    def _write(self, card: _Card, record: Record) -> None:
        guardian_main.write(guardian_main.record_path(self._state, card.gpu.uuid), record)
        card.record = None if record.is_empty else record

    def _listen(self) -> socket.socket:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # of a daemon that was killed: the lock says that none is at work
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(self._path)
            os.chmod(self._path, 0o666)  # who may do what is in the list
            made.listen(64)
        except BaseException:
            made.close()
            raise
        return made


def _granted(card: _Card, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return what may be set on a card, by name; of several rules, the first that speaks of it decides."""
    found: dict[str, Any] = {}
    for rule in reversed(rules):
        if not card.gpu.slices and (not rule.gpus or {str(card.index), card.gpu.uuid} & set(rule.gpus)):
            found |= {name: given for name in RIGHTS if (given := getattr(rule, name))}
    return found


def _query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=8) if text else []
    except ValueError as error:
        raise _No(400, "the query cannot be read") from error
    if len(dict(pairs)) != len(pairs):
        raise _No(400, "a key stands twice in the query")
    if dict(pairs).get("block", "true") not in ("true", "false"):
        raise _No(400, "block is true or false")
    return dict(pairs)


def _value(key: str, text: str) -> int:
    if key == "enabled":
        if text not in ("true", "false"):
            raise _No(400, "enabled is true or false")
        return int(text == "true")
    if key == "mask" and re.fullmatch(r"[0-9a-f]{1,64}", text):
        return int(text, 16)
    if key == "mask" or not NUMBER.fullmatch(text):
        raise _No(400, f"{key} must be a whole number" + (" in hexadecimal" if key == "mask" else ""))
    return int(text)


def _status(error: Exception) -> int:
    if isinstance(error, _No):
        return error.status
    return {"NVMLError_NoPermission": 403, "NVMLError_InvalidArgument": 400, "NVMLError_NotSupported": 400}.get(
        type(error).__name__, 500
    )


def _reply(status: int, found: object) -> HttpReply:
    body = b"" if found is None else json.dumps(found).encode()
    return HttpReply(status=status, body=body)


def load_daemon_config(path: Path) -> DaemonConfig:
    """Return the settings in a file that only root, or who starts the daemon, can write.

    Raises:
        ConfigError: They are wrong, or somebody else could change them.
    """
    config = load(DaemonConfig, path, "the daemon's list", "a mapping with allow")
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise ConfigError(f"{path} can be written by others than root: chown root and chmod 644 it")
    return config
