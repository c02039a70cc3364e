"""Points, GPUs beside them, and which is called cheaper."""

import dataclasses

import pytest

from greentrain.errors import ConfigError
from greentrain.fpga_backend.explore.gpu import GpuRow, computed, gpu_named, measured
from greentrain.fpga_backend.explore.report import verdicts
from greentrain.fpga_backend.explore.space import PRESETS, DesignPoint, explore, most_sequences
from greentrain.fpga_backend.program import with_activation_bits
from greentrain.fpga_backend.roofline.cards import U55C, V80, assume
from greentrain.fpga_backend.roofline.counts import BatchLayout, footprint
from greentrain.fpga_backend.roofline.latency import service
from greentrain.fpga_backend.roofline.shape import program_of

LLAMA = program_of(PRESETS["llama-3-8b"][1], max_tokens=8192)
MINILM = program_of(PRESETS["minilm"][1])
CARD = assume(U55C)


def _one(batch: int, sequence: int, cards: int, precision: str = "int8", *, llama: bool = False) -> DesignPoint:
    (point,) = explore(
        LLAMA if llama else MINILM,
        cards=[CARD],
        precisions=[precision],
        batches=[batch],
        sequences=[sequence],
        numbers=[cards],
    )
    return point


def test_one_card_is_a_service() -> None:
    point = _one(8, 128, 1)
    found = service(MINILM, BatchLayout.equal(8, 128), CARD)
    assert point.tokens_per_s == pytest.approx(found.tokens_per_s)
    assert point.power_w == pytest.approx(found.power_w)
    assert point.j_per_token == pytest.approx(found.energy_j / (8 * 128))
    assert point.need_bytes == footprint(MINILM, BatchLayout.equal(8, 128)).total_bytes


def test_activations_of_16_bits_take_longer_and_no_other_weights() -> None:
    """Almost twice as long where products are the bound: attention stays in 8 bits."""
    eight, sixteen = (_one(32, 512, 1, name) for name in ("int8", "int8a16"))
    assert eight.bound == sixteen.bound == "compute"
    assert eight.tokens_per_s and sixteen.tokens_per_s and 1.6 < eight.tokens_per_s / sixteen.tokens_per_s < 2
    program = with_activation_bits(MINILM, 16)
    assert sixteen.tokens_per_s == pytest.approx(service(program, BatchLayout.equal(32, 512), CARD).tokens_per_s)
    (again,) = explore(program, cards=[CARD], precisions=["int8"], batches=[32], sequences=[512], numbers=[1])
    assert again == eight, "the name decides, not what a program was compiled to"


def test_cards_that_wait_for_the_others_draw_idle_power() -> None:
    """Five sequences on three cards: two, two and one."""
    point = _one(5, 128, 3)
    two, one = (service(MINILM, BatchLayout.equal(n, 128), CARD) for n in (2, 1))
    energy_j = 2 * two.energy_j + one.energy_j + CARD.value("idle_power_w") * (two.run_s - one.run_s)
    assert point.tokens_per_s == pytest.approx(5 * 128 / two.run_s)
    assert point.j_per_token == pytest.approx(energy_j / (5 * 128))


def test_a_card_without_work_draws_idle_power() -> None:
    point = _one(1, 128, 4)
    alone = service(MINILM, BatchLayout.equal(1, 128), CARD)
    idle_j = 3 * CARD.value("idle_power_w") * alone.run_s
    assert point.j_per_token == pytest.approx((alone.energy_j + idle_j) / 128)


def test_a_batch_without_room_runs_in_waves() -> None:
    point = _one(128, 512, 1, "fp16", llama=True)
    assert point.fits and 0 < point.wave < 128
    half = dataclasses.replace(LLAMA, precision="fp16")
    held = [footprint(half, BatchLayout.equal(n, 512)).total_bytes for n in (point.wave, point.wave + 1)]
    assert held[0] == point.need_bytes <= point.memory_bytes < held[1]
    full, rest = divmod(128, point.wave)
    run_s = full * service(half, BatchLayout.equal(point.wave, 512), CARD).run_s
    run_s += service(half, BatchLayout.equal(rest, 512), CARD).run_s if rest else 0.0
    assert point.tokens_per_s == pytest.approx(128 * 512 / run_s)


def test_as_many_sequences_as_fit() -> None:
    takes = [footprint(MINILM, BatchLayout.equal(n, 64)).total_bytes for n in range(1, 21)]
    for n, need_bytes in enumerate(takes, start=1):
        assert most_sequences(MINILM, 64, need_bytes, 20) == n
        assert most_sequences(MINILM, 64, need_bytes - 1, 20) == n - 1


def test_a_model_that_a_card_cannot_hold_does_not_run_on_two_either() -> None:
    deep = program_of({**PRESETS["llama-3-8b"][1], "num_hidden_layers": 48}, max_tokens=8192)
    for point in explore(deep, cards=[CARD], precisions=["fp16"], batches=[32], sequences=[512], numbers=[1, 2]):
        assert not point.fits and "one sequence needs" in point.reason and point.tokens_per_s is None
        assert point.need_bytes > point.memory_bytes


def test_a_sequence_longer_than_the_model_takes() -> None:
    point = _one(1, 513, 1)
    assert not point.fits and "512 tokens at most" in point.reason


def test_a_gpu_by_its_data_sheet_by_hand() -> None:
    """Llama-3-8B, 512 tokens: 14.09 GFLOP a token; 989.4 TFLOP/s at 40 % are 28,090 tokens/s and 40 tokens/J."""
    row = computed(gpu_named("h100"), LLAMA, 512, 0.4)
    assert row.tokens_per_s == pytest.approx(989.4e12 * 0.4 / 14.093e9, rel=1e-3)
    assert 1 / row.j_per_token == pytest.approx(40, abs=0.5)
    assert "40%" in row.how and "given" in row.how
    assert "assumed" in computed(gpu_named("A100"), LLAMA, 512).how
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match="--mfu"):
            computed(gpu_named("H100"), LLAMA, 512, share)
    with pytest.raises(ConfigError, match="H100, A100"):
        gpu_named("B200")


def test_the_cheaper_one_is_named_whichever_it_is() -> None:
    points = (_one(32, 128, 1), _one(32, 512, 1))
    cheap = measured("mine", 128, 1e9, 100.0)
    dear = measured("mine", 512, 10.0, 100.0)
    first, second = verdicts(points, [cheap, dear])
    assert first.startswith("128 tokens: the GPU is cheaper.") and "1e-07 J a token" in first
    assert "the model has 1 x U55C, int8, batch 32" in second and "measure both" in second
    assert verdicts(points, []) == ()


def test_where_nothing_fits_the_gpu_is_recommended() -> None:
    lost = dataclasses.replace(_one(1, 513, 1), sequence=128)
    assert verdicts([lost], [GpuRow(name="g", sequence=128, tokens_per_s=1.0, power_w=1.0, how="x")]) == (
        "128 tokens: nothing fits on these cards; use the GPU.",
    )


def test_both_cards_and_the_measured_flips() -> None:
    points = explore(
        MINILM,
        cards=[CARD, assume(V80)],
        precisions=["int8", "fp16"],
        batches=[1],
        sequences=[64],
        numbers=[1],
        flip_rates={"int8": 0.015},
    )
    assert [(p.card, p.precision, p.flip_rate) for p in points] == [
        ("U55C", "int8", 0.015),
        ("U55C", "fp16", None),
        ("V80", "int8", 0.015),
        ("V80", "fp16", None),
    ]
