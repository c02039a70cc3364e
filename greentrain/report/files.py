"""Writing a report's files so that a reader sees the old one or the new one, never half of one."""

import contextlib
import os
from pathlib import Path

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
