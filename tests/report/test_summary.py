"""The summary says what the journals say, and says unknown where they do."""

import dataclasses
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from greentrain.errors import RunFolderError
from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import Totals
from greentrain.report import RunReport, table
from greentrain.report.fleet.reading import read_folder
from greentrain.report.html import provenance_sentence, render_html
from greentrain.report.live.follow import RunFollow
from greentrain.report.summary import how_told, stage_table, state_text, summarize, write_summary
from greentrain.types import Provenance
from tests.report.run_folders import CPU, DRAM, GPU, T0_S, Folder, device, entry, four_ranks, one_rank, sensor

LATER_S = T0_S + 1e6
FROZEN = Path(__file__).parents[1] / "data" / "run-format-1"


def _summary(folder: Path, now_unix_s: float = LATER_S) -> dict[str, Any]:
    return summarize(read_run(folder), now_unix_s=now_unix_s)


def test_a_report_of_many_ranks_keeps_no_more_entries_than_one_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greentrain.report._MOST_OF_ALL", 16)
    monkeypatch.setattr("greentrain.report._LEAST", 2)
    folder = four_ranks(tmp_path)  # of 12 entries each
    found = RunReport.read(folder)
    assert all(len(rank.entries) <= 4 for rank in found.record.ranks)
    whole = _summary(folder)
    for group, key in (("energy", "energy_j"), ("energy", "facility_energy_j"), ("carbon", "emissions_g")):
        assert found.summary[group][key] == pytest.approx(whole[group][key], rel=1e-12)


def test_one_rank_adds_up(tmp_path: Path) -> None:
    s = _summary(one_rank(tmp_path))
    assert s["energy"]["energy_j"] == pytest.approx(63_000)
    assert s["energy"]["facility_energy_kwh"] == pytest.approx(0.021)
    assert s["energy"]["by_provenance_j"] == pytest.approx({"measured": 54_000, "modelled": 9_000})
    assert s["energy"]["measured_share"] == pytest.approx(54 / 63)
    assert s["carbon"]["operational_location_g"] == pytest.approx(0.021 * 400)
    assert s["carbon"]["intensity_g_per_kwh"] == pytest.approx(400)
    assert s["carbon"]["embodied_g"] == pytest.approx({"low": 0.15, "mid": 1.25, "high": 2.0})
    assert s["carbon"]["emissions_g"] == pytest.approx(8.4 + 1.25)
    assert s["carbon"]["operational_market_g"] is None
    assert s["power"]["mean_w"] == pytest.approx(350)
    assert s["power"]["peak_w"] == pytest.approx(350)
    assert s["work"]["tokens_per_j"] == pytest.approx(90_000 / 63_000)
    assert s["work"]["g_per_ktoken"] == pytest.approx(9.65 / 90)
    assert s["energy"]["uncertainty"] == pytest.approx((54 * 0.05 + 9 * 0.4) / 63)
    assert s["state"]["word"] == "finished"
    assert s["sci"]["value_g"] == pytest.approx(9.65 / 90_000)
    assert s["scope2"]["scope2_location_g"] == pytest.approx(8.4)
    assert s["headline"]["phase"]["name"] == "backward"


def test_phases_sum_to_the_whole_and_inclusive_ones_do_not_hide(tmp_path: Path) -> None:
    s = _summary(one_rank(tmp_path))
    assert sum(phase["energy_j"] for phase in s["phases"]) == pytest.approx(s["energy"]["energy_j"])
    assert sum(phase["operational_g"] or 0 for phase in s["phases"]) == pytest.approx(8.4)
    epoch = next(phase for phase in s["phases"] if phase["name"] == "epoch")
    assert epoch["energy_j"] == 0.0
    assert epoch["inclusive_j"] == pytest.approx(63_000)


def test_each_stage_has_joules_a_token_by_kind_of_device_with_interval_and_provenance(tmp_path: Path) -> None:
    s = _summary(one_rank(tmp_path))
    found = {(row["stage"], row["kind"]): row for row in s["stages"]}
    assert {kind for _, kind in found} == {"gpu", "cpu"}
    for phase in s["phases"]:
        of_phase = [row["energy_j"] for (stage, _), row in found.items() if stage == phase["name"]]
        assert sum(of_phase) == pytest.approx(phase["energy_j"])
    assert sum(row["j_per_token"] for row in found.values()) == pytest.approx(s["work"]["j_per_token"])
    gpu, cpu = found["backward", "gpu"], found["backward", "cpu"]
    assert gpu["j_per_token"] == pytest.approx(0.45 * 54_000 / 90_000) and gpu["mean_power_w"] == pytest.approx(300)
    assert (gpu["provenance"], cpu["provenance"]) == ("measured", "modelled")
    for row in (gpu, cpu):
        within = row["j_per_token_interval"]
        assert within["low"] < row["j_per_token"] < within["high"]
        assert within["high"] == pytest.approx(row["interval_j"]["high"] / 90_000)
    shown = stage_table(s)
    assert shown is not None and shown["unit"] == "token" and shown["rows"][0][0] == "backward"
    assert shown["kinds"] == [("gpu", "measured"), ("cpu", "modelled")]
    assert shown["rows"][0][1][0].startswith("270 mJ (")


def test_ranks_share_the_tokens_by_which_a_stage_is_told(tmp_path: Path) -> None:
    s = _summary(four_ranks(tmp_path))
    (gpu,) = (row for row in s["stages"] if (row["stage"], row["kind"]) == ("forward", "gpu"))
    joules = 0.3 * 12 * (3000 + 3100 + 3200 + 3300)
    assert gpu["energy_j"] == pytest.approx(joules) and gpu["j_per_token"] == pytest.approx(joules / 48_000)
    assert gpu["mean_power_w"] == pytest.approx(1260), "of four GPUs together"


def test_a_stage_has_no_quotient_where_too_much_is_missing(tmp_path: Path) -> None:
    found = {}
    for missing_s in (0.5, 3.0, 10.0):
        way = Provenance.MISSING if missing_s == 10 else Provenance.MEASURED
        gone = device(0.0 if missing_s == 10 else 2000.0, way, missing_s)
        entries = [entry(T0_S, T0_S + 10, {"GPU-0": gone, "cpu": device(500.0, Provenance.MODELLED)}, tokens=100)]
        s = _summary(Folder(tmp_path / str(missing_s)).rank(0, [GPU, CPU], entries).path)
        (found[missing_s],) = (row for row in s["stages"] if (row["stage"], row["kind"]) == ("forward", "gpu"))
    assert found[0.5]["j_per_token"] == pytest.approx(0.3 * 2000 / 100)
    assert found[3.0]["energy_j"] == pytest.approx(600) and found[3.0]["missing_share"] == pytest.approx(0.3)
    assert found[10.0]["energy_j"] is None and found[10.0]["provenance"] == "missing"
    for missing_s in (3.0, 10.0):
        row = found[missing_s]
        assert row["j_per_token"] is row["j_per_step"] is row["mean_power_w"] is None
        assert row["j_per_token_interval"] == {"low": None, "high": None}


@pytest.mark.parametrize(("steps", "how"), [(100, "blurred"), (1, None)])
def test_phases_of_a_step_are_blurred_by_a_sensor_that_offers_a_mean_over_a_second(
    tmp_path: Path, steps: int, how: str | None
) -> None:
    card = sensor("GPU-0", "gpu", "RTX", averaging_s=1.0, tick_s=None)
    entries = [entry(T0_S, T0_S + 100.0, {"GPU-0": device(3000.0)}, steps=steps)]
    s = _summary(Folder(tmp_path).rank(0, [card], entries).path)
    row = next(phase for phase in s["phases"] if phase["name"] == "backward")
    assert row["rank_seconds"] > 3 and row["attribution"] == how and row["relative_error"] is None


def test_each_phase_says_how_it_was_told_from_the_others(tmp_path: Path) -> None:
    def told(how: str, error: float, **more: Any) -> dict[str, Any]:
        forward = {"how": "regressed", "error": 0.01, "w": 300.0}
        phases = {"forward": forward, "data": {"how": how, "error": error, "w": 100.0}}
        facts = {"device": "GPU-0", "tick_s": 0.1, "sees_s": 0.025, "late_s": 0.003, "readings": 800, "phases": phases}
        return (
            {"name": "attribution", "t": T0_S, "text": "GPU-0: its counter tells 25 ms of each 100 ms"} | facts | more
        )

    entries = [entry(T0_S, T0_S + 10.0, {"GPU-0": device(3000.0), "GPU-1": device(3000.0), "cpu": device(500.0)})]
    wrong: list[dict[str, Any]] = [
        {"phases": {"data": {"how": "guessed"}}},
        {"phases": 7},
        {"device": [1]},
        {"sees_s": "much"},
    ]
    odd = [told("blurred", 1.0, **more) for more in wrong]
    events = [told("regressed", 0.02), told("blurred", 0.5, device="GPU-1"), *odd]
    folder = Folder(tmp_path).rank(0, [GPU, sensor("GPU-1", "gpu", "H100"), CPU], entries, events=events).path
    s = _summary(folder)
    rows = {phase["name"]: phase for phase in s["phases"]}
    assert (rows["forward"]["attribution"], rows["forward"]["relative_error"]) == ("regressed", pytest.approx(0.01))
    assert (rows["data"]["attribution"], rows["data"]["relative_error"]) == ("blurred", pytest.approx(0.26))
    assert rows["backward"]["attribution"] is None and rows["backward"]["relative_error"] is None
    assert [how_told(rows[name]) for name in ("forward", "data", "backward")] == [
        "regressed, ± 2.0 %, host time",
        "blurred, host time",
        "host time",
    ]
    assert {row["uid"]: row["sees_s"] for row in s["devices"]} == {"GPU-0": 0.025, "GPU-1": 0.025, "cpu": None}
    page, text = RunReport.read(folder).page(), str(RunReport.read(folder))
    assert "regressed, ±" in page.replace("\N{NO-BREAK SPACE}", " ") and "blurred" in text


def test_each_phase_says_by_whose_times_it_is_cut(tmp_path: Path) -> None:
    def clocks(**more: Any) -> dict[str, Any]:
        phases = {"forward": "device", "backward": "host"}
        return {"name": "clocks", "t": T0_S, "text": "", "device": "GPU-0", "phases": phases} | more

    def told(folder: Path, *events: dict[str, Any], **gpus: Any) -> dict[str, str | None]:
        entries = [entry(T0_S, T0_S + 10.0, {"cpu": device(500.0), **gpus})]
        sensors = [CPU, *(sensor(uid, "gpu", "H100") for uid in gpus)]
        s = _summary(Folder(folder).rank(0, sensors, entries, events=events).path)
        assert all(event["name"] != "clocks" for event in s["events"])
        return {phase["name"]: phase["clock"] for phase in s["phases"]}

    one, two = {"GPU-0": device(3000.0)}, {"GPU-0": device(3000.0), "GPU-1": device(3000.0)}
    assert set(told(tmp_path / "cpu").values()) == {None}, "there is nothing that works behind the host"
    assert set(told(tmp_path / "old", **one).values()) == {"host"}
    wrong = [clocks(phases={"forward": "sundial"}), clocks(phases=7), clocks(device=[1])]
    found = told(tmp_path / "one", clocks(phases={"forward": "mixed"}), clocks(), *wrong, **one)
    assert (found["forward"], found["backward"], found["other"]) == ("device", "host", "mixed")
    sound = clocks(phases={"forward": "device", "backward": "device"})
    found = told(tmp_path / "sound", sound, **one)
    assert set(found.values()) == {"device"}
    found = told(tmp_path / "two", sound, **two)
    assert set(found.values()) == {"mixed"}, "the other GPU's joules are cut by the host's times"
    assert how_told({"clock": "mixed"}) == "partly host time" and how_told({"clock": "device"}) == ""


def test_ranks_of_a_host_are_added_once(tmp_path: Path) -> None:
    s = _summary(four_ranks(tmp_path))
    expected_j = 12 * (4 * 3000 + 600 + 500)
    assert s["energy"]["energy_j"] == pytest.approx(expected_j)
    assert [host["energy_j"] for host in s["hosts"]] == pytest.approx([expected_j])
    assert sum(rank["energy_j"] for rank in s["ranks"]) == pytest.approx(expected_j)
    assert len(s["devices"]) == 5
    assert s["work"]["tokens"] == 48_000
    assert s["work"]["steps"] == 120
    assert s["power"]["mean_w"] == pytest.approx(expected_j / 120)
    assert s["power"]["peak_w"] == pytest.approx(expected_j / 120)


def test_the_same_uid_on_two_hosts_is_two_devices(tmp_path: Path) -> None:
    folder = Folder(tmp_path, world_size=2)
    for rank, host in enumerate(("a", "b")):
        entries = [entry(T0_S, T0_S + 10, {"cpu": device(100.0 * (rank + 1), Provenance.MODELLED)})]
        folder.rank(rank, [CPU], entries, host=host)
    s = _summary(folder.path)
    assert {(d["host"], d["energy_j"]) for d in s["devices"]} == {("a", 100.0), ("b", 200.0)}
    assert {h["host"]: h["energy_j"] for h in s["hosts"]} == {"a": 100.0, "b": 200.0}


def test_unknown_intensity_is_null_not_zero(tmp_path: Path) -> None:
    s = _summary(one_rank(tmp_path, g_per_kwh=None))
    assert s["energy"]["energy_j"] == pytest.approx(63_000)
    assert s["carbon"]["operational_location_g"] is None
    assert s["carbon"]["emissions_g"] is None
    assert s["carbon"]["intensity_g_per_kwh"] is None
    assert s["carbon"]["unpriced_j"] == pytest.approx(63_000)
    assert not s["carbon"]["complete"]
    assert s["sci"] is None
    assert s["work"]["g_per_ktoken"] is None


def test_partly_unknown_intensity_is_a_lower_bound(tmp_path: Path) -> None:
    entries = [
        entry(T0_S, T0_S + 10, {"GPU-0": device(3600.0)}, g_per_kwh=500, pue=1.0),
        entry(T0_S + 10, T0_S + 20, {"GPU-0": device(3600.0)}, g_per_kwh=None, pue=1.0),
    ]
    s = _summary(Folder(tmp_path).rank(0, [GPU], entries).path)
    assert s["carbon"]["operational_location_g"] == pytest.approx(0.5)
    assert s["carbon"]["unpriced_j"] == pytest.approx(3600)
    assert s["carbon"]["intensity_g_per_kwh"] == pytest.approx(500)
    assert not s["carbon"]["complete"]


def test_mean_intensity_is_weighted_by_energy(tmp_path: Path) -> None:
    entries = [
        entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)}, g_per_kwh=100),
        entry(T0_S + 10, T0_S + 20, {"GPU-0": device(3000.0)}, g_per_kwh=900),
    ]
    s = _summary(Folder(tmp_path).rank(0, [GPU], entries).path)
    assert s["carbon"]["intensity_g_per_kwh"] == pytest.approx(700)
    assert (s["carbon"]["intensity_min_g_per_kwh"], s["carbon"]["intensity_max_g_per_kwh"]) == (100, 900)


def test_a_device_without_reading_is_null_and_its_seconds_are_told(tmp_path: Path) -> None:
    blind = sensor("rapl:1", "cpu", "CPU package 1", "missing", uncertainty=None)
    entries = [
        entry(
            T0_S + 10 * i,
            T0_S + 10 * (i + 1),
            {
                "GPU-0": device(0.0 if i == 1 else 3000.0, missing_s=10.0 if i == 1 else 0.0),
                "rapl:1": device(0.0, Provenance.MISSING, missing_s=10.0),
            },
        )
        for i in range(4)
    ]
    s = _summary(Folder(tmp_path).rank(0, [GPU, blind], entries).path)
    by_uid = {d["uid"]: d for d in s["devices"]}
    assert by_uid["rapl:1"]["energy_j"] is None
    assert by_uid["rapl:1"]["provenance"] == "missing"
    assert by_uid["GPU-0"]["coverage"] == pytest.approx(0.75)
    assert by_uid["GPU-0"]["mean_power_w"] == pytest.approx(300)
    assert s["energy"]["missing_device_s"] == pytest.approx(50)
    assert s["energy"]["missing_share_of_device_time"] == pytest.approx(50 / 80)
    gap = next(gap for gap in s["gaps"] if gap["uid"] == "GPU-0")
    assert (gap["start_unix_s"], gap["missing_s"]) == (T0_S + 10, 10)
    assert s["gap_count"] == 2


def test_energy_delivered_late_after_a_gap_nets_out(tmp_path: Path) -> None:
    entries = [
        entry(T0_S, T0_S + 10, {"GPU-0": device(0.0, missing_s=10.0)}),
        entry(T0_S + 10, T0_S + 20, {"GPU-0": device(6000.0, missing_s=-10.0)}),
    ]
    s = _summary(Folder(tmp_path).rank(0, [GPU], entries).path)
    assert s["devices"][0]["missing_s"] == 0
    assert s["devices"][0]["mean_power_w"] == pytest.approx(300)
    assert s["power"]["peak_w"] == pytest.approx(300)


def test_nothing_measured_is_null(tmp_path: Path) -> None:
    s = _summary(Folder(tmp_path).rank(0, [], [entry(T0_S, T0_S + 10, {})]).path)
    assert s["energy"]["energy_j"] is None
    assert s["energy"]["facility_energy_kwh"] is None
    assert s["carbon"]["emissions_g"] is None
    assert s["power"]["mean_w"] is None
    assert s["equivalents"] == []
    assert s["scope2"] is None


def test_no_tokens_is_null(tmp_path: Path) -> None:
    s = _summary(one_rank(tmp_path, tokens=0, samples=0))
    assert s["work"]["tokens"] is None
    assert s["work"]["tokens_per_j"] is None
    assert s["work"]["j_per_step"] == pytest.approx(350)


def test_a_run_that_left_for_a_pause_is_not_finished(tmp_path: Path) -> None:
    folder = Folder(tmp_path).rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1.0)})], reason="left")
    state = _summary(folder.path)["state"]
    assert (state["word"], state["finished"]) == ("left", False)


def test_a_killed_run_is_told_from_a_running_one(tmp_path: Path) -> None:
    entries = [entry(T0_S, T0_S + 10, {"GPU-0": device(3000.0)})]
    path = Folder(tmp_path).rank(0, [GPU], entries, reason=None).path
    assert _summary(path)["state"]["word"] == "killed"
    assert _summary(path, now_unix_s=T0_S + 20)["state"]["word"] == "running"


def test_a_rank_that_left_no_file_is_told(tmp_path: Path) -> None:
    entries = [entry(T0_S, T0_S + 10, {"GPU-0": device(3000.0)})]
    s = _summary(Folder(tmp_path, world_size=4).rank(0, [GPU], entries).path)
    assert s["state"]["ranks_without_file"] == 3
    assert "3 rank(s)" in s["state"]["text"]


def test_a_resumed_run_counts_both_parts_and_not_the_pause(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(3000.0)})], reason=None)
    later = [entry(T0_S + 100, T0_S + 110, {"GPU-0": device(3000.0)})]
    folder.rank(0, [GPU], later)
    s = _summary(folder.path)
    assert s["energy"]["energy_j"] == pytest.approx(6000)
    assert s["time"]["wall_s"] == pytest.approx(20)
    assert s["time"]["elapsed_s"] == pytest.approx(110)
    assert s["power"]["mean_w"] == pytest.approx(300)
    assert s["state"] == {**s["state"], "word": "finished", "resumes": 1}


def test_carried_totals_are_in_every_sum(tmp_path: Path) -> None:
    carried = Totals(
        energy_j=3600.0, duration_s=10.0, operational_g=1.0, embodied_g=0.1, tokens=100,
        by_device={"GPU-0": 3600.0}, by_phase={"forward": 3600.0}, by_provenance={"measured": 3600.0},
    )  # fmt: skip
    entries = [entry(T0_S, T0_S + 10, {"GPU-0": device(3600.0)}, pue=1.2, tokens=100, embodied_g=0.1)]
    s = _summary(Folder(tmp_path).rank(0, [GPU], entries, carried=carried).path)
    assert s["energy"]["energy_j"] == pytest.approx(7200)
    assert s["energy"]["facility_energy_j"] == pytest.approx(8640)
    assert s["energy"]["carried_j"] == pytest.approx(3600)
    assert s["work"]["tokens"] == 200
    assert s["carbon"]["operational_location_g"] == pytest.approx(1.0 + 3600 * 1.2 / 3.6e6 * 400)
    assert s["carbon"]["intensity_g_per_kwh"] == pytest.approx(400)
    assert s["carbon"]["embodied_g"]["mid"] == pytest.approx(0.2)


def test_carried_seconds_without_a_reading_are_told_apart_from_those_of_the_devices(tmp_path: Path) -> None:
    blind = device(0.0, Provenance.MISSING, missing_s=40.0)
    earlier = entry(T0_S - 100, T0_S - 60, {"GPU-9": device(5000.0, missing_s=5.0), "rapl:1": blind})
    entries = [entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)})]
    s = _summary(Folder(tmp_path).rank(0, [GPU], entries, carried=Totals.of(earlier)).path)
    assert s["energy"]["missing_device_s"] == s["energy"]["carried_missing_device_s"] == pytest.approx(45)
    assert s["energy"]["device_s"] == pytest.approx(2 * 40 + 10)
    assert s["energy"]["missing_share_of_device_time"] == pytest.approx(45 / 90)
    assert [device["missing_s"] for device in s["devices"]] == [0.0]
    assert provenance_sentence(s).endswith("nothing is counted: earlier parts of the run (45.0 s).")


@pytest.mark.parametrize("name", ["first", "gears", "plan", "carried"])
def test_report_fleet_and_watch_miss_the_same_seconds(name: str) -> None:
    folder = FROZEN / name
    energy = _summary(folder)["energy"]
    missing_s = read_folder(folder).row.missing_s
    assert missing_s is not None and missing_s > 0
    assert energy["missing_device_s"] == pytest.approx(missing_s, rel=1e-9)
    assert RunFollow(folder).look().missing_s == pytest.approx(missing_s, rel=1e-9)
    assert (energy["carried_missing_device_s"] > 0) == (name == "carried")


def test_watch_knows_what_a_device_missed_that_this_part_does_not_have(tmp_path: Path) -> None:
    blind = device(0.0, Provenance.MISSING, missing_s=45.0)
    earlier = entry(T0_S - 100, T0_S - 55, {"GPU-9": blind})
    entries = [entry(T0_S, T0_S + 10, {"GPU-0": device(3600.0)})]
    folder = Folder(tmp_path).rank(0, [GPU], entries, carried=Totals.of(earlier)).path
    assert _summary(folder)["energy"]["missing_device_s"] == RunFollow(folder).look().missing_s == pytest.approx(45)


def test_report_and_fleet_have_the_same_share_of_device_time_without_a_reading() -> None:
    folder = FROZEN / "carried"
    energy, row = _summary(folder)["energy"], read_folder(folder).row
    assert row.missing_s is not None and row.device_s is not None
    assert energy["missing_share_of_device_time"] == pytest.approx(
        row.missing_s / (row.missing_s + row.device_s), rel=1e-6
    )


def test_a_number_that_json_cannot_say_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds NaN or an infinity"):
        write_summary({"energy_j": float("nan")}, tmp_path)


def test_market_grams_follow_the_contract(tmp_path: Path) -> None:
    folder = Folder(tmp_path, config={"carbon": {"market_g_per_kwh": 0.0, "pue": 1.2}})
    s = _summary(folder.rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(3.6e6)})]).path)
    assert s["carbon"]["operational_market_g"] == 0.0
    assert s["scope2"]["scope2_market_g"] == 0.0


def test_scope2_reports_both_methods(tmp_path: Path) -> None:
    folder = Folder(tmp_path, config={"carbon": {"market_g_per_kwh": 10.0, "pue": 1.5}})
    s = _summary(folder.rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(3.6e6)}, pue=1.5)]).path)
    assert s["scope2"] == {
        "scope2_location_g": s["carbon"]["operational_location_g"],
        "scope2_market_g": pytest.approx(15.0),
        "factor_source": "FRA: test grid, 2025",
        "factor_kind": "average",
        "time_resolution": "not stated",
    }


def test_no_contract_is_null_not_zero(tmp_path: Path) -> None:
    blind = [entry(T0_S, T0_S + 10, {"GPU-0": device(3.6e6)}, g_per_kwh=None)]
    found = _summary(Folder(tmp_path).rank(0, [GPU], blind).path)["scope2"]
    assert found["scope2_market_g"] is None and found["scope2_location_g"] is None


def test_every_assumption_has_a_source(tmp_path: Path) -> None:
    entries = [entry(T0_S, T0_S + 10, {"GPU-0": device(1.0), "dram": device(1.0, Provenance.MODELLED)}, embodied_g=0.1)]
    s = _summary(Folder(tmp_path).rank(0, [GPU, DRAM], entries).path)
    names = " ".join(row["name"] for row in s["assumptions"])
    assert all(row["name"] and row["value"] and row["source"] for row in s["assumptions"])
    assert "PUE" in names and "Carbon intensity of FRA" in names and "Power model of Memory 64 GB" in names


def test_summary_json_holds_the_same_figures(tmp_path: Path) -> None:
    folder = one_rank(tmp_path)
    s = _summary(folder)
    assert json.loads(write_summary(s, folder).read_text(encoding="utf-8")) == json.loads(json.dumps(s))
    assert sorted(path.name for path in folder.iterdir()) == ["rank-00000.jsonl", "run.json", "summary.json"]


def test_no_figure_is_nan_or_infinite(tmp_path: Path) -> None:
    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [n for item in value.values() for n in numbers(item)]
        if isinstance(value, list):
            return [n for item in value for n in numbers(item)]
        return [value] if isinstance(value, float) else []

    instant = Folder(tmp_path).rank(0, [GPU], [entry(T0_S, T0_S, {"GPU-0": device(0.0)})]).path
    assert all(math.isfinite(n) for n in numbers(_summary(instant)))


def test_a_folder_that_cannot_be_written_names_the_remedy(tmp_path: Path) -> None:
    folder = one_rank(tmp_path)
    (folder / "summary.json").mkdir()
    with pytest.raises(RunFolderError, match="Make the folder writable"):
        write_summary(_summary(folder), folder)
    assert not list(folder.glob("*.part"))
    assert not list(folder.glob(".*.part"))


def test_what_drivers_tell_beside_power_is_there_by_device_and_phase(tmp_path: Path) -> None:
    folder, part = Folder(tmp_path, "states"), device(1000.0)
    looks = {
        "forward": {"util_s": 4.0, "sm_s": 4.0, "memory_s": 3.0, "whole_s": 4.0, "temp_s": 4.0, "c_s": 240.0,
                    "max_c": 61.0, "clocks_s": 4.0, "power_s": 1.0},
        "data": {"util_s": 1.0, "temp_s": 1.0, "c_s": 40.0, "max_c": 40.0, "clocks_s": 1.0},
    }  # fmt: skip
    told = dataclasses.replace(part, states=looks)
    folder.rank(0, [GPU, CPU], [entry(T0_S + 10 * i, T0_S + 10 * i + 10, {"GPU-0": told}) for i in range(8)])
    for most in (None, 2):  # downsampled sums are the same
        summary = summarize(read_run(folder.path, most=most))
        (gpu,) = (row for row in summary["devices"] if row["uid"] == "GPU-0")
        assert (gpu["sm_utilisation"], gpu["memory_utilisation"]) == pytest.approx((0.8, 0.6))
        assert (gpu["temperature_c"], gpu["max_temperature_c"]) == (56.0, 61.0)
        assert gpu["slowed"] == {"thermal": 0.0, "power": pytest.approx(0.2), "brake": 0.0}
        rows = {row["name"]: row for row in summary["phases"]}
        assert (rows["forward"]["sm_utilisation"], rows["forward"]["memory_utilisation"]) == (1.0, 0.75)
        assert (rows["data"]["sm_utilisation"], rows["data"]["utilisation_resolved"]) == (0.0, 0.0)
        assert rows["backward"]["sm_utilisation"] is None and rows["backward"]["slowed"] is None, "unknown is never 0"
        (cpu,) = (row for row in summary["devices"] if row["uid"] == CPU["uid"])
        assert state_text(cpu) == "" and cpu["temperature_c"] is None
    text = "kernels 100 %, memory 75.0 % of the time, 60 \N{DEGREE SIGN}C, slowed by power 25.0 %"
    assert state_text(rows["forward"]).replace("\N{THIN SPACE}", " ") == text
    console = Console(width=250, file=io.StringIO())
    console.print(table.render(summary))
    page = render_html(summary, None)
    for shown in (console.file.getvalue(), re.sub(r"\s|&nbsp;", " ", page)):  # type: ignore[attr-defined]
        assert "kernels 100" in shown and "no occupancy" in page
