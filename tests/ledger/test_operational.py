import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.ledger.bookkeeper import operational_g
from greentrain.types import CarbonPoint


def point(g_per_kwh: float | None) -> CarbonPoint:
    return CarbonPoint(t0_unix_s=0.0, t1_unix_s=1.0, g_per_kwh=g_per_kwh, zone="x", source="x")


def test_one_kilowatt_hour() -> None:
    assert operational_g(3.6e6, point(400.0), 1.0) == pytest.approx(400.0)
    assert operational_g(3.6e6, point(400.0), 1.5) == pytest.approx(600.0)


def test_unknown_intensity_is_none_not_zero() -> None:
    assert operational_g(3.6e6, point(None), 1.2) is None
    assert operational_g(0.0, point(None), 1.2) is None


def test_zero_intensity_is_zero_grams() -> None:
    assert operational_g(3.6e6, point(0.0), 1.2) == 0.0


@given(a=st.floats(0, 1e12), b=st.floats(0, 1e12), g=st.floats(0, 2000), pue=st.floats(1, 3))
def test_energies_add_up(a: float, b: float, g: float, pue: float) -> None:
    parts = (operational_g(a, point(g), pue) or 0.0) + (operational_g(b, point(g), pue) or 0.0)
    assert operational_g(a + b, point(g), pue) == pytest.approx(parts, rel=1e-9)
