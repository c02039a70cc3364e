import csv
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.estimator_runs import RUNS_CSV
from greentrain.config.schema import CarbonConfig
from greentrain.errors import ConfigError, UnknownZoneError
from greentrain.estimate import hardware
from greentrain.estimate.carbon import FABS, embodied_hour, intensity, operational, sci_ranges, signal_of
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.mfu import estimate_mfu
from greentrain.estimate.model_shape import sized
from greentrain.estimate.money import RunPrices, money
from greentrain.estimate.power_model import watts
from greentrain.estimate.relations import start_hours
from greentrain.estimate.values import Range, product
from greentrain.estimate.workload import Workload
from greentrain.ledger.embodied import embodied_rate
from greentrain.types import J_PER_KWH, Device, DeviceKind, grams
from greentrain.utils.quantities import SourceKind

H100 = hardware.find("H100-SXM")
ONE = Range.exactly(1.0)


def _bounds(found: Range | None) -> tuple[float, float, float]:
    assert found is not None
    return found.low, found.mid, found.high


def _cluster(**keys: object) -> Cluster:
    return Cluster(**{"device": "H100-SXM", "count": 8, "g_per_kwh": 100.0, **keys})  # type: ignore[arg-type]


def _trace(path: Path, values: list[float]) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["timestamp_utc", "g_per_kwh"])
        rows.writerows([f"2026-01-{1 + i // 24:02d}T{i % 24:02d}:00Z", g] for i, g in enumerate(values))
    return path


def test_power_hardly_follows_utilisation() -> None:
    busy, less = (watts(H100, mfu).device_w for mfu in (0.45, 0.45 * (1 - 0.3722)))
    assert busy is not None and less is not None
    assert less.mid / busy.mid == pytest.approx(1 - 0.0587, abs=0.01)  # Fernandez et al., 2024


def test_power_reproduces_what_was_metered() -> None:
    h100 = watts(H100, 0.3).node_w
    assert h100.low < 909 < h100.high  # Granite 3.0, W a GPU-hour
    assert watts(H100, 1.0).node_w.high <= 700 + 0.55 * 700
    assert watts(hardware.find("TPUv4"), 0.5).node_w.high == 378.5
    assert watts(hardware.find("V100"), 0.2).assumptions[0].kind is SourceKind.MEASURED


@pytest.mark.parametrize("name", list(hardware.known()))
def test_every_device_has_watts_between_idle_and_a_heavy_server(name: str) -> None:
    device = hardware.find(name)
    found = watts(device, 0.3)
    assert 0.9 * device.tdp_w.value < found.node_w.low <= found.node_w.high < 2.0 * device.tdp_w.value
    if found.device_w is not None:
        assert device.idle_w is None or device.idle_w.value <= found.device_w.low
        assert found.device_w.high <= device.tdp_w.value
    assert all(said.source for said in found.assumptions)


def test_operational_grams_are_those_of_the_units() -> None:
    cluster = _cluster(pue=1.3, market_g_per_kwh=20.0)
    grid = intensity(signal_of(cluster), 10.0)
    found = operational(device_hours=Range.exactly(100.0), node_w=Range.exactly(900.0), found=grid, cluster=cluster)
    assert found.it_kwh.mid == pytest.approx(90.0)
    assert _bounds(found.location_g) == pytest.approx((grams(90.0 * J_PER_KWH * 1.3, 100.0),) * 3)
    assert found.market_g is not None and found.market_g.mid == pytest.approx(90.0 * 1.3 * 20.0)
    kinds = {said.name: said.kind for said in found.assumptions}
    assert kinds["PUE"] is SourceKind.GIVEN and kinds["intensity"] is SourceKind.GIVEN


def test_the_default_pue_is_a_range_and_networks_are_said_to_be_left_out() -> None:
    grid = intensity(signal_of(_cluster()), 1.0)
    found = operational(device_hours=ONE, node_w=Range.exactly(1000.0), found=grid, cluster=_cluster())
    assert _bounds(found.facility_kwh) == pytest.approx((1.08, 1.1, 1.2))
    said = {each.name: each.value for each in found.assumptions}
    assert said["network and storage"] == "not counted"
    assert said["PUE"] == "1.1 (1.08 to 1.2)"
    more = operational(
        device_hours=ONE, node_w=Range.exactly(1000.0), found=grid, cluster=_cluster(), infrastructure_share=0.1
    )
    assert more.it_kwh.mid == pytest.approx(1.1 * found.it_kwh.mid)


@pytest.mark.parametrize("pue", [1.0, 1.1])
def test_a_pue_that_is_given_is_taken_exactly_even_where_it_is_the_defaults_middle(pue: float) -> None:
    cluster = _cluster(pue=pue)
    grid = intensity(signal_of(cluster), 1.0)
    found = operational(device_hours=ONE, node_w=Range.exactly(1000.0), found=grid, cluster=cluster)
    assert found.pue == Range.exactly(pue)
    assert _bounds(found.facility_kwh) == pytest.approx((pue,) * 3)
    said = next(each for each in found.assumptions if each.name == "PUE")
    assert (said.value, said.source, said.kind) == (f"{pue:g}", "given", SourceKind.GIVEN)
    with pytest.raises(ConfigError, match=r"pue is 0\.9; it must be between 1 and 5"):
        _cluster(pue=0.9)


def test_a_grid_without_carbon_gives_no_grams_and_nothing_breaks() -> None:
    cluster = _cluster(g_per_kwh=0.0, market_g_per_kwh=0.0)
    grid = intensity(signal_of(cluster), 1.0)
    found = operational(device_hours=ONE, node_w=ONE, found=grid, cluster=cluster)
    assert found.location_g.high == 0.0 and found.market_g == Range.exactly(0.0)


def test_a_zone_is_its_typical_year_or_its_annual_mean_with_a_width_that_is_said_to_be_assumed() -> None:
    typical = intensity(signal_of(_cluster(g_per_kwh=None, zone="US-CAL-CISO")), 1.0)
    annual = intensity(signal_of(_cluster(g_per_kwh=None, zone="FRA")), 1.0)
    assert typical.g_per_kwh.mid == pytest.approx(256.2)
    assert 40 < annual.g_per_kwh.mid < 80
    assert typical.assumption.kind is annual.assumption.kind is SourceKind.ASSUMED
    assert annual.g_per_kwh.low < annual.g_per_kwh.mid < annual.g_per_kwh.high
    with pytest.raises(UnknownZoneError, match="nearest"):
        signal_of(_cluster(g_per_kwh=None, zone="Frankreich"))


def test_the_start_counts_on_a_grid_with_hours() -> None:
    signal = signal_of(_cluster(g_per_kwh=None, zone="CISO"))
    noon, night = (intensity(signal, 2.0, datetime(2026, 4, 1, hour, tzinfo=UTC)).g_per_kwh.mid for hour in (20, 5))
    assert noon < 0.6 * night  # the sun is over California at 20:00 UTC
    best, worst = start_hours(signal, 2.0, None, 1.0)
    assert best.times < 0.8 < 1.1 < worst.times
    assert 15 <= int(best.name[:2]) <= 23
    assert start_hours(signal, 24 * 60.0, None, 1.0) == ()


def test_a_trace_is_read_from_its_start_and_stands_for_longer_runs_only_with_a_warning(tmp_path: Path) -> None:
    path = _trace(tmp_path / "grid.csv", [100.0] * 12 + [300.0] * 12)
    signal = signal_of(_cluster(g_per_kwh=None, trace_csv=str(path)))
    assert _bounds(intensity(signal, 12.0).g_per_kwh) == pytest.approx((100.0,) * 3)
    longer = intensity(signal, 100.0)
    assert longer.g_per_kwh.mid == pytest.approx(200.0) and "24 h of 100" in longer.warnings[0]
    with pytest.raises(ConfigError, match=r"all of 12 h .* has 2026-01-01T00:00Z to 2026-01-02T00:00Z"):
        intensity(signal, 12.0, datetime(2026, 1, 1, 20, tzinfo=UTC))
    best, worst = start_hours(signal, 3.0, None, 0.5)
    assert (best.times, worst.times) == (1.0, 2.0)  # 300 g/kWh on the half that is operational


def test_embodied_rates_are_those_of_the_accounting() -> None:
    gpu = Device(uid="0", name="NVIDIA H100 80GB HBM3", kind=DeviceKind.GPU)
    booked = embodied_rate(gpu, CarbonConfig())
    found = embodied_hour(H100).g_per_h
    assert booked is not None and found is not None
    assert (found.low, found.mid, found.high) == pytest.approx(
        (booked.low_g_per_h, booked.mid_g_per_h, booked.high_g_per_h)
    )
    assert 20 < found.mid < 30  # g an hour


def test_area_times_carbon_per_area_is_an_option_and_an_order_of_magnitude_less() -> None:
    assert FABS[7].kg_per_cm2 == pytest.approx(2.32, abs=0.01)
    assert FABS[3].kg_per_cm2 == pytest.approx(3.16, abs=0.02)
    act, lca = embodied_hour(H100, method="act"), embodied_hour(H100)
    assert act.g_per_h is not None and lca.g_per_h is not None
    assert act.g_per_h.mid < lca.g_per_h.mid / 5
    assert "ten times" in act.warnings[0]
    with pytest.raises(ConfigError, match="embodied"):
        embodied_hour(H100, method="cpa")


def test_unknown_embodied_carbon_is_none_with_the_reason() -> None:
    found = embodied_hour(hardware.find("MI300X"))
    assert found.g_per_h is None and "not known" in found.warnings[0]
    assert embodied_hour(hardware.find("MI300X"), method="act").g_per_h is None


def test_sci_counts_all_parameters_and_the_flop_of_those_that_are_met() -> None:
    token, parameter, flop = sci_ranges(sized(1e12, 1e11), 1e13, Range(low=1e9, mid=2e9, high=3e9), None)
    assert token.g_per_unit.mid == pytest.approx(2e9 / 1e13)
    assert parameter.g_per_unit.mid == pytest.approx(2e9 / 1e12)
    assert flop.g_per_unit.high == pytest.approx(3e9 / (6 * 1e11 * 1e13))
    assert not token.complete


def test_money_is_a_default_with_a_source_or_what_is_given_or_unknown() -> None:
    hours, kwh = Range.exactly(100.0), Range.exactly(90.0)
    default = money(H100, hours, kwh, RunPrices())
    assert default.rent is not None and default.rent.low < 300 <= default.rent.mid < default.rent.high
    assert all(said.kind is SourceKind.ASSUMED and said.source.startswith("default") for said in default.assumptions)
    given = money(H100, hours, kwh, RunPrices(per_kwh=0.1, per_device_hour=2.0))
    assert _bounds(given.electricity) == pytest.approx((9.0,) * 3)
    assert _bounds(given.rent) == pytest.approx((200.0,) * 3)
    assert all(said.kind is SourceKind.GIVEN for said in given.assumptions)
    assert money(hardware.find("V100"), hours, kwh, RunPrices()).rent is None
    francs = money(H100, hours, kwh, RunPrices(per_kwh=0.2, currency="CHF"))
    assert francs.rent is None and francs.electricity is not None


def test_energy_that_was_metered_on_devices_alone_lies_within_the_bounds() -> None:
    with RUNS_CSV.open(encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if "GPU" in row["energy_kind"] and row["device"] in ("H100", "A100-80")
        ]
    misses = {}
    for row in rows:
        device = hardware.find(row["device"])
        shape = sized(float(row["params_total"]), float(row["params_active"]))
        found = estimate_mfu(shape, Workload(tokens=float(row["tokens"])), device)
        device_w = watts(device, found.mfu.mid).device_w
        assert device_w is not None
        kwh = product([found.gpu_hours, device_w]).times(1e-3)
        metered = float(row["energy_kwh"]) / float(row["pue"])
        misses[row["name"]] = kwh.mid / metered - 1
        assert kwh.low < metered < kwh.high, row["name"]
    assert len(misses) >= 3 and sum(abs(miss) for miss in misses.values()) / len(misses) < 0.35, misses


def test_watts_that_were_metered_are_not_those_of_a_tdp_that_a_user_gives(tmp_path: Path) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text("V100-32GB: {tdp_w: 200}\n", encoding="utf-8")
    assert watts(hardware.find("V100-32GB", path), 0.4).node_w.mid < 290.0
    assert watts(hardware.find("V100-32GB"), 0.4).node_w.mid == 330.0
