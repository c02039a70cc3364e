"""A device's queue: in order, bounded, and it ends."""

import functools
import os
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from greentrain.fpga_backend.batch import Result
from greentrain.fpga_backend.devices.base import WorkQueue
from greentrain.fpga_backend.errors import DeviceLostError, QueueFullError

ANSWER = Result(scores=np.zeros((1, 1), np.float32), run_s=0.0, rows=1)


class Held:
    """A lane whose first job waits for leave."""

    def __init__(self, depth: int) -> None:
        self.lane = WorkQueue("test-lane", depth)
        self.leave = threading.Event()
        self.begun = threading.Event()
        self.order: list[int] = []
        self.first = self.lane.submit(self._wait, None)
        assert self.begun.wait(240)

    def _wait(self) -> Result:
        self.begun.set()
        self.leave.wait(240)
        return ANSWER

    def job(self, number: int) -> Result:
        self.order.append(number)
        return ANSWER


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held(depth=3)
    yield made
    made.leave.set()
    made.lane.close()


def test_jobs_run_in_order_and_there_is_room_for_so_many(held: Held) -> None:
    futures = [held.lane.submit(functools.partial(held.job, i), 0.0) for i in range(3)]
    with pytest.raises(QueueFullError, match="3 batches wait"):
        held.lane.submit(lambda: held.job(9), 0.0)
    with pytest.raises(QueueFullError, match=r"0\.05 s"):
        held.lane.submit(lambda: held.job(9), 0.05)
    held.leave.set()
    futures.append(held.lane.submit(lambda: held.job(3), None))
    assert [future.result(240) for future in futures] == [ANSWER] * 4
    assert held.order == [0, 1, 2, 3]


def test_an_error_belongs_to_the_one_who_waits(held: Held) -> None:
    def broken() -> Result:
        raise ZeroDivisionError("of the job")

    failed, after = held.lane.submit(broken, None), held.lane.submit(lambda: held.job(1), None)
    held.leave.set()
    assert isinstance(failed.exception(240), ZeroDivisionError)
    assert after.result(240) is ANSWER


def test_what_is_cancelled_is_not_run(held: Held) -> None:
    cancelled, after = held.lane.submit(lambda: held.job(1), None), held.lane.submit(lambda: held.job(2), None)
    assert cancelled.cancel()
    held.leave.set()
    assert after.result(240) is ANSWER
    assert held.order == [2]


def test_closing_fails_what_waits_and_frees_who_waits_for_room(held: Held) -> None:
    waiting = [held.lane.submit(lambda: held.job(1), None) for _ in range(3)]
    said: list[BaseException] = []

    def patient() -> None:
        try:
            held.lane.submit(lambda: held.job(2), None)
        except DeviceLostError as error:
            said.append(error)

    thread = threading.Thread(target=patient)
    thread.start()
    held.lane.close("gone", join=False)
    thread.join(240)
    assert not thread.is_alive()
    assert [str(error) for error in said] == ["gone"]
    assert all(str(future.exception(240)) == "gone" for future in waiting)
    held.leave.set()
    assert held.first.result(240) is ANSWER
    held.lane.close("another reason")
    with pytest.raises(DeviceLostError, match="gone"):
        held.lane.submit(lambda: held.job(3), None)
    assert held.order == []


def test_a_queue_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="depth=0"):
        WorkQueue("test-lane", 0)


def test_a_callback_that_submits_to_a_full_queue_does_not_wait_for_itself() -> None:
    held = Held(depth=1)
    said: list[BaseException] = []

    def chain(_: object) -> None:
        try:
            held.lane.submit(lambda: ANSWER, None)
        except QueueFullError as error:
            said.append(error)

    held.first.add_done_callback(chain)
    waiting = held.lane.submit(lambda: ANSWER, None)
    held.leave.set()
    try:
        assert waiting.result(240) is ANSWER
        assert len(said) == 1
    finally:
        held.lane.close(join=bool(said))


def test_a_cancelled_job_gives_its_batch_back(held: Held) -> None:
    kept = np.zeros(8, np.int32)
    gone = weakref.ref(kept)
    future = held.lane.submit(functools.partial(lambda _: ANSWER, kept), None)
    del kept
    assert future.cancel()
    held.leave.set()
    assert held.first.result(240) is ANSWER
    deadline_s = time.monotonic() + 240
    while gone() is not None and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert gone() is None


def test_a_forked_process_is_told_that_it_has_no_device(held: Held) -> None:
    pid = os.fork()
    if not pid:
        try:
            held.lane.submit(lambda: ANSWER, 0.1)
        except DeviceLostError:
            held.lane.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
