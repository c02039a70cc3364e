"""The FP8 product and its backends on a real GPU: numbers, layouts, padding, compiler, graphs, and no hidden wait."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from greentrain.control.precision.backends import FORMATS, ScaledMm, choose_backend
from greentrain.control.precision.fp8 import Gemm, fp8_linear
from greentrain.control.precision.layers import attach_layer
from greentrain.errors import ConfigError
from tests.control.precision.bounds import check

# torch's compiler warns of its own parts, and of TF32, which the FP8 gear does not touch
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
scalings = pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])

SUM_STEP = 2**-13
"""Tensor cores of Hopper add FP8 products with about 14 bits (DeepSeek-V3 report, arXiv 2412.19437, section 3.3.2)."""


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[torch.device]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    if torch.cuda.get_device_capability() < FORMATS["tensorwise"].capability:
        pytest.skip(f"{torch.cuda.get_device_name()} has no FP8 units")
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # inductor sets it; undone with the test
    torch.manual_seed(0)
    with config.patch(compile_threads=1):  # no worker process
        yield torch.device("cuda")
    torch._dynamo.reset()
    torch.cuda.synchronize()


def draw(m: int, k: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x, w, g = torch.randn(m, k), torch.randn(n, k) * 0.05, torch.randn(m, n) * 1e-3
    return (x * torch.logspace(-1, 1, m)[:, None]).to("cuda", dtype), w.cuda(), g.to("cuda", dtype)


def run(linear: Callable[..., Tensor], x: Tensor, w: Tensor, g: Tensor) -> dict[str, Tensor]:
    leaves = [x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()]
    y = linear(*leaves)
    grad_x, grad_w = torch.autograd.grad(y, leaves, g.to(y.dtype))
    return {"y": y.detach(), "grad_x": grad_x, "grad_w": grad_w}


def off(some: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    pairs = [(some[name].float(), right[name].float()) for name in right]
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


@pytest.mark.sweep
@scalings
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(256, 512, 384), (37, 128, 256), (1, 256, 128), (19, 40, 24)])
@pytest.mark.parametrize("public", [True, False])
def test_all_three_products_are_within_the_bound(
    scaling: str, dtype: torch.dtype, shape: tuple[int, int, int], public: bool
) -> None:
    gemm = Gemm.on("cuda")
    if public and not gemm.public:
        pytest.skip("this torch has no public scaled_mm")
    x, w, g = draw(*shape, dtype)
    outputs = run(lambda x, w: fp8_linear(x, w, scaling, gemm._replace(public=public)), x, w, g)
    assert [out.dtype for out in outputs.values()] == [dtype, dtype, torch.float32]
    result = torch.bfloat16 if scaling == "rowwise" else None
    shares = check(scaling, outputs, x=x, w=w, g=g, sum_step=SUM_STEP, result=result)
    assert max(shares.values()) > 0.01, "nothing was rounded: this is no FP8"


@scalings
def test_strides_do_not_matter(scaling: str) -> None:
    x, w, g = draw(48, 64, 96, torch.bfloat16)
    right = run(lambda x, w: fp8_linear(x, w, scaling), x, w, g)
    turned = [tensor.t().contiguous().t() for tensor in (x, w, g)]
    leaves = [turned[0].requires_grad_(), turned[1].requires_grad_()]
    y = fp8_linear(leaves[0], leaves[1], scaling)
    assert off(dict(zip(right, [y.detach(), *torch.autograd.grad(y, leaves, turned[2])], strict=True)), right) == 0
    single = torch.randn(64, 1, device="cuda").t()
    assert fp8_linear(single, w, scaling).shape == (1, 96)
    y = fp8_linear(leaves[0], leaves[1], scaling)
    assert all(bool(grad.isfinite().all()) for grad in torch.autograd.grad(y.sum(), leaves)), "an expanded gradient"


@scalings
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("compiled", [False, True])
def test_nan_and_infinity_are_never_hidden(scaling: str, bad: float, compiled: bool) -> None:
    linear = torch.compile(fp8_linear, fullgraph=True) if compiled else fp8_linear
    x, w, g = draw(32, 64, 48, torch.bfloat16)
    x[3, 5] = bad
    outputs = run(lambda x, w: linear(x, w, scaling), x, w, g)
    assert not bool(outputs["y"][3].isfinite().any()) and not bool(outputs["grad_w"][:, 5].isfinite().any())
    assert bool(outputs["grad_x"].isfinite().all())
    x[3, 5], g[4, 6] = 1.0, bad
    outputs = run(lambda x, w: linear(x, w, scaling), x, w, g)
    assert not bool(outputs["grad_x"][4].isfinite().any()) and not bool(outputs["grad_w"][6].isfinite().any())


@scalings
@pytest.mark.parametrize("rows", [1024, 1000])
def test_compiled_it_is_finite_and_the_same(scaling: str, rows: int) -> None:
    """Some versions of Triton miscompile the transposed FP8 store (triton-lang/triton issue 11111)."""
    x, w, g = draw(rows, 1024, 2048, torch.bfloat16)

    def after_silu(x: Tensor, w: Tensor) -> Tensor:
        return fp8_linear(F.silu(x), w, scaling)

    right, ours = run(after_silu, x, w, g), run(torch.compile(after_silu, fullgraph=True), x, w, g)
    assert all(bool(out.isfinite().all()) for out in ours.values())
    assert off(ours, right) < 0.03, "a cast may round the other way"
    compiled = torch.compile(fp8_linear, fullgraph=True)
    plain = run(lambda x, w: fp8_linear(x, w, scaling), x, w, g)
    assert off(run(lambda x, w: compiled(x, w, scaling), x, w, g), plain) < 0.03


@scalings
def test_it_never_waits_for_the_gpu(scaling: str) -> None:
    x, w, g = draw(40, 64, 48, torch.bfloat16)
    run(lambda x, w: fp8_linear(x, w, scaling), x, w, g)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(lambda x, w: fp8_linear(x, w, scaling), x, w, g)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@scalings
def test_a_cuda_graph_replays_it(scaling: str) -> None:
    x, w, g = draw(64, 128, 256, torch.bfloat16)
    leaves = [x.requires_grad_(), w.requires_grad_()]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(fp8_linear(x, w, scaling), leaves, g)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fp8_linear(x, w, scaling)
        grads = torch.autograd.grad(y, leaves, g)
    with torch.no_grad():
        x.copy_(torch.randn_like(x) * 7)
    graph.replay()
    right = run(lambda x, w: fp8_linear(x, w, scaling), x, w, g)
    assert off(dict(zip(right, [y.detach(), *grads], strict=True)), right) == 0, "scales are taken on the device"


@scalings
def test_checkpointing_gives_the_same_gradients(scaling: str) -> None:
    x, w, g = draw(40, 64, 48, torch.bfloat16)
    right = run(lambda x, w: fp8_linear(x, w, scaling), x, w, g)
    again = run(lambda x, w: checkpoint(fp8_linear, x, w, scaling, use_reentrant=False), x, w, g)
    assert off(again, right) == 0


@pytest.mark.parametrize("name", ["auto", "scaled_mm", "torchao"])
@scalings
def test_the_backends_agree_with_bf16(name: str, scaling: str, device: torch.device) -> None:
    try:
        backend = choose_backend(name, device, scaling)
    except ConfigError as error:
        if name == "torchao" and "No module" in str(error):
            pytest.skip("torchao is not installed")
        raise
    if name == "auto":
        assert backend.name == "scaled_mm", backend.reason
    layer = nn.Linear(256, 512, device=device)
    x, _, g = draw(100, 256, 512, torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        ours = run(lambda x, _: backend.linear(layer, x) + 0 * _.sum(), x, layer.weight, g)["y"]
        right = layer(x)
    assert ours.dtype is torch.bfloat16 and float((ours - right).detach().norm() / right.detach().norm()) < 0.08


class Box:
    fp8 = True

    def runs_fp8(self, training: bool) -> bool:
        return self.fp8 and training


@scalings
def test_a_compiled_network_learns_in_both_gears(scaling: str, device: torch.device) -> None:
    box, backend = Box(), choose_backend("scaled_mm", device, scaling)
    assert isinstance(backend, ScaledMm) and dataclasses.is_dataclass(backend)
    x, y = torch.randn(200, 128, device=device), torch.randn(200, 128, device=device)
    losses = {}
    for fp8 in (False, True):
        torch.manual_seed(0)
        box.fp8 = fp8
        net = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).to(device)
        for layer in (net[0], net[2]):
            attach_layer(layer, box, backend)
        compiled = torch.compile(net, fullgraph=True)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for _ in range(60):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.mse_loss(compiled(x).float(), y)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        losses[fp8] = float(loss.detach())
    assert losses[False] < 0.6, "it learns"
    assert abs(losses[True] - losses[False]) < 0.1
