import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.carbon.regions import CodecarbonData, lookup, places
from greentrain.errors import CarbonSignalError, UnknownZoneError


@pytest.mark.parametrize(
    ("zone", "code", "g_per_kwh"),
    [
        ("FRA", "FRA", 56.04),
        ("fr", "FRA", 56.04),
        ("France", "FRA", 56.04),
        ("USA", "USA", 369.5),
        ("United States", "USA", 369.5),
        ("DEU", "DEU", 380.95),
        ("UK", "GBR", 237.6),
        ("Côte d’Ivoire", "CIV", 393.9),
        ("CA", "CAN", 170.0),
        ("US-CA", "US-CA", 179.1),
        ("illinois", "US-IL", 215.2),
        ("US-New York", "US-NY", None),
        ("CA-QC", "CA-QC", 3.94),
        ("Québec", "CA-QC", 3.94),
        ("CN-BJ", "CN-BJ", 555.4),
        ("inner_mongolia", "CN-NM", 647.9),
        ("SE3", "SE3", 27.0),
        ("NO-NO4", "NO4", 51.7),
        ("gcp:europe-west1", "gcp:europe-west1", 122.0),
        ("gcp:me-central1", "gcp:me-central1", 575.0),
        ("US-CAL-CISO", "US-CAL-CISO", 256.2),
        ("PJM", "US-MIDA-PJM", 362.7),
        ("world", "world", 475.0),
    ],
)
def test_known_places(zone: str, code: str, g_per_kwh: float | None) -> None:
    place = lookup(zone)
    assert place.zone == code
    if g_per_kwh is not None:
        assert place.g_per_kwh == pytest.approx(g_per_kwh, abs=0.05)


def test_agrees_with_codecarbon_itself() -> None:
    script = """
from codecarbon.core.emissions import Emissions
from codecarbon.core.units import Energy
from codecarbon.external.geography import GeoMetadata
from codecarbon.input import DataSource
emissions = Emissions(DataSource())
one = Energy.from_energy(kWh=1)
for iso, name, region in [("FRA", "France", None), ("USA", "United States", "texas"), ("CAN", "Canada", "ontario"),
                          ("CAN", "Canada", "alberta"), ("SWE", "Sweden", "SE3"), ("CHN", "China", "beijing"),
                          ("NOR", "Norway", None), ("FIN", "Finland", None)]:
    kg = emissions.get_private_infra_emissions(one, GeoMetadata(iso, name, region))
    print("@", iso, region, kg * 1000)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True, timeout=240
    )
    theirs = [line.rsplit(" ", 1) for line in done.stdout.splitlines() if line.startswith("@")]
    ours = ["FRA", "US-TX", "CA-ON", "CA-AB", "SE3", "CN-BJ", "NOR", "FI"]
    assert len(theirs) == len(ours)
    for (label, grams), zone in zip(theirs, ours, strict=True):
        assert lookup(zone).g_per_kwh == pytest.approx(float(grams), rel=1e-5), label


def test_every_place_is_sound_and_every_code_unique() -> None:
    table = list(places(CodecarbonData.installed()))
    codes = [place.zone for place in table]
    assert len(set(codes)) == len(codes) > 350
    for place in table:
        assert 0 <= place.g_per_kwh < 1400, place
        assert place.source and place.name and place.accounting
        assert place.year is None or 2009 <= place.year <= 2026


def test_every_code_finds_itself() -> None:
    data = CodecarbonData.installed()
    table = [place for place in places(data) if place.g_per_kwh > 0]
    for place in table[:: len(table) // 40]:
        assert lookup(place.zone.lower(), data) == place


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Frnace", r"FRA \(France\)"),
        ("US-XX", r"USA \(United States\)"),
        ("DE-BY", r"DEU \(Germany\)"),
        ("gcp:europe-west99", "gcp:europe-west9 "),
        ("CISOO", "US-CAL-CISO"),
        ("aws:us-east-1", "Google only"),
        ("azure:westeurope", "Google only"),
        ("zzzzzzzz", "nothing there has a similar name"),
        ("", "in none of the tables"),
    ],
)
def test_unknown_place_lists_the_nearest(zone: str, hint: str) -> None:
    with pytest.raises(UnknownZoneError, match=hint):
        lookup(zone)


def test_ambiguous_name_is_refused() -> None:
    with pytest.raises(UnknownZoneError, match=r"'GEO'.*'US-GA'"):
        lookup("Georgia")


def test_zero_in_a_table_is_not_believed() -> None:
    with pytest.raises(UnknownZoneError, match="0 g/kWh for Central African Republic"):
        lookup("CAF")


def test_codecarbon_and_pandas_are_not_imported() -> None:
    script = (
        "import sys; from greentrain.carbon.regions import lookup; lookup('FRA');"
        "print([m for m in ('codecarbon', 'pandas', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("damage", ["remove", "not json", "other unit", "list"])
def test_changed_layout_is_a_clear_error(tmp_path: Path, damage: str) -> None:
    installed = CodecarbonData.installed()
    folder = tmp_path / "data"
    for name in ("private_infra", "cloud"):
        shutil.copytree(installed.folder / name, folder / name)
    file = folder / "private_infra" / "2023" / "usa_emissions.json"
    file.chmod(0o644)
    if damage == "remove":
        file.unlink()
    elif damage == "not json":
        file.write_text("{", encoding="utf-8")
    elif damage == "list":
        file.write_text("[]", encoding="utf-8")
    else:
        file.write_text(file.read_text(encoding="utf-8").replace("lbs/MWh", "kg/MWh"), encoding="utf-8")
    with pytest.raises(CarbonSignalError, match=r"usa_emissions\.json.*carbon\.g_per_kwh"):
        lookup("US-CA", CodecarbonData(folder=folder, version="9.9.9"))


def test_missing_codecarbon_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CarbonSignalError, match="install 'codecarbon"):
        CodecarbonData.installed()
