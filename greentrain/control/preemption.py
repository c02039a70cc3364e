"""Leaving a run in good order: a checkpoint, a request to the launcher, all ranks together, exit code 75.

::

    Running --plan asks, or a notice came--> Asked (checkpoint_due) --green.checkpoint()--> Left: exit 75
       ^                                        |  a step without a checkpoint
       +----------------------------------------+

Every rank is asked at the same optimizer step. No rank exits before all have closed their books, because a launcher
ends the others as soon as one is gone; but a rank that does not come, as it is dead, is waited for no longer than the
notice leaves time. What the launcher is told is written in a thread, as its disk may hang.
"""

import functools
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from greentrain.control.coordination import WAIT_S, RankZeroChannel, SyncSchedule, Words
from greentrain.control.launcher_protocol import Notice, Offer, Progress, Request
from greentrain.ledger.active_run import CLOSE_S, SAVE_S, ActiveRun
from greentrain.utils.background import BackgroundCall, BackgroundWork

NOTICE_S: Final = 10.0
"""How often ranks meet to hear of a notice (s): Slurm's usual one comes 60 to 120 s before the end."""
AGAIN_S: Final = 30.0
"""How long a notice rests after the launcher could not be told (s): each time costs a checkpoint."""
TOGETHER_S: Final = 600.0
"""How long a rank that leaves waits for the others before it exits (s), as their checkpoints may take: as long as NCCL
waits for a collective. The training is over for this attempt."""
EXIT_S: Final = 2.0
"""What a rank needs to close its books and exit before it is ended (s): little, as another one's checkpoint that is not
whole yet needs the time more, and leaving ends it."""
GROUP_S: Final = 10.0
"""Longest wait for the end of a process group (s), which hangs where a rank is dead."""


class Launcher(Protocol):
    """Who starts a training again, as the training sees it: ``LauncherFiles``."""

    @property
    def exits(self) -> bool:
        """True: the training has to end itself. False: the launcher ends it."""

    def offer(self) -> Offer | None:
        """Return what is possible; None where nobody says."""

    def notice(self) -> Notice | None:
        """Return the newest demand to leave."""

    def write(self, message: Request | Progress) -> None:
        """Tell it something; may raise OSError."""

    def mark(self, what: str, attempt: int, **more: Any) -> None:
        """Note a moment. Never raises."""


class PreemptionHandler:
    """Ends one process of a run when it is asked to.

    Args:
        launcher: Launcher that brings it back.
        run: The run.
        wake: Ends a pause: a process that is asked to leave must not sleep.
        unix_s: Time.
        clock_s: What waits are counted by: a clock that is set back must not hide a notice.
    """

    def __init__(
        self,
        launcher: Launcher,
        run: ActiveRun,
        *,
        wake: Callable[[], None] = lambda: None,
        unix_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher, self._run, self._wake, self._unix_s, self._clock_s = launcher, run, wake, unix_s, clock_s
        self._first = run.topology.rank == 0
        self._channel: RankZeroChannel | None = None
        self._sync: SyncSchedule | None = None
        self._ranks = run.topology.world_size
        self._next_s = clock_s() + NOTICE_S
        self._again_s = 0.0
        self.offer = launcher.offer()
        """What the launcher can do; None: nothing, or nothing that this node can see. Only rank 0's counts."""
        self.request: Request | None = None
        """What this rank is about to ask for; None while it stays."""
        self._noticed: Notice | None = None
        self._obeyed: Notice | None = None
        self._by_unix_s: float | None = None
        self._sayings: deque[Callable[[], object]] = deque()
        self._writer = BackgroundWork("greentrain-launcher", self._write_all, TOGETHER_S)
        if self._first:
            self._writer.start()
            self._mark("ready")

    @property
    def due(self) -> bool:
        """True from the step at which the run is asked to leave to the one after it."""
        return self.request is not None

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1 on; 0 where nobody counts."""
        return 0 if self.offer is None else self.offer.attempt

    def look(self) -> None:
        """Look for a notice; on rank 0, about once a second, from any thread."""
        if not self._first:
            return
        if self._noticed is None and not self.due and self._clock_s() >= self._again_s:
            found = self._launcher.notice()
            if found is not None and found.attempt == self.attempt and found != self._obeyed:
                self._noticed = found
        if self._noticed is not None or self.due:
            self._wake()  # each time: a pause may have begun since the last

    def stepped(self) -> None:
        """Note the end of an optimizer step, on every rank; now and then, hear of a notice."""
        if self._channel is None:  # only now: a script may join its process group after the session has started
            self._channel = RankZeroChannel(f"{self._run.run_id}/leave", self._run.topology)
            self._sync = SyncSchedule(self._channel, self._clock_s, self._run.warn)
            if self._first:
                self._mark("step")
        if self.request is not None:
            self._stay()
        if self._ranks == 1:
            if self._noticed is not None:
                self._obey(self._noticed.reason, self._noticed.ranks, self._noticed.by_unix_s)
        elif self._sync is not None and (said := self._sync.stepped(self._say)) is not None:
            self._obey(*said["notice"])

    def ask(self, ranks: int, not_before_unix_s: float | None, reason: str) -> None:
        """Prepare to leave after this step; called on every rank at the same one.

        Args:
            ranks: Number of ranks of the next attempt.
            not_before_unix_s: Earliest start of the next attempt (s since the epoch); None: at once.
            reason: Reason, for people.
        """
        self._by_unix_s = None
        self.request = Request(attempt=self.attempt, ranks=ranks, not_before_unix_s=not_before_unix_s, reason=reason)
        if self._first:
            self._run.event("leave", reason, ranks=ranks, not_before_unix_s=not_before_unix_s)
            self._mark("request")

    def progress(self, steps: int, tokens: float) -> None:
        """Tell the launcher how far a checkpoint is."""
        if self._first and self.offer is not None:
            done = Progress(attempt=self.attempt, steps=steps, tokens=tokens, unix_s=self._unix_s())
            self._tell(lambda: self._write(done))

    def request_leave(self) -> bool:
        """Hand the request over; return whether this process is to exit now, the same on every rank."""
        if self.request is not None and not self._all_told(self.request):
            self.request, self._obeyed, self._again_s = None, None, self._clock_s() + AGAIN_S
            return False
        if self._first:
            self._mark("left")
        if not self._launcher.exits:
            self.request = None
        return self._launcher.exits

    def close(self) -> None:
        """Finish writing to the launcher; waits at most a second, and says so where that was too short. Idempotent."""
        if self._first and not self._writer.stop(SAVE_S):
            self._run.warn("the launcher may not know how far the last checkpoint is, as its disk hangs")

    def together(self) -> None:
        """Wait until all ranks are ready to exit, and leave the process group. Never raises, and waits bounded."""
        exits = "the process exits all the same"
        if self._channel is not None:
            try:
                self._channel.everybody("closed", self._patience_s())
            except TimeoutError as error:
                self._run.warn(f"this rank leaves without the others: {error}", exits)
        dist = sys.modules.get("torch.distributed")
        try:
            if dist is not None and dist.is_available() and dist.is_initialized():
                BackgroundCall("greentrain-leaving", dist.destroy_process_group).result(GROUP_S)
        except Exception as error:
            self._run.warn(f"the process group could not be left ({error!r})", exits)

    # -- inside ------------------------------------------------------------------------------------------------

    def _say(self) -> Words:
        """Return what rank 0 tells all ranks: the notice, if there is one."""
        assert self._sync is not None
        if self._sync.is_due(self._next_s):
            self._next_s = self._clock_s() + NOTICE_S
            self._sync.restart()
        notice = self._noticed
        message = None if notice is None else {"notice": [notice.reason, notice.ranks, notice.by_unix_s]}
        return message, self._sync.steps_until(self._next_s)

    def _obey(self, reason: str, ranks: int | None, by_unix_s: float | None) -> None:
        self._obeyed, self._noticed = self._noticed, None
        if self.request is None:
            self.ask(ranks or self._ranks, None, reason)
        self._by_unix_s = by_unix_s

    def _patience_s(self) -> float:
        """Return how long to wait for the other ranks now (s): until the notice leaves just the time to exit."""
        if self._by_unix_s is None:
            return TOGETHER_S
        return min(max(self._by_unix_s - EXIT_S - self._unix_s(), WAIT_S), TOGETHER_S)

    def _all_told(self, request: Request) -> bool:
        """Return whether the launcher knows; the other ranks hear it from rank 0, as none must leave alone."""
        told = [True]
        if self._first:
            told.clear()
            self._tell(lambda: told.append(self.request is request and self._write(request)))
            self._writer.ask(min(CLOSE_S, self._patience_s()))
            if not told:
                self._run.warn("the launcher could not be told request, as its disk hangs")
        delivered = bool(told and told[0])
        if self._ranks == 1 or self._channel is None or not self._channel.possible:
            return delivered
        patience_s = self._patience_s()
        try:
            received = self._channel.broadcast({"told": delivered}, patience_s)
        except Exception:  # the store is gone: the others hear nothing and leave
            return True
        if received is None:
            self._run.warn(f"rank 0 has not come to leave within {patience_s:g} s", "this rank leaves alone")
        return received is None or bool(received["told"])

    def _stay(self) -> None:
        """Go on, as a whole step has passed without a checkpoint."""
        self.request = None
        self._run.warn(
            "the run was asked to leave, but its script wrote no checkpoint: where green.checkpoint_due is true, save"
            " one and call green.checkpoint() on every rank"
        )

    def _write(self, message: Request | Progress) -> bool:
        try:
            self._launcher.write(message)
        except Exception as error:
            self._run.warn(f"the launcher could not be told {type(message).__name__.lower()} ({error!r})")
            return False
        return True

    def _mark(self, what: str) -> None:
        self._tell(functools.partial(self._launcher.mark, what, self.attempt, t_unix_s=self._unix_s()))

    def _tell(self, say: Callable[[], object]) -> None:
        self._sayings.append(say)
        self._writer.ask()

    def _write_all(self) -> None:
        while self._sayings:
            self._sayings.popleft()()
