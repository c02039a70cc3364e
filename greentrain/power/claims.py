"""One booking process a device and node.

Every rank that sees a GPU or a RAPL package could book it; summed over ranks that counts a node several times.
A process books a device only while it holds the lock of the device's uid in a folder of the node. The kernel
drops the lock when the process dies, so a crash leaves nothing behind and another rank takes over.

Locks are per user: two users' jobs on one node are two nodes to this module, and nothing that another user has written
is believed (:mod:`greentrain.utils.private_files`).
"""

import contextlib
import fnmatch
import json
import math
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil
from filelock import BaseFileLock, FileLock, Timeout

from greentrain.power.cpu_model import LinuxProc, PsutilProc
from greentrain.utils import private_files

ENV_DIR = "GREENTRAIN_CLAIMS_DIR"
_PROCESS = "process-"


RUN: Final = Path("/run")
"""What lasts until the next boot: root's, and in ``user/UID`` a user's (Filesystem Hierarchy Standard 3.0, 3.15;
pam_systemd(8))."""


def claims_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return this user's folder of claims and records on the node, whether it is there or not.

    $GREENTRAIN_CLAIMS_DIR, else ``greentrain`` in root's or the user's folder in /run or in $XDG_RUNTIME_DIR, else one
    in the temporary folder. A user's processes must all find the same one: what was begun in the temporary folder stays
    there, though /run/user/UID comes with a login. A named folder that others can write to gets one of this user's.

    Args:
        environ: Environment variables; None: those of the process.
    """
    env = os.environ if environ is None else environ
    user = os.geteuid() if private_files.HAS_OWNERS else None
    own = f"greentrain-claims-{'user' if user is None else user}"
    if env.get(ENV_DIR):
        named = Path(os.path.abspath(env[ENV_DIR]))  # the guardian runs in another folder
        return named / own if user is not None and named.is_dir() and named.stat().st_mode & 0o022 else named
    temporary = Path(tempfile.gettempdir()) / own
    if user is None or (user != 0 and private_files.is_private(str(temporary))):
        return temporary
    for base in (RUN / "user" / str(user) if user else RUN, Path(env.get("XDG_RUNTIME_DIR", ""))):
        if base.is_absolute() and private_files.is_private(str(base)):
            return base / "greentrain"
    return temporary


def other_pids(folder: Path, own_pid: int | None = None) -> frozenset[int]:
    """Return the processes of the node that book for themselves, so that a process tree leaves them out.

    Args:
        folder: The node's folder of claims.
        own_pid: Process to leave out of the answer; None is this one.
    """
    own = os.getpid() if own_pid is None else own_pid
    return frozenset(
        pid
        for name in fnmatch.filter(private_files.names(str(folder)), f"{_PROCESS}*.pid")
        if (pid := int(name.removeprefix(_PROCESS).partition(".")[0])) != own
        and (words := _words(folder / name)).get("pid") == pid
        and not has_ended(words)
    )


def _words(path: Path) -> Mapping[str, str | int | float]:
    """Return what a process has left about itself; empty if that cannot be read."""
    try:
        data = json.loads(private_files.read(str(path)) or "{}")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


class Claims:
    """The device locks that this process holds.

    Args:
        folder: Folder of the node's claims; where it cannot be written, or may be somebody else's work, every claim is
            granted and ``degraded`` says why.
        owner: Facts on this process that others are told: run id, rank.
    """

    def __init__(self, folder: Path, owner: Mapping[str, str | int]) -> None:
        self._folder = folder
        self._owner = {**_this_process(), **owner}
        self._gone: dict[str, Mapping[str, str | int | float]] = {}
        self._locks: dict[str, BaseFileLock] = {}
        self._free_since_s: dict[str, float] = {}
        self._announcement = folder / f"{_PROCESS}{os.getpid()}.{secrets.token_hex(4)}.pid"  # one a session
        self.degraded = ""
        try:
            private_files.make_folder(str(folder))
            private_files.replace(str(self._announcement), json.dumps(_this_process()))
        except OSError as error:
            self.degraded = f"no claims: cannot write {folder} ({error.strerror}); {ENV_DIR} names another folder"

    def look(self, uid: str) -> None:
        """Note whether the last holder of a device is gone by now, for a later claim to know since when it is free."""
        holder = self.holder(uid)
        if has_ended(holder):
            self._gone[uid] = holder

    def take(self, uid: str) -> bool:
        """Try to become the one process that books a device; return True if it is."""
        if uid in self._locks or self.degraded:
            return True
        path = self._path(uid, ".lock")
        lock = FileLock(path, thread_local=False)
        try:
            # Made here, as filelock would follow a link that somebody planted.
            os.close(private_files.open_file(str(path), os.O_RDWR | os.O_CREAT))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if not self._left_to_children(uid):
                    return False
                path.unlink()
                lock.acquire(timeout=0)
        except Timeout:
            return False
        except OSError as error:
            self.degraded = f"no claims: {path}: {error.strerror}"
            return True
        self._locks[uid] = lock
        self._free_since_s[uid] = self._last_end_s(uid)
        self._tell(uid, self._owner)
        return True

    def free_since_s(self, uid: str) -> float:
        """Return the monotonic time up to which somebody else has booked a device that this process took (s).

        Minus infinity if nobody did; the time of taking it if the last holder died without a word.
        """
        return self._free_since_s.get(uid, -math.inf)

    def holder(self, uid: str, suffix: str = ".json") -> Mapping[str, str | int | float]:
        """Return what the last holder of a device said about itself; empty if nothing is known."""
        return _words(self._path(uid, suffix))

    def ask(self, uid: str) -> None:
        """Ask whoever holds a device that this process computes on to let it go, if it does not need it itself."""
        self._tell(uid, self._owner, ".wanted")

    def is_asked_for(self, uid: str) -> bool:
        """Return True if a living process has asked for a device that this one holds."""
        asker = self.holder(uid, ".wanted")
        return bool(asker) and asker.get("pid") != os.getpid() and not has_ended(asker)

    def let_go(self, uid: str, until_s: float) -> None:
        """Give one device back, leaving word of the monotonic time up to which it is booked (s)."""
        lock = self._locks.pop(uid, None)
        if lock is not None:
            self._tell(uid, {**self._owner, "until_s": until_s})
            lock.release()

    def release(self) -> None:
        """Give every device back, leaving word up to when it is booked. Idempotent."""
        for uid in list(self._locks):
            self.let_go(uid, time.monotonic())
        with contextlib.suppress(OSError):
            self._announcement.unlink(missing_ok=True)

    def _tell(self, uid: str, words: Mapping[str, str | int | float], suffix: str = ".json") -> None:
        with contextlib.suppress(OSError):
            private_files.replace(str(self._path(uid, suffix)), json.dumps(words))

    def _left_to_children(self, uid: str) -> bool:
        """Return True if a lock is held by forked children alone of a holder that was killed: nobody books by it."""
        if not has_ended(self.holder(uid)):
            return False
        time.sleep(0.05)  # whoever took it a moment ago has said so by then
        return has_ended(self.holder(uid))

    def _last_end_s(self, uid: str) -> float:
        last, now_s = self.holder(uid), time.monotonic()
        if not last or last == self._gone.get(uid) or last.get("boot", _boot()) != _boot():
            return -math.inf
        until_s = float(last.get("until_s", now_s))
        return until_s if until_s <= now_s else -math.inf  # a later time is of an earlier boot

    def _path(self, uid: str, suffix: str) -> Path:
        return self._folder / (re.sub(r"[^A-Za-z0-9._-]", "_", uid) + suffix)


def has_ended(words: Mapping[str, str | int | float]) -> bool:
    """Return True if the process that wrote about itself is known to be gone: by pid, start time and boot.

    Args:
        words: What it wrote; without any, or of another PID namespace, nothing is known.
    """
    pid = words.get("pid")
    if not isinstance(pid, int) or "until_s" in words or "boot" not in words:
        return False
    if words["boot"] != _boot():
        return True
    return words.get("pid_namespace") == _pid_namespace() and _start(pid) != words.get("start")


def _this_process() -> dict[str, str | int | float]:
    pid = os.getpid()
    return {"pid": pid, "start": _start(pid) or 0.0, "boot": _boot(), "pid_namespace": _pid_namespace()}


def _start(pid: int) -> float | None:
    """Return when a process began, on a scale that no setting of the clock moves where there is procfs."""
    source = LinuxProc() if os.path.exists("/proc/self/stat") else PsutilProc()
    found = source.stat(pid)
    return None if found is None else found.start


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def used_by_torch(kind: str = "cuda") -> set[int] | None:
    """Return the positions of the devices on which torch holds memory in this process; None before it has begun.

    A context is no proof: NCCL and careless scripts make one on the first GPU in every rank.

    Args:
        kind: ``cuda``, of NVIDIA's and AMD's GPUs, or ``xpu``, of Intel's.
    """
    torch = sys.modules.get("torch")
    if torch is None or not getattr(torch, kind).is_initialized():  # asking for availability breaks CUDA for forks
        return None
    return {i for i in range(getattr(torch, kind).device_count()) if getattr(torch, kind).memory_reserved(i) > 0}


def gpus_in_use(uids: Sequence[str], pids: Mapping[str, Collection[int]]) -> set[str]:
    """Return the GPUs on which this process, or one that it started, is known to compute; empty says nothing.

    Args:
        uids: The visible GPUs, in CUDA's order.
        pids: By GPU, the processes that its driver shows on it.
    """
    with contextlib.suppress(Exception):  # torch is the training's: whatever it raises, there is no proof
        kind = "xpu" if uids and uids[0].startswith("intel:") else "cuda"
        positions = used_by_torch(kind)
        if positions is not None and getattr(sys.modules["torch"], kind).device_count() == len(uids):
            return {uids[position] for position in positions}
    return {uid for uid in uids if any(_is_ours(pid) for pid in pids.get(uid, ()))}


FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the machine's first PID namespace, PROC_PID_INIT_INO in Linux' include/linux/proc_ns.h (6.18). A process in
another one is in a container, where every process that it sees is of the same job."""


def is_of_this_job(pid: int) -> bool:
    """Return True if a process is this one, descends from it, or is in the same container."""
    return _is_ours(pid) or (in_container() and psutil.pid_exists(pid))


def in_container() -> bool:
    """Return True if this process is in a PID namespace of its own."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino != FIRST_PID_NAMESPACE
    except OSError:
        return False


def _is_ours(pid: int) -> bool:
    own = os.getpid()
    try:
        return pid == own or any(parent.pid == own for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def preferred(position: int, visible: int, local_rank: int, local_world_size: int) -> bool:
    """Return True if a rank should claim the device at ``position`` of its visible list at once.

    Ranks that see all GPUs of the node share them out by position; a rank that sees fewer devices than there are
    ranks sees only its own. What is left over goes to whoever asks later.
    """
    if visible < local_world_size:
        return True
    return position % local_world_size == local_rank
