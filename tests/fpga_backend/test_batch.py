"""A batch that a device would read as something else is refused before it gets there."""

from typing import Any

import numpy as np
import pytest

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.errors import BatchError
from greentrain.testing.offload_models import encoder


@pytest.mark.parametrize("kind", [np.int64, np.uint32, np.float32, ">i4"])
@pytest.mark.parametrize("place", ["ids", "types"])
def test_rows_of_other_bytes_are_refused(kind: Any, place: str) -> None:
    """The kernels read 32-bit integers: 64-bit ones scored other tokens without a word, floats ended the process."""
    ids, types = ((np.ones(3, np.int32), np.ones(2, kind if name == place else np.int32)) for name in ("ids", "types"))
    with pytest.raises(BatchError, match=rf"{place}\[1\] is .*Batch\.of"):
        Batch(ids=ids, types=types).check(encoder().program)


def test_rows_of_two_dimensions_are_refused() -> None:
    with pytest.raises(BatchError, match=r"ids\[0\] is int32\[1, 3\]"):
        Batch(ids=(np.ones((1, 3), np.int32),)).check(encoder().program)
