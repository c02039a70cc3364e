import numpy as np
import numpy.typing as npt
import pytest

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.devices.null_device import NullDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from greentrain.testing.offload_models import encoder

ROWS = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10]]


def scores_of(engine: OffloadEngine) -> npt.NDArray[np.float32]:
    scores = engine.submit(PassKind.REWARD, Batch.of(ROWS)).result().scores
    assert scores is not None
    return scores


def test_a_pass_in_parts_streamed_or_redone_at_home_has_the_same_bits() -> None:
    device, home, broken = Emulator(), Emulator(), NullDevice()
    try:
        artifact = encoder()
        whole = OffloadEngine([place(PassKind.REWARD, artifact, device)])
        wanted = scores_of(whole)
        for engine in (
            OffloadEngine([place(PassKind.REWARD, artifact, device, sequences=2)], sequential=True),
            OffloadEngine([place(PassKind.REWARD, artifact, device, sequences=1)], depth=1),
        ):
            assert np.array_equal(scores_of(engine), wanted)
        stream = Stream(whole, PassKind.REWARD, sequences=2)
        for key, row in zip("abc", ROWS, strict=True):
            stream.add(key, row)
        found = stream.result("cab").scores
        assert found is not None and np.array_equal(found, wanted[[2, 0, 1]])
        failing = OffloadEngine([place(PassKind.REWARD, artifact, broken, home=home)])
        with pytest.warns(UserWarning, match="redone"):
            assert np.array_equal(scores_of(failing), wanted)
        assert failing.stats()[PassKind.REWARD].redone == 1
    finally:
        for one in (device, home, broken):
            one.close()
