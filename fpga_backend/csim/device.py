"""The kernels' C++ under g++ as a device: slow beside a GPU, and what a card would compute, bit for bit."""

from concurrent.futures import Future
from pathlib import Path
from typing import Final

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.csim.build import build
from greentrain.fpga_backend.csim.card import CsimCard, functions
from greentrain.fpga_backend.csim.schedule import ACTIVATION_BYTES, Schedule
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.devices.base import CLOSED, InProcess, Unmetered, own_uid
from greentrain.types import PowerMeter, Provenance

DEPTH: Final = 8
"""Batches that may wait."""
ON_THE_CPU: Final = "computed on the CPU, whose joules the run's ledger has already"


class Csim:
    """An OffloadDevice that runs the HLS kernels on one core.

    Args:
        depth: Batches that may wait.
        activation_bytes: Bound of the memory that a batch's rows take; a larger batch runs in waves.
        folder: Where built libraries are kept; None: GreenTrain's cache folder.

    Raises:
        DeviceError: The kernels cannot be built: there is no g++.
    """

    def __init__(
        self, *, depth: int = DEPTH, activation_bytes: int = ACTIVATION_BYTES, folder: Path | str | None = None
    ) -> None:
        self._library = build(folder)
        functions(self._library)
        self._activation_bytes = activation_bytes
        self._uid = own_uid("csim")
        self._meter = Unmetered()
        self._work = InProcess(self._uid, depth, self._open)

    def probe(self) -> DeviceInfo:
        """Say what runs, and built from which library."""
        closed = self._work.closed
        return DeviceInfo(
            uid=self._uid,
            name="HLS kernels under g++",
            available=not closed,
            reason=CLOSED if closed else "",
            exact=True,
            simulated=False,
            details={"library": self._library.name},
        )

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Write a model into the memory of a card of its own.

        Raises:
            ArtifactError: The kernels cannot run it.
            DeviceError: There is no memory, the device is closed, or ``replacing`` is unknown.
        """
        return self._work.load(artifact, replacing)

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        """Queue a batch.

        Raises:
            BatchError: It does not fit the model.
            QueueFullError: No room within ``wait_s``.
            DeviceLostError: The device is closed.
        """
        return self._work.submit(handle, batch, wait_s)

    def energy(self) -> EnergyReading:
        """Return nothing: the CPU's joules are in the ledger."""
        return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note=ON_THE_CPU)

    @property
    def meter(self) -> PowerMeter:
        """A meter without sensors."""
        return self._meter

    def close(self) -> None:
        """Fail what waits and let go of the models. Idempotent."""
        self._work.close()

    def _open(self, artifact: Artifact) -> Schedule:
        return Schedule(artifact, CsimCard(self._library), activation_bytes=self._activation_bytes)
