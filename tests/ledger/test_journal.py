"""The journal survives torn lines, full disks and resumes."""

import contextlib
import errno
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import GreenTrainWarning, RunFolderError
from greentrain.ledger import journal as module
from greentrain.ledger.journal import (
    Journal,
    JournalTail,
    UnknownRecords,
    check_entry,
    check_format,
    entry_to_json,
    is_event,
    last_record,
    lines_from_the_end,
    parse_line,
    read_journal,
    read_object,
)
from greentrain.types import CarbonPoint, DeviceEnergy, GearUse, LedgerEntry, Provenance
from tests.helpers.child import in_a_child
from tests.helpers.interrupts import interrupted

WAIT_S = 60.0
"""Longest wait for a thread that is not held up (s)."""


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run" / "rank-00000.jsonl")
    journal.append({"kind": "event", "text": "ä"})
    journal.append({"kind": "event"})
    assert journal.close(WAIT_S) and journal.close(WAIT_S)
    assert list(read_journal(journal.path)) == [{"kind": "event", "n": 1, "text": "ä"}, {"kind": "event", "n": 2}]
    assert journal.path.stat().st_mode & 0o133 == 0, "a file for all to read, for its owner to write, and no program"


def test_a_torn_last_line_is_skipped_and_closed_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    path.write_bytes(b'{"kind":"event","n":1}\n{"kind":"eve')
    journal = Journal(path)
    journal.append({"kind": "event", "n": 2})
    journal.close(WAIT_S)
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
    journal.close(WAIT_S)
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
    journal.close(WAIT_S)
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
    journal = Journal(tmp_path / "rank-00000.jsonl", fsync_s=3600.0)  # longer than this test: nobody looks unasked
    monkeypatch.setattr(module, "os", disk := Disk("write"))
    journal.append({"kind": "event"})
    assert disk.reached.wait(WAIT_S)
    journal.append({"kind": "event"})  # this thread is here: it has not written
    assert not journal.flush(0.01) and not journal.close(0.01)
    assert journal.unwritten == 2
    disk.go_on.set()
    journal._syncer._thread.join(WAIT_S)  # it ends by itself, though nobody waits for it any more
    assert journal._fd == -1 and journal.close(WAIT_S)
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


def test_lines_of_others_that_come_meanwhile_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl")
    asked, go_on, write = journal._writer.ask, threading.Event(), os.write

    def ask(wait_s: float = 0.0) -> bool:
        ended = asked(wait_s)
        if wait_s and not go_on.is_set():  # another thread appends before the first looks what is left
            monkeypatch.setattr(os, "write", lambda fd, data: go_on.wait(WAIT_S) and write(fd, data))
            journal.append({"kind": "event", "by": "another"})
        return ended

    monkeypatch.setattr(journal._writer, "ask", ask)
    journal.append({"kind": "event", "by": "one"})
    assert journal.flush(WAIT_S) and journal.unwritten
    assert _numbers(journal.path) == [1]
    go_on.set()
    assert journal.close(WAIT_S)
    assert _numbers(journal.path) == [1, 2]
    journal.append({"kind": "event"})
    assert not journal.flush(WAIT_S)  # the file is closed


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
        with pytest.warns(GreenTrainWarning, match="No space") if cut < 2 * line - 1 else contextlib.nullcontext():
            for _ in range(2):
                journal.append({"kind": "event"})
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
        journal.close(WAIT_S)
    assert [record.get("n") for record in read_journal(path)] == [None, 1, 2]
    assert path.read_bytes().count(b"\n") == 3, "no line was torn that would have to be ended first"


def test_nobody_waits_longer_than_a_second_who_does_not_ask_for_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl")
    assert max(journal._writer.every_s, journal._syncer.every_s) <= 10.0, "what a power cut may cost"
    waits: list[float] = []
    ask, stop = journal._writer.ask, journal._writer.stop

    def noted(call: Callable[[float], bool], wait_s: float) -> bool:
        waits.append(wait_s)
        return call(min(60 * wait_s, WAIT_S))  # as long as this machine needs

    journal._writer.ask = lambda wait_s=0.0: noted(ask, wait_s)  # type: ignore[method-assign]
    journal._writer.stop = lambda wait_s: noted(stop, wait_s)  # type: ignore[method-assign]
    journal.append({"kind": "event"})
    assert waits == [0.0]
    journal.flush()
    journal.close()
    assert len(waits) > 2 and max(waits[:3]) <= 1.0


def test_other_files_of_the_run_are_written_beside_its_lines(tmp_path: Path) -> None:
    seen: list[int] = []
    path = tmp_path / "rank-00000.jsonl"
    journal = Journal(path, fsync_s=3600.0, beside=lambda: seen.append(len(list(read_journal(path)))))
    for _ in range(2):
        journal.append({"kind": "event"})
        assert journal.flush(WAIT_S)
    assert journal.close(WAIT_S) and {1, 2} <= set(seen), "after the lines, each time"


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
    assert _given_up(journal.path) == ["0", 2, "3", "4", "5"]


def test_lines_that_are_given_up_later_are_told_beside_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_LINES", 1)
    journal = Journal(tmp_path / "rank-00000.jsonl")
    with pytest.warns(GreenTrainWarning, match="were given up") as said:
        for texts in ("012", "3456"):
            monkeypatch.setattr(module, "os", disk := Disk("write"))
            journal.append({"kind": "event", "text": texts[0]})
            assert disk.reached.wait(WAIT_S)
            for text in texts[1:]:
                journal.append({"kind": "event", "text": text})
            disk.go_on.set()
            assert journal.flush(WAIT_S)
    assert journal.close(WAIT_S) and journal.lost_lines == 3
    assert _given_up(journal.path) == ["0", 1, "2", "3", 2, "6"] and len(said) == 2


def _given_up(path: Path) -> list[str | int]:
    """Return the texts of a journal, and the number of lines where some are missing."""
    return [record.get("lines", record["text"]) for record in read_journal(path)]


@pytest.mark.parametrize("delete", [shutil.rmtree, lambda folder: (folder / "rank-00000.jsonl").unlink()])
def test_a_folder_or_file_that_is_deleted_is_brought_back_with_its_lines(
    tmp_path: Path, delete: Callable[[Path], None]
) -> None:
    journal = Journal(tmp_path / "run" / "rank-00000.jsonl")
    journal.append({"kind": "event"})
    assert journal.flush(WAIT_S)
    delete(tmp_path / "run")
    with pytest.warns(GreenTrainWarning, match="deleted while it was written"):
        journal.append({"kind": "event"})
        assert journal.flush(WAIT_S)
    assert _numbers(journal.path) == [1, 2] and journal.brought_back == 1
    assert not os.get_inheritable(journal._fd), "a child of the training does not hold it open"
    assert journal.path.stat().st_mode & 0o133 == 0
    other = Journal(journal.path)
    assert not other.alone, "it is still this process's"
    assert other.close(WAIT_S) and journal.close(WAIT_S)


def test_a_file_that_a_full_disk_brings_back_in_part_is_brought_back_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl", fsync_s=3600.0)
    journal.append({"kind": "event", "text": "x" * 50})
    assert journal.flush(WAIT_S)
    journal.path.unlink()
    full, opened = [True], set[int]()

    def write(fd: int, data: bytes) -> int:
        return os.write(fd, data[:10] if full else data)

    def open_one(*args: Any) -> int:
        opened.add(fd := os.open(*args))
        return fd

    def close(fd: int) -> None:
        opened.remove(fd)
        os.close(fd)

    monkeypatch.setattr(module, "os", Os(write=write, open=open_one, close=close))
    with pytest.warns(GreenTrainWarning) as said:
        journal.append({"kind": "event"})
        assert not journal.flush(WAIT_S) and not journal.path.exists()
        full.clear()
        assert journal.flush(WAIT_S)
    assert ["No space" in str(one.message) for one in said] == [True, False] and not opened
    monkeypatch.undo()
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
    second.close(WAIT_S)
    worker = os.fork()
    if worker == 0:
        first.append({"kind": "event"})
        first.flush(WAIT_S)  # in vain, and without waiting
        signal.pause()
    try:
        first.close(WAIT_S)
        end_s = time.monotonic() + WAIT_S
        while not (third := Journal(first.path)).alone and time.monotonic() < end_s:  # the worker is about to begin
            third.close(WAIT_S)
        assert third.alone and not list(read_journal(first.path))
        third.close(WAIT_S)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


class Os:
    """Stands in for ``os`` in the journal, with some of its calls exchanged."""

    def __init__(self, **calls: Callable[..., object]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> object:
        return self._calls.get(name, getattr(os, name))


def test_what_was_written_is_forced_to_the_device_once_and_again_after_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[int] = []
    monkeypatch.setattr(module, "os", Os(fsync=lambda fd: forced.append(os.fstat(fd).st_size)))
    journal = Journal(tmp_path / "rank-00000.jsonl", fsync_s=3600.0)  # longer than this test: it syncs by hand
    journal._sync()
    assert forced == [], "there is nothing to be lost yet"
    for lines in (1, 2):
        journal.append({"kind": "event"})
        assert journal.flush(WAIT_S)
        journal._sync()
        journal._sync()
        assert len(forced) == lines and forced[-1] == journal.path.stat().st_size
    assert journal.close(WAIT_S)


def test_a_device_that_cannot_sync_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module, "os", Os(fsync=broken))
    journal = Journal(tmp_path / "rank-00000.jsonl", fsync_s=3600.0)
    for _ in range(2):
        journal.append({"kind": "event"})
        assert journal.flush(WAIT_S)
        journal._sync()
    assert journal.close(WAIT_S) and _numbers(journal.path) == [1, 2]


def test_a_journal_that_is_closed_holds_its_file_no_longer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl")
    journal.append({"kind": "event"})
    assert journal.close(WAIT_S) and journal._fd == -1, "who has waited for the disk has it on the disk"
    again = Journal(journal.path)
    assert again.alone and again.close(WAIT_S)
    journal.append({"kind": "event"})
    journal._write()
    assert _numbers(journal.path) == [1], "the file may be another one's by now"


def test_many_lines_are_written_in_few_calls_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl")
    monkeypatch.setattr(module, "os", disk := Disk("write"))
    for _ in range(700):
        journal.append({"kind": "event"})
    assert disk.reached.wait(WAIT_S)
    calls: list[bytes] = []

    def write(fd: int, data: bytes) -> int:
        calls.append(data)
        return os.write(fd, data)

    disk._real = write
    disk.go_on.set()
    assert journal.close(WAIT_S)
    assert _numbers(journal.path) == list(range(1, 701)) and len(calls) <= 5


def test_of_a_write_in_the_middle_of_a_line_the_rest_is_written_anew_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl")
    taken: list[bytes] = []

    def write(fd: int, data: bytes) -> int:
        taken.append(data)
        return os.write(fd, data[: len(data) // 2] if len(taken) == 1 else data)

    monkeypatch.setattr(module, "os", Os(write=write))
    with pytest.warns(GreenTrainWarning, match="No space"):
        journal.append({"kind": "event", "text": "x" * 100})
        assert not journal.flush(WAIT_S)
    assert journal.close(WAIT_S)
    assert taken[1] == b"\n" + taken[0], "the torn line is ended first"
    assert [record["text"] for record in read_journal(journal.path)] == ["x" * 100]


def test_the_number_goes_on_behind_a_torn_line_and_lines_without_one(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    path.write_bytes(b'{"kind":"event","n":41}\n{"kind":"event"}\n[5]\n{"kind":"eve')
    journal = Journal(path)
    journal.append({"kind": "event"})
    journal.close(WAIT_S)
    assert _numbers_or_none(path) == [41, None, 42]


def _numbers_or_none(path: Path) -> list[int | None]:
    return [record.get("n") for record in read_journal(path)]


def test_lines_come_from_the_end_whole_wherever_a_block_cuts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 8)
    path = tmp_path / "rank-00000.jsonl"
    for lines in ([b"a"], [b"ab", b"abcdefgh", b"x" * 50, b"y"], [b"1234567"] * 3, [b""]):
        for end in (b"\n", b""):
            path.write_bytes(b"\n".join(lines) + end)
            assert list(lines_from_the_end(path)) == [line for line in reversed(lines) if line]


def test_of_a_large_file_only_the_last_lines_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 20)
    path = tmp_path / "rank-00000.jsonl"
    path.write_bytes(b"0123456789\n" * 10)
    assert list(lines_from_the_end(path)) == [b"0123456789"], "the one before it is cut"


def test_the_last_record_is_none_where_its_line_is_torn_or_nothing_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    assert last_record(path) is None and last_record(tmp_path) is None
    path.write_bytes(b'{"kind":"open"}\n{"kind":"close"}')
    assert last_record(path) == {"kind": "close"}
    path.write_bytes(b'{"kind":"open"}\n{"kind":"clo')
    assert last_record(path) is None


def test_step_groups_are_left_out_unread_where_they_stand_last(tmp_path: Path) -> None:
    line = b'{"kind":"entry","t0":1.0,"step_groups":[[1,2.0,3.0,4]]}\n'
    assert parse_line(line, short=True) == {"kind": "entry", "t0": 1.0, "step_groups": []}
    assert parse_line(line) == {"kind": "entry", "t0": 1.0, "step_groups": [[1, 2.0, 3.0, 4]]}
    behind = b'{"kind":"entry","step_groups":[[1]],"sum":{"a":[1]}}'
    assert parse_line(behind, short=True) == {"kind": "entry", "step_groups": [[1]], "sum": {"a": [1]}}
    nested = b'{"kind":"entry","sum":{"x":1,"step_groups":[1]}}'
    assert parse_line(nested, short=True) == {"kind": "entry", "sum": {"x": 1, "step_groups": [1]}}
    assert parse_line(b'{"no":"kind"}') is None and parse_line(b"[1]") is None


def test_a_tail_stops_where_it_is_told_and_goes_on_there(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    tail = JournalTail(path)
    assert list(tail.read()) == [] and tail.behind, "there is no file yet"
    lines = [b'{"kind":"event","n":%d}\n' % n for n in range(1, 10)]
    path.write_bytes(b"".join(lines))
    assert [record["n"] for record in tail.read(len(lines[0]) + 1)] == [1, 2] and tail.behind
    assert [record["n"] for record in tail.read(len(lines[2]))] == [3]
    assert [record["n"] for record in tail.read()] == [4, 5, 6, 7, 8, 9] and not tail.behind


def test_a_tail_reads_the_first_line_whole_though_it_was_there_in_part(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    tail = JournalTail(path)
    for text, found in ((b'{"kind":"eve', []), (b'nt","n":1}', []), (b'\n{"kind":"event","n":2}\n', [1, 2])):
        with path.open("ab") as file:
            file.write(text)
        assert [record["n"] for record in tail.read()] == found and not tail.behind


def test_a_tail_waits_for_the_end_of_a_line_far_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 40)
    path = tmp_path / "rank-00000.jsonl"
    tail, line = JournalTail(path), b'{"kind":"event","n":%d}\n'
    written = b"".join(line % n for n in range(1, 4))
    for text, found in ((written + b'{"kind":"e', [1, 2, 3]), (b'vent",', []), (b'"n":4}\n' + line % 5, [4, 5])):
        with path.open("ab") as file:
            file.write(text)
        assert [record["n"] for record in tail.read()] == found


def test_a_tail_gives_up_a_line_that_is_too_long_and_reads_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 40)
    path = tmp_path / "rank-00000.jsonl"
    tail = JournalTail(path)
    path.write_bytes(b"x" * 100)
    assert list(tail.read()) == []
    path.write_bytes(b"x" * 110 + b'\n{"kind":"event","n":1}\n')
    assert [record["n"] for record in tail.read()] == [1]


def test_what_was_not_known_is_named_and_of_much_the_rest_is_counted() -> None:
    unknown = UnknownRecords()
    assert unknown.note(1.0) is None
    unknown.look({"kind": "event", "t": 1.0, "name": "x", "more": 1})
    unknown.look({"kind": "close", "n": 3, "t": 1.0, "reason": "left", "totals": {}})
    assert unknown.note(1.0) is None, "events have facts of their own, and each line a number"
    for i in range(11):
        unknown.look({"kind": f"new-{i}"})
    unknown.look({"kind": "new-0"})
    note = unknown.note(5.0)
    assert note is not None and (note["kind"], note["t"], note["name"]) == ("event", 5.0, "note")
    assert "records of kind 'new-0' (2 times), records of kind 'new-1' (1 times)" in note["text"]
    assert "'new-7' (1 times) and 3 more;" in note["text"] and "new-8" not in note["text"]


@pytest.mark.parametrize(
    ("record", "is_one"),
    [
        ({"t": 0, "name": "x"}, True),
        ({"t": -1.5, "name": "x", "text": ""}, True),
        ({"t": 253_402_300_799.0, "name": "x"}, True),
        ({"t": 253_402_300_800.0, "name": "x"}, False),  # the year 10,000
        ({"t": float("nan"), "name": "x"}, False),
        ({"t": 1.0}, False),
        ({"t": 1.0, "name": "x", "text": None}, False),
    ],
)
def test_an_event_has_a_time_in_the_calendar_and_words(record: dict[str, object], is_one: bool) -> None:
    assert is_event(record) is is_one


def test_a_file_of_a_run_is_read_up_to_a_bound_and_not_beyond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST_FILE_BYTES", 20)
    path = tmp_path / "run.json"
    path.write_text('{"a":\n"0123456789abc"}'[:20])
    with pytest.raises(RunFolderError, match="is no JSON"):
        read_object(path)
    path.write_text('{"a":\n"0123456789ab"}')
    assert len(path.read_bytes()) == 21
    with pytest.raises(RunFolderError, match="has more than 20 bytes"):
        read_object(path)
    path.write_text('{"a":\n"0123456789a"}')
    assert read_object(path) == {"a": "0123456789a"}
    path.write_text("[1]")
    with pytest.raises(RunFolderError, match="holds a list, not an object"):
        read_object(path)


def test_times_have_six_decimals_in_a_journal_and_all_of_them_where_they_are_summed() -> None:
    third = 1 / 3
    entry = LedgerEntry(
        t0_unix_s=third,
        t1_unix_s=1 + third,
        devices={"a": DeviceEnergy(energy_j=third, provenance=Provenance.MEASURED, missing_s=third, phases={})},
        phase_s={"other": third},
        phase_inclusive_j={},
        carbon=CarbonPoint(t0_unix_s=0.0, t1_unix_s=1.0, g_per_kwh=None, zone="", source=""),
        pue=1.0,
        operational_g=None,
        embodied_g=None,
        gears={"fp8": GearUse(energy_j=third, seconds=third)},
    )
    times = [
        (
            found["t0"], found["devices"]["a"]["missing_s"], found["phase_s"]["other"], found["gears"]["fp8"]["s"],
            found["devices"]["a"]["j"],
        )
        for found in (entry_to_json(entry), entry_to_json(entry, exact=True))
    ]  # fmt: skip
    assert times == [(0.333333, 0.333333, 0.333333, 0.333333, third), (third,) * 5]
    assert "pue_from" not in entry_to_json(entry)


def _entry(**changes: object) -> dict[str, object]:
    carbon = {"g_per_kwh": None, "zone": "", "kind": "estimated", "basis": "average", "accounting": "", "source": ""}
    return {
        "t0": 0.0, "t1": 1.0, "pue": 1.0, "op_g": None, "emb_g": None, "steps": 0, "tokens": 0, "samples": 0,
        "devices": {}, "phase_s": {}, "phase_incl_j": {}, "carbon": carbon, "step_groups": [], **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        {"t1": math.nan},
        {"t0": -math.inf},
        {"op_g": 1e300},
        {"tokens": 2**63},
        {"steps": -(2**63)},
        {"phase_incl_j": {"x": math.inf}},
        {"phase_s": {"x": math.inf}},
        {"devices": {"a": {"j": math.nan, "prov": "measured", "missing_s": 0.0, "phases": {}}}},
        {"devices": {"a": {"j": 1.0, "prov": "measured", "missing_s": math.nan, "phases": {}}}},
        {"devices": {"a": {"j": 1.0, "prov": "measured", "missing_s": 0.0, "phases": {"x": math.inf}}}},
        {"devices": {"a": {"j": 1.0, "prov": "guessed", "missing_s": 0.0, "phases": {}}}},
        {"step_groups": [(1, 2.0, math.nan, 0)]},
        {"pue_from": "the weather"},
        {"gears": {"fp8": {"j": 1.0}}},
    ],
    ids=str,
)
def test_an_entry_with_a_figure_that_none_has_is_refused(damage: dict[str, object]) -> None:
    check_entry(_entry(tokens=2**62))
    with pytest.raises((ValueError, KeyError)):
        check_entry(_entry(**damage))
    carbon: dict[str, object] = {**_entry()["carbon"], "zone": None}  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="no text"):
        check_entry(_entry(carbon=carbon))


@pytest.mark.parametrize(("found", "known"), [(1, True), (0, False), (True, False), ("1", False), (1.0, False)])
def test_a_version_is_a_whole_number_from_one(found: object, known: bool) -> None:
    with contextlib.nullcontext() if known else pytest.raises(RunFolderError, match="which is no version"):
        check_format(found, Path("x"))


def test_a_file_that_is_exchanged_while_it_is_opened_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank-00000.jsonl"
    path.write_bytes(b"x")
    closed: list[int] = []

    def close(fd: int) -> None:
        os.close(fd)
        closed.append(fd)

    monkeypatch.setattr(module, "os", Os(open=lambda *_: os.open(tmp_path, os.O_RDONLY), close=close))
    with pytest.raises(RunFolderError, match="is no regular file"):
        module.open_regular(path)
    assert len(closed) == 1


def test_an_interrupt_while_it_opens_leaves_the_file_to_the_next(tmp_path: Path) -> None:
    """Ctrl-C at each place: a notebook starts again, in the same process, and must not find the run in use."""
    path = tmp_path / "rank-00000.jsonl"
    for place in range(1, 200):
        opened: list[Journal] = []
        cut = interrupted(lambda opened=opened: opened.append(Journal(path)), place, "ledger/journal.py")  # type: ignore[misc]
        for journal in opened:
            journal.close()
        again = Journal(path)
        again.close()
        assert again.alone, f"after Ctrl-C at {cut}"
        if not cut:
            break
    assert place > 10 and not cut


def test_where_a_system_has_no_locks_a_journal_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    with monkeypatch.context() as windows:
        windows.setitem(sys.modules, "fcntl", None)
        journal = Journal(tmp_path / "rank-00001.jsonl")
        assert journal.alone and journal.close(WAIT_S)

    def none(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    journal = Journal(tmp_path / "rank-00000.jsonl")
    assert journal.alone
    journal.close(WAIT_S)
