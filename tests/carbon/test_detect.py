from pathlib import Path

import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.detect import open_signal
from greentrain.carbon.trace import TraceSignal
from greentrain.carbon.typical import TypicalSignal
from greentrain.config import CarbonConfig
from greentrain.errors import CarbonSignalError, TraceError, UnknownZoneError

GAPPY = "timestamp_utc,g_per_kwh\n" + "".join(f"2024-01-01T{h:02}:00Z,{h}\n" for h in (0, 1, 2, 4, 5))


def test_default_is_the_stated_world_average() -> None:
    signal = open_signal(CarbonConfig())
    assert isinstance(signal, ConstantSignal)
    assert signal.g_per_kwh == 475.0
    assert "IEA" in signal.source and "2019" in signal.source


def test_number_keeps_the_named_zone() -> None:
    signal = open_signal(CarbonConfig(g_per_kwh=12.5, zone="my cellar"))
    assert signal.mean(0.0, 1.0).g_per_kwh == 12.5
    assert signal.describe()["zone"] == "my cellar"
    assert open_signal(CarbonConfig(g_per_kwh=12.5)).describe()["zone"] == "unnamed"


def test_typical() -> None:
    assert isinstance(open_signal(CarbonConfig(signal="typical", zone="CISO")), TypicalSignal)


def test_typical_needs_a_zone() -> None:
    with pytest.raises(UnknownZoneError, match="US-NW-BPAT"):
        open_signal(CarbonConfig(signal="typical"))


def test_trace_and_its_gap_option(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text(GAPPY, encoding="utf-8")
    with pytest.raises(TraceError, match=r"carbon\.trace_max_gap_h"):
        open_signal(CarbonConfig(signal="trace", trace_csv=str(path)))
    signal = open_signal(CarbonConfig(signal="trace", trace_csv=str(path), trace_max_gap_h=1.0, zone="DE"))
    assert isinstance(signal, TraceSignal)
    assert signal.zone == "DE"


@pytest.mark.parametrize(
    "config",
    [
        CarbonConfig(zone="Atlantis"),
        CarbonConfig(signal="typical", zone="Atlantis"),
        CarbonConfig(signal="trace", trace_csv="/nowhere/x.csv"),
    ],
)
def test_bad_input_fails_before_training(config: CarbonConfig) -> None:
    with pytest.raises(CarbonSignalError):
        open_signal(config)
