"""torchao as a backend, and its Float8Linear as an independent reference of our own product."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from greentrain.control.precision import ao
from greentrain.control.precision.backends import Fp8Backend, choose_backend
from greentrain.errors import MissingExtraError

pytest.importorskip("torchao")

CPU = torch.device("cpu")
scalings = pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])


def draw(rows: int, bias: bool = True) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(64, 48, bias=bias), torch.randn(rows, 64).requires_grad_(), torch.randn(rows, 48)


def results(linear: Any, layer: nn.Linear, x: Tensor, grad: Tensor) -> list[Tensor]:
    """y and the gradients of x, weight and bias."""
    y = linear(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], grad.to(y.dtype))]


def off(some: list[Tensor], right: list[Tensor]) -> list[float]:
    return [float((one - other).norm() / other.norm()) for one, other in zip(some, right, strict=True)]


@scalings
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_torchaos_float8_linear_without_the_conversion(scaling: str, bias: bool) -> None:
    from torchao.float8.config import Float8LinearConfig  # type: ignore[import-untyped]
    from torchao.float8.float8_linear import Float8Linear  # type: ignore[import-untyped]

    layer, x, grad = draw(32, bias)
    before = [id(parameter) for parameter in layer.parameters()]
    backend = choose_backend("torchao", CPU, scaling)
    assert backend.name == "torchao" and backend.reason.startswith("torchao ")
    assert isinstance(backend, ao.AoBackend)
    assert all(gemm.pad_inner_dim for gemm in backend.gemms), "a batch may have any number of rows on a GPU"
    ours = results(lambda x: backend.linear(layer, x), layer, x, grad)
    converted = Float8Linear.from_float(layer, Float8LinearConfig.from_recipe_name(scaling))
    theirs = results(converted, layer, x, grad)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert type(layer) is nn.Linear and [id(parameter) for parameter in layer.parameters()] == before


@scalings
@pytest.mark.parametrize("lead", [(7,), (2, 3), (), (0,)])
def test_any_rows_and_autocast_on_cpu(scaling: str, lead: tuple[int, ...]) -> None:
    layer, _, _ = draw(1)
    backend = choose_backend("torchao", CPU, scaling)
    x = torch.randn(*lead, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = backend.linear(layer, x)
    assert y.dtype is torch.bfloat16 and y.shape == (*lead, 48)
    torch.autograd.backward(y.float().square().mean() if y.numel() else y.float().sum())
    assert layer.weight.grad is not None and layer.weight.grad.dtype is torch.float32


def test_our_product_agrees_with_torchao() -> None:
    layer, x, grad = draw(32)

    def through(backend: Fp8Backend) -> list[Tensor]:
        return results(lambda x: backend.linear(layer, x), layer, x, grad)

    ours, theirs = (through(choose_backend(name, CPU, "tensorwise")) for name in ("scaled_mm", "torchao"))
    assert max(off(ours, theirs)) < 0.01, "the same scales and formats: only a last bit may round the other way"


def test_our_rowwise_product_is_as_close_as_torchaos() -> None:
    layer, x, grad = draw(32)
    with torch.no_grad():
        x.mul_(torch.logspace(-3, 3, 32)[:, None])
    exact = results(layer, layer, x, grad)

    def through(backend: Fp8Backend) -> list[float]:
        return off(results(lambda x: backend.linear(layer, x), layer, x, grad), exact)

    ours, theirs = (through(choose_backend(name, CPU, "rowwise")) for name in ("scaled_mm", "torchao"))
    # y and the gradients: e4m3 has twice the mantissa of our e5m2, which torchao uses for gradients too when rowwise.
    for one, other, factor in zip(ours, theirs, (1.2, 2.2, 2.2, 1.0), strict=True):
        assert one <= factor * other + 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, inside its compiler
def test_compiled_it_breaks_no_graph() -> None:
    torch._dynamo.reset()
    layer, x, grad = draw(32)
    backend = choose_backend("torchao", CPU, "tensorwise")
    compiled = torch.compile(backend.linear, backend="aot_eager", fullgraph=True)
    ours = results(lambda x: compiled(layer, x), layer, x, grad)
    right = results(lambda x: backend.linear(layer, x), layer, x, grad)
    assert max(off(ours, right)) < 0.01
    torch._dynamo.reset()


@pytest.mark.long
def test_its_import_is_quiet() -> None:
    code = (
        "import greentrain.control.precision.ao, logging; assert logging.getLogger('torchao').level == logging.NOTSET"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_torchao_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ao._imports, "error", ImportError("No module named 'torchao'"))
    with pytest.raises(MissingExtraError, match=r"greentrain-torch\[torchao\]"):
        ao.open_ao(CPU, "tensorwise")
