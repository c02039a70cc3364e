"""Where a supervised training is between two attempts, until the time has come.

On one's own machine the supervisor sleeps. In a cluster a sleeping allocation is wasted, so the scheduler keeps the job
instead and starts the whole program again: greentrain.launch.slurm.
"""

from collections.abc import Callable
from typing import Protocol


class Waiting(Protocol):
    """Takes the time between two attempts."""

    def away(self, until_unix_s: float | None, ranks: int) -> bool:
        """Let the time pass.

        Args:
            until_unix_s: When the next attempt starts (s since the epoch, UTC); None: at once.
            ranks: That it starts with.

        Returns:
            True: somebody else starts this program again at that time, so the supervisor leaves now, with its state
            on disk. False: the time has come, or a signal has, go on here.
        """
        ...


class LocalWaiting:
    """Sleeps.

    Args:
        sleep_until: Sleeps until a time (s since the epoch), or until somebody wants to be heard; returns which (True:
            somebody). That of greentrain.launch.inbox.
    """

    def __init__(self, sleep_until: Callable[[float], bool]) -> None:
        self._sleep_until = sleep_until

    def away(self, until_unix_s: float | None, ranks: int) -> bool:
        """Sleep until then; see :class:`Waiting`."""
        if until_unix_s is not None:
            self._sleep_until(until_unix_s)
        return False
