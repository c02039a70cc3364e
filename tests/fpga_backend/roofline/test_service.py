"""Seconds and joules by hand, from the constants of data sheets."""

import dataclasses
import math

import pytest

from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Batch, pack
from greentrain.fpga_backend.explore.space import PRESETS
from greentrain.fpga_backend.program import Linear, Program
from greentrain.fpga_backend.roofline.cards import LIMITS, U55C, CardSpec, assume
from greentrain.fpga_backend.roofline.counts import BatchLayout, OpCount, WorkCounts, count
from greentrain.fpga_backend.roofline.latency import peak_macs_per_s, serve, service
from greentrain.fpga_backend.roofline.shape import program_of
from greentrain.testing.offload_models import decoder, encoder
from greentrain.utils.quantities import SourcedNumber, SourceKind

ROUND = {
    "dsps": 1000.0,
    "macs8_per_dsp": 2.0,
    "macs16_per_dsp": 1.0,
    "dsp_share": 0.5,
    "clock_hz": 1e6,
    "array_efficiency": 0.5,
    "memory_bytes": 1e9,
    "memory_bytes_per_s": 1e6,
    "memory_efficiency": 0.5,
    "pcie_bytes_per_s": 1e3,
    "launch_s": 0.25,
    "idle_power_w": 10.0,
    "mac8_j": 1e-9,
    "mac16_j": 4e-9,
    "memory_j_per_byte": 1e-6,
    "pcie_j_per_byte": 1e-3,
    "tdp_w": 1000.0,
}
"""A card with which one can calculate in the head: 1e9 8-bit products a second at most, of which half."""


def _card(**changes: float) -> CardSpec:
    return CardSpec(name="round").with_(**{**ROUND, **changes})


def _counts(*ops: tuple[int, int, int, int], pcie: tuple[int, int] = (1000, 500)) -> WorkCounts:
    parts = tuple(
        OpCount(place=i, kind="x", launches=n, macs8=m8, macs16=m16, weight_bytes=b)
        for i, (n, m8, m16, b) in enumerate(ops)
    )
    return WorkCounts(ops=parts, tokens=100, pcie_in_bytes=pcie[0], pcie_out_bytes=pcie[1])


def test_each_operator_takes_the_longer_of_its_products_and_its_bytes() -> None:
    # 1e9 products at 5e8/s = 2 s beat 5e5 B at 5e5 B/s = 1 s; then 1.5e6 B = 3 s beat 2.5e8 wide ones at 2.5e8/s = 1 s
    found = serve(_counts((1, 10**9, 0, 500_000), (2, 0, 250_000_000, 1_500_000)), _card())
    assert found.parts_s == pytest.approx({"launch": 0.75, "pcie": 1.5, "compute": 2.0, "memory": 3.0, "power": 0.0})
    assert (found.in_s, found.engine_s, found.out_s) == pytest.approx((1.0, 5.75, 0.5))
    assert found.run_s == pytest.approx(7.25)
    assert found.parts_j == pytest.approx({"idle": 72.5, "products": 1.0 + 1.0, "memory": 2.0, "pcie": 1.5})
    assert found.energy_j == pytest.approx(78.0)
    assert found.bound == "memory"
    assert found.tokens_per_s == pytest.approx(100 / 7.25)


@pytest.mark.parametrize(
    ("counts", "bound"),
    [
        (_counts((1, 10**12, 0, 10)), "compute"),
        (_counts((1, 10, 0, 10**9)), "memory"),
        (_counts((1, 10, 0, 10), pcie=(10**6, 0)), "pcie"),
        (_counts((99, 10, 0, 10)), "launch"),
    ],
)
def test_what_bounds_it(counts: WorkCounts, bound: str) -> None:
    assert serve(counts, _card()).bound == bound


def test_above_its_tdp_a_card_slows_down_to_it() -> None:
    counts = _counts((0, 10**9, 0, 0), pcie=(0, 0))
    free = serve(counts, _card(mac8_j=100e-9))  # 100 J in 2 s: 60 W with idle
    held = serve(counts, _card(mac8_j=100e-9, tdp_w=30.0))
    assert free.power_w == pytest.approx(60.0)
    assert held.power_w == pytest.approx(30.0)
    assert held.run_s == pytest.approx(100 / (30 - 10))
    assert held.parts_s["power"] == pytest.approx(3.0)
    assert held.energy_j == pytest.approx(100 + 10 * 5)
    assert held.bound == "power"


def test_idle_power_above_the_tdp() -> None:
    with pytest.raises(ConfigError, match="idle_power_w is 10 W; it must be below tdp_w, 9 W"):
        serve(_counts((1, 1, 0, 1)), _card(tdp_w=9.0))


def test_joules_that_rest_on_assumptions() -> None:
    def known(card: CardSpec, *left: str) -> CardSpec:
        changes = {
            name: dataclasses.replace(card.constant(name), kind=SourceKind.MEASURED)
            for name in ROUND
            if name not in left
        }
        return card.with_(**changes)

    counts = _counts((1, 10**9, 0, 500_000))
    assert serve(counts, known(_card())).assumed_share == 0.0
    assert serve(counts, _card()).assumed_share == 1.0
    only = serve(counts, known(_card(), "mac8_j"))
    assert only.assumed_j == pytest.approx(only.parts_j["products"])
    slow = serve(counts, known(_card(), "clock_hz"))  # the time is assumed, so is the idle energy over it
    assert slow.assumed_j == pytest.approx(slow.parts_j["idle"])


def test_a_missing_constant_is_an_error_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"idle_power_w \(W\)"):
        service(encoder().program, BatchLayout.equal(1, 4), U55C)


# --- Llama-3-8B, calculated apart from the code --------------------------------------------------------------------


def _llama() -> Program:
    return program_of(PRESETS["llama-3-8b"][1], max_tokens=8192)


def test_a_batch_of_llama_3_8b_is_230_9_tera_operations() -> None:
    layers, d, kv, inner, tokens = 32, 4096, 1024, 14336, 512
    a_token = 2 * layers * (2 * d * d + 2 * d * kv + 3 * d * inner)
    attention = 32 * layers * 2 * 2 * d * tokens * (tokens + 1) // 2
    by_hand = 32 * tokens * a_token + attention
    found = 2 * count(_llama(), BatchLayout.equal(32, 512)).macs8
    assert found == by_hand
    assert found / 1e12 == pytest.approx(230.9, abs=0.05)


def test_a_sweep_over_its_weights_takes_15_2_ms() -> None:
    weights = sum(op.x.width * op.outputs for op in _llama().ops if isinstance(op, Linear))
    assert weights / 1e9 == pytest.approx(6.98, abs=0.005)
    assert weights / U55C.value("memory_bytes_per_s") == pytest.approx(15.2e-3, abs=0.05e-3)


def test_all_slices_of_a_u55c_take_25_6_s_for_that_batch() -> None:
    card = U55C.with_(
        dsps=LIMITS["dsps"],
        dsp_share=1.0,
        clock_hz=250e6,
        array_efficiency=1.0,
        idle_power_w=1.0,
        mac8_j=0.0,
        mac16_j=0.0,
        pcie_j_per_byte=0.0,
    )
    assert 2 * peak_macs_per_s(card) == pytest.approx(9.02e12, rel=1e-3)
    found = service(_llama(), BatchLayout.equal(32, 512), card)
    assert found.parts_s["compute"] == pytest.approx(25.6, abs=0.1)
    assert found.tokens_per_s < 640
    assert found.bound == "compute"


def test_a_packed_batch_in_another_precision() -> None:
    artifact = decoder()
    packed = pack(Batch.of([[1, 2, 3, 4], [5, 6]]), artifact.program)
    card = assume(U55C)
    own = service(artifact.program, packed, card)
    assert own.tokens == 6
    assert own == service(artifact.program, packed, card, "w8a8")
    wide = service(artifact.program, packed, card, "fp16")
    assert wide.parts_j["products"] > own.parts_j["products"]
    assert math.isclose(sum(own.parts_s.values()), own.run_s) and math.isclose(sum(own.parts_j.values()), own.energy_j)


def test_a_measured_constant_counts_as_known() -> None:
    card = assume(
        U55C.with_(idle_power_w=SourcedNumber(value=31.0, unit="W", source="our board", kind=SourceKind.MEASURED))
    )
    assert card.kind("idle_power_w") == "measured"
