"""The journal survives torn lines, full disks and resumes."""

import errno
import json
import os
from pathlib import Path

import pytest

from greentrain.errors import GreenTrainWarning, RunFolderError
from greentrain.ledger.journal import Journal, read_journal


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run" / "rank-00000.jsonl")
    assert journal.append({"kind": "event", "text": "ä"})
    journal.close()
    journal.close()
    assert list(read_journal(journal.path)) == [{"kind": "event", "text": "ä"}]


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
        assert not journal.append({"kind": "event", "n": 1})
    assert not journal.append({"kind": "event", "n": 2})  # one warning only: warnings are errors here
    full[0] = False
    assert journal.append({"kind": "event", "n": 3})
    journal.close()
    assert [record["n"] for record in read_journal(journal.path)] == [1, 2, 3]


def test_a_real_full_device(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    (tmp_path / "rank-00000.jsonl").symlink_to("/dev/full")
    journal = Journal(tmp_path / "rank-00000.jsonl")
    with pytest.warns(GreenTrainWarning, match="No space left"):
        assert not journal.append({"kind": "event"})
    journal.close()


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
