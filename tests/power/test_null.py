import pytest

from greentrain.power.detect import NullMeter
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import PowerMeter


class TestNullContract(MeterContract):
    @pytest.fixture
    def meter(self) -> PowerMeter:
        return NullMeter()


def test_has_no_sensors() -> None:
    assert list(NullMeter().sensors) == []
    assert list(NullMeter().read()) == []
