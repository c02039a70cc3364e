"""Files of regulators and standards: their figures are the run's, what nobody knows stays open, a byte is located."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from greentrain.cli.app import app
from greentrain.errors import ConfigError
from greentrain.ledger.totals import Totals
from greentrain.report import RunReport
from greentrain.report.fleet.audit import FindingKind, audit, verify
from greentrain.report.standards import FILES, OPEN, first_difference, read_contracts, write_standard
from tests.report.run_folders import GPU, T0_S, Folder, device, entry, four_ranks, one_rank

KWH = 3.6e6
NEWLINE = b"\n"


def _two_hours(root: Path, *, g_per_kwh: float | None = 400.0) -> Path:
    return _begun(root, g_per_kwh=g_per_kwh).path


def _begun(root: Path, *, g_per_kwh: float | None = 400.0, tokens: int = 1000) -> Folder:
    """One GPU, 2 kWh in an interval of which a quarter lies before 01:00, and 1 kWh after it; PUE 1.2."""
    start = T0_S + 3600.0
    rows = [
        entry(start - 5, start + 15, {"GPU-0": device(2 * KWH)}, g_per_kwh=g_per_kwh, tokens=tokens, embodied_g=3.0),
        entry(start + 15, start + 25, {"GPU-0": device(KWH)}, g_per_kwh=g_per_kwh, tokens=tokens, embodied_g=3.0),
    ]
    return Folder(root, "two", parameters=10**9, tags={"licence": "Apache-2.0 | or MIT"}).rank(0, [GPU], rows)


def _rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / FILES["scope2-hourly"]).read_text())))


def _annex(folder: Path) -> dict[tuple[str, str], str]:
    lines = write_standard(folder, "annex-xi").read_text().splitlines()
    cells = [re.split(r"(?<!\\)\|", line) for line in lines if re.match(r"\| \d", line)]
    return {(row[1].strip(), row[2].strip()): row[3].strip() for row in cells}


def test_annex_xi_has_energy_compute_and_time_and_leaves_the_rest_open(tmp_path: Path) -> None:
    folder = _two_hours(tmp_path)
    told = _annex(folder)
    pue = RunReport.read(folder).summary["energy"]["pue"]
    assert told["2 (e)", "energy consumption of this training, IT equipment (MWh)"] == "0.003"
    assert float(told["2 (e)", "energy consumption of this training, with PUE (MWh)"]) == pytest.approx(
        0.003 * pue, 5e-3
    )
    assert told["2 (d)", "floating point operations"] == "1.2e+13"  # 6 x 1e9 x 2,000
    assert float(told["2 (d)", "training time, wall clock (days)"]) == pytest.approx(30 / 86400, 1e-3)
    assert told["1 (f)", "licence"] == "Apache-2.0 \\| or MIT"
    assert {told[key] for key in told if key[0] in ("1 (a)", "1 (b)", "1 (c)", "2 (b)", "2 (c)")} == {OPEN}
    assert {key[0] for key in told} == {*(f"1 ({c})" for c in "abcdef"), *(f"2 ({c})" for c in "abcde")}


def test_annex_xi_of_a_run_that_knows_no_energy_states_none(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "x").rank(0, [GPU], []).path
    told = _annex(folder)
    assert {value for (point, _), value in told.items() if point == "2 (e)"} == {OPEN}
    assert told["2 (d)", "floating point operations"] == OPEN


def test_sci_for_ai_is_of_the_stage_model_training_in_the_units_of_the_specification(tmp_path: Path) -> None:
    folder = _two_hours(tmp_path)
    document = json.loads(write_standard(folder, "sci-ai").read_text())
    summary = RunReport.read(folder).summary
    total_g = summary["carbon"]["operational_location_g"] + summary["carbon"]["embodied_g"]["mid"]
    scores = {score["functional_unit"]: score for score in document["scores"]}
    assert scores["training token"]["g_per_unit"] == pytest.approx(total_g / 2000, 1e-8)
    assert scores["billion parameters"]["g_per_unit"] == pytest.approx(total_g, 1e-8)  # of which it has one
    assert scores["FLOP"]["g_per_unit"] == pytest.approx(total_g / 1.2e13, 1e-8)
    assert document["boundary"]["model training"] == "this run"
    assert [stage for stage, told in document["boundary"].items() if OPEN in told] == [
        "data engineering", "system integration", "end of life"
    ]  # fmt: skip
    unpriced = json.loads(write_standard(_two_hours(tmp_path / "b", g_per_kwh=None), "sci-ai").read_text())
    assert (unpriced["operational_g"], unpriced["scores"]) == (None, [])


def test_hours_sum_to_the_run_and_an_interval_over_the_hour_is_cut(tmp_path: Path) -> None:
    folder = _two_hours(tmp_path)
    write_standard(folder, "scope2-hourly")
    first, second = _rows(folder)
    energy = RunReport.read(folder).summary["energy"]
    carbon = RunReport.read(folder).summary["carbon"]
    assert [row["hour_utc"] for row in (first, second)] == ["2026-01-01T00:00Z", "2026-01-01T01:00Z"]
    assert float(first["energy_kwh"]) == pytest.approx(0.5 * energy["pue"], 1e-8)
    both = [float(row["energy_kwh"]) for row in (first, second)]
    assert sum(both) == pytest.approx(energy["facility_energy_kwh"], 1e-8)
    assert sum(float(row["location_g"]) for row in (first, second)) == pytest.approx(
        carbon["operational_location_g"], 1e-8
    )
    assert first["location_basis"] == "average"
    assert (first["matched_kwh"], first["market_g"]) == ("", "")  # no certificates: nothing is said by that method


def test_four_ranks_and_an_earlier_part_are_in_the_hours(tmp_path: Path) -> None:
    folder = four_ranks(tmp_path)
    write_standard(folder, "scope2-hourly")
    assert sum(float(row["energy_kwh"]) for row in _rows(folder)) == pytest.approx(
        RunReport.read(folder).summary["energy"]["facility_energy_kwh"], 1e-8
    )
    carried = Totals(energy_j=KWH, facility_j=1.5 * KWH, duration_s=60.0, operational_g=600.0)
    row = entry(T0_S, T0_S + 10, {"GPU-0": device(KWH)})
    went_on = Folder(tmp_path, "went-on").rank(0, [GPU], [row], carried=carried).path
    write_standard(went_on, "scope2-hourly")
    assert next((row["hour_utc"], row["energy_kwh"]) for row in _rows(went_on)) == ("", "1.5")


def test_a_certificate_covers_its_own_hour_and_zone_and_no_more(tmp_path: Path) -> None:
    folder = _two_hours(tmp_path)
    zone = RunReport.read(folder).summary["carbon"]["sources"][0]["zone"]
    pue = RunReport.read(folder).summary["energy"]["pue"]
    contracts = tmp_path / "mine.csv"
    contracts.write_text(
        "timestamp_utc,kwh,g_per_kwh,zone,residual_g_per_kwh\n"
        f"2026-01-01T00:00Z,100,20,{zone},700\n"  # more than the hour has: the rest is not carried over
        "2026-01-01T01:00Z,50,0,XX,\n"  # elsewhere
        f"2026-01-01T01:00Z,1,10,{zone},700\n"
        "2026-01-01T02:00Z,9,0,,\n"
    )
    write_standard(folder, "scope2-hourly", contracts)
    first, second = _rows(folder)
    assert float(first["matched_kwh"]) == pytest.approx(0.5 * pue, 1e-8)
    assert float(first["market_g"]) == pytest.approx(0.5 * pue * 20, 1e-8)
    assert float(second["matched_kwh"]) == 1.0
    assert float(second["market_g"]) == pytest.approx(10 + (2.5 * pue - 1) * 700, 1e-8)
    contracts.write_text(f"timestamp_utc,kwh,g_per_kwh,zone\n2026-01-01T01:00Z,1,10,{zone}\n")
    write_standard(folder, "scope2-hourly", contracts)
    second = _rows(folder)[1]
    assert (second["matched_g"], second["market_g"]) == ("10", "")  # no residual mix: the rest is not known


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "1: the column 'g_per_kwh' is not there"),
        ("timestamp_utc,kwh,g_per_kwh\n2026-01-01T00:00Z,-1,0\n", "2: kwh is '-1'"),
        ("timestamp_utc,kwh,g_per_kwh\n2026-01-01T00:00Z,1,\n", "2: g_per_kwh is ''"),
        ("timestamp_utc,kwh,g_per_kwh\n2026-01-01T00:30Z,1,0\n", "2: timestamp_utc is '2026-01-01T00:30Z'"),
        ("timestamp_utc,kwh,g_per_kwh\n2026-01-01T00:00,1,0\n", "2: timestamp_utc is '2026-01-01T00:00'"),
        ("timestamp_utc,kwh,g_per_kwh\nnoon,1,0\n", "2: timestamp_utc is 'noon'"),
    ],
)
def test_wrong_certificates_are_told_with_line_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"{path}:{said}")):
        read_contracts(path)


@pytest.mark.parametrize("standard", sorted(FILES))
def test_one_changed_byte_of_a_file_is_located_from_the_raw_journals(tmp_path: Path, standard: str) -> None:
    folder = _two_hours(tmp_path)
    contracts = tmp_path / "mine.csv"
    contracts.write_text("timestamp_utc,kwh,g_per_kwh\n2026-01-01T00:00Z,1,0\n2026-01-01T01:00Z,100,0\n")
    for each in FILES:
        write_standard(folder, each, contracts if each == "scope2-hourly" else None)
    document = json.loads(json.dumps(audit(folder)))
    assert verify(document, folder).ok and first_difference(folder, standard) is None
    path = folder / FILES[standard]
    data = path.read_bytes()
    for at in range(5, len(data), len(data) // 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        findings = [f for f in verify(document, folder).findings if f.kind is FindingKind.DIFFERS]
        line = data.count(NEWLINE, 0, at) + 1
        assert {finding.place for finding in findings} == {path.name}
        assert f"line {line} is " in findings[0].text and "the raw journals give" in findings[0].text, at
        assert f"in line {line}, byte {at - data.rfind(NEWLINE, 0, at)} is " in findings[1].text
    path.write_bytes(data)
    journal = folder / "rank-00000.jsonl"
    raw = journal.read_bytes()
    at = raw.index(b'"j":3600000') + 4
    journal.write_bytes(raw[:at] + b"4" + raw[at + 1 :])
    places = {f.place: f.text for f in verify(document, folder).findings if f.kind is FindingKind.DIFFERS}
    assert f"in line {raw.count(NEWLINE, 0, at) + 1}, byte " in places["rank-00000.jsonl"]
    assert {FILES["annex-xi"], FILES["sci-ai"], FILES["scope2-hourly"]} <= places.keys()


def test_changed_certificates_and_a_file_that_is_gone(tmp_path: Path) -> None:
    folder = _two_hours(tmp_path)
    contracts = tmp_path / "mine.csv"
    contracts.write_text("timestamp_utc,kwh,g_per_kwh\n2026-01-01T00:00Z,9,0\n2026-01-01T01:00Z,9,50\n")
    write_standard(folder, "scope2-hourly", contracts)
    write_standard(folder, "annex-xi")
    document = audit(folder)
    kept = folder / "contracts.csv"
    kept.write_text(kept.read_text().replace("9,50", "9,10"))
    (folder / FILES["annex-xi"]).unlink()
    places = {f.place: f.text for f in verify(document, folder).findings if f.kind is FindingKind.DIFFERS}
    assert "in line 3, byte 21 is '1' and was '5'" in places["contracts.csv"]
    assert "line 3 is " in places["scope2_hourly.csv"]
    assert places["annex_xi.md"] == "the file is gone"


def test_a_file_written_again_of_a_run_that_went_on_has_grown(tmp_path: Path) -> None:
    run = _begun(tmp_path)
    write_standard(run.path, "scope2-hourly")
    document = audit(run.path)
    run.rank(0, [GPU], [entry(T0_S + 9e3, T0_S + 9010, {"GPU-0": device(5.0)})])
    (stale,) = (f for f in verify(document, run.path).findings if f.place == "scope2_hourly.csv")
    assert (stale.kind, stale.text) == (FindingKind.NOTE, "older than its journals, which have grown: write it again")
    write_standard(run.path, "scope2-hourly")
    again = verify(document, run.path)
    assert again.ok and {f.kind for f in again.findings} == {FindingKind.GROWN}


def test_the_command_writes_them_and_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    folder = one_rank(tmp_path)
    done = CliRunner().invoke(app, ["report", str(folder), *(f"--standard={name}" for name in FILES)])
    assert done.exit_code == 0 and all((folder / name).stat().st_size > 100 for name in FILES.values()), done.output
    assert CliRunner().invoke(app, ["report", str(folder), "--standard", "iso"]).exit_code == 2
    assert CliRunner().invoke(app, ["report", str(folder), "--contracts", "x.csv"]).exit_code == 2
    assert CliRunner().invoke(app, ["report", str(folder), str(folder), "--standard", "sci-ai"]).exit_code == 2
