"""A pause holds the thread, and every way out of it works."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from greentrain.control.plan import schedule
from greentrain.control.plan.schedule import LOOK_S, Pause


def once_looked(act: Callable[[], None]) -> tuple[threading.Thread, Callable[[], bool]]:
    """Return a thread that does something once a pause has begun to look, and what the pause looks at."""
    held = threading.Event()

    def wait() -> None:
        if held.wait(400):
            act()

    def looked() -> bool:
        held.set()
        return False

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, looked


def test_it_ends_when_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(schedule, "time", SimpleNamespace(sleep=slept.append))
    assert Pause().hold(lambda: len(slept) == 2) is False
    assert slept == [LOOK_S] * 2


def test_another_thread_wakes_it() -> None:
    pause = Pause()
    waking, looked = once_looked(pause.wake)
    t0_s = time.monotonic()
    assert pause.hold(looked) is True
    assert time.monotonic() - t0_s < 120
    waking.join()


def test_a_signal_wakes_it_and_the_users_handler_is_called_and_put_back() -> None:
    heard: list[int] = []

    def users(signum: int, frame: object) -> None:
        heard.append(signum)

    before = signal.signal(signal.SIGCONT, users)
    try:
        waking, looked = once_looked(lambda: os.kill(os.getpid(), signal.SIGCONT))
        assert Pause().hold(looked) is True
        waking.join()
        assert heard == [signal.SIGCONT]
        assert signal.getsignal(signal.SIGCONT) is users
    finally:
        signal.signal(signal.SIGCONT, before)


@pytest.mark.parametrize(("free_cache", "initialized", "freed"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_the_gpus_reserve_is_given_back_where_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, free_cache: bool, initialized: bool, freed: int
) -> None:
    """Once a pause, before it; and a GPU that this process does not use gets no context for it."""
    calls: list[int] = []

    def empty_cache() -> None:
        calls.append(1)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")  # of an earlier kernel

    cuda = SimpleNamespace(is_initialized=lambda: initialized, empty_cache=empty_cache)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(schedule, "time", SimpleNamespace(sleep=lambda seconds: None))
    looks = iter([False, False, True])
    assert Pause(free_cache=free_cache).hold(lambda: next(looks)) is False
    assert len(calls) == freed


def test_a_wake_of_an_earlier_pause_does_not_end_the_next() -> None:
    pause = Pause()
    pause.wake()
    looks = iter([False, True])
    assert pause.hold(lambda: next(looks)) is False


def test_in_a_thread_it_listens_to_no_signal() -> None:
    before = signal.getsignal(signal.SIGCONT)
    seen: list[object] = []

    def done() -> bool:
        seen.append(signal.getsignal(signal.SIGCONT))
        return True

    def run() -> None:
        Pause().hold(done)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_sigterm_ends_the_process_in_its_pause() -> None:
    code = "from greentrain.control.plan.schedule import Pause; print('held', flush=True); Pause().hold(lambda: False)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        time.sleep(0.1)
        process.terminate()
        assert process.wait(300) == -signal.SIGTERM
