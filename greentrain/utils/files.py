"""Files that a reader sees old or new, never half written; and the folder that outlives a run."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.utils import private_files

ENV_DIR: Final = "GREENTRAIN_CACHE_DIR"


def write_atomic(path: Path, text: str) -> Path:
    """Write a text file so that a reader sees the old one or the new one, also after a loss of power.

    Args:
        path: Path of the file, which is returned.
        text: Content of the file.

    Raises:
        RunFolderError: The folder cannot be written.
    """
    try:
        replace_file(path, text.encode(), durable=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the report {path}: {error.strerror or error}. Make the folder writable, or copy the run"
            " folder to one that is and run 'greentrain report' there"
        ) from error
    return path


def write_json(path: Path, data: Mapping[str, Any], *, private: bool = False) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of one.

    Args:
        path: Path of the file.
        data: Content of the file, before it becomes JSON.
        private: Whether nobody but the owner may read it.

    Raises:
        OSError: The file cannot be written.
    """
    text = json.dumps(data, indent=1, sort_keys=True, default=str) + "\n"
    replace_file(path, text.encode(), private=private)


def replace_file(path: Path, data: bytes, *, private: bool = False, durable: bool = False) -> None:
    """Put a file in the place of another, whole; a link that lies there is replaced, and never followed.

    The new one is written in the folder as it was found (:func:`greentrain.utils.private_files.put`): what somebody
    planted there, or puts in the folder's place meanwhile, leads nothing elsewhere.

    Args:
        path: Path of the file.
        data: Content of the file.
        private: Whether nobody but the owner may read it.
        durable: Whether it is on the disk before it takes the place of the old one.

    Raises:
        OSError: The file cannot be written.
    """
    if os.open not in os.supports_dir_fd:  # on Windows
        private_files.put(None, str(path), data, private=private, durable=durable)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        private_files.put(folder, path.name, data, private=private, durable=durable)
    finally:
        os.close(folder)


def cache_folder(environ: Mapping[str, str] | None = None, *, part: str = "") -> Path:
    """Return $GREENTRAIN_CACHE_DIR, else $XDG_CACHE_HOME/greentrain, else ~/.cache/greentrain, or a folder in it.

    What lies there is read back and believed, compiled kernels included, so it must be this user's, or root's.

    Args:
        environ: Environment, os.environ by default.
        part: Name of the folder in it.

    Raises:
        RuntimeError: None of them is set and this user has no home; the folder is another user's, or everybody's.
    """
    env = os.environ if environ is None else environ
    base = env.get("XDG_CACHE_HOME", "")
    # a relative one is to be ignored: XDG Base Directory Specification 0.8, 2026-11-21
    own = env.get(ENV_DIR) or (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "greentrain"
    folder = Path(own) / part
    if why := private_files.foreign(str(folder)):
        raise RuntimeError(f"{folder} is not trusted: {why}; name another folder in {ENV_DIR}")
    return folder


def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """Return a table that comes with a room.

    Args:
        package: Dotted name of the room, as ``greentrain.estimate``.
        name: Name of the file in it.
    """
    import tomllib
    from importlib import resources

    return tomllib.loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
