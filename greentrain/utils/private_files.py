"""Files that this user alone can have written: records of power limits, claims on devices, what caches hold.

Whoever can write into a folder can forge what is read from it, or put a link there that leads a write elsewhere. So a
folder counts only if it is this user's and nobody else can write to it; a file in it is opened by the descriptor of the
folder, never through a link, and must be this user's, too. Where files have no owners (Windows), nothing is checked.

Little of the standard library, and nothing else: the guardian loads this file without the package.
"""

import contextlib
import errno
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

HAS_OWNERS = hasattr(os, "geteuid")
MOST_BYTES = 2**16
"""More of a file is not read; records and claims have some hundred bytes."""
OLD_S = 3600.0
"""What is half written for so long (s) was left by a process that was killed: no disk is that slow."""


def foreign(path: str) -> str:
    """Return why what a cache folder holds may be another user's work; empty if it is not, or is missing.

    Root's counts as this user's, links of both are followed, and a group may share it.
    """
    for look in (os.lstat, os.stat):
        try:
            found = look(path)
        except OSError:
            return ""
        if HAS_OWNERS and found.st_uid not in (0, os.geteuid()):
            return f"it is another user's (uid {found.st_uid})"
    return "everybody can write to it" if HAS_OWNERS and found.st_mode & 0o002 else ""


def is_private(folder: str) -> bool:
    """Return True if a folder is there, is this user's alone, and can be written to."""
    try:
        with _opened(folder):
            return os.access(folder, os.W_OK)
    except OSError:
        return False


def make_folder(path: str) -> None:
    """Make a folder for this user alone where it is missing.

    Raises:
        OSError: It cannot be made.
        PermissionError: It is there, and is a link or another user's, or others can write to it.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    with _opened(path):
        pass


def open_file(path: str, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a file in a folder of this user; with ``os.O_CREAT`` it is made for this user alone.

    Args:
        path: Path of the file.
        flags: As of ``os.open``; it is never truncated before its owner is known.

    Raises:
        OSError: It is missing, or the system refuses.
        PermissionError: The folder or the file may be somebody else's work, or it is no file.
    """
    with _folder_of(path) as (folder, name):
        safe = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        fd = _checked(os.open(name, flags | safe, 0o600, dir_fd=folder), path)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PermissionError(errno.EPERM, "it is no file", path)
    return fd


def names(folder: str) -> "list[str]":
    """Return the names in a folder that is this user's alone, sorted; empty where it is not, or is missing."""
    try:
        with _opened(folder) as fd:
            return sorted(os.listdir(folder if fd is None else fd))
    except OSError:
        return []


def read(path: str) -> "str | None":
    """Return the text of a file that is this user's alone; None where there is none."""
    try:
        fd = open_file(path)
    except OSError:
        return None
    with open(fd, encoding="utf-8", errors="replace") as file:
        return file.read(MOST_BYTES)


def replace(path: str, text: str) -> None:
    """Write a file of a folder that is this user's alone, so that a reader sees the old one or the new one.

    Raises:
        OSError: The folder cannot be written, or may be somebody else's work.
    """
    with _folder_of(path) as (folder, name):
        put(folder, name, text.encode())


def put(folder: "int | None", name: str, data: bytes, *, private: bool = True, durable: bool = False) -> None:
    """Put a file in the place of another, whole; a link that lies there is replaced, and never followed.

    The new one is written beside it under a name that nobody can have guessed. What killed processes have left half
    written in the folder is removed (``OLD_S``).

    Args:
        folder: Descriptor of the folder; None where the system opens nothing by one: the name is a path then.
        name: Name of the file in the folder.
        data: Content of the file.
        private: Whether nobody but the owner may read it.
        durable: Whether it is on the disk before it takes the place of the old one.

    Raises:
        OSError: The file cannot be written.
    """
    place = os.path.dirname(name)
    part = os.path.join(place, part_name())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(part, flags, 0o600 if private else 0o666, dir_fd=folder), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise
    with contextlib.suppress(OSError):
        for left in os.listdir(place or "." if folder is None else folder):
            _remove_old_part(folder, place, left)


def part_name() -> str:
    """Return a name that nobody can have guessed, of a file that takes another's place once it is whole."""
    return f".{os.urandom(8).hex()}.part"


def _remove_old_part(folder: "int | None", place: str, name: str) -> None:
    word, path = name[1:-5], os.path.join(place, name)
    if name == f".{word}.part" and len(word) == 16 and set(word) <= set("0123456789abcdef"):
        with contextlib.suppress(OSError):  # somebody else did
            if time.time() - os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime > OLD_S:
                os.unlink(path, dir_fd=folder)


def remove(path: str) -> None:
    """Remove a file of a folder that is this user's alone; one that is missing is no error.

    Raises:
        OSError: The folder cannot be written, or may be somebody else's work.
    """
    with contextlib.suppress(FileNotFoundError), _folder_of(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _opened(folder: str) -> "Iterator[int | None]":
    """Give a descriptor of a folder that is this user's alone; None where files have no owners."""
    if not HAS_OWNERS:
        yield None
        return
    if os.path.islink(folder):  # said in these words; O_NOFOLLOW is what counts
        raise PermissionError(errno.EPERM, "it is a link", folder)
    fd = _checked(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), folder)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _folder_of(path: str) -> "Iterator[tuple[int | None, str]]":
    """Give the descriptor of a file's folder, and what the file is called from there."""
    parent, name = os.path.split(path)
    with _opened(parent or ".") as fd:
        yield fd, path if fd is None else name


def _checked(fd: int, path: str) -> int:
    found = os.fstat(fd)
    why = "others can write to it" if found.st_mode & 0o022 else ""
    if HAS_OWNERS and found.st_uid != os.geteuid():
        why = f"it is another user's (uid {found.st_uid})"
    if HAS_OWNERS and why:
        os.close(fd)
        raise PermissionError(errno.EPERM, why, path)
    return fd
