"""Method mfu: the table, what shifts it, and what it says of classes that nobody ran on."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.errors import ConfigError
from greentrain.estimate import hardware
from greentrain.estimate.mfu import FP8_SPEEDUP, GAINS, OTHER, estimate_mfu, fp8_speedup, of_optimum, shipped, table
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.workload import Workload
from greentrain.types import Gear
from greentrain.utils.quantities import SourceKind

LLAMA_3_8B = ModelShape(
    name="llama-3-8b",
    layers=32,
    d_model=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    d_ff=14336,
    gated=True,
    vocabulary=128256,
)
MIXTURE = dataclasses.replace(LLAMA_3_8B, name="moe", experts=64, experts_per_token=4, d_expert=2048, expert_layers=32)
WORK = Workload(tokens=1e12)
H100 = hardware.find("H100-SXM")


def test_hours_are_six_n_active_d_over_what_devices_reach() -> None:
    found = estimate_mfu(LLAMA_3_8B, WORK, H100)
    assert found.flop == pytest.approx(6 * LLAMA_3_8B.active_parameters * 1e12)
    for hours, mfu in ((found.gpu_hours.low, found.mfu.high), (found.gpu_hours.high, found.mfu.low)):
        assert hours * 3600 * H100.peak_flop_s[Gear.BF16].value * mfu == pytest.approx(found.flop)
    assert 0.15 < found.mfu.mid < 0.35, "published H100 runs of dense models reach 14 to 38 %"
    assert found.mfu.high / found.mfu.low > 1.8, "an interval for unseen families is about x/÷ 1.5"
    assert not found.warnings
    assert {each.name for each in found.assumptions} == {"model FLOP", "peak, bf16", "MFU"}
    assert [each.kind for each in found.assumptions if each.name == "MFU"] == [SourceKind.FITTED]


def test_a_mixture_counts_active_parameters_and_reaches_less() -> None:
    dense, mixture = estimate_mfu(LLAMA_3_8B, WORK, H100), estimate_mfu(MIXTURE, WORK, H100)
    assert MIXTURE.total_parameters > 5 * MIXTURE.active_parameters
    assert mixture.flop == pytest.approx(6 * MIXTURE.active_parameters * WORK.tokens)
    assert mixture.mfu.mid < dense.mfu.mid


def test_newer_software_and_larger_models_reach_more_but_never_all() -> None:
    mfu = shipped().mfu
    assert mfu("a100", False, 1e10, 2022).mid < mfu("a100", False, 1e10, 2023).mid == mfu("a100", False, 1e10).mid
    assert mfu("a100", False, 1e9).mid < mfu("a100", False, 1e11).mid
    assert mfu("a100", False, 1e16) == mfu("a100", False, shipped().largest), "no shift beyond the runs"


@given(st.floats(1e6, 1e14), st.sampled_from(["a100", "h100", "tpu", "b200", "v100", "nobody's"]), st.booleans())
def test_any_class_and_size_gives_a_share_of_peak(active: float, family: str, is_moe: bool) -> None:
    found = shipped().mfu(family, is_moe, active)
    assert 0 < found.low < found.mid < found.high <= 1


def test_fp8_gains_less_than_its_peak_promises_and_widens_the_interval() -> None:
    bf16 = estimate_mfu(LLAMA_3_8B, WORK, H100)
    fp8 = estimate_mfu(LLAMA_3_8B, dataclasses.replace(WORK, precision=Gear.FP8), H100)
    assert bf16.gpu_hours.mid / fp8.gpu_hours.mid == pytest.approx(FP8_SPEEDUP.mid)
    assert fp8.gpu_hours.high / fp8.gpu_hours.low > bf16.gpu_hours.high / bf16.gpu_hours.low
    assert any("FP8" in each.name and each.kind is SourceKind.ASSUMED for each in fp8.assumptions)


def test_precision_that_a_device_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="A100-80GB has no FP8"):
        estimate_mfu(LLAMA_3_8B, dataclasses.replace(WORK, precision=Gear.FP8), hardware.find("A100-80GB"))
    with pytest.raises(ConfigError, match="TPUv4 has no peak for fp32; known: bf16"):
        estimate_mfu(LLAMA_3_8B, dataclasses.replace(WORK, precision=Gear.FP32), hardware.find("TPUv4"))


def test_a_class_without_runs_is_said_and_wider() -> None:
    b200 = estimate_mfu(LLAMA_3_8B, WORK, hardware.find("B200"))
    assert any("no published run" in text and "h100" in text for text in b200.warnings)
    h100 = estimate_mfu(LLAMA_3_8B, WORK, H100)
    assert b200.mfu.mid == pytest.approx(h100.mfu.mid)
    assert math.log(b200.mfu.high / b200.mfu.low) > 1.1 * math.log(h100.mfu.high / h100.mfu.low)
    v100 = estimate_mfu(LLAMA_3_8B, WORK, hardware.find("V100-32GB"))
    assert any("over all classes" in text for text in v100.warnings)


def test_a_model_beyond_the_runs_is_said() -> None:
    huge = dataclasses.replace(LLAMA_3_8B, published_active=5e12, published_total=5e12)
    assert any("outside the published runs" in text for text in estimate_mfu(huge, WORK, H100).warnings)


def test_real_hours_are_more_than_the_optimum_and_both_tables_know_the_same_classes() -> None:
    assert of_optimum().rows.keys() == shipped().rows.keys()
    for (family, is_moe), row in of_optimum().rows.items():
        assert row.mfu.low < row.mfu.mid < 1, "the optimum is a floor"
        assert row.mfu.mid > shipped().rows[family, is_moe].mfu.mid, "it takes more into account than the peak"


def test_a_table_without_its_keys_says_which() -> None:
    with pytest.raises(ConfigError, match="'class'"):
        table({})
    whole = {"made": "2026-11-22", "runs": 1, "families": 1, "per_decade": 1.0, "old_software": 1.0}
    only = {"a100": {"dense": {"mfu": [0.2, 0.3, 0.4], "runs": 1, "families": 1}}}
    with pytest.raises(ConfigError, match=OTHER):
        table({**whole, "smallest": 1.0, "largest": 1e12, "class": only})


def test_fp8_gains_nothing_where_its_peak_is_that_of_16_bit() -> None:
    device = hardware.find("TPUv5p")
    assert device.peak_flop_s[Gear.FP8].value == device.peak_flop_s[Gear.BF16].value
    wide, narrow = (
        estimate_mfu(LLAMA_3_8B, Workload(tokens=1e12, precision=gear), device) for gear in (Gear.BF16, Gear.FP8)
    )
    assert narrow.gpu_hours.mid == pytest.approx(wide.gpu_hours.mid)
    assert narrow.gpu_hours.low == pytest.approx(wide.gpu_hours.low)
    assert any("TPUv5p's peaks allow no more" in said.source for said in narrow.assumptions)
    assert fp8_speedup(hardware.find("H100-SXM")) == FP8_SPEEDUP


def test_mxfp8_and_nvfp4_gain_what_is_published_and_no_more() -> None:
    for gear, per_watt in ((Gear.MXFP8, 1.31), (Gear.NVFP4, 1.65)):
        gain, power, source = GAINS[gear]
        assert gain.mid / power == pytest.approx(per_watt, rel=1e-3) and f"{per_watt} x" in source
        assert source.startswith("published: github.com/pytorch/ao/pull/4798")
