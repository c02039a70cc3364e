from collections.abc import Iterator

import pytest

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.devices.null_device import NullDevice
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.testing.offload_contract import OffloadContract
from greentrain.testing.offload_models import encoder


class TestNullDevice(OffloadContract):
    exact = False
    computes = False

    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = NullDevice()
        yield device
        device.close()


def test_it_fails_at_once_and_says_which_device_it_is() -> None:
    device = NullDevice()
    future = device.submit(device.load(encoder()), Batch.of([[1, 2]]))
    assert future.done()
    error = future.exception(0)
    assert isinstance(error, DeviceError)
    assert not isinstance(error, DeviceLostError)
    assert "null device" in str(error)
