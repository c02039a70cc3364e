"""The contract passes on a sound device and finds each fault of a faulty one."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from greentrain.fpga_backend.artifact import Artifact, as_artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle, OffloadDevice
from greentrain.fpga_backend.devices.base import Loaded, Unmetered, WorkQueue
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.testing.offload_contract import OffloadContract
from greentrain.types import PowerMeter, Provenance


class EngineDevice:
    """The emulator's engine behind a queue, and nothing else."""

    depth = 8

    def __init__(self) -> None:
        self.loaded: Loaded[Engine] = Loaded("engine")
        self.lane = WorkQueue("greentrain-test-engine", self.depth)
        self.closed = False

    def probe(self) -> DeviceInfo:
        reason = "closed" if self.closed else ""
        return DeviceInfo(
            uid="engine", name="engine", available=not self.closed, reason=reason, exact=True, simulated=False
        )

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        if self.closed:
            raise DeviceLostError("closed")
        return self.loaded.put(Engine(as_artifact(artifact)), artifact.digest, replacing)

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        if self.closed:
            raise DeviceLostError("closed")
        engine = self.loaded.get(handle)
        batch = fitting(batch, engine.program)
        return self.lane.submit(lambda: self.run(engine, batch), wait_s)

    def run(self, engine: Engine, batch: Batch) -> Result:
        return engine.run(batch)

    def energy(self) -> EnergyReading:
        return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note="no sensor")

    @property
    def meter(self) -> PowerMeter:
        return Unmetered()

    def close(self) -> None:
        self.closed = True
        self.lane.close()
        self.loaded.close()


class TestEngineDevice(OffloadContract):
    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = EngineDevice()
        yield device
        device.close()


class MovesByBatch(EngineDevice):
    """A score depends on the other sequences."""

    def run(self, engine: Engine, batch: Batch) -> Result:
        result = engine.run(batch)
        scores = None if result.scores is None else result.scores * np.float32(1 + 1e-7 * (len(batch.ids) > 1))
        return dataclasses.replace(result, scores=scores)


class SortsSequences(EngineDevice):
    """Answers come in order of length."""

    def run(self, engine: Engine, batch: Batch) -> Result:
        result = engine.run(batch)
        order = np.argsort([len(row) for row in batch.ids], kind="stable")
        scores = None if result.scores is None else result.scores[order]
        return dataclasses.replace(result, scores=scores)


class Unbounded(EngineDevice):
    """Its queue has no end."""

    depth = 10**9


class LateWeights(EngineDevice):
    """Looks the weights up when the batch runs, not when it was submitted."""

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        handle = super().load(artifact, replacing=replacing)
        self.newest = self.loaded.get(handle)
        return handle

    def run(self, engine: Engine, batch: Batch) -> Result:
        return (self.newest if self.newest.program == engine.program else engine).run(batch)


class TakesAnyHandle(EngineDevice):
    """Does not look at the digest."""

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        for known in list(self.loaded._models):
            if known.number == handle.number:
                handle = known
        return super().submit(handle, batch, wait_s=wait_s)


class ChecksLate(EngineDevice):
    """A wrong batch is found when it runs."""

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        engine = self.loaded.get(handle)
        return self.lane.submit(lambda: self.run(engine, batch), wait_s)


class ZeroJoules(EngineDevice):
    """Says 0 J for what nobody measured."""

    def energy(self) -> EnergyReading:
        return EnergyReading(energy_j=0.0, provenance=Provenance.MISSING)


class Unbooked(EngineDevice):
    """Knows joules that its meter does not."""

    def energy(self) -> EnergyReading:
        return EnergyReading(energy_j=3.0, provenance=Provenance.MEASURED)


class LeavesItsThread(EngineDevice):
    """The end leaves a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = threading.Event()

    def close(self) -> None:
        if not self.closed:
            threading.Thread(target=self.stop.wait, args=(20.0,)).start()
        super().close()


class ForgetsToFail(EngineDevice):
    """Closing leaves futures that never end."""

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        inner = super().submit(handle, batch, wait_s=wait_s)
        outer: Future[Result] = Future()

        def hand_on(done: Future[Result]) -> None:
            if done.exception() is None and outer.set_running_or_notify_cancel():
                outer.set_result(done.result())

        inner.add_done_callback(hand_on)
        return outer


class Wakes(EngineDevice):
    """Says after the end that it can be used."""

    def probe(self) -> DeviceInfo:
        return dataclasses.replace(super().probe(), available=True)


class SharesNothing(EngineDevice):
    """Computes every prompt."""

    def run(self, engine: Engine, batch: Batch) -> Result:
        return dataclasses.replace(super().run(engine, batch), rows=batch.tokens)


class SwapsUnderThreads(EngineDevice):
    """Keeps the batch in one place for all threads."""

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        engine = self.loaded.get(handle)
        batch = fitting(batch, engine.program)
        self.newest = (engine, batch)
        return self.lane.submit(lambda: self.run(*self.newest), wait_s)


class ThrowsNonsense(EngineDevice):
    """Hands out numbers that are not finite."""

    def run(self, engine: Engine, batch: Batch) -> Result:
        try:
            return engine.run(batch)
        except DeviceError:
            return Result(scores=np.full((len(batch.ids), 1), np.inf, dtype=np.float32), run_s=0.0, rows=1)


FAULTS: tuple[tuple[type[EngineDevice], str], ...] = (
    (MovesByBatch, "test_a_sequence_gives_the_same_in_any_batch"),
    (SortsSequences, "test_scores_are_right"),
    (Unbounded, "test_a_full_queue_pushes_back"),
    (LateWeights, "test_replaced_weights_wait_for_what_came_before"),
    (TakesAnyHandle, "test_foreign_handles_are_refused"),
    (ChecksLate, "test_wrong_batches_are_refused_at_submit"),
    (ZeroJoules, "test_energy_is_known_or_missing"),
    (Unbooked, "test_energy_is_known_or_missing"),
    (LeavesItsThread, "test_close_leaves_nothing"),
    (ForgetsToFail, "test_close_fails_what_waits"),
    (Wakes, "test_close_fails_what_waits"),
    (SharesNothing, "test_shared_prompts_are_computed_once"),
    (SwapsUnderThreads, "test_threads_get_their_own_answers"),
    (ThrowsNonsense, "test_a_result_that_is_not_finite_is_a_failed_batch"),
)


class Hurried(OffloadContract):
    answer_s = 1.0
    most_waiting = 300
    threads_end_s = 0.2


@pytest.mark.parametrize(("faulty", "check"), FAULTS, ids=[faulty.__name__ for faulty, _ in FAULTS])
def test_each_fault_is_found(faulty: Callable[[], EngineDevice], check: str) -> None:
    device: Any = faulty()
    try:
        with pytest.raises((AssertionError, TimeoutError)):
            getattr(Hurried(), check)(device)
    finally:
        device.close()
        if isinstance(device, LeavesItsThread):
            device.stop.set()
