"""``greentrain report --all``: what it prints, writes and returns."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from greentrain.cli.app import app, main
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, showcase


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("GREENTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "runs"
    showcase(root)
    folder = Folder(root, "other", tags={"project": "\x1b[31m[b]evil"}, name="x", created_unix_s=T0_S + 1)
    entries = [entry(T0_S - 10, T0_S, {"GPU-0": device(1000.0)}, g_per_kwh=None)]
    folder.rank(0, [GPU, CPU], entries, reason=None)
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{")
    return root


def _report(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_the_table(runs: Path) -> None:
    done = _report("--all", runs)
    assert done.exit_code == 0, done.output
    first, demo, evil, whole, *rest = (line.split() for line in done.stdout.splitlines())
    assert first[:3] == ["project", "runs", "energy"]
    assert demo[:4] == ["demo", "1", "14.0", "kWh"]
    assert evil[:4] == ["\N{REPLACEMENT CHARACTER}[31m[b]evil", "1", "278", "mWh"]
    assert evil[-2:] == ["unknown", "0"] or evil[-1] == "unknown"
    assert whole[:2] == ["all", "2"]
    text = " ".join(" ".join(line) for line in rest)
    assert "Joules: 91.5 % measured, 8.5 % modelled; missing: 14.9 % of the device time has no reading" in text
    assert "278 mWh have no carbon intensity and are in no gram." in text
    assert "Runs: 1 finished, 1 killed." in text
    assert f"Broken: {runs / 'broken'}: run.json is no JSON" in text
    assert "\x1b" not in done.stdout


def test_groups_selection_and_files(runs: Path, tmp_path: Path) -> None:
    totals, table = tmp_path / "totals.csv", tmp_path / "runs.parquet"
    done = _report("--all", runs, "--by", "month, zone", "--export", table, "--export-totals", totals)
    assert done.exit_code == 0, done.output
    assert f"Written: {table}" in done.stdout and f"Written: {totals}" in done.stdout
    with totals.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["month"], line["zone"]) for line in lines] == [("2025-12", "FRA"), ("2026-01", "US-CAL-CISO")]
    assert table.stat().st_size > 0
    done = _report("--all", runs, "--by", "device", "--since", "2026-01", "--where", "project=demo")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:5]] == ["gpu", "cpu", "dram", "all"]
    assert "Broken" in done.stdout


def test_json(runs: Path) -> None:
    done = _report("--all", runs, "--json", "--by", "project", "--where", "tag:project=demo")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [(t["key"], t["runs"]) for t in told["totals"]] == [({"project": "demo"}, 1)]
    assert told["all"]["energy_j"] == pytest.approx(50322699.09938271)
    assert [item["run_id"] for item in told["broken"]] == ["broken"]
    assert told["states"] == {"finished": 1}
    told = json.loads(_report("--all", runs, "--json", "--by", "").stdout)
    assert len(told["totals"]) == 1 and told["totals"][0]["key"] == {}
    assert [item["state"] for item in told["unfinished"]] == ["killed"]


def test_no_runs_at_all(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    done = _report("--all", tmp_path / "runs", "--cache", tmp_path / "c.duckdb")
    assert done.exit_code == 0
    assert "Runs: 0 finished." in done.stdout
    assert (tmp_path / "c.duckdb").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--all", "{runs}", "{runs}/other"], "--all"),
        ([], "--all"),
        (["{runs}/other", "--by", "month"], "need --all"),
        (["{runs}/other", "--where", "project=x"], "need --all"),
        (["--all", "{runs}", "--by", "colour"], "--by is 'colour'"),
        (["--all", "{runs}", "--since", "2026"], "--since is '2026'"),
        (["--all", "{runs}", "--where", "project"], "NAME=VALUE"),
        (["--all", "{runs}", "--export", "runs.xlsx"], "--export is 'runs.xlsx'"),
        (["--all", "{runs}", "--export-totals", "t.json"], "--export-totals is 't.json'"),
        (["--all", "{runs}", "--cache", "{runs}/broken/run.json"], "no DuckDB file"),
    ],
)
def test_wrong_usage_is_2(runs: Path, words: list[str], text: str) -> None:
    done = _report(*[word.format(runs=runs) for word in words])
    assert done.exit_code == 2
    assert text in " ".join(done.output.split())


def test_a_root_that_is_none_is_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["greentrain", "report", "--all", str(tmp_path / "none")])
    monkeypatch.setenv("GREENTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "none cannot be read" in capsys.readouterr().err
