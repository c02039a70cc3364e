import pytest

from greentrain.report.summary import CAR_G_PER_KM, KETTLE_CUP_J, PHONE_CHARGE_J, equivalents


def test_constants_agree_with_their_sources() -> None:
    assert pytest.approx(244.2, abs=0.1) == CAR_G_PER_KM
    assert pytest.approx(11.6 * 3600) == PHONE_CHARGE_J
    assert 80e3 / 0.9 < KETTLE_CUP_J < 90e3 / 0.8


def test_amounts() -> None:
    found = {e["unit"]: e for e in equivalents(emissions_g=244.2, energy_j=3.6e6)}
    amounts = [e["amount"] for e in found.values()]
    assert amounts == pytest.approx([1.0, 1000 / 11.6, 34.4, 20.0], rel=2e-3)
    assert all(e["source"] for e in found.values())
    assert found["hours of a laptop in use"]["text"] == "20 hours of a laptop in use"


def test_large_and_small_numbers_read_well() -> None:
    assert equivalents(emissions_g=244.2e6, energy_j=1.0)[0]["text"].startswith("1,000,")
    assert equivalents(emissions_g=1.0, energy_j=1.0)[0]["text"] == "0.0041 km in an average US petrol car"


def test_unknown_emissions_leave_the_car_out() -> None:
    assert not any("car" in e["unit"] for e in equivalents(emissions_g=None, energy_j=1.0))
