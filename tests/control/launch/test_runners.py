"""Attempts through a reaper and an agent that a test plays, word by word; signals; what a job leaves behind."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from greentrain.control.launch import reaper, runners
from greentrain.control.launch.commands import Command
from greentrain.control.launch.outcome import Outcome
from greentrain.control.launch.runners import (
    LINES,
    Attempt,
    CommandRunner,
    ElasticRunner,
    LaunchError,
    ReaperClient,
    SignalQueue,
    end_orphans,
    orphans,
    serve,
)
from greentrain.control.launcher_protocol import ENV_CHECKPOINT, ENV_DIR
from greentrain.errors import ConfigError
from tests.helpers.child import running


class Keeper:
    """The reaper, played by a test: what it hears, and what it says. Also an agent, where one is started."""

    def __init__(self, words: Sequence[str], **how: Any) -> None:
        self.words, self.how = list(words), how
        self.pid, self.code = 4711, 0
        fds = how["pass_fds"]
        self.line = socket.socket(fileno=os.dup(fds[0]))
        self.agent = socket.socket(fileno=os.dup(fds[1])) if len(fds) > 1 else None
        self.stderr = None if how["stderr"] is None else os.dup(how["stderr"])
        self.waited = 0
        self._heard: list[str] = []

    @property
    def command(self) -> list[str]:
        return self.words[6:]

    def say(self, text: str) -> None:
        self.line.sendall(text.encode())

    def heard(self) -> list[str]:
        """Return all words that the launcher has said."""
        self.line.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._heard += self.line.recv(65536).decode().splitlines()
        self.line.setblocking(True)
        return self._heard

    def orders(self) -> list[dict[str, Any]]:
        """Return what the agent was told."""
        assert self.agent is not None
        self.agent.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return [json.loads(line) for line in self.agent.recv(65536).splitlines()]
        return []

    def answer(self, **said: Any) -> None:
        assert self.agent is not None
        self.agent.sendall(json.dumps(said).encode() + b"\n")

    def print(self, text: bytes) -> None:
        assert self.stderr is not None
        os.write(self.stderr, text)

    def end(self, *words: str, code: int = 0) -> None:
        """Say the last words and be gone."""
        self.say("".join(f"{word}\n" for word in words))
        self.code = code
        self.leave()

    def leave(self) -> None:
        self.line.close()
        if self.agent is not None:
            self.agent.close()
        if self.stderr is not None:
            os.close(self.stderr)
        self.agent = self.stderr = None

    def wait(self) -> int:
        self.waited += 1
        return self.code


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Keeper]]:
    """Reapers that were started."""
    started: list[Keeper] = []

    def start(words: Sequence[str], **how: Any) -> Keeper:
        started.append(Keeper(words, **how))
        return started[-1]

    monkeypatch.setattr(runners, "subprocess", SimpleNamespace(Popen=start))
    yield started
    for keeper in started:
        with contextlib.suppress(OSError):
            keeper.leave()


@dataclass
class Watch:
    """A guide, and the signals it heeds."""

    kill_s: float | None = None
    heeded: list[int] = field(default_factory=list)
    keepers: list[int] = field(default_factory=list)
    begun: Callable[[], object] = lambda: None

    def heed(self, signum: int) -> None:
        self.heeded.append(signum)

    def started(self, keeper_pid: int) -> None:
        self.keepers.append(keeper_pid)
        self.begun()


class Quiet(SignalQueue):
    """Before each wait a test does all that is to happen in it."""

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.meanwhile = list(meanwhile)
        self.timeouts: list[float | None] = []

    def __enter__(self) -> "Quiet":
        super().__enter__()
        return self

    def wait(self, timeout_s: float | None, files: Sequence[Any] = ()) -> list[Any]:
        self.timeouts.append(timeout_s)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        pending = bool(self._signals)
        found = super().wait(0.0, files)
        assert found or pending or timeout_s is not None, "it would wait for ever"
        return found


def attempt(number: int = 1, ranks: int = 2, as_typed: bool = False, checkpoint: str | None = None) -> Attempt:
    environ = {} if checkpoint is None else {ENV_CHECKPOINT: checkpoint}
    return Attempt(number=number, ranks=ranks, as_typed=as_typed, checkpoint=checkpoint, environ=environ)


# -- one command ---------------------------------------------------------------------------------------------------


def test_a_command_is_started_below_a_reaper_of_its_own(keepers: list[Keeper]) -> None:
    client = ReaperClient(["train", "-x"], {"A": "b"}, fds=[])
    (keeper,) = keepers
    program, *options = keeper.words
    line, fds = options[3:5]
    assert (
        program == sys.executable and options[:3] == ["-I", "-S", reaper.__file__] and keeper.command == ["train", "-x"]
    )
    assert keeper.how["pass_fds"] == (int(line),) and fds == "" and keeper.how["env"] == {"A": "b"}
    assert keeper.how["start_new_session"] is True and keeper.how["stderr"] is None and client.stderr is None
    assert (client.keeper_pid, client.pid, client.code, client.gone) == (4711, None, None, False)
    keeper.end()
    client.close()


def test_what_the_reaper_says_is_put_together_from_its_parts(keepers: list[Keeper]) -> None:
    client: Any = ReaperClient(["train"], {})
    keeper = keepers[0]
    assert client.fileno() >= 0
    for text in ("star", "ted 5\nswep", "t\nfoo 3\nfail"):
        keeper.say(text)
        client.hear()
    assert [client.pid, client.swept, client.failed_errno, client.last_lines] == [5, True, None, ()]
    keeper.say("ed 8\ncode -15\n")
    client.hear()
    assert (client.failed_errno, client.code, client.gone) == (8, -15, False)
    keeper.end()
    client.hear()
    assert client.gone and client.code == -15 and keeper.waited == 1
    client.close()
    assert keeper.waited == 1, "it is waited for once"


def test_what_the_launcher_says_to_the_reaper(keepers: list[Keeper]) -> None:
    client = ReaperClient(["train"], {})
    client.swept = True
    client.forward(signal.SIGTERM)
    client.forward(signal.SIGINT)
    client.forward(signal.SIGUSR2)
    client.sweep(2.5)
    client.end(0.0)
    assert keepers[0].heard() == ["signal 15", "group 2", "heed 12", "sweep 2.5", "end 0"] and client.swept is False
    keepers[0].end()
    client.forward(signal.SIGTERM)  # nobody hears it
    client.close()


@pytest.mark.parametrize(("keeper_code", "code"), [(-9, -9), (-15, -15), (1, -9), (0, -9)])
def test_a_reaper_that_was_killed_leaves_nothing_and_its_command_was_killed_too(
    keepers: list[Keeper], monkeypatch: pytest.MonkeyPatch, keeper_code: int, code: int
) -> None:
    ended: list[tuple[str, float]] = []
    monkeypatch.setattr(runners, "end_orphans", lambda folder, grace_s: ended.append((folder, grace_s)))
    client = ReaperClient(["train"], {ENV_DIR: "/the/job"})
    keepers[0].end("started 5", code=keeper_code)
    client.hear()
    client.hear()
    assert client.gone and client.code == code and ended == [("/the/job", reaper.GRACE_S)]


def test_a_process_that_cannot_be_started_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(runners, "subprocess", SimpleNamespace(Popen=refuse))
    before = len(os.listdir("/proc/self/fd"))
    for listen in (False, True):
        with pytest.raises(OSError, match="temporarily"):
            ReaperClient(["train"], {}, listen=listen)
    assert len(os.listdir("/proc/self/fd")) == before
    runner = CommandRunner(Command(words=("train",), kind="other"), listen=True)
    with (
        pytest.raises(LaunchError, match="cannot start a process: Resource temporarily unavailable"),
        Quiet() as signals,
    ):
        runner.run(attempt(), signals, Watch())


# -- what it says on standard error ------------------------------------------------------------------------------


def test_standard_error_is_passed_on_as_it_is_and_its_end_is_remembered(
    keepers: list[Keeper], capfd: pytest.CaptureFixture[str]
) -> None:
    client = ReaperClient(["train"], {}, listen=True)
    tee: Any = client.stderr
    keeper = keepers[0]
    assert tee is not None and tee.open and tee.fileno() >= 0
    tee.pass_on()  # nothing is there
    assert tee.open and not list(client.last_lines)
    text = "".join(f"line {n}\n" for n in range(LINES + 5)) + "half a li"
    keeper.print(text.encode())
    tee.pass_on()
    assert client.last_lines == (*(f"line {n}" for n in range(6, LINES + 5)), "half a li")
    keeper.print(b"ne\nwrong \xff\n  ")
    tee.pass_on()
    assert client.last_lines[-2:] == ("half a line", "wrong \ufffd") and len(client.last_lines) == LINES
    assert capfd.readouterr().err.startswith(text + "ne\nwrong ")
    keeper.print(b"x" * 10_000)
    tee.pass_on()
    assert client.last_lines[-1] == "x" * 4096, "a line that never ends does not fill the memory"
    keeper.print(b"\nbye\n")
    keeper.end("code 0")
    client.hear()
    client.hear()
    assert client.gone and not tee.open and client.last_lines[-1] == "bye"
    assert capfd.readouterr().err.endswith("\nbye\n")


def test_an_error_stream_that_nobody_reads_holds_up_no_training(
    keepers: list[Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ReaperClient(["train"], {}, listen=True)
    write, parts = os.write, [3, 2]

    def closed(fd: int, data: bytes) -> int:
        if fd != 2:
            return write(fd, data)
        if not parts:
            raise BrokenPipeError
        return parts.pop(0)

    keepers[0].print(b"first\nsecond\n")
    monkeypatch.setattr(os, "write", closed)
    assert client.stderr is not None
    client.stderr.pass_on()
    monkeypatch.undo()
    assert client.last_lines == ("first", "second")
    keepers[0].end("code 0")
    client.close()


def test_an_error_stream_that_somebody_else_holds_open_does_not_keep_the_launcher(keepers: list[Keeper]) -> None:
    client = ReaperClient(["train"], {}, listen=True)
    assert client.stderr is not None
    held = os.dup(keepers[0].stderr or -1)
    keepers[0].end("code 0")
    client.close()
    assert not client.stderr.open
    os.close(held)


# -- what happens next -------------------------------------------------------------------------------------------


def test_one_look_takes_signals_words_and_files(keepers: list[Keeper]) -> None:
    client, watch = ReaperClient(["train"], {}, listen=True), Watch()
    keeper, (ours, theirs) = keepers[0], socket.socketpair()
    with Quiet() as signals, ours, theirs:
        keeper.say("started 5\n")
        assert list(serve(client, signals, watch, [ours])) == [] and client.pid == 5
        theirs.sendall(b"x")
        keeper.print(b"hello\n")
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert list(serve(client, signals, watch, [ours])) == [ours]
        assert watch.heeded == [signal.SIGUSR2, signal.SIGUSR1] and client.last_lines == ("hello",)
        assert signals.timeouts == [None, None]
        theirs.close()
        ours.close()
        keeper.end("code 0")
        assert list(serve(client, signals, watch, [ours])) == [], "a file that was closed is not looked at"
        client.close()


def test_after_the_grace_everything_is_ended(keepers: list[Keeper], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(runners, "time", SimpleNamespace(monotonic=lambda: now[0]))
    client, watch = ReaperClient(["train"], {}), Watch(kill_s=100.25)
    with Quiet(lambda: now.append(now.pop() + 0.125), lambda: now.append(now.pop() + 0.125)) as signals:
        serve(client, signals, watch)
        assert keepers[0].heard() == []
        serve(client, signals, watch)
        assert keepers[0].heard() == ["end 0"] and signals.timeouts == [0.25, 0.125]
        now[0] = 200.0
        serve(client, signals, watch)
        assert signals.timeouts[-1] == 0.0
    keepers[0].end("code -9")
    client.close()


@pytest.mark.parametrize(
    ("signum", "word"),
    [
        (signal.SIGINT, "group 2"),
        (signal.SIGTERM, "signal 15"),
        (signal.SIGHUP, "signal 15"),
        (signal.SIGUSR2, "heed 12"),
        (signal.SIGCONT, "heed 18"),
    ],
)
def test_a_signal_is_passed_on_as_its_sender_means_it(keepers: list[Keeper], signum: int, word: str) -> None:
    client = ReaperClient(["train"], {})
    client.forward(signum)
    assert keepers[0].heard() == [word]
    keepers[0].end("code 0")
    client.close()


# -- the command anew for each attempt ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("as_typed", "words"), [(True, ["x", "--at=/c"]), (False, ["x", "--nproc-per-node", "2", "--at=/c"])]
)
def test_a_command_is_run_and_its_end_is_told(keepers: list[Keeper], as_typed: bool, words: list[str]) -> None:
    command = Command(words=("x", "--at={checkpoint}"), kind="torchrun", script_at=1)
    runner = CommandRunner(command, listen=True)
    watch = Watch()

    def end() -> None:
        runner.forward(signal.SIGTERM)
        assert keepers[0].heard() == ["signal 15"]
        keepers[0].print(b"Oops\n")
        keepers[0].end("started 5", "code 3")

    watch.begun = end
    with Quiet() as signals:
        outcome = runner.run(attempt(as_typed=as_typed, checkpoint="/c"), signals, watch)
    assert (outcome.code, outcome.last_lines) == (3, ("Oops",)) and 0.0 <= outcome.lasted_s < 60.0
    assert keepers[0].command == words and keepers[0].how["env"] == {ENV_CHECKPOINT: "/c"} and watch.keepers == [4711]
    runner.forward(signal.SIGTERM)
    runner.rest()
    runner.close()
    assert keepers[0].waited == 1


def test_a_command_that_does_not_exist_is_named(keepers: list[Keeper]) -> None:
    runner = CommandRunner(Command(words=("x",), kind="other"), listen=False)
    watch = Watch(begun=lambda: keepers[0].end(f"failed {errno.ENOENT}"))
    with Quiet() as signals, pytest.raises(LaunchError, match="cannot start 'x': No such file or directory"):
        runner.run(attempt(), signals, watch)
    assert keepers[0].how["stderr"] is None


def test_a_runner_that_is_closed_ends_its_command(keepers: list[Keeper]) -> None:
    runner = CommandRunner(Command(words=("x",), kind="other"), listen=False)
    watch = Watch(begun=runner.close)
    with Quiet() as signals:
        assert runner.run(attempt(), signals, watch).code == -9
    assert keepers[0].waited == 1


# -- an agent that stays -----------------------------------------------------------------------------------------


@pytest.fixture
def elastic() -> ElasticRunner:
    command = Command(
        words=(sys.executable, "-u", "t.py", "--at", "{checkpoint}"), kind="python", options_at=2, script_at=2
    )
    return ElasticRunner(command, preload=["mine"], warm=False, listen=True)


def test_one_agent_runs_all_attempts_and_is_swept_after_each(keepers: list[Keeper], elastic: ElasticRunner) -> None:
    watch = Watch()
    answers: Iterator[dict[str, Any]] = iter([{"code": 75}, {"code": 1, "message": "  Trace\n  Oops\n"}])

    def answer() -> None:
        if len(watch.keepers) == 1:
            keepers[0].say("started 5\n")
        keepers[0].answer(**next(answers))

    def swept() -> None:
        assert keepers[0].heard()[-1] == f"sweep {reaper.LEFT_S:g}"
        keepers[0].say("swept\n")

    watch.begun = answer
    with Quiet(lambda: None, swept) as signals:
        first = elastic.run(attempt(1, 2, checkpoint="/c"), signals, watch)
        elastic.forward(signal.SIGTERM)
        assert keepers[0].heard()[-1] == "signal 15"
        signals.meanwhile = [lambda: None, swept]
        second = elastic.run(attempt(2, 1), signals, watch)
    (keeper,) = keepers
    assert (first.code, first.last_lines, second.code, second.last_lines) == (75, (), 1, ("Trace", "  Oops"))
    assert 0.0 <= first.lasted_s < 60.0 and watch.keepers == [4711, 4711]
    assert keeper.command[:4] == [sys.executable, "-u", "-c", runners.AGENT]
    fd, job = keeper.command[4:]
    assert keeper.how["pass_fds"][1] == int(fd) == int(keeper.words[5])
    told = {"kind": "python", "script": "t.py", "module": False, "preload": ["mine"], "warm": False}
    assert json.loads(job) == told
    assert keeper.orders() == [
        {"attempt": 1, "ranks": 2, "words": ["t.py", "--at", "/c"], "environ": {ENV_CHECKPOINT: "/c"}},
        {"attempt": 2, "ranks": 1, "words": ["t.py"], "environ": {ENV_CHECKPOINT: None}},
    ]
    keeper.end("code 0")
    elastic.rest()
    assert keeper.waited == 1
    elastic.close()
    elastic.forward(signal.SIGTERM)


def test_an_answer_in_parts_is_one(keepers: list[Keeper], elastic: ElasticRunner) -> None:
    def part(text: bytes) -> Callable[[], object]:
        def send() -> None:
            assert keepers[0].agent is not None
            keepers[0].agent.sendall(text)

        return send

    def swept() -> None:
        keepers[0].say("swept\n")

    with Quiet(part(b'{"co'), part(b'de": 4}\n{"code"'), swept) as signals:
        assert elastic.run(attempt(), signals, Watch()).code == 4
        signals.meanwhile = [part(b": 7}\n"), swept]
        assert elastic.run(attempt(2), signals, Watch()).code == 7
    keepers[0].end("code 0")
    elastic.close()


def test_options_that_the_launcher_refuses_are_no_crash(keepers: list[Keeper], elastic: ElasticRunner) -> None:
    def refuse() -> None:
        keepers[0].answer(code=2, refused="torchrun does not take these options: --x")

    def end() -> None:
        keepers[0].say("swept\n")

    with (
        Quiet(refuse, end) as signals,
        pytest.raises(LaunchError, match=r"^torchrun does not take these options: --x$"),
    ):
        elastic.run(attempt(), signals, Watch())
    assert keepers[0].waited == 1 and elastic._client is None


@pytest.mark.parametrize("first", ["the agent", "the reaper"])
def test_an_agent_that_ends_without_an_answer_is_a_crash_and_another_is_started(
    keepers: list[Keeper], elastic: ElasticRunner, first: str
) -> None:
    def gone() -> None:
        keepers[0].print(b"Killed\n")
        if first == "the agent":
            assert keepers[0].agent is not None
            keepers[0].agent.close()
            keepers[0].agent = None
        else:
            keepers[0].end("code -9")

    with Quiet(gone, lambda: keepers[0].end("code -9") if first == "the agent" else None) as signals:
        found = elastic.run(attempt(), signals, Watch())
        assert (found.code, found.last_lines) == (-9, ("Killed",))
        signals.meanwhile = [lambda: keepers[1].answer(code=0), lambda: keepers[1].say("swept\n")]
        assert elastic.run(attempt(2), signals, Watch()).code == 0
    keepers[1].end("code 0")
    elastic.close()


def test_an_agent_that_answers_and_ends_has_answered(keepers: list[Keeper], elastic: ElasticRunner) -> None:
    def last() -> None:
        keepers[0].answer(code=-15)
        keepers[0].end("code 0")

    with Quiet(last) as signals:
        assert elastic.run(attempt(), signals, Watch()).code == -15
    assert elastic._client is None, "the next attempt starts another one"


def test_an_interpreter_that_cannot_be_started_is_named(keepers: list[Keeper], elastic: ElasticRunner) -> None:
    with (
        Quiet(lambda: keepers[0].end(f"failed {errno.ENOEXEC}")) as signals,
        pytest.raises(LaunchError, match=f"cannot start '{sys.executable}': Exec format error"),
    ):
        elastic.run(attempt(), signals, Watch())


def test_an_agent_for_which_there_is_no_process_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, elastic: ElasticRunner
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(runners, "subprocess", SimpleNamespace(Popen=refuse))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LaunchError, match="cannot start a process: Cannot allocate memory"), Quiet() as signals:
        elastic.run(attempt(), signals, Watch())
    assert len(os.listdir("/proc/self/fd")) == before
    elastic.close()


def test_another_interpreter_is_asked_for_what_the_agent_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    answers: list[Any] = [0, 1, OSError("no"), subprocess.TimeoutExpired("x", 60.0)]

    def run(words: list[str], **how: Any) -> Any:
        asked.append(words)
        assert how["timeout"] == 60.0
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(words, answer)

    told = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(runners, "subprocess", told)

    def runner(python: str) -> ElasticRunner:
        return ElasticRunner(Command(words=(python, "t.py"), kind="python", script_at=1), listen=False)

    runner(sys.executable)
    runner(str(Path(sys.executable).parent / "python3.99"))
    assert asked == [], "of the environment that this launcher is in"
    runner("/other/bin/python")
    assert asked[0][:2] == ["/other/bin/python", "-c"]
    for _ in range(3):
        with pytest.raises(ConfigError, match="runs /other/bin/python, which lacks torch or greentrain"):
            runner("/other/bin/python")


# -- signals -----------------------------------------------------------------------------------------------------


def test_signals_are_taken_in_their_order_and_handlers_are_put_back() -> None:
    before = {signum: signal.getsignal(signum) for signum in (*runners.STOP, runners.NOTICE, *runners.PASSED_ON)}
    wakeup = signal.set_wakeup_fd(-1)
    with SignalQueue() as signals:
        assert signals.take() is None and signals.wait(0.0) == []
        for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCONT):
            os.kill(os.getpid(), signum)
        assert signals.wait(None) == [], "one that came already is not waited for"
        assert [signals.take() for _ in range(5)] == [15, 10, 1, 18, None]
    assert {signum: signal.getsignal(signum) for signum in before} == before
    assert signal.set_wakeup_fd(wakeup) == -1


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalQueue() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.take() is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_ends_a_wait_for_files() -> None:
    ours, theirs = socket.socketpair()
    with SignalQueue() as signals, ours, theirs:
        os.kill(os.getpid(), signal.SIGUSR1)
        signals.take()
        assert signals.wait(5.0, [ours]) == [], "woken by the signal itself"
        theirs.sendall(b"x")
        assert signals.wait(5.0, [ours]) == [ours]


def test_a_sleep_ends_in_time_or_with_a_signal_and_looks_at_the_clock_each_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, waits = [1000.0], list[float | None]()

    class Sleeps(SignalQueue):
        def wait(self, timeout_s: float | None, files: Sequence[Any] = ()) -> list[Any]:
            waits.append(timeout_s)
            now[0] += timeout_s or 0.0
            if len(waits) == 5:
                os.kill(os.getpid(), signal.SIGUSR1)
            return []

    monkeypatch.setattr(runners, "time", SimpleNamespace(time=lambda: now[0]))
    with Sleeps() as signals:
        assert signals.sleep_until(1130.0) is False
        assert waits == [60.0, 60.0, 10.0], "the clock may be set meanwhile"
        assert signals.sleep_until(1130.0) is False and len(waits) == 3
        assert signals.sleep_until(9999.0) is True and len(waits) == 5
        assert signals.sleep_until(0.0) is True, "nobody has taken it"


# -- what outlives its launcher ----------------------------------------------------------------------------------


def test_what_was_started_for_a_job_is_found_and_ended_with_all_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path)
    path = {"PATH": os.environ["PATH"]}
    with (
        running("sleep 100 & echo; wait", {**path, ENV_DIR: folder}) as job,
        running("echo; sleep 100", {**path, ENV_DIR: f"{folder}/other"}) as other,
    ):
        found = orphans(folder)
        assert job.pid in found and len(found) == 2 and other.pid not in found
        assert orphans("") == [] and orphans(f"{folder}/none") == []
        with monkeypatch.context() as patch:
            patch.setattr(runners, "_above", lambda pid: {job.pid})
            assert job.pid not in orphans(folder), "never the one that asks, nor who started it"
        assert end_orphans(folder, 10.0) == 2
        assert orphans(folder) == [] and job.wait() == -signal.SIGTERM and other.poll() is None
        assert end_orphans(folder, 10.0) == 0


def test_children_of_a_job_that_hide_their_environment_are_ended_too(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], ENV_DIR: str(tmp_path)}
    with running("env -i $(command -v sleep) 100 & echo; wait", environ):
        end_s = time.monotonic() + 30.0
        while len(orphans(str(tmp_path))) > 1 and time.monotonic() < end_s:
            time.sleep(0.01)  # until env has become sleep
        assert end_orphans(str(tmp_path), 10.0) == 2


def test_who_is_above_a_process() -> None:
    above = runners._above(os.getpid())
    assert {os.getpid(), os.getppid()} <= above and 0 not in above
    assert runners._above(0) == set()


def test_how_an_attempt_ended_is_an_outcome() -> None:
    assert Outcome(code=3).last_lines == ()
