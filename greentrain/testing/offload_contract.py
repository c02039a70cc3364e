"""What every offload device must do, as a pytest class, in one line or to inherit from.

    TestMyDevice = OffloadContract.of(MyDevice, exact=False, tolerance=0.02, batch_tolerance=1e-5)

    class TestMyDevice(OffloadContract):
        exact = False                        # its numbers are not those of the integer contract,
        tolerance = 0.02                     # but this close to them,
        batch_tolerance = 1e-5               # and this close to themselves in another batch

        @pytest.fixture
        def device(self) -> Iterator[OffloadDevice]:
            device = MyDevice()
            yield device
            device.close()

Results are held against the emulator's engine. The module needs pytest only to run, not to import.
"""

import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import psutil
import torch

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result, pack
from greentrain.fpga_backend.device import EnergyReading, Handle, OffloadDevice
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import ArtifactError, BatchError, DeviceError, DeviceLostError, QueueFullError
from greentrain.fpga_backend.program import Score
from greentrain.testing.meter_contract import MeterContract
from greentrain.testing.offload_models import decoder, encoder, sequences
from greentrain.testing.suites import filled, opened
from greentrain.types import Provenance

LENGTHS = (5, 1, 17, 64, 5, 33)


class OffloadContract:
    """Checks of an offload device. Subclass it as ``Test...`` and give it a fixture ``device``, open and empty."""

    exact = True
    """Results are those of the integer contract, bit for bit, in any batch."""
    tolerance = 0.0
    """Of a device that is not exact: largest difference of a score or an ln p from the contract's."""
    batch_tolerance = 0.0
    """Of a device that is not exact: the same between two batches that hold the same sequence."""
    heads: tuple[str, ...] = ("score", "logprob")
    """What programs may end in."""
    shares_prompts = True
    """A prompt that several sequences share is computed once."""
    computes = True
    """False for a device whose every future fails."""
    answer_s = 60.0
    """Longest wait for one answer (s)."""
    most_waiting = 10_000
    """A queue that takes more than this at once is taken for unbounded."""
    threads_end_s = 5.0
    """Threads and processes must be gone this long after ``close`` (s)."""
    others_threads: tuple[str, ...] = ()
    """How the names of threads begin that the test keeps running beside the device."""
    meter_contract: type[MeterContract] = MeterContract
    """What the device's meter is held to."""

    @classmethod
    def of(cls, make: Callable[[], OffloadDevice], **settings: Any) -> "type[OffloadContract]":
        """Return the suite for the devices that ``make`` opens.

        Args:
            make: Opens a device without models; it is closed after each test.
            **settings: Attributes of this class, such as ``exact`` and ``tolerance``.
        """
        return filled(cls, {"device": opened("device", make)}, settings)

    def encoder(self, seed: int = 0) -> Artifact:
        """Return a small model with a score head, another one for each seed."""
        return encoder(seed=seed)

    def decoder(self, seed: int = 0) -> Artifact:
        """Return a small causal model that ends in log-probabilities."""
        return decoder(seed=seed)

    def expected(self, artifact: Artifact, batch: Batch) -> Result:
        """Return what the contract says."""
        return Engine(artifact).run(batch)

    # Answers

    def test_is_a_device_and_says_so(self, device: OffloadDevice) -> None:
        """Probing tells what the device is, the same each time, with a reason where it cannot be used."""
        assert isinstance(device, OffloadDevice)
        info = device.probe()
        assert info == device.probe()
        assert info.uid
        assert info.name
        assert info.available == self.computes
        assert info.available or info.reason
        assert info.exact == (self.exact and self.computes)
        assert info.memory_bytes is None or info.memory_bytes > 0

    def test_scores_are_right(self, device: OffloadDevice) -> None:
        """An encoder gives each sequence its score, in the batch's order."""
        if "score" in self.heads:
            self._answers_rightly(device, self.encoder(), prompt=0)

    def test_logprobs_are_right(self, device: OffloadDevice) -> None:
        """A decoder gives each token its ln p, with prompts and without."""
        if "logprob" in self.heads:
            self._answers_rightly(device, self.decoder(), prompt=0)
            self._answers_rightly(device, self.decoder(), prompt=4)

    def test_shared_prompts_are_computed_once(self, device: OffloadDevice) -> None:
        """Sequences with one prompt cost its rows once, and get the same numbers as on their own."""
        if not self.computes or "logprob" not in self.heads:
            return
        artifact = self.decoder()
        handle = device.load(artifact)
        batch = sequences(artifact, lengths=(20, 9, 31, 8, 8), prompt=8)
        together = self._answer(device, handle, batch)
        if self.shares_prompts:
            assert together.rows == pack(batch, artifact.program).rows < batch.tokens
        for i in range(len(batch.ids)):
            self._same(together, self._answer(device, handle, batch.some([i])), [i])

    def test_a_sequence_gives_the_same_in_any_batch(self, device: OffloadDevice) -> None:
        """Alone, with any others, in any order and out of any padding."""
        if not self.computes:
            return
        for artifact in self._models():
            handle = device.load(artifact)
            batch = sequences(artifact, lengths=LENGTHS, seed=3)
            n = len(batch.ids)
            whole = self._answer(device, handle, batch)
            for some in (*([i] for i in range(n)), [*range(n)][::-1], [2, 2, 0], [3, 1], [*range(n), *range(n)]):
                self._same(whole, self._answer(device, handle, batch.some(some)), some)
            for left in (True, False):
                self._same(whole, self._answer(device, handle, padded(batch, left=left)), list(range(n)))

    def test_two_models_at_once(self, device: OffloadDevice) -> None:
        """Each handle keeps its own weights."""
        if not self.computes:
            return
        models = (*self._models(), *self._models(seed=9))
        loaded = [(artifact, device.load(artifact)) for artifact in models]
        assert len({handle.number for _, handle in loaded}) == len(loaded)
        for artifact, handle in (*loaded, *reversed(loaded)):
            self._right(artifact, sequences(artifact), self._answer(device, handle, sequences(artifact)))

    def test_a_result_that_is_not_finite_is_a_failed_batch(self, device: OffloadDevice) -> None:
        """Numbers that overflow fail their batch, and only that."""
        if not self.computes or "score" not in self.heads:
            return
        good = self.encoder()
        last = good.program.ops[-1]
        assert isinstance(last, Score)
        huge = {f"{last.weight}.s": torch.full_like(good.tensors[f"{last.weight}.s"], 3e38)}
        bad = device.load(good.with_tensors({**good.tensors, **huge}))
        handle = device.load(good)
        broken = device.submit(bad, sequences(good))
        assert isinstance(broken.exception(self.answer_s), DeviceError)
        self._right(good, sequences(good), self._answer(device, handle, sequences(good)))

    # Handles and weights

    def test_handles_name_device_and_weights(self, device: OffloadDevice) -> None:
        """A handle carries the device's uid and the artifact's digest."""
        artifact = self._models()[0]
        handle = device.load(artifact)
        assert (handle.device, handle.digest) == (device.probe().uid, artifact.digest)

    def test_replaced_weights_wait_for_what_came_before(self, device: OffloadDevice) -> None:
        """Batches of the old handle use the old weights, also those that still wait; then it is refused."""
        old, new = self._models(seed=0)[0], self._models(seed=1)[0]
        batch = sequences(old, lengths=LENGTHS)
        before = device.load(old)
        first = [device.submit(before, batch) for _ in range(4)]
        after = device.load(new, replacing=before)
        second = [device.submit(after, batch) for _ in range(2)]
        assert isinstance(raised(device.submit, before, batch), DeviceError)
        if self.computes:
            for artifact, futures in ((old, first), (new, second)):
                for future in futures:
                    self._right(artifact, batch, future.result(self.answer_s))

    def test_foreign_handles_are_refused(self, device: OffloadDevice) -> None:
        """Another device's, another number's and another artifact's handle raise at once."""
        artifact = self._models()[0]
        batch = sequences(artifact)
        handle = device.load(artifact)
        for change in ({"device": "another"}, {"number": handle.number + 1000}, {"digest": "0" * 64}):
            foreign = dataclasses.replace(handle, **change)
            assert isinstance(raised(device.submit, foreign, batch), DeviceError), change
            assert isinstance(raised(device.load, artifact, replacing=foreign), DeviceError), change
        self._lives(device, artifact, handle)

    def test_what_it_cannot_run_is_refused_at_load(self, device: OffloadDevice) -> None:
        """An exact device takes no other precision."""
        artifact = self._models()[0]
        if self.exact and self.computes:
            foreign = dataclasses.replace(artifact, program=dataclasses.replace(artifact.program, precision="bf16"))
            assert isinstance(raised(device.load, foreign), ArtifactError)
        self._lives(device, artifact, device.load(artifact))

    def test_other_things_are_no_artifacts_and_no_batches(self, device: OffloadDevice) -> None:
        """A model that was not compiled, or bare lists of ids, raise with what to do, and the device lives on."""
        artifact = self._models()[0]
        anything: Any = torch.nn.Linear(2, 2)
        assert "compile" in str(raised(device.load, anything))
        handle = device.load(artifact)
        assert isinstance(raised(device.load, anything), ArtifactError)
        lists: Any = [[1, 2, 3]]
        assert "Batch.of" in str(raised(device.submit, handle, lists))
        self._lives(device, artifact, handle)

    def test_wrong_batches_are_refused_at_submit(self, device: OffloadDevice) -> None:
        """What does not fit the model raises where it is submitted, and the device lives on."""
        for artifact in self._models():
            handle = device.load(artifact)
            for wrong in wrong_batches(artifact):
                assert isinstance(raised(device.submit, handle, wrong), BatchError), wrong
            self._lives(device, artifact, handle)

    # The queue

    def test_a_full_queue_pushes_back(self, device: OffloadDevice) -> None:
        """Without patience a full queue raises; later there is room again, and no answer is lost."""
        if not self.computes:
            return
        artifact = self._models()[0]
        handle, batch = device.load(artifact), self._long(artifact)
        expected = self.expected(artifact, batch)
        futures = self._fill(device, handle, batch)
        futures.append(device.submit(handle, batch, wait_s=self.answer_s))
        for future in futures:
            self._same(expected, future.result(self.answer_s), list(range(len(batch.ids))), self.tolerance)

    def test_what_waits_can_be_cancelled(self, device: OffloadDevice) -> None:
        """A cancelled future stays cancelled; the others get their answers."""
        if not self.computes:
            return
        artifact = self._models()[0]
        handle, batch = device.load(artifact), self._long(artifact)
        for _ in range(20):  # a fast device may have it already
            *others, last = self._fill(device, handle, batch)
            if cancelled := last.cancel():
                break
        assert cancelled
        self._lives(device, artifact, handle)
        assert last.cancelled()
        assert all(future.result(self.answer_s) is not None for future in others)

    def test_threads_get_their_own_answers(self, device: OffloadDevice) -> None:
        """Submitted from several threads at once, nothing is lost or swapped."""
        if not self.computes:
            return
        models = [(artifact, device.load(artifact)) for artifact in self._models()]
        work = [(a, h, sequences(a, seed=s, lengths=(3 + s, 9))) for (a, h), s in itertools.product(models, range(4))]
        expected = [self.expected(artifact, batch) for artifact, _, batch in work]
        futures: dict[tuple[int, int], Future[Result]] = {}

        def submit(thread: int) -> None:
            for i, (_, handle, batch) in enumerate(work):
                futures[thread, i] = device.submit(handle, batch)

        threads = [threading.Thread(target=submit, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(futures) == len(threads) * len(work)
        for (_, i), future in futures.items():
            self._same(expected[i], future.result(self.answer_s), [0, 1], self.tolerance)

    # Energy

    def test_energy_is_known_or_missing(self, device: OffloadDevice) -> None:
        """Joules have a provenance and never fall; unknown ones are None with a note, never 0."""
        artifact = self._models()[0]
        handle = device.load(artifact)
        before = device.energy()
        self._lives(device, artifact, handle)
        after = device.energy()
        for reading in (before, after):
            check_energy(reading)
        assert before.energy_j is None or after.energy_j is None or before.energy_j <= after.energy_j
        info = device.probe()
        sensors = {sensor.device.uid: sensor for sensor in device.meter.sensors}
        if after.energy_j is not None:
            assert info.uid in sensors, "joules that nobody books"
        for sensor in sensors.values():
            assert sensor.provenance is not Provenance.MEASURED or not info.simulated

    def test_the_meter_keeps_the_meters_contract(self, device: OffloadDevice) -> None:
        """The meter is one as the ledger's others are."""
        checks = self.meter_contract()
        names = [name for name in dir(checks) if name.startswith("test_")]
        closing = [name for name in names if "close" in name or "vanished" in name]
        for name in (n for n in names if n not in closing and n != "test_leaves_no_thread"):
            getattr(checks, name)(device.meter)
        artifact = self._models()[0]
        handle = device.load(artifact)
        for name in closing:
            getattr(checks, name)(device.meter)
        self._lives(device, artifact, handle)
        threads = self._threads_of_others()
        device.close()
        device.meter.read()
        self._nothing_left(threads)

    # The end

    def test_close_fails_what_waits(self, device: OffloadDevice) -> None:
        """Every future ends, with its answer or a DeviceLostError; nothing more is taken; the meter stays readable."""
        artifact = self._models()[0]
        handle, batch = device.load(artifact), self._long(artifact)
        futures = self._fill(device, handle, batch) if self.computes else []
        blocked: list[BaseException | None] = []
        patient = threading.Thread(target=lambda: blocked.append(raised(device.submit, handle, batch)))
        patient.start()
        device.close()
        patient.join(self.answer_s)
        assert not patient.is_alive()
        assert blocked[0] is None or isinstance(blocked[0], DeviceLostError)
        errors = [future.exception(self.answer_s) for future in futures]
        assert all(error is None or isinstance(error, DeviceLostError) for error in errors)
        assert errors == [] or isinstance(errors[-1], DeviceLostError)
        device.close()
        assert isinstance(raised(device.submit, handle, batch), DeviceLostError)
        assert isinstance(raised(device.load, artifact), DeviceError)
        assert not device.probe().available
        assert device.probe().reason
        check_energy(device.energy())
        device.meter.read()
        device.meter.close()

    def test_close_leaves_nothing(self, device: OffloadDevice) -> None:
        """Threads and processes are gone after ``close``, also where batches ran."""
        artifact = self._models()[0]
        self._lives(device, artifact, device.load(artifact))
        threads = self._threads_of_others()
        device.close()
        self._nothing_left(threads)

    # Helpers

    def _threads_of_others(self) -> set[threading.Thread]:
        """Return the threads that are not the device's: its own are called greentrain-..."""
        return {
            thread
            for thread in threading.enumerate()
            if not thread.name.startswith("greentrain") or thread.name.startswith(self.others_threads)
        }

    def _nothing_left(self, others: set[threading.Thread]) -> None:
        end_s = time.monotonic() + self.threads_end_s
        while (set(threading.enumerate()) - others or _children()) and time.monotonic() < end_s:
            time.sleep(0.01)
        assert set(threading.enumerate()) - others == set()
        assert _children() == []

    def _models(self, seed: int = 0) -> tuple[Artifact, ...]:
        makers = {"score": self.encoder, "logprob": self.decoder}
        return tuple(makers[head](seed) for head in self.heads)

    def _long(self, artifact: Artifact) -> Batch:
        return sequences(artifact, lengths=(artifact.program.max_tokens,) * 4)

    def _fill(self, device: OffloadDevice, handle: Handle, batch: Batch) -> list[Future[Result]]:
        futures = []
        for _ in range(self.most_waiting):
            try:
                futures.append(device.submit(handle, batch, wait_s=0.0))
            except QueueFullError:
                return futures
        raise AssertionError(f"the queue holds {self.most_waiting} batches and takes more: its memory is unbounded")

    def _answer(self, device: OffloadDevice, handle: Handle, batch: Batch) -> Result:
        return device.submit(handle, batch).result(self.answer_s)

    def _answers_rightly(self, device: OffloadDevice, artifact: Artifact, *, prompt: int) -> None:
        handle = device.load(artifact)
        for lengths in ((7,), LENGTHS, (6,) * 8):
            self._lives(device, artifact, handle, lengths, prompt)

    def _lives(
        self,
        device: OffloadDevice,
        artifact: Artifact,
        handle: Handle,
        lengths: tuple[int, ...] = (4, 11),
        prompt: int = 0,
    ) -> None:
        batch = sequences(artifact, lengths=lengths, prompt=prompt)
        if self.computes:
            self._right(artifact, batch, self._answer(device, handle, batch))
        else:
            assert isinstance(device.submit(handle, batch).exception(self.answer_s), DeviceError)

    def _right(self, artifact: Artifact, batch: Batch, got: Result) -> None:
        assert math.isfinite(got.run_s) and got.run_s >= 0
        assert got.rows > 0
        assert (got.scores is None) == (not artifact.program.labels)
        assert (got.logprobs is None) == bool(artifact.program.labels)
        self._same(self.expected(artifact, batch), got, list(range(len(batch.ids))), self.tolerance)

    def _same(self, whole: Result, got: Result, some: Sequence[int], tolerance: float | None = None) -> None:
        """Hold the answer for some of a batch's sequences against the answer for all of them."""
        allowed = self.batch_tolerance if tolerance is None else tolerance
        expected, found = rows_of(whole), rows_of(got)
        assert len(found) == len(some)
        for i, row in zip(some, found, strict=True):
            assert row.dtype == np.float32
            assert row.shape == expected[i].shape
            if self.exact:
                assert row.tobytes() == expected[i].tobytes(), f"sequence {i}: {row} instead of {expected[i]}"
            else:
                apart = float(np.abs(row - expected[i]).max(initial=0.0))
                assert apart <= allowed, f"sequence {i} is off by {apart:.3g}, allowed {allowed:g}"


def rows_of(result: Result) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Return a result by sequence: scores [labels] or log-probabilities [targets]."""
    if result.scores is not None:
        return list(result.scores)
    assert result.logprobs is not None
    return list(result.logprobs)


def padded(batch: Batch, *, left: bool) -> Batch:
    """Return the same batch, by way of padded matrices."""
    width = max(len(row) for row in batch.ids) + 3

    def matrix(rows: Sequence[Any], fill: int) -> Any:
        return np.stack(
            [
                np.pad(row, (width - len(row), 0) if left else (0, width - len(row)), constant_values=fill)
                for row in rows
            ]
        )

    return Batch.padded(
        matrix(batch.ids, 7),
        matrix([np.ones_like(row) for row in batch.ids], 0),
        types=None if batch.types is None else matrix(batch.types, 1),
        prompt_tokens=batch.prompt_tokens,
    )


def wrong_batches(artifact: Artifact) -> list[Batch]:
    """Return batches that the artifact's program cannot take."""
    program = artifact.program
    return [
        Batch.of([]),
        Batch.of([[1], []]),
        Batch.of([[1] * (program.max_tokens + 1)]),
        Batch.of([[1, program.vocabulary]]),
        Batch.of([[1, -1]]),
        Batch.of([[1, 2]], types=[[0, max(program.types, 1)]]),
        Batch.of([[1, 2]], types=[[0]]),
        Batch.of([[1, 2]], prompt_tokens=[3]),
        Batch.of([[1, 2]], prompt_tokens=[1, 1]),
    ]


def check_energy(reading: EnergyReading) -> None:
    """Raise if a reading is neither known joules nor, with a note, unknown ones."""
    assert (reading.energy_j is None) == (reading.provenance is Provenance.MISSING)
    if reading.energy_j is None:
        assert reading.note
    else:
        assert math.isfinite(reading.energy_j) and reading.energy_j >= 0


def raised(function: Callable[..., object], *args: Any, **kwargs: Any) -> BaseException | None:
    """Return what a call raises, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return error
    return None


def _children() -> list[str]:
    """Return the processes that this one has started and that still run."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline()):
                found.append(f"{child.pid} {child.name()}")
        except psutil.NoSuchProcess:
            continue
    return found
