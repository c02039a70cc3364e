"""Barriers, streams, statistics and memory."""

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks.paced_device import Paced, Wrapped
from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import Handle
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import BatchError, DeviceError, DeviceLostError
from greentrain.rlhf import engine as engine_module
from greentrain.rlhf.engine import OffloadEngine, PassStats
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from greentrain.testing.offload_models import sequences
from tests.helpers.flaky_device import Fault, Flaky
from tests.helpers.hand_clock import HandClock
from tests.rlhf.engine.conftest import Closing

REWARD = PassKind.REWARD
BATCH = Batch.of([[1, 2, 3], [4, 5, 6, 7, 8], [9, 10], [11]])


def scores(found: Result) -> npt.NDArray[np.float32]:
    assert found.scores is not None
    return found.scores


@pytest.fixture(scope="module")
def wanted(reward: Artifact) -> npt.NDArray[np.float32]:
    return scores(Engine(reward).run(BATCH))


@pytest.fixture
def paced(reward: Artifact, closing: Closing) -> Callable[..., OffloadEngine]:
    """An engine on a device of so much time a batch."""

    def make(s_per_batch: float, **options: object) -> OffloadEngine:
        device = Paced(Emulator(), s_per_sequence=0.0, s_per_batch=s_per_batch)
        closing(device)
        cut = options.pop("cut", None)
        return OffloadEngine([place(REWARD, reward, device, sequences=cut)], **options)  # type: ignore[arg-type]

    return make


class Told(Wrapped):
    """A device that says that a part took so long, and delivers one each time it is let go."""

    def __init__(self, run_s: float) -> None:
        self.run_s, self.go = run_s, threading.Semaphore(0)
        super().__init__(Emulator(), name="told", depth=64)

    def deliver(self, number: int, batch: Batch, inner: Future[Result]) -> Result:
        result = inner.result()
        self.go.acquire()
        return replace(result, run_s=self.run_s)

    def close(self) -> None:
        self.go.release(64)
        super().close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """The engine's time, which only a test moves: no delay of a busy machine is part of what was waited."""
    clock = HandClock()
    times = SimpleNamespace(perf_counter=clock.monotonic_s, monotonic=clock.monotonic_s)
    monkeypatch.setattr(engine_module, "time", times)
    return clock


@pytest.fixture
def told(reward: Artifact, closing: Closing) -> Callable[..., tuple[OffloadEngine, Told]]:
    """An engine on a device whose parts take so long by its own word."""

    def make(run_s: float, cut: int | None = None, **options: Any) -> tuple[OffloadEngine, Told]:
        device = Told(run_s)
        closing(device)
        return OffloadEngine([place(REWARD, reward, device, sequences=cut)], **options), device

    return make


def in_the_barrier(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Do something, once a thread, as soon as it waits in a barrier."""

    def waited(*args: Any, **options: Any) -> Any:
        then()
        return wait(*args, **options)

    monkeypatch.setattr(engine_module, "wait", waited)


def test_what_runs_beside_the_training_is_hidden(
    told: Callable[..., tuple[OffloadEngine, Told]], clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, device = told(0.3)

    def comes(after_s: float) -> None:
        clock.now_s += after_s
        device.go.release()

    ticket = engine.submit(REWARD, BATCH)
    clock.now_s += 0.2  # training
    with monkeypatch.context() as patched:
        in_the_barrier(patched, lambda: comes(0.1))
        ticket.result()
    found = engine.stats()[REWARD]
    assert found.busy_s == pytest.approx(0.3)
    assert found.wait_s == pytest.approx(0.1)
    assert found.hidden_fraction == pytest.approx((found.busy_s - found.wait_s) / found.busy_s)
    waited_s = found.wait_s
    for _ in range(3):  # asking again is no waiting
        clock.now_s += 1.0
        ticket.result()
    assert engine.stats()[REWARD].wait_s == waited_s
    in_the_barrier(monkeypatch, lambda: comes(0.29))
    engine.submit(REWARD, BATCH, sequential=True)
    found = engine.stats()[REWARD]
    assert found.wait_s - waited_s == pytest.approx(0.29)
    assert (found.calls, found.sequences, found.tokens, found.at_home, found.redone) == (2, 8, 22, 0, 0)


def test_threads_that_stand_at_one_barrier_count_once_and_get_the_same(
    told: Callable[..., tuple[OffloadEngine, Told]],
    wanted: npt.NDArray[np.float32],
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, device = told(0.3)
    ticket = engine.submit(REWARD, BATCH)
    standing = threading.Semaphore(0)
    in_the_barrier(monkeypatch, standing.release)
    found: list[Result] = []
    threads = [threading.Thread(target=lambda: found.append(ticket.result())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert standing.acquire(timeout=400)
    clock.now_s += 0.3
    device.go.release()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(np.array_equal(scores(one), wanted) for one in found)
    assert engine.stats()[REWARD].wait_s == pytest.approx(0.3)
    assert engine.stats()[REWARD].busy_s == pytest.approx(0.3)


def test_who_comes_later_to_a_barrier_does_not_begin_the_wait_anew(
    told: Callable[..., tuple[OffloadEngine, Told]], clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, device = told(0.4)
    ticket = engine.submit(REWARD, BATCH)
    standing = threading.Semaphore(0)
    in_the_barrier(monkeypatch, standing.release)
    threads = [threading.Thread(target=ticket.result) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert standing.acquire(timeout=400)
        clock.now_s += 0.2
    device.go.release()
    for thread in threads:
        thread.join()
    assert engine.stats()[REWARD].wait_s == pytest.approx(0.4)


def test_nobody_asks_and_the_sums_are_right(told: Callable[..., tuple[OffloadEngine, Told]], clock: HandClock) -> None:
    engine, device = told(0.02, cut=2)
    ticket = engine.submit(REWARD, BATCH)
    device.go.release(2)
    while not ticket.done():
        time.sleep(0.005)
    found = engine.stats()[REWARD]
    assert found.busy_s == pytest.approx(0.04)
    assert found.hidden_fraction == 1.0
    assert PassStats().hidden_fraction is None


def test_a_full_engine_blocks_submit_and_wakes_it(
    told: Callable[..., tuple[OffloadEngine, Told]], clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, device = told(0.1, depth=2)
    room = engine._desk._room
    acquire = room.acquire

    def asked(*args: Any, **options: Any) -> bool:
        if room._value == 0:  # it will block: a part ends after a while
            clock.now_s += 0.1
            device.go.release()
        return acquire(*args, **options)

    monkeypatch.setattr(room, "acquire", asked)
    begun_s = clock.now_s
    tickets = [engine.submit(REWARD, BATCH) for _ in range(4)]
    assert clock.now_s - begun_s == pytest.approx(0.2), "two had to wait"
    assert engine.stats()[REWARD].wait_s == pytest.approx(0.2)
    device.go.release(2)
    for ticket in tickets:
        ticket.result()


def test_ctrl_c_at_the_barrier_leaves_the_ticket(
    told: Callable[..., tuple[OffloadEngine, Told]],
    wanted: npt.NDArray[np.float32],
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        clock.now_s += 0.1
        raise KeyboardInterrupt  # a real signal that comes late would end the test runner

    engine, device = told(0.8)
    ticket = engine.submit(REWARD, BATCH)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("greentrain.rlhf.engine.wait", interrupted)
        ticket.result()
    assert not ticket.done()
    assert engine.stats()[REWARD].wait_s == pytest.approx(0.1)
    device.go.release()
    assert np.array_equal(scores(ticket.result()), wanted)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_no_engine(paced: Callable[..., OffloadEngine]) -> None:
    engine = paced(0.05)
    ticket = engine.submit(REWARD, BATCH)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: engine.submit(REWARD, BATCH), ticket.result, lambda: engine.replace(REWARD, None)):  # type: ignore[arg-type]
            try:
                use()
            except DeviceLostError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    ticket.result()


def test_batches_are_let_go_of_when_they_are_done(reward: Artifact, closing: Closing) -> None:
    """Also where they were redone, and while somebody keeps the tickets."""
    device, home = Flaky(Emulator(), {1: Fault.FAILS, 2: Fault.NAN}), Emulator()
    closing(device, home)
    engine = OffloadEngine([place(REWARD, reward, device, home=home, sequences=2)])
    tickets, batches = [], []
    with pytest.warns(UserWarning, match="redone"):
        for _ in range(4):
            batch = Batch.of([np.arange(1, 60, dtype=np.int32) for _ in range(4)])
            batches += [weakref.ref(row) for row in batch.ids]
            tickets.append(engine.submit(REWARD, batch))
            del batch
        for ticket in tickets:
            ticket.result()
    end_s = time.monotonic() + 120
    while any(batch() is not None for batch in batches) and time.monotonic() < end_s:
        gc.collect()
        time.sleep(0.01)
    assert not any(batch() is not None for batch in batches)


def test_a_stream_gives_each_its_own(reward: Artifact, reference: Artifact, closing: Closing) -> None:
    device = Emulator()
    closing(device)
    engine = OffloadEngine([place(REWARD, reward, device), place(PassKind.REFERENCE, reference, device)])
    batch = sequences(reference, lengths=(12, 9, 30, 8, 17), prompt=4)
    right = Engine(reference).run(batch)
    assert right.logprobs is not None and batch.prompt_tokens is not None
    stream = Stream(engine, PassKind.REFERENCE, sequences=2)
    for i, (row, prompt) in enumerate(zip(batch.ids, batch.prompt_tokens, strict=True)):
        stream.add(i, row, prompt_tokens=prompt)
        stream.add(i, [1], prompt_tokens=1)  # known: not run again
    assert 4 in stream and 5 not in stream
    for _ in range(2):
        found = stream.result([3, 0, 4]).logprobs
        assert found is not None
        assert [row.tobytes() for row in found] == [right.logprobs[i].tobytes() for i in (3, 0, 4)]
    assert engine.stats()[PassKind.REFERENCE].sequences == 5
    with pytest.raises(KeyError):
        stream.result([0, 9])
    stream.cancel()
    assert 1 not in stream


def test_a_wrong_rollout_does_not_take_the_others_with_it(
    reward: Artifact, closing: Closing, wanted: npt.NDArray[np.float32]
) -> None:
    device = Emulator()
    closing(device)
    stream = Stream(OffloadEngine([place(REWARD, reward, device)]), REWARD, sequences=3)
    stream.add("a", BATCH.ids[0])
    for wrong in ([999], [], [[1, 2]], [0.5]):
        with pytest.raises(BatchError):
            stream.add("wrong", wrong)
    with pytest.raises(ConfigError, match="name their prompt"):
        stream.add("wrong", [1, 2], prompt_tokens=1)
    assert "wrong" not in stream
    assert np.array_equal(scores(stream.result(["a"])), wanted[:1])  # alone: who asks does not wait for company
    stream.add("b", BATCH.ids[1])
    assert np.array_equal(scores(stream.result(["b", "a"])), wanted[[1, 0]])
    for options, match in (({"kind": PassKind.CRITIC}, "no critic"), ({"sequences": 0}, "sequences=0")):
        with pytest.raises(ConfigError, match=match):
            Stream(**{"engine": stream._engine, "kind": REWARD, **options})  # type: ignore[arg-type]


def test_a_hand_in_that_fails_is_tried_again_at_the_barrier(
    reward: Artifact, closing: Closing, wanted: npt.NDArray[np.float32]
) -> None:
    device = Flaky(Emulator(), dict.fromkeys(range(3), Fault.REFUSED))
    closing(device)
    stream = Stream(OffloadEngine([place(REWARD, reward, device)]), REWARD, sequences=2)
    stream.add(0, BATCH.ids[0])
    with pytest.warns(UserWarning, match="handed in again"), pytest.raises(DeviceError, match="refusal"):
        stream.add(1, BATCH.ids[1])
    stream.add(2, BATCH.ids[2])
    assert np.array_equal(scores(stream.result([0, 1, 2])), wanted[:3])


def test_a_stream_is_fed_by_several_threads(reward: Artifact, closing: Closing) -> None:
    device = Emulator()
    closing(device)
    rows = [[i % 100, i // 7, 1 + i % 3] for i in range(60)]
    right = scores(Engine(reward).run(Batch.of(rows)))
    stream = Stream(OffloadEngine([place(REWARD, reward, device)], depth=2), REWARD, sequences=4)

    def feed(first: int) -> None:
        for i in range(first, len(rows), 3):
            stream.add(i, rows[i])

    threads = [threading.Thread(target=feed, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(scores(stream.result(range(60))), right)


def test_tokens_are_not_copied_on_their_way_to_the_device(reward: Artifact, closing: Closing) -> None:
    """From a CPU tensor or an array of int32 to the device's submit, in parts: the same memory."""
    seen: list[Batch] = []

    class Looking(Emulator):
        def submit(self, handle: Handle, batch: Batch, wait_s: float | None = None):  # type: ignore[no-untyped-def]
            seen.append(batch)
            return super().submit(handle, batch, wait_s=wait_s)

    device = Looking()
    closing(device)
    engine = OffloadEngine([place(REWARD, reward, device, sequences=1)])
    matrix = torch.arange(1, 13, dtype=torch.int32).reshape(3, 4)
    engine.submit(REWARD, Batch.of(list(matrix))).result()
    assert len(seen) == 3
    assert all(np.shares_memory(batch.ids[0], matrix.numpy()) for batch in seen)
    array = matrix.numpy().copy()
    whole = Batch.of(list(array))
    assert all(np.shares_memory(row, array) for row in whole.ids)
    assert all(np.shares_memory(row, array) for piece in whole.parts(2) for row in piece.ids)
    assert not np.shares_memory(Batch.of(list(array.astype(np.int64))).ids[0], array)
