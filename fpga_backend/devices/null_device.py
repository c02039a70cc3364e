"""The device that computes nothing: offloading switched off, or plumbing under test.

It takes artifacts and batches as any device does, raises what is wrong with them, and fails every future at once. So
the code that offloads needs no second path for "no device": what it does when a device fails, it does from the first
batch on. It never makes up an answer.
"""

from concurrent.futures import Future

from greentrain.fpga_backend.artifact import Artifact, as_artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.devices.base import Loaded, Unmetered
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.program import Program
from greentrain.types import PowerMeter, Provenance

UID = "null"
REASON = "the null device computes nothing; choose a device, such as torch or emulator, to get results"


class NullDevice:
    """An OffloadDevice without hardware."""

    def __init__(self) -> None:
        self._loaded: Loaded[Program] = Loaded(UID)
        self._meter = Unmetered()

    def probe(self) -> DeviceInfo:
        """Say that nothing is here."""
        return DeviceInfo(uid=UID, name="null device", available=False, reason=REASON, exact=False, simulated=False)

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Remember what the artifact's batches must keep to; its weights are not kept.

        Raises:
            DeviceError: ``replacing`` is unknown.
            DeviceLostError: The device is closed.
        """
        return self._loaded.put(as_artifact(artifact).program, artifact.digest, replacing)

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        """Return a future that has failed with a DeviceError.

        Raises:
            BatchError: The batch does not fit the model.
            DeviceError: The handle is unknown.
            DeviceLostError: The device is closed.
        """
        fitting(batch, self._loaded.get(handle))
        future: Future[Result] = Future()
        future.set_exception(DeviceError(REASON))
        return future

    def energy(self) -> EnergyReading:
        """Say that there is nothing to read."""
        return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note="the null device has no hardware")

    @property
    def meter(self) -> PowerMeter:
        """No sensors."""
        return self._meter

    def close(self) -> None:
        """Refuse everything from now on. Idempotent."""
        self._loaded.close()
