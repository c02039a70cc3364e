"""Methods blend and auto: the middle of table and search, and which of them is taken where nobody says."""

import dataclasses
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.errors import ConfigError
from greentrain.estimate import hardware, hours, shapes
from greentrain.estimate import hours as blend
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hours import by_auto
from greentrain.estimate.mfu import MfuTable, estimate_mfu, of_optimum, shipped
from greentrain.estimate.model_shape import sized
from greentrain.estimate.search import search
from greentrain.estimate.values import Range
from greentrain.estimate.workload import Workload
from greentrain.types import S_PER_HOUR, Gear
from greentrain.utils.quantities import SourceKind

LLAMA = shapes.find("llama-3-8b")
LARGE = shapes.find("llama-3.1-405b")
MIXTURE = shapes.find("deepseek-v3")
WORK = Workload(tokens=1e12)
H100 = hardware.find("H100-SXM")
HERE = Cluster(device="H100-SXM", count=64, g_per_kwh=50.0)


def test_the_blend_is_the_geometric_mean_of_the_table_and_the_search() -> None:
    found, table, roofline = (by(LLAMA, WORK, HERE, H100) for by in (hours.by_blend, hours.by_mfu, hours.by_roofline))
    assert found.gpu_hours.mid == pytest.approx(math.sqrt(table.gpu_hours.mid * roofline.gpu_hours.mid))
    optimum = search(LLAMA, WORK, H100, 64)
    share = of_optimum().mfu("h100", False, LLAMA.active_parameters)
    assert roofline.gpu_hours.mid == pytest.approx(optimum.gpu_hours / share.mid)
    assert (found.layout, found.memory_bytes, found.count) == (optimum.layout, optimum.memory_bytes, 64)
    peak = H100.peak_flop_s[Gear.BF16].value
    assert found.mfu == pytest.approx(6 * LLAMA.active_parameters * 1e12 / (found.gpu_hours.mid * S_PER_HOUR * peak))


def test_its_bounds_are_the_tables_widened_by_what_was_found_on_families_left_out() -> None:
    width = blend.shipped().width
    assert 0.5 < width < 1.5
    for device in (H100, hardware.find("B200")):
        found, table = hours.by_blend(LLAMA, WORK, HERE, device), hours.by_mfu(LLAMA, WORK, HERE, device)
        for end in ("low", "high"):
            ratio = getattr(found.gpu_hours, end) / found.gpu_hours.mid
            assert math.log(ratio) == pytest.approx(
                width * math.log(getattr(table.gpu_hours, end) / table.gpu_hours.mid)
            )
    b200 = hours.by_blend(LLAMA, WORK, HERE, hardware.find("B200")).gpu_hours
    h100 = hours.by_blend(LLAMA, WORK, HERE, H100).gpu_hours
    assert b200.high / b200.low > h100.high / h100.low, "a class without runs is wider"


@given(st.floats(1.0, 1e9), st.floats(1.0, 1e9), st.floats(0.05, 1.0), st.floats(0.1, 3.0))
def test_the_middle_lies_between_its_parts_and_inside_its_bounds(
    table_h: float, optimum_h: float, share: float, width: float
) -> None:
    of = blend.Blend(peak=shipped(), optimum=of_optimum(), width=width)
    found = of.hours(Range(low=table_h / 1.5, mid=table_h, high=table_h * 2.0), optimum_h, share)
    both = sorted((table_h, optimum_h / share))
    assert both[0] * (1 - 1e-9) <= found.mid <= both[1] * (1 + 1e-9)
    assert found.low < found.mid < found.high


def test_every_part_of_it_is_said() -> None:
    kinds = {each.name: each.kind for each in hours.by_blend(LLAMA, WORK, HERE, H100).assumptions}
    fitted = ("blend", "MFU", "modelled optimum", "real runs over the modelled optimum")
    assert all(kinds[name] is SourceKind.FITTED for name in fitted)
    assert kinds["roofline.kernels"] is SourceKind.ASSUMED and "roofline.routing" not in kinds
    mixture = hours.by_blend(MIXTURE, WORK, dataclasses.replace(HERE, count=1024), H100)
    routing = [each for each in mixture.assumptions if each.name == "roofline.routing"]
    assert [(each.kind, "256 experts" in each.value, bool(each.source)) for each in routing] == [
        (SourceKind.ASSUMED, True, True)
    ]


@pytest.mark.parametrize("by", [hours.by_blend, hours.by_roofline], ids=["blend", "roofline"])
def test_a_limit_is_kept_by_the_hours_that_real_runs_take(by: Callable[..., hours.Hours]) -> None:
    limit = dataclasses.replace(HERE, count=None, limit_h=500.0)
    found = by(LLAMA, WORK, limit, H100)
    assert found.gpu_hours.mid / found.count <= 500.0
    fewer = by(LLAMA, WORK, dataclasses.replace(HERE, count=found.count - 8), H100)
    assert fewer.gpu_hours.mid / fewer.count > 500.0
    assert found.gpu_hours == by(LLAMA, WORK, dataclasses.replace(HERE, count=found.count), H100).gpu_hours
    assert any("one run in ten" in warning for warning in found.warnings)


def test_older_software_takes_longer_by_both_parts() -> None:
    for by in (hours.by_blend, hours.by_roofline):
        now, then = by(LLAMA, WORK, HERE, H100), by(LLAMA, WORK, HERE, H100, year=2021)
        assert then.gpu_hours.mid > 1.2 * now.gpu_hours.mid


def test_who_names_a_method_gets_it_or_an_error() -> None:
    for by in (hours.by_blend, hours.by_roofline):
        with pytest.raises(ConfigError, match="only the size is known"):
            by(sized(8e9), WORK, HERE, H100)
        with pytest.raises(ConfigError, match="largest term"):
            by(LARGE, WORK, dataclasses.replace(HERE, count=1), H100)
        with pytest.raises(ConfigError, match="no way to split"):
            by(LLAMA, WORK, dataclasses.replace(HERE, count=10_007), H100)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shape": sized(8e9)}, "only the size is known"),
        ({"shape": LARGE, "cluster": dataclasses.replace(HERE, count=1)}, "largest term is optimizer"),
        ({"cluster": dataclasses.replace(HERE, count=10_007)}, "no way to split"),
        ({"cluster": dataclasses.replace(HERE, count=None, limit_h=1.0)}, "within 1 h; the quickest takes"),
        ({"device": hardware.find("MI300X")}, "what amd reaches"),
    ],
)
def test_auto_falls_back_to_the_table_and_says_why(changes: dict[str, object], says: str) -> None:
    given: dict[str, object] = {"shape": LLAMA, "workload": WORK, "cluster": HERE, "device": H100, **changes}
    found = by_auto(**given)  # type: ignore[arg-type]
    assert found.method == "mfu" and found.layout is None
    assert "mfu and not blend" in found.warnings[0] and says in found.warnings[0]
    assert (found.assumptions[0].name, found.assumptions[0].value) == ("method", "mfu")
    table = hours.by_mfu(**given)  # type: ignore[arg-type]
    assert found.gpu_hours == table.gpu_hours and set(table.warnings) < set(found.warnings)


def test_auto_takes_the_blend_and_passes_on_what_no_method_can_do() -> None:
    found = by_auto(LLAMA, WORK, HERE, H100)
    assert (found.method, found.gpu_hours) == ("blend", hours.by_blend(LLAMA, WORK, HERE, H100).gpu_hours)
    assert (found.assumptions[0].name, found.assumptions[0].value) == ("method", "blend")
    with pytest.raises(ConfigError, match="A100-80GB has no FP8"):
        by_auto(LLAMA, dataclasses.replace(WORK, precision=Gear.FP8), HERE, hardware.find("A100-80GB"))


def test_a_default_batch_that_starves_a_large_cluster_does_not_decide() -> None:
    many = dataclasses.replace(HERE, count=16_384)
    found = by_auto(LARGE, WORK, many, H100)
    assert found.method == "mfu" and "--batch" in found.warnings[0]
    given = Workload(tokens=1e12, sequence=8192, batch_tokens=16e6)
    assert by_auto(LARGE, given, many, H100).method == by_auto(LLAMA, WORK, HERE, H100).method == "blend"
    assert hours.by_blend(LARGE, WORK, many, H100).gpu_hours.mid > 1.2 * found.gpu_hours.mid, "who names it gets it"


def test_a_blend_without_its_width_says_how_to_make_it() -> None:
    with pytest.raises(ConfigError, match=r"'width'.*--write"):
        blend.width({"made": "2026-11-22"})


def test_it_learns_from_the_tables_that_it_is_given() -> None:
    def doubled(table: MfuTable) -> MfuTable:
        rows = {key: dataclasses.replace(row, mfu=row.mfu.times(0.5)) for key, row in table.rows.items()}
        return dataclasses.replace(table, rows=rows)

    of = dataclasses.replace(blend.shipped(), peak=doubled(shipped()), optimum=doubled(of_optimum()))
    twice, once = hours.by_blend(LLAMA, WORK, HERE, H100, of=of), hours.by_blend(LLAMA, WORK, HERE, H100)
    assert twice.gpu_hours.mid == pytest.approx(2 * once.gpu_hours.mid)
    assert estimate_mfu(LLAMA, WORK, H100, of=of.peak).gpu_hours.mid == pytest.approx(
        2 * hours.by_mfu(LLAMA, WORK, HERE, H100).gpu_hours.mid
    )


def test_a_batch_of_which_twice_as_much_does_not_fit_is_no_error() -> None:
    shape, device = shapes.find("llama-2-13b"), hardware.find("A100-80GB")
    cluster = Cluster(device="A100-80GB", count=64, zone="FRA")
    long = Workload(tokens=1e11, sequence=2**20)
    with pytest.raises(ConfigError, match="The largest term is activations"):
        hours.by_blend(shape, dataclasses.replace(long, batch_tokens=8e6), cluster, device)
    assert by_auto(shape, long, cluster, device).method == "blend"
