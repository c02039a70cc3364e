"""``run.estimate``: what was said before a run, kept in its folder and held to what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.cli.app import app
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.estimate import result
from greentrain.report import estimated
from greentrain.types import Topology
from tests.helpers.flat_meter import FlatMeter

TOKENS = 4000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What ``greentrain estimate --json > estimate.json`` writes."""
    words = ("--parameters", "1e9", "--tokens", str(2 * TOKENS), "--device", "h100", "--count", "1")
    result = CliRunner().invoke(app, ("estimate", *words, "--g-per-kwh", "360", "--json"))
    assert result.exit_code == 0, result.output
    path = tmp_path / "before" / "estimate.json"
    path.parent.mkdir()
    path.write_text(result.stdout, encoding="utf-8")
    return path


def _session(tmp_path: Path, file: Path, rank: int = 0) -> GreenSession:
    config = {"run": {"dir": str(tmp_path / "runs"), "estimate": str(file)}, "power": {"sample_s": 0.02}}
    place = Topology(rank=rank, local_rank=rank, world_size=1 + rank, local_world_size=1 + rank)
    return GreenSession(config, meter=FlatMeter(), signal=ConstantSignal(360.0), topology=place)


def _train(green: GreenSession) -> Path:
    with green:
        for _ in range(4):
            green.step(tokens=TOKENS // 4)
    assert green.folder is not None
    return green.folder


def test_a_run_keeps_its_estimate_and_its_report_shows_both(tmp_path: Path, file: Path) -> None:
    folder = _train(_session(tmp_path, file))
    told = json.loads(file.read_text(encoding="utf-8"))
    assert json.loads((folder / "estimate.json").read_text(encoding="utf-8")) == told
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    found = summary["estimate"]
    assert (found["tokens"], found["trained_share"]) == (2 * TOKENS, 0.5)
    energy = found["figures"]["energy_j"]
    assert energy["mid"] == pytest.approx(told["energy_kwh"]["it"]["mid"] * 3.6e6 / 2)
    assert energy["measured"] == summary["energy"]["energy_j"] > 0
    assert 'id="estimate"' in (folder / "report.html").read_text(encoding="utf-8")
    assert json.loads((folder / "run.json").read_text(encoding="utf-8"))["config"]["run"]["estimate"] == str(file)


def test_the_file_is_read_when_the_session_is_made_and_written_by_rank_0_alone(tmp_path: Path, file: Path) -> None:
    other, first = _session(tmp_path, file, rank=1), _session(tmp_path, file)
    file.unlink()
    assert not (_train(other) / "estimate.json").exists()
    assert (_train(first) / "estimate.json").is_file()


def _without(key: str) -> Any:
    return lambda told: {name: value for name, value in told.items() if name != key}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda told: {**told, "format": 99}, "format 99, and this version reads 1"),
        (_without("format"), "format None"),
        (_without("energy_kwh"), "no estimate"),
        (_without("duration_h"), "'duration_h' is missing"),
        (lambda told: {**told, "duration_h": None}, "no whole estimate"),
        (lambda told: {**told, "duration_h": {"low": 1, "mid": 2, "high": float("inf")}}, "not finite"),
        (lambda told: [told], "no estimate"),
        (lambda told: {**told, "more": "x" * 2**22}, "above 4 MiB"),
    ],
)
def test_what_is_no_estimate_is_refused_before_training(tmp_path: Path, file: Path, change: Any, says: str) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text(encoding="utf-8")))), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"run.estimate is .*estimate.json'.*{says}.*greentrain estimate .* --json"):
        _session(tmp_path, file)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("text", "says"), [(None, "No such file"), ("{", "no JSON"), ("", "no JSON")])
def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "estimate.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{says}.*write one with"):
        _session(tmp_path, path)


def test_a_disk_that_does_not_take_it_costs_a_warning_and_no_training(tmp_path: Path, file: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "runs"), "id": "one", "estimate": str(file)}}
    (tmp_path / "runs" / "one" / "estimate.json").mkdir(parents=True)
    green = GreenSession(config, meter=FlatMeter(), signal=ConstantSignal(360.0))
    with pytest.warns(GreenTrainWarning, match="the report will show no estimate"):
        _train(green)
    assert green.totals().tokens == TOKENS


def test_reader_and_writer_speak_of_one_format() -> None:
    assert estimated.FORMAT == result.FORMAT


def test_the_time_of_a_run_on_another_number_of_devices_is_held_to_nothing(tmp_path: Path, file: Path) -> None:
    told = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**told, "count": 64}), encoding="utf-8")
    folder = _train(_session(tmp_path, file))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    figures = summary["estimate"]["figures"]
    assert figures["duration_s"]["measured"] > 0
    assert figures["duration_s"]["ratio"] is figures["duration_s"]["within"] is None
    assert figures["energy_j"]["ratio"] is not None
    assert "64 devices" in estimated.scope(summary) and "the run had 1 rank," in estimated.scope(summary)
    assert next(row for row in estimated.rows(summary) if row[0] == "Time")[3] == ""
