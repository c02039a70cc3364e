"""CPU seconds and memory of a process and all its descendants, also of those that came and went between reads.

Linux adds the CPU time of a child to its parent when the parent waits for it, so what a child did after the last
read, or did altogether if it was born and died in between, shows up as growth of its parent's reaped time. A pid
stands for the same process only while its start time is the same. proc_pid_stat(5), read 2026-11-21.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

RECHECK_READS: Final = 30
"""Every so many reads, processes known to be strangers are looked at again: their pid may have a new owner."""


class ProcStat(NamedTuple):
    """One process at one instant."""

    ppid: int
    start: float
    """Start time in the source's unit; with the pid it names the process."""
    own_s: float
    """CPU seconds of its threads, user and system, ended threads included."""
    reaped_s: float
    """CPU seconds of ended children that it waited for, and of theirs."""
    rss_bytes: int


class ProcSource(Protocol):
    """The process table of the machine."""

    def pids(self) -> Iterable[int]:
        """Return all process ids."""
        ...

    def stat(self, pid: int) -> ProcStat | None:
        """Return one process, or None if it is gone."""
        ...


class LinuxProc:
    """Reads /proc directly: about 10 microseconds a process, psutil needs ten times that.

    Args:
        root: Where procfs is mounted.
    """

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def pids(self) -> Iterable[int]:
        """Return all process ids."""
        try:
            return [int(name) for name in os.listdir(self._root) if name[0] in "123456789" and name.isdigit()]
        except OSError:
            return []

    def stat(self, pid: int) -> ProcStat | None:
        """Return one process, or None if it is gone."""
        try:
            fd = os.open(f"{self._root}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            text = os.read(fd, 1024)
        except OSError:
            return None
        finally:
            os.close(fd)
        fields = text[text.rfind(b")") + 2 :].split()
        if len(fields) < 22:
            return None
        tick_s = self._tick_s
        return ProcStat(
            int(fields[1]),
            float(fields[19]),
            (int(fields[11]) + int(fields[12])) * tick_s,
            (int(fields[13]) + int(fields[14])) * tick_s,
            int(fields[21]) * self._page_bytes,
        )


class PsutilProc:
    """The same through psutil, for systems without procfs. Children's reaped time is known on Unix only."""

    def pids(self) -> Iterable[int]:
        """Return all process ids."""
        import psutil

        return psutil.pids()

    def stat(self, pid: int) -> ProcStat | None:
        """Return one process, or None if it is gone."""
        import psutil

        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                reaped_s = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
                own_s = times.user + times.system
                rss_bytes = process.memory_info().rss
                return ProcStat(process.ppid(), process.create_time(), own_s, reaped_s, rss_bytes)
        except psutil.Error:
            return None


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """What the tree has used."""

    cpu_s: float
    """CPU seconds since construction; never falls."""
    rss_bytes: int
    """Resident memory now: pages shared by several processes count once for each."""
    processes: int


class ProcessTree:
    """Follows a process and its descendants.

    Args:
        root_pid: Top of the tree.
        excluded_pids: Called at each read: processes that others account for. They and their descendants are left
            out, also when their time arrives at a parent of the tree that waited for them.
        source: The process table.
    """

    def __init__(
        self,
        root_pid: int,
        *,
        excluded_pids: Callable[[], Collection[int]] = frozenset,
        source: ProcSource,
    ) -> None:
        self._root = root_pid
        self._excluded_pids = excluded_pids
        self._source = source
        self._known: dict[int, ProcStat] = {}
        self._foreign: dict[int, float] = {}
        self._others: set[int] = set()
        self._reads = 0
        self._cpu_s = 0.0
        self.read()
        self._cpu_s = 0.0

    def read(self) -> TreeUsage | None:
        """Return the tree's usage, or None if its root has ended and was waited for."""
        stats = self._refresh()
        adopted = self._find_new(stats)
        if self._root not in stats:
            return None
        others = self._of_others(stats)
        gone_s, blocked = self._gone(stats)
        rss_bytes = 0
        for pid, stat in stats.items():
            if pid in others:
                continue
            rss_bytes += stat.rss_bytes
            old = self._known.get(pid)
            if old is None:
                self._cpu_s += 0.0 if pid in adopted else stat.own_s + stat.reaped_s
            elif pid not in self._others:
                self._cpu_s += max(0.0, stat.own_s - old.own_s)
                if pid not in blocked:
                    self._cpu_s += max(0.0, stat.reaped_s - old.reaped_s - gone_s.get(pid, 0.0))
        self._known, self._others = stats, others
        return TreeUsage(self._cpu_s, rss_bytes, len(stats) - len(others))

    def _refresh(self) -> dict[int, ProcStat]:
        stats = {}
        for pid, old in self._known.items():
            stat = self._source.stat(pid)
            if stat is not None and stat.start == old.start:
                stats[pid] = stat
        if not self._known:
            stat = self._source.stat(self._root)
            if stat is not None:
                stats[self._root] = stat
        return stats

    def _find_new(self, stats: dict[int, ProcStat]) -> set[int]:
        recheck = self._reads % RECHECK_READS == 0
        self._reads += 1
        strangers = self._foreign
        self._foreign = {}
        fresh: dict[int, ProcStat] = {}
        for pid in self._source.pids():
            if pid in stats:
                continue
            if pid in strangers and not recheck:
                self._foreign[pid] = strangers[pid]
                continue
            stat = self._source.stat(pid)
            if stat is not None:
                fresh[pid] = stat
        adopted: set[int] = set()
        found = True
        while found:
            found = False
            for pid, stat in list(fresh.items()):
                if stat.ppid in stats:
                    stats[pid] = fresh.pop(pid)
                    if strangers.get(pid) == stat.start:
                        adopted.add(pid)
                    found = True
        self._foreign.update((pid, stat.start) for pid, stat in fresh.items())
        return adopted

    def _of_others(self, stats: Mapping[int, ProcStat]) -> set[int]:
        excluded = self._excluded_pids()
        if not excluded and not self._others:
            return set()
        verdict: dict[int, bool] = {self._root: self._root in excluded}

        def other(pid: int) -> bool:
            if pid not in verdict:
                verdict[pid] = False
                parent = stats[pid].ppid
                verdict[pid] = pid in excluded or (other(parent) if parent in stats else pid in self._others)
            return verdict[pid]

        return {pid for pid in stats if other(pid)}

    def _gone(self, stats: Mapping[int, ProcStat]) -> tuple[dict[int, float], set[int]]:
        """Return the already counted seconds of ended descendants by living ancestor, and ancestors of others'."""
        gone_s: dict[int, float] = {}
        blocked: set[int] = set()
        for pid, old in self._known.items():
            if pid in stats:
                continue
            parent = old.ppid
            while parent not in stats and parent in self._known:
                parent = self._known[parent].ppid
            if parent not in stats:
                continue
            gone_s[parent] = gone_s.get(parent, 0.0) + old.own_s + old.reaped_s
            if pid in self._others:
                blocked.add(parent)
        return gone_s, blocked
