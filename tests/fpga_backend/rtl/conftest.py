"""Models of the Verilog, compiled once for the tests of this folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from tools.rtl_simulator import Simulator, missing


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of compiled models, which all workers of a run share. Skips where they cannot be compiled."""
    if reason := missing():
        pytest.skip(reason)
    run = tmp_path_factory.getbasetemp()
    folder = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "rtl"
    folder.mkdir(exist_ok=True)
    with filelock.FileLock(folder / "lock"):  # a quarter of a minute: one worker compiles, the others wait for it
        Simulator(folder=folder).close()
    return folder


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
