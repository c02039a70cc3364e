"""From an array of a floating-point device to a result, in the order of the batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.batch import Result
from greentrain.fpga_backend.errors import DeviceError


def result(
    found: npt.NDArray[np.float32],
    targets: Sequence[int],
    order: Sequence[int] | None,
    *,
    labels: int,
    rows: int,
    run_s: float,
) -> Result:
    """Return what a device found.

    Args:
        found: Scores [sequences, labels], or log-probabilities [targets] of one sequence after the other.
        targets: How many log-probabilities each sequence has.
        order: Place in the batch of each sequence in ``found``; None: the same.
        labels: Scores a sequence; 0: log-probabilities.
        rows: Rows that were computed.
        run_s: Seconds on the device.

    Raises:
        DeviceError: A number is not finite.
    """
    if not np.isfinite(found).all():
        raise DeviceError("the result is not finite: the model's values leave the device's range")
    if labels:
        return Result(scores=placed(found, order), run_s=run_s, rows=rows)
    cuts = np.cumsum(targets)[:-1]
    by_sequence = np.split(found, cuts)
    back = range(len(by_sequence)) if order is None else np.argsort(order)
    return Result(logprobs=tuple(by_sequence[i] for i in back), run_s=run_s, rows=rows)


def placed(found: npt.NDArray[Any], order: Sequence[int] | None) -> npt.NDArray[Any]:
    """Return rows at the places that ``order`` says."""
    if order is None:
        return found
    back = np.empty_like(found)
    back[np.asarray(order)] = found
    return back
