"""Keeps a card's worker at work: what is loaded, what is asked of it, and a new one where it died. For one thread."""

import logging
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.xrt import transfer
from greentrain.fpga_backend.xrt.process import Process
from greentrain.fpga_backend.xrt.shared import Region

log = logging.getLogger(__name__)

START_S = 120.0
"""Longest wait for a worker that starts and programs its card (s); a large design takes tens of seconds."""
LOAD_S = 600.0
"""Longest wait for a model to be copied to the card (s)."""
SMALLEST_BYTES = 1 << 16
"""Shared memory of batches is at least this, and doubled where a batch needs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that is on the card."""

    program: Program
    number: int
    digest: str
    artifact: Artifact | None
    """Kept only where a worker may be started again."""


class Keeper:
    """One card's worker.

    Args:
        settings: The message ``open`` of :mod:`greentrain.fpga_backend.xrt.worker`.
        environ: The worker's environment.
        timeout_s: Longest batch (s); None: no limit.
        restarts: How often a dead worker is replaced.

    Raises:
        DeviceError: The worker cannot open the card.
    """

    def __init__(
        self, settings: Mapping[str, Any], environ: Mapping[str, str], *, timeout_s: float | None, restarts: int
    ) -> None:
        self._settings, self._environ = dict(settings), dict(environ)
        self._timeout_s, self._left = timeout_s, restarts
        self._models: dict[int, Model] = {}
        self._region: Region | None = None
        self._region_sent = False
        self._closed = ""
        self._process = Process(self._environ)
        self.opened = self._open()

    @property
    def gone(self) -> str:
        """Why nothing more can come from the card; empty where something can."""
        return self._closed or (self._process.lost if self._left <= 0 else "")

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._process.pid

    def put(self, model: Model, artifact: Artifact, old: Model | None) -> None:
        """Copy a model to the card. The one that it is to replace is freed only where there is no room for both.

        Raises:
            DeviceError: It does not fit, or the card failed.
        """
        self._ready()
        try:
            self._load(model, artifact)
        except DeviceLostError:
            raise
        except DeviceError:
            if old is None:
                raise
            self.drop(old)
            self._load(model, artifact)
        self._models[model.number] = model

    def drop(self, model: Model) -> None:
        """Free a model, if it is there.

        Raises:
            DeviceError: The card failed.
        """
        if self._models.pop(model.number, None) is not None and not self._process.lost:
            self._call({"do": "unload", "model": model.number}, timeout_s=LOAD_S)

    def run(self, model: Model, batch: Batch) -> Result:
        """Run a batch.

        Raises:
            DeviceLostError: The worker died, or hung and was killed, or the card was reset.
            DeviceError: The batch failed.
        """
        self._ready()
        shape = transfer.Shape.of(batch, model.program)
        region = self._room(shape.nbytes)
        transfer.put_batch(batch, shape, region)
        message = {"do": "run", "model": model.number, "digest": model.digest, "shape": asdict(shape)}
        reply = self._call(message, timeout_s=self._timeout_s)
        return transfer.get_result(batch, model.program, shape, region, reply)

    def round_trip_s(self, nbytes: int, repeats: int) -> float:
        """Return the median time of handing ``nbytes`` to the worker and hearing that it has read them (s)."""
        self._ready()
        region, data = self._room(nbytes), np.zeros(nbytes, np.uint8)
        found = []
        for _ in range(repeats):
            start_s = time.perf_counter()
            region.array(np.uint8, nbytes, 0)[:] = data
            self._call({"do": "ping", "nbytes": nbytes}, timeout_s=self._timeout_s)
            found.append(time.perf_counter() - start_s)
        return statistics.median(found)

    def close(self, patience_s: float) -> None:
        """End the worker; from another thread, a batch that runs gets some time. Idempotent, never raises."""
        self._closed = self._closed or "the device is closed"
        self._process.close(patience_s)

    def forget(self) -> None:
        """Drop what is held for the worker, once nobody uses it any more."""
        self._models.clear()
        if self._region is not None:
            self._region.close()
            self._region = None

    def _open(self) -> dict[str, Any]:
        try:
            return self._process.call(self._settings, timeout_s=START_S)
        except BaseException:
            self._process.kill("the card could not be opened")
            raise

    def _ready(self) -> None:
        """Replace a worker that has died, if that is still allowed."""
        if not self._process.lost:
            return
        if self.gone:
            raise DeviceLostError(self.gone)
        self._left -= 1
        log.warning("%s; another one is started (%d more may be)", self._process.lost, self._left)
        self._process = Process(self._environ)
        self._region_sent = False
        try:
            self._open()
            if self._closed:  # while the worker started
                raise DeviceLostError(self._closed)
            for model in self._models.values():
                if model.artifact is not None:
                    self._load(model, model.artifact)
        except DeviceError as error:
            self._process.kill(f"the card could not be opened again: {error}")
            raise DeviceLostError(self._process.lost) from error

    def _load(self, model: Model, artifact: Artifact) -> None:
        arrays = {name: tensor.numpy() for name, tensor in artifact.tensors.items()}
        region = transfer.put_model(model.program, arrays, model.digest)
        try:
            self._call({"do": "load", "model": model.number}, (region.fd,), timeout_s=LOAD_S)
        finally:
            region.close()

    def _room(self, nbytes: int) -> Region:
        """Return shared memory of at least this size, known to the worker."""
        if self._region is None or self._region.nbytes < nbytes:
            if self._region is not None:
                self._region.close()
            self._region = Region.of(max(SMALLEST_BYTES, 1 << (nbytes - 1).bit_length()))
            self._region_sent = False
        if not self._region_sent:
            self._call({"do": "region"}, (self._region.fd,), timeout_s=LOAD_S)
            self._region_sent = True
        return self._region

    def _call(
        self, message: dict[str, Any], fds: tuple[int, ...] = (), *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        try:
            return self._process.call(message, fds, timeout_s=timeout_s)
        except DeviceLostError as error:  # a worker that says so itself is of no use any more either
            self._process.kill(str(error))
            raise
