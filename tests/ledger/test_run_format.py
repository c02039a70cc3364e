"""Run folders of format 1 are read to the same totals by every later version; newer ones are named, not guessed."""

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import ConfigError, NewerFormatError, RunFolderError
from greentrain.ledger.journal import KINDS, NOTE, read_journal
from greentrain.ledger.reader import RunRecord, read_run, sums_of_others
from greentrain.report.summary import summarize
from greentrain.session.session import STATE_FORMAT, GreenSession
from greentrain.types import FORMAT_VERSION, Topology
from tests.helpers.flat_meter import FlatMeter
from tests.report.run_folders import write_report

DATA = Path(__file__).resolve().parents[1] / "data" / f"run-format-{FORMAT_VERSION}"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
DOCS = Path(__file__).parents[2] / "docs" / "run-format.md"


@pytest.fixture(params=sorted(EXPECTED))
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """Return a copy of a frozen run folder, and what it must be read to."""
    return shutil.copytree(DATA / request.param, tmp_path / request.param), EXPECTED[request.param]


@pytest.fixture
def gears(tmp_path: Path) -> Path:
    """Return a copy of the run of two ranks."""
    return shutil.copytree(DATA / "gears", tmp_path / "gears")


def _records() -> Iterator[dict[str, Any]]:
    for path in DATA.glob("*/rank-*.jsonl"):
        yield from read_journal(path)


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    lines = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            lines.append(line)
            continue
        change(record)
        lines.append(json.dumps(record, separators=(",", ":")).encode())
    path.write_bytes(b"\n".join(lines) + b"\n")


def _figures(record: RunRecord) -> dict[str, Any]:
    return {
        "ranks": [rank.rank for rank in record.ranks],
        "ends": [None if rank.close is None else rank.close["reason"] for rank in record.ranks],
        "starts": [len(rank.opens) for rank in record.ranks],
        "entries": [len(rank.entries) for rank in record.ranks],
        "events": [len(rank.events) for rank in record.ranks],
        "wall_s": record.wall_s,
        "totals": record.totals.to_dict(),
    }


def _assert_covers(found: Any, expected: Any, where: str = "") -> None:
    """Check all that was frozen; a later version may know more."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            _assert_covers(found[key], value, f"{where}.{key}")
    else:
        assert found == (pytest.approx(expected, rel=1e-9) if isinstance(expected, float) else expected), where


def test_a_frozen_run_is_read_to_the_same_totals(frozen: tuple[Path, Any]) -> None:
    folder, expected = frozen
    _assert_covers(_figures(read_run(folder)), expected)


def test_a_frozen_run_that_is_thinned_has_the_same_sums(frozen: tuple[Path, Any]) -> None:
    folder, expected = frozen
    found = read_run(folder, most=1).totals.to_dict()
    for name in ("energy_j", "operational_g", "embodied_g", "steps", "tokens", "samples", "by_device", "by_provenance"):
        assert found[name] == pytest.approx(expected["totals"][name], rel=1e-9), name


def test_a_frozen_run_still_gives_every_report_file(frozen: tuple[Path, Any]) -> None:
    folder, expected = frozen
    html = write_report(folder)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["energy"]["energy_j"] == pytest.approx(expected["totals"]["energy_j"])
    assert html.is_file() and {"emissions.csv", "model_card.yaml", "boamps.json"} <= {p.name for p in folder.iterdir()}
    assert not [event for event in summary["events"] if event["name"] == NOTE]


def test_the_plan_of_a_frozen_run_is_still_understood(tmp_path: Path) -> None:
    plan = summarize(read_run(DATA / "plan"))["plan"]
    assert plan["provenance"] == "assumed" and plan["met"] is True
    assert len([e for e in read_run(DATA / "plan").ranks[0].events if e["name"] == "decision"]) >= 10


def test_the_first_version_is_older_than_what_followed() -> None:
    """Its journals lack what later versions added, so that reading them tests the migration."""
    entries = [record for record in read_journal(DATA / "first" / "rank-00000.jsonl") if record["kind"] == "entry"]
    assert entries and not any({"sum", "gears", "pue_from"} & entry.keys() for entry in entries)


def test_a_torn_line_costs_itself_only() -> None:
    assert not (DATA / "gears" / "rank-00001.jsonl").read_bytes().endswith(b"\n")
    killed = read_run(DATA / "gears").ranks[1]
    assert killed.close is None and killed.totals.steps == 20


def test_frozen_runs_name_no_machine() -> None:
    for path in DATA.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not re.search(r'"/(?!sys/)', text), path
    assert {record["host"] for record in _records() if record["kind"] == "open"} == {"node-0", "node-1"}


def test_the_reader_knows_every_kind_and_field_that_is_written() -> None:
    seen: dict[str, set[str]] = {}
    for record in _records():
        seen.setdefault(record["kind"], set()).update(record)
    assert seen.keys() == KINDS.keys()
    for kind, fields in KINDS.items():
        assert fields is None or seen[kind] <= fields, kind


def test_the_documentation_names_every_field() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for kind, fields in KINDS.items():
        assert f"### `{kind}`" in text
        for name in fields or ():
            assert f"`{name}`" in text, f"{kind}.{name}"
    for path in DATA.glob("*/run.json"):
        for name in json.loads(path.read_text(encoding="utf-8")):
            assert f"`{name}`" in text, name
    names = {record["name"] for record in _records() if record["kind"] == "event"}
    assert {"gap", "checkpoint", "gear", "resume", "decision"} <= names
    for name in names:
        assert f"`{name}`" in text, name
    keys = text[text.index("## `summary.json`") : text.index("## Several ranks")]
    for name in summarize(read_run(DATA / "plan")):
        assert f"`{name}`" in keys, name


@pytest.mark.parametrize("most", [None, 1])
def test_unknown_kinds_and_fields_are_left_out_with_one_note(gears: Path, most: int | None) -> None:
    before = read_run(gears, most=most).totals

    def grow(record: dict[str, Any]) -> None:
        if record["kind"] == "entry":
            record["water_l"] = 1.5
            record["sum"]["water_l"] = 1.5
        if record["kind"] == "open":
            record["cluster"] = "c"

    path = gears / "rank-00000.jsonl"
    _edit(path, grow)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind":"weather","t":1.0,"celsius":20}\n' * 3)
    record = read_run(gears, most=most)
    assert record.totals == before
    (note,) = [event for event in record.ranks[0].events if event["name"] == NOTE]
    assert "open.cluster (2 times)" in note["text"] and "entry.water_l" in note["text"]
    assert "records of kind 'weather' (3 times)" in note["text"] and "newer greentrain-torch" in note["text"]
    assert not [event for event in record.ranks[1].events if event["name"] == NOTE]
    write_report(gears)
    assert "weather" in (gears / "report.html").read_text(encoding="utf-8")


def test_what_ranks_tell_one_another_may_grow(gears: Path) -> None:
    before = sums_of_others(gears, 0, 2)
    assert before.ranks == 1

    def grow(record: dict[str, Any]) -> None:
        if record["kind"] == "entry":
            record["sum"]["water_l"] = 1.5

    _edit(gears / "rank-00001.jsonl", grow)
    assert sums_of_others(gears, 0, 2) == before


@pytest.mark.parametrize("where", ["journal", "run.json"])
def test_a_newer_run_names_the_remedy(gears: Path, where: str) -> None:
    newer = FORMAT_VERSION + 1
    if where == "journal":
        _edit(gears / "rank-00001.jsonl", lambda record: record.update(format=newer) if "format" in record else None)
    else:
        _edit_json(gears / "run.json", {"format": newer})
    with pytest.raises(NewerFormatError, match=rf"format {newer}, this GreenTrain reads up to {FORMAT_VERSION}.*pip"):
        read_run(gears)


@pytest.mark.parametrize("found", [None, "1", 0, True])
def test_a_file_without_a_version_is_named(gears: Path, found: object) -> None:
    _edit(gears / "rank-00000.jsonl", lambda record: record.update(format=found) if "format" in record else None)
    with pytest.raises(RunFolderError, match="which is no version"):
        read_run(gears)


@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.parametrize("field", ["devices", "carbon", "t0", "pue"])
def test_a_damaged_entry_names_its_file(gears: Path, field: str, most: int | None) -> None:
    def damage(record: dict[str, Any]) -> None:
        record.pop(field, None)

    _edit(gears / "rank-00000.jsonl", damage)
    with pytest.raises(RunFolderError, match=r"rank-00000\.jsonl holds a record that cannot be read"):
        read_run(gears, most=most)


def test_a_word_that_no_version_has_is_no_crash(gears: Path) -> None:
    def guess(record: dict[str, Any]) -> None:
        for device in record.get("devices", {}).values():
            device["prov"] = "guessed"

    _edit(gears / "rank-00000.jsonl", guess)
    with pytest.raises(RunFolderError, match="'guessed' is not a valid Provenance"):
        read_run(gears)


def test_a_run_json_that_is_no_mapping_is_named(gears: Path) -> None:
    (gears / "run.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"run\.json holds a list"):
        read_run(gears)


def test_a_run_of_a_newer_version_is_not_continued(gears: Path) -> None:
    path = gears / "rank-00000.jsonl"
    _edit(path, lambda record: record.update(format=FORMAT_VERSION + 1) if "format" in record else None)
    before = path.read_bytes()
    meter = FlatMeter()
    config = {"run": {"dir": str(gears.parent), "id": "gears", "report": False}}
    with pytest.raises(NewerFormatError, match="upgrade"):
        GreenSession(config, meter=meter, topology=Topology()).start()
    assert path.read_bytes() == before and meter.closed == 1


def test_a_run_of_the_first_version_is_continued(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "first", tmp_path / "first")
    config = {"run": {"dir": str(tmp_path), "id": "first"}, "carbon": {"zone": "FR"}}
    with GreenSession(config, meter=FlatMeter(), topology=Topology(world_size=2)) as green:
        green.step(tokens=100)
    totals = read_run(folder).totals
    assert totals.tokens == EXPECTED["first"]["totals"]["tokens"] + 100
    assert green.totals().tokens == 1536 + 100


def test_a_newer_checkpoint_names_the_remedy() -> None:
    state = {"format": STATE_FORMAT + 1, "run_id": "x", "totals": {}}
    with pytest.raises(ConfigError, match="upgrade greentrain-torch"):
        GreenSession().load_state_dict(state)


def test_a_newer_estimate_is_left_out_and_said(gears: Path, caplog: pytest.LogCaptureFixture) -> None:
    (gears / "estimate.json").write_text(json.dumps({"format": 99, "energy_kwh": {}}), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        summary = summarize(read_run(gears))
    assert summary["estimate"] is None
    assert "format 99" in caplog.text and "upgrade greentrain-torch" in caplog.text


def _edit_json(path: Path, changes: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
