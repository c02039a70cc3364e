"""A table of positions that a model cuts to the sequence's length, instead of looking positions up."""

import pytest
import torch
from torch import Tensor, nn

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import UnsupportedModelError
from greentrain.fpga_backend.program import Embed


class CutPositions(nn.Module):
    def __init__(self, positions: int, first: int = 0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 32)
        self.positions = nn.Parameter(torch.randn(positions, 32))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 40)
        self.first = first

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions[self.first : self.first + input_ids.shape[1]]
        logits: Tensor = self.head(self.norm(x))
        return logits


@pytest.mark.parametrize(("positions", "first"), [(16, 0), (24, 0), (24, 3)])
def test_positions_may_be_cut_from_a_table(positions: int, first: int) -> None:
    torch.manual_seed(positions)
    model = CutPositions(positions, first).eval()
    artifact = compile_model(model, max_tokens=16)
    offsets = [op.offset for op in artifact.program.ops if isinstance(op, Embed) and op.index == "position"]
    assert offsets == [first]
    ids = torch.randint(40, (1, 12))
    found = Engine(artifact).run(Batch.of(list(ids))).logprobs
    assert found is not None
    with torch.no_grad():
        real = torch.log_softmax(model(ids)[0, :-1], -1).gather(1, ids[0, 1:, None]).squeeze(1)
    assert (torch.from_numpy(found[0]) - real).abs().max() < 0.05


def test_a_table_cut_short_says_how_far_it_reaches() -> None:
    with pytest.raises(UnsupportedModelError, match="max_tokens"):
        compile_model(CutPositions(8), max_tokens=16)
