"""A file takes the place of another whole, in a folder that may be anybody's."""

import os
import stat
from pathlib import Path

import pytest

from greentrain.errors import RunFolderError
from greentrain.utils.files import replace_file, write_atomic, write_json


def test_the_file_is_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for text in ("old", "new \N{THIN SPACE}\n"):
        assert write_atomic(path, text).read_text(encoding="utf-8") == text
    write_json(tmp_path / "run.json", {"b": 1, "a": 2}, private=True)
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["report.html", "run.json"]


@pytest.mark.parametrize("plant", [os.symlink, os.link], ids=["symlink", "hard link"])
def test_what_is_planted_leads_nothing_elsewhere(
    tmp_path: Path, plant: "object", monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, folder = tmp_path / "authorized_keys", tmp_path / "run"
    keys.write_text("mine\n")
    folder.mkdir()
    monkeypatch.setattr(os, "urandom", bytes)
    plant(keys, folder / "report.html")  # type: ignore[operator]
    write_atomic(folder / "report.html", "page")
    assert (keys.read_text(), (folder / "report.html").read_text()) == ("mine\n", "page")
    assert not (folder / "report.html").is_symlink()
    plant(keys, folder / f".{bytes(8).hex()}.part")  # type: ignore[operator]
    with pytest.raises(RunFolderError, match="cannot write the report"):
        write_atomic(folder / "report.html", "other")
    assert keys.read_text() == "mine\n"


def test_a_folder_that_is_exchanged_while_it_is_written_to_leads_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, theirs = tmp_path / "run", tmp_path / "theirs"
    folder.mkdir()
    theirs.mkdir()
    (theirs / "report.html").write_text("theirs")

    def exchanged(_: int) -> None:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(theirs)

    monkeypatch.setattr(os, "fsync", exchanged)
    replace_file(folder / "report.html", b"page", durable=True)
    assert (theirs / "report.html").read_text() == "theirs" and len(list(theirs.iterdir())) == 1
    assert (tmp_path / "moved" / "report.html").read_bytes() == b"page"


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="No space left on device"):
        write_atomic(path, "new")
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]
    with pytest.raises(RunFolderError, match="No such file"):
        write_atomic(tmp_path / "gone" / "summary.json", "new")
