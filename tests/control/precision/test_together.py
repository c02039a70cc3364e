"""Gears with what training usually brings along: GradScaler, PEFT, compile on a device, CUDA graphs."""

import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.graphs import GearGraphs
from greentrain.control.precision.layers import GearLinear
from greentrain.errors import ConfigError
from greentrain.types import Gear

X = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        return y


def _box(*gears: str) -> GearBox:
    return GearBox(PrecisionConfig(gears=gears, min_features=16))


def _shift(box: GearBox, gear: str) -> None:
    box.request(gear)
    box.commit()


@pytest.mark.parametrize("gear", ["fp32", "bf16", "fp8"])
def test_a_scaler_that_stays_on_changes_nothing_but_fp16(gear: str) -> None:
    weights = []
    for scaled in (False, True):
        net, box = Net(), _box("fp16", "fp32", "bf16", "fp8")
        box.attach(net)
        _shift(box, gear)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(net(X).pow(2).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(*weights)


def test_fp16_learns_small_gradients_with_the_scaler_and_loses_them_without() -> None:
    grads = {}
    for gear, scale in (("fp32", 1.0), ("fp16", 1.0), ("fp16", 2.0**16)):
        net, box = Net(), _box("fp16", "fp32")
        box.attach(net)
        _shift(box, gear)
        (scale * 1e-8 * net(X).sum()).backward()
        (weight, *_) = net.parameters()
        assert weight.grad is not None
        grads[gear, scale] = weight.grad / scale
    exact = grads["fp32", 1.0]
    assert (grads["fp16", 2.0**16] - exact).norm() < 1e-2 * exact.norm()
    assert (grads["fp16", 1.0] - exact).norm() > 0.2 * exact.norm()


def test_an_overflow_in_fp16_skips_the_step_and_the_shift_waits_for_the_next() -> None:
    net, box = Net(), _box("fp16", "bf16")
    box.attach(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

    def shift(*_: object) -> None:
        box.commit()

    optimizer.register_step_post_hook(shift)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = [p.detach().clone() for p in net.parameters()]
    box.request("bf16")
    gears: list[Gear] = []
    while str(box.gear) == "fp16" and len(gears) < 60:
        gears.append(box.gear)
        optimizer.zero_grad()
        scaler.scale(net(X).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if box.gear is Gear.FP16:
            assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert 5 < len(gears) < 60
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_lora_adapters_train_over_frozen_fp8_layers() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed (extra 'dev')")
    net = Net()
    model = peft.get_peft_model(net, peft.LoraConfig(target_modules=["up", "down"], r=4, init_lora_weights=False))
    box = _box("bf16", "fp8")
    box.attach(model)
    chosen = [layer.name for layer in box.plan if layer.chosen]
    assert [name.rsplit(".", 1)[-1] for name in chosen] == ["base_layer", "base_layer"]
    losses = {}
    for gear in ("bf16", "fp8"):
        _shift(box, gear)
        model.zero_grad()
        loss = model(X).pow(2).mean()
        loss.backward()
        losses[gear] = loss.item()
    assert losses["fp8"] == pytest.approx(losses["bf16"], rel=0.1) and losses["fp8"] != losses["bf16"]
    trained = {name: p.grad is not None for name, p in model.named_parameters()}
    assert {("lora" in name) for name, has in trained.items() if has} == {True}
    frozen = [m for m in model.modules() if isinstance(m, GearLinear)]
    assert len(frozen) == 2 and all(not m.weight.requires_grad for m in frozen)


def test_prewarming_runs_every_gear_and_comes_back() -> None:
    net, box = Net(), _box("bf16", "fp8", "fp32")
    box.attach(net)
    seen = []
    for gear in box.gears:
        with box.at(gear):
            seen.append(str(box.gear))
            net(X).sum().backward()
    assert seen == ["bf16", "fp8", "fp32"] and box.gear is Gear.BF16


def test_cuda_graphs_without_cuda_are_refused() -> None:
    box = _box("bf16")
    with pytest.raises(ConfigError, match="CUDA graphs need a CUDA device"):
        GearGraphs(box, Net(), (X,))


class OnGpu(nn.Module):
    """A module that says that it is on a GPU."""

    def parameters(self, recurse: bool = True) -> Any:
        return iter([types.SimpleNamespace(device=torch.device("cuda"))])

    def forward(self, x: Tensor) -> str:
        return "uncaptured"


def test_a_graph_is_captured_once_a_gear_and_the_one_of_the_gear_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    box, module = _box("bf16", "fp32"), OnGpu()
    captured: list[tuple[Gear, Any]] = []

    def capture(captures: nn.Module, samples: tuple[Tensor, ...]) -> nn.Module:
        captured.append((gear := box.gear, samples))
        captures.forward = lambda x: f"graph of {gear}"  # as torch puts the graph in place of forward
        return captures

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    graphs = GearGraphs(box, module, (X,))
    assert captured == [(Gear.BF16, (X,)), (Gear.FP32, (X,))] and box.gear is Gear.BF16
    said = [graphs(X)]
    _shift(box, "fp32")
    said.append(graphs(X))
    assert said == ["graph of bf16", "graph of fp32"]
    assert graphs.eval()(X) == "uncaptured", "evaluation has shapes of its own"
    module.forward = lambda x: "somebody's"  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="the forward of OnGpu was replaced already"):
        GearGraphs(box, module, (X,))


@pytest.mark.gpu
def test_cuda_graphs_replay_the_gear_they_are_called_in() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    eager, net = Net().cuda(), Net().cuda()
    gears = ("bf16", "fp32") if torch.cuda.get_device_capability() < (8, 9) else ("bf16", "fp8", "fp32")
    plain, box = _box(*gears), _box(*gears)
    plain.attach(eager)
    box.attach(net)
    x = X.cuda().requires_grad_()
    graphed = GearGraphs(box, net, (x.detach().clone().requires_grad_(),))
    for gear in (*gears, *reversed(gears)):
        _shift(box, gear)
        _shift(plain, gear)
        for model in (graphed, eager):
            model.zero_grad()
            model(x).sum().backward()
        ours, theirs = [p.grad for p in net.parameters()], [p.grad for p in eager.parameters()]
        for a, b in zip(ours, theirs, strict=True):
            assert a is not None and b is not None
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
