"""An offload device whose 8-bit products come from the simulated Verilog. For tests: far too slow to use."""

from concurrent.futures import Future
from pathlib import Path
from typing import Final

import torch

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.devices.base import CLOSED, InProcess, Unmetered, own_uid
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.rtl.simulate import Simulator
from greentrain.types import PowerMeter, Provenance

DEPTH: Final = 8
"""Batches that may wait: as the emulator's."""
ON_THE_CPU: Final = "simulated on the CPU, whose joules the run's ledger has already"


class Rtl:
    """An OffloadDevice: linear layers' products by the RTL in a simulator, every other operator by the emulator.

    Products inside attention and of score heads are the emulator's. ``run_s`` is the simulation's time on this CPU and
    says nothing of a card.

    Args:
        row_pairs: Pairs of rows of the array.
        columns: Columns of the array.
        folder: Where compiled models are kept; None: GreenTrain's cache folder.
        depth: Batches that may wait.

    Raises:
        ValueError: A size is outside 1 to 64.
        DeviceError: Verilator or a compiler is missing, or failed.
    """

    def __init__(self, *, row_pairs: int = 8, columns: int = 8, folder: Path | None = None, depth: int = DEPTH) -> None:
        self._uid = own_uid("rtl")
        self._array = Simulator(row_pairs=row_pairs, columns=columns, folder=folder)
        self._size = f"{2 * row_pairs} x {columns}"
        self._meter = Unmetered()
        self._work = InProcess(self._uid, depth, self._open)
        self.cycles = 0
        """Clocks of the array for all batches so far."""

    def probe(self) -> DeviceInfo:
        """Say what is simulated."""
        closed = self._work.closed
        return DeviceInfo(
            uid=self._uid,
            name="rtl in simulation",
            available=not closed,
            reason=CLOSED if closed else "",
            exact=True,
            simulated=False,
            details={"products": f"Verilog, {self._size} array in Verilator", "other operators": "emulator"},
        )

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Open a model.

        Raises:
            ArtifactError: Not of the contract's precision.
            DeviceError: ``replacing`` is unknown, or the device is closed.
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
        """Fail what waits, wait for the batch that runs, let go of the array. Idempotent."""
        self._work.close()
        self._array.close()

    def _open(self, artifact: Artifact) -> Engine:
        return Engine(artifact, product=self._product)

    def _product(self, q: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        product = self._array.gemm(q.numpy(), weights.numpy())
        self.cycles += product.cycles
        return torch.from_numpy(product.values)
