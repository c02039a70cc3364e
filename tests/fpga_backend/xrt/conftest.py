"""What XRT's tests share: Debian's XRT as it wants to lie, the compiled kernels, and a design of metadata only."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from greentrain.fpga_backend.csim.build import build
from greentrain.fpga_backend.csim.kernels import KERNELS, REGIONS
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.xrt.device import XrtDevice
from greentrain.testing.xrt_noop import noop_environment
from tools import noop_xclbin


@pytest.fixture(scope="session")
def noop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which XRT's no-op emulation runs."""
    try:
        return dict(noop_environment(tmp_path_factory.mktemp("xrt")))
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, built by g++."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ on PATH")
    return build()


@pytest.fixture(scope="session")
def design(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An xclbin that lists the kernels and has no bitstream."""
    path = tmp_path_factory.mktemp("design") / "kernels.xclbin"
    noop_xclbin.write(path, KERNELS, REGIONS)
    return path


@pytest.fixture
def open_files() -> Iterator[None]:
    """Fail a test that leaves a file descriptor open."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def opened(open_files: None, design: Path, library: Path, noop: dict[str, str]) -> Iterator[Callable[..., XrtDevice]]:
    """Open devices in no-op emulation, and close them at the end."""
    made: list[XrtDevice] = []

    def make(**changes: object) -> XrtDevice:
        settings = {"design": design, "silicon": library, "environ": noop, **changes}
        made.append(XrtDevice(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for device in made:
        device.close()
