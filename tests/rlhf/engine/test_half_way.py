"""What is cancelled, refused or interrupted in the middle of a hand-in leaves nothing under way and no room taken."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import DeviceError
from greentrain.rlhf.engine import EngineState, OffloadEngine
from greentrain.rlhf.errors import PassCancelledError
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from tests.helpers.flaky_device import Fault, Flaky
from tests.rlhf.engine.conftest import Closing

REWARD = PassKind.REWARD
BATCH = Batch.of([[1, 2, 3], [4, 5], [6]])


def test_a_stream_that_is_cancelled_in_the_middle_of_its_hand_in(reward: Artifact, closing: Closing) -> None:
    device = Flaky(Emulator(), {0: Fault.HANGS})
    closing(device)
    other, engine = (OffloadEngine([place(REWARD, reward, device)], depth=1) for _ in range(2))
    first, second = other.submit(REWARD, BATCH), engine.submit(REWARD, BATCH)
    stream = Stream(engine, REWARD, sequences=9)
    stream.add("a", [1, 2])
    handing, raised = threading.Event(), []
    enter = engine._desk.enter

    def entering(part: Any) -> None:
        handing.set()
        enter(part)

    engine._desk.enter = entering  # type: ignore[method-assign]

    def ask() -> None:
        try:
            stream.result(["a"])
        except PassCancelledError as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert handing.wait(240)
    stream.cancel()
    assert asking.is_alive() and "a" not in stream
    assert second.cancel()  # makes room
    asking.join(240)
    assert len(raised) == 1
    assert not engine._desk.under_way(REWARD)
    device.go_on()
    first.result()
    stream.add("a", BATCH.ids[1])
    found, wanted = stream.result(["a"]).scores, Engine(reward).run(BATCH).scores
    assert found is not None and wanted is not None and np.array_equal(found[0], wanted[1])


def test_parts_before_one_that_is_refused_are_cancelled(reward: Artifact, closing: Closing) -> None:
    device = Flaky(Emulator(), {0: Fault.HANGS, **dict.fromkeys((2, 3, 4), Fault.REFUSED)})
    closing(device)
    engine = OffloadEngine([place(REWARD, reward, device, sequences=1)], depth=3)
    with pytest.warns(UserWarning, match="handed in again"), pytest.raises(DeviceError, match="refusal"):
        engine.submit(REWARD, BATCH)
    assert len(engine._desk.under_way(REWARD)) <= 1, "the first runs, the second must not"
    assert REWARD not in engine.stats() or engine.stats()[REWARD].calls == 0
    device.go_on()
    scores = engine.submit(REWARD, BATCH).result().scores
    wanted = Engine(reward).run(BATCH).scores
    assert scores is not None and wanted is not None and np.array_equal(scores, wanted)
    assert not engine._desk.under_way(REWARD)


def test_ctrl_c_right_behind_the_room_gives_it_back(
    reward: Artifact, closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Emulator()
    closing(device)
    engine = OffloadEngine([place(REWARD, reward, device)], depth=1, timeout_s=120.0)
    enter = EngineState.enter

    def interrupted(self: EngineState, part: Any) -> None:
        enter(self, part)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EngineState, "enter", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.submit(REWARD, BATCH)
    begun_s = time.monotonic()
    engine.submit(REWARD, BATCH).result()
    assert time.monotonic() - begun_s < 60.0
