from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import BestPartSize, place
from greentrain.rlhf.kinds import PassKind
from tests.helpers.flaky_device import Fault, Flaky
from tests.rlhf.engine.conftest import Closing


class Card:
    """Time of a part: so much to begin, so much a sequence, and more and more beyond what its memory holds."""

    def __init__(self, best: int, overhead_s: float = 1.0, s_per_sequence: float = 0.01) -> None:
        self.best, self.overhead_s, self.s_per_sequence = best, overhead_s, s_per_sequence

    def time_s(self, n: int) -> float:
        return self.overhead_s + n * self.s_per_sequence * max(1.0, n / self.best) ** 3

    def feed(self, size: BestPartSize, batch: int, batches: int) -> list[int]:
        seen = []
        for _ in range(batches):
            left = batch
            while left:
                n = size.next(left)
                assert 1 <= n <= left
                size.ran(n, 100 * n, self.time_s(n))
                seen.append(n)
                left -= n
        return seen


def sized(**options: int) -> BestPartSize:
    """Return the search with other numbers."""
    made: BestPartSize = type("Sized", (BestPartSize,), options)()
    return made


@pytest.mark.parametrize("start", [1, 8, 1024])
@pytest.mark.parametrize("best", [1, 16, 64, 1024])
def test_finds_the_sweet_spot_from_anywhere_and_stays(best: int, start: int) -> None:
    size, card = sized(start=start, again=10**6), Card(best)
    if best == 1:
        card.overhead_s = 0.0001
    card.feed(size, 1024, 40)
    assert size.settled
    assert size.best == best
    assert set(card.feed(size, 1024, 2)) == {best}


def test_is_deterministic_given_the_measurements() -> None:
    assert Card(32).feed(BestPartSize(), 200, 20) == Card(32).feed(BestPartSize(), 200, 20)


def test_a_little_faster_is_not_enough() -> None:
    """Within the margin the size stays, whichever way the noise goes."""
    size, rng = sized(start=16), np.random.default_rng(0)
    for _ in range(200):
        n = size.next(1024)
        size.ran(n, 100 * n, n * rng.uniform(0.98, 1.02))
    assert size.best == 16


def test_never_larger_than_the_batches_and_tries_again_when_they_grow() -> None:
    size, card = sized(again=200), Card(64)
    card.feed(size, 12, 30)
    assert size.settled
    assert size.best == 8
    card.feed(size, 256, 40)
    assert size.best == 64


def test_a_size_that_fails_is_none() -> None:
    size, card = BestPartSize(), Card(64)
    for _ in range(200):
        n = size.next(1024)
        if n > 16:
            size.failed(n)
        else:
            size.ran(n, 100 * n, card.time_s(n))
    assert size.settled
    assert size.best == 16


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(-1.0, 1e9), st.booleans()), max_size=200),
    st.integers(0, 6),
    st.integers(0, 4),
)
def test_any_measurements_leave_a_legal_size(measured: list[tuple[int, float, bool]], low: int, up: int) -> None:
    size = sized(start=1 << low, smallest=1 << low, largest=1 << (low + up), samples=1, again=5)
    for batch, run_s, fails in measured:
        n = size.next(batch)
        assert 1 <= n <= batch
        assert n == batch or 1 << low <= n <= 1 << (low + up)
        if fails:
            size.failed(n)
        else:
            size.ran(n, n, run_s)


class Timed(Flaky):
    """A device whose batches say that they took 4 ms and 0.1 ms a sequence, however busy the machine is."""

    def deliver(self, number: int, batch: Batch, inner: "Future[Result]") -> Result:
        return replace(super().deliver(number, batch, inner), run_s=4e-3 + 1e-4 * len(batch.ids))


def test_the_engine_cuts_by_it_and_the_bits_stay(reward: Artifact, closing: Closing) -> None:
    """On a device that takes its time to begin, larger parts are found better; a failing one says nothing."""
    device, home = Timed(Emulator(), {4: Fault.FAILS}), Emulator()
    closing(device, home)
    size = sized(start=2, samples=1, largest=16)
    engine = OffloadEngine([place(PassKind.REWARD, reward, device, home=home, part_size=size)])
    batch = Batch.of([[i % 100, i // 100 + 1] for i in range(32)])
    wanted = Engine(reward).run(batch).scores
    assert wanted is not None
    with pytest.warns(UserWarning, match="redone"):
        for _ in range(4):
            found = engine.submit(PassKind.REWARD, batch).result().scores
            assert found is not None and np.array_equal(found, wanted)
    assert size.best > 2
    with pytest.raises(ConfigError, match="sequences=4 and a part_size"):
        place(PassKind.REWARD, reward, device, sequences=4, part_size=size)
