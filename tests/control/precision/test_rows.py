"""The first samples of a batch, however it is nested."""

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from greentrain.control.precision.recorder import KeptSamples, batch_size, tensors


@dataclass(frozen=True, slots=True)
class Pair:
    x: Tensor
    name: str = "pair"


def batch(n: int) -> Tensor:
    return torch.arange(n * 3.0).view(n, 3)


@pytest.mark.parametrize(
    ("tree", "take"),
    [
        ((batch(8),), lambda t: t[0]),
        ({"ids": batch(8), "mask": None}, lambda t: t["ids"]),
        ([(1, {"deep": [batch(8)]})], lambda t: t[0][1]["deep"][0]),
        ((UserDict({"ids": batch(8)}),), lambda t: t[0]["ids"]),
        ((Pair(batch(8)),), lambda t: t[0].x),
    ],
)
def test_nested_in_anything(tree: Any, take: Any) -> None:
    assert batch_size(tree) == 8
    rows = KeptSamples(tree, keep=3)
    assert (rows.size, rows.kept) == (8, 3)
    assert torch.equal(take(rows.take(range(2))), batch(8)[:2])
    assert torch.equal(take(rows.take(range(1, 3))), batch(8)[1:3])
    assert torch.equal(take(tree), batch(8))


def test_what_has_no_batch_dimension_stays_whole_also_if_it_is_as_long_as_what_is_kept() -> None:
    mask, scalar = torch.ones(2, 2), torch.tensor(5.0)
    rows = KeptSamples((batch(8), mask, scalar, "x", 8), keep=2)
    x, same, count, *rest = rows.take(range(1))
    assert x.shape == (1, 3) and same is mask and count is scalar and rest == ["x", 8]


def test_the_kept_samples_are_copies() -> None:
    x = batch(4)
    rows = KeptSamples(x, keep=2)
    x.zero_()
    first = rows.take(range(2))
    first.zero_()
    assert torch.equal(rows.take(range(2)), batch(4)[:2])


def test_a_small_batch_and_none() -> None:
    assert KeptSamples(batch(1), keep=2).kept == 1
    assert KeptSamples((torch.tensor(1.0), "text"), keep=2).size == 0


def test_a_tensor_of_an_earlier_model_becomes_a_leaf_that_asks_for_a_gradient() -> None:
    x = torch.ones(4, 3, requires_grad=True) * 2
    taken = KeptSamples(x, keep=2).take(range(2))
    assert taken.requires_grad and taken.is_leaf


def test_tensors_come_in_one_order() -> None:
    a, b, c = batch(1), batch(2), batch(3)
    assert [len(t) for t in tensors({"a": a, "more": [UserDict(b=b), Pair(c)]})] == [1, 2, 3]
