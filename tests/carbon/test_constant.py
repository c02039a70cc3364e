import math

import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.errors import CarbonSignalError, UnknownZoneError
from greentrain.testing.signal_contract import SignalContract
from greentrain.types import CarbonSignal


class TestConstantSignal(SignalContract):
    def make_signal(self) -> CarbonSignal:
        return ConstantSignal(321.5, zone="here", source="a test, 2026")

    def known(self) -> tuple[float, float]:
        return 1_700_000_000.0, 1_700_086_400.0


class TestPlace(SignalContract):
    def make_signal(self) -> CarbonSignal:
        return ConstantSignal.of("FRA")

    def known(self) -> tuple[float, float]:
        return 1_700_000_000.0, 1_700_086_400.0


def test_value_and_labels() -> None:
    signal = ConstantSignal(100.0, zone="X", source="me, 2026", accounting="consumption")
    point = signal.mean(10.0, 20.0)
    assert point.g_per_kwh == 100.0
    assert (point.zone, point.source, point.accounting) == ("X", "me, 2026", "consumption")


def test_zero_is_a_number_when_the_user_says_so() -> None:
    assert ConstantSignal(0.0).mean(0.0, 1.0).g_per_kwh == 0.0


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_refuses_no_numbers(value: float) -> None:
    with pytest.raises(CarbonSignalError, match="finite number, at least 0"):
        ConstantSignal(value)


def test_place_carries_source_and_year() -> None:
    described = ConstantSignal.of("France").describe()
    assert described["zone"] == "FRA"
    assert "Our World in Data" in described["source"] and "CC BY" in described["source"]
    assert described["source"].endswith("2023")
    assert described["resolution"] == "annual average"


def test_unknown_place_is_an_error() -> None:
    with pytest.raises(UnknownZoneError, match="FRA"):
        ConstantSignal.of("Frnace")
