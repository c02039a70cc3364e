"""How an attempt is run: as the command that was typed, or by a resident agent that keeps torch warm."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from greentrain.errors import GreenTrainError
from greentrain.launch.inbox import PASSED_ON, HasFileno, Inbox
from greentrain.launch.kept import Kept
from greentrain.launch.verdict import Outcome

AGENT: Final = "from greentrain.launch.agent import main; main()"
SWEEP_S: Final = 5.0
"""From SIGTERM to SIGKILL for what workers leave behind (s)."""


class LaunchError(GreenTrainError):
    """A command cannot be started at all; another attempt would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What is started."""

    number: int
    """From 1 on."""
    ranks: int
    words: tuple[str, ...]
    """The command."""
    environ: Mapping[str, str]


class Guide(Protocol):
    """Says what to do while an attempt runs: the supervisor."""

    @property
    def kill_s(self) -> float | None:
        """When to end the attempt by force (monotonic, s); None: never."""
        ...

    def heed(self, signum: int) -> None:
        """Do what a signal means."""
        ...

    def started(self, keeper_pid: int) -> None:
        """Note under which keeper the attempt runs."""
        ...


class Engine(Protocol):
    """Runs attempts, one at a time."""

    def run(self, attempt: Attempt, inbox: Inbox, guide: Guide) -> Outcome:
        """Run an attempt to its end, when nothing of it is left.

        Args:
            attempt: What to run.
            inbox: Signals.
            guide: What to do about them.

        Raises:
            LaunchError: It cannot be started, and could not be another time.
        """
        ...

    def forward(self, signum: int) -> None:
        """Send a signal to the running attempt."""
        ...

    def rest(self) -> None:
        """Give back what is only of use for another attempt soon."""
        ...

    def close(self) -> None:
        """End everything. Idempotent."""
        ...


class CommandEngine:
    """Starts the command anew for each attempt.

    Args:
        listen: Whether to remember the last lines of its standard error, which is then a pipe and no terminal.
    """

    def __init__(self, *, listen: bool) -> None:
        self._listen = listen
        self._kept: Kept | None = None

    def run(self, attempt: Attempt, inbox: Inbox, guide: Guide) -> Outcome:
        """Run the command.

        Raises:
            LaunchError: It cannot be started.
        """
        start_s = time.monotonic()
        try:
            self._kept = kept = Kept(attempt.words, attempt.environ, listen=self._listen)
        except OSError as error:
            raise LaunchError(f"cannot start a process: {error.strerror}") from error
        try:
            guide.started(kept.keeper_pid)
            while not kept.gone:
                serve(kept, inbox, guide)
        finally:
            kept.close()
            self._kept = None
        if kept.failed_errno is not None:
            raise LaunchError(f"cannot start {attempt.words[0]!r}: {os.strerror(kept.failed_errno)}")
        assert kept.code is not None
        return Outcome(code=kept.code, last_lines=kept.last_lines, lasted_s=time.monotonic() - start_s)

    def forward(self, signum: int) -> None:
        """Send a signal to the command."""
        if self._kept is not None:
            forward(self._kept, signum)

    def rest(self) -> None:
        """Do nothing: nothing is kept."""

    def close(self) -> None:
        """End the command."""
        if self._kept is not None:
            self._kept.close()


class ElasticEngine:
    """Runs a Python script on several ranks, with an agent that stays for all attempts of the job.

    The agent is a process of its own, as it imports torch and as torch's agent wants SIGTERM for itself; the supervisor
    stays small and hears every signal. Agent, fork server and workers are one tree under one keeper.

    Args:
        python: The interpreter with its options.
        job: What the agent must know once; see ``greentrain.launch.agent.Job``.
        listen: As of CommandEngine.
    """

    def __init__(self, python: Sequence[str], job: Mapping[str, Any], *, listen: bool) -> None:
        self._python, self._job, self._listen = tuple(python), dict(job), listen
        self._kept: Kept | None = None
        self._line: socket.socket | None = None
        self._text = b""

    def run(self, attempt: Attempt, inbox: Inbox, guide: Guide) -> Outcome:
        """Run the script on as many ranks as the attempt has.

        Raises:
            LaunchError: The agent cannot be started.
        """
        start_s = time.monotonic()
        if self._kept is None:
            self._start(attempt)
        kept, line = self._kept, self._line
        assert kept is not None and line is not None
        guide.started(kept.keeper_pid)
        self._order(line, attempt)
        said: dict[str, Any] | None = None
        while not kept.gone and said is None:
            if line in serve(kept, inbox, guide, [line]):
                said = self._hear(line)
                if said is None and line.fileno() < 0:
                    break
        if said is None:
            while not kept.gone:
                serve(kept, inbox, guide)
        else:
            kept.sweep(SWEEP_S)
            while not kept.gone and not kept.swept:
                serve(kept, inbox, guide)
        lasted_s = time.monotonic() - start_s
        if kept.gone:
            lines = kept.last_lines
            self.close()
            if kept.failed_errno is not None:
                raise LaunchError(f"cannot start {self._python[0]!r}: {os.strerror(kept.failed_errno)}")
            if said is None:
                assert kept.code is not None
                return Outcome(code=kept.code, last_lines=lines, lasted_s=lasted_s)
        assert said is not None
        if said.get("refused"):
            self.close()
            raise LaunchError(str(said["refused"]))
        lines = kept.last_lines or tuple(str(said.get("message", "")).strip().splitlines()[-20:])
        return Outcome(code=int(said["code"]), last_lines=lines, lasted_s=lasted_s)

    def forward(self, signum: int) -> None:
        """Send a signal to the agent, which passes it on to its workers."""
        if self._kept is not None:
            forward(self._kept, signum)

    def rest(self) -> None:
        """End the agent: a job that waits for hours needs no memory."""
        self.close()

    def close(self) -> None:
        """End the agent and all below it."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self._text = b""

    def _start(self, attempt: Attempt) -> None:
        ours, theirs = socket.socketpair()
        words = [*self._python, "-c", AGENT, str(theirs.fileno()), json.dumps(self._job)]
        try:
            self._kept = Kept(words, attempt.environ, fds=[theirs.fileno()], listen=self._listen)
        except OSError as error:
            ours.close()
            raise LaunchError(f"cannot start a process: {error.strerror}") from error
        finally:
            theirs.close()
        self._line = ours

    def _order(self, line: socket.socket, attempt: Attempt) -> None:
        order = {
            "attempt": attempt.number,
            "ranks": attempt.ranks,
            "words": attempt.words,
            "environ": dict(attempt.environ),
        }
        with contextlib.suppress(OSError):  # the agent has ended; its keeper says so
            line.sendall(json.dumps(order).encode() + b"\n")

    def _hear(self, line: socket.socket) -> dict[str, Any] | None:
        try:
            data = line.recv(65536)
        except OSError:
            data = b""
        if not data:
            line.close()
            return None
        self._text += data
        word, newline, rest = self._text.partition(b"\n")
        if not newline:
            return None
        self._text = rest
        said: dict[str, Any] = json.loads(word)
        return said


def serve(kept: Kept, inbox: Inbox, guide: Guide, files: Sequence[HasFileno] = ()) -> Sequence[HasFileno]:
    """Wait for the next thing to happen, and do what belongs to it; return which of the files can be read."""
    tee = kept.stderr
    listening = [] if tee is None or not tee.open else [tee]
    open_files = [file for file in files if file.fileno() >= 0]
    kill_s = guide.kill_s
    left_s = None if kill_s is None else max(0.0, kill_s - time.monotonic())
    ready = inbox.wait(left_s, [kept, *listening, *open_files])
    while (signum := inbox.take()) is not None:
        guide.heed(signum)
    if tee is not None and tee in ready:
        tee.pass_on()
    if kept in ready:
        kept.hear()
    if guide.kill_s is not None and time.monotonic() >= guide.kill_s:
        kept.end(0.0)
    return [file for file in open_files if file in ready]


def forward(kept: Kept, signum: int) -> None:
    """Pass a signal on as its sender means it.

    SIGTERM goes to the command alone, which ends its own processes in its own order: workers of a data loader that get
    it first would make a training crash that is about to save. SIGINT goes to all, as a terminal's does.
    """
    if signum == signal.SIGINT:
        kept.signal_group(signum)
    elif signum in PASSED_ON:
        kept.signal_who_heed(signum)
    else:
        kept.signal(signal.SIGTERM)
