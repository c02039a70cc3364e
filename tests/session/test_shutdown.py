"""SIGTERM is chained, held while closing, and given back. Tests that raise it are processes of their own."""

import atexit
import os
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from greentrain.session import session
from greentrain.session.session import ShutdownHook
from tests.helpers.child import in_a_child


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def close(self, reason: str) -> None:
        self.heard.append(reason)

    def book(self) -> None:
        self.heard.append("book")

    def users(self, signum: int, frame: FrameType | None) -> None:
        self.heard.append("user")

    def hook(self) -> ShutdownHook:
        return ShutdownHook(self.close, self.book)


def _now() -> Any:
    return signal.getsignal(signal.SIGTERM)


def _terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


@in_a_child
def test_a_program_that_handles_sigterm_goes_on_with_its_books_up_to_date() -> None:
    listener = Listener()
    signal.signal(signal.SIGTERM, listener.users)
    hook = listener.hook()
    hook.install()
    _terminate()
    assert listener.heard == ["book", "user"]
    hook.remove()
    assert _now() == listener.users


@in_a_child
def test_an_ignored_sigterm_stays_ignored() -> None:
    listener = Listener()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hook = listener.hook()
    hook.install()
    _terminate()
    assert listener.heard == ["book"]
    hook.remove()
    assert _now() == signal.SIG_IGN


@in_a_child
def test_a_handler_that_came_later_survives() -> None:
    listener = Listener()
    hook = listener.hook()
    hook.install()
    signal.signal(signal.SIGTERM, listener.users)
    hook.remove()
    assert _now() == listener.users
    _terminate()
    assert listener.heard == ["user"]


@in_a_child
def test_a_sigterm_while_closing_waits_until_the_end() -> None:
    listener = Listener()
    signal.signal(signal.SIGTERM, listener.users)
    hook = listener.hook()
    hook.install()
    hook.hold()
    _terminate()
    assert listener.heard == []
    hook.remove()
    assert listener.heard == ["user"]


@pytest.mark.parametrize("first_to_go", [0, 1])
@in_a_child
def test_sessions_closed_in_any_order_leave_the_first_handler(first_to_go: int) -> None:
    listener = Listener()
    signal.signal(signal.SIGTERM, listener.users)
    hooks = [listener.hook(), listener.hook()]
    for hook in hooks:
        hook.install()
    hooks[first_to_go].remove()
    _terminate()
    assert listener.heard.count("user") == 1 and "sigterm" not in listener.heard
    hooks[1 - first_to_go].remove()
    assert _now() == listener.users


@in_a_child
def test_outside_the_main_thread_no_signal_is_touched() -> None:
    before, hook = _now(), Listener().hook()
    for call in (hook.install, hook.remove):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert _now() == before


@in_a_child
def test_closing_from_another_thread_leaves_a_handler_that_only_passes_on() -> None:
    listener = Listener()
    signal.signal(signal.SIGTERM, listener.users)
    hook = listener.hook()
    hook.install()
    thread = threading.Thread(target=hook.remove)
    thread.start()
    thread.join()
    _terminate()
    assert listener.heard[-1] == "user" and "sigterm" not in listener.heard


# -- the same without a signal: Python's table of handlers is a stand-in ---------------------------------------------


class Signals:
    """Stands in for the module ``signal``: one handler, and how often the process would have died."""

    SIGTERM, SIG_DFL, SIG_IGN = signal.SIGTERM, signal.SIG_DFL, signal.SIG_IGN

    def __init__(self, handler: Any = signal.SIG_DFL) -> None:
        self.handler, self.died = handler, 0

    def getsignal(self, signum: int) -> Any:
        return self.handler

    def signal(self, signum: int, handler: Any) -> None:
        assert signum == signal.SIGTERM
        self.handler = handler

    def raise_signal(self, signum: int) -> None:
        assert signum == signal.SIGTERM
        if self.handler is signal.SIG_DFL:
            self.died += 1
        elif callable(self.handler):
            self.handler(signum, None)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Signals:
    table = Signals()
    monkeypatch.setattr(session, "signal", table)
    return table


def test_a_sigterm_that_kills_closes_the_books_first_and_kills_then(signals: Signals) -> None:
    listener = Listener()
    hook = listener.hook()
    hook.install()
    signals.raise_signal(signal.SIGTERM)
    assert (listener.heard, signals.died, signals.handler) == (["sigterm"], 1, signal.SIG_DFL)
    hook.remove()
    assert signals.handler == signal.SIG_DFL


def test_of_two_sessions_both_close_before_a_sigterm_kills(signals: Signals) -> None:
    first, second = Listener(), Listener()
    hooks = [first.hook(), second.hook()]
    for hook in hooks:
        hook.install()
    signals.raise_signal(signal.SIGTERM)
    assert first.heard == second.heard == ["sigterm"] and signals.died == 1
    for hook in hooks:
        hook.remove()


def test_what_came_while_it_was_held_comes_after_it_and_once(signals: Signals) -> None:
    listener = Listener()
    hook = listener.hook()
    hook.install()
    hook.hold()
    for _ in range(3):
        signals.raise_signal(signal.SIGTERM)
    assert listener.heard == [] and signals.died == 0
    hook.remove()
    assert signals.died == 1 and listener.heard == [], "the session is closed: the signal goes to who was there before"
    hook.remove()
    assert signals.died == 1


def test_a_hook_that_heard_nothing_raises_nothing(signals: Signals) -> None:
    hook = Listener().hook()
    hook.install()
    hook.hold()
    hook.remove()
    assert signals.died == 0 and signals.handler == signal.SIG_DFL


def test_a_session_that_closes_first_leaves_the_later_ones_handler_and_is_skipped(signals: Signals) -> None:
    listener = Listener()
    signals.handler = listener.users
    first, second = listener.hook(), listener.hook()
    first.install()
    second.install()
    first.remove()
    assert signals.handler == second._on_sigterm
    signals.raise_signal(signal.SIGTERM)
    assert listener.heard == ["book", "user"]
    second.remove()
    assert signals.handler == listener.users


def test_a_handler_that_no_python_code_installed_is_left_alone(signals: Signals) -> None:
    signals.handler = None  # as Python says of one that C code installed
    hook = Listener().hook()
    hook.install()
    assert signals.handler is None
    hook.remove()
    assert signals.handler is None


def test_a_forked_worker_passes_a_sigterm_on_and_closes_nothing(
    signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener()
    hook = listener.hook()
    hook.install()
    parent = os.getpid()
    with monkeypatch.context() as worker:
        worker.setattr(os, "getpid", lambda: parent + 1)
        hook._at_exit()
        signals.raise_signal(signal.SIGTERM)
    assert (listener.heard, signals.died) == ([], 1)
    hook.remove()


def test_at_exit_the_books_say_whether_an_exception_ended_the_program(
    signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(atexit, "register", called.append)
    monkeypatch.setattr(atexit, "unregister", called.remove)
    listener = Listener()
    hook = listener.hook()
    hook.install()
    (at_exit,) = called
    at_exit()
    monkeypatch.setattr(sys, "last_type", ValueError, raising=False)
    at_exit()
    assert listener.heard == ["exit", "exception"]
    hook.remove()
    assert called == []


INTERRUPTED = """
import signal
from greentrain.session.session import ShutdownHook

signal.signal(signal.SIGINT, signal.default_int_handler)
ShutdownHook(lambda reason: (print(reason, flush=True), exec("pass"))).install()
signal.raise_signal(signal.SIGINT)
"""


def test_an_interrupted_program_ends_as_interrupted() -> None:
    """A shell's loop, make and a launcher go on where a program that was interrupted ends with an exit code."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "exception\n"), done.stderr
    assert done.stderr.count("KeyboardInterrupt") == 1
