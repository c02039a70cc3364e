"""A whole run whose PUE changes on the way, or whose Prometheus server is not there."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.errors import GreenTrainWarning, TraceError
from greentrain.ledger.reader import RunRecord, read_run
from greentrain.report.summary import summarize
from greentrain.types import LedgerEntry, PueSource
from tests.helpers.flat_meter import FlatMeter

SIGNAL = ConstantSignal(360.0, zone="test", source="test")
J_PER_G = 3.6e6 / 360.0


def _session(tmp_path: Path, carbon: dict[str, Any], signal: ConstantSignal | None = SIGNAL) -> GreenSession:
    config = {
        "run": {"dir": str(tmp_path / "runs"), "report": False, "book_s": 0.1, "live": False},
        "power": {"sample_s": 0.02},
        "carbon": carbon,
    }
    return GreenSession(config, meter=FlatMeter(), signal=signal)


def _write(path: Path, start_s: float, values: list[float], step_s: float) -> Path:
    times = (datetime.fromtimestamp(start_s + i * step_s, UTC).isoformat() for i in range(len(values)))
    path.write_text("timestamp_utc,pue\n" + "".join(f"{t},{v}\n" for t, v in zip(times, values, strict=True)))
    return path


def _integral(values: list[float], step_s: float, start_s: float, t0_s: float, t1_s: float) -> float:
    """Return the integral of the PUE between two times, by hand."""
    edges = [start_s + i * step_s for i in range(len(values) + 1)]
    return sum(v * max(0.0, min(b, t1_s) - max(a, t0_s)) for v, (a, b) in zip(values, pairwise(edges), strict=True))


def _until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)


def _entries(run: RunRecord) -> list[LedgerEntry]:
    return list(run.ranks[0].entries)


def test_grams_are_the_sum_over_intervals_of_joules_x_pue_x_intensity(tmp_path: Path) -> None:
    start_s, step_s, values = time.time() - 0.1, 0.4, [1.1, 2.0, 1.3, 1.8] * 60
    green = _session(tmp_path, {"pue_csv": str(_write(tmp_path / "pue.csv", start_s, values, step_s))})
    with green:
        time.sleep(1.6)
        _until(lambda: len({round(e.pue, 6) for e in _entries(read_run(green.folder or ""))}) > 5)
    run = read_run(green.folder or "")
    entries = _entries(run)
    assert len(entries) > 5 and len({round(e.pue, 6) for e in entries}) > 4
    for entry in entries:
        length_s = entry.t1_unix_s - entry.t0_unix_s
        mean = _integral(values, step_s, start_s, entry.t0_unix_s, entry.t1_unix_s) / length_s
        assert entry.pue == pytest.approx(mean, abs=1e-4)
        assert entry.pue_source is PueSource.TRACE
        assert entry.operational_g == pytest.approx(entry.energy_j * entry.pue / J_PER_G)
    figures = summarize(run)
    t0_s, t1_s = entries[0].t0_unix_s, entries[-1].t1_unix_s
    closed_form_g = 250.0 * _integral(values, step_s, start_s, t0_s, t1_s) / J_PER_G
    assert figures["carbon"]["operational_location_g"] == pytest.approx(closed_form_g, rel=0.02)
    assert figures["energy"]["pue"] == pytest.approx(
        _integral(values, step_s, start_s, t0_s, t1_s) / (t1_s - t0_s), rel=0.02
    )
    assert figures["carbon"]["cue_kg_per_kwh"] == pytest.approx(0.36 * figures["energy"]["pue"])
    assert green.metrics()["green/emissions_g"] == pytest.approx(figures["carbon"]["emissions_g"])


def test_a_run_past_the_end_of_the_records_falls_back_and_says_for_how_much(tmp_path: Path) -> None:
    for ahead_s in (0.5, 4.0, 16.0, 64.0):  # how long the records go on: a busy machine may start after their end
        start_s = time.time() - 10.5 + ahead_s
        green = _session(tmp_path, {"pue": 1.25, "pue_csv": str(_write(tmp_path / "p.csv", start_s, [2.0] * 21, 0.5))})
        with green:
            time.sleep(max(0.0, start_s + 10.5 - time.time()) + 0.5)
        run = read_run(green.folder or "")
        if {e.pue_source for e in _entries(run)} == {PueSource.TRACE, PueSource.FALLBACK}:
            break
    assert {e.pue_source for e in _entries(run)} == {PueSource.TRACE, PueSource.FALLBACK}
    energy = summarize(run)["energy"]
    assert 1.25 < energy["pue"] < 2.0
    without_j = sum(e.energy_j for e in _entries(run) if e.pue_source is PueSource.FALLBACK)
    longest_j = max(e.energy_j for e in _entries(run))  # one entry may lie on both sides of the end
    total_j = run.totals.energy_j
    assert energy["pue_fallback_share"] == pytest.approx(without_j / total_j, abs=longest_j / total_j + 0.01)
    assert (energy["pue_min"], energy["pue_max"]) == (1.25, 2.0)


def test_a_replayed_grid_has_the_pue_of_its_day(tmp_path: Path) -> None:
    start = "2022-06-12T00:00+00:00"
    path = _write(tmp_path / "p.csv", datetime.fromisoformat(start).timestamp(), [1.2, 1.6] * 12, 3600.0)
    carbon = {"pue_csv": str(path), "g_per_kwh": 360.0, "replay_start": start, "speed": 3600.0}
    green = _session(tmp_path, carbon, None)

    def pues() -> list[float]:
        return [e.pue for e in _entries(read_run(green.folder or ""))] or [1.4]

    with green:
        _until(lambda: min(pues()) < 1.35 < 1.45 < max(pues()))
    entries = _entries(read_run(green.folder or ""))
    assert {e.pue_source for e in entries} == {PueSource.TRACE}
    assert min(e.pue for e in entries) < 1.35 < 1.45 < max(e.pue for e in entries)


def test_a_wrong_record_is_an_error_before_training_and_leaves_nothing(tmp_path: Path) -> None:
    green = _session(tmp_path, {"pue_csv": str(_write(tmp_path / "pue.csv", 0.0, [1.2, 0.8], 3600.0))})
    with pytest.raises(TraceError, match=r"pue\.csv:3: pue is '0\.8'; it must be between 1 and 5"):
        green.start()
    assert not (tmp_path / "runs").exists() and not green.running


def test_without_its_server_a_run_goes_on_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx", reason="the extra 'prometheus' is not installed")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    carbon = {"pue": 1.25, "pue_prometheus_url": "http://127.0.0.1:9", "pue_prometheus_query": "pue"}
    green = _session(tmp_path, carbon)
    said = r"Prometheus at http://127\.0\.0\.1:9 says no PUE: no answer .*; training goes on"
    with pytest.warns(GreenTrainWarning, match=said) as told, green:
        assert [t.name for t in threading.enumerate() if t.name == "greentrain-pue"]
        time.sleep(0.3)
        _until(lambda: bool(told.list))
    assert not [t.name for t in threading.enumerate() if t.name == "greentrain-pue"]
    run = read_run(green.folder or "")
    assert {(e.pue, e.pue_source) for e in _entries(run)} == {(1.25, PueSource.FALLBACK)}
    (event,) = [e for e in run.ranks[0].events if e["name"] == "warning"]
    assert "carbon.pue = 1.25 counts" in event["text"]
    figures = summarize(run)
    assert figures["energy"]["pue_fallback_share"] == 1.0
    assert [r["value"] for r in figures["assumptions"] if r["name"].startswith("PUE of")] == ["1.25"]
