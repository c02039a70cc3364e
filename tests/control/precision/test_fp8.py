"""The FP8 product against float64, its edges, and what torch does around it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from greentrain.control.precision import fp8
from greentrain.control.precision.fp8 import Gemm, fp8_linear
from tests.control.precision.bounds import check

SCALINGS = ("tensorwise", "rowwise")
PADDED = Gemm(multiple_of=16, rowwise_dtype=None)
LIKE_CUDA = Gemm(multiple_of=16, rowwise_dtype=torch.bfloat16)

scalings = pytest.mark.parametrize("scaling", SCALINGS)


def draw(m: int, k: int, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """x (m, k), w (n, k) and g (m, n), with rows and columns of different size."""
    source = torch.Generator().manual_seed(seed)
    shapes = ((m, k), (n, k), (m, n))
    x, w, g = (torch.randn(shape, generator=source) for shape in shapes)
    x = x * torch.logspace(-2, 2, m)[:, None]
    return x.to(dtype), w * 0.05, (g * 1e-3).to(dtype)


def run(x: Tensor, w: Tensor, g: Tensor, *args: Any) -> dict[str, Tensor]:
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    y = fp8_linear(x, w, *args)
    torch.autograd.backward(y, g.to(y.dtype))
    assert x.grad is not None and w.grad is not None
    return {"y": y.detach(), "grad_x": x.grad, "grad_w": w.grad}


@scalings
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_forward_and_gradients_are_within_the_bound_of_the_formats(scaling: str, dtype: torch.dtype) -> None:
    x, w, g = draw(37, 96, 48, dtype=dtype)
    outputs = run(x, w, g, scaling)
    assert outputs["y"].dtype is dtype and outputs["grad_x"].dtype is dtype and outputs["grad_w"].dtype is torch.float32
    shares = check(scaling, outputs, x=x, w=w, g=g)
    assert min(shares.values()) > 0.02, "nothing was rounded: this is no FP8"


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 70)] * 3),
    scaling=st.sampled_from(SCALINGS),
    gemm=st.sampled_from([None, PADDED, PADDED._replace(public=False)]),
    seed=st.integers(0, 1000),
)
def test_any_shape_is_within_the_bound(shape: tuple[int, int, int], scaling: str, gemm: Gemm | None, seed: int) -> None:
    x, w, g = draw(*shape, seed=seed)
    check(scaling, run(x, w, g, scaling, gemm), x=x, w=w, g=g)


def test_rowwise_is_tighter_where_rows_differ_in_size() -> None:
    x, w, g = draw(64, 64, 64)
    # Four decades over the rows of x, and so the small rows are subnormal with one factor for all.
    x = x * torch.logspace(-4, 0, 64)[:, None]
    exact = x.double() @ w.double().t()
    worst = {}
    for scaling in SCALINGS:
        error = (run(x, w, g, scaling)["y"].double() - exact).norm(dim=1) / exact.norm(dim=1)
        worst[scaling] = float(error.max())
    assert worst["rowwise"] < 0.06 < 0.9 < worst["tensorwise"]


@scalings
@pytest.mark.parametrize("multiple_of", [16, 32])
def test_padding_changes_nothing(scaling: str, multiple_of: int) -> None:
    x, w, g = draw(7, 40, 24)
    plain = run(x, w, g, scaling)
    padded = run(x, w, g, scaling, Gemm(multiple_of=multiple_of, rowwise_dtype=None))
    for name, right in plain.items():
        torch.testing.assert_close(padded[name], right, rtol=1e-6, atol=1e-7 * float(right.abs().max()))


def test_padding_meets_what_cuda_asks_of_every_product(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, kinds = [], []

    def scaled_mm(a: Tensor, b: Tensor, a_unit: Tensor, recipe: Any, b_unit: Tensor, _: Any, **options: Any) -> Tensor:
        seen.append((a, b, a_unit, b_unit, recipe, options["output_dtype"]))
        kinds.append((a.dtype, options["use_fast_accum"]))
        return original(a, b, a_unit, recipe, b_unit, recipe, **options)

    original = F.scaled_mm
    monkeypatch.setattr(F, "scaled_mm", scaled_mm)
    for scaling in SCALINGS:
        for m in (1, 7, 32):
            run(*draw(m, 40, 24), scaling, LIKE_CUDA)
        x, w, g = (tensor.t().contiguous().t() for tensor in draw(16, 48, 32))  # column-major, and nothing to pad
        run(x, w, g, scaling, LIKE_CUDA)
    # Forward may add in the short accumulator of the tensor core; gradients have the range of e5m2 and the longer one.
    assert kinds == [(torch.float8_e4m3fn, True), (torch.float8_e5m2, False), (torch.float8_e5m2, False)] * 8
    for a, b, a_unit, b_unit, recipe, out in seen:
        (rows, inner), columns = a.shape, b.shape[1]
        assert inner % 16 == 0 and columns % 16 == 0
        assert a.stride() == (inner, 1), "the left operand must be row-major"
        assert b.stride() == (1, inner), "the right operand must be column-major"
        assert b.dtype is torch.float8_e4m3fn, (
            "rowwise CUDA kernels take e4m3 on the right, and e5m2 x e5m2 does not exist"
        )
        assert a_unit.dtype is b_unit.dtype is torch.float32
        if recipe is F.ScalingType.RowWise:
            assert (a_unit.shape, a_unit.stride()) == ((rows, 1), (1, 1))
            assert (b_unit.shape, b_unit.stride(1)) == ((1, columns), 1)
            assert out is torch.bfloat16, "rowwise CUDA kernels return BF16"
        else:
            assert a_unit.numel() == b_unit.numel() == 1 and out is torch.float32


def test_a_gpu_gets_the_shapes_that_its_kernels_take_and_a_cpu_copies_nothing_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gemm.on("cuda")
    assert gpu.multiple_of == 16 and gpu.rowwise_dtype is torch.bfloat16  # ScaledBlas.cpp, RowwiseScaledMM.cu
    padded: list[Any] = []
    monkeypatch.setattr(F, "pad", lambda *args, **more: padded.append(args))
    for scaling in SCALINGS:
        run(*draw(7, 41, 23), scaling)
    assert not padded


def test_a_layer_without_outputs_gives_none() -> None:
    w = torch.ones(0, 32, requires_grad=True)
    y = fp8_linear(torch.ones(5, 32), w)
    assert y.shape == (5, 0)
    torch.autograd.backward(y.sum())
    assert w.grad is not None and w.grad.shape == (0, 32)


def test_rowwise_results_of_a_bf16_kernel_come_in_the_dtype_that_is_due() -> None:
    x, w, g = draw(33, 64, 48)
    outputs = run(x, w, g, "rowwise", LIKE_CUDA)
    assert {name: out.dtype for name, out in outputs.items()} == dict.fromkeys(outputs, torch.float32)
    check("rowwise", outputs, x=x, w=w, g=g, result=torch.bfloat16)


@scalings
def test_the_older_call_gives_the_same_numbers(scaling: str) -> None:
    x, w, g = draw(32, 48, 64)
    new, old = run(x, w, g, scaling), run(x, w, g, scaling, Gemm(multiple_of=1, rowwise_dtype=None, public=False))
    assert all(torch.equal(new[name], old[name]) for name in new)


@scalings
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["x", "w", "g"])
def test_nan_and_infinity_are_never_hidden(scaling: str, bad: float, where: str) -> None:
    tensors = dict(zip("xwg", draw(16, 32, 48), strict=True))
    tensors[where][3, 5] = bad
    outputs = run(tensors["x"], tensors["w"], tensors["g"], scaling)
    # (row or column of the result that the bad element is summed into)
    hit = {"x": ("y", "grad_w"), "w": ("y", "grad_x"), "g": ("grad_x", "grad_w")}[where]
    part: dict[tuple[str, str], Any] = {
        ("x", "y"): (3, slice(None)),
        ("x", "grad_w"): (slice(None), 5),
        ("w", "y"): (slice(None), 3),
        ("w", "grad_x"): (slice(None), 5),
        ("g", "grad_x"): (3, slice(None)),
        ("g", "grad_w"): (5, slice(None)),
    }
    for name in hit:
        assert not bool(outputs[name][part[where, name]].isfinite().any()), name
    (clean,) = outputs.keys() - set(hit)
    assert bool(outputs[clean].isfinite().all())


@scalings
def test_the_largest_and_smallest_values_survive(scaling: str) -> None:
    x, w, g = draw(16, 32, 48)
    for size in (1e-28, 1e30):
        outputs = run(x * size, w, g, scaling)
        check(scaling, outputs, x=x * size, w=w, g=g)
    zeros = run(torch.zeros_like(x), w, torch.zeros_like(g), scaling)
    assert all(bool((output == 0).all()) for output in zeros.values())


@scalings
@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3, 2), (0,), (2, 0, 3)])
def test_any_leading_dimensions(scaling: str, lead: tuple[int, ...]) -> None:
    x = torch.randn(*lead, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    w = torch.randn(48, 32, generator=torch.Generator().manual_seed(2)).requires_grad_()
    y = fp8_linear(x, w, scaling)
    assert y.shape == (*lead, 48)
    torch.autograd.backward(y.sum())
    assert x.grad is not None and w.grad is not None and w.grad.dtype is torch.float32
    expected = torch.ones_like(y).reshape(-1, 48).t() @ x.detach().reshape(-1, 32)
    assert float((w.grad - expected).norm()) <= 0.1 * float(expected.norm()), "also the zeros of an empty batch"


@scalings
def test_strides_do_not_matter(scaling: str) -> None:
    x, w, g = draw(32, 48, 64)
    right = run(x, w, g, scaling)
    w_strided = w.t().contiguous().t().requires_grad_()
    x_strided = x.t().contiguous().t().requires_grad_()
    y = fp8_linear(x_strided, w_strided, scaling)
    torch.autograd.backward(y, g.t().contiguous().t())
    assert torch.equal(y, right["y"])
    assert x_strided.grad is not None and torch.equal(x_strided.grad, right["grad_x"])
    assert w_strided.grad is not None and torch.equal(w_strided.grad, right["grad_w"])
    single = torch.randn(48, 1).t()  # (1, 48) with the strides (1, 1)
    assert fp8.quantize(single, fp8.E4M3, fp8.WHOLE).data.stride() == (48, 1)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """Shapes of the results of the products made."""
    made: list[tuple[int, ...]] = []
    original = fp8.multiply

    def multiply(*args: Any, **kwargs: Any) -> Tensor:
        y = original(*args, **kwargs)
        made.append(tuple(y.shape))
        return y

    monkeypatch.setattr(fp8, "multiply", multiply)
    yield made


@scalings
def test_a_frozen_weight_costs_no_product_and_keeps_no_input(scaling: str, products: list[tuple[int, ...]]) -> None:
    x, w, g = draw(16, 32, 48)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = fp8_linear(x.requires_grad_(), w, scaling)
    assert [tuple(tensor.shape) for tensor in kept] == [(48, 32)], "only the weight, for the gradient of the input"
    torch.autograd.backward(y, g)
    assert products == [(16, 48), (16, 32)] and x.grad is not None and w.grad is None


@scalings
def test_the_first_layer_makes_no_gradient_of_its_input(scaling: str, products: list[tuple[int, ...]]) -> None:
    x, w, g = draw(16, 32, 48)
    torch.autograd.backward(fp8_linear(x, w.requires_grad_(), scaling), g)
    assert products == [(16, 48), (48, 32)] and w.grad is not None


def test_tensorwise_keeps_one_byte_an_element_of_the_input() -> None:
    x, w, _ = draw(16, 32, 48)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        fp8_linear(x.requires_grad_(), w.requires_grad_(), "tensorwise")
    assert {tensor.dtype for tensor in kept if tensor.shape == x.shape} == {torch.float8_e4m3fn}


def test_a_second_derivative_is_refused() -> None:
    x, w, _ = draw(16, 32, 48)
    y = fp8_linear(x.requires_grad_(), w.requires_grad_(), "tensorwise")
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(grad.sum())


@scalings
def test_autocast_gives_its_dtype_and_the_weight_is_cast_from_its_own(scaling: str) -> None:
    x, w, g = draw(16, 32, 48)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = fp8_linear(x.requires_grad_(), w.requires_grad_(), scaling)
    assert y.dtype is torch.bfloat16
    torch.autograd.backward(y, g.bfloat16())
    right = run(x.bfloat16(), w, g, scaling)
    assert torch.equal(y, right["y"]) and not torch.equal(y, fp8_linear(x.bfloat16(), w.bfloat16(), scaling))
    assert x.grad is not None and x.grad.dtype is torch.float32 and torch.equal(x.grad, right["grad_x"].float())
    assert w.grad is not None and w.grad.dtype is torch.float32 and torch.equal(w.grad, right["grad_w"])


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match=r"not torch\.float64"):
        fp8_linear(torch.ones(2, 16, dtype=torch.float64), torch.ones(16, 16), "tensorwise")


@scalings
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_gradients(scaling: str, use_reentrant: bool) -> None:
    x, w, g = draw(16, 32, 48)
    right = run(x, w, g, scaling)
    x, w = x.requires_grad_(), w.requires_grad_()
    y = checkpoint(fp8_linear, x, w, scaling, use_reentrant=use_reentrant)
    torch.autograd.backward(y, g)
    assert torch.equal(y, right["y"])
    assert x.grad is not None and torch.equal(x.grad, right["grad_x"])
    assert w.grad is not None and torch.equal(w.grad, right["grad_w"])


def compiled_equals_eager(backend: Any, scaling: str, gemm: Gemm | None, mode: Callable[[], Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(fp8_linear, backend=backend, fullgraph=True)
    x, w, g = draw(7, 48, 32)
    leaves = (x.requires_grad_(), w.requires_grad_())
    with mode():
        plain, y = fp8_linear(*leaves, scaling, gemm), compiled(*leaves, scaling, gemm)
    assert torch.equal(y, plain)
    grad = g.to(y.dtype)
    for one, other in zip(torch.autograd.grad(plain, leaves, grad), torch.autograd.grad(y, leaves, grad), strict=True):
        assert torch.equal(one, other)
    torch._dynamo.reset()


@pytest.mark.sweep
@scalings
@pytest.mark.parametrize("gemm", [None, LIKE_CUDA])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does so, torch 2.13
def test_compiled_whole_it_is_the_same(scaling: str, gemm: Gemm | None) -> None:
    compiled_equals_eager("eager", scaling, gemm, lambda: torch.autocast("cpu", enabled=False))
    compiled_equals_eager("aot_eager", scaling, gemm, lambda: torch.autocast("cpu", dtype=torch.bfloat16))
