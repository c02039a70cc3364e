"""How an attempt is run: as the command that was typed, or by a resident agent that keeps torch warm."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from greentrain.control.launch import reaper
from greentrain.control.launch.commands import Command
from greentrain.control.launch.outcome import Outcome
from greentrain.control.launch.reaper_client import ReaperClient
from greentrain.control.launch.signals import PASSED_ON, HasFileno, SignalQueue
from greentrain.control.launcher_protocol import ENV_CHECKPOINT
from greentrain.errors import ConfigError, GreenTrainError

AGENT: Final = "from greentrain.control.launch.agent import main; main()"


class LaunchError(GreenTrainError):
    """A command cannot be started at all; another attempt would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What is started."""

    number: int
    """From 1 on."""
    ranks: int
    as_typed: bool
    """Whether the command says its width itself."""
    checkpoint: str | None
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

    def run(self, attempt: Attempt, inbox: SignalQueue, guide: Guide) -> Outcome:
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
        command: The command.
        listen: Whether to remember the last lines of its standard error, which is then a pipe and no terminal.
    """

    def __init__(self, command: Command, *, listen: bool) -> None:
        self._command, self._listen = command, listen
        self._kept: ReaperClient | None = None

    def run(self, attempt: Attempt, inbox: SignalQueue, guide: Guide) -> Outcome:
        """Run the command.

        Raises:
            LaunchError: It cannot be started.
        """
        start_s = time.monotonic()
        words = self._command.of(None if attempt.as_typed else attempt.ranks, attempt.checkpoint)
        try:
            self._kept = kept = ReaperClient(words, attempt.environ, listen=self._listen)
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
            raise LaunchError(f"cannot start {words[0]!r}: {os.strerror(kept.failed_errno)}")
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
        command: A script under python or torchrun, on one node.
        preload: Modules that the fork server imports beside those of the script.
        warm: Whether workers are forked; otherwise each one starts and imports anew.
        listen: As of CommandEngine.

    Raises:
        ConfigError: The interpreter of the command has no torch, or not this package.
    """

    def __init__(self, command: Command, *, preload: Sequence[str] = (), warm: bool = True, listen: bool) -> None:
        assert command.script_at is not None and command.python is not None
        self._command, self._listen = command, listen
        self._python = command.interpreter
        _check_interpreter(self._python)
        self._job = {
            "kind": command.kind,
            "script": command.words[command.script_at],
            "module": command.module,
            "preload": list(preload),
            "warm": warm,
        }
        self._kept: ReaperClient | None = None
        self._line: socket.socket | None = None
        self._text = b""

    def run(self, attempt: Attempt, inbox: SignalQueue, guide: Guide) -> Outcome:
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
            kept.sweep(reaper.LEFT_S)
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
            self._kept = ReaperClient(words, attempt.environ, fds=[theirs.fileno()], listen=self._listen)
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
            "words": self._command.for_agent(attempt.ranks, attempt.checkpoint),
            "environ": {ENV_CHECKPOINT: attempt.environ.get(ENV_CHECKPOINT)},
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


def _check_interpreter(python: Sequence[str]) -> None:
    """Check, before anything starts, that another interpreter than ours can be the agent."""
    if python[0] == sys.executable or Path(python[0]).parent == Path(sys.executable).parent:
        return
    look = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'greentrain'))))"
    try:
        found = subprocess.run([*python, "-c", look], capture_output=True, timeout=60.0).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        found = False
    if not found:
        raise ConfigError(
            f"the command runs {python[0]}, which lacks torch or greentrain, so its width cannot be set: activate the"
            f" environment that has both, or name its python ({sys.executable} is that of this launcher)"
        )


def serve(kept: ReaperClient, inbox: SignalQueue, guide: Guide, files: Sequence[HasFileno] = ()) -> Sequence[HasFileno]:
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


def forward(kept: ReaperClient, signum: int) -> None:
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
