"""The device without a card that the documentation opens."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.testing.offload_models import encoder
from greentrain.testing.xrt_noop import LIBRARIES, SHIM, noop_device


@pytest.mark.skipif(
    not (LIBRARIES / SHIM).exists() or shutil.which("g++") is None,
    reason="needs XRT's no-op emulation (Debian 12: apt-get install libxrt1) and g++",
)
def test_in_a_folder_that_is_made_and_used_again(tmp_path: Path) -> None:
    artifact, batch = encoder(), Batch.of([[1, 2, 3], [4, 5]])
    expected = Engine(artifact).run(batch).scores
    assert expected is not None
    for _ in range(2):
        with noop_device(tmp_path / "new" / "folder") as device:
            found = device.submit(device.load(artifact), batch).result().scores
        assert found is not None and np.array_equal(found, expected)
    assert not device.probe().available
