from collections.abc import Iterator

import pytest

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.devices.torch_device import TorchDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.remote.client import RemoteDevice, RemoteTimeouts
from greentrain.fpga_backend.remote.server import serve
from greentrain.testing.offload_contract import OffloadContract
from tests.fpga_backend.devices import binary64

QUICK = RemoteTimeouts(batch_s=20.0, load_s=20.0, silence_s=5.0, lost_s=1.0, hold_s=0.3, poll_s=0.1)


class TestRemoteEmulator(OffloadContract):
    """The exact device behind HTTP is exact."""

    others_threads = ("greentrain-offload-emulator",)

    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        emulator = Emulator()
        with serve(emulator) as server:
            device = RemoteDevice(server.url, token=server.token, patience=QUICK)
            yield device
            device.close()
        emulator.close()


class TestRemoteTorch(OffloadContract):
    """An inexact device behind HTTP says so."""

    others_threads = ("greentrain-offload-torch",)
    exact = False
    tolerance = 1e-5
    batch_tolerance = 1e-5

    def expected(self, artifact: Artifact, batch: Batch) -> Result:
        return binary64.expected(artifact, batch)

    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        torch_device = TorchDevice()
        with serve(torch_device) as server:
            device = RemoteDevice(server.url, token=server.token, patience=QUICK)
            yield device
            device.close()
        torch_device.close()
