"""Passes that leave no trace."""

import random
import types
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greentrain.control.precision.noise import _same_dropout, rehearsal

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Restless(nn.Module):
    """Writes wherever a forward can write."""

    queue: Tensor
    replaced: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.register_buffer("queue", torch.zeros(4))
        self.register_buffer("replaced", torch.zeros(()))
        self.calls = 0
        self.seen: list[Any] = []
        self.stats: dict[str, Any] = {"calls": 0, "sum": torch.zeros(())}
        self.state = torch.zeros(3)
        self.bank, self.slots, self.newest = [torch.zeros(2)], [0, 0], [0]
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.stats["calls"] += 1
        self.stats["sum"] += 1.0
        self.stats["new"] = 1
        self.state += 1.0
        self.bank[0] += 1.0
        self.slots[0] = self.newest[0] = self.calls
        self.queue[self.calls % 4] = random.random() + float(np.random.rand()) + float(torch.rand(()))
        self.replaced = self.replaced + 1
        self.last = self.drop(self.norm(self.linear(x)))
        self.extra = True
        return self.last


def everything(net: Restless) -> list[Any]:
    tensors = [*net.state_dict().values(), net.state, net.stats["sum"], net.bank[0], torch.get_rng_state()]
    plain = [
        net.calls,
        list(net.seen),
        net.slots[:],
        net.newest[:],
        net.stats["calls"],
        sorted(net.stats),
        net.last is None,
        hasattr(net, "extra"),
    ]
    return [*(t.clone() for t in tensors), *plain, net.training, random.getstate(), str(np.random.get_state())]


def equal(a: list[Any], b: list[Any]) -> bool:
    return all(torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left(fails: bool) -> None:
    net = Restless()
    before, buffer, version = everything(net), net.replaced, net.queue._version
    try:
        with rehearsal(net) as rewind:
            for seed in (0, 1):
                rewind(seed)
                net(X)
            assert net.calls == 1  # rewound before each pass
            net.train(False)
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert equal(everything(net), before)
    assert net.replaced is buffer
    assert net.queue._version - version == 2  # the two passes'; restoring it is nothing to autograd


def test_one_seed_draws_the_same_numbers_wherever_a_forward_draws_them() -> None:
    draws = []
    with rehearsal(nn.Linear(8, 8)) as rewind:
        for seed in (3, 3, 4):
            rewind(seed)
            draws.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert draws[0] == draws[1] and all(a != b for a, b in zip(draws[0], draws[2], strict=True))


class Attention(nn.Module):
    """Somebody's own, with rates of its own."""

    def __init__(self, attention_dropout: float) -> None:
        super().__init__()
        self.residual_dropout, self.attention_dropout = 0.0, attention_dropout


@pytest.mark.parametrize(
    ("on_gpu", "modules", "kept_to_one"),
    [
        ((True,), [nn.Linear(2, 2), nn.Dropout(0.1)], True),
        ((False, True), [Attention(0.1)], True),
        ((True,), [nn.MultiheadAttention(8, 2, dropout=0.1)], True),
        ((True,), [nn.LayerNorm(2), nn.Dropout(0.0), Attention(0.0)], False),
        ((False,), [nn.Dropout(0.1)], False),
    ],
)
def test_where_something_drops_on_a_gpu_attention_keeps_to_kernels_that_draw_one_mask(
    on_gpu: tuple[bool, ...], modules: list[nn.Module], kept_to_one: bool
) -> None:
    model: Any = types.SimpleNamespace(
        parameters=lambda: [types.SimpleNamespace(is_cuda=one) for one in on_gpu], modules=lambda: modules
    )
    allowed: Any = torch.backends.cuda
    before = allowed.flash_sdp_enabled(), allowed.mem_efficient_sdp_enabled(), allowed.math_sdp_enabled()
    with _same_dropout(model):
        assert allowed.flash_sdp_enabled() is not kept_to_one  # it takes no FP32
        assert allowed.mem_efficient_sdp_enabled() and allowed.math_sdp_enabled()
    assert (allowed.flash_sdp_enabled(), allowed.mem_efficient_sdp_enabled(), allowed.math_sdp_enabled()) == before


def test_one_seed_is_one_mask_in_every_precision() -> None:
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.GELU(), nn.Dropout(0.1))
    attend = torch.randn(2, 4, 16, 8, generator=torch.Generator().manual_seed(0))

    def masks(dtype: torch.dtype, seed: int) -> list[Tensor]:
        with rehearsal(net) as rewind:
            rewind(seed)
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
                attention = F.scaled_dot_product_attention(
                    attend.to(dtype), attend.to(dtype), attend.to(dtype), None, 0.5
                )
                return [net(X), attention]

    for full, half, other in zip(
        masks(torch.float32, 3), masks(torch.bfloat16, 3), masks(torch.float32, 4), strict=True
    ):
        assert (full - half).norm() < 0.02 * full.norm()
        assert (full - other).norm() > 0.2 * full.norm()


def test_gradients_are_on_and_compiled_code_is_not_run() -> None:
    compiled: list[bool] = []

    @torch.compile(backend="eager")
    def inner(x: Tensor) -> Tensor:
        compiled.append(torch.compiler.is_compiling())
        return x * 2

    inner(X)
    net = nn.Linear(8, 8)
    with torch.no_grad(), rehearsal(net):
        assert inner(net(X)).requires_grad
    assert compiled == [True, False]
    torch.compiler.reset()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_attention_draws_one_dropout_mask_in_every_dtype_on_a_gpu() -> None:
    net = nn.MultiheadAttention(64, 4, dropout=0.5, batch_first=True, device="cuda")
    x = torch.randn(2, 32, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    state = torch.cuda.get_rng_state()
    with rehearsal(net) as rewind:
        out = []
        for enabled in (False, True):
            rewind(0)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
                out.append(net(x, x, x, need_weights=False)[0].float())
    assert (out[0] - out[1]).norm() < 0.05 * out[0].norm()
    assert torch.equal(torch.cuda.get_rng_state(), state)
