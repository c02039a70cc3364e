import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.detect import open_signal
from greentrain.carbon.trace import TraceSignal
from greentrain.carbon.typical import TypicalSignal
from greentrain.config.schema import CarbonConfig
from greentrain.errors import CarbonSignalError, ConfigError, TraceError, UnknownZoneError

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


def test_signals_of_the_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("httpx")
    from greentrain.carbon.polled import PolledSignal

    for name, zone in (("electricity_maps", "DE"), ("watttime", "CAISO_NORTH"), ("gb", "GB")):
        for variable in ("ELECTRICITY_MAPS_TOKEN", "WATTTIME_USER", "WATTTIME_PASSWORD"):
            monkeypatch.setenv(variable, "secret-of-the-test")
        signal = open_signal(CarbonConfig(signal=name, zone=zone, cache_dir=str(tmp_path)))
        assert isinstance(signal, PolledSignal)
        assert (signal.describe()["signal"], signal.zone) == (name, zone)
        assert "secret-of-the-test" not in repr(signal.describe())
        with pytest.raises(ConfigError, match=f"{name}.*needs carbon.zone"):
            open_signal(CarbonConfig(signal=name))
    with pytest.raises(UnknownZoneError, match="not in Great Britain"):
        open_signal(CarbonConfig(signal="gb", zone="DE"))


@pytest.mark.parametrize(
    ("name", "zone", "variable"),
    [("electricity_maps", "DE", "ELECTRICITY_MAPS_TOKEN"), ("watttime", "CAISO_NORTH", "WATTTIME_USER")],
)
def test_a_missing_key_fails_before_training(name: str, zone: str, variable: str) -> None:
    pytest.importorskip("httpx")
    with pytest.raises(ConfigError, match=f"{name}.*set the environment variable {variable}"):
        open_signal(CarbonConfig(signal=name, zone=zone))


@pytest.mark.filterwarnings("ignore:.*mixes ways of accounting")
def test_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("httpx")
    monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", "x")
    config = CarbonConfig(
        signal="electricity_maps", zone="GB", fallback=("gb", "constant"), cache_dir=str(tmp_path / "cache")
    )
    facts = open_signal(config).describe()
    assert (facts["signal"], facts["zone"]) == ("electricity_maps", "GB")
    assert "gb (GB, National Energy System Operator" in facts["fallback"] and "constant (GBR" in facts["fallback"]
    london = open_signal(CarbonConfig(signal="gb", zone="GB-LONDON", fallback=("constant",)))
    assert "constant (GBR" in london.describe()["fallback"], "a region stands for its country in the tables"


def test_a_fallback_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx")
    monkeypatch.setenv("WATTTIME_USER", "x")
    monkeypatch.setenv("WATTTIME_PASSWORD", "x")
    with pytest.raises(ConfigError, match="names a signal twice"):
        open_signal(CarbonConfig(signal="gb", zone="GB", fallback=("gb",)))
    with pytest.raises(ConfigError, match="trace_csv"):
        open_signal(CarbonConfig(signal="gb", zone="GB", fallback=("trace",)))
    with pytest.raises(UnknownZoneError):
        open_signal(CarbonConfig(signal="gb", zone="GB", fallback=("typical",)))
    with pytest.raises(UnknownZoneError):
        open_signal(CarbonConfig(signal="constant", zone="GB-LONDON"))
    with pytest.raises((ConfigError, UnknownZoneError)):
        open_signal(CarbonConfig(signal="watttime", zone="CAISO_NORTH", fallback=("constant",)))
    with pytest.raises(ConfigError, match="mixes average and marginal"):
        open_signal(CarbonConfig(signal="watttime", zone="DE", fallback=("constant",)))


def test_without_httpx_the_extra_is_named(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["httpx"] = None
from greentrain.carbon.detect import open_signal
from greentrain.config import CarbonConfig
from greentrain.errors import MissingExtraError
open_signal(CarbonConfig())
try:
    open_signal(CarbonConfig(signal="gb", zone="GB"))
except MissingExtraError as error:
    assert "greentrain-torch[grid]" in str(error), error
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_signal_that_asks_nobody_loads_no_network(tmp_path: Path) -> None:
    code = (
        "import sys; from greentrain.carbon.detect import open_signal; from greentrain.config import CarbonConfig;"
        " open_signal(CarbonConfig()); assert not {'httpx', 'keyring'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
