"""What a submitted pass is known by, until its result is needed."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait

from greentrain.fpga_backend.batch import Result
from greentrain.rlhf.errors import PassCancelledError, PassTimeoutError
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.parts import joined
from greentrain.rlhf.stats import PassStats


class Ticket:
    """The result of a pass, now or later. Made by ``OffloadEngine.submit``; any thread may ask.

    Args:
        kind: Of the pass.
        futures: Of its parts, in order.
        timeout_s: How long :meth:`result` waits where it is not told.
        late: Called with the numbers of the parts that did not come in time; returns True if they come from
            elsewhere now.
        count: Where waiting and computing are added up.
    """

    def __init__(
        self,
        kind: PassKind,
        futures: Sequence[Future[Result]],
        *,
        timeout_s: float | None,
        late: Callable[[Sequence[int]], bool],
        count: Callable[[PassStats], None],
    ) -> None:
        self.kind = kind
        self._futures = list(futures)
        self._timeout_s = timeout_s
        self._late = late
        self._count = count
        self._lock = threading.Lock()
        self._counted = False

    def done(self) -> bool:
        """Return True if :meth:`result` would not wait."""
        return all(future.done() for future in self._futures)

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the result: the barrier.

        Args:
            timeout_s: How long (s); None: as the engine was told.

        Raises:
            PassTimeoutError: It did not come, and there is no other place to get it from.
            PassCancelledError: The pass was cancelled.
            OffloadError: What went wrong on the device, where there is no other.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        begun_s = time.perf_counter()
        try:
            self._wait(limit_s)
            return self._taken()
        finally:
            self._count(PassStats(wait_s=time.perf_counter() - begun_s))

    def cancel(self) -> bool:
        """Cancel what has not begun to run; return True if nothing had. What runs, runs to its end."""
        return all([future.cancel() for future in self._futures])

    def _wait(self, limit_s: float | None) -> None:
        left = wait(self._futures, limit_s).not_done
        if not left:
            return
        late = [i for i, future in enumerate(self._futures) if future in left]
        if self._late(late):
            left = wait(self._futures, limit_s).not_done
        if left:
            raise PassTimeoutError(
                f"{len(left)} of {len(self._futures)} parts of a {self.kind} pass did not come within {limit_s} s: "
                "the device hangs or is too slow; raise timeout_s, or give the pass a home to be redone on"
            )

    def _taken(self) -> Result:
        try:
            result = joined([future.result() for future in self._futures])
        except CancelledError as error:
            raise PassCancelledError(f"the {self.kind} pass was cancelled before it ran") from error
        with self._lock:
            first, self._counted = not self._counted, True
        if first:
            self._count(PassStats(busy_s=result.run_s))
        return result
