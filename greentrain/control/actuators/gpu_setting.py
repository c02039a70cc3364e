"""What power limits and clocks share: one process changes a setting of its GPUs and puts it back at the end."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable

from greentrain.control.actuators.driver import Opened
from greentrain.control.actuators.guardian import Guardian, Refused
from greentrain.utils.never_raise import once


class GpuSetting(ABC):
    """A setting of one process's GPUs. A forked child inherits the object, not the right to change anything.

    Args:
        opened: The GPUs, NVML and the guardian; closed with it.
        warn: Called with one sentence where something cannot be done; once a sentence.
    """

    def __init__(self, opened: Opened, warn: Callable[[str], None]) -> None:
        self._opened = opened
        self._say = once(warn)
        self._started = self._over = self._closed = False
        self._owner_pid = os.getpid()
        self._lock = opened.guardian.lock

    @property
    def guardian(self) -> Guardian:
        """Restores what was found if this process dies; shared by power limits and clocks."""
        return self._opened.guardian

    def reset(self) -> None:
        """Put every GPU's setting back, unless somebody has set another. Idempotent; never raises."""
        with self._lock:
            if self._is_owner and (left := self._put_back()):
                self._say(left)

    def close(self) -> None:
        """Reset, let the guardian go and release the driver. Idempotent; never raises."""
        with self._lock:
            if self._closed or not self._is_owner:
                return
            self.reset()
            self._closed = True
            self._opened.close()

    @abstractmethod
    def _put_back(self) -> str:
        """Put back what can be; return what cannot, in words. Never raises."""

    @property
    def _is_owner(self) -> bool:
        return os.getpid() == self._owner_pid

    @property
    def _may_change(self) -> bool:
        return not self._closed and not self._over and self._is_owner

    def _was_closed(self) -> bool:
        return self._closed

    def _refuse(self, what: str, refused: Refused) -> None:
        """Put back and say why nothing is changed; try again later, unless another job is at it."""
        self._put_back()
        self._say(f"{what} stay as they are: {refused}")
        self._over, self._started = refused.busy, not refused.stale
