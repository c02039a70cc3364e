"""What offload devices have in common.

:class:`InProcess` is a device that computes in a thread of this process: models, queue, refusals and end are here, and
a subclass adds how a model is opened. Devices that compute elsewhere use its pieces: :class:`WorkQueue`, which runs
batches one after the other and has room for only so many, :class:`Loaded`, which knows the models by their handles, and
:class:`Unmetered`, the meter of a device whose joules are booked somewhere else, or nowhere.
"""

import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from greentrain.fpga_backend.artifact import Artifact, as_artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError, OffloadError, QueueFullError
from greentrain.fpga_backend.program import Program
from greentrain.types import PowerMeter, PowerSample, Provenance, Sensor


@dataclass(frozen=True, slots=True)
class _QueuedBatch:
    run: Callable[[], Result]
    future: Future[Result]


class WorkQueue:
    """Runs jobs in order in one daemon thread.

    Args:
        name: Name of the thread.
        depth: Number of jobs that may wait; those that wait hold their batch's memory.
    """

    def __init__(self, name: str, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth={depth}: a queue has room for at least 1")
        self.name, self.depth = name, depth
        self._waiting: deque[_QueuedBatch] = deque()
        self._changed = threading.Condition()
        self._reason: str | None = None
        self._owner_pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[], Result], wait_s: float | None) -> Future[Result]:
        """Queue a job.

        Raises:
            QueueFullError: No room within ``wait_s`` seconds (None: for ever). In the lane's own thread, where the
                callbacks of futures run, at once: nothing would make room while it waits.
            DeviceLostError: The lane is closed, or in the process that forked.
        """
        if os.getpid() != self._owner_pid:
            raise DeviceLostError("a forked process has no thread for the device: open a device in it")
        future: Future[Result] = Future()
        if self._thread is threading.current_thread():
            wait_s = 0.0
        with self._changed:
            if not self._changed.wait_for(lambda: self._reason is not None or len(self._waiting) < self.depth, wait_s):
                raise QueueFullError(
                    f"{len(self._waiting)} batches wait and none was finished within {wait_s} s: submit fewer at a time"
                )
            if self._reason is not None:
                raise DeviceLostError(self._reason)
            self._waiting.append(_QueuedBatch(run, future))
            self._changed.notify_all()
        return future

    def close(self, reason: str = "the device is closed", *, join: bool = True) -> None:
        """Fail what waits and every later job; wait for the one that runs. Idempotent; in a forked process, nothing."""
        if os.getpid() != self._owner_pid:
            return
        with self._changed:
            self._reason = self._reason or reason
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for job in left:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(DeviceLostError(self._reason))
        if join and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._reason is not None or bool(self._waiting))
                if self._reason is not None:
                    return
                job = self._waiting.popleft()
                self._changed.notify_all()
            if job.future.set_running_or_notify_cancel():
                try:
                    job.future.set_result(job.run())
                except BaseException as error:  # whatever it is, it belongs to the one who waits
                    job.future.set_exception(error)
            del job  # and the batch that it holds


Model = TypeVar("Model")


class Loaded(Generic[Model]):
    """Gives out handles and refuses those that it did not give. Any thread may call.

    Args:
        uid: Identity of the device.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._lock = threading.Lock()
        self._models: dict[Handle, Model] = {}
        self._number = 0
        self._closed = False

    def put(self, model: Model, digest: str, replacing: Handle | None = None) -> Handle:
        """Keep a model and return its handle; the handle that it replaces is no longer known.

        Raises:
            DeviceError: ``replacing`` is not known.
            DeviceLostError: After :meth:`close`.
        """
        with self._lock:
            self._open()
            if replacing is not None:
                self._check(replacing)
                del self._models[replacing]
            self._number += 1
            handle = Handle(device=self._uid, number=self._number, digest=digest)
            self._models[handle] = model
        return handle

    def get(self, handle: Handle) -> Model:
        """Return the model of a handle.

        Raises:
            DeviceError: It is another device's, was replaced, or was never given out.
            DeviceLostError: After :meth:`close`.
        """
        with self._lock:
            self._open()
            self._check(handle)
            return self._models[handle]

    def close(self) -> None:
        """Forget every model, and take no more. Idempotent."""
        with self._lock:
            self._closed = True
            self._models.clear()

    def _open(self) -> None:
        if self._closed:
            raise DeviceLostError("the device is closed")

    def _check(self, handle: Handle) -> None:
        if handle.device != self._uid:
            raise DeviceError(
                f"the handle is of device {handle.device}, this is {self._uid}: load the artifact here first"
            )
        if handle not in self._models:
            known = sorted(known.number for known in self._models)
            raise DeviceError(
                f"model {handle.number} (artifact {handle.digest[:12]}) is not on {self._uid}, which holds {known}: it "
                "was replaced; use the handle that the last load() returned"
            )


CLOSED = "the device is closed"
ON_THE_CPU = "computed on the CPU, whose joules the run's ledger has already"


def own_uid(name: str) -> str:
    """Return a uid for what exists in this process only, another one each time."""
    return f"{name}-{os.getpid()}-{secrets.token_hex(3)}"


class Runner(Protocol):
    """A loaded model."""

    @property
    def program(self) -> Program:
        """What batches must keep to."""

    def run(self, batch: Batch) -> Result:
        """Compute a batch; called from one thread."""


class Unmetered:
    """Has no sensors: what is not known is not booked, and what the ledger has already is not booked twice."""

    @property
    def sensors(self) -> Sequence[Sensor]:
        """Nothing."""
        return ()

    def read(self) -> Sequence[PowerSample]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""


class InProcess:
    """An OffloadDevice that computes in a thread of this process: models, a queue, and their end. Made to inherit from.

    Args:
        uid: Identity of the device, see ``DeviceInfo.uid``.
        depth: Number of batches that may wait.
        open_: Function that turns an artifact into something that runs.
        info: Description that :meth:`probe` returns while the device is open; None: made of its uid.
        note: Text that tells where its joules are booked, since it has no sensor of its own.

    Raises:
        ValueError: ``depth`` is below 1.
    """

    def __init__(
        self,
        uid: str,
        depth: int,
        open_: Callable[[Artifact], Runner],
        *,
        info: DeviceInfo | None = None,
        note: str = "its joules are not known",
    ) -> None:
        self._uid = uid
        self._open = open_
        self._info = info or DeviceInfo(uid=uid, name=uid, available=True, exact=False, simulated=False)
        self._note = note
        self._loaded: Loaded[Runner] = Loaded(uid)
        self._lane = WorkQueue(f"greentrain-offload-{uid}", depth)
        self._meter: PowerMeter = Unmetered()
        self.closed = False

    def probe(self) -> DeviceInfo:
        """Say what the device is, and whether it is still open."""
        return replace(self._info, available=False, reason=CLOSED) if self.closed else self._info

    def load(self, artifact: Artifact, replacing: Handle | None = None) -> Handle:
        """Open an artifact. Waiting batches keep the model they were submitted for.

        Args:
            artifact: Compiled model.
            replacing: Handle of the model whose place it takes; None: it is loaded beside the others.

        Raises:
            ArtifactError: It cannot be run here.
            DeviceError: There is no room, ``replacing`` is not known, or the device is closed.
        """
        self._check()
        if replacing is not None:
            self._loaded.get(replacing)
        return self._loaded.put(self._open(as_artifact(artifact)), artifact.digest, replacing)

    def submit(self, handle: Handle, batch: Batch, wait_s: float | None = None) -> Future[Result]:
        """Queue a batch.

        Args:
            handle: Model that is loaded here.
            batch: Sequences.
            wait_s: Longest wait for room in the queue (s); None: as long as it takes.

        Raises:
            BatchError: It does not fit the model.
            DeviceError: The handle is not known.
            QueueFullError: No room within ``wait_s``.
            DeviceLostError: The device is closed.
        """
        self._check()
        model = self._loaded.get(handle)
        batch = fitting(batch, model.program)
        return self._lane.submit(lambda: self._run(model, batch), wait_s)

    def energy(self) -> EnergyReading:
        """Say where the joules are."""
        return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note=self._note)

    @property
    def meter(self) -> PowerMeter:
        """A meter without sensors: the hardware's own meter has them."""
        return self._meter

    def close(self) -> None:
        """Fail what waits, wait for the batch that runs, let go of the models. Idempotent."""
        self.closed = True
        self._lane.close(CLOSED)
        self._loaded.close()

    def _run(self, model: Runner, batch: Batch) -> Result:
        try:
            return model.run(batch)
        except OffloadError:
            raise
        except Exception as error:  # of a library: who waits is promised a DeviceError
            raise DeviceError(f"{self._uid} failed at a batch of {batch.tokens} tokens: {error!r}") from error

    def _check(self) -> None:
        if self.closed:
            raise DeviceLostError(CLOSED)
