"""What grid servers have answered, on disk: one file a zone and server, shared by all processes of a user.

The file holds checked values and when each question was answered, never a key. One process at a time asks the
server, under a lock beside the file; the others read what it has found. A file that is torn, odd or of another
version counts as none.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from greentrain.carbon.series import Reading, Series
from greentrain.carbon.source import SourceFacts, intensity
from greentrain.types import CarbonKind
from greentrain.utils.files import ENV_DIR, cache_folder
from greentrain.utils.never_raise import warn

FORMAT: Final = 1
_SKEW_S: Final = 60.0
"""Two machines that share the file may differ by this much (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How asking went, of one question or of the server as a whole."""

    fetched_unix_s: float | None = None
    """When the last answer came; None before the first."""
    failures: int = 0
    """In a row."""
    rest_until_unix_s: float = 0.0
    """Not to be asked before this."""

    def is_due(self, now_unix_s: float, fresh_s: float, longest_rest_s: float) -> bool:
        """Return True if it is time to ask. A clock that jumped never stops it for long."""
        if 0 < self.rest_until_unix_s - now_unix_s <= longest_rest_s:
            return False
        return self.fetched_unix_s is None or not -_SKEW_S <= now_unix_s - self.fetched_unix_s < fresh_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that is known of one zone from one server."""

    series: Series = field(default_factory=Series)
    asked: Mapping[str, Asked] = field(default_factory=dict)
    """By name of the question; "" is the server as a whole."""

    def of(self, name: str) -> Asked:
        """Return how asking one question went."""
        return self.asked.get(name) or Asked()


class GridCache:
    """The file of one source.

    Args:
        facts: Whose answers.
        folder: Where; None: ``grid`` in the user's cache folder.
    """

    def __init__(self, facts: SourceFacts, folder: Path | None) -> None:
        self._identity = {"format": FORMAT, "source": facts.name, "zone": facts.zone, "variant": facts.variant}
        digest = hashlib.sha256(f"{facts.base_url} {facts.variant}".encode()).hexdigest()[:8]
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", f"{facts.name}-{facts.zone}")
        self._name = f"{plain}-{digest}.json"
        self._folder = folder
        self._seen: tuple[int, ...] | None = None
        self._broken = False

    @property
    def path(self) -> Path:
        """The file.

        Raises:
            RuntimeError: No folder is known.
        """
        return (cache_folder() / "grid" if self._folder is None else self._folder) / self._name

    def read(self) -> Known | None:
        """Return what the file holds; None where it has not changed since, or holds nothing of use. Never raises."""
        try:
            stat = self.path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return None
            self._seen = seen
            return _known(json.loads(self.path.read_bytes()), self._identity)
        except (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError):
            return None

    def write(self, known: Known) -> None:
        """Put what is known into the file, whole or not at all. Never raises."""
        if self._broken:
            return
        data = {
            **self._identity,
            "asked": {n: [a.fetched_unix_s, a.failures, a.rest_until_unix_s] for n, a in known.asked.items()},
            "readings": [list(r) for r in (*known.series.known, *known.series.ahead)],
        }
        try:
            path = self.path
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.part")
            try:
                part.write_text(json.dumps(data, separators=(",", ":")), encoding="utf-8")
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            stat = path.stat()
            self._seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except (OSError, RuntimeError) as error:
            self._broken = True
            warn(
                f"answers of {self._identity['source']} cannot be kept on disk ({error}), so every process asks for"
                f" itself; set carbon.cache_dir or {ENV_DIR} to a folder that can be written to"
            )

    @contextlib.contextmanager
    def claim(self) -> Iterator[bool]:
        """Give True to the one process that may ask; to all of them where there is no file to lock."""
        lock: FileLock | None = None
        try:
            lock = FileLock(f"{self.path}.lock", thread_local=False)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        except (OSError, RuntimeError, NotImplementedError):
            lock = None
        try:
            yield True
        finally:
            if lock is not None:
                lock.release()


def _known(data: Any, identity: Mapping[str, Any]) -> Known:
    """Return what a file holds.

    Raises:
        ValueError: It is of another version or source, or a value in it is wrong.
        LookupError, TypeError, AttributeError: It is of another shape.
    """
    if any(data[key] != value for key, value in identity.items()):
        raise ValueError("the file is of another version or source")
    readings = []
    for t0, t1, value, kind, issued, fetched in data["readings"]:
        sound = intensity(value)
        if sound is None:
            raise ValueError("a value is missing")
        issued_unix_s = None if issued is None else float(issued)
        readings.append(Reading(float(t0), float(t1), sound, CarbonKind(kind), issued_unix_s, float(fetched)))
    asked = {
        str(name): Asked(
            fetched_unix_s=None if fetched is None else float(fetched),
            failures=int(failures),
            rest_until_unix_s=float(rest),
        )
        for name, (fetched, failures, rest) in data["asked"].items()
    }
    return Known(series=Series().plus(readings), asked=asked)
