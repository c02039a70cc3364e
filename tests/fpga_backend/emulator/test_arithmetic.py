"""Each step of the emulator rounds as the contract says; numpy's scalars do the same in another way."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend import contract, tables
from greentrain.fpga_backend.emulator import arithmetic
from greentrain.fpga_backend.emulator.arithmetic import (
    LogProbTables,
    QuantisedHeads,
    Visible,
    attend,
    logprobs,
    softly_capped,
    weights_table,
)

f32 = np.float32


def test_roots_and_quotients_are_rounded_correctly() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1_000_000, generator=generator) * 10 ** torch.empty(1_000_000).uniform_(-12, 12, generator=generator)
    x.clamp_min_(1e-30)
    assert np.array_equal(arithmetic.root(x).numpy(), np.sqrt(x.numpy()))
    assert np.array_equal(arithmetic.ratio(127.0, x).numpy(), f32(127.0) / x.numpy())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), st.sampled_from([127, 32512, 32767, 2**19 - 1])
)
def test_a_row_is_quantised_in_the_contracts_order(row: list[float], largest: int) -> None:
    n, scale = arithmetic.quantise(torch.tensor([row]), largest)
    peak = max(max(f32(abs(x)) for x in row), f32(contract.ROW_FLOOR))
    assert scale.item() == peak * f32(1.0 / largest)
    factor = f32(largest) / peak
    assert n[0].tolist() == [float(np.rint(f32(x) * factor)) for x in row]
    assert abs(n).max() <= largest


def test_every_activation_of_16_bits_is_two_digits() -> None:
    n = torch.arange(-contract.Q16D, contract.Q16D + 1)
    high, low = arithmetic.two_digits(n[:, None].float()).long().chunk(2)
    assert torch.equal(high[:, 0], torch.div(n + 127, 255, rounding_mode="floor"))
    assert torch.equal(255 * high + low, n[:, None])
    assert high.abs().max() == low.abs().max() == 127


def test_sums_of_two_digits_are_joined_before_they_are_rounded() -> None:
    acc = torch.tensor([[2**31 - 1], [-(2**31) + 1], [2**31 - 1], [5]], dtype=torch.int32)
    assert arithmetic.joined(acc).tolist() == [[256.0 * (2**31 - 1)], [-255.0 * (2**31 - 1) + 5]]


def test_attention_weights_fall_by_the_tables_shifts() -> None:
    table = weights_table(torch.from_numpy(tables.exp2().copy()))
    assert len(table) == 4097
    assert table[0] == 2**15
    assert table[256] == 2**14
    assert table[-1] == 0
    exact = 2.0**15 * np.exp2(-np.arange(4096) / 256)
    assert np.abs(table[:-1].numpy() - exact).max() <= 1.0


def attended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    heads: int,
    *,
    scale: float,
    causal: bool,
    window: int = 0,
    cap: float = 0.0,
) -> torch.Tensor:
    out = torch.empty(len(q), v.shape[1])
    table = weights_table(torch.from_numpy(tables.exp2().copy()))
    attend(
        QuantisedHeads.of(q, heads),
        QuantisedHeads.of(k, heads),
        QuantisedHeads.of(v, heads),
        out,
        scale=scale,
        seen=Visible(causal=causal, window=window),
        table=table,
        cap=cap,
    )
    return out


def test_attention_is_near_the_real_one_and_blind_to_what_comes_later() -> None:
    generator = torch.Generator().manual_seed(1)
    heads, rows, width = 3, 50, 16
    q, k, v = (torch.randn(rows, heads * width, generator=generator) for _ in range(3))
    for causal in (False, True):
        found = attended(q, k, v, heads, scale=0.25, causal=causal)
        a, b, c = (x.view(rows, heads, width).transpose(0, 1) for x in (q, k, v))
        real = torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=causal, scale=0.25)
        assert (found - real.transpose(0, 1).reshape(rows, -1)).abs().max() < 0.05
    short = attended(q[:20], k[:20], v[:20], heads, scale=0.25, causal=True)
    assert torch.equal(short, found[:20])


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_and_a_soft_cap_are_near_the_real_ones(causal: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    heads, rows, width, window, cap = 2, 40, 16, 7, 3.0
    q, k, v = (torch.randn(rows, heads * width, generator=generator) for _ in range(3))
    found = attended(q, k, v, heads, scale=1.0, causal=causal, window=window, cap=cap)
    a, b, c = (x.view(rows, heads, width).transpose(0, 1) for x in (q, k, v))
    away = torch.arange(rows)[:, None] - torch.arange(rows)
    hidden = (away.abs() >= window) | (causal & (away < 0))
    scores = (cap * torch.tanh(a @ b.mT / cap)).masked_fill(hidden, -torch.inf)
    real = scores.softmax(-1) @ c
    assert (found - real.transpose(0, 1).reshape(rows, -1)).abs().max() < 0.05


def test_a_soft_cap_is_tanh_to_a_seventh_of_a_percent() -> None:
    x = torch.linspace(-40.0, 40.0, 4001)
    got = softly_capped(x.clone(), 5.0)
    assert (got - 5 * torch.tanh(x / 5)).abs().max() < 5 / 700
    assert bool((got.diff() >= 0).all()) and got.abs().max() <= 5.0


def test_more_keys_than_binary32_holds_exactly_are_summed_in_parts() -> None:
    generator = torch.Generator().manual_seed(2)
    keys = 3 * contract.EXACT_F32_INNER + 5
    q = torch.zeros(1, 8)
    k = torch.randn(keys, 8, generator=generator)
    v = torch.ones(keys, 8)
    found = attended(q, k, v, 1, scale=1.0, causal=False)
    acc, total = 127 * 127 * keys, 2**15 * keys
    weight = (f32(2**15) * (f32(1) * f32(1 / 127))) * f32(1 / 127)
    assert found.tolist() == [[float(f32(acc) * (weight / f32(total)))] * 8]


def test_logprobs_are_near_the_real_ones_and_never_positive() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(64, 5000, generator=generator) * torch.linspace(0, 30, 64)[:, None]
    targets = torch.cat((logits[:32].argmax(1), torch.randint(0, 5000, (32,), generator=generator)))
    made = LogProbTables(torch.from_numpy(tables.exp2().copy()), torch.from_numpy(tables.log().copy()))
    found = logprobs(logits, targets, made)
    real = torch.log_softmax(logits.double(), -1).gather(1, targets[:, None]).squeeze(1)
    assert (found - real).abs().max() < 3e-4
    assert found.max() <= 0.0


def test_a_norm_of_equal_values_is_its_bias() -> None:
    x = torch.full((2, 48), 3.25)
    gain, bias = torch.randn(48), torch.randn(48)
    assert torch.equal(arithmetic.norm(x, gain, bias, 1e-12, centre=True), bias.expand(2, -1))
    plain = arithmetic.norm(x, torch.ones(48), None, 0.0, centre=False)
    assert torch.equal(plain, torch.ones(2, 48))


def test_norms_are_near_the_real_ones() -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(20, 300, generator=generator) * 10 ** torch.linspace(-6, 4, 20)[:, None] + 1.0
    gain, bias = torch.randn(300, generator=generator), torch.randn(300, generator=generator)
    layer = torch.nn.functional.layer_norm(x, (300,), gain, bias, 1e-5)
    assert (arithmetic.norm(x, gain, bias, 1e-5, centre=True) - layer).abs().max() < 2e-2
    rms = torch.nn.functional.rms_norm(x, (300,), gain, 1e-6)
    assert (arithmetic.norm(x, gain, None, 1e-6, centre=False) - rms).abs().max() < 1e-4


def test_activation_tables_are_near_the_real_functions() -> None:
    x = torch.linspace(-20, 20, 4001)
    real = {
        "gelu": torch.nn.functional.gelu(x),
        "gelu_tanh": torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu(x),
        "tanh": torch.tanh(x),
    }
    for name, expected in real.items():
        table = torch.from_numpy(tables.gate(name).copy()).float() / contract.GATE_ONE
        found = arithmetic.gate(x, table, None, times_x=name != "tanh")
        assert (found - expected).abs().max() < 4e-3, name
    assert math.copysign(1, arithmetic.relu(torch.tensor([-0.0]), None).item()) == 1
