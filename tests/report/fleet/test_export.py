"""Exports, read back by DuckDB and by the csv module."""

import csv
import json
import os
from pathlib import Path

import duckdb
import pytest

from greentrain.errors import ConfigError, RunFolderError
from greentrain.report.fleet.index import Index
from greentrain.report.fleet.totals import RunSelection
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, showcase

EVIL = ("=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\tx", "\rx", 'quo"te, comma\nline')


@pytest.fixture
def fleet(tmp_path: Path) -> "Index":
    runs = tmp_path / "runs"
    showcase(runs)
    for i, text in enumerate(EVIL):
        folder = Folder(runs, f"r{i}", name=text, tags={"project": text, "user": "ann"}, created_unix_s=T0_S + 1 + i)
        folder.rank(0, [GPU, CPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)}, g_per_kwh=None)])
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    index = Index(runs, tmp_path / "cache.duckdb")
    index.refresh()
    return index


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_runs_as_csv(fleet: Index, tmp_path: Path) -> None:
    with fleet:
        fleet.export(tmp_path / "runs.csv")
        rows = {row.run_id: row for row in fleet.runs()}
    lines = _lines(tmp_path / "runs.csv")
    assert len(lines) == len(rows) == len(EVIL) + 2
    for line in lines:
        row = rows[line["run_id"]]
        assert line["energy_j"] == ("" if row.energy_j is None else repr(row.energy_j))
        assert line["operational_g"] == ("" if row.operational_g is None else repr(row.operational_g))
        assert json.loads(line["tags"]) == row.tags
        assert bool(line["error"]) == (row.error is not None)
    names = [line["name"] for line in lines if line["user"] == "ann"]
    assert names == [f"'{text}" for text in EVIL[:6]] + [EVIL[6]]
    assert next(line for line in lines if line["run_id"] == "r0")["created_utc"] == "2026-01-01 00:00:01"


def test_runs_as_parquet_keep_names_and_types(fleet: Index, tmp_path: Path) -> None:
    path = tmp_path / "it's.parquet"
    with fleet:
        fleet.export(path)
        rows = {row.run_id: row for row in fleet.runs()}
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT run_id, project, energy_j, tokens, error FROM read_parquet($1)", [str(path)]
        ).fetchall()
    assert {line[0] for line in found} == rows.keys()
    for run_id, project, energy_j, tokens, error in found:
        row = rows[run_id]
        assert (project, energy_j, tokens, error) == (row.project, row.energy_j, row.tokens, row.error)


def test_a_selection_of_runs(fleet: Index, tmp_path: Path) -> None:
    with fleet:
        fleet.export(tmp_path / "runs.csv", RunSelection(where={"project": "demo"}))
    assert [line["project"] for line in _lines(tmp_path / "runs.csv")] == ["demo"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_totals(fleet: Index, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"totals{suffix}"
    by = ["month", 'tag:pro"ject', "project"]
    with fleet:
        fleet.export_totals(path, by)
        totals = fleet.totals(by)
    with duckdb.connect() as connection:
        reader = "read_csv($1, header=true, all_varchar=false)" if suffix == ".csv" else "read_parquet($1)"
        found = connection.execute(f"SELECT month, energy_j, operational_g, runs FROM {reader}", [str(path)]).fetchall()
    assert found == [(t.key["month"], t.energy_j, t.operational_g, t.runs) for t in totals]


def test_totals_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with Index(tmp_path / "runs", tmp_path / "cache.duckdb") as empty:
        empty.refresh()
        empty.export_totals(tmp_path / "t.csv", ["project"])
        empty.export(tmp_path / "r.csv")
    assert _lines(tmp_path / "t.csv") == _lines(tmp_path / "r.csv") == []
    assert (tmp_path / "t.csv").read_text().startswith("project,runs,energy_j,")


def test_links_that_somebody_planted_beside_an_export_lead_it_nowhere(fleet: Index, tmp_path: Path) -> None:
    victim, shared = tmp_path / "victim", tmp_path / "shared"
    victim.write_text("mine", encoding="utf-8")
    shared.mkdir()
    for name in ("runs.csv", "runs.parquet", "totals.csv", "cache.duckdb"):
        part = f".{name}.{os.getpid()}.part"  # a process's number is no secret
        for planted in (part, f"tmp_{part}", f".{name}.part", f"tmp_{name}"):  # tmp_: DuckDB's own, beside what exists
            (shared / planted).symlink_to(victim)
    before = {path.name for path in shared.iterdir()}
    with fleet:
        fleet.export(shared / "runs.csv")
        fleet.export(shared / "runs.parquet")
        fleet.export_totals(shared / "totals.csv", ["project"])
    with Index(tmp_path / "runs", shared / "cache.duckdb") as index:
        index.refresh()
    assert victim.read_text(encoding="utf-8") == "mine"
    made = {path.name for path in shared.iterdir()} - before
    assert made == {"runs.csv", "runs.parquet", "totals.csv", "cache.duckdb"}


def test_what_cannot_be_written_is_said(fleet: Index, tmp_path: Path) -> None:
    with fleet:
        with pytest.raises(ConfigError, match=r"\.csv or \.parquet"):
            fleet.export(tmp_path / "runs.xlsx")
        for name in ("nowhere/runs.csv", "nowhere/runs.parquet"):
            with pytest.raises(RunFolderError, match="cannot write"):
                fleet.export(tmp_path / name)
        fleet.export(tmp_path / "runs.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache.duckdb", "runs", "runs.csv"]
