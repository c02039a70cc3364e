"""Folders and files that another user made, planted or can change are not read, not written and not followed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from greentrain.utils import private_files
from greentrain.utils.files import ENV_DIR, cache_folder
from tests.helpers.users import STRANGER, as_root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "own"
    private_files.make_folder(str(made))
    return made


def everything(path: Path) -> list[Callable[[], object]]:
    """Return what can be done with a file of a folder that is wrong."""
    return [
        lambda: private_files.make_folder(str(path.parent)),
        lambda: private_files.open_file(str(path)),
        lambda: private_files.open_file(str(path), os.O_RDWR | os.O_CREAT),
        lambda: private_files.replace(str(path), "forged"),
        lambda: private_files.remove(str(path)),
    ]


def refused(path: Path, why: str) -> None:
    for act in everything(path):
        with pytest.raises(PermissionError, match=why):
            act()
    assert private_files.read(str(path)) is None and private_files.names(str(path.parent)) == []
    assert not private_files.is_private(str(path.parent))


def test_a_file_is_made_for_this_user_alone_and_comes_back(folder: Path) -> None:
    path = folder / "a.json"
    before = os.umask(0)
    try:
        private_files.replace(str(path), "one")
        private_files.replace(str(path), "two")
        os.close(private_files.open_file(str(folder / "a.lock"), os.O_RDWR | os.O_CREAT))
    finally:
        os.umask(before)
    assert private_files.read(str(path)) == "two" and private_files.names(str(folder)) == ["a.json", "a.lock"]
    assert [p.stat().st_mode & 0o777 for p in (folder, path, folder / "a.lock")] == [0o700, 0o600, 0o600]
    private_files.remove(str(path))
    private_files.remove(str(path))
    assert private_files.read(str(path)) is None and private_files.read(str(folder / "none" / "x")) is None


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(folder: Path, mode: int) -> None:
    (folder / "a").write_text("old")
    folder.chmod(mode)
    refused(folder / "a", "others can write")
    assert (folder / "a").read_text() == "old"


def test_a_folder_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    refused(tmp_path / "link" / "a", "is a link")
    assert list(folder.iterdir()) == []


@as_root
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    (folder / "a").write_text("old")
    os.chown(folder, STRANGER, STRANGER)
    refused(folder / "a", f"another user's .uid {STRANGER}")
    assert (folder / "a").read_text() == "old"


@as_root
def test_a_file_of_another_user_is_not_believed(folder: Path) -> None:
    path = folder / "a"
    path.write_text("forged")
    os.chown(path, STRANGER, STRANGER)
    assert private_files.read(str(path)) is None
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        with pytest.raises(PermissionError, match="another user's"):
            private_files.open_file(str(path), flags)


def test_a_link_is_not_followed_and_a_fifo_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    victim, made = tmp_path / "victim", tmp_path / "made"
    victim.write_text("important")
    for name, target in (("a", victim), ("b", made)):
        (folder / name).symlink_to(target)
    assert private_files.read(str(folder / "a")) is None
    with pytest.raises(OSError):
        private_files.open_file(str(folder / "b"), os.O_RDWR | os.O_CREAT)
    private_files.replace(str(folder / "a"), "mine")
    assert victim.read_text() == "important" and not made.exists()
    assert private_files.read(str(folder / "a")) == "mine" and not (folder / "a").is_symlink()
    os.mkfifo(folder / "pipe", 0o600)
    assert private_files.read(str(folder / "pipe")) is None


def test_what_a_kill_left_half_written_goes_with_the_next_write(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim.part"
    victim.write_text("mine", encoding="utf-8")
    left, young = folder / ".0123456789abcdef.part", folder / ".fedcba9876543210.part"
    others = [folder / name for name in (".report.html.part", "0123456789abcdef.part", ".0123456789abcdeF.part")]
    for path in (left, young, *others):
        path.write_text("half", encoding="utf-8")
    link = folder / ".aaaaaaaaaaaaaaaa.part"
    link.symlink_to(victim)
    for path in (left, link, *others, victim):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    private_files.replace(str(folder / "claim.json"), "whole")
    assert not left.exists() and not link.is_symlink()
    assert young.exists(), "somebody may be writing it"
    assert all(path.exists() for path in (*others, victim))
    assert private_files.read(str(folder / "claim.json")) == "whole"


def test_a_cache_that_everybody_can_write_to_is_not_believed(tmp_path: Path) -> None:
    env = {ENV_DIR: str(tmp_path / "cache")}
    (tmp_path / "cache" / "csim").mkdir(parents=True)
    (tmp_path / "cache").chmod(0o777)  # a volume, say: what this user makes in it is its own
    assert cache_folder(env, part="csim") == tmp_path / "cache" / "csim"
    (tmp_path / "cache" / "csim").chmod(0o777)
    with pytest.raises(RuntimeError, match=f"everybody can write.*{ENV_DIR}"):
        cache_folder(env, part="csim")
    assert cache_folder(env, part="grid") == tmp_path / "cache" / "grid"


@as_root
@pytest.mark.parametrize("link", [False, True])
def test_a_cache_of_another_user_is_not_believed(tmp_path: Path, link: bool) -> None:
    part = tmp_path / "csim"
    if link:
        part.symlink_to(tmp_path)
    else:
        part.mkdir()
    os.lchown(part, STRANGER, STRANGER)
    with pytest.raises(RuntimeError, match="another user's"):
        cache_folder({ENV_DIR: str(tmp_path)}, part="csim")
