"""A part of a pass under way: on the device, or, after a failure, at home."""

import threading
import time
from concurrent.futures import Future, wait
from functools import partial

from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.errors import BatchError, DeviceError, QueueFullError
from greentrain.rlhf.batching import fault_of
from greentrain.rlhf.engine_state import EngineState
from greentrain.rlhf.errors import PassCancelledError, PassTimeoutError
from greentrain.rlhf.frozen_pass import FrozenPass, Placement
from greentrain.rlhf.kinds import PassKind, Place


class PassTask:
    """One part. Its result comes once, from whichever place has it first.

    Args:
        desk: Of the engine.
        kind: Of the pass.
        batch: The part; let go of when it is done.
        at: Where it is tried first, if that is of any use.
    """

    def __init__(self, desk: EngineState, kind: PassKind, batch: Batch, at: Place) -> None:
        self.outer: Future[Result] = Future()
        self.outer.set_running_or_notify_cancel()  # who cancels asks the device, see cancel()
        self.kind = kind
        self.begun_s = time.monotonic()
        self._desk = desk
        self._batch: Batch | None = batch
        self._lock = threading.Lock()
        self._at = at
        self._tried = {at}
        self._inner: Future[Result] | None = None
        self._why: Exception | None = None  # it is not where it was tried first
        self._cancelling = False
        self._cancelled = False
        self._settled = False

    @property
    def at(self) -> Place:
        """Where it was given to last."""
        return self._at

    def start(self, patience_s: float | None) -> None:
        """Give it to its place, or at once to the other.

        Args:
            patience_s: How long to wait for room in the device's queue (s); 0 in the thread that would make room.

        Raises:
            BatchError: It does not fit the model.
            QueueFullError: No room, and no patience.
            OffloadError: The device failed at once, and so did the other place, or there is none.
        """
        with self._lock:
            self._at = place = self._desk.chosen(self.kind, self._at)
            self._tried = {place}
        try:
            self._hand_in(place, patience_s)
        except (BatchError, QueueFullError) as error:
            if isinstance(error, BatchError) or patience_s == 0:
                self._settle(error=error)
                raise
            self._at_once(place, error, patience_s)
        except Exception as error:
            self._at_once(place, error, patience_s)
        except BaseException as error:
            self._settle(error=error)
            raise

    def settled(self, limit_s: float | None) -> None:
        """Wait until it is done; one that takes longer than ``limit_s`` at a place is given to the other, or left."""
        if wait([self.outer], limit_s).not_done and self._desk.late([self], limit_s or 0.0):
            wait([self.outer], limit_s)

    def late(self, why: str) -> bool:
        """Give it to the other place, because it takes too long; return False if there is none."""
        with self._lock:
            if self._settled:
                return True
            place, inner = self._at, self._inner
            other = self._other()
            if inner is None or other is None:
                return False
            self._moved(other)
        if not inner.cancel():
            self._desk.health(self._desk.of(self.kind).at(place).device).hangs(inner)
        self._again(place, other, PassTimeoutError(why), 0.0)
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
            name = self._desk.health(what.at(place).device).info.name
            raise DeviceError(f"{name} did not take the last weights of the {self.kind} pass: replace them again")
        try:
            inner = _submitted(what.at(place), batch, patience_s)
        except DeviceError:
            before, what = what, self._desk.of(self.kind)
            if what is before:
                raise
            inner = _submitted(what.at(place), batch, patience_s)  # its weights were replaced in this moment
        with self._lock:
            wanted = not self._settled and self._at is place
            if wanted:
                self._inner = inner
        if not wanted:
            inner.cancel()
        inner.add_done_callback(partial(self._finished, place, what))

    def _finished(self, place: Place, what: FrozenPass, inner: "Future[Result]") -> None:
        """Take what a device has delivered, in the device's thread."""
        with self._desk.delivering():
            try:
                self._take(place, what, inner)
            except BaseException as error:  # who waits must hear of it
                self._settle(error=error)

    def _at_once(self, place: Place, error: Exception, patience_s: float | None) -> None:
        self._next(place, error, patience_s)
        if self.outer.done() and (failure := self.outer.exception()) is not None:
            raise failure

    def _take(self, place: Place, what: FrozenPass, inner: "Future[Result]") -> None:
        batch = self._batch
        current = self._at is place
        if batch is None or (inner.cancelled() and (self._cancelling or not current)):
            return
        error = DeviceError("the device dropped the batch") if inner.cancelled() else inner.exception()
        if error is None:
            result = inner.result()
            try:
                fault = fault_of(result, batch, what.program)
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
        """After a failure: give it to the other place, or settle it."""
        with self._lock:
            if self._settled or self._at is not place:
                return
            other = self._other()
            if other is not None:
                self._moved(other)
        if other is None:
            self._desk.failed(self.kind, place, None, error, len(self))
            self._settle(error=error)
        else:
            self._again(place, other, error, patience_s)

    def _again(self, place: Place, other: Place, why: Exception, patience_s: float | None) -> None:
        self._why = why
        self._desk.failed(self.kind, place, other, why, len(self))
        try:
            try:
                self._hand_in(other, patience_s)
            except QueueFullError:
                if patience_s != 0:
                    raise
                self._desk.later(lambda: self._forced(other))
        except Exception as error:
            self._next(other, error, 0.0)

    def _forced(self, place: Place) -> None:
        try:
            self._hand_in(place, self._desk.timeout_s)
        except BaseException as error:
            self._settle(error=error)

    def _other(self) -> Place | None:
        other = Place.HOME if self._at is Place.DEVICE else Place.DEVICE
        return other if other not in self._tried and self._desk.may(self.kind, other) else None

    def _moved(self, other: Place) -> None:
        self._at, self._inner = other, None
        self._tried.add(other)

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
                self._desk.worked(self.kind, place, len(batch.ids), batch.tokens, result)
        finally:
            if error is not None:
                if why is not None and error.__cause__ is None and error is not why:
                    error.__cause__ = why
                self.outer.set_exception(error)
            elif result is not None:
                self.outer.set_result(result)
        return True

    def __len__(self) -> int:
        """Return the number of sequences; 0 once they are let go of."""
        return 0 if self._batch is None else len(self._batch.ids)


def _submitted(placement: Placement, batch: Batch, patience_s: float | None) -> "Future[Result]":
    return placement.device.submit(placement.handle, batch, wait_s=patience_s)
