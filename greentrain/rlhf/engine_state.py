"""What the parts of an engine share: its passes, room for so many at a time, the health of the devices, the sums.

Gives work to a queue that is full, from a thread that may wait.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Result
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.errors import DeviceLostError, QueueFullError
from greentrain.rlhf.errors import PassTimeoutError
from greentrain.rlhf.frozen_pass import FrozenPass
from greentrain.rlhf.health import Health
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.rlhf.stats import Counts, PassStats
from greentrain.utils.never_raise import warn


class BackgroundQueue:
    """Runs jobs in order in a thread of its own, which is there only while there are any.

    A part that fails on a device is redone elsewhere. It fails in the device's own thread, where nobody may wait for
    another queue.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._running = False

    def add(self, job: Callable[[], None]) -> None:
        """Run a job soon. It must not raise.

        Raises:
            RuntimeError: No thread can be started: the interpreter is ending.
        """
        with self._lock:
            self._jobs.append(job)
            if self._running:
                return
            self._running = True
        try:
            threading.Thread(target=self._work, name="greentrain-rlhf-handover", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._running = False
                self._jobs.clear()
            raise

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running = False
                    return
                job = self._jobs.popleft()
            job()
            del job  # and the batch that it holds


class UnderWay(Protocol):
    """A part that was submitted and is not done."""

    kind: PassKind
    begun_s: float

    @property
    def at(self) -> Place:
        """Where it is."""
        ...

    def settled(self, limit_s: float | None) -> None:
        """Wait until it is done, whatever becomes of it."""
        ...

    def late(self, why: str) -> bool:
        """Give it to the other place; return False if there is none."""
        ...

    def cancel(self) -> bool:
        """Cancel it where it has not begun to run; return True if so."""
        ...


class EngineState:
    """One engine's. Any thread may call.

    Args:
        passes: By kind.
        depth: Parts that may be under way.
        timeout_s: After which a device counts as hanging (s); None: never.
    """

    def __init__(self, passes: dict[PassKind, FrozenPass], depth: int, timeout_s: float | None) -> None:
        self.passes = passes
        self.counts = Counts()
        self.timeout_s = timeout_s
        self.stale: set[tuple[PassKind, Place]] = set()
        """Where a pass has weights that it should not have any more."""
        self._closed = False
        self._owner_pid = os.getpid()
        self._depth = depth
        self._room = threading.BoundedSemaphore(depth)
        self._lock = threading.Lock()
        self._under_way: set[UnderWay] = set()
        self._health: dict[int, Health] = {}
        self._told: set[str] = set()
        self._here = threading.local()
        self._handover = BackgroundQueue()
        for one in passes.values():
            for placement in (one.device, *([one.home] if one.home else [])):
                self._health.setdefault(id(placement.device), Health(placement.device))

    def of(self, kind: PassKind) -> FrozenPass:
        """Return the pass of a kind.

        Raises:
            ConfigError: There is none.
        """
        try:
            return self.passes[kind]
        except KeyError:
            known = ", ".join(self.passes)
            raise ConfigError(f"the engine has no {kind} pass, only {known}: give one to OffloadEngine") from None

    def check_process(self) -> None:
        """Raise in a process that was forked from the engine's.

        Raises:
            DeviceLostError: It has none of the threads that the devices work with.
        """
        if os.getpid() != self._owner_pid:
            raise DeviceLostError("a forked process has no engine: make one in it, or use the one of its parent there")

    def close(self) -> None:
        """Cancel what has not begun; what fails from now on is not redone, and no word is said about it."""
        if os.getpid() != self._owner_pid:
            return
        self._closed = True
        with self._lock:
            left = list(self._under_way)
        for part in left:
            part.cancel()

    # Where

    def health(self, device: OffloadDevice) -> Health:
        """Return what is known of a device of a pass."""
        return self._health[id(device)]

    def may(self, kind: PassKind, place: Place) -> bool:
        """Return True if a failed part may be given to a place."""
        what = self.of(kind)
        if self._closed or (place is Place.HOME and what.home is None) or (kind, place) in self.stale:
            return False
        health = self.health(what.at(place).device)
        return not health.lost and not health.hanging

    def chosen(self, kind: PassKind, at: Place) -> Place:
        """Return where a new part goes: where it should, unless that is of no use and the other place is."""
        other = Place.HOME if at is Place.DEVICE else Place.DEVICE
        if not self.may(kind, other):
            return at
        usable = (kind, at) not in self.stale and self.health(self.of(kind).at(at).device).asked()
        return at if usable else other

    # Room

    def enter(self, part: UnderWay) -> None:
        """Wait for room and take it.

        Raises:
            QueueFullError: There is none, and this is a callback, for which nobody would make any.
            PassTimeoutError: None was made in time: a device hangs, and its parts have no other place.
        """
        if self.in_callback:
            if not self._room.acquire(blocking=False):
                raise QueueFullError(
                    f"{self._depth} parts are under way and a callback cannot wait for room: raise depth, or submit "
                    "from another thread"
                )
        else:
            while not self._room.acquire(timeout=self.timeout_s):
                if (stuck := self._older_than(self.timeout_s or 0.0)) and not self.late(stuck, self.timeout_s or 0.0):
                    raise PassTimeoutError(
                        f"{self._depth} parts are under way and none ended within {self.timeout_s:g} s: the device "
                        "hangs or is too slow; raise timeout_s, or give the pass a home to be redone on"
                    )
        with self._lock:
            self._under_way.add(part)

    def leave(self, part: UnderWay) -> None:
        """Give the room of a part back. Once, or not at all if it never entered."""
        with self._lock:
            if part not in self._under_way:
                return
            self._under_way.remove(part)
        self._room.release()

    def under_way(self, kind: PassKind) -> list[UnderWay]:
        """Return the parts of a kind that are not done."""
        with self._lock:
            return [part for part in self._under_way if part.kind is kind]

    def late(self, some: Iterable[UnderWay], limit_s: float) -> bool:
        """Give parts that take too long to their other place, and with them what waits behind them.

        Returns:
            True if for any of them there is one.
        """
        why = f"no answer within {limit_s:g} s"
        moved = [part.late(why) for part in some]
        with self._lock:
            others = list(self._under_way)
        for part in others:
            if self.health(self.of(part.kind).at(part.at).device).hanging:
                part.late(why)
        return any(moved)

    # What happens

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """Mark the thread as one that a device needs for its next batch."""
        before = self.in_callback
        self._here.delivering = True
        try:
            yield
        finally:
            self._here.delivering = before

    @property
    def in_callback(self) -> bool:
        """True in a thread that delivers a result just now."""
        return getattr(self._here, "delivering", False)

    def later(self, job: Callable[[], None]) -> None:
        """Run a job in a thread that may wait."""
        self._handover.add(job)

    def worked(self, kind: PassKind, place: Place, sequences: int, tokens: int, result: Result) -> None:
        """Count a result."""
        what = self.of(kind)
        self.counts.add(kind, PassStats(busy_s=result.run_s, at_home=int(place is Place.HOME)))
        self.health(what.at(place).device).worked()
        if place is Place.DEVICE and what.part_size is not None:
            self._harmless(partial(what.part_size.ran, sequences, tokens, result.run_s))

    def failed(self, kind: PassKind, place: Place, other: Place | None, error: Exception, sequences: int) -> None:
        """Count a failure, remember a device that is lost, and warn once of each kind of trouble."""
        what = self.of(kind)
        health = self.health(what.at(place).device)
        if not isinstance(error, PassTimeoutError):  # which its health knows of already
            health.failed(error)
        if place is Place.DEVICE and what.part_size is not None:
            self._harmless(partial(what.part_size.failed, sequences))
        if other is None:
            return
        self.counts.add(kind, PassStats(redone=1))
        there = self.health(what.at(other).device)
        alike = "with the same bits" if health.info.exact and there.info.exact else "whose numbers differ by rounding"
        trouble = "is lost" if health.lost else "failed"
        further = ", and so is what comes" if health.lost else ""
        self.tell(
            f"{health.info.uid} {trouble}",
            f"{health.info.name} {trouble} ({error}); its {kind} pass is redone on {there.info.name}, {alike}{further}",
        )

    def tell(self, key: str, text: str) -> None:
        """Warn, once a key."""
        with self._lock:
            told = key in self._told
            self._told.add(key)
        if not told:
            warn(text)

    def _harmless(self, hear: Callable[[], None]) -> None:
        try:
            hear()
        except Exception as error:
            self.tell("part size", f"the size of parts is not measured on: {error!r}")

    def _older_than(self, age_s: float) -> list[UnderWay]:
        now_s = time.monotonic()
        with self._lock:
            return [part for part in self._under_way if now_s - part.begun_s >= age_s]
