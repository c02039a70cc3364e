"""What the tests of the kernels share: the built library and a bench."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from greentrain.fpga_backend.csim.build import build
from tests.fpga_backend.csim.bench import Bench


@pytest.fixture(scope="session")
def library() -> Path:
    """The kernels, built by g++."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ on PATH")
    return build()


@pytest.fixture(scope="session")
def bench(library: Path) -> Iterator[Bench]:
    """A card to launch kernels on."""
    bench = Bench(library)
    yield bench
    bench.card.close()
