"""Totals add up, and a run folder is read back as it was booked."""

import dataclasses
import json
from pathlib import Path

import pytest

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import Journal, entry_from_json, entry_to_json, rank_path
from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import EnergyLedger, Totals
from greentrain.types import CarbonPoint, DeviceEnergy, GearUse, LedgerEntry, Provenance, PueSource


def _entry(
    t0_s: float = 0.0, energy_j: float = 3.6e6, g_per_kwh: float | None = 100.0, missing_s: float = 0.0
) -> LedgerEntry:
    grams = None if g_per_kwh is None else energy_j / 3.6e6 * g_per_kwh
    return LedgerEntry(
        t0_unix_s=t0_s,
        t1_unix_s=t0_s + 10,
        devices={
            "GPU-1": DeviceEnergy(
                energy_j=energy_j,
                provenance=Provenance.MEASURED,
                missing_s=missing_s,
                phases={"forward": energy_j * 0.75, "other": energy_j * 0.25},
            ),
            "rapl:package-0": DeviceEnergy(energy_j=0.0, provenance=Provenance.MISSING, missing_s=10.0, phases={}),
        },
        phase_s={"forward": 7.0, "other": 3.0},
        phase_inclusive_j={"forward": energy_j * 0.8},
        carbon=CarbonPoint(t0_unix_s=t0_s, t1_unix_s=t0_s + 10, g_per_kwh=g_per_kwh, zone="FR", source="test 2023"),
        pue=1.0,
        operational_g=grams,
        embodied_g=0.5,
        steps=4,
        tokens=400,
        step_groups=((4, t0_s + 9, energy_j, 400),),
    )


def _write(folder: Path, rank: int, *entries: LedgerEntry, run_id: str = "r", **more: object) -> None:
    journal = Journal(rank_path(folder, rank))
    journal.append(
        {"kind": "open", "format": 1, "run_id": run_id, "rank": rank, "host": "h", "sensors": [], "carried": None}
        | more
    )
    ledger = EnergyLedger(journal)
    for entry in entries:
        ledger.record(entry)
    assert journal.close(60.0)


def test_an_entry_survives_json() -> None:
    entry = _entry(missing_s=1.5)
    assert entry_from_json(json.loads(json.dumps(entry_to_json(entry)))) == entry


def test_where_the_pue_came_from_survives_json_and_a_constant_costs_nothing() -> None:
    for source in PueSource:
        entry = dataclasses.replace(_entry(), pue=1.4, pue_source=source)
        record = json.loads(json.dumps(entry_to_json(entry)))
        assert entry_from_json(record) == entry
        assert ("pue_from" in record) == (source is not PueSource.CONSTANT)


def test_three_kwh_at_100_200_300_are_600_grams_not_900() -> None:
    totals = Totals()
    for i, g_per_kwh in enumerate((100.0, 200.0, 300.0)):
        totals = totals + Totals.of(_entry(t0_s=10.0 * i, g_per_kwh=g_per_kwh))
    assert totals.operational_g == pytest.approx(600)
    assert totals.energy_j == pytest.approx(3 * 3.6e6)


def test_unknown_intensity_is_not_zero_grams() -> None:
    totals = Totals.of(_entry(g_per_kwh=None))
    assert totals.operational_g == 0.0
    assert totals.unpriced_j == pytest.approx(3.6e6)


def test_a_missing_device_has_seconds_and_no_joules() -> None:
    totals = Totals.of(_entry())
    assert totals.by_device == {"GPU-1": pytest.approx(3.6e6)}
    assert totals.missing_s == {"rapl:package-0": 10.0}
    assert totals.by_provenance == {"measured": pytest.approx(3.6e6)}


def test_zero_joules_of_an_unknown_interval_are_no_reading() -> None:
    totals = Totals.of(_entry(energy_j=0.0, missing_s=10.0))
    assert totals.by_device == {} and totals.by_provenance == {} and totals.by_phase == {}
    assert totals.missing_s["GPU-1"] == 10.0


def test_totals_survive_a_checkpoint() -> None:
    totals = Totals.of(_entry())
    again = Totals.from_dict(json.loads(json.dumps(totals.to_dict())) | {"a_newer_key": 1})
    assert again == totals


def test_ranks_are_reduced_when_read(tmp_path: Path) -> None:
    for rank in range(4):
        _write(tmp_path, rank, _entry(), _entry(t0_s=10.0))
    run = read_run(tmp_path)
    assert run.totals.energy_j == pytest.approx(8 * 3.6e6)
    assert run.totals.tokens == 8 * 400
    assert run.totals.steps == 8
    assert run.wall_s == pytest.approx(20.0)


def test_carried_totals_count_once(tmp_path: Path) -> None:
    _write(tmp_path, 0, _entry(), carried=Totals.of(_entry()).to_dict())
    assert read_run(tmp_path).totals.energy_j == pytest.approx(2 * 3.6e6)


def test_a_rank_file_of_another_run_is_named(tmp_path: Path) -> None:
    _write(tmp_path, 0, _entry())
    _write(tmp_path, 1, _entry(), run_id="other")
    with pytest.raises(RunFolderError, match="rank 1 belongs to run 'other'"):
        read_run(tmp_path)


def test_a_second_file_of_a_rank_is_not_counted(tmp_path: Path) -> None:
    _write(tmp_path, 0, _entry())
    (tmp_path / "rank-00000 (copy).jsonl").write_bytes((tmp_path / "rank-00000.jsonl").read_bytes())
    with pytest.raises(RunFolderError, match="two files of rank 0"):
        read_run(tmp_path)


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_folder_that_is_no_run_says_so(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "nowhere" if what == "missing" else tmp_path
    with pytest.raises(RunFolderError, match="rank-" if what == "empty" else "does not exist"):
        read_run(folder)


def test_a_newer_format_says_upgrade(tmp_path: Path) -> None:
    _write(tmp_path, 0, _entry(), format=99)
    with pytest.raises(RunFolderError, match="upgrade"):
        read_run(tmp_path)


BF16 = GearUse(energy_j=300.0, modelled_j=50.0, missing_s=1.5, device_s=12.0, seconds=6.0, steps=3, tokens=30)
FP8 = GearUse(energy_j=100.0, device_s=8.0, seconds=4.0, steps=1, tokens=10, samples=2)


def test_gears_survive_json_and_add_up(tmp_path: Path) -> None:
    entry = dataclasses.replace(_entry(), gears={"bf16": BF16, "fp8": FP8})
    assert entry_from_json(json.loads(json.dumps(entry_to_json(entry)))) == entry
    totals = Totals.of(entry) + Totals.of(dataclasses.replace(_entry(), gears={"fp8": FP8}))
    assert totals.by_gear == {"bf16": BF16, "fp8": FP8 + FP8}
    assert totals.by_gear["fp8"].energy_j == pytest.approx(200)
    again = Totals.from_dict(json.loads(json.dumps(totals.to_dict() | {"a_newer_key": 1})))
    assert again == totals
    _write(tmp_path, 0, entry, carried=totals.to_dict())
    assert read_run(tmp_path).totals.by_gear == {"bf16": BF16 + BF16, "fp8": FP8 + FP8 + FP8}


def test_steps_in_a_gear_are_those_of_one_rank(tmp_path: Path) -> None:
    for rank in range(4):
        _write(tmp_path, rank, dataclasses.replace(_entry(), gears={"bf16": BF16} if rank else {"fp8": FP8}))
    gears = read_run(tmp_path).totals.by_gear
    assert (gears["bf16"].steps, gears["bf16"].tokens, gears["bf16"].seconds) == (3, 90, 18.0)
    assert gears["fp8"] == FP8


def test_without_gears_nothing_is_written_about_them() -> None:
    assert "gears" not in entry_to_json(_entry())
    assert "by_gear" not in Totals.of(_entry()).to_dict()


def test_a_journal_from_before_gears_is_read(tmp_path: Path) -> None:
    lines = [
        '{"kind":"open","format":1,"run_id":"r","rank":0,"host":"h","sensors":[],"carried":{"energy_j":1.0}}',
        '{"kind":"entry","t0":0.0,"t1":10.0,"steps":4,"tokens":400,"samples":0,"devices":{"GPU-1":{"j":5.0,"prov":'
        '"measured","missing_s":0.0,"phases":{"other":5.0}}},"phase_s":{"other":10.0},"phase_incl_j":{},"carbon":'
        '{"g_per_kwh":100.0,"zone":"FR","kind":"estimated","basis":"average","accounting":"unspecified","source":"t"},'
        '"pue":1.0,"op_g":0.1,"emb_g":null,"step_groups":[]}',
    ]
    rank_path(tmp_path, 0).write_text("\n".join(lines) + "\n")
    run = read_run(tmp_path)
    assert (run.totals.energy_j, run.totals.by_gear) == (6.0, {})
    assert run.ranks[0].entries[0].pue_source is PueSource.CONSTANT
    assert (run.totals.facility_j, run.totals.it_g) == (5.0, 5.0 / 3.6e6 * 100)
