"""Tokens and samples from shapes."""

from collections import UserDict
from typing import Any

import pytest
import torch

from greentrain.callbacks.driver import count

IDS = torch.zeros(4, 6, dtype=torch.int64)
IMAGE = torch.zeros(4, 3, 8, 8)


class Encoding(UserDict[str, Any]):
    """Like transformers.BatchEncoding: a mapping that is no dict."""


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (IDS, (24, 4)),
        ([IDS, IDS], (24, 4)),
        ({"attention_mask": torch.ones(4, 6), "input_ids": IDS}, (24, 4)),
        (Encoding({"input_ids": IDS.int()}), (24, 4)),
        (({"input_ids": IDS}, {"other": 1}), (24, 4)),
        ({"input_ids": torch.zeros(30, dtype=torch.int64)}, (30, 1)),
        ((IMAGE, torch.zeros(4, dtype=torch.int64)), (0, 4)),
        ((IMAGE, torch.zeros(4, 8, 8, dtype=torch.int64)), (0, 4)),
        (IMAGE.byte(), (0, 4)),
        ({"a": {"b": [IDS]}}, (24, 4)),
        (torch.tensor(3), (0, 0)),
        (None, (0, 0)),
        ("text", (0, 0)),
        ([], (0, 0)),
        ({"a": {"b": {"c": IDS}}}, (24, 4)),
        ({"a": {"b": {"c": [IDS]}}}, (0, 0)),  # deeper than batches are
        ([{}] * 7 + [{"input_ids": IDS}], (24, 4)),
        ([{"mask": torch.ones(2)}] * 8 + [{"input_ids": IDS}], (0, 2)),  # beyond the first few it is not looked for
        (torch.zeros(4, 6, dtype=torch.int16), (0, 4)),  # no type of token ids
        (torch.zeros(4, dtype=torch.int64), (0, 4)),  # labels
        ({"input_ids": "text", "image": IMAGE}, (0, 4)),
    ],
)
def test_count(batch: Any, expected: tuple[int, int]) -> None:
    assert count(batch) == expected


def test_count_reads_no_values() -> None:
    assert count({"input_ids": torch.zeros(2, 5, dtype=torch.int64, device="meta")}) == (10, 2)
