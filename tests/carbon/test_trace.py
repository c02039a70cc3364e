import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.carbon.trace import TraceSignal
from greentrain.errors import TraceError
from greentrain.testing.signal_contract import SignalContract
from greentrain.types import CarbonKind, CarbonSignal

T0 = datetime(2024, 3, 1, tzinfo=UTC)
T0_S = T0.timestamp()


def write(path: Path, values: Sequence[float | str | None], step_s: float = 3600.0) -> Path:
    """Write a trace; None leaves its row out."""
    rows = ["timestamp_utc,g_per_kwh"]
    for i, value in enumerate(values):
        if value is not None:
            rows.append(f"{(T0 + timedelta(seconds=i * step_s)).isoformat()},{value}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def brute_mean(values: Sequence[float], step_s: float, t0: float, t1: float) -> float:
    area = 0.0
    for i, value in enumerate(values):
        area += value * max(0.0, min(t1, (i + 1) * step_s) - max(t0, i * step_s))
    return area / (t1 - t0)


class TestTraceSignal(SignalContract):
    @pytest.fixture(autouse=True)
    def _trace(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "x.csv", [100, 900, 0, 250.5, 250.5, 10], step_s=1800)

    def make_signal(self) -> CarbonSignal:
        return TraceSignal(self.path)

    def known(self) -> tuple[float, float]:
        return T0_S + 700, T0_S + 9000


class TestBridgedTrace(SignalContract):
    @pytest.fixture(autouse=True)
    def _trace(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "x.csv", [100, None, None, 400, 400, 10])

    def make_signal(self) -> CarbonSignal:
        return TraceSignal(self.path, max_gap_h=2)

    def known(self) -> tuple[float, float]:
        return T0_S, T0_S + 6 * 3600


def test_intensity_jumping_mid_interval_is_averaged(tmp_path: Path) -> None:
    signal = TraceSignal(write(tmp_path / "x.csv", [100, 900, 900]))
    assert signal.mean(T0_S + 3595, T0_S + 3605).g_per_kwh == pytest.approx(500)
    assert signal.mean(T0_S, T0_S + 3600).g_per_kwh == 100
    assert signal.mean(T0_S + 3600, T0_S + 3600).g_per_kwh == 900


def test_outside_the_trace_nothing_is_known(tmp_path: Path) -> None:
    signal = TraceSignal(write(tmp_path / "x.csv", [100, 200]))
    end = T0_S + 7200
    assert signal.mean(end - 10, end).g_per_kwh == 200
    for t0, t1 in [(end, end), (end, end + 10), (end - 10, end + 0.01), (T0_S - 0.01, T0_S + 10), (T0_S - 9, T0_S - 8)]:
        assert signal.mean(t0, t1).g_per_kwh is None


def test_labels(tmp_path: Path) -> None:
    point = TraceSignal(write(tmp_path / "grid.csv", [100, 200])).mean(T0_S, T0_S + 1)
    assert (point.zone, point.source, point.kind) == ("grid", "trace grid.csv", CarbonKind.ACTUAL)
    named = TraceSignal(write(tmp_path / "grid.csv", [100, 200]), zone="DE", source="me", accounting="production")
    assert dict(named.describe(), bridged_h="") == {
        "signal": "trace",
        "zone": "DE",
        "source": "me",
        "kind": "actual",
        "basis": "average",
        "accounting": "production",
        "resolution": "3600 s",
        "covers": "2024-03-01T00:00Z to 2024-03-01T02:00Z",
        "bridged_h": "",
        "terms": "those of the file's source",
    }


def test_offsets_and_other_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(
        "zone, g_per_kwh ,timestamp_utc\r\nA,100,2024-03-01T01:00+01:00\r\n\r\nA,200,2024-03-01T01:00Z\r\n",
        encoding="utf-8-sig",
    )
    signal = TraceSignal(path)
    assert signal.start_unix_s == T0_S
    assert signal.mean(T0_S, T0_S + 7200).g_per_kwh == 150


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x\.csv:1: the columns are \[\]"),
        ("time,g_per_kwh\n2024-01-01T00:00Z,1\n", r"a trace needs 'timestamp_utc' and 'g_per_kwh'"),
        ("timestamp_utc,g_per_kwh\n", "0 rows"),
        ("timestamp_utc,g_per_kwh\n2024-01-01T00:00Z,1\n", "1 rows"),
        ("timestamp_utc,g_per_kwh\n2024-01-01T00:00,1\n", r"x\.csv:2: .*has no time zone; append Z"),
        ("timestamp_utc,g_per_kwh\n1 January,1\n", r"x\.csv:2: .*is no ISO 8601 time"),
        ("timestamp_utc,g_per_kwh\n2024-01-01T00:00Z\n", r"x\.csv:2: .*1 of 2 columns"),
        ("timestamp_utc,g_per_kwh\n2024-01-01T00:00Z,nan\n", r"x\.csv:2: g_per_kwh is 'nan'"),
        ("timestamp_utc,g_per_kwh\n2024-01-01T00:00Z,\n", r"x\.csv:2: g_per_kwh is '', not a number"),
        ("timestamp_utc,g_per_kwh\n2024-01-01T00:00Z,-3\n", r"x\.csv:2: g_per_kwh is '-3'; it must be between 0"),
        ("timestamp_utc,g_per_kwh\n2024-01-01T00:00Z,250000\n", r"convert the unit"),
        (
            "timestamp_utc,g_per_kwh\n2024-01-01T00:00Z,1\n2024-01-01T01:00Z,1\n2024-01-01T01:00Z,2\n",
            r"x\.csv:4: .*is not after that of line 3; sort",
        ),
        ("timestamp_utc,g_per_kwh\n2024-01-01T01:00Z,1\n2024-01-01T00:00Z,1\n", r"x\.csv:3: .*is not after"),
    ],
)
def test_malformed_file_names_line_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=message):
        TraceSignal(path)


def test_missing_file_and_binary_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read the trace .*carbon\.trace_csv"):
        TraceSignal(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00\x01" * 40)
    with pytest.raises(TraceError, match="UTF-8"):
        TraceSignal(tmp_path / "x.csv")


def test_gap_is_an_error_that_names_it_and_the_remedy(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", [100, 100, 100, None, None, 400, 400])
    with pytest.raises(TraceError, match=r"x\.csv:5: a gap of 2 h from 2024-03-01T03:00Z to 2024-03-01T05:00Z.*=2 \("):
        TraceSignal(path, max_gap_h=1.5)
    TraceSignal(path, max_gap_h=2.0)


def test_bridged_gap_is_a_line_and_estimated(tmp_path: Path) -> None:
    signal = TraceSignal(write(tmp_path / "x.csv", [100, None, None, 400, 400]), max_gap_h=2)
    hours = [signal.mean(T0_S + h * 3600, T0_S + h * 3600 + 10) for h in range(5)]
    assert [p.g_per_kwh for p in hours] == pytest.approx([100, 200, 300, 400, 400])
    assert [p.kind for p in hours] == [CarbonKind.ACTUAL, *[CarbonKind.ESTIMATED] * 2, *[CarbonKind.ACTUAL] * 2]
    assert signal.mean(T0_S + 3590, T0_S + 3610).kind is CarbonKind.ESTIMATED
    assert signal.mean(T0_S + 3590, T0_S + 3600).kind is CarbonKind.ACTUAL
    assert signal.describe()["bridged_h"] == "2"


def test_jittered_times_hold_until_the_next_row(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    seconds = [0, 300, 610, 900, 1200]
    rows = [f"{(T0 + timedelta(seconds=s)).isoformat()},{i * 100}" for i, s in enumerate(seconds)]
    path.write_text("timestamp_utc,g_per_kwh\n" + "\n".join(rows), encoding="utf-8")
    signal = TraceSignal(path)
    assert signal.step_s == 300
    assert signal.mean(T0_S + 605, T0_S + 615).g_per_kwh == pytest.approx(150)
    assert signal.mean(T0_S + 1499, T0_S + 1500).g_per_kwh == 400


def test_replay_moves_the_first_point(tmp_path: Path) -> None:
    signal = TraceSignal(write(tmp_path / "x.csv", [100, 900]), start_unix_s=1_900_000_000.0)
    point = signal.mean(1_900_003_600.0, 1_900_003_700.0)
    assert (point.g_per_kwh, point.kind) == (900, CarbonKind.ESTIMATED)
    assert "replayed from 2024-03-01T00:00Z" in point.source
    assert signal.mean(T0_S, T0_S + 10).g_per_kwh is None


@given(
    values=st.lists(st.floats(0, 2000, allow_subnormal=False), min_size=2, max_size=30),
    cuts=st.lists(st.floats(0, 1), min_size=2, max_size=6, unique=True),
)
def test_mean_is_the_integral(tmp_path_factory: pytest.TempPathFactory, values: list[float], cuts: list[float]) -> None:
    path = write(tmp_path_factory.mktemp("t") / "x.csv", values, step_s=300)
    signal = TraceSignal(path)
    whole = len(values) * 300.0
    edges = sorted(round(c * whole, 2) for c in cuts)
    area = 0.0
    for a, b in pairwise(edges):
        if b - a < 0.5:
            return
        mean = signal.mean(T0_S + a, T0_S + b).g_per_kwh
        assert mean is not None
        assert mean == pytest.approx(brute_mean(values, 300, a, b), rel=1e-5, abs=1e-4)
        area += mean * (b - a)
    total = signal.mean(T0_S + edges[0], T0_S + edges[-1]).g_per_kwh
    assert total == pytest.approx(area / (edges[-1] - edges[0]), rel=1e-6, abs=1e-5)


@given(value=st.floats(0, 5000), a=st.floats(0, 86_000), length=st.floats(0, 400))
def test_constant_trace_is_constant(
    tmp_path_factory: pytest.TempPathFactory, value: float, a: float, length: float
) -> None:
    signal = TraceSignal(write(tmp_path_factory.mktemp("t") / "x.csv", [value] * 25))
    mean = signal.mean(T0_S + a, T0_S + a + length).g_per_kwh
    assert mean is not None and math.isclose(mean, value, rel_tol=1e-6, abs_tol=1e-9)


def test_a_year_at_five_minutes_is_fast(tmp_path: Path) -> None:
    n = 365 * 288
    signal = TraceSignal(write(tmp_path / "x.csv", [100 + i % 700 for i in range(n)], step_s=300))
    start = time.process_time()  # of this process alone, whatever else the machine does
    for i in range(2000):
        signal.mean(T0_S + i, T0_S + n * 300 - i)
    assert (time.process_time() - start) / 2000 < 200e-6


@pytest.mark.parametrize(("name", "mean"), [("de_2023_em", 367.0), ("us_caiso_2022_eia", 256.2), ("gb_2023_em", 187.6)])
def test_real_traces(name: str, mean: float, traces: Path) -> None:
    signal = TraceSignal(traces / f"{name}.csv")
    assert signal.mean(signal.start_unix_s, signal.end_unix_s).g_per_kwh == pytest.approx(mean, abs=0.06)
