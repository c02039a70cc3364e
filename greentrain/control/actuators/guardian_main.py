"""The guardian: gives GPUs back what was found on them, when the process that changed them has ended in any way.

::

    told -> lock the GPU, write the record -> answer "ok" -> the training process sets
    the process ends, by whatever -> where the setting is still ours, put back what was found -> drop the record

It runs as a script (``python -I -S guardian_main.py``; :mod:`greentrain.control.actuators.guardian` starts it), in a
session of its own and deaf to signals, on the standard library, one more file of ours and the driver's C library: 17 ms
to start and 9 MB. It hears of the end by a pidfd; the end of the pipe alone says nothing, as forked data loader workers
hold it too.

The record outlives both processes. Where a node agent kills the whole group, the next start finds a record whose owner
is dead and whose lock is free, and repairs (:func:`repair`). A power limit outlives its process but neither a reboot
nor a reload of the driver (NVML API reference, nvmlDeviceSetPowerManagementLimit, read 2026-11-21), so records of
another boot are dropped.

The lock is held by the guardian and by nobody who forks, so a free lock means that the guardian is gone, in whatever
PID namespace it was. What a record says is set with the rights of whoever reads it: only records count that this user
alone can have written (:mod:`greentrain.utils.private_files`).
"""

import contextlib
import ctypes
import os
import select
import sys
import time

with contextlib.suppress(ImportError):  # Windows, where greentrain.control.controller refuses before anything is locked
    import fcntl

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    from greentrain.utils import private_files
else:  # alone: without the package, whose folder is no place to look for modules
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "utils"))
    import private_files

TOLERANCE_MW = 1000
"""A limit this near to what was set is what was set: drivers may round to whole watts."""
PARTS = {
    "clocks": "a locked clock (unlocked)",
    "memory": "a locked memory clock (unlocked)",
    "persistence": "the persistence mode (put back)",
    "profiles": "workload power profiles (put back)",
}
"""What is kept of a GPU beside its power limit, and what is said where it is put back."""
RETRY_S = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits between attempts to put something back (s); then the record is left for the next start."""
LOOK_S = 0.5
"""Without pidfd_open (before Linux 5.3), how often the process is looked for (s)."""


class Record:
    """What is known about the changes of one GPU."""

    def __init__(self, uuid: str, boot: str, owner: "tuple[int, int, int]") -> None:
        self.uuid = uuid
        self.boot = boot
        self.owner = owner
        """PID namespace, pid and start time (clock ticks since boot) of the training process."""
        self.found_mw: int | None = None
        """None: the power limit was not changed."""
        self.set_mw: list[int] = []
        """The last two limits that were announced: a process that died between word and deed has the older one."""
        self.kept: dict[str, str] = {}
        """What else was changed, of PARTS, and what was found, in words."""

    def text(self) -> str:
        """Return the record as it stands on disk."""
        lines = [f"uuid {self.uuid}", f"boot {self.boot}", "owner {} {} {}".format(*self.owner)]
        if self.found_mw is not None:
            lines.append("limit " + " ".join(str(mw) for mw in (self.found_mw, *self.set_mw)))
        lines += [f"{part} {found}" for part, found in self.kept.items()]
        return "\n".join(lines) + "\n"

    def announce(self, found_mw: int, new_mw: int) -> None:
        """Note that a power limit is about to be set."""
        if self.found_mw is None:
            self.found_mw = found_mw
        self.set_mw = [*self.set_mw, new_mw][-2:]

    def forget(self, part: str) -> None:
        """Note that a part is as it was found, or no longer ours."""
        if part == "limit":
            self.found_mw, self.set_mw = None, []
        else:
            self.kept.pop(part, None)

    @property
    def is_empty(self) -> bool:
        """True if nothing is changed."""
        return self.found_mw is None and not self.kept


def parse(text: str) -> "Record | None":
    """Return the record in a file's text; None if it is none."""
    words = {line.partition(" ")[0]: line.split()[1:] for line in text.splitlines()}
    try:
        namespace, pid, start = (int(word) for word in words["owner"])
        record = Record(words["uuid"][0], " ".join(words["boot"]), (namespace, pid, start))
        if "limit" in words:
            found_mw, *set_mw = (int(word) for word in words["limit"])
            record.found_mw, record.set_mw = found_mw, set_mw
    except (KeyError, ValueError, IndexError):
        return None
    record.kept = {part: " ".join(words[part]) for part in PARTS if part in words}
    return record


def boot_id() -> str:
    """Return what tells this boot of the machine from others; empty where the kernel does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> "int | None":
    """Return when a process started (clock ticks since boot), which with its pid names it; None if it is dead."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def this_process(pid: "int | None" = None) -> "tuple[int, int, int]":
    """Return PID namespace, pid and start time of a process; None is this one."""
    pid = os.getpid() if pid is None else pid
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return namespace, pid, start_ticks(pid) or 0


def owner_lives(record: Record) -> bool:
    """Return True if the training process of a record is alive, as far as its PID namespace shows."""
    namespace, pid, start = record.owner
    return namespace == this_process()[0] and start_ticks(pid) == start


def record_path(folder: str, uuid: str) -> str:
    """Return the file of a GPU's record; its lock is beside it."""
    return os.path.join(folder, f"cap-{''.join(c if c.isalnum() or c in '._-' else '_' for c in uuid)}.state")


def records(folder: str) -> "list[str]":
    """Return the files of records in a folder; none where the folder is missing or not this user's alone."""
    names = private_files.names(folder)
    return [os.path.join(folder, name) for name in names if name.startswith("cap-") and name.endswith(".state")]


def read(path: str) -> "Record | None":
    """Return the record in a file; None if there is none that this user alone can have written."""
    return parse(private_files.read(path) or "")


def write(path: str, record: Record) -> None:
    """Replace a file's record; one without changes is no file.

    Raises:
        OSError: The folder cannot be written, or is not this user's alone.
    """
    if record.is_empty:
        private_files.remove(path)
    else:
        private_files.replace(path, record.text())


def take_lock(path: str, wait_s: float = 0.0) -> "int | None":
    """Return the open lock beside a record, waiting for it; None if somebody holds it.

    Raises:
        OSError: The folder cannot be written, or is not this user's alone.
    """
    private_files.make_folder(os.path.dirname(path))
    fd = private_files.open_file(path[: -len(".state")] + ".lock", os.O_RDWR | os.O_CREAT)
    end_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= end_s:
                os.close(fd)
                return None
            time.sleep(0.01)
        except BaseException:
            os.close(fd)
            raise


def let_go(fd: int) -> None:
    """Unlock and close, also where a forked child holds a copy."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def forget(folder: str, uuid: str, part: str) -> None:
    """Note in this process's own record that a part is as it was found: its guardian was killed.

    Raises:
        OSError: The folder cannot be written.
    """
    path = record_path(folder, uuid)
    lock = take_lock(path, 0.2) if path in records(folder) else None
    if lock is None:
        return
    try:
        record = read(path)
        if record is not None and record.owner == this_process():
            record.forget(part)
            write(path, record)
    finally:
        let_go(lock)


def give_back(driver: "Library", record: Record) -> str:
    """Put back what was found wherever the setting is still ours, and return what was done.

    Raises:
        OSError: The driver refuses.
    """
    done = []
    if record.found_mw is not None:
        now_mw = driver.limit_mw(record.uuid)
        if any(abs(now_mw - mw) <= TOLERANCE_MW for mw in record.set_mw) and now_mw != record.found_mw:
            driver.set_limit_mw(record.uuid, record.found_mw)
            done.append(f"a power limit of {now_mw / 1000:g} W (put back to {record.found_mw / 1000:g} W)")
        record.forget("limit")
    for part, found in list(record.kept.items()):
        if driver.restore(record.uuid, part, found):
            done.append(PARTS[part])
        record.forget(part)
    return " and ".join(done)


def repair(folder: str, driver: "Library", wait_s: float = 2.0) -> "list[str]":
    """Put right what processes left behind that died together with their guardian.

    Args:
        folder: Folder of the records.
        driver: The driver.
        wait_s: Longest wait for the guardian of a dead process, which is just at work (s).

    Returns:
        What was done, one sentence a GPU.
    """
    said = []
    for path in records(folder):
        record = read(path)
        if record is not None and (owner_lives(record) or vendor_of(record.uuid) != driver.prefix):
            continue
        of_this_namespace = record is not None and record.owner[0] == this_process()[0]
        try:
            lock = take_lock(path, wait_s if of_this_namespace else 0.0)
            if lock is None:
                continue
            try:
                said += _repair_one(path, driver)
            finally:
                let_go(lock)
        except OSError as error:  # the driver's, or the folder's
            said.append(f"what a dead job left on a GPU ({path}) cannot be put back: {error}")
    return said


def vendor_of(uuid: str) -> str:
    """Return the prefix of another vendor than NVIDIA in a UUID."""
    return next((prefix for prefix in ("amd:", "intel:") if uuid.startswith(prefix)), "")


def _repair_one(path: str, driver: "Library") -> "list[str]":
    record, what = read(path), ""
    if record is not None:
        if owner_lives(record):
            return []
        if record.boot == boot_id():
            what = give_back(driver, record)
    private_files.remove(path)
    if record is None or not what:
        return []
    return [f"GPU {record.uuid}: a job that died with its guardian (pid {record.owner[1]}) had left {what}"]


class Library:
    """The settings of all GPUs by UUID through the driver's C library. Functions as in nvml.h.

    Every method raises OSError, with the driver's words, where it cannot.

    Args:
        name: File name of the shared library, which is loaded when first needed.
        loaded: The library where this process has it, initialised.
    """

    prefix = ""
    """How the UUIDs of other vendors' GPUs begin."""

    def __init__(self, name: str, loaded: "ctypes.CDLL | None" = None) -> None:
        self._name = name
        self._lib = loaded

    def open(self) -> None:
        """Load and initialise it.

        Raises:
            OSError: It is not there, or has no driver.
        """
        if self._lib is None:
            lib = ctypes.CDLL(self._name)
            self._check(lib, lib.nvmlInit_v2(), "nvmlInit")
            self._lib = lib

    def limit_mw(self, uuid: str) -> int:
        """Return the power limit (mW)."""
        value = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerManagementLimit", uuid, ctypes.byref(value))
        return value.value

    def set_limit_mw(self, uuid: str, limit_mw: int) -> None:
        """Set the power limit (mW)."""
        self._call("nvmlDeviceSetPowerManagementLimit", uuid, ctypes.c_uint(limit_mw))

    def restore(self, uuid: str, part: str, found: str) -> bool:
        """Put back one of PARTS; return False where it is somebody else's by now.

        Args:
            uuid: The GPU.
            part: What was changed.
            found: What was found, and for profiles what was set, in the words of a record.
        """
        if part == "clocks":
            self._call("nvmlDeviceResetGpuLockedClocks", uuid)
        elif part == "memory":
            self._call("nvmlDeviceResetMemoryLockedClocks", uuid)
        elif part == "persistence":
            self._call("nvmlDeviceSetPersistenceMode", uuid, ctypes.c_uint(int(found)))
        else:
            before, *ours = (int(word, 16) for word in found.split())
            if self.profiles(uuid) not in ours:
                return False
            self.request_profiles(uuid, before)
        return True

    def profiles(self, uuid: str) -> int:
        """Return the workload power profiles that are requested, as a mask."""
        words = (ctypes.c_uint * 25)(0x1000064)  # nvmlWorkloadPowerProfileCurrentProfiles_v1: version and three masks
        self._call("nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", uuid, words)
        return sum(word << 32 * i for i, word in enumerate(words[9:17]))

    def request_profiles(self, uuid: str, mask: int) -> None:
        """Request these workload power profiles, and no others: what is set is added to what was requested before."""
        now = self.profiles(uuid)
        for name, part in (("Clear", now & ~mask), ("Set", mask & ~now)):
            if part:
                words = (part >> 32 * i & 0xFFFFFFFF for i in range(8))
                request = (ctypes.c_uint * 9)(0x1000024, *words)  # nvmlWorkloadPowerProfileRequestedProfiles_v1
                self._call(f"nvmlDeviceWorkloadPowerProfile{name}RequestedProfiles", uuid, request)

    def _call(self, name: str, uuid: str, *args: object) -> None:
        self.open()
        lib, handle = self._lib, ctypes.c_void_p()
        if lib is None:
            raise OSError("no driver")
        self._check(lib, lib.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)), uuid)
        self._check(lib, getattr(lib, name)(handle, *args), name)

    @staticmethod
    def _check(lib: ctypes.CDLL, code: int, what: str) -> None:
        if code:
            lib.nvmlErrorString.restype = ctypes.c_char_p
            raise OSError(f"{what}: {lib.nvmlErrorString(code).decode()} (NVML {code})")


class AmdLibrary(Library):
    """AMD's caps and clocks. Functions as in amdsmi.h of ROCm 7.0."""

    prefix = "amd:"
    init = "amdsmi_init", 2  # AMDSMI_INIT_AMD_GPUS

    def open(self) -> None:
        """Load and initialise it.

        Raises:
            OSError: It is not there, or has no driver.
        """
        if self._lib is None:
            self._lib = ctypes.CDLL(self._name)
            name, flags = self.init
            self._do(name, ctypes.c_uint64(flags))

    def limit_mw(self, uuid: str) -> int:
        """Return the cap of the socket (mW)."""
        told = (ctypes.c_uint64 * 8)()  # amdsmi_power_cap_info_t: the cap is the first (uW)
        self._do("amdsmi_get_power_cap_info", self._gpu(uuid), ctypes.c_uint32(0), told)
        return told[0] // 1000

    def set_limit_mw(self, uuid: str, limit_mw: int) -> None:
        """Set the cap of the socket (mW)."""
        self._do("amdsmi_set_power_cap", self._gpu(uuid), ctypes.c_uint32(0), ctypes.c_uint64(1000 * limit_mw))

    def restore(self, uuid: str, part: str, found: str) -> bool:
        """Set the performance level AUTO, which takes the bound of determinism away."""
        self._do("amdsmi_set_gpu_perf_level", self._gpu(uuid), ctypes.c_uint32(0))
        return True

    def _gpu(self, uuid: str) -> ctypes.c_void_p:
        self.open()
        for handle in self._gpus():
            if self._uuid(handle) == uuid[len(self.prefix) :]:
                return handle
        raise OSError(f"there is no GPU {uuid}")

    def _gpus(self) -> "list[ctypes.c_void_p]":
        sockets = self._all("amdsmi_get_socket_handles")
        return [gpu for socket in sockets for gpu in self._all("amdsmi_get_processor_handles", socket)]

    def _uuid(self, handle: ctypes.c_void_p) -> str:
        told, length = ctypes.create_string_buffer(64), ctypes.c_uint32(38)  # AMDSMI_GPU_UUID_SIZE
        self._do("amdsmi_get_gpu_device_uuid", handle, ctypes.byref(length), told)
        return told.value.decode()

    def _do(self, name: str, *args: object) -> None:
        if code := getattr(self._lib, name)(*args):
            raise OSError(code, f"{name} answers {code:#x}")

    def _all(self, name: str, *of: object) -> "list[ctypes.c_void_p]":
        """Return the handles that a function counts first and tells then."""
        count = ctypes.c_uint32()
        self._do(name, *of, ctypes.byref(count), None)
        found = (ctypes.c_void_p * count.value)()
        self._do(name, *of, ctypes.byref(count), found)
        return [ctypes.c_void_p(value) for value in found]


class PowerLimit(ctypes.Structure):
    """zes_power_limit_ext_desc_t of zes_api.h (Level Zero 1.13)."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("level", "source", "unit")),
        *((name, ctypes.c_uint8) for name in ("state_locked", "enabled", "interval_locked")),
        ("interval", ctypes.c_int32),
        ("locked", ctypes.c_uint8),
        ("limit", ctypes.c_int32),
    ]


class IntelLibrary(AmdLibrary):
    """Intel's sustained limits and frequency ranges. Functions as in zes_api.h of Level Zero 1.13."""

    prefix = "intel:"
    init = "zesInit", 0

    def limit_mw(self, uuid: str) -> int:
        """Return the sustained power limit (mW)."""
        return int(self._sustained(uuid)[1].limit)

    def set_limit_mw(self, uuid: str, limit_mw: int) -> None:
        """Set the sustained power limit (mW)."""
        domain, limit = self._sustained(uuid)
        limit.limit = limit_mw
        self._do("zesPowerSetLimitsExt", domain, ctypes.byref(ctypes.c_uint32(1)), ctypes.byref(limit))

    def restore(self, uuid: str, part: str, found: str) -> bool:
        """Give every frequency domain the factory's range."""
        for domain in self._all("zesDeviceEnumFrequencyDomains", self._gpu(uuid)):
            self._do("zesFrequencySetRange", domain, (ctypes.c_double * 2)(-1.0, -1.0))
        return True

    def _sustained(self, uuid: str) -> "tuple[ctypes.c_void_p, PowerLimit]":
        for domain in self._all("zesDeviceEnumPowerDomains", self._gpu(uuid)):
            limits, count = (PowerLimit * 8)(), ctypes.c_uint32(8)
            self._do("zesPowerGetLimitsExt", domain, ctypes.byref(count), limits)
            for limit in limits[: count.value]:
                if limit.level == 1:  # ZES_POWER_LEVEL_SUSTAINED
                    return domain, limit
        raise OSError(0x78000003, f"{uuid} has no sustained power limit")

    def _gpus(self) -> "list[ctypes.c_void_p]":
        return [gpu for driver in self._all("zesDriverGet") for gpu in self._all("zesDeviceGet", driver)]

    def _uuid(self, handle: ctypes.c_void_p) -> str:
        told = (ctypes.c_uint8 * 2048)(1)  # zes_device_properties_t, with its stype and room to spare
        self._do("zesDeviceGetProperties", handle, told)
        return bytes(told[112:128]).hex()  # core.uuid


def library_of(name: str, loaded: "ctypes.CDLL | None" = None) -> Library:
    """Return the settings of the GPUs of a driver's library.

    Args:
        name: File name of the library, which tells whose it is.
        loaded: The library where this process has it, initialised; AMD's and Intel's are loaded anew, beside bindings
            that declare the types of their functions.
    """
    if "libamd_smi" in name:
        return AmdLibrary(name)
    return IntelLibrary(name) if "ze_loader" in name else Library(name, loaded)


class Guard:
    """What the guardian holds, and how it answers.

    Args:
        folder: Folder of the records.
        owner: The training process: PID namespace, pid, start time.
        library: The driver.
    """

    def __init__(self, folder: str, owner: "tuple[int, int, int]", library: Library) -> None:
        self._folder = folder
        self._owner = owner
        self._library = library
        self._held: dict[str, tuple[int, Record]] = {}

    def answer(self, line: str) -> str:
        """Do what a line says and return the reply: ``ok``, ``busy ...`` or ``error ...``."""
        words = line.split()
        try:
            if words[0] == "limit":
                return self._change(words[1], (int(words[2]), int(words[3])))
            if words[0] == "keep":
                return self._change(words[1], None, words[2], " ".join(words[3:]))
            if words[0] == "done":
                return self._done(words[1], words[2])
        except OSError as error:
            return f"error {error}"
        return f"error unknown word {words[0]!r}"

    def give_all_back(self) -> bool:
        """Restore every GPU that is held; return False if the driver refuses one, which keeps its record then."""
        for uuid, (lock, record) in list(self._held.items()):
            try:
                give_back(self._library, record)
                self._write(record)
            except OSError:
                continue
            let_go(lock)
            del self._held[uuid]
        return not self._held

    def _change(self, uuid: str, limit_mw: "tuple[int, int] | None", part: str = "", found: str = "") -> str:
        if uuid not in self._held:
            self._library.open()
            self._library.limit_mw(uuid)
            lock = take_lock(record_path(self._folder, uuid), 0.2)
            old = read(record_path(self._folder, uuid))
            if lock is None:
                return f"busy {old.owner[1] if old else ''}"
            if old is not None and old.owner != self._owner:
                let_go(lock)
                return f"busy {old.owner[1]}" if owner_lives(old) else "stale"
            record = old or Record(uuid, boot_id(), self._owner)
            self._held[uuid] = (lock, record)
        record = self._held[uuid][1]
        if limit_mw is None:
            record.kept[part] = found
        else:
            record.announce(*limit_mw)
        self._write(record)
        return "ok"

    def _done(self, uuid: str, part: str) -> str:
        if uuid in self._held:
            record = self._held[uuid][1]
            record.forget(part)
            self._write(record)
        return "ok"

    def _write(self, record: Record) -> None:
        write(record_path(self._folder, record.uuid), record)


def serve(guard: Guard, command_fd: int, reply_fd: int, death_fd: int, pid: int, start: int) -> None:
    """Answer the training process until it ends or says ``bye``; then restore."""
    poller = select.poll()
    poller.register(command_fd, select.POLLIN)
    if death_fd >= 0:
        poller.register(death_fd, select.POLLIN)
    heard, bye = b"", b""
    while not bye:
        ready = {fd for fd, _ in poller.poll(None if death_fd >= 0 else LOOK_S * 1000)}
        if death_fd in ready or (death_fd < 0 and start_ticks(pid) != start):
            break
        if command_fd not in ready:
            continue
        word = os.read(command_fd, 4096)
        if not word:
            break  # closed by the process, as by an exec
        heard += word
        while b"\n" in heard and not bye:
            line, _, heard = heard.partition(b"\n")
            number, _, rest = line.decode("ascii", "replace").partition(" ")
            if rest == "bye":
                bye = number.encode()
                continue
            if not _reply(reply_fd, f"{number} {guard.answer(rest)}\n".encode()):
                break
    done = guard.give_all_back()
    if bye:
        _reply(reply_fd, bye + (b" ok\n" if done else b" late\n"))
    os.close(reply_fd)
    for wait_s in RETRY_S:
        if done:
            break
        time.sleep(wait_s)
        done = guard.give_all_back()


def _reply(fd: int, text: bytes) -> bool:
    try:
        os.write(fd, text)
    except OSError:
        return False
    return True


def _leave_the_family() -> None:
    """Be nobody's child, group member or terminal user, and hear no signal but SIGKILL."""
    if os.fork():
        os._exit(0)
    ignore, libc = ctypes.c_void_p(1), ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    for number in (1, 2, 3, 10, 12, 13, 15, 18, 20, 24, 25, 26, 27, 28, 30):  # HUP INT QUIT USR PIPE TERM CONT ...
        libc.signal(number, ignore)
    os.chdir("/")
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("-900")
    except OSError:
        pass  # takes CAP_SYS_RESOURCE


def main(args: "list[str]") -> None:
    """Run with the numbers and names that :mod:`greentrain.control.actuators.guardian` gives."""
    command_fd, reply_fd, death_fd, namespace, pid, start = (int(word) for word in args[:6])
    folder, library = args[6:]
    _leave_the_family()
    os.write(reply_fd, f"0 ok {os.getpid()}\n".encode())
    guard = Guard(folder, (namespace, pid, start), library_of(library))
    serve(guard, command_fd, reply_fd, death_fd, pid, start)


if __name__ == "__main__":
    main(sys.argv[1:])
