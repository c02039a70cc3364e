"""What devices that compute in this process have in common: their models, their queue, their end."""

import os
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from greentrain.fpga_backend.artifact import Artifact, as_artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.device import Handle
from greentrain.fpga_backend.devices.loaded import Loaded
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError, OffloadError
from greentrain.fpga_backend.lane import Lane
from greentrain.fpga_backend.program import Program

CLOSED = "the device is closed"


def own_uid(name: str) -> str:
    """Return a uid for what exists in this process only, another one each time."""
    return f"{name}-{os.getpid()}-{secrets.token_hex(3)}"


class Runner(Protocol):
    """A loaded model."""

    @property
    def program(self) -> Program:
        """What batches must keep to."""
        ...

    def run(self, batch: Batch) -> Result:
        """Compute a batch; called from one thread."""
        ...


class InProcess:
    """Models and a queue in one thread.

    Args:
        uid: Of the device.
        depth: Batches that may wait.
        open_: Turns an artifact into something that runs.
    """

    def __init__(self, uid: str, depth: int, open_: Callable[[Artifact], Runner]) -> None:
        self._uid = uid
        self._open = open_
        self._loaded: Loaded[Runner] = Loaded(uid)
        self._lane = Lane(f"greentrain-offload-{uid}", depth)
        self.closed = False

    def load(self, artifact: Artifact, replacing: Handle | None = None) -> Handle:
        """Open an artifact. Waiting batches keep the model they were submitted for.

        Raises:
            ArtifactError: It cannot be run here.
            DeviceError: ``replacing`` is not known, or the device is closed.
        """
        self._check()
        if replacing is not None:
            self._loaded.get(replacing)
        return self._loaded.put(self._open(as_artifact(artifact)), artifact.digest, replacing)

    def submit(self, handle: Handle, batch: Batch, wait_s: float | None) -> Future[Result]:
        """Queue a batch.

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

    def close(self) -> None:
        """Fail what waits, wait for the batch that runs. Idempotent."""
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
