"""Starts a training, waits, and starts it again: later, wider, or after a crash.

::

    waiting --time is there--> running --exit 75, or a request--> waiting
       ^                          |-- exit 0 ------------------> done
       +---- a crash, retries left-|-- a crash too many, a loop-> failed
                                   +-- a signal to us ----------> stopped

Each arrow is on disk before it is taken, so that another supervisor goes on where a killed one was.

Where a supervised training is between two attempts, until the time has come.

On one's own machine the supervisor sleeps. In a cluster a sleeping allocation is wasted, so the scheduler keeps the job
instead and starts the whole program again: greentrain.control.launch.slurm.
"""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from greentrain.control.launch import checkpoints, reaper, timeline
from greentrain.control.launch.commands import Command
from greentrain.control.launch.outcome import JobFolder, JobState, Outcome, RetryRules, classify_exit
from greentrain.control.launch.runners import (
    NOTICE,
    STOP,
    Attempt,
    AttemptRunner,
    LaunchError,
    SignalQueue,
    end_orphans,
)
from greentrain.control.launcher_protocol import ENV_CHECKPOINT, ENV_DIR, EXIT_REQUEUE, LauncherFiles, Notice, Offer
from greentrain.types import iso
from greentrain.utils.topology import ENV_JOB


class Waiting(Protocol):
    """Takes the time between two attempts."""

    def away(self, until_unix_s: float | None, ranks: int) -> bool:
        """Let the time pass.

        Args:
            until_unix_s: Start of the next attempt (s since the epoch, UTC); None: at once.
            ranks: Number of ranks that the next attempt starts with.

        Returns:
            True: somebody else starts this program again at that time, so the supervisor leaves now, with its state
            on disk. False: the time has come, or a signal has, go on here.
        """


class LocalWaiting:
    """Sleeps.

    Args:
        sleep_until: Sleeps until a time (s since the epoch), or until somebody wants to be heard; returns which (True:
            somebody). That of greentrain.control.launch.runners.
    """

    def __init__(self, sleep_until: Callable[[float], bool]) -> None:
        self._sleep_until = sleep_until

    def away(self, until_unix_s: float | None, ranks: int) -> bool:
        """Sleep until then; see :class:`Waiting`."""
        if until_unix_s is not None:
            self._sleep_until(until_unix_s)
        return False


REST_S: Final = 120.0
"""Waits from here on give back what is only kept for a quick restart (s)."""

TOO_SHORT_S: Final = 0.001
"""Waits up to here are none (s)."""
NOT_STARTED: Final = 127
"""Exit code where the command cannot be started, as of shells."""


class Supervisor:
    """Supervises one job.

    Args:
        command: Command to run.
        folder: Folder of the job, held.
        runner: Runs its attempts.
        rules: Rules of what the user allows.
        grace_s: Time from a SIGTERM that is passed on to SIGKILL (s).
        green_start: Whether the first attempt waits for the window too.
        waiting: Returns where the job is between two attempts, and the width that fits there (None: any).
        tell: Shows a line to people.
    """

    def __init__(
        self,
        command: Command,
        folder: JobFolder,
        runner: AttemptRunner,
        rules: RetryRules,
        *,
        grace_s: float = reaper.GRACE_S,
        green_start: bool = False,
        waiting: "Callable[[SignalQueue, LauncherFiles, int], tuple[Waiting, int | None]]" = lambda signals, _, __: (
            LocalWaiting(signals.sleep_until),
            None,
        ),
        tell: Callable[[str], None] = print,
    ) -> None:
        self._command, self._folder, self._runner, self._rules = command, folder, runner, rules
        self._grace_s, self._green_start = grace_s, green_start
        self.opens: Callable[[float, float], float | None] | None = None
        """Returns when to start, at or after a time (s since the epoch), with so many tokens done; None: at once."""
        self._make_waiting, self._tell = waiting, tell
        self._handover = LauncherFiles(folder.path)
        self._state = self._load()
        self._skipped: set[str] = set()
        self._stopping: int | None = None
        self._noticed = False
        self.kill_s: float | None = None
        """When the running attempt is ended by force (monotonic, s); None: never."""

    @property
    def state(self) -> JobState:
        """Where the job is."""
        return self._state

    def run(self) -> int:
        """Supervise the job to its end, or to ours.

        Returns:
            The exit code of the training, or 128 plus the signal that ended it.
        """
        if self._state.phase == "done":
            self._tell(
                f"this job is {self._state.said}; to run it again remove {self._folder.path} or name another --dir"
            )
            return 0
        with SignalQueue() as signals:
            try:
                return self._supervise(signals)
            finally:
                self._runner.close()

    # -- the loop --------------------------------------------------------------------------------------------------

    def _supervise(self, signals: SignalQueue) -> int:
        ended = end_orphans(str(self._folder.path), self._grace_s)
        if ended:
            self._tell(f"ended {ended} processes that an earlier launcher of this job left behind")
        if (code := self._resume()) is not None:
            return code
        waiting, fits = self._make_waiting(signals, self._handover, self._state.ranks)
        if fits is not None:
            self._save(ranks=min(max(fits, self._rules.min_ranks), self._rules.max_ranks))
        while True:
            code = self._wait(signals, waiting)
            if code is not None:
                return code
            code = self._attempt(signals)
            if code is not None:
                return code

    def _wait(self, signals: SignalQueue, waiting: Waiting) -> int | None:
        """Wait until the next attempt may start; return an exit code where this process is to end instead."""
        first = self._state.attempt == 0
        while True:
            now_s = time.time()
            until_s = self._state.not_before_unix_s or now_s
            if until_s <= now_s and self.opens is not None and (self._green_start or not first):
                until_s = self.opens(now_s, self._tokens_done()) or now_s
            wait_s = max(0.0, until_s - now_s)
            if wait_s > TOO_SHORT_S:
                self._save(phase="waiting", not_before_unix_s=until_s)
                self._tell(f"waiting until {iso(until_s)} ({_span(wait_s)})")
            if wait_s > REST_S:
                self._runner.rest()
            code = self._take_signals(signals)
            if code is not None:
                return code
            if self._noticed and isinstance(waiting, LocalWaiting):
                return EXIT_REQUEUE
            later = wait_s > TOO_SHORT_S
            if (later or not first) and waiting.away(until_s if later else None, self._state.ranks):
                self._tell("somebody else starts this job again then")
                return EXIT_REQUEUE
            code = self._take_signals(signals)
            if code is not None:
                return code
            if not later or (time.time() >= until_s and self.opens is None):
                return None

    def _take_signals(self, signals: SignalQueue) -> int | None:
        """Take the signals that came while nothing runs; return an exit code if one of them ends us."""
        while (signum := signals.take()) is not None:
            if signum in STOP:
                self._tell(f"ended by {signal.Signals(signum).name}; the same command goes on")
                return 128 + signum
            if signum == NOTICE:
                self._tell("told that the end is near (SIGUSR1) while nothing runs; the same command goes on")
                self._take_notice()
        return None

    def _attempt(self, signals: SignalQueue) -> int | None:
        """Run one attempt; return an exit code where there is no other."""
        found = self._checkpoint()
        number = self._state.attempt + 1
        self._save(
            phase="running", attempt=number, not_before_unix_s=None, checkpoint=None if found is None else found.key
        )
        try:
            attempt = self._prepare(number, None if found is None else found.path)
        except OSError as error:
            line = f"{self._folder.path} cannot be written: {error.strerror}"
            return self._follow(Outcome(code=os.EX_IOERR, last_lines=(line,)))
        self._handover.mark("start", number, ranks=self._state.ranks)
        try:
            outcome = self._runner.run(attempt, signals, self)
        except LaunchError as error:
            self._save(phase="failed", said=str(error), keeper_pid=None)
            self._tell(str(error))
            return NOT_STARTED
        self._handover.mark("ended", number, code=outcome.code)
        return self._follow(outcome)

    def _follow(self, outcome: Outcome) -> int | None:
        request = self._handover.request()
        if request is not None and request.attempt != self._state.attempt:
            request = None
        left = request is not None or outcome.code == EXIT_REQUEUE
        progress = self._handover.progress()
        steps = -1 if progress is None else progress.steps
        found = self._checkpoint()
        key = None if found is None else found.key
        if self._stopping is not None and not left:
            self._save(phase="stopped", code=outcome.code, keeper_pid=None, steps=max(steps, self._state.steps))
            self._tell(f"attempt {self._state.attempt} was ended ({outcome}); the same command goes on")
            return _exit_code(outcome)
        state = classify_exit(
            self._state,
            outcome,
            request,
            rules=self._rules,
            progressed=steps > self._state.steps or (key is not None and key != self._state.checkpoint),
            has_checkpoint=None if self._rules.checkpoint_folder is None else found is not None,
            unix_s=time.time(),
        )
        mean_s = timeline.mean_resize_s(self._folder.path)
        self._state = replace(state, steps=max(steps, self._state.steps), checkpoint=key, resize_s=mean_s)
        self._tell(state.said)
        self._save()
        if self._state.phase == "failed":
            return _exit_code(outcome) or 1
        if self._state.phase == "done":
            return 0
        if self._stopping is not None:
            self._save(phase="stopped")
            return EXIT_REQUEUE
        return None

    # -- an attempt --------------------------------------------------------------------------------------------------

    def _prepare(self, number: int, checkpoint: Path | None) -> Attempt:
        state, rules = self._state, self._rules
        for name in ("request.json", "notice.json"):
            (self._folder.path / name).unlink(missing_ok=True)
        self._noticed = False
        self._handover.write(
            Offer(
                attempt=number,
                ranks=state.ranks,
                min_ranks=rules.min_ranks,
                max_ranks=rules.max_ranks,
                can_wait=not self._command.several_nodes,
                resize_s=state.resize_s,
                job_unix_s=state.created_unix_s,
            )
        )
        environ = {**os.environ, ENV_DIR: str(self._folder.path), ENV_JOB: self._job()}
        if self._command.several_nodes:
            # Torch 2.13: a node that joins later ends all after 60 s, as rank 0 does not publish its address anew
            # (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, next_rendezvous).
            environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        environ.pop(ENV_CHECKPOINT, None)
        if checkpoint is not None:
            environ[ENV_CHECKPOINT] = str(checkpoint)
        typed = rules.min_ranks == rules.max_ranks == (self._command.ranks or 1) and not self._command.has_placeholder
        text = "" if checkpoint is None else f" from {checkpoint}"
        width = f" on {state.ranks} rank{'s' * (state.ranks > 1)}" if rules.max_ranks > 1 else ""
        self._tell(f"attempt {number}{width}{text}")
        return Attempt(
            number=number,
            ranks=state.ranks,
            as_typed=typed,
            checkpoint=None if checkpoint is None else str(checkpoint),
            environ=environ,
        )

    def started(self, keeper_pid: int) -> None:
        """Note under which reaper the attempt runs."""
        found = reaper.stat(keeper_pid)
        self._save(keeper_pid=keeper_pid, keeper_start_ticks=None if found is None else found[2])

    def heed(self, signum: int) -> None:
        """Do what a signal means while an attempt runs."""
        if signum in STOP:
            again, self._stopping = self._stopping is not None, signum
            self.kill_s = time.monotonic() + (0.0 if again else self._grace_s)
            if not again:
                name = signal.Signals(signum).name
                self._tell(f"{name}: the training is asked to end, and killed if it has not after {self._grace_s:g} s")
                self._runner.forward(signum)
        elif signum == NOTICE:
            self._tell("SIGUSR1: the training is asked to save and leave")
            self._take_notice()
        else:
            self._runner.forward(signum)

    def _job(self) -> str:
        """Return a name of the job that no other has: its start, and a digest of its folder."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._state.created_unix_s))
        return f"{stamp}-{hashlib.sha256(str(self._folder.path).encode()).hexdigest()[:4]}"

    def _take_notice(self) -> None:
        """Hand a notice to whoever reads it: the training, or the batch system that this program waits in."""
        self._noticed = True
        notice = Notice(attempt=self._state.attempt, reason="SIGUSR1 to the launcher", by_unix_s=_job_end(os.environ))
        try:
            self._handover.write(notice)
        except OSError as error:
            self._tell(f"but the notice cannot be written: {error.strerror}")

    def _checkpoint(self) -> checkpoints.Checkpoint | None:
        if self._rules.checkpoint_folder is None:
            return None
        found = checkpoints.newest(Path(self._rules.checkpoint_folder))
        for text in found.skipped:
            if text not in self._skipped:
                self._skipped.add(text)
                self._tell(f"checkpoint skipped: {text}")
        return found.newest

    # -- state -----------------------------------------------------------------------------------------------------

    def _load(self) -> JobState:
        state, why_not = self._folder.load()
        if state is None:
            if why_not:
                self._tell(why_not)
            offer = self._handover.offer()
            ranks = self._rules.max_ranks if self._command.ranks is None else self._command.ranks
            state = JobState(
                command=self._command.words,
                created_unix_s=time.time() if offer is None or offer.job_unix_s is None else offer.job_unix_s,
                attempt=0 if offer is None else offer.attempt,
                ranks=ranks if offer is None else offer.ranks,
            )
        ranks = min(max(state.ranks, self._rules.min_ranks), self._rules.max_ranks)
        return replace(state, ranks=ranks)

    def _resume(self) -> int | None:
        """Take up the job where an earlier supervisor, killed or stopped, has left it; as :meth:`_attempt` returns."""
        state = self._state
        if state.phase == "running":
            # Nobody saw how that attempt ended: what it asked for still holds.
            self._handover.mark("ended", state.attempt)
            self._tell(f"takes up attempt {state.attempt}, whose launcher was killed")
            request = self._handover.request()
            if request is not None and request.attempt == state.attempt:
                return self._follow(Outcome(code=EXIT_REQUEUE))
            self._save(phase="waiting", keeper_pid=None, said="the launcher was killed during this attempt")
        elif state.phase == "failed":
            self._save(phase="waiting", failures=0, leaves=0, not_before_unix_s=None)
            self._tell(f"tried again after: {state.said}")
        elif state.attempt > 0:
            self._tell(f"goes on after attempt {state.attempt}: {state.said or 'its launcher was killed'}")
        return None

    def _save(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        wrong = self._folder.save(self._state)
        if wrong:
            self._tell(wrong)

    def _tokens_done(self) -> float:
        progress = self._handover.progress()
        return 0.0 if progress is None else progress.tokens


def _exit_code(outcome: Outcome) -> int:
    """Return a code as shells do for a process that a signal killed."""
    return outcome.code if outcome.code >= 0 else 128 - outcome.code


def _job_end(environ: Mapping[str, str]) -> float | None:
    """Return when Slurm ends the job: SLURM_JOB_END_TIME (sbatch(1), Slurm 22.05 on), s since the epoch."""
    try:
        return float(environ["SLURM_JOB_END_TIME"])
    except (KeyError, ValueError):
        return None


def _span(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
