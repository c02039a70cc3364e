"""What a kWh costs, whoever says so; the figures here are computed by hand."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from greentrain.carbon.client import Secret
from greentrain.carbon.price import EntsoePrices, ReplayedPrice, open_price, price_trace, tariff
from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig, PriceConfig
from greentrain.errors import ConfigError, GreenTrainWarning, MissingExtraError, TraceError
from greentrain.types import CarbonKind, PriceSignal

HOUR_S = 3600.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def mean(signal: PriceSignal, t0: str, t1: str | None = None) -> float | None:
    return signal.mean(at(t0), at(t1 or t0)).per_kwh


@pytest.fixture
def day_ahead(tmp_path: Path) -> PriceSignal:
    rows = "2024-03-30T00:00+01:00,80\n2024-03-30T01:00+01:00,-20.5\n2024-03-30T02:00+01:00,0\n"
    path = tmp_path / "prices.csv"
    path.write_text(f"timestamp_utc,price_per_mwh\n{rows}2024-03-30T05:00+01:00,40\n", encoding="utf-8")
    return price_trace(path, currency="EUR")


def test_a_trace_is_the_integral_of_its_hours_and_may_be_below_zero(day_ahead: PriceSignal) -> None:
    assert mean(day_ahead, "2024-03-29T23:30Z") == 0.08
    assert mean(day_ahead, "2024-03-30T00:00Z", "2024-03-30T01:00Z") == -0.0205
    assert mean(day_ahead, "2024-03-29T23:30Z", "2024-03-30T00:15Z") == pytest.approx((0.08 * 30 - 0.0205 * 15) / 45)
    point = day_ahead.mean(at("2024-03-30T01:00Z"), at("2024-03-30T02:00Z"))
    assert (point.per_kwh, point.currency, point.source) == (0.0, "EUR", "trace prices.csv")


@pytest.mark.parametrize("t0", ["2024-03-30T02:30Z", "2024-03-30T01:30Z", "2024-03-30T05:00Z", "2024-03-29T22:00Z"])
def test_a_hole_and_what_is_outside_are_unknown_and_never_zero(day_ahead: PriceSignal, t0: str) -> None:
    assert day_ahead.mean(at(t0), at(t0) + HOUR_S).per_kwh is None


def test_a_wrong_trace_names_its_key(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("timestamp_utc,price_per_mwh\n2024-01-01T00:00,1\n2024-01-01T01:00,2\n", encoding="utf-8")
    with pytest.raises(TraceError, match="no time zone"):
        price_trace(path, currency="EUR")
    with pytest.raises(TraceError, match=r"price\.trace_csv"):
        price_trace(tmp_path / "none.csv", currency="EUR")


LINES = ("0.40 mon-fri 17-21", "0.10 22:30-6", "0.30 jun-sep", "0.20 sat", "0.25")


@pytest.mark.parametrize(
    ("moment", "price"),
    [
        ("2024-03-28T17:00+01:00", 0.40),  # a Thursday
        ("2024-03-28T21:00+01:00", 0.25),
        ("2024-03-30T18:00+01:00", 0.20),  # a Saturday
        ("2024-03-28T22:15+01:00", 0.25),
        ("2024-03-28T22:30+01:00", 0.10),
        ("2024-03-29T05:59+01:00", 0.10),
        ("2024-03-29T06:00+01:00", 0.25),
        ("2024-07-06T12:00+02:00", 0.30),
        ("2024-07-04T18:00+02:00", 0.40),
    ],
)
def test_the_first_band_that_fits_holds_in_its_time_zone(moment: str, price: float) -> None:
    assert mean(tariff(LINES, currency="EUR", time_zone="Europe/Berlin"), moment) == price


def test_a_tariff_is_averaged_over_time_also_where_clocks_change() -> None:
    berlin = tariff(LINES, currency="EUR", time_zone="Europe/Berlin")
    assert mean(berlin, "2024-03-28T16:50+01:00", "2024-03-28T17:10+01:00") == pytest.approx((0.25 + 0.40) / 2)
    night = mean(berlin, "2024-03-30T23:00+01:00", "2024-03-31T07:00+02:00")  # 7 h: 2 o'clock is left out
    assert night == pytest.approx((0.10 * 6 + 0.25) / 7)


@pytest.mark.parametrize("line", ["", "x", "0.2 25-3", "0.2 mon-jun", "0.2 17-21h", "nan", "0.2 5:10-6", "0.2 17-25"])
def test_a_wrong_band_is_refused_with_an_example(line: str) -> None:
    with pytest.raises(ConfigError, match="mon-fri 17-21"):
        tariff([line, "0.2"], currency="EUR")


def test_a_tariff_needs_a_price_for_all_times_and_a_zone_that_is_there() -> None:
    with pytest.raises(ConfigError, match="for all other times"):
        tariff(["0.2 mon"], currency="EUR")
    with pytest.raises(ConfigError, match="Europe/Berlin"):
        tariff(["0.2"], currency="EUR", time_zone="Europe/Nowhere")


def test_the_configuration_opens_each_of_them(tmp_path: Path) -> None:
    assert open_price(None) is None
    found = open_price(PriceConfig(per_kwh=-0.01, currency="GBP"))
    assert found is not None
    point = found.mean(0.0, 1.0)
    assert (point.per_kwh, point.currency, point.kind) == (-0.01, "GBP", CarbonKind.ESTIMATED)
    assert open_price(PriceConfig(signal="tariff", tariff=("0.3",))) is not None


@pytest.mark.parametrize(
    ("price", "policy", "message"),
    [
        ({}, {}, r"price\.per_kwh is not set"),
        ({"per_kwh": 1, "zone": "FR"}, {}, r"price\.zone is set, which is for 'entsoe'"),
        ({"signal": "trace"}, {}, r"price\.trace_csv is not set"),
        (None, {"objective": "cost"}, "add the section price"),
        ({"per_kwh": 1}, {"objective": {"carbon": 1, "cost": 1}}, r"set price\.carbon_per_t"),
        (None, {"objective": {"cash": 1}}, "write carbon, cost"),
        (None, {"objective": {"carbon": 0}}, "write carbon, cost"),
        (None, {"objective": "cash"}, r"policy\.objective is 'cash'"),
    ],
)
def test_what_is_missing_is_told_before_training(price: Any, policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GreenConfig.load({"price": price, "policy": policy})


def test_a_replayed_price_is_that_of_the_grid_s_time(day_ahead: PriceSignal) -> None:
    time = GridTime(unix_s=1000.0, grid_s=at("2024-03-30T00:00Z"), speed=3600.0)
    point = ReplayedPrice(signal=day_ahead, time=time).mean(1000.0, 1001.0)
    assert (point.per_kwh, point.t0_unix_s, point.kind) == (-0.0205, 1000.0, CarbonKind.ESTIMATED)
    assert "replayed" in point.source


# -- ENTSO-E: entsoe-py with a client that answers as its 0.8.1 does: a Series by local time, or an error --------------


@pytest.fixture
def entsoe(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], EntsoePrices]:
    pytest.importorskip("pandas")

    def opened(answer: Any) -> EntsoePrices:
        class EntsoePandasClient:
            def __init__(self, api_key: str, retry_count: int, timeout: int) -> None:
                assert (api_key, retry_count) == ("secret", 1) and timeout <= 30

            def query_day_ahead_prices(self, country_code: str, start: Any, end: Any) -> Any:
                assert country_code == "DE_LU" and start.tzinfo is not None and end > start
                if isinstance(answer, Exception):
                    raise answer
                return answer

        module = ModuleType("entsoe")
        module.EntsoePandasClient = EntsoePandasClient  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "entsoe", module)
        found = EntsoePrices("DE_LU", currency="EUR", key=Secret("secret"))
        found.start()
        assert found._work is not None
        found._work.ask(30.0)
        return found

    return opened


def test_day_ahead_prices_are_asked_and_known_ahead(entsoe: Callable[[Any], EntsoePrices]) -> None:
    import pandas as pd  # type: ignore[import-untyped]

    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    index = pd.date_range(midnight, periods=8, freq="15min").tz_convert("Europe/Berlin")
    found = entsoe(pd.Series([50.0, -30.0, float("nan"), 10.0, 10.0, 10.0, 10.0, 20.0], index=index))
    t = midnight.timestamp()
    assert found.mean(t, t + 1800.0).per_kwh == pytest.approx(0.01)
    assert found.mean(t + 6300.0, t + 7200.0).per_kwh == pytest.approx(0.02)
    assert found.mean(t - 60.0, t).per_kwh is None
    assert found.mean(t, t + 8 * HOUR_S).per_kwh is None
    assert found.mean(t, t + 900.0).kind is CarbonKind.ACTUAL
    found.close()


def test_without_an_answer_prices_are_unknown_and_the_key_is_not_told(entsoe: Callable[[Any], EntsoePrices]) -> None:
    with pytest.warns(GreenTrainWarning) as told:
        found = entsoe(RuntimeError("https://x?securityToken=secret"))
    assert any("did not answer (RuntimeError)" in str(w.message) for w in told)
    assert not any("secret" in str(w.message) for w in told)
    now_s = datetime.now(UTC).timestamp()
    assert found.mean(now_s, now_s + 1).per_kwh is None
    found.close()


def test_without_entsoe_py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "entsoe", None)
    monkeypatch.setenv("ENTSOE_API_KEY", "secret")
    with pytest.raises(MissingExtraError, match=r"greentrain-torch\[price\]"):
        open_price(PriceConfig(signal="entsoe", zone="DE_LU"))
    monkeypatch.delenv("ENTSOE_API_KEY")
    with pytest.raises(ConfigError, match=r"price\.signal 'entsoe' needs a key"):
        open_price(PriceConfig(signal="entsoe", zone="DE_LU"))


def test_dates_of_this_page() -> None:
    assert [(datetime(2024, 3, 28) + timedelta(days=d)).weekday() for d in (0, 2)] == [3, 5]
