"""The journal survives torn lines, full disks and resumes."""

import contextlib
import errno
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from greentrain.errors import GreenTrainWarning, RunFolderError
from greentrain.ledger import journal as module
from greentrain.ledger.journal import Journal, JournalTail, read_journal
from tests.helpers.child import in_a_child

WAIT_S = 10.0
"""Longest wait for a thread that is not held up (s)."""


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run" / "rank-00000.jsonl")
    journal.append({"kind": "event", "text": "ä"})
    journal.append({"kind": "event"})
    assert journal.close() and journal.close()
    assert list(read_journal(journal.path)) == [{"kind": "event", "n": 1, "text": "ä"}, {"kind": "event", "n": 2}]


def test_a_torn_last_line_is_skipped_and_closed_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    path.write_bytes(b'{"kind":"event","n":1}\n{"kind":"eve')
    journal = Journal(path)
    journal.append({"kind": "event", "n": 2})
    journal.close()
    assert [record["n"] for record in read_journal(path)] == [1, 2]


def test_a_full_disk_keeps_lines_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl")
    real, full = os.write, [True]

    def write(fd: int, data: bytes) -> int:
        if full[0]:
            if len(data) > 10:
                return real(fd, data[:7])  # a full disk often takes a part
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.warns(GreenTrainWarning, match="No space left"):
        journal.append({"kind": "event"})
        assert not journal.flush(WAIT_S)
    journal.append({"kind": "event"})
    assert not journal.flush(WAIT_S) and journal.unwritten == 2
    full[0] = False
    journal.append({"kind": "event"})
    assert journal.flush(WAIT_S)
    journal.close()
    assert [record["n"] for record in read_journal(journal.path)] == [1, 2, 3]


def test_a_real_full_device(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    (tmp_path / "rank-00000.jsonl").symlink_to("/dev/full")
    journal = Journal(tmp_path / "rank-00000.jsonl")
    with pytest.warns(GreenTrainWarning, match="No space left"):
        journal.append({"kind": "event"})
        assert not journal.close(WAIT_S)
    assert journal.unwritten == 1


def test_an_unwritable_folder_fails_at_once_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"run\.dir"):
        Journal(tmp_path / "file" / "rank-00000.jsonl")


def test_nan_is_refused_rather_than_written_as_invalid_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        journal.append({"kind": "event", "x": float("nan")})
    journal.close()
    assert json.loads("[]") == list(read_journal(journal.path))


class Disk:
    """Stands in for ``os`` in the journal: a disk that hangs in one call until it is let go."""

    def __init__(self, call: str) -> None:
        self._call, self._real = call, getattr(os, call)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Callable[..., object]:
        return self._hang if name == self._call else getattr(os, name)

    def _hang(self, *args: object) -> object:
        self.reached.set()
        assert self.go_on.wait(WAIT_S)
        return self._real(*args)


def _numbers(path: Path) -> list[int]:
    return [record["n"] for record in read_journal(path)]


def test_who_appends_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl")
    monkeypatch.setattr(module, "os", disk := Disk("write"))
    journal.append({"kind": "event"})
    assert disk.reached.wait(WAIT_S)
    journal.append({"kind": "event"})  # this thread is here: it has not written
    assert not journal.flush(0.01) and not journal.close(0.01)
    assert journal.unwritten == 2
    disk.go_on.set()
    assert journal.close(WAIT_S)
    assert _numbers(journal.path) == [1, 2]


def test_lines_are_written_while_fsync_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "os", disk := Disk("fsync"))
    journal = Journal(tmp_path / "rank-00000.jsonl", fsync_s=0.01)
    journal.append({"kind": "event"})
    assert disk.reached.wait(WAIT_S)  # so what was written is forced to the device
    journal.append({"kind": "event"})
    assert journal.flush(WAIT_S)
    assert _numbers(journal.path) == [1, 2]
    assert journal.close(0.01)
    disk.go_on.set()


def test_a_line_counts_once_wherever_a_full_disk_cuts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = [0]
    real = os.write

    def write(fd: int, data: bytes) -> int:
        done = real(fd, data[: room[0]]) if room[0] else 0
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)
    line = len(b'{"kind":"event","n":1}\n')
    for cut in range(2 * line + 2):
        journal = Journal(tmp_path / str(cut) / "rank-00000.jsonl")
        room[0] = cut
        for _ in range(2):
            journal.append({"kind": "event"})
        with pytest.warns(GreenTrainWarning, match="No space") if cut < 2 * line - 1 else contextlib.nullcontext():
            assert journal.flush(WAIT_S) == (cut >= 2 * line - 1)  # but for its end, all is there
        room[0] = 1000
        journal.append({"kind": "event"})
        assert journal.close(WAIT_S)
        assert _numbers(journal.path) == [1, 2, 3]


def test_a_line_that_stands_there_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    lines = [b'{"kind":"open","n":1}\n', *(b'{"kind":"entry","n":%d}\n' % n for n in (2, 3))]
    again = [lines[2], *lines[1:], b'{"kind":"entry"}\n', b'{"kind":"open","n":1}\n', b'{"kind":"entry","n":2}\n']
    path.write_bytes(b"".join(lines))
    tail = JournalTail(path)
    assert [record["n"] for record in tail.read()] == [1, 2, 3]
    path.write_bytes(b"".join(lines + again))
    rest = [None, 1, 2]  # of a version that did not number, and of a process that could not read the last number
    assert [record.get("n") for record in tail.read()] == rest
    assert [record.get("n") for record in read_journal(path)] == [1, 2, 3, *rest]


def test_numbers_go_on_where_the_last_process_ended(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    path.write_bytes(b'{"kind":"event"}\n')
    for _ in range(2):
        journal = Journal(path)
        journal.append({"kind": "event"})
        journal.close()
    assert [record.get("n") for record in read_journal(path)] == [None, 1, 2]


def test_lines_that_are_given_up_are_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_LINES", 3)
    journal = Journal(tmp_path / "rank-00000.jsonl")
    monkeypatch.setattr(module, "os", disk := Disk("write"))
    journal.append({"kind": "event", "text": "0"})
    assert disk.reached.wait(WAIT_S)
    for text in "12345":
        journal.append({"kind": "event", "text": text})
    assert journal.lost_lines == 2
    with pytest.warns(GreenTrainWarning, match="2 lines of .* were given up"):
        disk.go_on.set()
        assert journal.close(WAIT_S)
    found = list(read_journal(journal.path))
    assert [record["text"] for record in found if "lines" not in record] == ["0", "3", "4", "5"]
    assert [record["lines"] for record in found if "lines" in record] == [2]


def test_a_folder_that_is_deleted_is_brought_back_with_its_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run" / "rank-00000.jsonl")
    journal.append({"kind": "event"})
    assert journal.flush(WAIT_S)
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(GreenTrainWarning, match="deleted while it was written"):
        journal.append({"kind": "event"})
        assert journal.close(WAIT_S)
    assert _numbers(journal.path) == [1, 2] and journal.brought_back == 1


def test_where_the_folder_of_all_runs_is_gone_nothing_is_made_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs" / "run" / "rank-00000.jsonl")
    shutil.rmtree(tmp_path / "runs")
    with pytest.warns(GreenTrainWarning, match="cannot be brought back"):
        journal.append({"kind": "event"})
        journal.close(WAIT_S)
    assert not (tmp_path / "runs").exists()


@in_a_child
def test_one_writes_at_a_time_and_a_forked_worker_is_not_one(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    first = Journal(tmp_path / "rank-00000.jsonl")
    second = Journal(first.path)
    assert first.alone and not second.alone
    second.close()
    worker = os.fork()
    if worker == 0:
        first.append({"kind": "event"})
        first.flush(WAIT_S)  # in vain, and without waiting
        signal.pause()
    try:
        first.close()
        end_s = time.monotonic() + WAIT_S
        while not (third := Journal(first.path)).alone and time.monotonic() < end_s:  # the worker is about to begin
            third.close()
        assert third.alone and not list(read_journal(first.path))
        third.close()
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
