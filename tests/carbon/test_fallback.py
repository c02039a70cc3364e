"""Several signals in turn."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.detect import Fallback
from greentrain.carbon.trace import TraceSignal
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.testing.signal_contract import SignalContract
from greentrain.types import CarbonBasis, CarbonPoint, CarbonSignal

T0 = 1_704_067_200.0


@pytest.fixture
def trace(tmp_path: Path) -> TraceSignal:
    path = tmp_path / "grid.csv"
    path.write_text(
        "timestamp_utc,g_per_kwh\n" + "".join(f"2024-01-01T{h:02}:00Z,{h}\n" for h in range(3)), encoding="utf-8"
    )
    return TraceSignal(path)


class TestFallbackContract(SignalContract):
    @pytest.fixture(autouse=True)
    def _trace(self, trace: TraceSignal) -> None:
        self.trace = trace

    def make_signal(self) -> CarbonSignal:
        return Fallback([self.trace, ConstantSignal(50.0)])

    def known(self) -> tuple[float, float]:
        return T0, T0 + 3 * 3600


class Live(ConstantSignal):
    """A constant that can be started and closed, and has forecasts."""

    def __init__(self, g_per_kwh: float, log: list[str]) -> None:
        super().__init__(g_per_kwh)
        self.log = log

    def start(self) -> None:
        self.log.append(f"start {self.g_per_kwh:g}")

    def close(self) -> None:
        self.log.append(f"close {self.g_per_kwh:g}")

    def forecast(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        return [self.mean(t0_unix_s, t1_unix_s)] if t0_unix_s > 0 else []

    def history(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        return [self.mean(t0_unix_s, t1_unix_s)]


def test_the_first_that_knows_answers_under_its_own_name(trace: TraceSignal) -> None:
    signal = Fallback([trace, ConstantSignal(50.0, zone="cellar", source="a meter, 2026")])
    assert (signal.mean(T0 + 3600, T0 + 7200).g_per_kwh, signal.mean(T0, T0).zone) == (1.0, "grid")
    later = signal.mean(T0 + 2 * 3600, T0 + 4 * 3600)
    assert (later.g_per_kwh, later.zone, later.source) == (50.0, "cellar", "a meter, 2026")
    assert signal.describe()["signal"] == "trace"
    assert signal.describe()["fallback"] == "constant (cellar, a meter, 2026)"


def test_where_nobody_knows_the_first_says_so(trace: TraceSignal) -> None:
    point = Fallback([trace, trace]).mean(time.time(), time.time())
    assert (point.g_per_kwh, point.source) == (None, "trace grid.csv")
    assert Fallback([trace]).forecast(0, 1) == Fallback([trace]).history(0, 1) == ()


def test_the_others_start_when_they_are_asked_and_all_are_closed() -> None:
    log: list[str] = []
    signal = Fallback([Live(1.0, log), Live(2.0, log)])
    signal.start()
    assert [p.g_per_kwh for p in signal.forecast(1.0, 2.0)] == [1.0]
    assert list(signal.forecast(-1.0, 2.0)) == []
    assert [p.g_per_kwh for p in signal.history(1.0, 2.0)] == [1.0]
    signal.close()
    assert log == ["start 1", "close 1", "close 2"]


def test_average_and_marginal_are_never_mixed(tmp_path: Path, trace: TraceSignal) -> None:
    marginal = TraceSignal(tmp_path / "grid.csv", basis=CarbonBasis.MARGINAL)
    with pytest.raises(ConfigError, match=r"mixes average and marginal.*leave out what is not marginal"):
        Fallback([marginal, ConstantSignal(50.0)])
    with pytest.raises(ConfigError, match="at least one"):
        Fallback([])


def test_mixed_accounting_is_told() -> None:
    with pytest.warns(GreenTrainWarning, match="mixes ways of accounting"):
        Fallback([ConstantSignal(1.0, accounting="production"), ConstantSignal(2.0, accounting="consumption")])
