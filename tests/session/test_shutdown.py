"""SIGTERM is chained, held while closing, and given back. Each test is a process of its own, which it may end."""

import signal
import threading
from types import FrameType
from typing import Any

import pytest

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
