import pytest

from greentrain.errors import ConfigError
from greentrain.estimate import hardware
from greentrain.estimate.carbon import embodied_hour
from greentrain.estimate.power_model import watts
from greentrain.types import Gear
from greentrain.utils.quantities import SourceKind
from recipes.estimate.projection import GrowthRate, GrowthRates, project

FLAT = GrowthRate(per_year=1.0, source="a test")


def test_a_later_device_grows_by_its_rates_and_is_assumed_throughout() -> None:
    now = hardware.find("h100")
    doubled = project(now, 2.3)
    assert doubled.device.peak_flop_s[Gear.BF16].value == pytest.approx(2 * 989.4e12)
    assert project(now, 4.1).device.memory_bytes_s.value == pytest.approx(2 * 3350e9)
    assert project(now, 5).device.year == 2027
    for constant in (*doubled.device.peak_flop_s.values(), doubled.device.tdp_w, doubled.device.link_bytes_s):
        assert constant.kind is SourceKind.ASSUMED and "H100-SXM's" in constant.source
    assert "assumed" in doubled.device.name and doubled.device.embodied_source.startswith("assumed: ")
    assert now.embodied_kg is not None and doubled.device.embodied_kg is not None
    assert doubled.device.embodied_kg.mid == pytest.approx(now.embodied_kg.mid * 1.1**2.3)
    assert len(doubled.assumptions) == 8 and all(a.kind is SourceKind.ASSUMED for a in doubled.assumptions)


def test_two_steps_are_one_step() -> None:
    now = hardware.find("B200")
    twice = project(project(now, 5).device, 5).device
    once = project(now, 10).device
    assert twice.tdp_w.value == pytest.approx(once.tdp_w.value)
    assert twice.peak_flop_s[Gear.FP8].value == pytest.approx(once.peak_flop_s[Gear.FP8].value)
    assert once.peak_flop_s[Gear.FP8].value / once.tdp_w.value == pytest.approx(4.5e12 * 2 ** (10 / 3))


def test_what_is_unknown_stays_unknown_and_own_rates_hold() -> None:
    later = project(
        hardware.find("MI300X"), 5, GrowthRates(peak=FLAT, power=GrowthRate(per_year=0.9, source="a test"))
    ).device
    assert later.embodied_kg is None
    assert project(hardware.find("B100"), 5).device.idle_w is None
    assert later.peak_flop_s[Gear.BF16].value == 1307.4e12
    assert later.tdp_w.value == pytest.approx(750 * 0.9**5)


def test_years_and_rates_have_bounds() -> None:
    with pytest.raises(ConfigError, match="years is 21"):
        project(hardware.find("h100"), 21)
    with pytest.raises(ConfigError, match="per_year is 35"):
        GrowthRate(per_year=35, source="per cent by mistake")


@pytest.mark.parametrize("name", ["TPUv4", "V100-32GB"])
def test_nobody_metered_a_device_of_a_later_year(name: str) -> None:
    now, later = hardware.find(name), project(hardware.find(name), 5).device
    assert {said.kind for said in watts(now, 0.4).assumptions} == {SourceKind.MEASURED}
    assert watts(later, 0.4).node_w.mid > later.tdp_w.value > watts(now, 0.4).node_w.mid * 0.7
    assert SourceKind.MEASURED not in {said.kind for said in watts(later, 0.4).assumptions}


def test_the_die_of_a_device_of_a_later_year_is_not_known() -> None:
    now = hardware.find("B200")
    assert embodied_hour(now, method="act").g_per_h is not None
    assert embodied_hour(project(now, 5).device, method="act").g_per_h is None
