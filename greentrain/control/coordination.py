"""How rank 0 tells the other ranks what it has decided: through the key-value store of torch.distributed.

Nothing here is a collective, so a rank that left, or one that has no GPU to offer, does not hang the job's own
communication, and nobody waits for a rank that does not come::

    rank 0, at its step n:   publishes "after step n + LEAD do X"
    the others:              look once a step, from a step that the message before has told; hear it, and say so
    the first at n + LEAD:   seals it for all: done if every rank has heard it in time, else by none of them

So all ranks do the same after the same step, or nothing at all, whoever is slow; the store's compare-and-set makes the
first seal the only one. What was refused is said again with twice the lead, a few times.
"""

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from greentrain.types import Topology
from greentrain.utils.topology import job_store

WAIT_S: Final = 1.0
"""Longest wait of a training thread for another rank (s): what GreenTrain may cost a step when a rank is in trouble."""
SILENT_S: Final = 600.0
"""How long ranks look for rank 0's next message, step by step, before they say that there is none (s): as long as NCCL
waits for a collective (torch.distributed, init_process_group, timeout), which would end the job then."""
LEAD: Final = 3
"""Steps from a message to the deed: of ranks that train together one may be a step ahead of rank 0, and needs another
one to hear."""
TRIES: Final = 6
"""Refusals in a row after which nothing is agreed any more; the last lead is 32 times LEAD."""

HALFWAY: Final = 0.5
"""Share of the steps to the next decision after which ranks look again how far it is: step times change."""


class RankZeroChannel:
    """Messages between rank 0 and all ranks of one run.

    Args:
        run_id: Keeps the messages of several runs in one job apart. Every rank makes equally many channels of one name.
        place: Place of this rank.
        store: The store; None: torch's own, if there is a process group.
        wait_s: Longest wait for another rank, where a call names no other (s).
    """

    def __init__(self, run_id: str, place: Topology, store: Any = None, wait_s: float = WAIT_S) -> None:
        self.alone = place.world_size == 1
        """True for the only rank of a job."""
        self.first = place.rank == 0
        """True for rank 0."""
        self.place = place
        """Place of this rank."""
        self.wait_s = wait_s
        """Longest wait for another rank (s)."""
        self._store = store if store is not None or self.alone else job_store()
        self._prefix = f"greentrain/meeting/{run_id}"
        if self._store is not None:  # a run that goes on in the same process group must not hear its first part again
            self._prefix += f"/{self._store.add(f'{self._prefix}/of/{place.rank}', 1)}"
        self._nth = 0
        self._own: Any = None

    @property
    def possible(self) -> bool:
        """False where several ranks have no store, and so cannot agree on anything."""
        return self.alone or self._store is not None

    # -- without a wait ------------------------------------------------------------------------------------------

    def post(self, nth: int, message: Mapping[str, Any]) -> None:
        """Publish rank 0's nth message, in plain JSON types."""
        if not self.alone:
            self._store.set(self._key(nth), json.dumps(message))

    def heard(self, nth: int) -> Mapping[str, Any] | None:
        """Return rank 0's nth message; None where it is not there yet."""
        key = self._key(nth)
        return _mapping(self._store.get(key)) if self._store.check([key]) else None

    def confirm(self, nth: int) -> None:
        """Tell that this rank has heard the nth message in time."""
        self._store.add(f"{self._key(nth)}/heard", 1)

    def seal(self, nth: int) -> bool:
        """Return whether all ranks do what the nth message says, the same on all of them: the first to ask decides."""
        all_know = self._store.add(f"{self._key(nth)}/heard", 0) == self.place.world_size - 1
        word = self._store.compare_set(f"{self._key(nth)}/sealed", "", "do" if all_know else "leave")
        return bool(word == b"do")

    def forget(self, nth: int) -> None:
        """Delete the nth message, which every rank has sealed: a run of months has millions."""
        for key in (self._key(nth), f"{self._key(nth)}/heard", f"{self._key(nth)}/sealed"):
            self._store.delete_key(key)

    def hand_in(self, name: str, value: Any) -> None:
        """Put this rank's value, in plain JSON types, where rank 0 finds it with :meth:`handed_in`."""
        if self._store is not None:
            self._store.set(f"{self._prefix}/{name}/{self.place.rank}", json.dumps(value))
        self._own = value

    def handed_in(self, name: str) -> list[Any] | None:
        """Return what all ranks have handed in under a name, in their order; None while one is missing."""
        if self.alone or self._store is None:
            return [self._own]
        keys = [f"{self._prefix}/{name}/{rank}" for rank in range(self.place.world_size)]
        return [json.loads(text) for text in self._store.multi_get(keys)] if self._store.check(keys) else None

    # -- with a bounded wait -------------------------------------------------------------------------------------

    def broadcast(self, message: Mapping[str, Any] | None, wait_s: float | None = None) -> Mapping[str, Any] | None:
        """Broadcast rank 0's message to all ranks; every rank calls it equally often.

        Args:
            message: Message of rank 0, in plain JSON types; ignored on the other ranks.
            wait_s: Longest wait of the others (s); None: that of the channel.

        Returns:
            The message; None where it did not arrive in time.
        """
        # Keys are counted: none can take one message for another, as all call this equally often, also with nothing to
        # say. It is no collective, which would hang where a rank is inside another one, or has left already.
        self._nth += 1
        key = f"{self._prefix}/all/{self._nth}"
        if self.alone or self.first:
            if self._store is not None:
                self._store.set(key, json.dumps(message))
            return message
        try:
            self._store.wait([key], timedelta(seconds=self.wait_s if wait_s is None else wait_s))
            return _mapping(self._store.get(key))
        except Exception:  # timed out, or the store's host is gone: training goes on, it must not end
            return None

    def everybody(self, value: Any, wait_s: float | None = None) -> list[Any]:
        """Return a value of every rank, in their order, in plain JSON types; all ranks call it equally often.

        Args:
            value: That of this rank.
            wait_s: Longest wait (s); None: that of the channel.

        Raises:
            TimeoutError: A rank did not come in time.
        """
        if self.alone or self._store is None:
            return [value]
        wait_s = self.wait_s if wait_s is None else wait_s
        name, found = f"each/{self._nth + 1}", None
        try:
            self.hand_in(name, value)
            if self.first:  # one rank reads all and tells the others: each with each would be a million reads
                keys = [f"{self._prefix}/{name}/{rank}" for rank in range(self.place.world_size)]
                self._store.wait(keys, timedelta(seconds=wait_s))
                found = {"of": self.handed_in(name)}
        except Exception:
            found = None
        answer = self.broadcast(found, wait_s)
        if answer is None:
            raise TimeoutError(f"not every one of {self.place.world_size} ranks came within {wait_s:g} s")
        return list(answer["of"])

    def _key(self, nth: int) -> str:
        return f"{self._prefix}/{nth}"


Words = tuple[Mapping[str, Any] | None, int]
"""What rank 0 has to say, None: nothing, and after how many steps it looks again."""


class SyncSchedule:
    """What all ranks do after which step: rank 0 says so, nobody waits.

    A single rank has no one to agree with, but a look at the clock costs more than a comparison of two numbers.

    Args:
        channel: Channel of the ranks.
        clock_s: Time (s): of any clock, by which ``is_due`` and ``steps_until`` are asked.
        warn: Called once with a sentence where the ranks cannot agree.
    """

    def __init__(
        self, channel: RankZeroChannel, clock_s: Callable[[], float], warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._channel, self._clock_s, self._warn = channel, clock_s, warn
        self.steps = 0
        """Optimizer steps counted."""
        self.over = not channel.possible
        """True when nothing is agreed any more."""
        if self.over:
            warn(
                f"{channel.place.world_size} ranks have no process group, so they cannot agree: each is measured, and"
                " there is no plan, no profile of gears, no end by a budget or a launcher's notice"
            )
        self._from = (0, clock_s())
        self._step_s = 0.0
        self._look = 0  # no message before this step
        self._nth = self._kept = 1  # of the next message, and the oldest in the store
        self._pending: tuple[int, Mapping[str, Any]] | None = None  # the step after which to do what
        self._lead, self._refused = LEAD, 0
        self._since_s: float | None = None  # no message since

    def stepped(self, say: Callable[[], Words]) -> Mapping[str, Any] | None:
        """Note the end of a step, on every rank.

        Args:
            say: Asked on rank 0, when a message may be sent; asked again where not all ranks have heard it in time.

        Returns:
            What all ranks do after this step; None: nothing.
        """
        self.steps += 1
        if self.over:
            return None
        try:
            if self._pending is None and self.steps >= self._look:
                if self._channel.first:
                    return self._speak(say)
                self._listen()
            if self._pending is not None and self.steps >= self._pending[0]:
                return self._seal(*self._pending)
        except Exception as error:
            if not self.over:  # the store is gone; a fault of ``say`` is its caller's to tell
                self._end(f"the job's store does not answer ({error!r})")
            else:
                raise
        return None

    def hear(self) -> Mapping[str, Any] | None:
        """Return what rank 0 has said while all ranks stand still, at the same step; None: nothing yet."""
        if self._channel.first or self.over:
            return None
        try:
            message = self._channel.heard(self._nth)
        except Exception as error:
            self._end(f"the job's store does not answer ({error!r})")
            return None
        return None if message is None else self._take(message)

    def say(self, message: Mapping[str, Any], steps: int) -> None:
        """Tell on rank 0 what all ranks, which stand still at the same step, do now.

        Args:
            message: In plain JSON types.
            steps: After how many steps rank 0 looks again.
        """
        self._publish({"do": message}, steps)
        self._nth += 1

    def close(self) -> None:
        """Agree on nothing any more; rank 0's end is that of all."""
        if not self.over and self._channel.first:
            self._nth += self._pending is not None
            with contextlib.suppress(Exception):  # the store may have gone before
                self._publish({"over": True}, 1 << 62)
        self.over = True

    # -- when to look again ----------------------------------------------------------------------------------------

    def look_now(self) -> None:
        """Look at the end of the next step, on a rank that is alone; several look when rank 0 has said they would."""
        if self._channel.alone:
            self._look = 0

    def restart(self) -> None:
        """Measure step times from here on: what was before was no training."""
        self._step_s = self.step_s
        self._from = (self.steps, self._clock_s())

    @property
    def step_s(self) -> float:
        """How long a step takes (s); 0 where nobody knows yet."""
        steps, since_s = self._from
        done = self.steps - steps
        return (self._clock_s() - since_s) / done if done > 0 else self._step_s

    def is_due(self, t_s: float) -> bool:
        """Return whether a time has come, to the nearest step."""
        return self._clock_s() >= t_s - self.step_s / 2

    def steps_until(self, t_s: float) -> int:
        """Return after how many steps to look again whether a time has come."""
        # Ranks can only agree on a step, as their clocks differ, and step times change: so they look again half way,
        # and what rank 0 estimates from its own clock all ranks take over as a number of steps.
        if not self.step_s:
            return 1
        left = (t_s - self._clock_s()) / self.step_s
        seen = 1 + 2 * (self.steps - self._from[0])  # a time from a few steps is not trusted for many
        return max(1, min(seen, math.ceil(left) if left < 4 else int(left * HALFWAY)))

    # -- inside ------------------------------------------------------------------------------------------------

    def _speak(self, say: Callable[[], Words]) -> Mapping[str, Any] | None:
        try:
            message, steps = say()
        except Exception:
            self.close()  # no rank looks for what rank 0 could not decide
            raise
        if self._channel.alone:
            self._look = self.steps + steps
            return message
        if message is None:
            self._publish({}, steps)
            return None
        at = self.steps + self._lead
        self._channel.post(self._nth, {"do": message, "at": at, "look": max(self.steps + steps, at + 1)})
        self._look, self._pending = max(self.steps + steps, at + 1), (at, message)
        return None

    def _publish(self, message: Mapping[str, Any], steps: int) -> None:
        self._look = self.steps + steps
        self._channel.post(self._nth, {**message, "look": self._look})

    def _listen(self) -> None:
        while self.steps >= self._look and self._pending is None and not self.over:
            message = self._channel.heard(self._nth)
            if message is None or ("do" not in message and int(message["look"]) <= self._look):
                self._since_s = self._clock_s() if self._since_s is None else self._since_s
                if self._clock_s() - self._since_s > SILENT_S:
                    self._end(f"rank 0 has said nothing for {SILENT_S:g} s")
                return
            self._take(message)

    def _take(self, message: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Note a message; return what is to be done at once."""
        self._since_s = None
        if message.get("over"):
            self.over = True
            return None
        self._look = int(message["look"])
        if "do" not in message:  # one deed has one number: until then when to look is written over
            return None
        if "at" not in message:
            self._nth += 1
            deed: Mapping[str, Any] = message["do"]
            return deed
        self._pending = (int(message["at"]), message["do"])
        if self.steps < self._pending[0]:
            self._channel.confirm(self._nth)
        return None

    def _seal(self, at: int, message: Mapping[str, Any]) -> Mapping[str, Any] | None:
        agreed = self._channel.seal(self._nth)
        self._pending = None
        self._nth += 1
        if agreed:
            while self._channel.first and self._kept < self._nth - 1:  # who has heard this is through with the others
                self._channel.forget(self._kept)
                self._kept += 1
            self._lead, self._refused = LEAD, 0
            return message
        self._look, self._lead, self._refused = at + 1, 2 * self._lead, self._refused + 1
        if self._refused >= TRIES:
            self._end(f"{TRIES} times not all of {self._channel.place.world_size} ranks heard rank 0 in time")
        return None

    def _end(self, why: str) -> None:
        self.over = True
        self._warn(f"the ranks cannot agree any more, as {why}: the run goes on, and is measured only")


def _mapping(text: bytes) -> Mapping[str, Any] | None:
    message = json.loads(text)
    return message if isinstance(message, dict) else None
