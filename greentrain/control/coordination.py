"""How rank 0 tells the other ranks what it has decided: through the key-value store of torch.distributed.

At a step on which all have agreed before, rank 0 writes and the others read; no other step costs anything. It is not a
collective, so a rank that left, or one that has no GPU to offer, does not hang the job's own communication.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from greentrain.types import Topology

PAUSED_PHASE: Final = "paused"
"""Name of the phase to which the time is booked in which ranks stand still."""
WAIT_S: Final = 600.0
"""How long a rank waits for rank 0's message at a step on which they have agreed (s): as long as NCCL waits for a
collective (torch.distributed, init_process_group, timeout), which would end the job then."""

HALFWAY: Final = 0.5
"""Share of the steps to the next decision after which ranks look again how far it is: step times change."""


class SyncSchedule:
    """At which step all ranks meet next: agreed in steps, as only these are the same everywhere, estimated from time.

    A single rank has no one to agree with, but a look at the clock costs more than a comparison of two numbers.

    Args:
        unix_s: Time (s since the epoch).
    """

    def __init__(self, unix_s: Callable[[], float]) -> None:
        self._unix_s = unix_s
        self.steps = 0
        """Optimizer steps counted."""
        self._next = 0
        self._from = (0, unix_s())
        self._step_s = 0.0

    def step(self) -> bool:
        """Count a step; return True if all meet after it."""
        self.steps += 1
        return self.steps >= self._next

    def meet_after(self, steps: int) -> None:
        """Agree on the next step."""
        self._next = self.steps + steps

    def restart(self) -> None:
        """Measure step times from here on: what was before was no training."""
        self._step_s = self.step_s
        self._from = (self.steps, self._unix_s())

    @property
    def step_s(self) -> float:
        """How long a step takes (s); 0 where nobody knows yet."""
        steps, since_s = self._from
        done = self.steps - steps
        return (self._unix_s() - since_s) / done if done > 0 else self._step_s

    def is_due(self, unix_s: float) -> bool:
        """Return whether a time has come, to the nearest step."""
        return self._unix_s() >= unix_s - self.step_s / 2

    def steps_until(self, unix_s: float) -> int:
        """Return after how many steps to look again whether a time has come."""
        # Ranks can only agree on a step, as their clocks differ, and step times change: so they look again half way,
        # and what rank 0 estimates from its own clock all ranks take over as a number of steps.
        if not self.step_s:
            return 1
        left = (unix_s - self._unix_s()) / self.step_s
        seen = 1 + 2 * (self.steps - self._from[0])  # a time from a few steps is not trusted for many
        return max(1, min(seen, math.ceil(left) if left < 4 else int(left * HALFWAY)))


class RankZeroChannel:
    """A sequence of messages from rank 0 to all ranks of one run.

    Args:
        run_id: Keeps the messages of several runs in one job apart. Every rank makes equally many channels of one name.
        place: Place of this rank.
        store: The store; None: torch's own, if there is a process group.
    """

    def __init__(self, run_id: str, place: Topology, store: Any = None) -> None:
        self._alone = place.world_size == 1
        self._first = place.rank == 0
        self._store = store if store is not None or self._alone else _store()
        self._prefix = f"greentrain/meeting/{run_id}"
        if self._store is not None:  # a run that goes on in the same process group must not hear its first part again
            self._prefix += f"/{self._store.add(f'{self._prefix}/of/{place.rank}', 1)}"
        self._nth = 0

    @property
    def possible(self) -> bool:
        """False where several ranks have no store, and so cannot agree on anything."""
        return self._alone or self._store is not None

    def broadcast(self, message: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Broadcast rank 0's message to all ranks; every rank calls it equally often.

        Args:
            message: Message of rank 0, in plain JSON types; ignored on the other ranks.

        Returns:
            The message; None where it did not arrive in time.
        """
        # Keys are counted, not named by step: a rank that comes late finds the message still there, and none can take
        # one message for another as long as all call this equally often, also where rank 0 has nothing to say.
        self._nth += 1
        if self._alone or self._first:
            self._send(message)
            return message
        key = self._key(self._nth)
        try:
            self._store.wait([key], timedelta(seconds=WAIT_S))
            return _mapping(self._store.get(key))
        except Exception:  # timed out, or the store's host is gone: training goes on without a plan, it must not end
            return None

    def gather(self, rank: int, ranks: int, wait_s: float = WAIT_S) -> bool:
        """Wait until every rank is here; each calls it once, as its last message.

        Args:
            rank: This one.
            ranks: Number of ranks.
            wait_s: Longest wait (s).

        Returns:
            False if not all came in time, or the store is gone.
        """
        if self._alone or self._store is None:
            return self._alone
        # One key a rank and a wait for all, in place of a barrier: a barrier is a collective, and would hang where a
        # rank is inside another one, or has left already.
        keys = [f"{self._prefix}/end/{other}" for other in range(ranks)]
        try:
            self._store.set(keys[rank], "")
            self._store.wait(keys, timedelta(seconds=wait_s))
        except Exception:
            return False
        return True

    def pending(self) -> bool:
        """Return whether the next message is there already, for a rank that waits without a step to take."""
        if self._alone or self._first or self._store is None:
            return False
        return bool(self._store.check([self._key(self._nth + 1)]))

    def _send(self, message: Mapping[str, Any] | None) -> None:
        if self._store is None or self._alone:
            return
        self._store.set(self._key(self._nth), json.dumps(message))

    def _key(self, nth: int) -> str:
        return f"{self._prefix}/{nth}"


def _mapping(text: bytes) -> Mapping[str, Any] | None:
    message = json.loads(text)
    return message if isinstance(message, dict) else None


def _store() -> Any:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    try:
        return sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
    except Exception:
        return None
