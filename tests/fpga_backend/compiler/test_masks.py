import pytest
import torch

from greentrain.fpga_backend.compiler.values import describe

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
    assert describe(mask, 5) == (causal, "")


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (CAUSAL.triu(-2), "token 3 does not see token 0"),
        (CAUSAL | torch.eye(5, dtype=torch.bool).roll(1, 1), "token 0 sees token 1"),
        (torch.arange(5.0).expand(5, 5), "adds numbers"),
        (torch.stack([torch.zeros(5, 5), torch.ones(5, 5)]), "from head to head"),
    ],
)
def test_everything_else_is_described(mask: torch.Tensor, words: str) -> None:
    causal, why = describe(mask, 5)
    assert causal is None and words in why
