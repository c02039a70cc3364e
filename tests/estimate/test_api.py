import dataclasses
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from greentrain.errors import ConfigError, RunFolderError
from greentrain.estimate import shapes
from greentrain.estimate.api import Options, estimate
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.mfu import of_optimum
from greentrain.estimate.model_shape import sized
from greentrain.estimate.result import Estimate, render_html
from greentrain.estimate.workload import Workload
from greentrain.report.estimated import _Said
from greentrain.types import Gear
from greentrain.utils.quantities import SourceKind

LLAMA = shapes.find("llama-3-8b")
WORK = Workload(tokens=15e12)
CISO = Cluster(device="h100", count=1024, zone="US-CAL-CISO")


@pytest.fixture(scope="module")
def found() -> Estimate:
    return estimate(LLAMA, WORK, CISO)


def test_a_published_run_lies_within_the_bounds() -> None:
    cluster = Cluster(device="A100-80GB", count=1024, zone="US-CAL-CISO")
    said = estimate(shapes.find("llama-2-70b"), Workload(tokens=2e12), cluster).gpu_hours
    assert said.low < 1_720_320 < said.high  # Meta's card of Llama 2, a family of the table


def test_hours_carry_energy_and_grams(found: Estimate) -> None:
    assert found.duration_h.mid == pytest.approx(found.gpu_hours.mid / 1024)
    assert found.energy_kwh.mid == pytest.approx(found.gpu_hours.mid * found.node_w.mid * 1.1 / 1000)
    assert found.operational.location_g.mid == pytest.approx(found.energy_kwh.mid * 256.2)
    total = found.total_g
    assert total is not None and found.embodied_g is not None
    assert total.mid == pytest.approx(found.operational.location_g.mid + found.embodied_g.mid)


def test_independent_factors_widen_less_than_bound_by_bound(found: Estimate) -> None:
    hours, grams = found.gpu_hours, found.operational.location_g
    assert hours.high / hours.mid < grams.high / grams.mid
    assert grams.high / grams.mid < hours.high / hours.mid * 1.2 * 1.2 * 1.09  # watts, intensity and PUE at their worst


def test_it_is_a_document_that_json_carries(found: Estimate) -> None:
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["gpu_hours"].keys() == {"low", "mid", "high"}
    assert told["operational_g"]["market"] is None and told["layout"] is None
    assert told["inputs"]["device"] == "H100-SXM"
    assert all(said["source"] and said["kind"] for said in told["assumptions"])


def test_who_gives_the_batch_gets_the_blend_and_its_layout() -> None:
    blended = estimate(LLAMA, dataclasses.replace(WORK, batch_tokens=8e6), CISO)
    told = json.loads(json.dumps(blended.to_dict(), allow_nan=False))
    layout = told["layout"]
    assert told["method"] == "blend" and layout["data"] * layout["tensor"] * layout["pipeline"] == 1024
    assert "neither of its parts has seen" in render_html(blended)
    assert {each.name for each in blended.assumptions} >= {"method", "blend", "MFU", "modelled optimum"}
    assert blended.duration_h.mid == pytest.approx(blended.gpu_hours.mid / 1024)


def test_every_default_is_an_assumption(found: Estimate) -> None:
    said = {each.name: each.kind for each in found.assumptions}
    for name in (
        "sequence",
        "batch tokens",
        "precision",
        "PUE",
        "lifetime",
        "price of a kWh",
        "price of a device-hour",
    ):
        assert said[name] is SourceKind.ASSUMED, name
    told = estimate(
        LLAMA,
        Workload(tokens=1e12, sequence=8192, batch_tokens=2e6, precision=Gear.FP16),
        dataclasses.replace(CISO, pue=1.3),
    )
    kinds = {each.name: each.kind for each in told.assumptions}
    assert not {"sequence", "batch tokens", "precision"} & kinds.keys() and kinds["PUE"] is SourceKind.GIVEN


def test_relations_have_two_digits_and_a_basis_and_follow_from_estimates(found: Estimate) -> None:
    by_name = {relation.name: relation for relation in found.relations}
    assert by_name["CA-QC"].times < 0.2 < by_name["FRA"].times < 1 < by_name["IND"].times
    assert by_name["B200"].times < 1 and "no published run" in by_name["B200"].basis
    assert all(float(f"{each.times:.2g}") == each.times and each.basis for each in found.relations)
    bf16, fp8 = (
        estimate(LLAMA, dataclasses.replace(WORK, precision=gear), CISO, method="mfu") for gear in (Gear.BF16, Gear.FP8)
    )
    assert fp8.total_g is not None and bf16.total_g is not None
    assert by_name["FP8"].times == float(f"{fp8.total_g.mid / bf16.total_g.mid:.2g}"), "ratios are the table's"
    assert "FP8" not in {relation.name for relation in fp8.relations}
    assert not {"start"} & {relation.what for relation in found.relations}  # weeks see all hours alike


def test_a_short_run_is_told_when_to_begin() -> None:
    short = estimate(LLAMA, Workload(tokens=1e9), dataclasses.replace(CISO, count=64))
    best, worst = (relation.times for relation in short.relations if relation.what == "start")
    assert best < 1 < worst
    at_night = estimate(
        LLAMA,
        Workload(tokens=1e9),
        dataclasses.replace(CISO, count=64),
        options=Options(start=datetime(2026, 4, 1, 5, tzinfo=UTC)),
    )
    assert at_night.operational.location_g.mid > short.operational.location_g.mid


def test_more_devices_never_lengthen_and_a_limit_takes_enough_of_them() -> None:
    durations = [estimate(LLAMA, WORK, dataclasses.replace(CISO, count=n)).duration_h.mid for n in (8, 64, 512)]
    assert durations == sorted(durations, reverse=True)
    limited = estimate(LLAMA, WORK, dataclasses.replace(CISO, count=None, limit_h=500.0))
    assert limited.duration_h.mid <= 500.0
    assert estimate(LLAMA, WORK, dataclasses.replace(CISO, count=limited.count - 16)).duration_h.mid > 500.0
    assert any("one run in ten" in warning for warning in limited.warnings)


def test_the_roofline_names_a_layout_and_what_fills_the_memory() -> None:
    best = estimate(LLAMA, WORK, dataclasses.replace(CISO, count=64), method="roofline")
    assert best.layout is not None and best.layout.count == 64 and best.memory_bytes
    share = of_optimum().mfu("h100", False, LLAMA.active_parameters)
    assert best.gpu_hours.high / best.gpu_hours.low == pytest.approx(share.high / share.low)
    assert "tp=" in render_html(best)
    with pytest.raises(ConfigError):
        estimate(shapes.find("llama-3.1-405b"), WORK, dataclasses.replace(CISO, count=1), method="roofline")


def test_what_is_not_known_stays_unknown() -> None:
    found = estimate(LLAMA, WORK, dataclasses.replace(CISO, device="MI300X", zone="", g_per_kwh=50.0))
    assert found.embodied_g is None and found.total_g is None and found.money.rent is None
    assert not any(score.complete for score in found.sci)
    assert all("operational alone" in each.basis for each in found.relations if each.what == "device")
    assert "unknown" in render_html(found)


def test_total_and_active_parameters_are_kept_apart() -> None:
    dense, sparse = (estimate(sized(1e12, active), WORK, CISO) for active in (None, 5e10))
    assert dense.gpu_hours.mid > 10 * sparse.gpu_hours.mid
    assert dense.to_dict()["inputs"]["parameters_total"] == sparse.to_dict()["inputs"]["parameters_total"] == 1e12


def test_the_page_is_escaped_and_asks_no_network() -> None:
    page = render_html(estimate(dataclasses.replace(LLAMA, name="<script>alert(1)</script>"), WORK, CISO))
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "default-src 'none'" in page and "http://" not in page.replace("http://www.w3.org", "")


def test_the_table_shows_every_assumption_with_its_source(found: Estimate) -> None:
    told = io.StringIO()
    Console(width=400, file=told).print(found)
    text = told.getvalue()
    assert all(said.name in text and said.source[:40] in text for said in found.assumptions)


def test_a_method_and_its_pilot_go_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pilot"):
        estimate(LLAMA, WORK, CISO, method="pilot")
    with pytest.raises(ConfigError, match="Did you mean 'roofline'"):
        estimate(LLAMA, WORK, CISO, method="rofline")
    for method in ("mfu", "blend", "roofline"):
        with pytest.raises(ConfigError, match="goes with method='pilot'"):
            estimate(LLAMA, WORK, CISO, method=method, pilot=tmp_path)
    with pytest.raises(RunFolderError, match=str(tmp_path)):  # auto reads a pilot where it is given one
        estimate(LLAMA, WORK, CISO, pilot=tmp_path)


def test_a_start_without_a_time_zone_is_refused_and_not_taken_for_this_machines() -> None:
    with pytest.raises(ConfigError, match="start is 2026-12-01T22:00:00, without a time zone"):
        Options(start=datetime(2026, 12, 1, 22))


def test_parts_of_a_device_or_of_a_token_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"count is 2\.5; it must be a whole number"):
        Cluster(device="h100", count=2.5, zone="FRA")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"sequence is 4096\.5; it must be a whole number"):
        Workload(tokens=1e9, sequence=4096.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "precision", "says"),
    [
        ("V100-32GB", Gear.BF16, "V100-32GB has no bf16: the peak in fp16 is taken"),
        ("TPUv4", Gear.FP16, "TPUv4 has no fp16: the peak in bf16 is taken"),
        ("H100-SXM", Gear.FP32, "the published runs are in 16 bit"),
        ("H100-SXM", Gear.BF16, ""),
        ("TPUv4", Gear.BF16, ""),
    ],
)
def test_a_precision_that_another_one_stands_in_for_is_said(device: str, precision: Gear, says: str) -> None:
    work = Workload(tokens=1e12, precision=precision)
    warnings = estimate(LLAMA, work, Cluster(device=device, count=256, zone="FRA")).warnings
    told = [warning for warning in warnings if "has no" in warning or "16 bit" in warning]
    assert told == [] if not says else len(told) == 1 and says in told[0]


@pytest.mark.parametrize("method", ["mfu", "blend", "roofline"])
def test_in_fp8_every_method_tells_the_mfu_that_its_hours_come_to_at_the_watts_of_16_bit(method: str) -> None:
    one = Cluster(device="h100", count=64, zone="FRA")
    fp8 = estimate(LLAMA, Workload(tokens=1e11, precision=Gear.FP8), one, method=method)
    flop = 6 * LLAMA.active_parameters * 1e11
    assert fp8.mfu == pytest.approx(flop / (fp8.gpu_hours.mid * 3600 * 989.4e12))
    bf16 = estimate(LLAMA, Workload(tokens=1e11), one, method=method)
    assert fp8.node_w.mid == pytest.approx(bf16.node_w.mid, rel=0.02)


def test_another_spelling_of_the_place_is_no_relation() -> None:
    cluster = Cluster(device="h100", count=64, zone="FR")
    names = [relation.name for relation in estimate(LLAMA, WORK, cluster, method="mfu").relations]
    assert "DEU" in names and "FRA" not in names


def test_a_relation_says_nothing_of_the_limit_of_another_device() -> None:
    limited = Cluster(device="h200", limit_h=720.0, zone="FRA")
    found = estimate(LLAMA, WORK, limited, method="mfu")
    late = [warning for warning in found.warnings if "one run in ten" in warning]
    assert len(late) == 1 and re.search(r"takes \d+ h$", late[0])
    assert not any("one run in ten" in relation.basis for relation in found.relations)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.floats(1e6, 1e14),
    count=st.integers(1, 20_000),
    device=st.sampled_from(["h100", "TPUv5p", "V100-32GB", "MI300X"]),
    name=st.sampled_from(["llama-3-8b", "mixtral-8x7b"]),
    g_per_kwh=st.floats(0.0, 1000.0),
)
def test_units_round_trip(tokens: float, count: int, device: str, name: str, g_per_kwh: float) -> None:
    cluster = Cluster(device=device, count=count, g_per_kwh=g_per_kwh)
    none = Options(compare_devices=(), compare_zones=())
    found = estimate(shapes.find(name), Workload(tokens=tokens), cluster, method="mfu", options=none)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    said = _Said.of(told)  # as the report reads it: seconds, joules, grams
    for bound in ("low", "mid", "high"):
        assert said.figures["duration_s"][bound] * count == pytest.approx(told["gpu_hours"][bound] * 3600)
        assert said.figures["operational_g"][bound] == told["operational_g"]["location"][bound]
    watts = said.figures["energy_j"]["mid"] / said.figures["duration_s"]["mid"]
    assert watts == pytest.approx(told["node_w"]["mid"] * count)
    assert told["energy_kwh"]["facility"]["mid"] * g_per_kwh == pytest.approx(told["operational_g"]["location"]["mid"])
    all_g = told["operational_g"]["location"]["mid"] + (told["embodied_g"] or {"mid": 0.0})["mid"]
    for score in told["sci"]:
        assert score["g_per_unit"]["mid"] * score["units"] == pytest.approx(all_g)
    flop = 6 * found.shape.active_parameters * tokens
    assert told["gpu_hours"]["mid"] * 3600 * found.mfu * _peak(found) == pytest.approx(flop)
    more = dataclasses.replace(cluster, count=count + 1)
    again = estimate(shapes.find(name), Workload(tokens=tokens), more, method="mfu", options=none)
    assert again.duration_h.mid < found.duration_h.mid


def _peak(found: Estimate) -> float:
    peaks = found.device.peak_flop_s
    return (peaks.get(Gear.BF16) or peaks[Gear.FP16]).value


def test_block_formats_of_a_b200_have_the_published_watts_and_rows_and_an_h100_refuses_them() -> None:
    from greentrain.estimate.result import action_rows

    there = dataclasses.replace(CISO, device="B200")
    found = {
        gear: estimate(LLAMA, dataclasses.replace(WORK, precision=gear), there, method="mfu")
        for gear in (Gear.BF16, Gear.NVFP4, Gear.MXFP8)
    }
    used_j = {gear: one.duration_h.mid * one.node_w.mid for gear, one in found.items()}
    assert used_j[Gear.BF16] / used_j[Gear.NVFP4] == pytest.approx(1.65, rel=2e-3)
    assert used_j[Gear.BF16] / used_j[Gear.MXFP8] == pytest.approx(1.31, rel=2e-3)
    for of in (Gear.BF16, Gear.NVFP4):
        rows = {row["gear"]: row["power_w"] / row["tokens_per_s"] for row in action_rows(found[of])}
        assert rows["bf16"] / rows["nvfp4"] == pytest.approx(1.65, rel=2e-3)
    assert any("github.com/pytorch/ao/pull/4798" in each.source for each in found[Gear.NVFP4].assumptions)
    with pytest.raises(ConfigError, match=r"H100.* has no NVFP4: choose bf16"):
        estimate(LLAMA, dataclasses.replace(WORK, precision=Gear.NVFP4), CISO, method="mfu")
