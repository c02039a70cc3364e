"""Ray as the launcher of a session: what the plan may ask for, and when workers stand still to be replaced."""

import time
from collections.abc import Callable
from typing import Any, Final

from greentrain.callbacks.ray_coordinator import ASK_S, PREFIX, Opening, Resize, Terms
from greentrain.control.launcher_protocol import Notice, Offer, Progress, Request
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import never_raises

with try_import("ray") as _imports:
    import ray
    import ray.train
    from ray.train import CheckpointConsistencyMode, collective
_imports.check()

OPEN_S: Final = 10.0
"""How long workers stand still for Ray to find room for those that the plan wants (s): a few of its health checks."""
HOLD_S: Final = 600.0
"""How long workers stand still for a resize that Ray could do (s)."""
POLL_S: Final = 0.2


def find_desk(run: str) -> Any:
    """Return the desk of a Ray Train run of this Ray namespace; None where GreenTrain did not start it."""
    try:
        return ray.get_actor(PREFIX + run)
    except ValueError:
        return None


class RayLauncher:
    """One rank's line to the desk; see greentrain.control.preemption.Launcher.

    Args:
        desk: Handle of the desk's actor.
        ranks: Workers of this group.
        first: Whether this is rank 0.
        tell: Called with the resize that the first optimizer step has ended.
    """

    exits: Final = False
    """Ray ends the workers."""

    def __init__(self, desk: Any, *, ranks: int, first: bool, tell: Callable[[Resize], None]) -> None:
        self._desk, self._ranks, self._first, self._tell = desk, ranks, first, tell
        self.terms: Terms = ray.get(desk.terms.remote())

    def offer(self) -> Offer:
        """Return the widths that the trainer allows."""
        terms = self.terms
        return Offer(
            attempt=terms.attempt,
            ranks=self._ranks,
            min_ranks=terms.least,
            max_ranks=terms.most,
            can_wait=False,
            resize_s=terms.resize_s,
        )

    def notice(self) -> Notice | None:
        """Return that Ray could start another number of workers now."""
        opening = self._opening()
        if opening is None:
            return None
        return Notice(attempt=self.terms.attempt, reason=f"{opening.ranks} workers: {opening.reason}")

    def write(self, word: Request | Progress) -> None:
        """Ask for the workers that the plan wants."""
        if isinstance(word, Request) and word.ranks != self._ranks:
            ray.get(self._desk.want.remote(word.ranks, word.reason), timeout=ASK_S)

    def mark(self, what: str, attempt: int, **more: Any) -> None:
        """Tell the desk of the first optimizer step. Never raises."""
        if what == "step":
            resize: Resize | None = never_raises(ray.get)(self._desk.stepped.remote(), timeout=ASK_S)
            if resize is not None:
                self._tell(resize)

    def opening(self) -> int | None:
        """Return the number of the opening for which all ranks leave, the same on all; None: they stay.

        Every rank calls it, after the report of a checkpoint.
        """
        found: int | None = collective.broadcast_from_rank_zero(self._committed() if self._first else None)
        return found

    def leave(self, nth: int) -> None:
        """Stand still until Ray ends this process. Every rank calls it, all books closed; it returns only where Ray
        does nothing.
        """
        never_raises(collective.barrier)()
        if self._first:
            never_raises(ray.get)(self._desk.leave.remote(nth), timeout=ASK_S)
        time.sleep(HOLD_S)

    # -- inside ------------------------------------------------------------------------------------------------

    @never_raises
    def _committed(self) -> int | None:
        """Return the opening once the controller has the checkpoint; None: Ray has no room."""
        ray.train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED, timeout_s=HOLD_S)
        end_s = time.monotonic() + OPEN_S
        while (opening := self._opening()) is None and time.monotonic() < end_s:
            time.sleep(POLL_S)
        return None if opening is None else opening.nth

    def _opening(self) -> Opening | None:
        opening: Opening | None = ray.get(self._desk.opening.remote(), timeout=ASK_S)
        return opening
