"""Entries are added up to what a person would find by hand, and what is not known is in no sum."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from greentrain.ledger.journal import Journal, check_entry
from greentrain.ledger.totals import (
    MAX_GAPS,
    EnergyLedger,
    EnergyPart,
    EntrySums,
    Totals,
    books_view,
    cell_view,
    session_view,
)
from greentrain.types import CarbonPoint, DeviceEnergy, GearUse, LedgerEntry, Provenance

RATES = {"GPU-0": 3.0, "cpu": 1.0, "of another rank": 50.0}


def _device(joules: float, missing_s: float = 0.0, prov: str = "measured") -> dict[str, Any]:
    return {
        "j": joules,
        "prov": prov,
        "missing_s": missing_s,
        "phases": {"forward": 0.75 * joules, "other": joules / 4},
    }


def _entry(
    t0_s: float = 100.0,
    t1_s: float = 110.0,
    g_per_kwh: float | None = 360.0,
    devices: dict[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the record of ten seconds, unless said otherwise: a PUE of 1.5, and 360 g/kWh, which is 1 g for 10 kJ."""
    found = devices or {"GPU-0": _device(6000.0), "cpu": _device(2000.0, 2.5, "modelled")}
    joules = sum(device["j"] for device in found.values())
    record: dict[str, Any] = {
        "kind": "entry", "t0": t0_s, "t1": t1_s, "steps": 3, "tokens": 30, "samples": 6, "devices": found,
        "phase_s": {"forward": 6.0, "other": 4.0}, "phase_incl_j": {"forward": 0.75 * joules, "epoch": joules},
        "carbon": {
            "g_per_kwh": g_per_kwh, "zone": "FR", "kind": "estimated", "basis": "average", "accounting": "direct",
            "source": "test",
        },
        "pue": 1.5, "op_g": None if g_per_kwh is None else joules * 1.5 * g_per_kwh / 3.6e6, "emb_g": 0.5,
        "step_groups": [],
    }  # fmt: skip
    check_entry(record)
    return record


def _sums(*entries: dict[str, Any]) -> EntrySums:
    sums = EntrySums()
    for entry in entries:
        sums.add(entry, RATES)
    return sums


def _part(sums: EntrySums, uid: Any, provenance: str) -> dict[str, Any]:
    return dataclasses.asdict(sums.devices[uid].parts[provenance])


def _near(found: dict[str, Any], part: EnergyPart) -> bool:
    return found == pytest.approx(dataclasses.asdict(part))


def test_grams_and_embodied_carbon_are_given_to_devices_by_joules_and_by_rate() -> None:
    sums = _sums(_entry())
    gpu = EnergyPart(
        energy_j=6000, facility_j=9000, known_s=10, operational_g=0.9, embodied_g=0.375, priced=True, embodied=True
    )
    cpu = EnergyPart(
        energy_j=2000, facility_j=3000, known_s=7.5, operational_g=0.3, embodied_g=0.125, priced=True, embodied=True
    )
    assert _near(_part(sums, "GPU-0", "measured"), gpu) and _near(_part(sums, "cpu", "modelled"), cpu)
    assert (sums.operational_g, sums.it_g, sums.embodied_g) == pytest.approx((1.2, 0.8, 0.5))
    assert (sums.duration_s, sums.energy_j, sums.facility_j, sums.priced_facility_j) == (10.0, 8000.0, 12_000.0, 12_000)
    assert (sums.unpriced_j, sums.embodied_of_none_g, sums.priced, sums.embodied) == (0.0, None, True, True)
    assert sums.phase_g == pytest.approx({"forward": 0.9, "other": 0.3})
    assert sums.phase_j == pytest.approx({"forward": 6000.0, "other": 2000.0})


def test_two_entries_add_up_in_every_figure() -> None:
    later = _entry(110.0, 130.0, 180.0) | {"pue": 1.2, "op_g": 8000 * 1.2 * 180 / 3.6e6, "pue_from": "trace"}
    sums = _sums(_entry(), later)
    part = EnergyPart(
        energy_j=12_000, facility_j=16_200, known_s=30, operational_g=0.9 + 0.36, embodied_g=0.75, priced=True,
        embodied=True,
    )  # fmt: skip
    assert _near(_part(sums, "GPU-0", "measured"), part)
    assert (sums.devices["cpu"].booked_s, sums.devices["cpu"].missing_s, sums.devices["cpu"].known_s) == (30, 5.0, 25.0)
    assert (sums.steps, sums.tokens, sums.samples, sums.duration_s) == (6, 60, 12, 30.0)
    assert (sums.facility_j, sums.priced_facility_j) == pytest.approx((21_600.0, 21_600.0))
    assert (sums.operational_g, sums.it_g, sums.embodied_g) == pytest.approx((1.68, 1.2, 1.0))
    assert sums.phase_s == {"forward": 12.0, "other": 8.0}
    assert sums.phase_inclusive_j == {"forward": 12_000.0, "epoch": 16_000.0}
    assert (sums.span_s, sums.pue, sums.g_per_kwh) == ((100.0, 130.0), (1.2, 1.5), (180.0, 360.0))
    assert sums.pue_j == {"constant": 8000.0, "trace": 8000.0}
    assert sums.zone_j == {("FR", "test", "estimated", "average", "direct"): 16_000.0}


def test_energy_of_an_unknown_intensity_is_in_no_gram() -> None:
    sums = _sums(_entry(), _entry(110.0, 120.0, None))
    assert (sums.unpriced_j, sums.energy_j, sums.facility_j, sums.priced_facility_j) == (8000, 16_000, 24_000, 12_000)
    assert (sums.operational_g, sums.it_g) == pytest.approx((1.2, 0.8))
    gpu = sums.devices["GPU-0"].parts["measured"]
    assert (gpu.unpriced_j, gpu.operational_g, gpu.priced) == pytest.approx((6000.0, 0.9, True))
    assert sums.phase_g == pytest.approx({"forward": 0.9, "other": 0.3}) and sums.g_per_kwh == (360.0, 360.0)
    none = _sums(_entry(100.0, 110.0, None))
    assert not none.priced and not none.devices["GPU-0"].parts["measured"].priced and none.phase_g == {}


def test_where_nothing_could_be_read_there_are_seconds_without_knowledge_and_no_zero() -> None:
    blind = {"GPU-0": _device(0.0, 10.0), "cpu": _device(0.0, 10.0, "missing")}
    sums = _sums(_entry(devices=blind))
    assert sums.devices["GPU-0"].known == sums.devices["cpu"].known == {} and sums.devices["GPU-0"].energy_j is None
    assert (sums.priced, sums.phase_j, sums.power_w, sums.pue, sums.pue_j) == (False, {}, {}, None, {})
    assert _part(sums, "GPU-0", "missing")["embodied_g"] == pytest.approx(0.375), "it was made all the same"
    totals = sums.totals()
    assert totals.by_device == totals.by_provenance == {} and totals.missing_s == {"GPU-0": 10.0, "cpu": 10.0}
    idle = _sums(_entry(devices={"GPU-0": _device(0.0)}))
    assert idle.devices["GPU-0"].energy_j == 0.0 and idle.power_w == {"GPU-0": 0.0} and idle.priced
    assert not idle.devices["GPU-0"].parts["measured"].priced, "no joule, no price"


def test_embodied_carbon_that_belongs_to_no_device_is_kept_apart() -> None:
    sums = _sums(_entry(devices={"unknown": _device(100.0)}), _entry(110.0, 120.0, devices={"unknown": _device(100.0)}))
    assert (sums.embodied_of_none_g, sums.embodied_g) == (1.0, 1.0)
    assert not sums.devices["unknown"].parts["measured"].embodied
    without = _sums(_entry() | {"emb_g": None})
    assert (without.embodied, without.embodied_g, without.embodied_of_none_g) == (False, 0.0, None)
    assert _part(without, "GPU-0", "measured")["embodied_g"] == 0.0


def test_power_is_that_of_the_known_part_and_a_peak_is_of_most_of_an_entry() -> None:
    sums = _sums(_entry(devices={"GPU-0": _device(2000.0, 6.0)}))
    assert sums.power_w == {"GPU-0": 500.0}
    assert [sums.devices["GPU-0"].peak_w] == [None], "four seconds of ten say nothing of an interval"
    sums.add(_entry(110.0, 120.0, devices={"GPU-0": _device(1200.0, 4.0)}))
    assert sums.devices["GPU-0"].peak_w == 200.0
    sums.add(_entry(120.0, 130.0, devices={"GPU-0": _device(1000.0)}))
    assert (sums.devices["GPU-0"].peak_w, sums.power_w) == (200.0, {"GPU-0": 100.0})
    sums.add(_entry(130.0, 140.0, devices={"GPU-0": _device(9000.0, -4.0)}))
    assert (sums.devices["GPU-0"].peak_w, sums.power_w) == (200.0, {}), "its counter delivered a gap's joules late"
    assert sums.devices["GPU-0"].missing_s == 6.0 + 4.0 - 4.0
    sums.add(_entry(140.0, 150.0, devices={"GPU-0": _device(3000.0)}))
    assert sums.devices["GPU-0"].peak_w == 300.0


def _gaps(sums: EntrySums) -> list[tuple[float, float, float]]:
    return [(gap["start_unix_s"], gap["end_unix_s"], gap["missing_s"]) for gap in sums.gaps]


def test_a_gap_over_several_entries_is_one_and_ends_with_the_next_reading() -> None:
    lost = [0.0, 4.0, 10.0, 3.0, 0.0, 2.0]
    entries = [
        _entry(100.0 + 10 * i, 110.0 + 10 * i, devices={"GPU-0": _device(100.0, missing_s)})
        for i, missing_s in enumerate(lost)
    ]
    sums = _sums(*entries)
    assert _gaps(sums) == [(110.0, 140.0, 17.0)] and sums.gaps[0]["uid"] == "GPU-0"
    sums.add(_entry(161.5, 170.0, devices={"GPU-0": _device(100.0, 1.0)}))  # after a pause: another one
    assert _gaps(sums)[1:] == [(150.0, 160.0, 2.0)]
    sums.add(_entry(170.5, 180.0, devices={"GPU-0": _device(100.0, 1.0)}))
    whole = EntrySums()
    whole.merge(sums, "node-a")
    assert _gaps(whole)[2:] == [(161.5, 180.0, 2.0)] and whole.gap_count == 3
    assert {gap["host"] for gap in whole.gaps} == {"node-a"}


def test_of_many_gaps_the_first_are_listed_and_all_are_counted() -> None:
    entries = [_entry(20.0 * i, 20.0 * i + 10, devices={"GPU-0": _device(1.0, 1.0)}) for i in range(MAX_GAPS + 3)]
    sums = _sums(*entries)
    assert (len(sums.gaps), sums.gap_count) == (MAX_GAPS, MAX_GAPS + 2), "the last one is still open"
    both = EntrySums()
    for part in (_sums(*entries[:3]), sums):
        both.merge(part)
    assert (len(both.gaps), both.gap_count) == (MAX_GAPS, MAX_GAPS + 6)


def test_ranks_are_merged_by_host_and_device() -> None:
    gears = {"bf16": {"j": 8000.0, "model_j": 0.0, "missing_s": 0.0, "dev_s": 20.0, "s": 10.0, "steps": 3,
                      "tokens": 30, "samples": 6}}  # fmt: skip
    first = _sums(_entry(devices={"GPU-0": _device(6000.0, 1.0)}) | {"gears": gears})
    second = _sums(
        _entry(90.0, 105.0, 180.0, devices={"GPU-0": _device(9000.0)}) | {"pue": 1.1, "gears": gears},
        _entry(105.0, 115.0, None, devices={"other": _device(10.0)}),
    )
    whole = EntrySums()
    for host, part in (("a", first), ("b", second), ("a", _sums(_entry(devices={"GPU-0": _device(60_000.0)})))):
        whole.merge(part, host)
    assert set(whole.devices) == {("a", "GPU-0"), ("b", "GPU-0"), ("b", "other")}
    own = whole.devices["a", "GPU-0"]
    assert (own.energy_j, own.booked_s, own.missing_s, own.peak_w) == (66_000.0, 20.0, 1.0, 6000.0)
    assert own.parts["measured"].priced and own.parts["measured"].known_s == 19.0
    assert (whole.energy_j, whole.steps, whole.tokens, whole.samples) == (75_010.0, 12, 120, 24)
    assert whole.unpriced_j == 10.0 and whole.priced and whole.embodied and whole.embodied_of_none_g == 0.5
    assert (whole.span_s, whole.pue, whole.g_per_kwh) == ((90.0, 115.0), (1.1, 1.5), (180.0, 360.0))
    assert whole.phase_j["forward"] == 0.75 * 75_010
    assert whole.gears["bf16"]["j"] == 16_000.0 and whole.gear_g["bf16"]["tokens"] == 60
    assert whole.duration_s == 45.0


def test_grams_of_a_gear_are_those_of_its_joules_and_of_its_share_of_the_time() -> None:
    use = {"j": 2000.0, "model_j": 500.0, "missing_s": 0.0, "dev_s": 8.0, "s": 4.0, "steps": 1, "tokens": 10,
           "samples": 2}  # fmt: skip
    blind = use | {"j": 0.0, "missing_s": 12.0, "dev_s": 12.0, "s": 6.0, "tokens": 20}
    entry = _entry() | {"gears": {"bf16": use, "fp8": blind}}
    sums = _sums(entry, entry | {"t0": 110.0, "t1": 120.0})
    expected = {"operational_g": 2 * 0.3, "emissions_g": 2 * (0.3 + 0.5 * 0.4), "tokens": 20}
    assert sums.gear_g == {"bf16": pytest.approx(expected)}, "of fp8 nothing is known"
    assert sums.gears["fp8"]["tokens"] == 40
    assert sums.totals().by_gear["bf16"] == GearUse(
        energy_j=4000, modelled_j=1000, device_s=16, seconds=8, steps=2, tokens=20, samples=4
    )
    assert _sums(_entry(100.0, 110.0, None) | {"gears": {"bf16": use}}).gear_g == {}
    no_rate = _sums(_entry() | {"gears": {"bf16": use}, "emb_g": None})
    assert no_rate.gear_g["bf16"]["emissions_g"] == pytest.approx(0.3)


def test_totals_by_device_and_provenance_are_of_what_is_known() -> None:
    changed = _entry(
        110.0, 120.0, devices={"GPU-0": _device(500.0, 0.0, "modelled"), "cpu": _device(0.0, 10.0, "modelled")}
    )
    totals = _sums(_entry(), changed).totals()
    assert totals.by_device == {"GPU-0": 6500.0, "cpu": 2000.0}
    assert totals.by_provenance == {"measured": 6000.0, "modelled": 2500.0}
    assert totals.missing_s == {"cpu": 12.5}
    assert (totals.energy_j, totals.tokens, totals.duration_s) == (8500.0, 60, 20.0)
    assert totals.by_phase == {"forward": 6375.0, "other": 2125.0} and totals.phase_s == {"forward": 12.0, "other": 8.0}


def test_steps_of_a_job_are_those_of_the_rank_with_most_of_them() -> None:
    ranks = [Totals(steps=n, tokens=5, by_gear={"bf16": GearUse(steps=n, tokens=5)}) for n in (3, 7)]
    job = Totals.of_job([*ranks, Totals(steps=1)])
    assert (job.steps, job.tokens, job.by_gear["bf16"]) == (7, 10, GearUse(steps=7, tokens=10))
    assert Totals.of_job([]) == Totals()


def test_figures_that_totals_are_asked_for() -> None:
    totals = Totals(
        energy_j=300.0, duration_s=10.0, operational_g=3.0, embodied_g=0.5, by_device={"a": 300.0}, missing_s={"b": 4.0}
    )
    assert (totals.emissions_g, totals.mean_power_w, totals.device_s) == (3.5, 30.0, 20.0)
    assert Totals().mean_power_w is None
    assert dataclasses.replace(totals, missing_s={"b": 15.0, "c": 20.0}).device_s == 35.0, "of a job: rank-seconds"
    assert totals.it_grams(1.5) == 2.0, "of a version that did not count them"
    assert dataclasses.replace(totals, it_g=1.25).it_grams(1.5) == 1.25
    assert totals.sums() == {"energy_j": 300, "emissions_g": 3.5, "unpriced_j": 0, "tokens": 0, "samples": 0}


def test_a_line_of_the_journal_has_the_sums_so_far_and_its_step_groups_last(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rank-00000.jsonl")
    ledger = EnergyLedger(journal, Totals(energy_j=1000.0, tokens=7, by_device={"GPU-0": 1000.0}))
    entry = LedgerEntry(
        t0_unix_s=0.0,
        t1_unix_s=10.0,
        devices={"GPU-0": DeviceEnergy(energy_j=500.0, provenance=Provenance.MEASURED, phases={"other": 500.0})},
        phase_s={"other": 10.0},
        phase_inclusive_j={},
        carbon=CarbonPoint(t0_unix_s=0.0, t1_unix_s=10.0, g_per_kwh=None, zone="", source=""),
        pue=1.0,
        operational_g=None,
        embodied_g=None,
        tokens=3,
        step_groups=((1, 5.0, 250.0, 3),),
    )
    for _ in range(2):
        ledger.record(entry)
    assert journal.close(60.0)
    lines = [json.loads(line) for line in journal.path.read_text(encoding="utf-8").splitlines()]
    assert [(line["sum"]["energy_j"], line["sum"]["tokens"]) for line in lines] == [(1500.0, 10), (2000.0, 13)]
    assert list(lines[0])[-1] == "step_groups" and lines[0]["step_groups"] == [[1, 5.0, 250.0, 3]]
    assert ledger.totals.by_device == {"GPU-0": 2000.0} and ledger.totals.unpriced_j == 1000.0


SHOWN = Totals(
    energy_j=7200.0,
    duration_s=60.0,
    operational_g=0.5,
    embodied_g=0.25,
    steps=4,
    tokens=2000,
    by_device={"cpu": 200.0, "GPU-1": 7000.0},
    by_phase={"forward": 7200.0},
    by_provenance={"measured": 7000.0, "modelled": 200.0},
)


def test_what_is_shown_of_totals() -> None:
    view = books_view("Totals", SHOWN, "a note", Path("report.html"))
    carbon = "7.20 kJ (97.2 % measured, 2.8 % modelled), 500 mg CO₂e"
    assert view.line == f"{carbon}, 1 min, 4 steps, 2\N{THIN SPACE}000 tokens: 3.60 J/token"
    assert (view.title, view.notes, view.page) == ("Totals", ["a note"], Path("report.html"))
    rows, devices, phases = view.grids
    assert [row[0] for row in rows.rows] == ["Energy", "Emissions", "Time", "Work"]
    assert rows.rows[1][2] == "electricity; beside it embodied 250 mg" and rows.rows[2][2] == "mean power 120 W"
    assert list(devices.rows) == [("GPU-1", "7.00 kJ", "97.2 %"), ("cpu", "200 J", "2.8 %")], "the largest first"
    assert list(phases.rows) == [("forward", "7.20 kJ", "100 %")] and phases.folded and devices.folded
    assert books_view("Totals", SHOWN).notes == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tokens": 0, "samples": 1}, "4 steps, 1 sample: 7.20 kJ/sample"),
        ({"tokens": 0}, "4 steps: 1.80 kJ/step"),
        ({"tokens": 0, "steps": 1}, "1 step: 7.20 kJ/step"),
        ({"steps": 0}, "2\N{THIN SPACE}000 tokens: 3.60 J/token"),
        ({"missing_s": {"cpu": 0.5, "GPU-1": 0.0}}, "3.60 J/token; missing: cpu for 500 ms"),
        ({"by_provenance": {"measured": 7200.0, "modelled": 0.0}}, "7.20 kJ (measured)"),
        ({"unpriced_j": 100.0}, ", at least 500 mg CO₂e,"),
        ({"unpriced_j": 7200.0, "operational_g": 0.0}, ", unknown, 1 min"),
        ({"tokens": 0, "steps": 0}, "500 mg CO₂e, 1 min"),
    ],
)
def test_the_line_of_totals_counts_by_the_finest_unit_and_says_what_is_missing(
    changes: dict[str, Any], line: str
) -> None:
    shown = books_view("Totals", dataclasses.replace(SHOWN, **changes)).line
    assert shown.endswith(line) if "missing_s" in changes else line in shown


def test_totals_of_nothing_are_not_shown_as_zero() -> None:
    assert books_view("Totals", Totals()).line == "nothing is booked yet"
    blind = books_view("Totals", Totals(duration_s=5.0, embodied_g=0.1, tokens=5, missing_s={"GPU-1": 5.0}))
    assert blind.line == (
        "unknown (missing: no device could be read or modelled), unknown, 5.00 s, 5 tokens; missing: GPU-1 for 5.00 s"
    )
    energy, emissions, time, _, missing = blind.grids[0].rows
    assert energy[2].startswith("missing: no device") and emissions[2] == "the energy is not known"
    assert (time[2], missing) == ("mean power unknown", ("Missing", "", "GPU-1 for 5.00 s"))
    idle = Totals(duration_s=5.0, by_device={"GPU-1": 0.0}, by_phase={"other": 0.0}, by_provenance={"measured": 0.0})
    view = books_view("Totals", idle)
    assert view.line == "0 J (measured), 0 g CO₂e, 5.00 s"
    assert [row[2] for row in view.grids[0].rows[:2]] == ["0 Wh; measured", "electricity; beside it embodied unknown"]
    assert [list(grid.rows) for grid in view.grids[1:]] == [[("GPU-1", "0 J", "")], [("other", "0 J", "")]]
    unpriced = dataclasses.replace(SHOWN, unpriced_j=7200.0)
    assert books_view("Totals", unpriced).grids[0].rows[1][2] == "the grid's intensity is not known"


def test_intervals_and_how_phases_are_told_are_shown_where_they_are_known() -> None:
    totals = Totals(
        energy_j=1000.0, duration_s=10.0, by_device={"GPU-1": 1000.0}, by_phase={"forward": 900.0, "other": 100.0}
    )
    told = {
        "interval_j": {"low": 950.0, "high": 1050.0},
        "devices": {"GPU-1": ({"low": 950.0, "high": 1050.0}, "")},
        "phases": {"forward": ({"low": 800.0, "high": None}, "regressed, ± 3.1 %, host time"), "other": (None, "")},
    }
    whole, devices, phases = session_view(totals, state="running", folder=Path("runs/a"), page=None, told=told).grids
    assert whole.rows[0][1] == "1.00 kJ (0.950 to 1.05)"
    assert (devices.head, devices.rows[0]) == (
        ("Device", "Energy", "Share"), ("GPU-1", "1.00 kJ (0.950 to 1.05)", "100 %")
    )  # fmt: skip
    assert phases.head == ("Phase", "Energy", "Share", "Told")
    assert phases.rows == [
        ("forward", "900 J (at least 800)", "90.0 %", "regressed, ± 3.1 %, host time"),
        ("other", "100 J", "10.0 %", ""),
    ]


def test_what_is_shown_of_a_session_and_of_a_cell() -> None:
    running = session_view(SHOWN, state="running", folder=Path("runs/train-1"), page=None)
    assert running.title == "train-1, running" and "close() makes them final" in running.notes[0]
    closed = session_view(SHOWN, state="closed", folder=Path("runs/train-1"), page=Path("report.html"))
    assert (closed.notes, closed.page) == ([], Path("report.html"))
    assert session_view(Totals(), state="not started", folder=None, page=None).line == "GreenSession, not started"
    assert cell_view("train-1", SHOWN).line == running.line
    assert cell_view("train-1", None).line.startswith("unknown: a reading is missing")
