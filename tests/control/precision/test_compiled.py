"""torch.compile: one graph a gear, no break, dynamo's limit raised and put back, and a warning if it is hit."""

import gc
import logging
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision.gearbox import LIMIT, LOGGER, GearBox, RecompileWatch
from greentrain.errors import GreenTrainWarning
from greentrain.types import Gear

pytestmark = [  # dynamo's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
Make = Callable[[], GearBox]
X = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        return y


@pytest.fixture
def make() -> Iterator[Callable[[], GearBox]]:
    torch._dynamo.reset()
    gc.collect()  # models of other tests that went with their gears on
    boxes: list[GearBox] = []

    def box() -> GearBox:
        boxes.append(GearBox(PrecisionConfig(gears=("bf16", "fp8", "fp32"), min_features=16)))
        return boxes[-1]

    yield box
    for each in boxes:
        each.detach()
    torch._dynamo.reset()


def _shift(box: GearBox, gear: Gear) -> None:
    box.request(gear)
    box.commit()


@pytest.mark.parametrize("how", ["outside", "in place"])
def test_one_graph_a_gear_and_the_numbers_of_eager(make: Make, how: str) -> None:
    eager, net = Net(), Net()
    plain, box = make(), make()
    plain.attach(eager)
    counter = CompileCounter()
    if how == "outside":
        model: nn.Module = torch.compile(net, backend=counter, fullgraph=True)  # type: ignore[assignment]
        box.attach(model)
    else:
        box.attach(net)
        net.compile(backend=counter, fullgraph=True)
        model = net
    for round_ in range(3):
        for n, gear in enumerate(box.gears, 1):
            _shift(box, gear)
            _shift(plain, gear)
            y, expected = model(X), eager(X)
            y.sum().backward()
            expected.sum().backward()
            assert torch.equal(y, expected)
            assert counter.frame_count == (n if round_ == 0 else 3)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(net.parameters(), eager.parameters(), strict=True))  # type: ignore[arg-type]


@pytest.mark.long
def test_blocks_compiled_one_by_one_share_their_graphs(make: Make) -> None:
    net, box, counter = nn.Sequential(*(Net() for _ in range(5))), make(), CompileCounter()
    box.attach(net)
    for block in net:
        block.compile(backend=counter, fullgraph=True)
    for gear in (*box.gears, *box.gears):
        _shift(box, gear)
        net(X).sum().backward()
    assert counter.frame_count == 2 * len(box.gears)  # the first block's input is FP32 and needs no gradient


def test_the_limit_is_raised_while_gears_are_on(make: Make) -> None:
    before = torch._dynamo.config.recompile_limit
    net, box = Net(), make()
    box.attach(net)
    assert torch._dynamo.config.recompile_limit == max(LIMIT, before) > before
    box.detach()
    assert torch._dynamo.config.recompile_limit == before
    alone = RecompileWatch(1)
    alone.prepare()
    assert torch._dynamo.config.recompile_limit == before


def test_a_model_that_goes_with_its_gears_on_leaves_nothing_behind(make: Make) -> None:
    before = torch._dynamo.config.recompile_limit
    box, net = GearBox(PrecisionConfig(gears=("bf16", "fp8"), min_features=16)), Net()
    box.attach(net)
    assert torch._dynamo.config.recompile_limit > before and logging.getLogger(LOGGER).handlers
    del box, net
    gc.collect()
    assert torch._dynamo.config.recompile_limit == before and not logging.getLogger(LOGGER).handlers


@pytest.mark.usefixtures("make")
def test_hitting_the_limit_is_told_once() -> None:
    watch = RecompileWatch(3)
    watch.prepare()
    torch._dynamo.config.recompile_limit = 2

    @torch.compile(backend="eager")
    def double(x: Tensor, n: int) -> Tensor:
        return x * len("x" * n)

    try:
        with (
            pytest.warns(GreenTrainWarning, match="hit its limit") as caught,
            torch._dynamo.config.patch(automatic_dynamic_shapes=False),
        ):
            for n in range(5):
                double(X, n)
        assert len([w for w in caught if w.category is GreenTrainWarning]) == 1
    finally:
        watch.stop()
    assert not logging.getLogger(LOGGER).handlers
