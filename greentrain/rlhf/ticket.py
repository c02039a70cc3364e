"""What a submitted pass is known by, until its result is needed.

A ticket that tells how long somebody waited for it.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Final

from greentrain.fpga_backend.batch import Result
from greentrain.rlhf.batching import joined
from greentrain.rlhf.engine_state import EngineState
from greentrain.rlhf.errors import PassTimeoutError
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.pass_task import PassTask


class Ticket:
    """The result of a pass, now or later. Made by ``OffloadEngine.submit``; any thread may ask, any number of times.

    Args:
        kind: Of the pass.
        runs: Its parts, in order.
        desk: Of the engine.
    """

    def __init__(self, kind: PassKind, runs: Sequence[PassTask], desk: EngineState) -> None:
        self.kind = kind
        self._runs = tuple(runs)
        self._desk = desk
        self._lock = threading.Lock()
        self._result: Result | None = None

    def done(self) -> bool:
        """Return True if :meth:`result` would not wait."""
        return all(run.outer.done() for run in self._runs)

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the result: the barrier.

        Args:
            timeout_s: How long (s); None: as the engine was told. After that the device counts as hanging until it
                answers, and what it has is redone at home, for which the engine's time is waited.

        Raises:
            PassTimeoutError: It did not come, and there is no other place to get it from. It may be asked for again.
            PassCancelledError: The pass was cancelled.
            OffloadError: What went wrong on the device, where there is no other.
        """
        self._desk.check_process()
        if not self.done():
            with self._desk.counts.waiting(self.kind):
                self._wait(self._desk.timeout_s if timeout_s is None else timeout_s)
        with self._lock:
            if self._result is None:
                for run in self._runs:
                    if run.outer.done() and (error := run.outer.exception()) is not None:
                        raise error
                self._result = joined([run.outer.result() for run in self._runs])
            return self._result

    def cancel(self) -> bool:
        """Cancel what has not begun to run; return True if nothing had. What runs, runs to its end."""
        return all([run.cancel() for run in self._runs])

    def when_done(self, callback: "Callable[[Ticket], object]") -> None:
        """Call back once, when :meth:`result` would not wait: now, or from the device's thread, which must not wait."""
        done = itertools.count(1)

        def one(_: "Future[Result]") -> None:
            if next(done) == len(self._runs):
                callback(self)

        for run in self._runs:
            run.outer.add_done_callback(one)

    def _wait(self, limit_s: float | None) -> None:
        left = self._left(limit_s)
        if left and limit_s is not None and self._desk.late(left, limit_s):
            limit_s = self._desk.timeout_s
            left = self._left(limit_s)
        if left:
            raise PassTimeoutError(
                f"{len(left)} of {len(self._runs)} parts of a {self.kind} pass did not come within {limit_s or 0:g} s: "
                "the device hangs or is too slow; raise timeout_s, or give the pass a home to be redone on"
            )

    def _left(self, limit_s: float | None) -> list[PassTask]:
        """Wait; return what is not done, or nothing where a part has failed for good."""
        futures = [run.outer for run in self._runs]
        done, not_done = wait(futures, limit_s, return_when=FIRST_EXCEPTION)
        if any(future.exception() is not None for future in done):
            return []
        return [run for run in self._runs if run.outer in not_done]


MOMENT_S: Final = 2e-5
"""Shorter waits are the call itself (s)."""


class Watched(Ticket):
    """The ticket of a scheduler.

    Args:
        ticket: The engine's.
        waited: Called after a wait, with the monotonic time at which it began (s).
        ran: Called with the device's seconds when the result is first taken.
    """

    def __init__(self, ticket: Ticket, waited: Callable[[float], None], ran: Callable[[float], None]) -> None:
        self.kind = ticket.kind
        self._ticket = ticket
        self._waited = waited
        self._ran: Callable[[float], None] | None = ran

    def done(self) -> bool:
        """As the engine's."""
        return self._ticket.done()

    def result(self, timeout_s: float | None = None) -> Result:
        """As the engine's."""
        begun_s = time.monotonic()
        try:
            result = self._ticket.result(timeout_s)
        finally:
            if time.monotonic() - begun_s > MOMENT_S:
                self._waited(begun_s)
        ran, self._ran = self._ran, None
        if ran is not None:
            ran(result.run_s)
        return result

    def cancel(self) -> bool:
        """As the engine's."""
        return self._ticket.cancel()

    def when_done(self, callback: Callable[[Ticket], object]) -> None:
        """As the engine's, with this ticket."""
        self._ticket.when_done(lambda _: callback(self))
