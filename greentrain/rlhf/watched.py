"""A ticket that tells how long somebody waited for it."""

import time
from collections.abc import Callable
from typing import Final

from greentrain.fpga_backend.batch import Result
from greentrain.rlhf.ticket import Ticket

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
