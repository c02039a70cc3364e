"""An offload device whose 8-bit products come from the simulated Verilog. For tests: far too slow to use."""

from pathlib import Path
from typing import Final

import torch

from greentrain.fpga_backend.device import DeviceInfo
from greentrain.fpga_backend.devices.base import InProcess, own_uid
from greentrain.fpga_backend.emulator.engine import Engine
from tools.rtl_simulator import Simulator

DEPTH: Final = 8
"""Batches that may wait: as the emulator's."""
ON_THE_CPU: Final = "simulated on the CPU, whose joules the run's ledger has already"


class Rtl(InProcess):
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
        uid = own_uid("rtl")
        self._array = Simulator(row_pairs=row_pairs, columns=columns, folder=folder)
        products = f"Verilog, {2 * row_pairs} x {columns} array in Verilator"
        info = DeviceInfo(
            uid=uid,
            name="rtl in simulation",
            available=True,
            exact=True,
            simulated=False,
            details={"products": products, "other operators": "emulator"},
        )
        super().__init__(
            uid, depth, lambda artifact: Engine(artifact, product=self._product), info=info, note=ON_THE_CPU
        )
        self.cycles = 0
        """Clocks of the array for all batches so far."""

    def close(self) -> None:
        """Fail what waits, wait for the batch that runs, let go of the array. Idempotent."""
        super().close()
        self._array.close()

    def _product(self, q: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        product = self._array.gemm(q.numpy(), weights.numpy())
        self.cycles += product.cycles
        return torch.from_numpy(product.values)
