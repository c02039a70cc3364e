"""The 8-bit product, attention and the log-probability head against the contract read anew."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend import tables
from greentrain.fpga_backend.csim.launches import beats, bits
from greentrain.fpga_backend.csim.layout import tiled
from tests.fpga_backend.csim import reference
from tests.fpga_backend.csim.bench import Bench, same
from tests.fpga_backend.csim.shapes import kinds, rows, seeds

few = settings(max_examples=40, deadline=None)
F = np.float32
Array = reference.Array


def multiply(bench: Bench, q: Array, qs: Array, w: Array, ws: Array, b: Array | None) -> reference.Floats:
    """Rows of q [rows, inner], or of two digits [rows, 2, inner]."""
    y = np.empty((len(q), len(w)), dtype=F)
    bench.run(
        "gt_gemm",
        {"y": y},
        q=q,
        qs=qs,
        **{f"w{i}": part for i, part in enumerate(tiled(w))},
        ws=ws,
        b=ws if b is None else b,
        rows=len(q),
        inner_beats=beats(q.shape[-1], 64),
        outputs=len(w),
        biased=int(b is not None),
        digits=q.ndim - 1,
    )
    return y


def multiplied(q: Array, qs: Array, w: Array, ws: Array, b: Array | None) -> reference.Floats:
    whole = q.astype(np.int64)
    acc = (whole if q.ndim == 2 else 255 * whole[:, 0] + whole[:, 1]) @ w.astype(np.int64).T
    y = (acc.astype(np.float64).astype(F) * qs[:, None]) * ws[None]
    return np.asarray(y if b is None else y + b[None])


@few
@given(
    seeds,
    st.integers(1, 70),
    st.integers(1, 70),
    st.one_of(st.integers(1, 200), st.sampled_from([255, 256, 257, 512, 700])),
    st.booleans(),
    st.booleans(),
)
def test_products_of_any_shape(
    bench: Bench, seed: int, count: int, outputs: int, inner: int, biased: bool, two: bool
) -> None:
    rng = np.random.default_rng(seed)
    shape = (count, 2, inner) if two else (count, inner)
    q, w = (rng.integers(-127, 128, n).astype(np.int8) for n in (shape, (outputs, inner)))
    qs, ws = rng.random(count).astype(F), rng.random(outputs).astype(F)
    b = rng.standard_normal(outputs).astype(F) if biased else None
    same(multiply(bench, q, qs, w, ws, b), multiplied(q, qs, w, ws, b))


@pytest.mark.parametrize("digits", [1, 2])
def test_the_longest_product_at_its_bound(bench: Bench, digits: int) -> None:
    """131072 products of 127 and 127 come within 1.6 % of 2^31; of two digits, of 2^39."""
    q = np.full((1, 131072) if digits == 1 else (1, 2, 131072), 127, dtype=np.int8)
    w = np.full((2, 131072), 127, dtype=np.int8)
    w[1] = -127
    one = np.ones(2, dtype=F)
    same(multiply(bench, q, one[:1], w, one, None), multiplied(q, one[:1], w, one, None))


def test_a_sum_of_two_digits_is_rounded_once(bench: Bench) -> None:
    """Sums beyond 2^24 are whole before they become binary32: two roundings differ somewhere among many."""
    rng = np.random.default_rng(3)
    q, w = rng.integers(-127, 128, (60, 2, 2000)).astype(np.int8), rng.integers(-127, 128, (60, 2000)).astype(np.int8)
    one = np.ones(60, dtype=F)
    found = multiply(bench, q, one, w, one, None)
    same(found, multiplied(q, one, w, one, None))
    high, low = (q[:, i].astype(np.int64) @ w.astype(np.int64).T for i in range(2))
    assert (found != (255 * high).astype(F) + low.astype(F)).any()


def test_scales_are_applied_one_after_the_other(bench: Bench) -> None:
    """(acc * qs) * ws + b, each rounded: other orders and fused operations differ somewhere among many."""
    rng = np.random.default_rng(5)
    q, w = (rng.integers(-127, 128, (n, 64)).astype(np.int8) for n in (200, 200))
    qs, ws = (rng.random(200).astype(F) * F(1e-3) for _ in range(2))
    b = rng.standard_normal(200).astype(F)
    acc = (q.astype(np.int64) @ w.astype(np.int64).T).astype(F)
    found = multiply(bench, q, qs, w, ws, b)
    same(found, multiplied(q, qs, w, ws, b))
    assert (found != acc * (qs[:, None] * ws[None]) + b[None]).any()
    fused = (acc * qs[:, None]).astype(np.float64) * ws[None] + b[None]
    assert (found != fused.astype(F)).any()


def attend(
    bench: Bench,
    parts: tuple[reference.Floats, reference.Floats, reference.Floats],
    heads: int,
    kv_heads: int,
    segments: list[tuple[int, int, int, int]],
    *,
    scale: float,
    causal: bool,
    window: int = 0,
    cap: float = 0.0,
    scales: list[reference.Floats] | None = None,
) -> reference.Floats:
    quantised = []
    for x, count in zip(parts, (heads, kv_heads, kv_heads), strict=True):
        made = [reference.quantise(part, 127) for row in x for part in row.reshape(count, -1)]
        q = np.array([n for n, _ in made], dtype=np.int8).reshape(len(x) * count, -1)
        quantised.append((q, np.array([s for _, s in made], dtype=F)))
    (q, qs), (k, ks), (v, vs) = quantised
    qs, ks, vs = (qs, ks, vs) if scales is None else scales
    y = np.empty((len(parts[0]), heads * v.shape[1]), dtype=F)
    bench.run(
        "gt_attention",
        {"y": y},
        q=q,
        qs=qs,
        k=k,
        ks=ks,
        v=v,
        vs=vs,
        exp2=tables.exp2(),
        segments=np.array(segments, dtype=np.int32).ravel(),
        segment_count=len(segments),
        heads=heads,
        kv_heads=kv_heads,
        key_beats=beats(q.shape[1], 64),
        value_beats=beats(v.shape[1], 64),
        value_width=v.shape[1],
        scale=bits(scale * reference.LOG2E * 256),
        causal=int(causal),
        window=window,
        softcap=bits(cap * reference.LOG2E * 256),
    )
    return y


@settings(max_examples=25, deadline=None)
@given(
    seeds,
    st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    st.sampled_from([(4, 4), (6, 10), (65, 3)]),
    st.integers(0, 20),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    kinds,
    st.booleans(),
    st.sampled_from([0, 1, 4, 33]),
    st.sampled_from([0.0, 2.0]),
)
def test_attention_over_prompts_and_sequences(
    bench: Bench,
    seed: int,
    heads: tuple[int, int],
    width: tuple[int, int],
    prompt: int,
    lengths: list[int],
    kind: str,
    causal: bool,
    window: int,
    cap: float,
) -> None:
    """Sequences behind a shared prompt give what each gives behind a prompt of its own."""
    rng = np.random.default_rng(seed)
    shared = prompt if causal else 0
    segments = [(0, 2, 0, 0), *([(2, shared, 0, 0)] if shared else [])]
    start = 2 + shared
    for length in lengths:
        segments.append((start, length, 2, shared))
        start += length
    widths = (heads[0] * width[0], heads[1] * width[0], heads[1] * width[1])
    q, k, v = (rows(rng, start, w, kind) for w in widths)
    scale = width[0] ** -0.5
    found = attend(bench, (q, k, v), *heads, segments, scale=scale, causal=causal, window=window, cap=cap)
    group = heads[0] // heads[1]
    for first, length, parent, before in segments:
        own = [*range(parent, parent + before), *range(first, first + length)]
        for i in range(length):
            place = before + i
            last = place + 1 if causal else place + window if window else len(own)
            seen = own[max(0, place + 1 - window) if window else 0 : last]
            for head in range(heads[0]):
                kv = head // group
                expected = reference.attention(
                    q[first + i, head * width[0] : (head + 1) * width[0]],
                    k[seen][:, kv * width[0] : (kv + 1) * width[0]],
                    v[seen][:, kv * width[1] : (kv + 1) * width[1]],
                    scale,
                    cap,
                )
                same(found[first + i, head * width[1] : (head + 1) * width[1]], expected)


@pytest.mark.parametrize("seed", range(4))
def test_logits_of_attention_are_rounded_at_every_step(bench: Bench, seed: int) -> None:
    """Keys that differ little have logits in the millions, where another order of the scales shows."""
    rng = np.random.default_rng(seed)
    q, v = rows(rng, 16, 8, "normal") * F(60), rows(rng, 16, 8, "normal")
    k = q[:1] * (1 + rng.uniform(-1e-3, 1e-3, (16, 1))).astype(F)
    found = attend(bench, (q, k, v), 1, 1, [(0, 16, 0, 0)], scale=0.25, causal=False)
    same(found, np.stack([reference.attention(row, k, v, 0.25) for row in q]))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_attention_hides_nothing_that_is_not_finite(bench: Bench, broken: float, part: int) -> None:
    """A query that sees a broken key or value, however light, is not finite; one that does not is as ever."""
    rng = np.random.default_rng(part)
    parts = [rows(rng, 12, 8, "normal") for _ in range(3)]
    whole = attend(bench, (parts[0], parts[1], parts[2]), 1, 1, [(0, 12, 0, 0)], scale=0.3, causal=True)
    scales = [np.array([reference.quantise(row, 127)[1] for row in x], dtype=F) for x in parts]
    scales[part][7] = broken
    found = attend(bench, (parts[0], parts[1], parts[2]), 1, 1, [(0, 12, 0, 0)], scale=0.3, causal=True, scales=scales)
    same(found[:7], whole[:7])
    assert not np.isfinite(found[7]).any()
    assert part == 0 or not np.isfinite(found[8:]).any()


def test_a_window_over_many_tiles_of_keys(bench: Bench) -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rows(rng, 150, 4, "normal") for _ in range(3))
    for window, causal in ((40, True), (70, False)):
        found = attend(bench, (q, k, v), 1, 1, [(0, 150, 0, 0)], scale=0.5, causal=causal, window=window)
        for i in (0, 39, 40, 71, 100, 149):
            seen = slice(max(0, i + 1 - window), i + 1 if causal else i + window)
            same(found[i], reference.attention(q[i], k[seen], v[seen], 0.5))


def test_attention_over_the_most_keys(bench: Bench) -> None:
    """8192 keys, of which the last query sees all; equal keys weigh all alike."""
    rng = np.random.default_rng(1)
    q, k = rows(rng, 8192, 4, "normal"), rows(rng, 8192, 4, "normal")
    v = rows(rng, 8192, 4, "outlier")
    k[4000:] = k[0]
    found = attend(bench, (q, k, v), 1, 1, [(0, 4096, 0, 0), (4096, 4096, 0, 4096)], scale=0.5, causal=True)
    for i in (4096, 8191):
        same(found[i], reference.attention(q[i], k[: i + 1], v[: i + 1], 0.5))


def predict(bench: Bench, logits: reference.Floats, ids: Array, first: int) -> reference.Floats:
    y = np.empty(len(ids), dtype=F)
    bench.run(
        "gt_logprob",
        {"y": y},
        logits=logits,
        ids=ids,
        exp2=tables.exp2(),
        ln=tables.log(),
        rows=len(logits),
        vocabulary=logits.shape[1],
        first=first,
    )
    return y[first:]


@few
@given(seeds, st.integers(1, 3), st.sampled_from([1, 2, 17, 300]), st.floats(0.0, 40.0), st.booleans())
def test_logprob_of_any_vocabulary(
    bench: Bench, seed: int, count: int, vocabulary: int, spread: float, shifted: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((count, vocabulary)) * spread).astype(F)
    logits += F(shifted * 1000.0)
    ids = rng.integers(0, vocabulary, count + 16).astype(np.int32)
    found = predict(bench, logits, ids, 16)
    same(found, np.array([reference.logprob(logits[i], int(ids[16 + i])) for i in range(count)], dtype=F))
    assert (found <= 0).all()


@pytest.mark.parametrize("vocabulary", [4096, 4097, 50257])
def test_logprob_of_a_real_vocabulary(bench: Bench, vocabulary: int) -> None:
    """Longer than a chunk; all alike, the sum is the largest of its length."""
    rng = np.random.default_rng(vocabulary)
    logits = (rng.standard_normal((2, vocabulary)) * 3).astype(F)
    logits[1] = 0.25
    ids = np.array([7, vocabulary - 1], dtype=np.int32)
    found = predict(bench, logits, ids, 0)
    same(found, np.array([reference.logprob(logits[i], int(ids[i])) for i in range(2)], dtype=F))
    step = np.log(2) / 4096
    assert abs(found[1] + np.log(vocabulary)) < step / 2 + 1e-6


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 40])
def test_logprob_hides_nothing_that_is_not_finite(bench: Bench, broken: float, place: int) -> None:
    logits = np.random.default_rng(0).standard_normal((2, 50)).astype(F)
    logits[1, place] = broken
    found = predict(bench, logits, np.array([3, 3], dtype=np.int32), 0)
    assert np.isfinite(found[0])
    assert not np.isfinite(found[1])
