import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.errors import GreenTrainWarning
from greentrain.fpga_backend.batch import Batch, Result, pack
from greentrain.fpga_backend.csim.device import Csim
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError, QueueFullError
from greentrain.fpga_backend.xrt.device import XrtDevice
from greentrain.testing.offload_contract import OffloadContract
from greentrain.testing.offload_models import decoder, encoder, sequences
from greentrain.types import Provenance
from recipes.common.data_parallel import DataParallel, split

Open = Callable[..., XrtDevice]
CAUSAL = decoder(layers=1)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    prompts=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    parts=st.integers(1, 4),
)
def test_parts_hold_each_sequence_once_and_share_what_the_whole_shares(
    lengths: list[int], prompts: list[int], parts: int
) -> None:
    ids = [[1] * min(n, 2) + [2] * max(n - 2, 0) for n in lengths]
    batch = Batch.of(ids, prompt_tokens=[min(p, n) for p, n in zip(prompts, lengths, strict=False)])
    found = split(batch, CAUSAL.program, parts)
    assert sorted(i for part in found for i in part) == list(range(len(lengths)))
    assert 1 <= len(found) <= parts
    rows = sum(pack(batch.some(part), CAUSAL.program).rows for part in found)
    assert rows == pack(batch, CAUSAL.program).rows


def test_parts_are_of_about_one_size() -> None:
    batch = Batch.of([[1] * n for n in (60, 10, 10, 10, 10, 10, 10)])
    assert split(batch, encoder().program, 2) == ((0,), (1, 2, 3, 4, 5, 6))
    assert len(split(batch, encoder().program, 20)) == 7


def test_answers_come_back_in_the_batchs_order() -> None:
    def scores(*values: float) -> Result:
        return Result(scores=np.array([[v] for v in values], np.float32), run_s=values[0], rows=len(values))

    parts = [scores(1.0, 3.0), scores(0.0, 2.0, 4.0)]
    whole = Result.joined(parts, order=(1, 3, 0, 2, 4), at_once=True)
    assert whole.scores is not None and whole.scores[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert (whole.run_s, whole.rows) == (1.0, 5)


class TestDataParallel(OffloadContract):
    heads = ("logprob",)

    @pytest.fixture
    def device(self, library: Path) -> Iterator[OffloadDevice]:
        device = DataParallel([Csim(), Renamed()], whole_tokens=10)
        yield device
        device.close()


class Renamed(Csim):
    """A second csim device in one process."""

    def __init__(self) -> None:
        super().__init__()
        self._uid = self._loaded._uid = "csim-second"
        self._info = replace(self._info, uid=self._uid)


def test_a_small_batch_is_not_divided(library: Path) -> None:
    one, other = Csim(), Renamed()
    device = DataParallel([one, other], whole_tokens=100)
    handle = device.load(CAUSAL)
    sent: list[int] = []
    for part in (one, other):
        submit = part.submit

        def spy(*a: object, submit: Callable[..., object] = submit, **k: object) -> object:
            sent.append(len(a[1].ids))  # type: ignore[attr-defined]
            return submit(*a, **k)

        part.submit = spy  # type: ignore[assignment, method-assign]
    device.submit(handle, sequences(CAUSAL, lengths=(5, 6, 7))).result(60)
    assert sent == [3]
    device.submit(handle, sequences(CAUSAL, lengths=(50, 60, 8))).result(60)
    assert sorted(sent[1:]) == [1, 2]
    device.close()


def test_a_card_that_dies_has_its_part_done_again_with_one_warning(opened: Open, library: Path) -> None:
    device = DataParallel([opened(), opened()], whole_tokens=10)
    handle = device.load(CAUSAL)
    batch = sequences(CAUSAL, lengths=(40, 30, 20, 10, 64, 64))
    wanted = Engine(CAUSAL).run(batch)
    first, second = device._devices
    assert isinstance(first, XrtDevice) and isinstance(second, XrtDevice)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        os.kill(second.worker_pid, signal.SIGKILL)
        for future in [device.submit(handle, batch) for _ in range(3)]:
            got = future.result(60)
            assert [a.tobytes() for a in got.logprobs or ()] == [b.tobytes() for b in wanted.logprobs or ()]
        assert device.probe().available and "SIGKILL" in device.probe().details["lost"]
        newer = device.load(decoder(layers=1, seed=3), replacing=handle)
        assert device.submit(newer, batch).result(60).rows > 0
    told = [str(w.message) for w in said if issubclass(w.category, GreenTrainWarning)]
    assert len(told) == 1 and second.probe().uid in told[0] and "go to the 1 that are left" in told[0]
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        os.kill(first.worker_pid, signal.SIGKILL)
        assert isinstance(device.submit(newer, batch).exception(60), DeviceLostError)
        deadline_s = time.monotonic() + 240
        while device.probe().available and time.monotonic() < deadline_s:
            time.sleep(0.01)
        with pytest.raises(DeviceLostError, match="all devices are lost"):
            device.submit(newer, batch)
    device.close()


def test_a_part_that_finds_no_room_takes_the_others_back(library: Path) -> None:
    device = DataParallel([Csim(depth=1), Renamed()], whole_tokens=10)
    handle = device.load(CAUSAL)
    batch = sequences(CAUSAL, lengths=(64,) * 12)
    taken = []
    with pytest.raises(QueueFullError):
        for _ in range(1000):
            taken.append(device.submit(handle, batch, wait_s=0.0))
    assert all(future.result(60).rows == 12 * 64 for future in taken)
    device.close()


def test_joules_are_known_only_where_all_are(library: Path) -> None:
    device = DataParallel([Csim(), Renamed()])
    assert device.energy().energy_j is None
    assert device.energy().provenance is Provenance.MISSING
    device.close()


def test_wrong_sets_of_devices_are_refused(library: Path) -> None:
    with pytest.raises(DeviceError, match="at least one is needed"):
        DataParallel([])
    device = Csim()
    with pytest.raises(DeviceError, match="a device was given twice"):
        DataParallel([device, device])
    device.close()
