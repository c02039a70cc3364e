"""The index reads what changed, lists what is broken, and never depends on its cache."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import ConfigError, GreenTrainWarning, RunFolderError
from greentrain.ledger.totals import Totals
from greentrain.report.fleet import index
from greentrain.report.fleet.audit import audit, verify
from greentrain.report.fleet.index import Index, RefreshOutcome
from greentrain.report.fleet.reading import RunReading, read_folder
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, one_rank, showcase

ENTRY = entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)}, tokens=5)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "fleet.duckdb"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the folders that were read."""
    names: list[str] = []

    def reading(folder: Path) -> RunReading:
        names.append(folder.name)
        return read_folder(folder)

    monkeypatch.setattr(index, "read_folder", reading)
    return names


def _run(root: Path, name: str, **run: Any) -> Path:
    return Folder(root, name, **run).rank(0, [GPU, CPU], [ENTRY]).path


def test_a_run_is_read_again_only_when_its_files_have_changed(tmp_path: Path, cache: Path, read: list[str]) -> None:
    runs = tmp_path / "runs"
    for name in "abc":
        _run(runs, name)
    with Index(runs, cache) as first:
        assert first.refresh() == RefreshOutcome(added=3, changed=0, gone=0, broken=0)
        assert first.refresh() == RefreshOutcome(added=0, changed=0, gone=0, broken=0, unchanged=3)
    assert sorted(read) == ["a", "b", "c"]
    read.clear()
    Folder(runs, "d").rank(0, [GPU], [ENTRY])
    with (runs / "b" / "rank-00000.jsonl").open("a") as file:
        file.write("\n")
    (runs / "a" / "report.html").write_text("not a raw file")
    shutil.rmtree(runs / "c")
    with Index(runs, cache) as second:
        assert second.refresh() == RefreshOutcome(added=1, changed=1, gone=1, broken=0, unchanged=1)
        assert sorted(read) == ["b", "d"]
        assert sorted(row.run_id for row in second.runs()) == ["a", "b", "d"]
        assert second.totals()[0].energy_j == 3000.0


def test_a_resumed_run_grows(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    folder = Folder(runs).rank(0, [GPU], [ENTRY], reason=None)
    with Index(runs, cache) as fleet:
        fleet.refresh()
        assert (fleet.runs()[0].reason, fleet.runs()[0].energy_j) == (None, 1000.0)
        folder.rank(0, [GPU], [entry(T0_S + 60, T0_S + 70, {"GPU-0": device(500.0)})])
        assert fleet.refresh().changed == 1
        assert (fleet.runs()[0].reason, fleet.runs()[0].energy_j) == ("finished", 1500.0)


def test_rows_survive_the_cache(tmp_path: Path, cache: Path, read: list[str]) -> None:
    runs = tmp_path / "runs"
    showcase(runs)
    _run(runs, "tagged", tags={"project": 'quo"te\n', "user": "=1+1", "π": "🌱"})
    with Index(runs, cache) as fleet:
        fleet.refresh()
        rows, totals = fleet.runs(), fleet.totals(["month", "device", "provenance"])
    with Index(runs, cache) as fleet:
        assert fleet.refresh().unchanged == 2
        assert (fleet.runs(), fleet.totals(["month", "device", "provenance"])) == (rows, totals)
    assert len(read) == 2
    assert rows[0].tags == {"project": 'quo"te\n', "user": "=1+1", "π": "🌱"} or rows[1].tags["π"] == "🌱"


def _broken(runs: Path) -> dict[str, str]:
    """Write folders that are broken in many ways; return what is to be said of each."""
    _run(runs, "fine")
    _run(runs, "no journal").joinpath("rank-00000.jsonl").unlink()
    (_run(runs, "empty") / "rank-00000.jsonl").write_text("")
    (_run(runs, "json") / "run.json").write_text("{nonsense")
    (_run(runs, "list") / "run.json").write_text("[1]")
    (_run(runs, "deep") / "run.json").write_text("[" * 100_000)
    for name, line in {
        "newer": {"kind": "open", "format": 99},
        "other run": {"kind": "open", "format": 1, "run_id": "else", "rank": 0, "sensors": []},
        "no t0": {"kind": "entry", "t1": 3.0},
        "text": {"kind": "entry", "carbon": "x"},
        "eternal": json.loads((runs / "fine" / "rank-00000.jsonl").read_text().splitlines()[1]) | {"t1": 1e18, "n": 99},
    }.items():
        with (_run(runs, name) / "rank-00000.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    journal = _run(runs, "infinite") / "rank-00000.jsonl"
    journal.write_text(journal.read_text().replace('"j":1000.0', '"j":Infinity'))
    journal = _run(runs, "huge") / "rank-00000.jsonl"
    journal.write_text(journal.read_text().replace('"tokens":5', f'"tokens":{10**30}'))
    shutil.copy(path := _run(runs, "twice") / "rank-00000.jsonl", path.with_name("rank-00000 (copy).jsonl"))
    for name, facts in {
        "year 9e300": {"created_unix_s": 9e300},
        "many ranks": {"world_size": 10**30},
        "market": {"config": {"carbon": {"market_g_per_kwh": float("inf")}}},
    }.items():
        path = _run(runs, name) / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    journal = _run(runs, "guessed") / "rank-00000.jsonl"
    journal.write_text(journal.read_text().replace('"prov":"measured"', '"prov":"guessed"'))
    return {
        "no journal": "no rank-",
        "empty": "no complete line|no rank file has a complete line",
        "json": "run.json is no JSON",
        "list": "run.json holds a list",
        "deep": "run.json is no JSON",
        "newer": "format 99.*upgrade",
        "other run": "belongs to run 'else'",
        "no t0": r"cannot be read \(KeyError",
        "text": r"cannot be read \(TypeError",
        "eternal": "cannot be",
        "infinite": "not finite",
        "huge": "absurdly large",
        "guessed": "'guessed'",
        "twice": "two files of rank 0",
        "year 9e300": "created_unix_s is 9e\\+300",
        "many ranks": "world_size is 1e\\+30",
        "market": "market_g is inf",
    }


def test_broken_runs_are_listed_with_the_reason_and_stop_nobody(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    reasons = _broken(runs)
    with Index(runs, cache) as fleet:
        assert fleet.refresh().broken == len(reasons)
        rows = {row.folder.name: row for row in fleet.runs()}
        assert fleet.totals()[0].energy_j == 1000.0 and fleet.totals()[0].runs == 1
        fleet.export(tmp_path / "runs.parquet")
    assert rows.keys() == reasons.keys() | {"fine"}
    for name, reason in reasons.items():
        assert re.search(reason, rows[name].error or ""), (name, rows[name].error)
        assert rows[name].energy_j is None and rows[name].state(0.0) == "broken"


def test_a_torn_line_is_no_broken_run(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    with (_run(runs, "torn") / "rank-00000.jsonl").open("a") as file:
        file.write('{"kind":"entry","t0":1')
    with Index(runs, cache) as fleet:
        assert fleet.refresh().broken == 0
        assert fleet.runs()[0].energy_j == 1000.0


def test_links_in_a_circle_and_two_ways_to_a_run(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    _run(runs / "a" / "b", "deep")
    _run(runs / "a" / "b" / "c", "too deep")
    (runs / "a" / "circle").symlink_to(runs)
    (runs / "itself").symlink_to(runs / "itself")
    (runs / "again").symlink_to(runs / "a" / "b" / "deep")
    (runs / ".hidden").mkdir()
    with Index(runs, cache) as fleet:
        fleet.refresh()
        assert [row.run_id for row in fleet.runs()] == ["deep"]


def test_a_folder_that_cannot_be_read_is_listed(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    _run(runs, "fine")
    (runs / "locked").mkdir()
    scandir = os.scandir

    def refusing(path: Path) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("greentrain.report.fleet.find.os.scandir", refusing)
    with Index(runs, cache) as fleet:
        assert fleet.refresh().broken == 1
        rows = {row.folder.name: row.error for row in fleet.runs()}
    assert rows == {"fine": None, "locked": "the folder cannot be read: Permission denied"}


def test_a_name_that_is_not_utf_8_is_listed(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    _run(runs, "fine")
    shutil.copytree(runs / "fine", os.fsdecode(os.fsencode(runs) + b"/caf\xe9"))
    with Index(runs, cache) as fleet:
        assert fleet.refresh().broken == 1
        assert [row.error for row in fleet.runs() if row.error] == ["its name is not UTF-8: rename it"]
        assert fleet.refresh().added == 0
        fleet.export(tmp_path / "runs.csv")


def test_a_file_whose_name_is_not_utf_8_is_told(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    journal = _run(runs, "fine") / "rank-00000.jsonl"
    journal.rename(os.fsdecode(os.fsencode(journal.parent) + b"/rank-\xe9.jsonl"))
    with Index(runs, cache) as fleet:
        assert fleet.refresh().broken == 1
        assert [row.error for row in fleet.runs()] == ["the name of a file in it is not UTF-8: rename it"]
    document = audit(runs)
    assert [run["error"] for run in document["runs"]] == ["the name of a file in it is not UTF-8: rename it"]
    findings = [(str(f.kind), f.place) for f in verify(document, runs).findings]  # none of them differs
    assert findings == [("grown since", "fine/rank-?.jsonl"), ("grown since", "fine/run.json"), ("note", "fine")]


def test_half_a_character_in_a_tag_is_replaced(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    path = _run(runs, "half", tags={"\ud83d": "a\udf31", "project": "\ud83d"})
    assert "\\ud83d" in (path / "run.json").read_text()
    with Index(runs, cache) as fleet:
        assert fleet.refresh().broken == 0
        assert fleet.runs()[0].tags == {"?": "a?", "project": "?"}
        assert fleet.totals(["project"])[0].key == {"project": "?"}


def test_a_root_that_is_none_is_refused(tmp_path: Path, cache: Path) -> None:
    with Index(tmp_path / "nowhere", cache) as fleet, pytest.raises(RunFolderError, match="nowhere cannot be read"):
        fleet.refresh()


def test_a_root_that_leads_in_a_circle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "loop").symlink_to("loop")
    with Index(tmp_path / "loop") as fleet, pytest.raises(RunFolderError, match="loop cannot be read"):
        fleet.refresh()


def test_one_run_as_the_root(tmp_path: Path, cache: Path) -> None:
    path = one_rank(tmp_path)
    with Index(path, cache) as fleet:
        fleet.refresh()
        assert [row.folder for row in fleet.runs()] == [path]


@pytest.mark.parametrize("damage", ["text", "short", "version", "root", "tables"])
def test_a_cache_that_cannot_be_used_is_rebuilt(tmp_path: Path, cache: Path, read: list[str], damage: str) -> None:
    import duckdb

    runs = tmp_path / "runs"
    _run(runs, "a")
    with Index(runs, cache) as fleet:
        fleet.refresh()
    if damage == "text":
        cache.write_text("no database at all")
    elif damage == "short":
        cache.write_bytes(cache.read_bytes()[:5000])
    else:
        sql = {
            "version": "UPDATE meta SET value = '0' WHERE key = 'greentrain'",
            "root": "UPDATE meta SET value = '0' WHERE key = 'root'",
            "tables": "DROP TABLE cells",
        }[damage]
        with duckdb.connect(str(cache)) as connection:
            connection.execute(sql)
    for _ in range(2):
        with Index(runs, cache) as fleet:
            fleet.refresh()
            assert fleet.totals()[0].energy_j == 1000.0
    assert read == ["a", "a"]
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_somebody_elses_file_is_not_overwritten(tmp_path: Path) -> None:
    import duckdb

    (tmp_path / "runs").mkdir()
    notes = tmp_path / "notes.txt"
    notes.write_text("dear diary")
    with pytest.raises(ConfigError, match="no DuckDB file"):
        Index(tmp_path / "runs", notes)
    with duckdb.connect(str(tmp_path / "theirs.duckdb")) as connection:
        connection.execute("CREATE TABLE salaries (x INT)")
    with pytest.raises(ConfigError, match="'salaries'"):
        Index(tmp_path / "runs", tmp_path / "theirs.duckdb")
    assert notes.read_text() == "dear diary"


def test_a_cache_that_cannot_be_written_costs_one_warning(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    _run(runs, "a")
    (tmp_path / "file").write_text("")
    with Index(runs, tmp_path / "file" / "x.duckdb") as fleet:
        with pytest.warns(GreenTrainWarning, match="all runs are read each time") as caught:
            fleet.refresh()
            _run(runs, "b")
            fleet.refresh()
        assert len(caught) == 1
        assert fleet.totals()[0].runs == 2


def test_without_a_cache_folder_there_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    _run(runs, "a")
    monkeypatch.setattr(index, "default_path", lambda root: None)
    with Index(runs) as fleet, pytest.warns(GreenTrainWarning, match="no cache folder") as caught:
        fleet.refresh()
        fleet.refresh()
    assert len(caught) == 1


def test_the_cache_lies_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENTRAIN_CACHE_DIR", str(tmp_path / "mine"))
    for name in "ab":
        _run(tmp_path / name, "run")
        with Index(tmp_path / name) as fleet:
            fleet.refresh()
    assert len(list((tmp_path / "mine" / "fleet").glob("*.duckdb"))) == 2


def test_two_processes_at_once(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    for i in range(30):
        _run(runs, f"r{i}")
    code = (
        "import sys; from pathlib import Path; from greentrain.report.fleet.index import Index\n"
        "for _ in range(3):\n"
        "    with Index(Path(sys.argv[1]), Path(sys.argv[2])) as fleet:\n"
        "        fleet._saved = False; fleet.refresh(); print(fleet.totals()[0].energy_j)"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(runs), str(cache)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for child in children:
        out, err = child.communicate(timeout=240)
        assert (child.returncode, err) == (0, "")
        assert out.split() == ["30000.0"] * 3
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_a_cache_that_another_program_holds_is_done_without(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    _run(runs, "a")
    with Index(runs, cache) as fleet:
        fleet.refresh()
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(cache)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "1\n"
        with Index(runs, cache) as fleet:
            assert fleet.refresh().added == 1
            assert fleet.totals()[0].energy_j == 1000.0
    finally:
        child.communicate(timeout=240)


def test_a_copy_of_a_run_is_counted_once(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    path = _run(runs, "a")
    shutil.copytree(path, runs / "backup" / "a")
    with Index(runs, cache) as fleet:
        fleet.refresh()
        assert fleet.totals()[0].energy_j == 1000.0
        assert {row.folder: row.duplicate_of for row in fleet.runs()} == {path: None, runs / "backup" / "a": path}
        assert len(fleet.totals(["project"])) == 1
        shutil.rmtree(path)
        fleet.refresh()
        assert fleet.totals()[0].energy_j == 1000.0
        assert fleet.runs()[0].duplicate_of is None


def test_two_runs_of_one_id_are_both_counted(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    _run(runs / "ann", "baseline")
    Folder(runs / "bo", "baseline").rank(0, [GPU, CPU], [ENTRY], t_s=T0_S + 3.0)
    with Index(runs, cache) as fleet:
        fleet.refresh()
        assert fleet.totals()[0].energy_j == 2000.0
        assert [row.duplicate_of for row in fleet.runs()] == [None, None]
    assert audit(runs)["totals"]["energy_j"] == 2000.0


def test_the_part_before_a_resume_elsewhere_is_counted_once(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    first = _run(runs / "ann", "baseline")
    later = entry(T0_S + 50, T0_S + 60, {"GPU-0": device(500.0)})
    on = Folder(runs / "bo", "baseline").rank(0, [GPU, CPU], [later], carried=Totals.of(ENTRY)).path
    with Index(runs, cache) as fleet:
        fleet.refresh()
        assert fleet.totals()[0].energy_j == 1500.0
        assert {row.folder: row.duplicate_of for row in fleet.runs()} == {on: None, first: on}


def test_ranks_of_one_run_in_two_folders_are_both_counted(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    for rank in range(2):
        folder = Folder(runs / f"node-{rank}", "job", world_size=2)
        folder.rank(rank, [GPU], [ENTRY])
    with Index(runs, cache) as fleet:
        fleet.refresh()
        assert fleet.totals()[0].energy_j == 2000.0
        assert [(row.duplicate_of, row.missing_ranks) for row in fleet.runs()] == [(None, 1)] * 2


def test_progress_is_told(tmp_path: Path, cache: Path) -> None:
    runs = tmp_path / "runs"
    for name in "abc":
        _run(runs, name)
    told: list[tuple[int, int]] = []
    with Index(runs, cache) as fleet:
        fleet.refresh(lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_without_duckdb_the_error_names_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from pathlib import Path; from greentrain.report.fleet.index import Index\n"
        "try: Index(Path('.'))\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "greentrain-torch[fleet]" in done.stdout
