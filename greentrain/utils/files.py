"""Files that a reader sees old or new, never half written; and the folder that outlives a run."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError


def write_atomic(path: Path, text: str) -> Path:
    """Write a text file through a temporary one beside it.

    Raises:
        RunFolderError: The folder cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the report {path}: {error.strerror or error}. Make the folder writable, or copy the run"
            " folder to one that is and run 'greentrain report' there"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return path


ENV_DIR: Final = "GREENTRAIN_CACHE_DIR"


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return $GREENTRAIN_CACHE_DIR, else $XDG_CACHE_HOME/greentrain, else ~/.cache/greentrain.

    Args:
        environ: Environment, os.environ by default.

    Raises:
        RuntimeError: None of them is set and this user has no home.
    """
    env = os.environ if environ is None else environ
    if env.get(ENV_DIR):
        return Path(env[ENV_DIR])
    base = env.get("XDG_CACHE_HOME", "")
    # a relative one is to be ignored: XDG Base Directory Specification 0.8, 2026-11-21
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "greentrain"


def write_json(path: Path, data: Mapping[str, Any], *, private: bool = False) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of one.

    Args:
        path: The file.
        data: What it holds.
        private: Let nobody but the owner read it.

    Raises:
        OSError: The file cannot be written.
    """
    part = path.with_suffix(f".{os.getpid()}.part")
    text = json.dumps(data, indent=1, sort_keys=True, default=str) + "\n"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(part, flags, 0o600 if private else 0o666), "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
