"""Puts arrays on a card, launches one kernel, and takes back what it wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.card import Buffer
from greentrain.fpga_backend.csim.kernels import KERNELS
from greentrain.fpga_backend.csim.layout import padded
from tests.fpga_backend.csim.checked_card import CheckedCard

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
GUARD = 256
"""Bytes behind each buffer that a kernel must leave alone."""


class Bench:
    """A card that is empty again after each launch.

    Args:
        library: The built kernels.
    """

    def __init__(self, library: Path) -> None:
        self.card = CheckedCard(library)

    def run(self, kernel: str, outputs: Mapping[str, Array], /, **given: Array | int) -> None:
        """Launch a kernel.

        Args:
            kernel: Its name.
            outputs: Arrays that are filled with what it wrote, by argument; their last axis is padded on the card.
            given: Inputs: arrays, padded on the card, and scalars.
        """
        (spec,) = (known for known in KERNELS if known.name == kernel)
        made: dict[str, Buffer] = {}
        arguments: list[Buffer | int] = []
        for argument in spec.arguments:
            if argument.region is None:
                value = given[argument.name]
                assert isinstance(value, int)
                arguments.append(value)
                continue
            array = outputs.get(argument.name, given.get(argument.name))
            assert isinstance(array, np.ndarray), f"{kernel} lacks {argument.name}"
            whole = padded(array)
            buffer = self.card.allocate(whole.nbytes + GUARD, argument.region.bank)
            if argument.name in given:
                self.card.write(buffer, whole)
            made[argument.name] = buffer
            arguments.append(buffer)
        self.card.launch(kernel, arguments)
        for name, array in outputs.items():
            whole = padded(array)
            found = np.empty_like(whole)
            self.card.read(made[name], found)
            array[...] = found[..., : array.shape[-1]]
            assert not found[..., array.shape[-1] :].any(), f"{kernel} left something behind the rows of {name}"
            guard = np.empty(GUARD, dtype=np.uint8)
            self.card.read(made[name], guard, whole.nbytes)
            assert (guard == 0xFF).all(), f"{kernel} wrote behind {name}"
        for buffer in made.values():
            self.card.free(buffer)


def wide(rng: np.random.Generator, rows: int, start: int, x: Floats) -> Floats:
    """Return rows that hold ``x`` from column ``start`` on, among other numbers."""
    behind = int(rng.integers(0, 20))
    whole = rng.standard_normal((rows, start + x.shape[1] + behind)).astype(np.float32) * np.float32(1e6)
    whole[:, start : start + x.shape[1]] = x
    return np.ascontiguousarray(whole)


def stride(x: Array) -> int:
    """Return the beats of a row of binary32."""
    return int(-(-x.shape[1] // 16))


def same(found: Array, expected: Array) -> None:
    """Raise unless two arrays are equal bit for bit."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    differ = found.view(np.uint8) != np.ascontiguousarray(expected).view(np.uint8)
    assert not differ.any(), (
        f"{np.argwhere(found != expected)[:3].tolist()}: {found.ravel()[:4]}, {expected.ravel()[:4]}"
    )
