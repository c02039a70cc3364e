"""One model, four gears: what attach changes, and what it leaves alone."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.layers import GearLinear
from greentrain.errors import ConfigError
from greentrain.types import Gear

WIDTH = 32


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """Say something."""
        hidden = self.norm(torch.relu(self.up(x)))
        return {"y": scale * self.down(hidden), "dtype": torch.tensor([self.up(x).dtype is torch.bfloat16])}


def box(*gears: str, **more: object) -> GearBox:
    return GearBox(PrecisionConfig(gears=gears or ("fp32", "bf16", "fp8"), min_features=16, **more))  # type: ignore[arg-type]


X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))


def test_parameters_keys_and_identity_stay() -> None:
    net = Net()
    before = dict(net.named_parameters())
    keys = list(net.state_dict())
    gears = box()
    gears.attach(net)
    assert {k: id(v) for k, v in net.named_parameters()} == {k: id(v) for k, v in before.items()}
    assert list(net.state_dict()) == keys
    assert isinstance(net, Net) and type(net).__name__ == "Net" and isinstance(net.up, GearLinear)
    gears.detach()
    assert type(net) is Net and type(net.up) is nn.Linear and list(vars(net)) == list(vars(Net()))


def test_fp32_is_bit_exact_before_between_and_after() -> None:
    net, gears = Net(), box()
    plain = net(X)["y"]
    gears.attach(net)
    assert torch.equal(net(X)["y"], plain)
    for gear in ("fp8", "fp32"):
        gears.request(gear)
        assert gears.commit()
        y = net(X)["y"]
        assert y.dtype is torch.float32
        assert torch.equal(y, plain) is (gear == "fp32")
        assert (y - plain).norm() / plain.norm() < 0.1
    gears.detach()
    assert torch.equal(net(X)["y"], plain)


def test_bf16_is_autocast() -> None:
    net, gears = Net(), box("bf16")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = net(X)["y"]
    gears.attach(net)
    assert torch.equal(net(X)["y"], plain.float())
    assert net(X)["dtype"].item()


def test_a_request_waits_for_commit() -> None:
    net, gears = Net(), box()
    gears.attach(net)
    gears.request("fp8")
    assert str(gears.gear) == "fp32"
    assert gears.commit() and str(gears.gear) == "fp8"
    assert not gears.commit()
    gears.request("fp8")
    assert not gears.commit()
    with pytest.raises(ConfigError, match="'fp16' is not among"):
        gears.request("fp16")


def test_evaluation_has_its_own_gear() -> None:
    net, gears = Net(), box("fp8", "bf16")
    gears.attach(net)
    trained = net(X)["y"]
    net.eval()
    evaluated = net(X)["y"]
    assert not torch.equal(trained, evaluated)
    gears.request("bf16")
    gears.commit()
    net.train()
    assert torch.equal(net(X)["y"], evaluated)
    assert GearBox(PrecisionConfig(gears=("fp8", "bf16"), eval_gear="fp8")).eval_gear is Gear.FP8
    assert GearBox(PrecisionConfig(gears=("fp8", "fp32"))).eval_gear is Gear.FP32


def test_copies_and_pickles_are_plain_and_have_their_own_weights() -> None:
    net, gears = Net(), box("fp8", "bf16")
    gears.attach(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)):
        assert type(other) is Net and type(other.up) is nn.Linear
        assert all(a is not b and torch.equal(a, b) for a, b in zip(other.parameters(), net.parameters(), strict=True))
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert other(X)["y"].abs().sum() == 0
    assert net(X)["y"].abs().sum() > 0


def test_an_averaged_model_follows_the_weights() -> None:
    net, gears = Net(), box("bf16", "fp8")
    gears.attach(net)
    average = torch.optim.swa_utils.AveragedModel(net)
    average.update_parameters(net)
    with torch.no_grad():
        net.up.weight.add_(1.0)
    average.update_parameters(net)
    (weight, *_), (averaged, *_) = net.parameters(), average.parameters()
    assert torch.allclose(weight - averaged, torch.tensor(0.5))
    assert average(X)["y"].shape == (8, WIDTH)


def test_a_pickled_module_loads_without_greentrain(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    gears = box("fp8", "bf16")
    gears.attach(net)
    torch.save(net, tmp_path / "net.pt")
    code = (
        "import sys, torch\n"
        "sys.modules['greentrain'] = None\n"
        f"net = torch.load({str(tmp_path / 'net.pt')!r}, weights_only=False)\n"
        "print(type(net).__name__, type(net[0]).__name__, tuple(net(torch.ones(2, 32)).shape))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "Sequential Linear (2, 32)"


def test_the_signature_and_docstring_stay_for_frameworks_that_look() -> None:
    import inspect

    net, plain = Net(), inspect.signature(Net().forward)
    box().attach(net)
    assert inspect.signature(net.forward) == plain
    assert net.forward.__doc__ == "Say something."


def test_nested_in_a_frameworks_autocast_the_gear_wins() -> None:
    net, gears = Net(), box("fp32", "bf16")
    plain = net(X)["y"]
    gears.attach(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net.up(X)  # the outer region has cast this weight already
        assert torch.equal(net(X)["y"], plain)
        gears.request("bf16")
        gears.commit()
        assert not torch.equal(net(X)["y"], plain)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_recomputes_in_the_same_gear(use_reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Saving(Net):
        def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
            hidden = checkpoint(self.up, x, use_reentrant=use_reentrant)
            return {"y": self.down(self.norm(torch.relu(hidden)))}

    grads = []
    for net in (Net(), Saving()):
        gears = box("fp8", "bf16")
        gears.attach(net)
        x = X.clone().requires_grad_()
        net(x)["y"].sum().backward()
        grads.append([p.grad for p in net.parameters()] + [x.grad])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_in_a_gear_for_a_while() -> None:
    net, gears = Net(), box("bf16", "fp8")
    gears.attach(net)
    with pytest.raises(ZeroDivisionError), gears.at(Gear.FP8):
        assert gears.runs_fp8(training=True)
        raise ZeroDivisionError
    assert gears.gear is Gear.BF16


def test_the_gear_survives_a_checkpoint() -> None:
    gears, other = box("bf16", "fp8"), box("bf16", "fp8")
    gears.request("fp8")
    gears.commit()
    other.load_state_dict(gears.state_dict())
    assert other.gear is Gear.FP8
    other.load_state_dict({"gear": "fp32"})
    assert other.gear is Gear.FP8


@pytest.mark.parametrize(
    ("model", "gears", "words"),
    [
        (nn.Sequential(nn.Linear(15, 32)), ("bf16", "fp8"), ["no layer of Sequential", "15", "min_features"]),
        (nn.Sequential(nn.ReLU()), ("fp8",), ["no nn.Linear"]),
        (Net().to(torch.bfloat16), ("bf16", "fp32"), ["fp32", "up.weight is stored in bfloat16", "load the model in"]),
        (Net().half(), ("bf16",), ["bf16", "float16"]),
    ],
)
def test_what_cannot_work_is_refused(model: nn.Module, gears: tuple[str, ...], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        box(*gears).attach(model)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not any(isinstance(module, GearLinear) for module in model.modules())


def test_bf16_weights_may_shift_between_bf16_and_fp8() -> None:
    net, gears = Net().to(torch.bfloat16), box("bf16", "fp8")
    gears.attach(net)
    gears.request("fp8")
    gears.commit()
    net(X.bfloat16())["y"].sum().backward()
    assert net.up.weight.grad is not None and net.up.weight.grad.dtype is torch.bfloat16


def test_deepspeed_that_keeps_half_weights_is_refused() -> None:
    class DeepSpeedEngine(nn.Module):
        def __init__(self, half: bool) -> None:
            super().__init__()
            self.module, self.half_weights = Net(), half

        def bfloat16_enabled(self) -> bool:
            return self.half_weights

        def fp16_enabled(self) -> bool:
            return False

    with pytest.raises(ConfigError, match="DeepSpeed keeps the weights in bfloat16; turn its bf16"):
        box("fp32", "bf16").attach(DeepSpeedEngine(True))
    engine = DeepSpeedEngine(False)
    gears = box("fp32", "bf16")
    gears.attach(engine)
    assert gears.model is engine.module


def test_torchscript_is_refused() -> None:
    with pytest.raises(ConfigError, match="TorchScript"), pytest.warns(DeprecationWarning):
        box("bf16").attach(torch.jit.trace(nn.Linear(WIDTH, WIDTH), X))  # type: ignore[no-untyped-call]
