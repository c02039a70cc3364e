"""The device whose products come from the Verilog keeps the contract of offload devices, bit for bit."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.testing.offload_contract import OffloadContract
from greentrain.testing.offload_models import encoder, sequences
from tools.rtl_device import Rtl
from tools.rtl_simulator import tile_cycles


class TestRtl(OffloadContract):
    @pytest.fixture
    def device(self, models: Path) -> Iterator[OffloadDevice]:
        device = Rtl(folder=models)
        yield device
        device.close()


def test_products_come_from_the_array(models: Path) -> None:
    artifact = encoder(layers=1, hidden=32, inner=64)
    device = Rtl(folder=models)
    try:
        device.submit(device.load(artifact), sequences(artifact, lengths=(16,))).result(60)
    finally:
        device.close()

    def cycles(outputs: int, inputs: int) -> int:
        return outputs // 8 * tile_cycles(inputs, row_pairs=8, columns=8)

    layer = cycles(96, 32) + cycles(32, 32) + cycles(64, 32) + cycles(32, 64)
    assert 0 <= device.cycles - layer <= 40  # the clearing after reset


def test_activations_of_16_bits_are_two_products_of_the_same_array(models: Path) -> None:
    """The emulator's bits, for twice the clocks: 8 rows of two digits fill the 16 rows of the array."""
    cycles = []
    for bits in (8, 16):
        artifact = encoder(layers=1, hidden=32, inner=64, activation_bits=bits)
        batch = sequences(artifact, lengths=(16,))
        device = Rtl(folder=models)
        try:
            found = device.submit(device.load(artifact), batch).result(60).scores
        finally:
            device.close()
        assert np.array_equal(found, Engine(artifact).run(batch).scores)  # type: ignore[arg-type]
        cycles.append(device.cycles)
    assert abs(cycles[1] - 2 * cycles[0]) <= 80  # the clearing after reset
