"""Which zones the servers know, and what is asked for them."""

from itertools import pairwise

import pytest

from greentrain.carbon.client import Secret
from greentrain.carbon.electricity_maps import ElectricityMaps
from greentrain.carbon.gb import REGIONS, GreatBritain
from greentrain.carbon.source import HISTORY_S, Ask, GridSource, WrongAnswer, unix_s
from greentrain.carbon.watttime import WattTime
from greentrain.errors import UnknownZoneError
from greentrain.types import CarbonKind

KEY = Secret("x")
NOW_S = 1_800_000_123.0
ASK = Ask(name="recent", path="/", fresh_s=1.0)


@pytest.mark.parametrize(
    ("zone", "meant"), [("de", "DE"), ("DEU", "DE"), ("US-CAL-CISO", "US-CAL-CISO"), (" dk-dk1 ", "DK-DK1")]
)
def test_electricity_maps(zone: str, meant: str) -> None:
    assert ElectricityMaps(zone, KEY).facts.zone == meant


@pytest.mark.parametrize("zone", ["Germany", "gcp:europe-west1", "CAISO_NORTH", "", "DE; DROP"])
def test_electricity_maps_refuses(zone: str) -> None:
    with pytest.raises(UnknownZoneError, match=r"look like 'DE' or 'US-CAL-CISO'"):
        ElectricityMaps(zone, KEY)


@pytest.mark.parametrize("zone", ["US-CAL-CISO", "", "a b", "http://x/"])
def test_watttime_refuses(zone: str) -> None:
    with pytest.raises(UnknownZoneError, match="CAISO_NORTH"):
        WattTime(zone, KEY, KEY)
    assert WattTime("caiso_north", KEY, KEY).facts.zone == "CAISO_NORTH"


@pytest.mark.parametrize(
    ("zone", "meant", "path"),
    [
        ("GB", "GB", "/intensity/"),
        ("uk", "GB", "/intensity/"),
        ("GBR", "GB", "/intensity/"),
        ("GB-13", "GB-LONDON", "/regional/intensity/"),
        ("gb-north scotland", "GB-NORTH-SCOTLAND", "/regional/intensity/"),
        ("London", "GB-LONDON", "/regional/intensity/"),
    ],
)
def test_great_britain(zone: str, meant: str, path: str) -> None:
    source = GreatBritain(zone)
    assert source.facts.zone == meant
    asks = source.asks(NOW_S)
    assert all(ask.path.startswith(path) for ask in asks)
    if meant != "GB":
        assert all(ask.path.endswith(f"/regionid/{REGIONS[meant[3:]]}") for ask in asks)


@pytest.mark.parametrize("zone", ["DE", "GB-18", "GB-0", "GB-NIR", "world", "13 London"])
def test_great_britain_refuses(zone: str) -> None:
    with pytest.raises(UnknownZoneError, match=r"not in Great Britain.*GB-LONDON"):
        GreatBritain(zone)


@pytest.mark.parametrize(
    "source", [ElectricityMaps("DE", KEY), WattTime("CAISO_NORTH", KEY, KEY), GreatBritain(), GreatBritain("GB-1")]
)
def test_the_most_urgent_comes_first_and_three_weeks_are_covered(source: GridSource) -> None:
    asks = source.asks(NOW_S)
    assert asks[0].needed and not any(ask.needed for ask in asks[1:])
    assert len({ask.name for ask in asks}) == len(asks)
    assert [a.name for a in source.asks(NOW_S + 5e5)] == [a.name for a in asks]
    spans = []
    for ask in asks:
        if "start" in ask.params:
            spans.append((unix_s(ask.params["start"]), unix_s(ask.params["end"])))
        elif "fw48h" not in ask.path and "intensity/20" in ask.path:
            start, end = ask.path.partition("intensity/")[2].split("/")[:2]
            spans.append((unix_s(start), unix_s(end)))
    spans.sort()
    assert spans[0][0] <= NOW_S - HISTORY_S + 3600 and spans[-1][1] >= NOW_S - 3600
    assert all(a[1] == b[0] for a, b in pairwise(spans)), "no hole between two questions"


def test_electricity_maps_reads_other_steps_and_shapes() -> None:
    source = ElectricityMaps("DE", KEY)
    hours = [{"carbonIntensity": 1, "datetime": f"2026-01-01T00:{m:02}Z", "isEstimated": False} for m in (0, 15, 30)]
    for answer in ({"data": hours, "temporalGranularity": "15_minutes"}, {"values": hours}):
        rows = source.read(ASK, answer)
        assert [r.t1_unix_s - r.t0_unix_s for r in rows] == [900] * 3
        assert {r.kind for r in rows} == {CarbonKind.ACTUAL}
    assert source.read(ASK, {"history": hours[:1]})[0].t1_unix_s - unix_s("2026-01-01T00:00Z") == 3600
    assert source.read(ASK, {"history": []}) == []
    with pytest.raises(KeyError):
        source.read(ASK, {"history": hours, "temporalGranularity": "daily"})


def test_a_regions_answer_may_come_in_a_list() -> None:
    half = {"from": "2026-01-01T00:00Z", "to": "2026-01-01T00:30Z", "intensity": {"forecast": 9, "index": "low"}}
    data = {"regionid": 13, "shortname": "London", "data": [half]}
    for shape in (data, [data]):
        (row,) = GreatBritain("GB-13").read(ASK, {"data": shape})
        assert (row.g_per_kwh, row.kind) == (9, CarbonKind.FORECAST)
    with pytest.raises(WrongAnswer, match="region 13, not 1"):
        GreatBritain("GB-1").read(ASK, {"data": data})


def test_a_measured_zero_is_a_value_and_null_is_none() -> None:
    def half(actual: int | None) -> dict[str, object]:
        values = {"forecast": 9, "actual": actual, "index": "low"}
        return {"from": "2026-01-01T00:00Z", "to": "2026-01-01T00:30Z", "intensity": values}

    zero, null = GreatBritain().read(ASK, {"data": [half(0), half(None)]})
    assert (zero.g_per_kwh, zero.kind) == (0, CarbonKind.ACTUAL)
    assert (null.g_per_kwh, null.kind) == (9, CarbonKind.FORECAST)
