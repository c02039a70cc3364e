import pytest
import torch

from greentrain.fpga_backend.compiler.values import Seen, describe

CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        (torch.ones(1, 1, 5, 5, dtype=torch.bool), False),
        (torch.zeros(1, 1, 1, 5), False),
        (CAUSAL[None, None], True),
        (torch.zeros(5, 5).masked_fill(~CAUSAL, float("-inf")), True),
        (torch.zeros(1, 3, 5, 5).masked_fill(~CAUSAL, torch.finfo(torch.float32).min), True),
    ],
)
def test_full_and_causal(mask: torch.Tensor, causal: bool) -> None:
    assert describe(mask, 5) == Seen(causal=causal)


@pytest.mark.parametrize("window", [1, 2, 4])
def test_windows(window: int) -> None:
    band = torch.ones(5, 5, dtype=torch.bool).triu(1 - window).tril(window - 1)
    assert describe(band & CAUSAL, 5) == Seen(causal=True, window=window)
    assert describe(torch.zeros(5, 5).masked_fill(~band, -1e9), 5) == Seen(causal=window == 1, window=window)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (CAUSAL & (torch.arange(5) != 1), "token 1 does not see token 1"),
        (torch.zeros(5, 5, dtype=torch.bool), "token 0 does not see token 0"),
        (CAUSAL | torch.eye(5, dtype=torch.bool).roll(1, 1), "token 0 does not see token 2"),
        (torch.arange(5.0).expand(5, 5), "adds numbers"),
        (torch.stack([torch.zeros(5, 5), torch.ones(5, 5)]), "from head to head"),
    ],
)
def test_everything_else_is_described(mask: torch.Tensor, words: str) -> None:
    assert words in describe(mask, 5).wrong
