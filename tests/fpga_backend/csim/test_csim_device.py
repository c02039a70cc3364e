"""The csim device keeps the contract of offload devices."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.csim.device import Csim
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.errors import DeviceError
from greentrain.testing.offload_contract import OffloadContract
from greentrain.testing.offload_models import decoder, encoder


class TestCsim(OffloadContract):
    @pytest.fixture
    def device(self, library: Path) -> Iterator[OffloadDevice]:
        device = Csim()
        yield device
        device.close()


class TestCsimWith16Bits(TestCsim):
    def encoder(self, seed: int = 0) -> Artifact:
        return encoder(seed=seed, activation_bits=16)

    def decoder(self, seed: int = 0) -> Artifact:
        return decoder(seed=seed, activation_bits=16)


def test_without_a_compiler_it_does_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"g\+\+"):
        Csim(folder=tmp_path)
