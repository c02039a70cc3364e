"""The kernels' C++ under g++ as a device: slow beside a GPU, and what a card would compute, bit for bit."""

from pathlib import Path
from typing import Final

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.csim.build import build
from greentrain.fpga_backend.csim.card import CsimCard, functions
from greentrain.fpga_backend.csim.schedule import ACTIVATION_BYTES, BatchSchedule
from greentrain.fpga_backend.device import DeviceInfo
from greentrain.fpga_backend.devices.base import ON_THE_CPU, InProcess, own_uid

DEPTH: Final = 8
"""Batches that may wait."""


class Csim(InProcess):
    """An OffloadDevice that runs the HLS kernels on one core.

    Args:
        depth: Batches that may wait.
        activation_bytes: Bound of the memory that a batch's rows take; a larger batch runs in waves.
        folder: Folder in which built libraries are kept; None: GreenTrain's cache folder.

    Raises:
        DeviceError: The kernels cannot be built: there is no g++.
    """

    def __init__(
        self, *, depth: int = DEPTH, activation_bytes: int = ACTIVATION_BYTES, folder: Path | str | None = None
    ) -> None:
        library = build(folder)
        functions(library)
        uid = own_uid("csim")
        info = DeviceInfo(
            uid=uid,
            name="HLS kernels under g++",
            available=True,
            exact=True,
            simulated=False,
            details={"library": library.name},
        )

        def opened(artifact: Artifact) -> BatchSchedule:
            return BatchSchedule(artifact, CsimCard(library), activation_bytes=activation_bytes)

        super().__init__(uid, depth, opened, info=info, note=ON_THE_CPU)
