"""What the engine's tests share: small models, and devices that are closed at the end."""

from collections.abc import Callable, Iterator

import pytest
import torch

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.testing.offload_models import decoder, encoder

Closing = Callable[..., None]


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def reward() -> Artifact:
    return encoder(layers=1, types=0)


@pytest.fixture(scope="package")
def reference() -> Artifact:
    return decoder(layers=1)


@pytest.fixture
def closing() -> Iterator[Closing]:
    """Close devices at the end, in the order given."""
    devices: list[OffloadDevice] = []
    yield lambda *some: devices.extend(some)
    for device in devices:
        device.close()
