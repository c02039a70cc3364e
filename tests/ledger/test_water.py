import pytest

from greentrain.config.schema import WATER_SOURCES, GreenConfig
from greentrain.errors import ConfigError
from greentrain.ledger.water import GALLONS_PER_MWH, water_figures, water_text

ENERGY = {"energy_kwh": 10.0, "facility_energy_kwh": 12.0}


def figures(**water: object) -> dict[str, object]:
    config = GreenConfig.load({"water": water}).to_dict()["water"]
    found = water_figures(config, ENERGY)
    assert found is not None and found["provenance"] == "modelled"
    return found


def test_every_source_of_the_schema_has_a_range() -> None:
    assert set(WATER_SOURCES) == set(GALLONS_PER_MWH)
    assert all(0 <= low <= high for low, high in GALLONS_PER_MWH.values())


def test_site_and_electricity_add_up_by_it_and_facility_energy() -> None:
    found = figures(wue_l_per_kwh=1.8, ewif_l_per_kwh=3.0)
    assert found["site_l"] == {"low": 18.0, "high": 18.0}
    assert found["electricity_l"] == {"low": 36.0, "high": 36.0}
    assert found["total_l"] == {"low": 54.0, "high": 54.0} and found["complete"] is True
    assert water_text(found) == "54 l (modelled)"


def test_a_mix_is_a_range_with_its_source() -> None:
    found = figures(mix={"nuclear": 0.5, "wind": 0.5})
    low, high = 12 * 0.5 * 269 * 3.785411784e-3, 12 * 0.5 * (672 + 1) * 3.785411784e-3
    assert found["electricity_l"] == {"low": pytest.approx(low), "high": pytest.approx(high)}
    assert found["site_l"] is None and found["complete"] is False
    assert "Macknick" in str(found["assumptions"])
    assert water_text(found) == "6.11 to 15.3 l (modelled, of electricity alone)"


def test_what_nobody_says_is_unknown_and_never_zero() -> None:
    assert figures()["total_l"] is None and water_text(figures()) == "unknown"
    assert water_figures(None, ENERGY) is None and water_text(None) == ""
    found = water_figures({"wue_l_per_kwh": 1.0}, {"energy_kwh": None, "facility_energy_kwh": None})
    assert found is not None and found["total_l"] is None


@pytest.mark.parametrize(
    ("water", "message"),
    [
        ({"mix": {"nuclear": 0.5}}, "sums to 0.5"),
        ({"mix": {"peat": 1.0}}, "'peat'; known: nuclear"),
        ({"mix": {"coal": 1.0}, "ewif_l_per_kwh": 1.0}, "drop one"),
        ({"wue_l_per_kwh": -1}, "wue_l_per_kwh is -1"),
    ],
)
def test_wrong_water_is_refused(water: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GreenConfig.load({"water": water})
