"""What an offload device is: something that runs compiled models beside the training."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.types import PowerMeter, Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What a device says of itself."""

    uid: str
    """Unique on the node, the same in every process that sees the device; what its joules are booked under."""
    name: str
    available: bool
    reason: str = ""
    """Where it is not available: why, and what to do."""
    exact: bool
    """True if its results are those of the contract, bit for bit."""
    simulated: bool
    """True if times or joules come from a model of hardware that is not here."""
    memory_bytes: int | None = None
    returns: bool = False
    """True if it comes back by itself after it was lost: a pass without another device waits for it."""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """A model that is loaded on a device."""

    device: str
    """uid of the device."""
    number: int
    """Counts the loads of this device."""
    digest: str
    """Of the artifact. A device that answers for another one has lost its weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReading:
    """Energy of a device: since it was opened, or in a window of time."""

    energy_j: float | None
    """None where nobody knows."""
    provenance: Provenance
    note: str = ""


@runtime_checkable
class OffloadDevice(Protocol):
    """Runs compiled models, one batch after the other. Its methods may be called from any thread.

    A device is opened by its constructor, which raises DeviceError where that cannot be done. Nothing that happens to
    it later ends the training: a failure is the exception of a Future.
    """

    def probe(self) -> DeviceInfo:
        """Say what the device is and whether it can be used now. Never raises."""

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Put a model on the device, in the place of an earlier one where that is given.

        Batches that were submitted before still use the old weights.

        Raises:
            ArtifactError: The device cannot run it: a precision, a size.
            DeviceError: It failed, or has no room.
        """

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        """Queue a batch.

        Args:
            handle: Handle that this device gave out.
            batch: Sequences to compute.
            wait_s: Longest wait for room in the queue (s); None: as long as it takes.

        Returns:
            A future; its exception is a DeviceError where the device failed.

        Raises:
            BatchError: The batch does not fit the model.
            QueueFullError: No room within ``wait_s``.
            DeviceLostError: The device is closed or gone.
        """

    def energy(self) -> EnergyReading:
        """Return the energy since opening. Never raises."""

    @property
    def meter(self) -> PowerMeter:
        """The device's joules for the ledger. It stays readable after :meth:`close`."""

    def close(self) -> None:
        """Give everything back. What still waits fails with DeviceLostError. Idempotent, never raises."""
