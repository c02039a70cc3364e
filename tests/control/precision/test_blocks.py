"""FP8 in blocks, MXFP8 and NVFP4: bits of torchao's references, errors, refusals, and training in every gear."""

import copy
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision.backends import FORMATS, choose_backend
from greentrain.control.precision.blocks import SIGNS, BlockBackend, cast
from greentrain.control.precision.gearbox import GearBox
from greentrain.errors import ConfigError
from greentrain.types import Gear

CPU = torch.device("cpu")
BLOCKS = [name for name, form in FORMATS.items() if form.block]
ERROR = {"blockwise": 0.045, "mxfp8": 0.045, "nvfp4": 0.2}
"""Of a product's norm: sqrt(2) x the rounding of an operand, e4m3 about 2.6 %, e2m1 about 10 % (14 % at random)."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def products(how: str, rows: int = 64, bias: bool = True) -> tuple[list[Tensor], list[Tensor]]:
    """Return y and the gradients of x, weight and bias, by the backend and by the plain layer."""
    layer = nn.Linear(256, 384, bias=bias)
    x, grad = drawn(rows, 256).requires_grad_(), drawn(rows, 384, seed=1)
    out = []
    for y in (choose_backend("auto", CPU, how).linear(layer, x), layer(x)):
        out.append([y, *torch.autograd.grad(y, (x, *layer.parameters()), grad)])
    return out[0], out[1]


# -- bits ------------------------------------------------------------------------------------------------------


def test_mxfp8_has_the_bits_of_torchaos_own_emulation() -> None:
    from torchao.prototype.moe_training.mxfp8_linear import mx_mm  # type: ignore[import-untyped]
    from torchao.prototype.mx_formats.config import (  # type: ignore[import-untyped]
        MXFP8Dim0CastKernelChoice,
        MXFP8Dim1CastKernelChoice,
        ScaleCalculationMode,
    )
    from torchao.quantization.quantize_.common import KernelPreference  # type: ignore[import-untyped]

    x, weight, grad = drawn(64, 128).requires_grad_(), drawn(96, 128, seed=1).requires_grad_(), drawn(64, 96, seed=2)
    layer = nn.Linear(128, 96, bias=False)
    layer.weight = nn.Parameter(weight.detach())
    e4m3, kinds = torch.float8_e4m3fn, (MXFP8Dim0CastKernelChoice.TRITON, MXFP8Dim1CastKernelChoice.TORCH)
    rounded = (32, KernelPreference.EMULATED, *kinds, ScaleCalculationMode.RCEIL, False)
    theirs = mx_mm.apply(x, weight, e4m3, e4m3, e4m3, *rounded)
    ours = choose_backend("auto", CPU, "mxfp8").linear(layer, x)
    assert torch.equal(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours, (x, layer.weight), grad), torch.autograd.grad(theirs, (x, weight), grad), strict=True
    ):
        assert torch.equal(a, b)


def test_nvfp4_has_the_bits_of_torchaos_reference() -> None:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale  # type: ignore[import-untyped]

    for x in (drawn(48, 64), 1e-6 * drawn(16, 32), 1e4 * drawn(16, 160, seed=3), torch.zeros(16, 16)):
        whole = per_tensor_amax_to_scale(x.abs().max()).clamp(min=2.0**-120)
        theirs = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=whole).dequantize(torch.float32)
        torch.testing.assert_close(cast(x, "nvfp4", "input"), theirs, rtol=3e-7, atol=0.0)


@pytest.fixture
def torchaos_blockwise(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torchao's module of FP8 in blocks, whose references need no Triton, but whose import does."""
    if importlib.util.find_spec("triton") is None:
        jit = lambda *a, **k: a[0] if a and callable(a[0]) else (lambda f: f)  # noqa: E731
        stub: Any = types.ModuleType("triton")
        stub.jit, stub.autotune, stub.heuristics = jit, lambda *a, **k: lambda f: f, lambda *a, **k: lambda f: f
        stub.Config = lambda *a, **k: None
        language: Any = types.ModuleType("triton.language")
        language.constexpr = object
        stub.language = language
        monkeypatch.setitem(sys.modules, "triton", stub)
        monkeypatch.setitem(sys.modules, "triton.language", language)
    name = "torchao.prototype.blockwise_fp8_training.kernels"
    before = sys.modules.pop(name, None)
    try:
        yield importlib.import_module(name)
    finally:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before


def test_fp8_in_blocks_has_the_bits_of_torchaos_references(torchaos_blockwise: Any) -> None:
    x = drawn(256, 384) * torch.logspace(-3, 3, 384)
    for part, reference, tall in (
        ("input", torchaos_blockwise.torch_blockwise_scale_act_quant_lhs, 1),
        ("weight", torchaos_blockwise.torch_blockwise_scale_weight_quant, 128),
    ):
        data, unit = reference(x)
        back = data.float() * unit.repeat_interleave(tall, 0).repeat_interleave(128, 1)
        assert torch.equal(cast(x, "blockwise", part), back)


def test_random_rounding_of_nvfp4_has_no_bias_and_the_transform_none_at_all() -> None:
    x = drawn(8, 64)
    torch.manual_seed(0)
    many = torch.stack([cast(x, "nvfp4", "grad") for _ in range(500)])
    spread = many.std(0) / 500**0.5
    assert (
        (many.mean(0) - x).abs() <= 5 * spread + 1e-6
    ).float().mean() >= 1 - 1 / 16  # the largest of a block may be clamped
    a, b = drawn(32, 64, seed=1), drawn(48, 64, seed=2)
    turned = [cast(t, "nvfp4", "input_t") for t in (a, b)]
    assert float((turned[0] @ turned[1].t() - a @ b.t()).norm() / (a @ b.t()).norm()) < 0.2
    assert len(SIGNS) == 16


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", BLOCKS)
@pytest.mark.parametrize("rows", [1, 40, 128])
def test_all_three_products_are_off_by_the_rounding_of_their_operands(how: str, rows: int) -> None:
    torch.manual_seed(0)
    for ours, right in zip(*products(how, rows), strict=True):
        assert ours.shape == right.shape and ours.dtype == right.dtype
        assert float((ours - right).detach().norm() / right.detach().norm()) < ERROR[how]


@pytest.mark.parametrize("how", BLOCKS)
def test_what_diverged_does_not_look_healthy(how: str) -> None:
    layer, backend = nn.Linear(128, 128, bias=False), choose_backend("auto", CPU, how)
    for bad in (float("inf"), float("nan")):
        x = drawn(128, 128)
        x[3, 5] = bad
        assert not backend.linear(layer, x)[3].isfinite().any()
    assert torch.equal(backend.linear(layer, torch.zeros(16, 128)), torch.zeros(16, 128))
    assert backend.linear(layer, torch.zeros(0, 128)).shape == (0, 128)
    assert backend.linear(layer, drawn(2, 3, 128).bfloat16()).dtype == torch.bfloat16


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "has", "said"),
    [
        (
            "mxfp8",
            (9, 0),
            r"MXFP8 needs compute capability 10\.0 or newer \(Blackwell\), or a CPU to emulate it; NVIDIA X",
        ),
        ("nvfp4", (9, 0), r"NVFP4 .* 10\.0 .*Blackwell.*; NVIDIA X is 9\.0: drop nvfp4 from precision\.gears"),
        ("blockwise", (8, 9), r"FP8 in blocks .* 9\.0 .*Hopper.* is 8\.9: set precision\.scaling to tensorwise"),
        ("tensorwise", (8, 0), r"FP8 needs compute capability 8\.9 or newer \(Ada\); NVIDIA X is 8\.0: drop fp8 from"),
    ],
)
def test_an_older_gpu_is_refused_with_what_it_is_and_what_it_would_need(
    how: str, has: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: has)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA X")
    with pytest.raises(ConfigError, match=said):
        choose_backend("auto", torch.device("cuda"), how)


def test_other_devices_and_backends_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"MXFP8 needs .*; this is mps: drop mxfp8 from precision\.gears"):
        choose_backend("auto", torch.device("mps"), "mxfp8")
    with pytest.raises(ConfigError, match=r"'scaled_mm', whose scales are .* NVFP4 has them for blocks: set precision"):
        choose_backend("scaled_mm", CPU, "nvfp4")
    with pytest.raises(ConfigError, match=r"MXFP8 does not run on cpu .*CUDA only.*set precision\.backend to auto"):
        choose_backend("transformer_engine", CPU, "mxfp8")
    backend = choose_backend("auto", CPU, "mxfp8")
    assert isinstance(backend, BlockBackend) and "its numbers, not its speed" in backend.reason


# -- training ------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.head = nn.Linear(128, 256), nn.Linear(256, 128), nn.Linear(128, 3)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x + self.down(self.drop(torch.relu(self.up(x))))).square().mean()
        return y


ALL = ("fp32", "bf16", "fp8", "mxfp8", "nvfp4")


def train(net: nn.Module, box: GearBox, optimizer: Any, steps: range) -> list[float]:
    losses = []
    for step in steps:
        box.request(ALL[step % len(ALL)])
        box.commit()
        loss = net(drawn(24, 128, seed=step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def boxed(scaling: str = "tensorwise") -> tuple[Any, GearBox, torch.optim.Optimizer]:
    net, box = Net(), GearBox(PrecisionConfig(gears=ALL, scaling=scaling))
    box.attach(net)
    return net, box, torch.optim.AdamW(net.parameters(), lr=1e-3)


@pytest.mark.parametrize("scaling", ["tensorwise", pytest.param("blockwise", marks=pytest.mark.long)])
def test_a_run_shifts_through_all_gears_and_continues_from_a_checkpoint_in_each(scaling: str) -> None:
    net, box, optimizer = boxed(scaling)
    keys, held = list(net.state_dict()), [id(p) for p in net.parameters()]
    assert [layer.name for layer in box.plan if layer.chosen] == ["up", "down"]
    torch.manual_seed(7)
    saved: list[Any] = []
    losses = []
    for step in range(7):
        saved.append(copy.deepcopy([net.state_dict(), box.state_dict(), optimizer.state_dict(), torch.get_rng_state()]))
        losses += train(net, box, optimizer, range(step, step + 1))
    assert (
        all(loss == loss for loss in losses)
        and list(net.state_dict()) == keys
        and [id(p) for p in net.parameters()] == held
    )
    for step in (3, 4, 5):  # in fp8, mxfp8 and nvfp4
        other, again, adam = boxed(scaling)
        other.load_state_dict(saved[step][0])
        again.load_state_dict(saved[step][1])
        adam.load_state_dict(saved[step][2])
        torch.set_rng_state(saved[step][3])
        assert again.gear == ALL[(step - 1) % len(ALL)]
        assert train(other, again, adam, range(step, 7)) == losses[step:]
    box.detach()
    assert type(net.up) is nn.Linear and type(net) is Net


def test_one_step_differs_by_gear_as_its_bits_do() -> None:
    net, box, _ = boxed()
    net.drop.p = 0.0
    found = {}
    for gear in box.gears:
        with box.at(gear):
            net(drawn(24, 128)).backward()
        found[gear] = net.up.weight.grad.clone()
        net.zero_grad()
    off = {gear: float((g - found[Gear.FP32]).norm() / found[Gear.FP32].norm()) for gear, g in found.items()}
    assert off[Gear.BF16] < off[Gear.MXFP8] < off[Gear.NVFP4] and off[Gear.FP8] < off[Gear.NVFP4] < 0.6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo's own
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_regions_that_are_compiled_make_one_graph_a_gear() -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    net, box, optimizer = boxed()
    counter = CompileCounter()
    net.up.compile(backend=counter)
    for gear in box.gears:
        with box.at(gear):
            net(drawn(24, 128)).backward()
    graphs = counter.frame_count
    assert graphs >= len(ALL)
    train(net, box, optimizer, range(2 * len(ALL)))
    assert counter.frame_count == graphs, "no shift compiles again"
    torch._dynamo.reset()


def test_widths_are_those_that_every_gear_of_the_run_takes() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(128, 144), nn.Linear(160, 128), nn.Linear(128, 256)
            self.head = nn.Linear(256, 3)

    def chosen(*gears: str) -> list[str]:
        box, model = GearBox(PrecisionConfig(gears=gears)), Odd()
        box.attach(model)
        return [layer.name for layer in box.plan if layer.chosen]

    assert chosen("bf16", "fp8") == ["a", "b", "c"]
    assert chosen("bf16", "mxfp8") == ["b", "c"]
    assert chosen("bf16", "fp8", "nvfp4") == ["c"]
    with pytest.raises(ConfigError, match=r"can run in MXFP8 or NVFP4 .*drop mxfp8 and nvfp4 from precision\.gears"):
        GearBox(PrecisionConfig(gears=("bf16", "mxfp8", "nvfp4"))).attach(nn.Sequential(nn.Linear(128, 144)))
