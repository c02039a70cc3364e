"""Kernels that look at one row, against the contract read anew: any slice, any width, extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend import tables
from greentrain.fpga_backend.csim.launches import bits
from tests.fpga_backend.csim import reference
from tests.fpga_backend.csim.bench import Bench, same, stride, wide
from tests.fpga_backend.csim.shapes import kinds, rows, seeds, starts

few = settings(max_examples=40, deadline=None)
F = np.float32


@few
@given(seeds, st.integers(1, 5), st.integers(1, 70), st.integers(0, 3))
def test_embed_looks_up_and_scales(bench: Bench, seed: int, count: int, width: int, offset: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(-32767, 32768, (9, width)).astype(np.int16)
    scales = rng.random(9).astype(F)
    index = rng.integers(0, 9 - offset, count).astype(np.int32)
    y = np.empty((count, width), dtype=F)
    bench.run("gt_embed", {"y": y}, q=table, s=scales, index=index, rows=count, width=width, offset=offset)
    chosen = index + offset
    same(y, table[chosen].astype(F) * scales[chosen][:, None])


@few
@given(seeds, st.integers(1, 4), st.sampled_from([1, 16, 33, 1024, 1025]), starts, starts)
def test_add_reads_slices(bench: Bench, seed: int, count: int, width: int, x_start: int, z_start: int) -> None:
    rng = np.random.default_rng(seed)
    x, z = (rows(rng, count, width, "normal") for _ in range(2))
    left, right = wide(rng, count, x_start, x), wide(rng, count, z_start, z)
    y = np.empty((count, width), dtype=F)
    bench.run(
        "gt_gate",
        {"y": y},
        x=left,
        up=right,
        table=np.zeros(16, dtype=np.int32),
        rows=count,
        x_stride=stride(left),
        x_start=x_start,
        up_stride=stride(right),
        up_start=z_start,
        width=width,
        kind=3,
        gated=0,
    )
    same(y, x + z)


@few
@given(
    seeds,
    st.integers(1, 3),
    st.sampled_from([1, 2, 7, 16, 33, 130]),
    st.sampled_from([1, 1, 2, 5]),
    starts,
    kinds,
    st.booleans(),
    st.booleans(),
)
def test_norm_is_the_contracts(
    bench: Bench, seed: int, count: int, width: int, groups: int, start: int, kind: str, layer: bool, biased: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = rows(rng, count, groups * width, kind)
    g, b = (rng.standard_normal(width).astype(F) for _ in range(2))
    _norm(bench, rng, x, g, b if biased else None, start, layer=layer)


@pytest.mark.parametrize("layer", [True, False])
def test_norm_of_the_widest_row(bench: Bench, layer: bool) -> None:
    """All elements at the bound: the sum of squares is the largest there is."""
    rng = np.random.default_rng(0)
    x = np.where(np.arange(8192) % 2, F(3.5), F(-3.5))[None].astype(F)
    x[0, 5] = 1.25
    g = rng.standard_normal(8192).astype(F)
    _norm(bench, rng, x, g, None, 3, layer=layer)


def _norm(
    bench: Bench,
    rng: np.random.Generator,
    x: reference.Floats,
    g: reference.Floats,
    b: reference.Floats | None,
    start: int,
    *,
    layer: bool,
) -> None:
    whole = wide(rng, len(x), start, x)
    y = np.empty_like(x)
    bench.run(
        "gt_norm",
        {"y": y},
        x=whole,
        g=g,
        b=g if b is None else b,
        rows=len(x),
        x_stride=stride(whole),
        x_start=start,
        width=len(g),
        layer=int(layer),
        biased=int(b is not None),
        eps=bits(1e-5),
        groups=x.shape[1] // len(g),
    )
    parts = x.reshape(-1, len(g))
    same(y, np.stack([reference.norm(row, g, b, 1e-5, layer=layer) for row in parts]).reshape(x.shape))


@few
@given(seeds, st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 8, 63, 64, 65]), starts, kinds, st.booleans())
def test_quantise_by_group_and_by_index(
    bench: Bench, seed: int, count: int, groups: int, width: int, start: int, kind: str, indexed: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = rows(rng, 6, groups * width, kind)
    whole = wide(rng, 6, start, x)
    index = rng.integers(0, 6, count + 2).astype(np.int32)
    q, s = np.empty((count, groups, width), dtype=np.int8), np.empty(count * groups, dtype=F)
    bench.run(
        "gt_quantise",
        {"q": q, "s": s},
        x=whole,
        index=index,
        rows=count,
        x_stride=stride(whole),
        x_start=start,
        width=groups * width,
        groups=groups,
        indexed=int(indexed),
        first=2 * int(indexed),
        digits=1,
    )
    chosen = x[index[2:]] if indexed else x[:count]
    made = [reference.quantise(part, 127) for row in chosen for part in row.reshape(groups, width)]
    same(q, np.array([n for n, _ in made], dtype=np.int8).reshape(q.shape))
    same(s, np.array([scale for _, scale in made], dtype=F))


@few
@given(seeds, st.integers(1, 3), st.sampled_from([1, 8, 63, 64, 65, 150]), starts, kinds, st.booleans())
def test_quantise_to_two_digits(
    bench: Bench, seed: int, count: int, width: int, start: int, kind: str, indexed: bool
) -> None:
    """A row's high digits lie before its low ones, each in whole beats; they are those of the contract."""
    rng = np.random.default_rng(seed)
    x = rows(rng, 6, width, kind)
    if kind == "ties":
        x = (rng.integers(-2 * 32512, 2 * 32512 + 1, x.shape) / 2).astype(F)
        x[:, 0] = 32512
    whole = wide(rng, 6, start, x)
    index = rng.integers(0, 6, count + 2).astype(np.int32)
    q, s = np.empty((count, 2, width), dtype=np.int8), np.empty(count, dtype=F)
    bench.run(
        "gt_quantise",
        {"q": q, "s": s},
        x=whole,
        index=index,
        rows=count,
        x_stride=stride(whole),
        x_start=start,
        width=width,
        groups=1,
        indexed=int(indexed),
        first=2 * int(indexed),
        digits=2,
    )
    chosen = x[index[2:]] if indexed else x[:count]
    made = [reference.quantise(row, 32512) for row in chosen]
    same(q, np.array([[*zip(*map(reference.split, n), strict=True)] for n, _ in made], dtype=np.int8))
    same(s, np.array([scale for _, scale in made], dtype=F))


def test_every_integer_of_two_digits(bench: Bench) -> None:
    """All 65025 of them, in rows of 289 with the largest at their end."""
    n = np.arange(-32512, 32513, dtype=np.int64).reshape(225, 289)
    x = np.hstack([n, np.full((225, 1), 32512)]).astype(F)
    q, s = np.empty((225, 2, 290), dtype=np.int8), np.empty(225, dtype=F)
    shape = {"rows": 225, "x_stride": stride(x), "x_start": 0, "width": 290, "groups": 1, "indexed": 0, "first": 0}
    bench.run("gt_quantise", {"q": q, "s": s}, x=x, index=np.zeros(1, dtype=np.int32), digits=2, **shape)
    assert (np.abs(q.astype(np.int64)) <= 127).all()
    assert np.array_equal(255 * q[:, 0, :-1].astype(np.int64) + q[:, 1, :-1], n)
    assert (q[:, :, -1] == 127).all()


@pytest.mark.parametrize("digits", [1, 2])
@pytest.mark.parametrize("width", [4096, 4097, 131072])
def test_quantise_rows_longer_than_a_chunk(bench: Bench, width: int, digits: int) -> None:
    rng = np.random.default_rng(width)
    x = rows(rng, 1, width, "normal")
    x[0, -1] = 9.0
    q, s = np.empty((1, digits, width), dtype=np.int8), np.empty(1, dtype=F)
    shape = {"rows": 1, "x_stride": stride(x), "x_start": 0, "width": width, "groups": 1, "indexed": 0, "first": 0}
    bench.run("gt_quantise", {"q": q, "s": s}, x=x, index=np.zeros(1, dtype=np.int32), digits=digits, **shape)
    largest = (127, 32512)[digits - 1]
    n = np.rint(x * (F(largest) / F(9.0))).astype(np.int64)
    high = (n + 127) // 255
    same(q[0], np.vstack([high, n - 255 * high] if digits == 2 else [n]).astype(np.int8))
    same(s, np.array([F(9.0) * F(1 / largest)]))


@few
@given(
    seeds,
    st.integers(1, 3),
    st.sampled_from([1, 16, 33, 1025]),
    starts,
    st.sampled_from(["gelu", "gelu_tanh", "silu", "tanh", "relu"]),
    st.booleans(),
)
def test_gate_by_every_table(
    bench: Bench, seed: int, count: int, width: int, start: int, kind: str, gated: bool
) -> None:
    rng = np.random.default_rng(seed)
    table = tables.gate("gelu" if kind == "relu" else kind) if seed % 2 else rng.integers(-(2**15), 2**15, 8192)
    x = rows(rng, count, width, "normal") * F(6)
    x[0, : min(width, 9)] = np.array([0.0, -0.0, 16.0, -16.0, 1e30, -1e30, 0.5 / 256, -1.5 / 256, 15.999], dtype=F)[
        :width
    ]
    up = rows(rng, count, width, "normal")
    whole, other = wide(rng, count, start, x), wide(rng, count, 5, up)
    y = np.empty_like(x)
    bench.run(
        "gt_gate",
        {"y": y},
        x=whole,
        up=other,
        table=table.astype(np.int32),
        rows=count,
        x_stride=stride(whole),
        x_start=start,
        up_stride=stride(other),
        up_start=5,
        width=width,
        kind={"tanh": 1, "relu": 2}.get(kind, 0),
        gated=int(gated),
    )
    same(y, np.stack([reference.gate(x[i], kind, table, up[i] if gated else None) for i in range(count)]))


@few
@given(seeds, st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 3, 8, 16, 17]), starts)
def test_rotary_turns_each_head(bench: Bench, seed: int, count: int, heads: int, half: int, start: int) -> None:
    rng = np.random.default_rng(seed)
    x = rows(rng, count, 2 * half * heads, "normal")
    whole = wide(rng, count, start, x)
    cos, sin = (rng.uniform(-1, 1, (11, half)).astype(F) for _ in range(2))
    positions = rng.integers(0, 11, count).astype(np.int32)
    y = np.empty_like(x)
    bench.run(
        "gt_rotary",
        {"y": y},
        x=whole,
        cos=cos,
        sin=sin,
        positions=positions,
        rows=count,
        x_stride=stride(whole),
        x_start=start,
        heads=heads,
        half=half,
    )
    same(y, np.stack([reference.rotary(x[i], cos[p], sin[p], heads) for i, p in enumerate(positions)]))


@few
@given(
    seeds, st.integers(1, 40), st.sampled_from([1, 16, 37]), starts, kinds, st.sampled_from(["first", "last", "mean"])
)
def test_pool_over_prompt_and_own_rows(
    bench: Bench, seed: int, tokens: int, width: int, start: int, kind: str, how: str
) -> None:
    rng = np.random.default_rng(seed)
    x = rows(rng, tokens + 3, width, kind)
    whole = wide(rng, len(x), start, x)
    prompt = int(rng.integers(0, tokens))
    lines = np.array([[3 + prompt, tokens - prompt, 3, prompt], [1, 2, 0, 0]], dtype=np.int32)
    y = np.empty((2, width), dtype=F)
    bench.run(
        "gt_pool",
        {"y": y},
        x=whole,
        segments=lines.ravel(),
        sequences=2,
        x_stride=stride(whole),
        x_start=start,
        width=width,
        how=["first", "last", "mean"].index(how),
    )
    same(y, np.stack([reference.pool(x[3:], how), reference.pool(x[1:3], how)]))


@few
@given(
    seeds, st.integers(1, 3), st.sampled_from([1, 16, 17]), st.sampled_from([1, 33, 384]), starts, kinds, st.booleans()
)
def test_score_in_sixteen_bits(
    bench: Bench, seed: int, count: int, labels: int, width: int, start: int, kind: str, biased: bool
) -> None:
    rng = np.random.default_rng(seed)
    _score(bench, rng, rows(rng, count, width, kind), labels, start, biased=biased)


def test_score_of_the_longest_row(bench: Bench) -> None:
    """131072 products at the bound: the sum comes near to 2^47."""
    rng = np.random.default_rng(0)
    x = np.full((1, 131072), F(2.0))
    _score(bench, rng, x, 2, 0, biased=False, weights=np.array([32767, -32767], dtype=np.int16))


def _score(
    bench: Bench,
    rng: np.random.Generator,
    x: reference.Floats,
    labels: int,
    start: int,
    *,
    biased: bool,
    weights: reference.Array | None = None,
) -> None:
    width = x.shape[1]
    whole = wide(rng, len(x), start, x)
    if weights is None:
        w = rng.integers(-32767, 32768, (labels, width)).astype(np.int16)
    else:
        w = np.ascontiguousarray(np.broadcast_to(weights[:, None], (labels, width)))
    ws, b = rng.random(labels).astype(F), rng.standard_normal(labels).astype(F)
    y = np.empty((len(x), labels), dtype=F)
    bench.run(
        "gt_score",
        {"y": y},
        x=whole,
        w=w,
        ws=ws,
        b=b,
        rows=len(x),
        x_stride=stride(whole),
        x_start=start,
        width=width,
        labels=labels,
        biased=int(biased),
    )
    same(y, np.stack([reference.product(row, w, ws, b if biased else None, 32767) for row in x]))
