"""Runs frozen passes beside the training: submit early, wait late.

:class:`OffloadEngine` cuts a batch into parts. A :class:`PassTask` is one part under way, on the device or, after a
failure, at home; a :class:`Ticket` is what the caller holds until it needs the result. What the parts share is the
:class:`EngineState`: the passes, room for so many parts at a time, and the sums of what was computed and waited for
(:class:`PassStats`). A device that is lost, hangs, or fails again and again is known by its health.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.errors import ArtifactError, BatchError, DeviceError, DeviceLostError, QueueFullError
from greentrain.rlhf.errors import PassCancelledError, PassTimeoutError
from greentrain.rlhf.frozen_pass import FrozenPass, LoadedPass
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.utils.never_raise import warn

PATIENCE: Final = 3
"""Failures in a row after which a device rests, and tries of a part at a place before its error is the caller's."""
LOOK_S: Final = 0.1
"""Between two looks whether a device is there again that a part waits for (s)."""
FIRST_REST: Final = 8
LONGEST_REST: Final = 4096
"""A rest is counted in parts that run elsewhere, and doubles with each further failure."""


class DeviceHealth:
    """Decides whether a device is asked. Any thread may call.

    That a worker which died is replaced is the device's affair: while it says that it is available, it is asked. A
    device hangs as long as a part that was given up is still running on it.
    """

    def __init__(self, device: OffloadDevice) -> None:
        self._device = device
        self.info = device.probe()
        self._lost = False
        self._lock = threading.Lock()
        self._hanging = 0
        self._failures = 0
        self._rest = 0

    @property
    def lost(self) -> bool:
        """True if nothing comes from it, until it says that it is available again."""
        if self._lost and self._available():
            self._lost = False
        return self._lost

    @property
    def hanging(self) -> bool:
        """True while a part that was given up runs on it."""
        return self._hanging > 0

    def asked(self) -> bool:
        """Return True if the next part may go to the device; of a rest, that is one part."""
        with self._lock:
            if self.lost or self._hanging:
                return False
            if self._rest:
                self._rest -= 1
                return False
            return True

    def worked(self) -> None:
        """Note a result."""
        with self._lock:
            self._failures = self._rest = 0

    def failed(self, error: BaseException) -> None:
        """Note a failure."""
        gone = isinstance(error, DeviceLostError) and not self._available()
        with self._lock:
            self._lost = self._lost or gone
            self._another()

    def hangs(self, late: "Future[Result]") -> None:
        """Note a part that runs too long, until it ends."""
        with self._lock:
            self._hanging += 1
            if self._hanging == 1:
                self._another()
        late.add_done_callback(self._ended)

    def _available(self) -> bool:
        try:
            return self._device.probe().available
        except Exception:  # of a device that cannot even say so
            return False

    def _another(self) -> None:
        self._failures += 1
        if self._failures >= PATIENCE:
            self._rest = min(FIRST_REST << min(self._failures - PATIENCE, 16), LONGEST_REST)

    def _ended(self, _: "Future[Result]") -> None:
        with self._lock:
            self._hanging -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PassStats:
    """Sums of one kind of pass. ``a + b`` adds two parts, ``now - then`` is what came between."""

    calls: int = 0
    """Tickets."""
    sequences: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    """Time that devices computed what was then used (s): a part that failed and was redone counts once."""
    wait_s: float = 0.0
    """Time that the training stood at the barrier, or in ``submit`` (s); where two threads stand, it counts once."""
    redone: int = 0
    """Parts that failed at a place and were given to the other, or again to the only one."""
    at_home: int = 0
    """Parts whose results came from home, redone or kept there."""

    def __add__(self, other: "PassStats") -> "PassStats":
        return PassStats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __sub__(self, other: "PassStats") -> "PassStats":
        return PassStats(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})

    @property
    def hidden_fraction(self) -> float | None:
        """Share of the computing time for which nobody waited; None before anything ran."""
        return max(0.0, self.busy_s - self.wait_s) / self.busy_s if self.busy_s else None


class PassCounts:
    """Adds up, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sums: dict[PassKind, PassStats] = {}
        self._standing: Counter[PassKind] = Counter()
        self._since_s: dict[PassKind, float] = {}

    def add(self, kind: PassKind, what: PassStats) -> None:
        """Add to one kind."""
        with self._lock:
            self._sums[kind] = self._sums.get(kind, PassStats()) + what

    @contextlib.contextmanager
    def waiting(self, kind: PassKind) -> Iterator[None]:
        """Count the time inside as waited; a second one at the same time adds nothing to it."""
        with self._lock:
            if not self._standing[kind]:
                self._since_s[kind] = time.perf_counter()
            self._standing[kind] += 1
        try:
            yield
        finally:
            with self._lock:
                self._standing[kind] -= 1
                if not self._standing[kind]:
                    self.add(kind, PassStats(wait_s=time.perf_counter() - self._since_s[kind]))

    def all(self) -> dict[PassKind, PassStats]:
        """Return the sums so far."""
        with self._lock:
            return dict(self._sums)


class EngineState:
    """One engine's. Any thread may call.

    Args:
        passes: Passes by kind.
        depth: Number of parts that may be under way.
        timeout_s: Time after which a device counts as hanging (s); None: never.
    """

    def __init__(self, passes: dict[PassKind, FrozenPass], depth: int, timeout_s: float | None) -> None:
        self.passes = passes
        self.counts = PassCounts()
        self.timeout_s = timeout_s
        self.stale: set[tuple[PassKind, Place]] = set()
        """Where a pass has weights that it should not have any more."""
        self.closed = False
        self._owner_pid = os.getpid()
        self._depth = depth
        self._room = threading.BoundedSemaphore(depth)
        self._lock = threading.Lock()
        self._under_way: set[PassTask] = set()
        self._health: dict[int, DeviceHealth] = {}
        self._told: set[str] = set()
        for one in passes.values():
            for placement in (one.device, *([one.home] if one.home else [])):
                self._health.setdefault(id(placement.device), DeviceHealth(placement.device))

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
        self.closed = True
        with self._lock:
            left = list(self._under_way)
        for part in left:
            part.cancel()

    def health(self, kind: PassKind, place: Place) -> DeviceHealth:
        """Return what is known of the device that a pass has at a place."""
        return self._health[id(self.of(kind).at(place).device)]

    def may(self, kind: PassKind, place: Place, *, waits: bool = False) -> bool:
        """Return True if a part may be given to a place: where it ``waits``, also behind what takes too long there."""
        if self.closed or (place is Place.HOME and self.of(kind).home is None) or (kind, place) in self.stale:
            return False
        health = self.health(kind, place)
        return not health.lost and (waits or not health.hanging)

    def chosen(self, kind: PassKind, at: Place) -> Place:
        """Return where a new part goes: where it should, unless that is of no use and the other place is."""
        other = Place.HOME if at is Place.DEVICE else Place.DEVICE
        if not self.may(kind, other):
            return at
        usable = (kind, at) not in self.stale and self.health(kind, at).asked()
        return at if usable else other

    def enter(self, part: "PassTask") -> None:
        """Wait for room and take it. Where a device hangs, its parts go home, or are waited for if they have none."""
        while not self._room.acquire(timeout=self.timeout_s):
            limit_s, now_s = self.timeout_s or 0.0, time.monotonic()
            with self._lock:
                stuck = [one for one in self._under_way if now_s - one.begun_s >= limit_s]
            if stuck and not self.late(stuck, limit_s):
                self.wait_for(stuck, limit_s)
        with self._lock:
            self._under_way.add(part)

    def leave(self, part: "PassTask") -> None:
        """Give the room of a part back. Once, or not at all if it never entered."""
        with self._lock:
            if part not in self._under_way:
                return
            self._under_way.remove(part)
        self._room.release()

    def under_way(self, kind: PassKind) -> list["PassTask"]:
        """Return the parts of a kind that are not done."""
        with self._lock:
            return [part for part in self._under_way if part.kind is kind]

    def at_devices(self) -> int:
        """Return how many parts wait at a device, or run there, and not at home."""
        with self._lock:
            return sum(part.at is Place.DEVICE for part in self._under_way)

    def late(self, some: Iterable["PassTask"], limit_s: float) -> bool:
        """Give parts that take too long to their other place, and with them what waits behind them.

        Returns:
            True if for any of them there is one.
        """
        why = f"no answer within {limit_s:g} s"
        moved = [part.late(why) for part in some]
        with self._lock:
            others = list(self._under_way)
        for part in others:
            if self.health(part.kind, part.at).hanging:
                part.late(why)
        return any(moved)

    def worked(self, kind: PassKind, place: Place, result: Result) -> None:
        """Count a result."""
        self.counts.add(kind, PassStats(busy_s=result.run_s, at_home=int(place is Place.HOME)))
        self.health(kind, place).worked()

    def failed(self, kind: PassKind, place: Place, error: Exception) -> None:
        """Count a failure, and remember a device that is lost."""
        if not isinstance(error, PassTimeoutError | QueueFullError):  # its health knows of the first, and is well
            self.health(kind, place).failed(error)

    def redone(self, kind: PassKind, place: Place, to: Place, why: Exception) -> None:
        """Count a part that is done again, and warn once of each kind of trouble."""
        health, there = self.health(kind, place), self.health(kind, to)
        self.counts.add(kind, PassStats(redone=1))
        lost = health.lost
        trouble, then = "is lost" if lost else "failed", "training goes on"
        if to is not place:
            alike = (
                "with the same bits" if health.info.exact and there.info.exact else "whose numbers differ by rounding"
            )
            what = f"is redone on {there.info.name}, {alike}{', and so is what comes' if lost else ''}"
        elif lost:
            what, then = "has no home and waits for it", "training goes on when it is there again"
        else:
            what = "is handed in again"
        self.tell(f"{health.info.uid} {trouble}", f"{health.info.name} {trouble} ({why}); its {kind} pass {what}", then)

    def wait_for(self, parts: Sequence["PassTask"], limit_s: float) -> None:
        """Say what is waited for, once a device and pass."""
        for kind, place in {(part.kind, part.at) for part in parts}:
            info, homeless = self.health(kind, place).info, self.of(kind).home is None
            remedy = "; give the pass a home to be redone on, or a longer timeout_s" if homeless else ""
            text = f"{info.name} has worked on a {kind} pass for more than {limit_s:g} s"
            self.tell(f"{info.uid} {kind} slow", f"{text}{remedy}", "training waits as long as it takes")

    def tell(self, key: str, text: str, then: str = "training goes on") -> None:
        """Warn, once a key."""
        with self._lock:
            told = key in self._told
            self._told.add(key)
        if not told:
            warn(text, then)


class PassTask:
    """One part. Its result comes once, from whichever place has it first.

    Args:
        desk: State of the engine.
        kind: Kind of the pass.
        batch: The part; let go of when it is done.
        at: Place where it is tried first, if that is of any use.
    """

    def __init__(self, desk: EngineState, kind: PassKind, batch: Batch, at: Place) -> None:
        self.outer: Future[Result] = Future()
        self.outer.set_running_or_notify_cancel()  # who cancels asks the device, see cancel()
        self.kind = kind
        self.begun_s = time.monotonic()
        self._desk = desk
        self._batch: Batch | None = batch
        self.at = at
        """Where it was given to last."""
        self._lock = threading.Lock()
        self._tries = Counter({at: 1})
        self._inner: Future[Result] | None = None
        self._given_up: tuple[Place, Future[Result]] | None = None  # took too long there, and may yet end
        self._why: Exception | None = None  # it is not where it was tried first
        self._cancelling = False
        self._cancelled = False
        self._settled = False

    def start(self) -> None:
        """Give it to its place, or at once to the other.

        Raises:
            BatchError: It does not fit the model.
            OffloadError: The device failed at once, and so did the other place, or there is none.
        """
        with self._lock:
            self.at = place = self._desk.chosen(self.kind, self.at)
            self._tries = Counter({place: 1})
        try:
            self._hand_in(place, self._desk.timeout_s)
            return
        except BaseException as error:
            if isinstance(error, BatchError) or not isinstance(error, Exception):
                self._settle(error=error)
                raise
            self._next(place, error, self._desk.timeout_s)
        if self.outer.done() and (failure := self.outer.exception()) is not None:
            raise failure

    def settled(self, limit_s: float | None) -> None:
        """Wait until it is done; one that takes longer than ``limit_s`` at a place is given to the other, or left."""
        if wait([self.outer], limit_s).not_done and self._desk.late([self], limit_s or 0.0):
            wait([self.outer], limit_s)

    def late(self, why: str) -> bool:
        """Give it to the other place, because it takes too long; return False if there is none."""
        with self._lock:
            if self._settled:
                return True
            place, inner = self.at, self._inner
            other = self._other()
            if inner is None or other is None:
                return False
            self._moved(other)
        if not inner.cancel():
            self._given_up = place, inner
            self._desk.health(self.kind, place).hangs(inner)
        self._desk.failed(self.kind, place, error := PassTimeoutError(why))
        self._again(place, other, error, 0.0)
        return True

    def cancel(self) -> bool:
        """Cancel it where it has not begun to run; return True if so."""
        with self._lock:
            if self._settled:
                return self._cancelled
            self._cancelling = True
            inner = self._inner
        if inner is None or inner.cancel():
            return self._settle(error=PassCancelledError(f"the {self.kind} pass was cancelled before it ran"))
        with self._lock:
            self._cancelling = False
        return False

    def _hand_in(self, place: Place, patience_s: float | None) -> None:
        batch = self._batch
        if batch is None:
            return
        what = self._desk.of(self.kind)
        if (self.kind, place) in self._desk.stale:
            name = self._desk.health(self.kind, place).info.name
            raise DeviceError(f"{name} did not take the last weights of the {self.kind} pass: replace them again")
        try:
            inner = _submitted(what.at(place), batch, patience_s)
        except DeviceError:
            before, what = what, self._desk.of(self.kind)
            if what is before:
                raise
            inner = _submitted(what.at(place), batch, patience_s)  # its weights were replaced in this moment
        with self._lock:
            wanted = not self._settled and self.at is place
            if wanted:
                self._inner = inner
        if not wanted:
            inner.cancel()
        inner.add_done_callback(partial(self._finished, place, what))

    def _finished(self, place: Place, what: FrozenPass, inner: "Future[Result]") -> None:
        """Take what a device has delivered, in the device's thread."""
        try:
            self._take(place, what, inner)
        except BaseException as error:  # who waits must hear of it
            self._settle(error=error)

    def _take(self, place: Place, what: FrozenPass, inner: "Future[Result]") -> None:
        batch = self._batch
        current = self.at is place
        if batch is None or (inner.cancelled() and (self._cancelling or not current)):
            return
        error = DeviceError("the device dropped the batch") if inner.cancelled() else inner.exception()
        if error is None:
            result = inner.result()
            try:
                fault = result.fault(batch, what.program)
            except Exception as unlike:
                fault = f"something that is no result ({unlike!r})"
            if not fault:
                self._settle(result=result, place=place)
                return
            error = DeviceError(f"{what.at(place).handle.device} returned {fault}")
        if not current:
            return
        if isinstance(error, Exception) and not isinstance(error, BatchError):
            self._next(place, error, 0.0)
        else:
            self._settle(error=error)

    def _next(self, place: Place, error: Exception, patience_s: float | None) -> None:
        """After a failure: give it to the other place, go back to the one that took too long, or settle it."""
        with self._lock:
            if self._settled or self.at is not place:
                return
            self._desk.failed(self.kind, place, error)
            to, given_up = self._other(waits=True), self._given_up
            if to is None and given_up is None:
                to = self._once_more(place, error)
            if to is not None:
                self._moved(to)
            elif given_up is not None:
                (self.at, self._inner), self._given_up = given_up, None
        if to is not None:
            self._again(place, to, error, patience_s)
        elif given_up is None:
            self._settle(error=error)
        else:  # heard once more, as it may have ended while it was not asked for
            given_up[1].add_done_callback(partial(self._finished, given_up[0], self._desk.of(self.kind)))

    def _again(self, place: Place, to: Place, why: Exception, patience_s: float | None) -> None:
        self._why = why
        self._desk.redone(self.kind, place, to, why)
        try:
            if to is not place or not (isinstance(why, QueueFullError) or self._desk.health(self.kind, to).lost):
                self._hand_in(to, patience_s)
                return
        except QueueFullError:
            pass
        except Exception as error:
            self._next(to, error, 0.0)
            return
        # it fails in the device's own thread, where nobody may wait
        threading.Thread(target=self._forced, args=[to], name="greentrain-rlhf-handover", daemon=True).start()

    def _forced(self, place: Place) -> None:
        try:
            while True:  # until the device is there and has room, or cancel() has let go of the batch
                while self._batch is not None and self._desk.health(self.kind, place).lost:
                    time.sleep(LOOK_S)
                with contextlib.suppress(QueueFullError):
                    self._hand_in(place, self._desk.timeout_s)
                    return
        except Exception as error:
            self._next(place, error, 0.0)

    def _once_more(self, place: Place, error: Exception) -> Place | None:
        """Return where it is tried again that failed wherever it could be tried: every pass is pure."""
        if isinstance(error, QueueFullError):
            return place
        for at in (Place.HOME if place is Place.DEVICE else Place.DEVICE, place):
            if self._tries[at] < PATIENCE and self._desk.may(self.kind, at, waits=True):
                return at
        health = self._desk.health(self.kind, place)
        return place if health.lost and health.info.returns and not self._desk.closed else None

    def _other(self, *, waits: bool = False) -> Place | None:
        other = Place.HOME if self.at is Place.DEVICE else Place.DEVICE
        return other if other not in self._tries and self._desk.may(self.kind, other, waits=waits) else None

    def _moved(self, to: Place) -> None:
        self.at, self._inner = to, None
        self._tries[to] += 1

    def _settle(
        self, *, result: Result | None = None, error: BaseException | None = None, place: Place | None = None
    ) -> bool:
        with self._lock:
            if self._settled:
                return False
            self._settled = True
            self._cancelled = isinstance(error, PassCancelledError)
            inner, self._inner = self._inner, None
            why, self._why = self._why, None  # whose traceback holds the batch
            batch, self._batch = self._batch, None
        try:
            if inner is not None and not inner.done():
                inner.cancel()
            self._desk.leave(self)
            if batch is not None and result is not None and place is not None:
                self._desk.worked(self.kind, place, result)
        finally:
            if error is not None:
                if why is not None and error.__cause__ is None and error is not why:
                    error.__cause__ = why
                self.outer.set_exception(error)
            elif result is not None:
                self.outer.set_result(result)
        return True


def _submitted(placement: LoadedPass, batch: Batch, patience_s: float | None) -> "Future[Result]":
    return placement.device.submit(placement.handle, batch, wait_s=patience_s)


class Ticket:
    """The result of a pass, now or later. Made by ``OffloadEngine.submit``; any thread may ask, any number of times.

    Args:
        kind: Kind of the pass.
        runs: Parts of the batch, in order.
        desk: State of the engine.
    """

    def __init__(self, kind: PassKind, runs: Sequence[PassTask], desk: EngineState) -> None:
        self.kind = kind
        self._runs = tuple(runs)
        self._desk = desk
        self._lock = threading.Lock()
        self._result: Result | None = None
        self._waited: Callable[[float], None] = lambda _: None

    def tell(self, waited: Callable[[float], None]) -> None:
        """Let a scheduler hear of this ticket's waits: each one's beginning, by the monotonic clock (s)."""
        self._waited = waited

    def done(self) -> bool:
        """Return True if :meth:`result` would not wait."""
        return all(run.outer.done() for run in self._runs)

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the result: the barrier.

        Args:
            timeout_s: Longest wait for a device (s); None: the engine's. After that it counts as hanging until it
                answers, and what it has is redone at home, which is waited for as long as it needs. Without a home
                the engine's time ends in one warning and no error: the device is waited for, too.

        Raises:
            PassTimeoutError: It did not come in ``timeout_s``, and has no home. It may be asked for again.
            PassCancelledError: The pass was cancelled.
            OffloadError: What went wrong again and again, wherever it was tried.
        """
        self._desk.check_process()
        if not self.done():
            begun_s = time.monotonic()
            try:
                with self._desk.counts.waiting(self.kind):
                    self._wait(timeout_s)
            finally:
                self._waited(begun_s)
        with self._lock:
            if self._result is None:
                for run in self._runs:
                    if run.outer.done() and (error := run.outer.exception()) is not None:
                        raise error
                self._result = Result.joined([run.outer.result() for run in self._runs])
            return self._result

    def cancel(self) -> bool:
        """Cancel what has not begun to run; return True if nothing had. What runs, runs to its end."""
        return all([run.cancel() for run in self._runs])

    def _wait(self, asked_s: float | None) -> None:
        limit_s = self._desk.timeout_s if asked_s is None else asked_s
        while left := self._left(limit_s):  # which without a limit are none
            limit_s = limit_s or 0.0
            if self._desk.late(left, limit_s):
                limit_s = self._desk.timeout_s
                continue
            if asked_s is not None and any(part.at is Place.DEVICE for part in left):
                raise PassTimeoutError(
                    f"{len(left)} of {len(self._runs)} parts of a {self.kind} pass did not come within {limit_s:g} s: "
                    "the device hangs or is too slow; wait longer, or give the pass a home to be redone on"
                )
            self._desk.wait_for(left, limit_s)
            limit_s = None

    def _left(self, limit_s: float | None) -> list[PassTask]:
        """Wait; return what is not done, or nothing where a part has failed for good."""
        futures = [run.outer for run in self._runs]
        done, not_done = wait(futures, limit_s, return_when=FIRST_EXCEPTION)
        if any(future.exception() is not None for future in done):
            return []
        return [run for run in self._runs if run.outer in not_done]


class OffloadEngine:
    """Gives passes to their devices and their results to whoever holds the ticket. Any thread may call.

    A device that fails costs one warning: the part is redone at the pass's home. A device that is lost is not asked
    until it says that it is available, one that hangs not until it answers, and one that fails several times in a row
    more and more seldom. Without a home the part is tried again, and a device that comes back by itself is waited for;
    the error is raised, where the result is needed, after the third failure or a loss for good. A pass that is kept at
    home and fails there is redone on the device in the same way.

    Args:
        passes: One of each kind.
        depth: Parts that may be under way at a time; more wait in ``submit``.
        timeout_s: Longest wait of a barrier, or a ``submit`` without room: then the device counts as hanging and its
            passes are redone at home, or waited for with a warning (s); None: never.
        sequential: ``submit`` returns when the pass has run, as if there were no other device: the order of the
            published baseline, and what concurrent results are compared with.

    Raises:
        ConfigError: Two passes of one kind, none at all, or a bound.
    """

    def __init__(
        self,
        passes: Iterable[FrozenPass],
        *,
        depth: int = 64,
        timeout_s: float | None = 600.0,
        sequential: bool = False,
    ) -> None:
        given = list(passes)
        by_kind = {one.kind: one for one in given}
        if not given or len(by_kind) < len(given):
            raise ConfigError(f"passes: {[str(p.kind) for p in given]}; give at least one, and one of each kind")
        if depth < 1:
            raise ConfigError(f"depth={depth}: at least 1 part must be able to be under way")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s}: give a time above 0, or None to wait for ever")
        self._sequential = sequential
        self._desk = EngineState(by_kind, depth, timeout_s)

    @property
    def passes(self) -> Mapping[PassKind, FrozenPass]:
        """The passes by kind."""
        return dict(self._desk.passes)

    def of(self, kind: PassKind) -> FrozenPass:
        """Return the pass of a kind.

        Raises:
            ConfigError: There is none.
        """
        return self._desk.of(kind)

    def submit(
        self, kind: PassKind, batch: Batch, *, at: Place = Place.DEVICE, sequential: bool | None = None
    ) -> Ticket:
        """Hand in a batch. Its tokens are not copied: leave them as they are until the result is there.

        Args:
            kind: Kind of the pass.
            batch: Sequences of finished rollouts.
            at: Place where it runs; a device that is lost, or hangs, is replaced by home.
            sequential: Wait for it here; None: as the engine was told.

        Raises:
            BatchError: The batch does not fit the model.
            ConfigError: There is no such pass, or it has no home.
            OffloadError: The device failed at once and again, and there is no home.
        """
        desk = self._desk
        desk.check_process()
        what = desk.of(kind)
        what.at(at)
        batch = fitting(batch, what.program)
        runs: list[PassTask] = []
        with desk.counts.waiting(kind):
            try:
                for piece in batch.parts(what.sequences):
                    run = PassTask(desk, kind, piece, at)
                    runs.append(run)  # before it takes room, which is given back wherever an exception comes from
                    desk.enter(run)
                    run.start()
            except BaseException:
                for run in runs:
                    run.cancel()
                raise
            desk.counts.add(kind, PassStats(calls=1, sequences=len(batch.ids), tokens=batch.tokens))
            ticket = Ticket(kind, runs, desk)
            if self._sequential if sequential is None else sequential:
                ticket.result()
        return ticket

    def replace(self, kind: PassKind, artifact: Artifact) -> None:
        """Give a pass new weights, wherever it may run. Waits for the batches under way, which keep the old ones.

        A place that fails to take them is not used until it takes later ones: nothing is computed with old weights.

        Raises:
            ArtifactError: It does not fit.
            DeviceError: No place could take it.
        """
        desk = self._desk
        desk.check_process()
        for part in desk.under_way(kind):
            part.settled(desk.timeout_s)
        places = [Place.DEVICE] if self.of(kind).home is None else [Place.DEVICE, Place.HOME]
        done: list[Place] = []
        for place in places:
            old = self.of(kind).at(place)
            try:
                new = LoadedPass(device=old.device, handle=old.device.load(artifact, replacing=old.handle))
            except ArtifactError:
                if done:  # two places with different weights
                    desk.stale.add((kind, place))
                raise
            except DeviceError as error:
                desk.stale.add((kind, place))
                if place is places[-1] and not done:
                    raise
                name = desk.health(kind, place).info.name
                desk.tell(f"{name} {kind}", f"{name} did not take new weights of the {kind} pass ({error})")
            else:
                changed: dict[str, Any] = {"program": artifact.program, place.value: new}
                desk.passes[kind] = replace(self.of(kind), **changed)
                desk.stale.discard((kind, place))
                done.append(place)

    def close(self) -> None:
        """Cancel what has not begun; what fails from now on is not redone. The devices stay open. Idempotent."""
        self._desk.close()

    def stats(self) -> Mapping[PassKind, PassStats]:
        """Return sums by kind since the engine was made."""
        return self._desk.counts.all()
