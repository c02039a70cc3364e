"""Models of the Verilog, compiled once for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from greentrain.fpga_backend.rtl.simulate import Simulator
from greentrain.fpga_backend.rtl.toolchain import missing


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of compiled models. Skips where they cannot be compiled."""
    if reason := missing():
        pytest.skip(reason)
    return tmp_path_factory.mktemp("rtl")


@pytest.fixture(scope="session")
def square(models: Path) -> Iterator[Simulator]:
    """The array that devices use by default: 16 rows, 8 columns."""
    with Simulator(folder=models) as simulator:
        yield simulator


@pytest.fixture(scope="session")
def odd(models: Path) -> Iterator[Simulator]:
    """A small array whose sides share no factor: 4 rows, 3 columns."""
    with Simulator(row_pairs=2, columns=3, folder=models) as simulator:
        yield simulator
