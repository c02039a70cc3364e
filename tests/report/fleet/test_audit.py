"""An audit finds every change of a byte, tells growth apart, and says which figure differs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from greentrain.cli.app import app
from greentrain.errors import ConfigError
from greentrain.policy.action_table import ActionTable
from greentrain.policy.cluster.planner import solve_alone
from greentrain.policy.menu import Menu
from greentrain.report.fleet.audit import AuditVerdict, FindingKind, audit, checksum, read_document, sign, verify
from greentrain.report.fleet.index import Index
from tests.report.run_folders import GPU, T0_S, Folder, device, entry, four_ranks, one_rank, sensor

KEY = b"0123456789abcdef"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    one_rank(root)
    four_ranks(root / "deep")
    return root


def _findings(verdict: AuditVerdict, kind: FindingKind) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for finding in verdict.findings:
        if finding.kind is kind:
            out.setdefault(finding.place, []).append(finding.text)
    return out


def _differs(document: dict[str, Any], root: Path, key: bytes | None = None) -> dict[str, list[str]]:
    verdict = verify(json.loads(json.dumps(document)), root, key=key)
    found = _findings(verdict, FindingKind.DIFFERS)
    assert verdict.ok == (not found)
    return found


def test_untouched_runs_are_as_audited(runs: Path, tmp_path: Path) -> None:
    document = audit(runs)
    verdict = verify(document, runs)
    assert (verdict.ok, verdict.runs, verdict.files, list(verdict.findings)) == (True, 2, 7, [])
    with Index(runs, tmp_path / "c.duckdb") as index:
        index.refresh()
        (total,) = index.totals()
    for name in ("energy_j", "measured_j", "modelled_j", "operational_g", "embodied_g", "total_g", "tokens"):
        assert document["totals"][name] == pytest.approx(getattr(total, name), rel=1e-12)
    (runs / "demo" / "report.html").write_text("reports are no raw files")
    moved = shutil.copytree(runs, tmp_path / "elsewhere")
    assert verify(document, moved).ok


def test_one_byte_of_a_journal(runs: Path) -> None:
    document = audit(runs)
    path = runs / "deep" / "four" / "rank-00002.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"j":3200.0', b'"j":9200.0', 1))
    differs = _differs(document, runs)
    at = data.index(b'"j":3200.0') + 4
    line, column = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
    assert differs["deep/four/rank-00002.jsonl"] == [
        f"the first {len(data)} bytes, which were audited, have changed:"
        f" in line {line}, byte {column} is '9' and was '3'"
    ]
    assert "energy_j is 157200.0 in the document and 163200.0 from the files" in differs["deep/four"]
    assert set(differs) == {"deep/four/rank-00002.jsonl", "deep/four"}


def test_every_byte_counts(tmp_path: Path) -> None:
    path = Folder(tmp_path, "x").rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1.0)})]).path
    document = audit(path)
    journal = path / "rank-00000.jsonl"
    data = journal.read_bytes()
    for at in range(0, len(data), 97):
        journal.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        (text, *_) = _differs(document, path)["rank-00000.jsonl"]
        line, column = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
        assert f"in line {line}, byte {column} is " in text and text.endswith(f"and was {chr(data[at])!a}"), (at, text)
    journal.write_bytes(data.replace(b"GPU", b"gPU", 1).replace(b"forward", b"Forward", 1))  # two at once
    assert _differs(document, path)["rank-00000.jsonl"][0].endswith("have changed")
    journal.write_bytes(data)
    assert not _differs(document, path)


def test_a_rank_file_that_is_gone(runs: Path) -> None:
    document = audit(runs)
    (runs / "deep" / "four" / "rank-00003.jsonl").unlink()
    differs = _differs(document, runs)
    assert differs["deep/four/rank-00003.jsonl"] == ["the file is gone"]
    assert any(text.startswith("energy_j is 157200.0 in the document and 117600.0") for text in differs["deep/four"])
    shutil.rmtree(runs / "demo")
    assert _differs(document, runs)["demo"] == ["the folder is gone"]


def test_a_journal_that_was_cut(runs: Path) -> None:
    document = audit(runs)
    path = runs / "demo" / "rank-00000.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    assert _differs(document, runs)["demo/rank-00000.jsonl"] == ["the file is 10 bytes shorter"]


def test_a_run_that_went_on_has_grown(runs: Path) -> None:
    folder = Folder(runs, "live", world_size=2).rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1.0)})])
    with (folder.path / "rank-00000.jsonl").open("a") as file:
        file.write('{"kind":"ent')  # audited in the middle of a write
    document = sign(audit(runs), KEY)
    folder.rank(0, [GPU], [entry(T0_S + 10, T0_S + 20, {"GPU-0": device(2.0)})])
    folder.rank(1, [sensor("GPU-1", "gpu", "H100")], [entry(T0_S, T0_S + 10, {"GPU-1": device(4.0)})])
    data = json.loads((folder.path / "run.json").read_text())
    (folder.path / "run.json").write_text(json.dumps({**data, "parameters_by_layer": [1]}, indent=3))
    verdict = verify(document, runs, key=KEY)
    assert verdict.ok
    grown = _findings(verdict, FindingKind.GROWN)
    assert set(grown) == {"live/rank-00000.jsonl", "live/rank-00001.jsonl", "live/run.json"}
    assert "appended" in grown["live/rank-00000.jsonl"][0]
    assert grown["live/rank-00001.jsonl"] == ["a new file"]
    assert "parameters_by_layer" in grown["live/run.json"][0]


def test_what_a_run_learns_after_the_audit_is_growth_and_no_change(runs: Path) -> None:
    path = runs / "demo" / "run.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "parameters": None}))
    document = audit(runs)
    path.write_text(json.dumps({**data, "parameters": 241_024}, indent=3))
    verdict = verify(document, runs)
    assert verdict.ok
    assert "with parameters;" in _findings(verdict, FindingKind.GROWN)["demo/run.json"][0]
    path.write_text(json.dumps({key: value for key, value in data.items() if key != "parameters"}))
    assert _differs(document, runs)["demo/run.json"] == ["changed or gone: parameters"]
    audited = audit(runs)
    path.write_text(json.dumps({**data, "run_id": None}))
    assert "run_id" in _differs(audited, runs)["demo/run.json"][0]


def test_growth_does_not_hide_a_change_before_it(runs: Path) -> None:
    document = audit(runs)
    path = runs / "demo" / "rank-00000.jsonl"
    path.write_bytes(path.read_bytes().replace(b"3000.0", b"3001.0", 1) + b'{"kind":"event"}\n')
    assert "have changed" in _differs(document, runs)["demo/rank-00000.jsonl"][0]


def test_a_changed_field_of_run_json_is_named(runs: Path) -> None:
    document = audit(runs)
    path = runs / "demo" / "run.json"
    data = json.loads(path.read_text())
    data["tags"] = {"project": "other"}
    data["config"]["carbon"]["market_g_per_kwh"] = 1.0
    path.write_text(json.dumps(data))
    differs = _differs(document, runs)
    assert differs["demo/run.json"] == ["changed or gone: config, tags"]
    assert differs["demo"][0].startswith("market_g is unknown in the document")
    path.unlink()
    assert _differs(document, runs)["demo/run.json"] == ["the file is gone"]


@pytest.mark.parametrize("again", [False, True], ids=["edited", "edited with a new checksum"])
@pytest.mark.parametrize(
    ("edit", "place", "text"),
    [
        (lambda d: d["totals"].update(energy_j=1.0), "totals of all runs", "energy_j is 1.0 in the document"),
        (lambda d: d["runs"][1]["totals"].update(operational_g=None), "demo", "operational_g is unknown"),
        (lambda d: d["runs"][1]["totals"].update(tokens=7), "demo", "tokens is 7 in the document and 90000 from"),
        (lambda d: d["runs"][1]["files"][0].update(sha256="0" * 64), "demo/rank-00000.jsonl", "have changed"),
        (lambda d: d["runs"].pop(), "totals of all runs", "energy_j"),
    ],
)
def test_edited_documents(
    runs: Path, edit: Callable[[dict[str, Any]], None], place: str, text: str, again: bool
) -> None:
    document = sign(audit(runs), KEY)
    assert not _differs(document, runs, KEY)
    edit(document)
    if again:
        document["checksum"]["value"] = checksum(document)
    differs = _differs(document, runs, KEY)
    assert text in differs[place][0]
    assert ("its checksum" in differs["the document"][0]) != again
    assert "its signature" in differs["the document"][-1]


def test_another_key_and_no_signature(runs: Path) -> None:
    document = audit(runs)
    assert "no signature" in _differs(document, runs, KEY)["the document"][0]
    signed = sign(document, KEY)
    assert "another key" in _differs(signed, runs, b"another key of 16")["the document"][0]
    assert not _differs(signed, runs, KEY)
    note = _findings(verify(signed, runs), FindingKind.NOTE)
    assert "not checked" in note["the document"][0]


def test_broken_runs_copies_and_new_runs(runs: Path) -> None:
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    shutil.copytree(runs / "demo", runs / "demo-copy")
    document = audit(runs)
    by_folder = {run["folder"]: run for run in document["runs"]}
    assert "run.json is no JSON" in by_folder["broken"]["error"]
    assert by_folder["demo-copy"]["duplicate_of"] == "demo"
    assert document["totals"]["energy_j"] == 63000.0 + 157200.0
    assert not _differs(document, runs)
    one_rank(runs / "new")
    assert _findings(verify(document, runs), FindingKind.NOTE)["new/demo"] == ["a run that was not there at the audit"]
    (runs / "broken" / "run.json").write_text("[")
    assert "have changed" in _differs(document, runs)["broken/run.json"][0]


def test_nothing_to_audit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run folder"):
        audit(tmp_path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.pop("runs"),
        lambda d: d.update(format=2),
        lambda d: d.update(kind="x"),
        lambda d: d.update(signature={"algorithm": "none", "value": ""}),
        lambda d: d["runs"][0].update(folder="../../etc"),
        lambda d: d["runs"][0].update(folder="/etc"),
        lambda d: d["runs"][0]["files"][0].update(name="passwd"),
        lambda d: d["runs"][0]["files"][0].update(name="rank-/../../x.jsonl"),
        lambda d: d["runs"][0]["files"][0].update(size_bytes="1"),
        lambda d: d["runs"][0]["totals"].pop("energy_j"),
        lambda d: d["runs"][0]["totals"].update(energy_j="1"),
        lambda d: d["totals"].update(energy_j=float("nan")),
        lambda d: d.update(note="\ud800"),
    ],
)
def test_what_is_no_document_is_refused(runs: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    document = audit(runs)
    edit(document)
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="no audit document"):
        read_document(path)


def test_a_key_that_stands_twice_is_refused(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(audit(runs)).replace('{"format": 1', '{"format": 1, "format": 1', 1))
    with pytest.raises(ConfigError, match="twice"):
        read_document(path)


def _command(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, words)])


def test_the_command(runs: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY + b"\n")
    done = _command(runs)
    assert done.exit_code == 0 and json.loads(done.stdout)["kind"] == "greentrain audit"
    assert not (runs / "audit.json").exists()
    done = _command(runs, "--write", "--key-file", key)
    assert done.exit_code == 0, done.output
    assert "2 runs, 7 files, 61.2 Wh, signed" in done.stdout
    done = _command("--verify", runs / "audit.json", "--key-file", key)
    assert done.exit_code == 0, done.output
    assert "as audited: 2 runs, 7 files" in done.stdout and "signature valid" in done.stdout
    done = _command("--verify", runs / "audit.json", runs, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["ok"]
    with (runs / "demo" / "rank-00000.jsonl").open("r+") as file:
        file.write("[")
    done = _command("--verify", runs / "audit.json")
    assert done.exit_code == 1
    assert "differs: demo/rank-00000.jsonl: the first" in done.stdout
    assert json.loads(_command("--verify", runs / "audit.json", "--json").stdout)["ok"] is False


def test_the_command_needs_no_duckdb(runs: Path) -> None:
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from greentrain.cli import main; sys.argv = ['greentrain', 'audit', *sys.argv[1:]]; main()"
    )
    for words in ([str(runs), "--write"], ["--verify", str(runs / "audit.json")]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_wrong_usage_of_the_command_is_2(runs: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"short")
    document = tmp_path / "a.json"
    document.write_text(json.dumps(audit(runs)))
    for words, text in (
        ([], "give a run folder"),
        ([runs, "--json"], "--json for --verify"),
        (["--verify", document, "--write"], "--write is for a new"),
        ([runs, "--key-file", key], "holds 5 bytes"),
        ([runs, "--key-file", tmp_path / "none"], "cannot be read"),
        (["--verify", tmp_path / "none.json"], "cannot be read"),
        (["--verify", runs / "demo" / "run.json"], "no audit document"),
        ([tmp_path / "empty"], "no run folder"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        done = _command(*words)
        assert (done.exit_code, text in " ".join(done.output.split())) == (2, True), done.output
    assert _command(runs / "demo", "--write").exit_code == 0
    done = _command(runs / "demo", "--write")
    assert done.exit_code == 2 and "an audit is kept" in " ".join(done.output.split())


def test_a_plan_is_kept_and_a_change_of_it_located(runs: Path) -> None:
    folder = next(path for path in sorted(runs.iterdir()) if (path / "run.json").exists())
    menu = Menu.of(
        ActionTable.declare(
            [
                {"gear": "bf16", "tokens_per_s": 100, "power_w": 500},
                {"gear": "fp8", "tokens_per_s": 150, "power_w": 550},
            ],
            device="declared",
        )
    )
    plan = solve_alone(np.array([300.0, 100.0, 250.0]), np.arange(4, dtype=np.float64) * 3600.0, 700_000.0, menu)
    assert plan is not None
    path = folder / "plan.json"
    path.write_text(json.dumps(plan.to_dict()))
    document = audit(runs)
    assert all(run["plan_error"] is None for run in document["runs"])
    assert verify(document, runs).ok
    text = path.read_text()
    path.write_text(text.replace("300.0", "310.0"))
    (found,) = _differs(document, runs).items()
    assert found[0].endswith("plan.json")
    assert any("SHA-256" in line for line in found[1])
    assert any("SHA-256" in str(run["plan_error"]) for run in audit(runs)["runs"])
    path.unlink()
    assert "gone" in str(_differs(document, runs))
    later = solve_alone(np.array([100.0, 250.0]), np.arange(3, dtype=np.float64) * 3600.0, 400_000.0, menu)
    assert later is not None
    path.write_text(json.dumps(later.to_dict()))  # of a run that was brought back: another plan, and right
    assert verify(document, runs).ok
