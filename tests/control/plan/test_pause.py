"""A pause holds the thread, and every way out of it works."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from greentrain.control.plan.schedule import LOOK_S, Pause


def test_it_ends_when_the_work_goes_on() -> None:
    looks: list[float] = []

    def done() -> bool:
        looks.append(time.monotonic())
        return len(looks) == 3

    assert Pause().hold(done) is False
    assert looks[-1] - looks[0] == pytest.approx(2 * LOOK_S, rel=0.5)


def test_another_thread_wakes_it() -> None:
    pause = Pause()
    timer = threading.Timer(0.1, pause.wake)
    timer.start()
    t0_s = time.monotonic()
    assert pause.hold(lambda: False) is True
    assert time.monotonic() - t0_s < 10
    timer.join()


def test_a_signal_wakes_it_and_the_users_handler_is_called_and_put_back() -> None:
    heard: list[int] = []

    def users(signum: int, frame: object) -> None:
        heard.append(signum)

    before = signal.signal(signal.SIGCONT, users)
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGCONT))
        timer.start()
        assert Pause().hold(lambda: False) is True
        timer.join()
        assert heard == [signal.SIGCONT]
        assert signal.getsignal(signal.SIGCONT) is users
    finally:
        signal.signal(signal.SIGCONT, before)


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
        assert process.wait(10) == -signal.SIGTERM
