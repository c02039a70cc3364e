import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from greentrain.power.cpu_model import RECHECK_READS, LinuxProc, ProcessTree, ProcStat, PsutilProc

ROOT = 100


class Table:
    """A process table written by the test: pid -> (ppid, start, own_s, reaped_s)."""

    def __init__(self) -> None:
        self.rows: dict[int, ProcStat] = {}
        self.asked: list[int] = []
        self.set(1, 0)
        self.set(ROOT, 1, own=5.0)

    def set(self, pid: int, ppid: int, *, start: float | None = None, own: float = 0.0, reaped: float = 0.0) -> None:
        self.rows[pid] = ProcStat(ppid, float(pid) if start is None else start, own, reaped, 1000)

    def end(self, pid: int) -> None:
        del self.rows[pid]

    def pids(self) -> Iterable[int]:
        return list(self.rows)

    def stat(self, pid: int) -> ProcStat | None:
        self.asked.append(pid)
        return self.rows.get(pid)


def cpu_s(tree: ProcessTree) -> float:
    usage = tree.read()
    assert usage is not None
    return usage.cpu_s


def test_time_before_the_start_is_not_counted() -> None:
    table = Table()
    table.set(101, ROOT, own=50.0)
    tree = ProcessTree(ROOT, source=table)
    table.set(ROOT, 1, own=6.0)
    table.set(101, ROOT, own=50.5)
    assert cpu_s(tree) == pytest.approx(1.5)


def test_grandchildren_and_strangers() -> None:
    table = Table()
    tree = ProcessTree(ROOT, source=table)
    table.set(103, 102, own=1.0)
    table.set(102, ROOT, own=2.0)
    table.set(200, 1, own=1000.0)
    usage = tree.read()
    assert usage is not None
    assert usage.cpu_s == pytest.approx(3.0)
    assert (usage.processes, usage.rss_bytes) == (3, 3000)


def test_child_born_and_dead_between_reads_comes_with_its_parent() -> None:
    table = Table()
    tree = ProcessTree(ROOT, source=table)
    table.set(ROOT, 1, own=5.0, reaped=4.0)
    assert cpu_s(tree) == pytest.approx(4.0)


def test_ended_child_is_counted_once() -> None:
    table = Table()
    tree = ProcessTree(ROOT, source=table)
    table.set(101, ROOT, own=3.0)
    assert cpu_s(tree) == pytest.approx(3.0)
    table.end(101)
    table.set(ROOT, 1, own=5.0, reaped=3.25)
    assert cpu_s(tree) == pytest.approx(3.25)


def test_a_whole_branch_that_ends_is_counted_once() -> None:
    table = Table()
    tree = ProcessTree(ROOT, source=table)
    table.set(101, ROOT, own=1.0)
    table.set(102, 101, own=8.0)
    assert cpu_s(tree) == pytest.approx(9.0)
    table.end(101)
    table.end(102)
    table.set(ROOT, 1, own=5.0, reaped=9.5)
    assert cpu_s(tree) == pytest.approx(9.5)


def test_child_that_nobody_waits_for_keeps_what_was_seen() -> None:
    table = Table()
    tree = ProcessTree(ROOT, source=table)
    table.set(101, ROOT, own=3.0)
    assert cpu_s(tree) == pytest.approx(3.0)
    table.end(101)
    assert cpu_s(tree) == pytest.approx(3.0)


def test_orphan_stays_in_the_tree() -> None:
    table = Table()
    tree = ProcessTree(ROOT, source=table)
    table.set(101, ROOT)
    table.set(102, 101, own=1.0)
    cpu_s(tree)
    table.end(101)
    table.set(102, 1, own=2.5)
    assert cpu_s(tree) == pytest.approx(2.5)


def test_reused_pid_is_another_process() -> None:
    table = Table()
    tree = ProcessTree(ROOT, source=table)
    table.set(101, ROOT, own=3.0)
    cpu_s(tree)
    table.set(101, 1, start=999.0, own=500.0)
    assert cpu_s(tree) == pytest.approx(3.0)
    table.set(102, ROOT, start=1000.0, own=1.0)
    assert cpu_s(tree) == pytest.approx(4.0)


def test_strangers_are_asked_once_until_the_recheck_finds_a_reused_pid() -> None:
    table = Table()
    table.set(200, 1, own=9.0)
    tree = ProcessTree(ROOT, source=table)
    table.asked.clear()
    tree.read()
    assert 200 not in table.asked
    table.set(200, ROOT, start=5000.0, own=2.0)
    for _ in range(RECHECK_READS):
        tree.read()
    assert cpu_s(tree) == pytest.approx(2.0)


def test_adopted_stranger_brings_no_past() -> None:
    table = Table()
    table.set(200, 1, own=900.0)
    tree = ProcessTree(ROOT, source=table)
    table.set(200, ROOT, own=901.0)
    for _ in range(RECHECK_READS):
        tree.read()
    table.set(200, ROOT, own=903.0)
    assert cpu_s(tree) == pytest.approx(2.0)


def test_excluded_subtrees_are_left_out_even_when_reaped() -> None:
    table = Table()
    others: set[int] = {101}
    tree = ProcessTree(ROOT, excluded_pids=lambda: others, source=table)
    table.set(101, ROOT, own=7.0)
    table.set(102, 101, own=8.0)
    table.set(103, ROOT, own=1.0)
    usage = tree.read()
    assert usage is not None
    assert usage.cpu_s == pytest.approx(1.0)
    assert usage.processes == 2
    for pid in (101, 102):
        table.end(pid)
    others.clear()
    table.set(ROOT, 1, own=5.5, reaped=16.0)
    assert cpu_s(tree) == pytest.approx(1.5)


def test_a_process_that_becomes_a_rank_is_dropped_from_then_on() -> None:
    table = Table()
    others: set[int] = set()
    tree = ProcessTree(ROOT, excluded_pids=lambda: others, source=table)
    table.set(101, ROOT, own=1.0)
    assert cpu_s(tree) == pytest.approx(1.0)
    others.add(101)
    table.set(101, ROOT, own=4.0)
    assert cpu_s(tree) == pytest.approx(1.0)
    others.clear()
    table.set(101, ROOT, own=6.0)
    assert cpu_s(tree) == pytest.approx(1.0)
    table.set(101, ROOT, own=6.5)
    assert cpu_s(tree) == pytest.approx(1.5)


def test_root_gone_reads_as_none_and_stays_so_for_a_reused_pid() -> None:
    table = Table()
    tree = ProcessTree(ROOT, source=table)
    table.end(ROOT)
    assert tree.read() is None
    table.set(ROOT, 1, start=12345.0, own=70.0)
    assert tree.read() is None


BURN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs procfs")
def test_linux_counts_children_that_have_ended() -> None:
    tree = ProcessTree(os.getpid(), source=LinuxProc())
    subprocess.run([sys.executable, "-S", "-c", BURN.format(0.3)], check=True)
    used_s = cpu_s(tree)
    assert 0.28 < used_s < 1.5


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs procfs")
def test_linux_agrees_with_psutil() -> None:
    mine, theirs = LinuxProc().stat(os.getpid()), PsutilProc().stat(os.getpid())
    assert mine is not None and theirs is not None
    assert mine.ppid == theirs.ppid == os.getppid()
    assert mine.own_s == pytest.approx(theirs.own_s, abs=0.1)
    assert mine.rss_bytes == pytest.approx(theirs.rss_bytes, rel=0.2)
    assert os.getpid() in set(LinuxProc().pids()) and os.getpid() in set(PsutilProc().pids())


def test_a_pid_that_does_not_exist() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    child.wait()
    for source in (LinuxProc(), PsutilProc()):
        assert source.stat(child.pid) is None
        assert ProcessTree(child.pid, source=source).read() is None


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs procfs")
def test_reading_is_cheap_with_ten_children() -> None:
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(10)]
    try:
        tree = ProcessTree(os.getpid(), source=LinuxProc())
        costs = []
        for _ in range(31):
            start_s = time.thread_time()
            usage = tree.read()
            costs.append(time.thread_time() - start_s)
        assert usage is not None and usage.processes >= 11
        assert sorted(costs)[15] < 0.002
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def test_a_line_of_procfs_is_read_whatever_its_process_is_called(tmp_path: Path) -> None:
    numbers = ["S", *map(str, range(1, 22))]
    for pid, words in ((77, numbers), (78, numbers[:-1])):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b (c) {' '.join(words)}\n")
    for name in ("0", "12a", "self"):
        (tmp_path / name).mkdir()
    proc, tick_s = LinuxProc(str(tmp_path)), 1 / os.sysconf("SC_CLK_TCK")
    found = proc.stat(77)
    assert found is not None and found[:2] == (1, 19.0)  # parent and start: fields 4 and 22 of proc_pid_stat(5)
    assert (found.own_s, found.reaped_s) == pytest.approx(((11 + 12) * tick_s, (13 + 14) * tick_s))
    assert found.rss_bytes == 21 * os.sysconf("SC_PAGE_SIZE")
    assert proc.stat(78) is None and proc.stat(79) is None
    assert sorted(proc.pids()) == [77, 78]
    assert list(LinuxProc(str(tmp_path / "none")).pids()) == []
