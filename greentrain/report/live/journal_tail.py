"""A journal that grows, read from where the last look ended."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from greentrain.ledger.journal import parse_line

CHUNK_BYTES: Final = 1 << 22
"""Read at a time, so that a journal of weeks needs no memory of its size."""


class JournalTail:
    """Reads the complete lines that were appended to one file since the last time.

    A line counts when its newline is there; one that a dead process left torn is closed by the next one, and skipped.
    The file is opened anew each time, so that what another machine has appended to a shared folder is seen.

    Args:
        path: The file; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behind = True
        """True until a reading has reached the end of the file."""
        self._at = 0

    def read(self, most_bytes: float = math.inf) -> Iterator[dict[str, Any]]:
        """Yield the new records; entries get no step groups, which are most of a line.

        Args:
            most_bytes: About where this reading stops; the next one goes on from there.

        Raises:
            OSError: The file is there and cannot be read.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            rest, start = b"", self._at
            file.seek(start)
            while self._at - start < most_bytes:
                chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    self.behind = False
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._at += len(line) + 1
                    record = parse_line(line, short=True)
                    if record is not None:
                        yield record
