"""How an attempt is run: as the command that was typed, or by a resident agent that keeps torch warm.

Either runs below a reaper (:class:`ReaperClient`), so the supervisor hears of its end and knows that nothing is left of
it. Processes of a job that outlived their supervisor are found by what they were started with, and ended
(:func:`end_orphans`). The signals that reach the supervisor are taken one after the other by its own loop and never in
the middle of it (:class:`SignalQueue`).
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from greentrain.control.launch import reaper
from greentrain.control.launch.commands import Command
from greentrain.control.launch.outcome import Outcome
from greentrain.control.launcher_protocol import ENV_CHECKPOINT, ENV_DIR
from greentrain.errors import ConfigError, GreenTrainError

if TYPE_CHECKING:
    from _typeshed import HasFileno


def orphans(folder: str) -> list[int]:
    """Return all processes of this user that were started for a launch folder, but this one and its parents.

    Args:
        folder: Launch folder, as in their variable GREENTRAIN_LAUNCH_DIR.
    """
    if not folder:
        return []
    wanted = f"{ENV_DIR}={folder}".encode()
    above = _above(os.getpid())
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in above:
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue  # ended, or somebody else's
            if wanted in environ.split(b"\0"):
                out.append(int(name))
    return reaper.living(out)


def end_orphans(folder: str, grace_s: float) -> int:
    """End them, and all below them; return how many there were.

    A reaper among them ends its command by itself, so it is given the time for that before anything is killed.

    Args:
        folder: Launch folder, as :func:`orphans` takes it.
        grace_s: Time from SIGTERM to SIGKILL (s).
    """
    seen: set[int] = set()

    def find() -> list[int]:
        pids = orphans(folder)
        found = [*pids, *(child for pid in pids for child in reaper.below(pid))]
        seen.update(found)
        return list(dict.fromkeys(found))

    reaper.end_all(find, grace_s)
    return len(seen)


def _above(pid: int) -> set[int]:
    out = set()
    while pid > 0 and pid not in out:
        out.add(pid)
        found = reaper.stat(pid)
        pid = 0 if found is None else found[1]
    return out


LINES: Final = 20
"""Last lines of a command's standard error that are remembered."""


class ReaperClient:
    """A command under a reaper.

    Args:
        command: Command to start.
        environ: Environment of the command, with ENV_DIR.
        fds: File descriptors that it inherits.
        listen: Whether its standard error passes through here, so that its last lines are known.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], *, fds: Sequence[int] = (), listen: bool = False
    ) -> None:
        self._folder = environ.get(ENV_DIR, "")
        self._line, theirs = socket.socketpair()
        self.stderr: _Tee | None = None
        """Where its standard error arrives; None: it has ours."""
        reads, writes = os.pipe() if listen else (-1, -1)
        words = [sys.executable, "-I", "-S", reaper.__file__, str(theirs.fileno()), ",".join(map(str, fds)), *command]
        try:
            self._keeper = subprocess.Popen(
                words,
                env=dict(environ),
                pass_fds=(theirs.fileno(), *fds),
                stderr=writes if listen else None,
                start_new_session=True,
            )
        except OSError:
            self._line.close()
            if listen:
                os.close(reads)
            raise
        finally:
            theirs.close()
            if listen:
                os.close(writes)
        if listen:
            self.stderr = _Tee(reads)
        self.keeper_pid = self._keeper.pid
        self.pid: int | None = None
        """Process id of the command, once it is known to run."""
        self.failed_errno: int | None = None
        """Why it could not be started."""
        self.code: int | None = None
        """How it ended, below 0 for a signal; None: not yet."""
        self.swept = False
        """Whether the last :meth:`sweep` is done."""
        self.gone = False
        """True when command and reaper, and all below them, have ended."""
        self._text = ""

    def fileno(self) -> int:
        """Return what can be read when there is something to hear."""
        return self._line.fileno()

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The end of its standard error; empty where that was not read."""
        return () if self.stderr is None else self.stderr.last_lines

    def hear(self) -> None:
        """Take in what the reaper says; blocks until it says something."""
        try:
            data = self._line.recv(4096).decode()
        except OSError:
            data = ""
        if not data:
            self._end()
            return
        *words, self._text = (self._text + data).split("\n")
        for word in words:
            what, _, value = word.partition(" ")
            if what == "started":
                self.pid = int(value)
            elif what == "failed":
                self.failed_errno = int(value)
            elif what == "swept":
                self.swept = True
            elif what == "code":
                self.code = int(value)

    def forward(self, signum: int) -> None:
        """Pass a signal on as its sender means it.

        SIGTERM goes to the command alone, which ends its own processes in its own order: workers of a data loader that
        get it first would make a training crash that is about to save. SIGINT goes to its process group, as a
        terminal's does. PASSED_ON goes to all below the reaper that have a handler for it; the others would die of it.
        """
        if signum == signal.SIGINT:
            self._say(f"group {int(signum)}")
        elif signum in PASSED_ON:
            self._say(f"heed {int(signum)}")
        else:
            self._say(f"signal {int(signal.SIGTERM)}")

    def sweep(self, grace_s: float) -> None:
        """End what the command has left behind; ``swept`` when that is done."""
        self.swept = False
        self._say(f"sweep {grace_s:g}")

    def end(self, grace_s: float) -> None:
        """End everything: SIGTERM, and SIGKILL after a time (s)."""
        self._say(f"end {grace_s:g}")

    def close(self) -> None:
        """Let go: what still runs is ended by the reaper, which is waited for. Idempotent."""
        if not self.gone:
            self._line.close()
            self._end()

    def _say(self, word: str) -> None:
        with contextlib.suppress(OSError):  # it has ended; hear() will say so
            self._line.sendall(f"{word}\n".encode())

    def _end(self) -> None:
        code = self._keeper.wait()
        self._line.close()
        if self.code is None:
            # The reaper was killed, and the command with it (PR_SET_PDEATHSIG); others may be left.
            self.code = code if code < 0 else -9
            end_orphans(self._folder, reaper.GRACE_S)
        if self.stderr is not None:
            self.stderr.close()
        self.gone = True


class _Tee:
    """Passes standard error on and remembers its end.

    Args:
        fd: File descriptor on which it arrives.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[str] = deque(maxlen=LINES)
        self._rest = b""
        os.set_blocking(fd, False)

    def fileno(self) -> int:
        """Return what can be read when there is something to pass on."""
        return self._fd

    @property
    def open(self) -> bool:
        """False when nobody can write to it any more."""
        return self._fd >= 0

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last whole lines, and one that was not ended."""
        rest = [self._rest.decode(errors="replace")] if self._rest.strip() else []
        return tuple([*self._lines, *rest][-LINES:])

    def pass_on(self) -> None:
        """Pass on what has arrived."""
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os.close(self._fd)
            self._fd = -1
            return
        try:
            while data_left := data:
                written = os.write(2, data_left)
                self._remember(data_left[:written])
                data = data_left[written:]
        except OSError:
            self._remember(data)  # nobody reads ours: the training goes on

    def close(self) -> None:
        """Pass the rest on and close."""
        while self._fd >= 0:
            before = self._rest, len(self._lines)
            self.pass_on()
            if self._fd >= 0 and (self._rest, len(self._lines)) == before:
                os.close(self._fd)
                self._fd = -1

    def _remember(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-4096:]
        self._lines.extend(line.decode(errors="replace") for line in lines)


STOP: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""They end the supervisor, after the training."""
NOTICE: Final = signal.SIGUSR1
"""Somebody ends us soon: Slurm's ``--signal=B:USR1@120`` (sbatch(1), slurm.schedmd.com, 2026-11-21)."""
PASSED_ON: Final = (signal.SIGUSR2, signal.SIGCONT)
"""The training may know what they mean: SIGCONT ends a pause."""


class SignalQueue:
    """Collects signals while it is open; in the main thread."""

    def __init__(self) -> None:
        self._signals: deque[int] = deque()
        self._before: dict[int, Any] = {}
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)

    def __enter__(self) -> "SignalQueue":
        self._fd_before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for signum in (*STOP, NOTICE, *PASSED_ON):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
                self._before[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._fd_before)
        self._woken.close()
        self._wake.close()

    def take(self) -> int | None:
        """Return the oldest signal that nobody has taken."""
        return self._signals.popleft() if self._signals else None

    def wait(self, timeout_s: float | None, files: "Sequence[HasFileno]" = ()) -> "list[HasFileno]":
        """Wait for a signal, or until one of the files can be read.

        Args:
            timeout_s: Longest wait (s); None: no bound.
            files: Files to wait for as well.

        Returns:
            The files that can be read.
        """
        if self._signals:
            timeout_s = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for file in files:
                selector.register(file, selectors.EVENT_READ, file)
            ready = selector.select(timeout_s)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        return [key.data for key, _ in ready if key.data is not None]

    def sleep_until(self, unix_s: float) -> bool:
        """Sleep; return True if a signal came before that time (s since the epoch)."""
        while not self._signals:
            left_s = unix_s - time.time()
            if left_s <= 0:
                return False
            self.wait(min(left_s, 60.0))  # the clock may be set meanwhile
        return True

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self._signals.append(signum)


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

    def heed(self, signum: int) -> None:
        """Do what a signal means."""

    def started(self, keeper_pid: int) -> None:
        """Note under which reaper the attempt runs."""


class AttemptRunner(ABC):
    """Runs attempts, one at a time.

    Args:
        command: The command.
        listen: Whether to remember the last lines of its standard error, which is then a pipe and no terminal.
    """

    def __init__(self, command: Command, *, listen: bool) -> None:
        self._command, self._listen = command, listen
        self._client: ReaperClient | None = None

    @abstractmethod
    def run(self, attempt: Attempt, signals: SignalQueue, guide: Guide) -> Outcome:
        """Run an attempt to its end, when nothing of it is left.

        Args:
            attempt: Attempt to run.
            signals: The signals that reach the supervisor.
            guide: Guide that says what to do about them.

        Raises:
            LaunchError: It cannot be started, and could not be another time.
        """

    def forward(self, signum: int) -> None:
        """Send a signal to the running attempt."""
        if self._client is not None:
            self._client.forward(signum)

    @abstractmethod
    def rest(self) -> None:
        """Give back what is only of use for another attempt soon."""

    def close(self) -> None:
        """End everything. Idempotent."""
        if self._client is not None:
            self._client.close()
            self._client = None


class CommandRunner(AttemptRunner):
    """Starts the command anew for each attempt."""

    def run(self, attempt: Attempt, signals: SignalQueue, guide: Guide) -> Outcome:
        """Run the command."""
        start_s = time.monotonic()
        words = self._command.of(None if attempt.as_typed else attempt.ranks, attempt.checkpoint)
        try:
            self._client = client = ReaperClient(words, attempt.environ, listen=self._listen)
        except OSError as error:
            raise LaunchError(f"cannot start a process: {error.strerror}") from error
        try:
            guide.started(client.keeper_pid)
            while not client.gone:
                serve(client, signals, guide)
        finally:
            self.close()
        if client.failed_errno is not None:
            raise LaunchError(f"cannot start {words[0]!r}: {os.strerror(client.failed_errno)}")
        assert client.code is not None
        return Outcome(code=client.code, last_lines=client.last_lines, lasted_s=time.monotonic() - start_s)

    def rest(self) -> None:
        """Do nothing: nothing is kept."""


class ElasticRunner(AttemptRunner):
    """Runs a Python script on several ranks, with an agent that stays for all attempts of the job.

    The agent is a process of its own, as it imports torch and as torch's agent wants SIGTERM for itself; the supervisor
    stays small and hears every signal. Agent, fork server and workers are one tree under one reaper.

    Args:
        command: A script under python or torchrun, on one node.
        preload: Modules that the fork server imports beside those of the script.
        warm: Whether workers are forked; otherwise each one starts and imports anew.
        listen: Whether to remember the last lines of standard error; see :class:`AttemptRunner`.

    Raises:
        ConfigError: The interpreter of the command has no torch, or not this package.
    """

    def __init__(self, command: Command, *, preload: Sequence[str] = (), warm: bool = True, listen: bool) -> None:
        assert command.script_at is not None and command.python is not None
        super().__init__(command, listen=listen)
        self._python = command.interpreter
        _check_interpreter(self._python)
        self._job = {
            "kind": command.kind,
            "script": command.words[command.script_at],
            "module": command.module,
            "preload": list(preload),
            "warm": warm,
        }
        self._line: socket.socket | None = None
        self._text = b""

    def run(self, attempt: Attempt, signals: SignalQueue, guide: Guide) -> Outcome:
        """Run the script on as many ranks as the attempt has."""
        start_s = time.monotonic()
        if self._client is None:
            self._start(attempt)
        client, line = self._client, self._line
        assert client is not None and line is not None
        guide.started(client.keeper_pid)
        self._order(line, attempt)
        said: dict[str, Any] | None = None
        while not client.gone and said is None:
            if line in serve(client, signals, guide, [line]):
                said = self._hear(line)
                if said is None and line.fileno() < 0:
                    break
        if said is None:
            while not client.gone:
                serve(client, signals, guide)
        else:
            client.sweep(reaper.LEFT_S)
            while not client.gone and not client.swept:
                serve(client, signals, guide)
        lasted_s = time.monotonic() - start_s
        if client.gone:
            lines = client.last_lines
            self.close()
            if client.failed_errno is not None:
                raise LaunchError(f"cannot start {self._python[0]!r}: {os.strerror(client.failed_errno)}")
            if said is None:
                assert client.code is not None
                return Outcome(code=client.code, last_lines=lines, lasted_s=lasted_s)
        assert said is not None
        if said.get("refused"):
            self.close()
            raise LaunchError(str(said["refused"]))
        lines = client.last_lines or tuple(str(said.get("message", "")).strip().splitlines()[-20:])
        return Outcome(code=int(said["code"]), last_lines=lines, lasted_s=lasted_s)

    def rest(self) -> None:
        """End the agent: a job that waits for hours needs no memory."""
        self.close()

    def close(self) -> None:
        """End the agent and all below it."""
        if self._line is not None:
            self._line.close()
            self._line = None
        super().close()
        self._text = b""

    def _start(self, attempt: Attempt) -> None:
        ours, theirs = socket.socketpair()
        words = [*self._python, "-c", AGENT, str(theirs.fileno()), json.dumps(self._job)]
        try:
            self._client = ReaperClient(words, attempt.environ, fds=[theirs.fileno()], listen=self._listen)
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
        with contextlib.suppress(OSError):  # the agent has ended; its reaper says so
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


def serve(
    client: ReaperClient, signals: SignalQueue, guide: Guide, files: "Sequence[HasFileno]" = ()
) -> "Sequence[HasFileno]":
    """Wait for the next thing to happen, and do what belongs to it; return which of the files can be read."""
    tee = client.stderr
    listening = [] if tee is None or not tee.open else [tee]
    open_files = [file for file in files if file.fileno() >= 0]
    kill_s = guide.kill_s
    left_s = None if kill_s is None else max(0.0, kill_s - time.monotonic())
    ready = signals.wait(left_s, [client, *listening, *open_files])
    while (signum := signals.take()) is not None:
        guide.heed(signum)
    if tee is not None and tee in ready:
        tee.pass_on()
    if client in ready:
        client.hear()
    if guide.kill_s is not None and time.monotonic() >= guide.kill_s:
        client.end(0.0)
    return [file for file in open_files if file in ready]
