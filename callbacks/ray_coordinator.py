"""Where a Ray job's training, its scaling policy and an operator tell each other how many workers there should be.

::

    training's rank 0, operator     coordinator (an actor)  scaling policy, in Ray's controller
      want(n, why)              ──►    wanted       ──►     asks the cluster for n workers
      checkpoint, stand still   ◄──    opening      ◄──     n could start now
      leave(opening)            ──►    go           ──►     Ray ends the workers and starts n from that checkpoint
      stepped()                 ──►    seconds of the resize

So nothing is trained twice: Ray ends workers that stand still behind a checkpoint. Those that do not come to one in
``patience_s`` are ended as Ray does it alone, and what was trained since their newest checkpoint is trained again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError

PREFIX: Final = "greentrain-desk-"
"""Of the actor's name in the job's Ray namespace; the name of the Ray Train run follows."""

ASK_S: Final = 5.0
"""How long to wait for the actor (s): as long as Ray's controller waits for its own coordinator of resources
(AUTOSCALING_REQUESTS_GET_TIMEOUT_S, ray 2.60.0, read 2026-11-21)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a worker needs to know at its start."""

    config: GreenConfig
    attempt: int
    """Number of the group of workers, from 1 on."""
    least: int
    most: int
    resize_s: float | None
    """Mean seconds without training that a resize took in this job; None: there was none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Ray could start another number of workers now."""

    nth: int
    ranks: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the scaling policy has to do."""

    wanted: int
    go: bool
    """End the workers now and start as many as are possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResize:
    """A change of the number of workers that is over."""

    before: int
    after: int
    seconds: float
    """From the moment at which all workers stood still to the first optimizer step of the new ones (s)."""


class RayCoordinator:
    """The words of one Ray Train run. A plain object: Ray makes an actor of it.

    Args:
        config: The checked configuration; every worker gets it.
        least: Fewest workers that Ray may start.
        most: Most.
        ranks: Wanted at the start.
        patience_s: Longest time that workers may take from an opening to a checkpoint (s).
        now_s: Monotonic time (s).
    """

    def __init__(
        self,
        config: GreenConfig,
        *,
        least: int,
        most: int,
        ranks: int,
        patience_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._least, self._most, self._patience_s, self._now_s = config, least, most, patience_s, now_s
        self._wanted, self._reason = ranks, "at the start"
        self._opening: Opening | None = None
        self._opened_s = 0.0
        self._nth = self._closed_nth = self._current = self._attempt = 0
        self._left = False
        self._gone: tuple[int, float] | None = None
        self._resizes: list[WorkerResize] = []

    # -- for workers and operators -------------------------------------------------------------------------------

    def terms(self) -> Terms:
        """Return what a worker needs to know."""
        seconds = [resize.seconds for resize in self._resizes]
        return Terms(
            config=self._config,
            attempt=self._attempt,
            least=self._least,
            most=self._most,
            resize_s=sum(seconds) / len(seconds) if seconds else None,
        )

    def want(self, ranks: int, reason: str) -> None:
        """Ask for a number of workers.

        Raises:
            ConfigError: It is outside the range that the trainer was given.
        """
        if not self._least <= ranks <= self._most:
            raise ConfigError(
                f"{ranks} workers are wanted ({reason}), but ScalingConfig.num_workers allows {self._least} to"
                f" {self._most}: want a number between them or start the trainer with a wider range"
            )
        self._wanted, self._reason = ranks, reason

    def opening(self) -> Opening | None:
        """Return what Ray could do now; rank 0 asks about once a second."""
        return self._opening

    def leave(self, nth: int) -> None:
        """All workers stand still behind the checkpoint that opening ``nth`` asked for."""
        self._left = nth > self._closed_nth  # else it comes from workers that were ended meanwhile

    def stepped(self) -> WorkerResize | None:
        """Note the first optimizer step of new workers; return the resize that it ended, None if there was none."""
        if self._gone is None:
            return None
        (before, since_s), self._gone = self._gone, None
        self._resizes.append(WorkerResize(before=before, after=self._current, seconds=self._now_s() - since_s))
        return self._resizes[-1]

    def resizes(self) -> list[WorkerResize]:
        """Return those of this job, oldest first."""
        return list(self._resizes)

    # -- for the scaling policy ----------------------------------------------------------------------------------

    def wanted(self) -> int:
        """Return how many workers are wanted, for a start without workers."""
        self._close()
        return self._wanted

    def meet(self, current: int, possible: int | None) -> Order:
        """Tell what runs and what could run, about every two seconds.

        Args:
            current: Workers that run.
            possible: Workers that could, of those that were wanted last; None: nobody knows just now.
        """
        self._current = current
        if possible is None or possible < self._least:
            return Order(wanted=self._wanted, go=False)
        late = self._opening is not None and self._now_s() - self._opened_s > self._patience_s
        if self._left or (late and possible != current):
            self._close()
            self._gone, self._current = (current, self._now_s()), possible
            return Order(wanted=self._wanted, go=True)
        if possible == current:
            self._opening = None
        elif self._opening is None or self._opening.ranks != possible:
            self._nth += 1
            self._opened_s = self._now_s()
            self._opening = Opening(nth=self._nth, ranks=possible, reason=self._reason)
        return Order(wanted=self._wanted, go=False)

    def _close(self) -> None:
        self._opening, self._left, self._closed_nth = None, False, self._nth
        self._attempt += 1
