"""Versions of the run folder's files: which are read, and what becomes of records that a newer version added.

Keys and kinds of record are only ever added within a version, so a reader that does not know one leaves it out and
says so once. ``FORMAT_VERSION`` rises when leaving something out would make a figure wrong; then nothing is read.
docs/run-format.md says what every record holds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from greentrain.errors import NewerFormatError, RunFolderError
from greentrain.types import FORMAT_VERSION

NOTE: Final = "note"
"""Name of the event that a reader adds where it left something out."""
_WRITTEN: Final = {
    "open": "format run_id rank world_size local_rank local_world_size host pid t sensors carried excluded",
    "sensors": "sensors excluded",
    "entry": "t0 t1 steps tokens samples devices phase_s phase_incl_j carbon pue pue_from op_g emb_g gears sum"
    " step_groups",
    "close": "t reason totals",
}
_INSIDE: Final = {"entry": {"weight"}}  # of greentrain.thinning, in memory only
KINDS: Final[Mapping[str, frozenset[str] | None]] = {
    **{kind: frozenset({"kind", *names.split()}) for kind, names in _WRITTEN.items()},
    "event": None,  # beside kind, t, name and text it has facts of its own, by its name
}
"""Kinds of journal record with their fields."""
_MOST_NAMES: Final = 8


def check_format(found: Any, path: Path) -> None:
    """Check that a file is of a version that this reader knows.

    Raises:
        NewerFormatError: A newer GreenTrain wrote it.
        RunFolderError: It names no version.
    """
    if type(found) is not int or found < 1:
        raise RunFolderError(f"{path} has format {found!r}, which is no version: it is damaged, or no file of a run")
    if found > FORMAT_VERSION:
        raise NewerFormatError(
            f"{path} has format {found}, this GreenTrain reads up to {FORMAT_VERSION}: upgrade it with"
            " pip install -U greentrain-torch"
        )


class Unknown:
    """What a reader met in one journal and did not know."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}

    def look(self, record: Mapping[str, Any]) -> None:
        """Note the kind of a record, or its fields, where they are unknown."""
        kind = str(record["kind"])
        if kind not in KINDS:
            self._count(f"records of kind {kind!r}")
            return
        fields = KINDS[kind]
        if fields is not None and not record.keys() <= fields:
            for name in sorted(record.keys() - fields - _INSIDE.get(kind, set())):
                self._count(f"{kind}.{name}")

    def note(self, t_unix_s: float) -> dict[str, Any] | None:
        """Return one event that names all of it; None where all was known.

        Args:
            t_unix_s: Time that the event gets (s since the epoch).
        """
        if not self._names:
            return None
        told = [f"{name} ({times} times)" for name, times in list(self._names.items())[:_MOST_NAMES]]
        more = len(self._names) - len(told)
        text = ", ".join(told) + (f" and {more} more" if more else "")
        return {
            "kind": "event",
            "t": t_unix_s,
            "name": NOTE,
            "text": f"left out, as this version does not know it: {text}; a newer greentrain-torch shows it",
        }

    def _count(self, name: str) -> None:
        self._names[name] = self._names.get(name, 0) + 1
