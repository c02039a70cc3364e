"""Work in the background: whoever asks does not wait, and nothing that is asked for is forgotten."""

import gc
import os
import threading
import weakref

import pytest

from greentrain.utils.background import BackgroundCall, BackgroundWork
from tests.helpers.child import in_a_child

WAIT_S = 60.0
"""Longest wait for a thread that is not held up (s)."""


class Held:
    """Work that waits in each pass until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.passes = 0

    def __call__(self) -> None:
        self.began.release()
        assert self.go_on.acquire(timeout=WAIT_S)
        self.passes += 1


def test_who_waits_sees_the_end_of_a_pass_that_began_after_it_asked() -> None:
    held = Held()
    work = BackgroundWork("work", held, WAIT_S)
    work.start()
    assert held.began.acquire(timeout=WAIT_S)  # the first pass, which began before
    assert not work.ask() and not work.ask(0.01)
    held.go_on.release(2)
    assert work.ask(WAIT_S) and held.passes >= 2
    held.go_on.release(10)
    assert work.stop(WAIT_S) and work.stop(0.01) and work.ask()


def test_what_it_raises_does_not_end_it() -> None:
    left = [SystemExit(3), ValueError("wrong"), KeyboardInterrupt()]

    def fail() -> None:
        if left:
            raise left.pop()

    work = BackgroundWork("work", fail, WAIT_S)
    work.start()
    while left:
        assert work.ask(WAIT_S)
    assert work.stop(WAIT_S)


def test_it_may_ask_itself_and_passes_unasked() -> None:
    passed = threading.Semaphore(0)

    def ask() -> None:
        assert not work.ask(WAIT_S)  # it would wait for itself
        passed.release()

    work = BackgroundWork("work", ask, WAIT_S)
    work.start()
    for _ in range(5):
        assert passed.acquire(timeout=WAIT_S)
    assert work.stop(WAIT_S)
    unasked = BackgroundWork("work", passed.release, 0.001)
    unasked.start()
    for _ in range(5):
        assert passed.acquire(timeout=WAIT_S)
    assert unasked.stop(WAIT_S)


@in_a_child
def test_a_forked_child_asks_in_vain() -> None:
    work = BackgroundWork("work", lambda: None, WAIT_S)
    work.start()
    child = os.fork()
    if child == 0:
        os._exit(int(work.ask(WAIT_S) or work.stop(WAIT_S)))
    assert os.waitpid(child, 0)[1] == 0
    assert work.stop(WAIT_S)


def test_a_call_gives_its_answer_or_its_error_and_may_hang_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    slow = BackgroundCall("slow", lambda: go_on.wait(WAIT_S))
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        slow.result(0.01)
    go_on.set()
    assert slow.result(WAIT_S) is True is slow.result(0.0)
    for wrong in (ValueError("wrong"), SystemExit(3)):

        def fail(error: BaseException = wrong) -> None:
            raise error

        with pytest.raises(type(wrong)):
            BackgroundCall("wrong", fail).result(WAIT_S)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert BackgroundCall("late", lambda: 3).result(0.0) == 3


def test_an_error_keeps_nothing_alive_that_its_callers_hold() -> None:
    class Held:
        pass

    def ill() -> None:
        raise OSError

    def caller() -> weakref.ref[Held]:
        held = Held()
        with pytest.raises(OSError):
            BackgroundCall("ill", ill).result(5.0)
        return weakref.ref(held)

    gc.disable()
    try:
        assert caller()() is None
    finally:
        gc.enable()
