"""How rank 0 tells the other ranks what it has decided: through the key-value store of torch.distributed.

At a step on which all have agreed before, rank 0 writes and the others read; no other step costs anything. It is not a
collective, so a rank that left, or one that has no GPU to offer, does not hang the job's own communication.
"""

import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from greentrain.types import Topology

WAIT_S: Final = 60.0
"""How long a rank waits for rank 0's word at a step on which they have agreed (s): ranks of one job are seldom further
apart, and after it the rank goes on as before."""


class Meetings:
    """A sequence of messages from rank 0 to all ranks of one run.

    Args:
        run_id: Keeps the words of several runs in one job apart.
        place: Place of this rank.
        store: The store; None: torch's own, if there is a process group.
    """

    def __init__(self, run_id: str, place: Topology, store: Any = None) -> None:
        self._alone = place.world_size == 1
        self._first = place.rank == 0
        self._store = store if store is not None or self._alone else _store()
        self._prefix = f"greentrain/meeting/{run_id}"
        self._nth = 0

    @property
    def possible(self) -> bool:
        """False where several ranks have no store, and so cannot agree on anything."""
        return self._alone or self._store is not None

    def share(self, word: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Hand rank 0's word to all ranks; every rank calls it equally often.

        Args:
            word: What rank 0 says, in plain JSON types; ignored elsewhere.

        Returns:
            The word; None where it was not heard in time.
        """
        self._nth += 1
        if self._alone or self._first:
            self._tell(word)
            return word
        key = self._key(self._nth)
        try:
            self._store.wait([key], timedelta(seconds=WAIT_S))
            return _mapping(self._store.get(key))
        except Exception:
            return None

    def heard(self) -> bool:
        """Return whether the next word is there already, for a rank that waits without a step to take."""
        if self._alone or self._first or self._store is None:
            return False
        return bool(self._store.check([self._key(self._nth + 1)]))

    def _tell(self, word: Mapping[str, Any] | None) -> None:
        if self._store is None or self._alone:
            return
        self._store.set(self._key(self._nth), json.dumps(word))

    def _key(self, nth: int) -> str:
        return f"{self._prefix}/{nth}"


def _mapping(text: bytes) -> Mapping[str, Any] | None:
    word = json.loads(text)
    return word if isinstance(word, dict) else None


def _store() -> Any:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    try:
        return sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
    except Exception:
        return None
