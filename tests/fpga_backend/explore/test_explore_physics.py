"""Nothing that the model prints is beyond what the hardware has."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from greentrain.fpga_backend.explore.space import PRECISIONS, compiled_to, explore
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.roofline.cards import CARDS, CardSpec, assume
from greentrain.fpga_backend.roofline.counts import BatchLayout, count
from greentrain.fpga_backend.roofline.latency import peak_macs_per_s
from greentrain.fpga_backend.roofline.shape import Head, program_of

CARD = st.sampled_from([assume(card) for card in CARDS.values()])
PRECISION = st.sampled_from(sorted(PRECISIONS))


@st.composite
def programs(draw: Any) -> Program:
    heads = draw(st.integers(1, 8))
    kv_heads = draw(st.sampled_from([h for h in range(1, heads + 1) if heads % h == 0]))
    kind = draw(st.sampled_from(["bert", "llama", "qwen2"]))
    config = {
        "model_type": kind,
        "vocab_size": draw(st.integers(2, 50_000)),
        "hidden_size": heads * 16 * draw(st.integers(1, 16)),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kind == "bert" else kv_heads,
        "intermediate_size": draw(st.integers(1, 64)) * 64,
        "max_position_embeddings": 4096,
        "type_vocab_size": 2,
    }
    head: Head = "score" if kind == "bert" else draw(st.sampled_from(["score", "logprob"]))
    return program_of(config, head=head)


@given(programs(), CARD, PRECISION, st.integers(1, 64), st.integers(1, 1024), st.integers(1, 4))
@settings(max_examples=60)
def test_every_point_is_below_the_roof_and_above_the_floor(
    program: Program, card: CardSpec, precision: str, batch: int, sequence: int, cards: int
) -> None:
    (point,) = explore(
        program, cards=[card], precisions=[precision], batches=[batch], sequences=[sequence], numbers=[cards]
    )
    if point.tokens_per_s is None or point.power_w is None or point.j_per_token is None:
        assert not point.fits and point.reason
        return
    compiled = compiled_to(program, precision)
    counts = count(compiled, BatchLayout.equal(batch, sequence))
    tokens = batch * sequence
    least_s = (counts.macs8 / peak_macs_per_s(card, 8) + counts.macs16 / peak_macs_per_s(card, 16)) / cards
    assert tokens / point.tokens_per_s >= least_s
    link_s = (counts.pcie_in_bytes + counts.pcie_out_bytes) / card.value("pcie_bytes_per_s") / cards
    assert tokens / point.tokens_per_s >= link_s * (1 - 1e-9)
    run_s = tokens / point.tokens_per_s
    least_j = cards * card.value("idle_power_w") * run_s + (
        counts.macs8 * card.value("mac8_j") + counts.macs16 * card.value("mac16_j")
    )
    assert point.j_per_token * tokens >= least_j * (1 - 1e-9)
    assert cards * card.value("idle_power_w") <= point.power_w <= cards * card.value("tdp_w") * (1 + 1e-9)
    assert 0 <= (point.assumed_share or 0) <= 1


@given(programs(), CARD, PRECISION, st.integers(1, 64), st.integers(1, 512))
@settings(max_examples=40)
def test_more_cards_are_never_slower(
    program: Program, card: CardSpec, precision: str, batch: int, sequence: int
) -> None:
    points = explore(
        program, cards=[card], precisions=[precision], batches=[batch], sequences=[sequence], numbers=[1, 2, 3, 4, 8]
    )
    speeds = [point.tokens_per_s or 0.0 for point in points]
    assert speeds == sorted(speeds)


@given(programs(), CARD, PRECISION, st.integers(1, 32), st.integers(1, 256), st.floats(1.0, 4.0))
@settings(max_examples=40)
def test_a_better_card_is_never_slower(
    program: Program, card: CardSpec, precision: str, batch: int, sequence: int, factor: float
) -> None:
    for name in ("clock_hz", "memory_bytes_per_s", "pcie_bytes_per_s", "tdp_w", "dsps"):
        better = card.with_(**{name: card.value(name) * factor})
        before, after = explore(
            program, cards=[card, better], precisions=[precision], batches=[batch], sequences=[sequence], numbers=[1]
        )
        assert (after.tokens_per_s or 0.0) >= (before.tokens_per_s or 0.0) * (1 - 1e-9), name


@given(programs(), CARD, st.integers(1, 64), st.integers(1, 256))
@settings(max_examples=40)
def test_a_longer_batch_takes_longer_and_more_joules(
    program: Program, card: CardSpec, batch: int, sequence: int
) -> None:
    short, long = explore(
        program,
        cards=[card],
        precisions=["int8"],
        batches=[batch, batch + 1],
        sequences=[sequence],
        numbers=[1],
    )
    if short.tokens_per_s and long.tokens_per_s and short.power_w and long.power_w:
        seconds = [p.batch * p.sequence / (p.tokens_per_s or 1.0) for p in (short, long)]
        assert seconds[1] > seconds[0]
        assert seconds[1] * long.power_w > seconds[0] * short.power_w
