"""Whatever a device does, the pass has the bits that it has without the fault, or the error where it is needed."""

import re
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.paced_device import Paced
from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import DeviceInfo
from greentrain.fpga_backend.devices.base import WorkQueue
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import BatchError, DeviceError, DeviceLostError
from greentrain.rlhf import engine as engine_module
from greentrain.rlhf.engine import OffloadEngine, PassStats
from greentrain.rlhf.errors import PassCancelledError, PassTimeoutError
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.testing.offload_models import encoder
from tests.helpers.flaky_device import Fault, Flaky
from tests.rlhf.engine.conftest import Closing

REWARD = PassKind.REWARD
BATCH = Batch.of([[1, 2, 3], [4, 5, 6, 7, 8], [9, 10]])
Scores = npt.NDArray[np.float32]


def scores(found: Result) -> Scores:
    assert found.scores is not None
    return found.scores


@pytest.fixture(scope="module")
def wanted(reward: Artifact) -> Scores:
    return scores(Engine(reward).run(BATCH))


class Begun(Flaky):
    """One that says when it has begun with a batch."""

    def __init__(self, faults: dict[int, Fault]) -> None:
        self.begun = threading.Event()
        super().__init__(Emulator(), faults)

    def deliver(self, number: int, batch: Batch, inner: Future[Result]) -> Result:
        self.begun.set()
        return super().deliver(number, batch, inner)


@pytest.fixture
def made(reward: Artifact, closing: Closing) -> Callable[..., tuple[OffloadEngine, Begun]]:
    """An engine with a device of given faults, and a home."""

    def make(faults: dict[int, Fault], *, home: bool = True, **options: object) -> tuple[OffloadEngine, Begun]:
        device, at_home = Begun(faults), Emulator() if home else None
        closing(device, *([at_home] if at_home else []))
        options = {"timeout_s": 240.0, **options}
        return OffloadEngine([place(REWARD, reward, device, home=at_home)], **options), device  # type: ignore[arg-type]

    return make


Made = Callable[..., tuple[OffloadEngine, Begun]]


def stats(engine: OffloadEngine) -> PassStats:
    return engine.stats()[REWARD]


@pytest.mark.parametrize(
    "fault", [Fault.FAILS, Fault.REFUSED, Fault.DIES, Fault.NAN, Fault.SHORT, Fault.CANCELLED], ids=lambda f: f.name
)
def test_a_fault_is_redone_at_home_and_the_device_used_again(made: Made, wanted: Scores, fault: Fault) -> None:
    engine, device = made({1: fault, 3: fault})
    with pytest.warns(UserWarning, match="redone on emulator, with the same bits") as told:
        for _ in range(5):
            assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    assert len(told) == 1
    found = stats(engine)
    # a device that cancels by itself may have computed the batch before
    redone = found.redone if fault is Fault.CANCELLED else 2
    assert (found.redone, found.at_home, found.calls, found.sequences) == (redone, redone, 5, 15)
    assert device.submitted == 5


def test_a_lost_device_is_not_asked_again(made: Made, wanted: Scores) -> None:
    engine, device = made({2: Fault.LOST})
    with pytest.warns(UserWarning, match="is lost .*its reward pass is redone on emulator.*and so is what") as told:
        tickets = [engine.submit(REWARD, BATCH) for _ in range(6)]
        assert all(np.array_equal(scores(ticket.result()), wanted) for ticket in tickets)
    before = device.submitted
    with warnings.catch_warnings(record=True) as more:
        assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    assert len(told) == 1
    assert more == []
    assert device.submitted == before


def test_a_device_that_fails_again_and_again_is_asked_seldom(made: Made, wanted: Scores) -> None:
    engine, device = made(dict.fromkeys(range(1000), Fault.FAILS))
    with pytest.warns(UserWarning, match="redone"):
        for _ in range(60):
            assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    assert 3 <= device.submitted <= 8
    device.faults.clear()
    for _ in range(70):  # its rest, then again and again
        engine.submit(REWARD, BATCH).result()
    assert stats(engine).at_home < 130
    asked = device.submitted
    for _ in range(5):
        engine.submit(REWARD, BATCH).result()
    assert device.submitted == asked + 5


def test_a_device_that_hangs_is_left_until_it_answers(
    made: Made, wanted: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything behind the batch that hangs goes home with it, and what comes goes there at once."""
    late_s: list[float] = []

    def waited(futures: Any, limit_s: float, **options: Any) -> Any:
        found = wait(futures, 240.0 if late_s else limit_s, **options)  # home may take long on a busy machine
        if found.not_done:
            late_s.append(limit_s)
        return found

    engine, device = made({1: Fault.HANGS}, timeout_s=0.5)
    assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    tickets = [engine.submit(REWARD, BATCH) for _ in range(4)]
    monkeypatch.setattr(engine_module, "wait", waited)
    with pytest.warns(UserWarning, match="no answer within 0.5 s.*redone") as told:
        assert all(np.array_equal(scores(found), wanted) for found in [ticket.result() for ticket in tickets])
    asked = device.submitted
    assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    assert late_s == [pytest.approx(0.5)], "one time-out for all of them"
    assert len(told) == 1
    assert device.submitted == asked
    assert (stats(engine).redone, stats(engine).at_home) == (4, 5)
    device.go_on()
    for _ in range(20):  # it was one failure, not four
        time.sleep(0.05)
        assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    assert device.submitted > asked


def test_a_result_wipes_failures_out(made: Made) -> None:
    engine, device = made(dict.fromkeys((0, 1, 3, 4, 6, 7), Fault.FAILS))
    with pytest.warns(UserWarning, match="redone"):
        for _ in range(9):
            engine.submit(REWARD, BATCH).result()
    assert device.submitted == 9


def test_without_a_home_a_device_that_hangs_is_an_error_and_the_ticket_lives_on(made: Made, wanted: Scores) -> None:
    engine, device = made({0: Fault.HANGS}, home=False)
    ticket = engine.submit(REWARD, BATCH)
    with pytest.raises(PassTimeoutError, match=r"1 of 1 parts of a reward pass did not come within 0.05 s.*a home"):
        ticket.result(0.05)
    assert not ticket.done()
    device.go_on()
    assert np.array_equal(scores(ticket.result()), wanted)


def when_told(engine: OffloadEngine, do: Callable[[], None], word: str) -> list[str]:
    """Do something as soon as the engine warns with a word; return the list of what it warned of."""
    tell, told = engine._desk.tell, []

    def telling(key: str, text: str, then: str = "training goes on") -> None:
        tell(key, text, then)
        told.append(f"{text}; {then}")
        if word in text:
            do()

    engine._desk.tell = telling  # type: ignore[method-assign]
    return told


def test_without_a_home_training_waits_for_a_device_that_hangs_and_says_so(made: Made, wanted: Scores) -> None:
    engine, device = made({0: Fault.HANGS}, home=False, timeout_s=0.05)
    when_told(engine, device.go_on, "for more than")
    ticket = engine.submit(REWARD, BATCH)
    with pytest.warns(
        UserWarning,
        match=r"emulator has worked on a reward pass for more than 0.05 s; give the pass a home .*; training waits",
    ) as told:
        assert np.array_equal(scores(ticket.result()), wanted)
    assert len(told) == 1


@pytest.mark.parametrize("limit_s", [None, 0.1], ids=["of the engine", "of the caller"])
@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.HANGS, Fault.LOST], ids=lambda f: f.name)
def test_home_is_waited_for_as_long_as_it_needs_and_said_so(
    reward: Artifact, closing: Closing, wanted: Scores, fault: Fault, limit_s: float | None
) -> None:
    """Home begins when the device has used up most of the time, or all of it, and needs more than that."""
    device, home = Flaky(Emulator(), {0: fault}), Flaky(Emulator(), {0: Fault.HANGS})
    closing(device, home)
    engine = OffloadEngine([place(REWARD, reward, device, home=home)], timeout_s=0.1)
    told = when_told(engine, home.go_on, "has worked on")
    ticket = engine.submit(REWARD, BATCH)
    with pytest.warns(UserWarning) as warned:
        assert np.array_equal(scores(ticket.result(limit_s)), wanted)
    assert len(warned) == 2, "of the device, and of home"
    assert "redone on flaky emulator" in told[0]
    assert told[1] == (
        "flaky emulator has worked on a reward pass for more than 0.1 s; training waits as long as it takes"
    )


def test_submit_without_room_gives_up_a_device_that_hangs(made: Made, wanted: Scores) -> None:
    engine, _ = made({0: Fault.HANGS}, depth=2, timeout_s=0.2)
    first = [engine.submit(REWARD, BATCH) for _ in range(2)]
    with pytest.warns(UserWarning, match="no answer"):
        third = engine.submit(REWARD, BATCH)
    assert all(np.array_equal(scores(found), wanted) for found in [ticket.result(240.0) for ticket in (*first, third)])
    alone, device = made({0: Fault.HANGS}, depth=1, timeout_s=0.2, home=False)
    when_told(alone, device.go_on, "for more than")
    alone.submit(REWARD, BATCH)
    with pytest.warns(UserWarning, match="more than 0.2 s; give the pass a home"):
        assert np.array_equal(scores(alone.submit(REWARD, BATCH).result()), wanted)


def test_a_full_queue_without_a_home_is_waited_for(reward: Artifact, closing: Closing, wanted: Scores) -> None:
    device = Flaky(Emulator(), {0: Fault.HANGS}, depth=1)
    closing(device)
    engine = OffloadEngine([place(REWARD, reward, device)], timeout_s=0.05)
    when_told(engine, device.go_on, "failed")
    with warnings.catch_warnings(record=True) as told:  # of a machine that is slow, too
        warnings.simplefilter("always")
        tickets = [engine.submit(REWARD, BATCH) for _ in range(4)]
        assert all(np.array_equal(scores(ticket.result()), wanted) for ticket in tickets)
    assert sum(bool(re.search("batches wait .* is handed in again", str(each.message))) for each in told) == 1


@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.REFUSED, Fault.DIES, Fault.NAN], ids=lambda f: f.name)
def test_without_a_home_what_fails_is_tried_again_and_then_an_error_where_it_is_needed(
    made: Made, wanted: Scores, fault: Fault
) -> None:
    """Three times: two failures are no more than a warning."""
    engine, device = made({0: fault, 1: fault, **dict.fromkeys((3, 4, 5), fault)}, home=False)
    with pytest.warns(UserWarning, match="its reward pass is handed in again") as told:
        assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
        with pytest.raises(DeviceError, match=r"injected|not finite"):
            ticket = engine.submit(REWARD, BATCH)
            for _ in range(2):
                with pytest.raises(DeviceError, match=r"injected|not finite"):
                    ticket.result()
            ticket.result()
    assert len(told) == 1
    assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    assert (device.submitted, stats(engine).redone, stats(engine).at_home) == (7, 4, 0)


class Returning(Begun):
    """One that was lost and is there again when told."""

    def probe(self) -> DeviceInfo:
        return replace(super().probe(), returns=True)

    def again(self) -> None:
        self._lane.close()  # waits until its last batch was heard of
        self._reason, self._lane = "", WorkQueue("returned", 64)


@pytest.mark.parametrize("home", [False, True])
def test_a_lost_device_that_comes_back_is_used_again_and_waited_for_where_there_is_no_home(
    reward: Artifact, closing: Closing, wanted: Scores, home: bool
) -> None:
    device, at_home = Returning({1: Fault.LOST}), Emulator()
    closing(device, at_home)
    engine = OffloadEngine([place(REWARD, reward, device, home=at_home if home else None)], timeout_s=240.0)
    lost = threading.Event()
    told = when_told(engine, lost.set, "is lost")
    with pytest.warns(UserWarning, match="is lost") as warned:
        tickets = [engine.submit(REWARD, BATCH) for _ in range(3)]
        assert lost.wait(240)
        if not home:
            assert "reward pass has no home and waits for it; training goes on when it is there again" in told[0]
            device.again()
        assert all(np.array_equal(scores(ticket.result()), wanted) for ticket in tickets)
    assert len(warned) == 1
    if home:
        device.again()
    asked, at_home_before = device.submitted, stats(engine).at_home
    assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    assert (device.submitted, stats(engine).at_home) == (asked + 1, at_home_before)


def test_what_waits_for_a_lost_device_ends_with_the_engine(reward: Artifact, closing: Closing) -> None:
    device = Returning({0: Fault.LOST})
    closing(device)
    engine = OffloadEngine([place(REWARD, reward, device)])
    when_told(engine, engine.close, "waits for it")
    with pytest.warns(UserWarning, match="is lost"), pytest.raises(PassCancelledError):
        engine.submit(REWARD, BATCH).result()


def test_both_places_fail(reward: Artifact, closing: Closing) -> None:
    """Three times each: the error is the last one, and names the other place's as its cause; the room is free again."""
    device, home = (Flaky(Emulator(), dict.fromkeys(range(9), fault)) for fault in (Fault.FAILS, Fault.NAN))
    closing(device, home)
    engine = OffloadEngine([place(REWARD, reward, device, home=home)], depth=1)
    with pytest.warns(UserWarning, match="redone"):
        for _ in range(2):
            with pytest.raises(DeviceError) as caught:
                engine.submit(REWARD, BATCH).result()
            both = f"{caught.value} because {caught.value.__cause__}"
            assert "not finite" in both and "injected fault" in both


def test_what_is_kept_at_home_and_fails_there_runs_on_the_device(
    reward: Artifact, closing: Closing, wanted: Scores
) -> None:
    device, home = Emulator(), Flaky(Emulator(), {0: Fault.FAILS})
    closing(device, home)
    engine = OffloadEngine([place(REWARD, reward, device, home=home)])
    with pytest.warns(UserWarning, match="flaky emulator failed .* redone on emulator"):
        assert np.array_equal(scores(engine.submit(REWARD, BATCH, at=Place.HOME).result()), wanted)
    assert np.array_equal(scores(engine.submit(REWARD, BATCH, at=Place.HOME).result()), wanted)
    assert (stats(engine).redone, stats(engine).at_home) == (1, 1)


def test_a_home_that_is_slow_is_waited_for_where_the_device_fails(
    reward: Artifact, closing: Closing, wanted: Scores
) -> None:
    """A part that took too long at home and then fails on the device, and one that comes while home is at it."""
    device, home = Flaky(Emulator(), {0: Fault.FAILS, 1: Fault.LOST}), Flaky(Emulator(depth=1), {0: Fault.HANGS})
    closing(device, home)
    engine = OffloadEngine([place(REWARD, reward, device, home=home)], timeout_s=0.2)
    told = when_told(engine, home.go_on, "has worked on")
    with pytest.warns(UserWarning):
        first = engine.submit(REWARD, BATCH, at=Place.HOME)
        assert np.array_equal(scores(first.result()), wanted)
        tickets = [engine.submit(REWARD, BATCH) for _ in range(4)]  # more than home's queue takes
        assert all(np.array_equal(scores(ticket.result()), wanted) for ticket in tickets)
    assert "no answer within 0.2 s" in told[0]


def test_wrong_batches_raise_at_submit_and_take_no_room(made: Made, wanted: Scores) -> None:
    engine, device = made({}, depth=1)
    for wrong in (Batch.of([[1, 2], [999]]), Batch.of([]), [[1, 2]]):
        with pytest.raises(BatchError):
            engine.submit(REWARD, wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no critic pass, only reward"):
        engine.submit(PassKind.CRITIC, BATCH)
    assert device.submitted == 0
    assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    assert stats(engine).calls == 1


def test_a_wrong_sequence_is_named_by_its_place_in_the_batch(reward: Artifact, closing: Closing) -> None:
    device = Emulator()
    closing(device)
    engine = OffloadEngine([place(REWARD, reward, device, sequences=1)])
    with pytest.raises(BatchError, match="sequence 2 holds token id 999"):
        engine.submit(REWARD, Batch.of([[1], [2], [999]]))
    homeless = OffloadEngine([place(REWARD, reward, device)])
    with pytest.raises(ConfigError, match="has no home"):
        homeless.submit(REWARD, BATCH, at=Place.HOME)


def test_closing_the_device_sends_what_waits_home(reward: Artifact, closing: Closing, wanted: Scores) -> None:
    """More parts than home's queue takes at once, and the thread that closes does not wait for them."""
    device, home = Paced(Emulator(depth=99), s_per_sequence=5.0), Flaky(Emulator(), {0: Fault.HANGS}, depth=2)
    closing(device, home)
    engine = OffloadEngine([place(REWARD, reward, device, home=home, sequences=1)])
    tickets = [engine.submit(REWARD, BATCH) for _ in range(8)]
    with pytest.warns(UserWarning, match="is lost"):
        device.close()
        assert not tickets[-1].done(), "home is still at it"
        home.go_on()
        assert all(np.array_equal(scores(ticket.result()), wanted) for ticket in tickets)
    assert stats(engine).redone > 8


def test_without_a_home_a_closed_device_is_lost(made: Made) -> None:
    engine, device = made({0: Fault.HANGS}, home=False)
    tickets = [engine.submit(REWARD, BATCH) for _ in range(3)]
    device.close()
    for ticket in tickets:
        with pytest.raises(DeviceLostError):
            ticket.result()
    with pytest.raises(DeviceLostError, match="closed"):
        engine.submit(REWARD, BATCH)


def test_cancel(made: Made, wanted: Scores) -> None:
    engine, device = made({0: Fault.HANGS}, depth=4)
    running, waiting, kept = (engine.submit(REWARD, BATCH) for _ in range(3))
    assert device.begun.wait(240)
    assert waiting.cancel()
    assert waiting.cancel()
    assert not running.cancel()
    with pytest.raises(PassCancelledError, match="reward pass was cancelled"):
        waiting.result()
    device.go_on()
    for ticket in (running, kept):
        assert np.array_equal(scores(ticket.result()), wanted)
        assert not ticket.cancel()
    tickets = [engine.submit(REWARD, BATCH) for _ in range(20)]  # all room is there again
    assert all(np.array_equal(scores(ticket.result()), wanted) for ticket in tickets)


def test_new_weights_reach_both_places(made: Made, wanted: Scores, closing: Closing) -> None:
    """What is under way keeps the old ones; a place that does not take them is not used until it takes later ones."""
    engine, device = made({2: Fault.FAILS})
    other = encoder(seed=5, layers=1, types=0)
    changed = scores(Engine(other).run(BATCH))
    before = engine.submit(REWARD, BATCH)
    engine.replace(REWARD, other)
    assert np.array_equal(scores(before.result()), wanted)
    assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), changed)
    with pytest.warns(UserWarning, match="redone"):
        assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), changed)
    device.lose("gone")
    with pytest.warns(UserWarning, match=r"did not take new weights of the reward pass \(gone\)"):
        engine.replace(REWARD, encoder(layers=1, types=0))
    assert np.array_equal(scores(engine.submit(REWARD, BATCH).result()), wanted)
    alone, device = made({}, home=False)
    device.lose("gone")
    with pytest.raises(DeviceLostError):
        alone.replace(REWARD, other)
    with pytest.raises(DeviceError, match="did not take the last weights"):
        alone.submit(REWARD, BATCH)


def test_what_is_under_way_and_fails_is_redone_with_the_old_weights(
    reward: Artifact, closing: Closing, wanted: Scores
) -> None:
    device, home = Flaky(Paced(Emulator(), s_per_sequence=0.1), {0: Fault.FAILS}), Emulator()
    closing(device, home)
    engine = OffloadEngine([place(REWARD, reward, device, home=home)])
    ticket = engine.submit(REWARD, BATCH)
    with pytest.warns(UserWarning, match="redone"):
        engine.replace(REWARD, encoder(seed=5, layers=1, types=0))
        assert np.array_equal(scores(ticket.result()), wanted)


def test_a_closed_engine_redoes_nothing(made: Made) -> None:
    engine, device = made({0: Fault.HANGS})
    running, waiting = (engine.submit(REWARD, BATCH) for _ in range(2))
    assert device.begun.wait(240)
    engine.close()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        device.close()
        with pytest.raises(DeviceLostError):
            running.result()
    assert told == []
    with pytest.raises(PassCancelledError):
        waiting.result()
    assert stats(engine).redone == 0
