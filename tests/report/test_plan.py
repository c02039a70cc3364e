"""A run's plan in summary.json: progress, deadline, the three numbers and where they are from."""

import json
from pathlib import Path
from typing import Any

import pytest

from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import Totals
from greentrain.policy.action_table import Action
from greentrain.policy.menu import menu_of
from greentrain.report.plan import MAX_CHANGES, PlanRecord
from greentrain.report.summary import MAX_SHIFTS, summarize
from greentrain.types import Gear
from tests.report.planned_run import BF16, DAY, FP8, GRID, OFF, POWER_W, START_S, facts, planned
from tests.report.run_folders import GPU, T0_S, Folder, device, entry, one_rank

A_DAY = 86_400.0
PER_HOUR = 1 / 480 / 1000
"""g in an hour of the grid by W and g/kWh, at 480 times the speed."""


def _plan(folder: Path, **more: Any) -> dict[str, Any]:
    summary = summarize(read_run(folder), **more)
    json.dumps(summary, allow_nan=False)
    plan = summary["plan"]
    assert isinstance(plan, dict)
    return plan


def _grams(rows: tuple[int, ...]) -> float:
    return sum(POWER_W[row] * g for row, g in zip(rows, GRID, strict=False)) * PER_HOUR


def test_a_run_without_a_plan_has_none(tmp_path: Path) -> None:
    assert summarize(read_run(one_rank(tmp_path)))["plan"] is None


def test_the_three_numbers_by_hand(tmp_path: Path) -> None:
    plan = _plan(planned(tmp_path))
    assert plan["tokens_done"] == 21 * 7500, "21 hours of bf16, or 14 of fp8"
    assert plan["actual_g"] == pytest.approx(_grams(DAY))
    assert plan["static_g"] == pytest.approx(_grams((BF16,) * 21))
    assert plan["blind_g"] == pytest.approx(450.0 * 14 / 24 * sum(GRID[:24]) * PER_HOUR)
    assert plan["oracle_g"] == pytest.approx(450.0 * sum(sorted(GRID[:24])[:14]) * PER_HOUR)
    assert plan["saving_vs_static"] == pytest.approx(1 - plan["actual_g"] / plan["static_g"])
    assert plan["saving_vs_blind"] == pytest.approx(1 - plan["actual_g"] / plan["blind_g"])
    assert plan["regret"] == pytest.approx(plan["actual_g"] / plan["oracle_g"] - 1)
    assert plan["unknown"] == {}
    assert (plan["provenance"], plan["actual_of"], plan["replayed"]) == ("assumed", "table", True)


def test_what_was_decided_is_counted(tmp_path: Path) -> None:
    plan = _plan(planned(tmp_path, shielded=(18, 19)))
    assert (plan["decisions"], plan["changes"], plan["pauses"], plan["shielded"]) == (22, 4, 1, 2)
    assert [(row["name"], row["hours"]) for row in plan["rows"]] == [
        ("off", pytest.approx(5.0)),
        ("bf16", pytest.approx(6.0)),
        ("fp8", pytest.approx(10.0)),
    ]
    assert [(row["name"], row["shielded"]) for row in plan["changed"]] == [
        ("bf16", False), ("off", False), ("bf16", False), ("fp8", False), ("bf16", True), ("end", False),
    ]  # fmt: skip
    assert [stretch[2] for stretch in plan["stretches"]] == [BF16, OFF, BF16, FP8, BF16]
    assert plan["start_utc"] == "2022-06-12T12:00:00Z"


def test_a_measured_table_is_held_against_what_the_run_drew(tmp_path: Path) -> None:
    plan = _plan(planned(tmp_path, energy=1.1, ranks=2, plan={"provenance": "measured"}))
    assert plan["actual_g"] == pytest.approx(1.1 * _grams(DAY)), "both ranks, and no PUE of 1.2"
    assert plan["decided_g"] == pytest.approx(_grams(DAY))
    assert (plan["actual_of"], plan["provenance"]) == ("run", "measured")
    assert plan["power_of_table"] == pytest.approx(1.1)
    assert plan["static_g"] == pytest.approx(1.1 * _grams((BF16,) * 21)), "it would have drawn more, too"
    assert plan["oracle_g"] == pytest.approx(1.1 * 450.0 * sum(sorted(GRID[:24])[:14]) * PER_HOUR)


def test_measuring_the_table_counts_against_the_plan(tmp_path: Path) -> None:
    """The first hour went into measuring: nobody else would have done that."""
    folder = planned(tmp_path, plan={"provenance": "measured"})
    lines = (folder / "rank-00000.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if json.loads(line).get("name") == "decision")
    record = json.loads(lines[1])
    assert record["kind"] == "entry"
    record["devices"]["GPU-0"]["j"] *= 3
    record["op_g"] *= 3
    kept = [lines[0], json.dumps(record) + "\n", *lines[2:first], *lines[first + 1 :]]
    (folder / "rank-00000.jsonl").write_text("".join(kept), encoding="utf-8")
    plan = _plan(folder)
    assert plan["decisions"] == 21 and plan["stretches"][0][0] == START_S + 3600
    assert plan["power_of_table"] == pytest.approx(1.0), "of what was decided"
    assert plan["actual_g"] == pytest.approx(_grams(DAY) + 2 * 400.0 * GRID[0] * PER_HOUR)
    assert plan["decided_g"] == pytest.approx(_grams(DAY)), "the usual training before it"


@pytest.mark.parametrize(
    ("of_table", "modelled", "expected"),
    [
        ("measured", 0.3, "mixed"),
        ("modelled", 1.0, "modelled"),
        ("modelled", 0.0, "mixed"),
        ("mixed", 0.0, "mixed"),
        ("assumed", 0.3, "assumed"),
    ],
)
def test_every_number_says_where_it_is_from(tmp_path: Path, of_table: str, modelled: float, expected: str) -> None:
    assert _plan(planned(tmp_path, modelled=modelled, plan={"provenance": of_table}))["provenance"] == expected


def test_a_declared_table_is_not_held_against_the_runs_joules(tmp_path: Path) -> None:
    cheap, dear = _plan(planned(tmp_path / "a", energy=0.1)), _plan(planned(tmp_path / "b", energy=9.0))
    assert cheap["saving_vs_static"] == dear["saving_vs_static"] == pytest.approx(0.317, abs=1e-3)


def test_a_slower_machine_is_slower_in_all_plans(tmp_path: Path) -> None:
    slow = {**facts(), "rows": [{**row, "tokens_per_s": 2 * row["tokens_per_s"]} for row in facts()["rows"]]}
    plan = _plan(planned(tmp_path, plan=slow))
    assert plan["speed_of_table"] == pytest.approx(0.5)
    assert plan["static_g"] == pytest.approx(_grams((BF16,) * 21)), "as long as the tokens really took"


def test_hours_that_nobody_knows_make_a_number_null_and_say_so(tmp_path: Path) -> None:
    hours = [*GRID[:21], None, None, None]
    plan = _plan(planned(tmp_path, plan={"hourly_g_per_kwh": hours}))
    assert plan["saving_vs_static"] == pytest.approx(1 - _grams(DAY) / _grams((BF16,) * 21))
    assert plan["saving_vs_blind"] is None and plan["regret"] is None
    assert "not known in 3 of the 24 h" in plan["unknown"]["regret"]

    hours[3] = None
    plan = _plan(planned(tmp_path / "hole", hours=hours, plan={"hourly_g_per_kwh": hours}))
    assert plan["actual_g"] is not None, "the job was off in that hour"
    assert plan["saving_vs_static"] is None

    hours[9] = None
    plan = _plan(planned(tmp_path / "at work", hours=hours, plan={"hourly_g_per_kwh": hours}))
    assert plan["actual_g"] is None
    assert plan["unknown"]["saving_vs_static"] == "the carbon intensity of 2 of 21 hours is unknown"


def test_the_books_know_hours_that_the_plan_did_not(tmp_path: Path) -> None:
    """A process that was killed has written its facts at the start, when the hours were to come."""
    plan = _plan(planned(tmp_path, plan={"hourly_g_per_kwh": [GRID[0], *[None] * 23]}))
    assert plan["hourly_g_per_kwh"] == [*map(pytest.approx, GRID[:21]), None, None, None]


def test_grams_that_are_not_whole_are_compared_with_nothing(tmp_path: Path) -> None:
    told = {"provenance": "measured"}
    blind = _plan(planned(tmp_path / "grid", hours=[*GRID[:7], None, *GRID[8:24]], plan=told))
    folder = planned(tmp_path / "ranks", ranks=2, plan=told)
    (folder / "rank-00001.jsonl").unlink()
    half = _plan(folder)
    for plan, reason in (
        (blind, "the carbon intensity of 833 mWh of the run's energy is unknown"),
        (half, "the files of some ranks are not in this folder"),
    ):
        assert plan["actual_g"] is None
        assert plan["unknown"] == dict.fromkeys(("saving_vs_static", "saving_vs_blind", "regret"), reason)


def test_time_without_readings_is_not_taken_for_thrift(tmp_path: Path) -> None:
    def one(name: str, missing_s: float) -> dict[str, Any]:
        told = facts(provenance="measured", tokens_done=157_500.0)
        entries = [
            entry(T0_S, T0_S + 90, {"GPU-0": device(30_000.0)}, tokens=100_000),
            entry(T0_S + 90, T0_S + 180, {"GPU-0": device(9000.0, missing_s=missing_s)}, tokens=57_500),
        ]
        return _plan(Folder(tmp_path / name, plan=told).rank(0, [GPU], entries).path)

    assert one("short", 0.5)["actual_g"] == pytest.approx(39_000 / 3.6e6 * 400)
    assert "for 30.0 s of device time there is no reading" in one("long", 30.0)["unknown"]["regret"]


def test_a_deadline_that_is_met_or_missed(tmp_path: Path) -> None:
    plan = _plan(planned(tmp_path / "met"))
    late_s = -(3 * 3600 + 3600 * 500 / 7500)
    assert (plan["met"], plan["late_s"]) == (True, pytest.approx(late_s)), "between two decisions, in proportion"
    assert plan["deadline_text"] == "deadline met: done 3 h 4 min before it"

    late = _plan(planned(tmp_path / "late", (*DAY[:18], *(OFF,) * 6, *(BF16,) * 3)))
    assert (late["met"], late["deadline_text"]) == (False, "deadline missed: done 2 h 56 min after it")
    assert len(late["hourly_g_per_kwh"]) == 27
    assert late["regret"] is not None, "the hours after the deadline are in the books"

    never = _plan(planned(tmp_path / "never", (*DAY[:18], *(OFF,) * 8), end=False))
    assert (never["met"], never["late_s"], never["finished_s"]) == (False, None, None)
    assert never["deadline_text"] == "deadline missed: 86.0 % done 2 h after it"


def test_a_job_that_stops_early_is_no_better_for_it(tmp_path: Path) -> None:
    plan = _plan(planned(tmp_path, DAY[:12], end=False))
    assert (plan["met"], plan["tokens_done"]) == (None, 67_500)
    assert plan["deadline_text"] == "stopped 12 h before the deadline, 43.0 % done"
    assert plan["saving_vs_static"] == pytest.approx(1 - _grams(DAY[:12]) / _grams((BF16,) * 9))
    assert plan["saving_vs_blind"] is None and plan["regret"] is None
    assert plan["unknown"]["regret"] == "the job was stopped early, with 57% of it left to do"

    almost = _plan(planned(tmp_path / "almost", DAY[:20], end=False))
    assert almost["regret"] is not None and almost["met"] is None


def test_a_smaller_last_batch_leaves_no_job_undone(tmp_path: Path) -> None:
    asked = {"tokens": 158_000.0}
    plan = _plan(planned(tmp_path / "done", end=False, plan=asked))
    assert (plan["met"], plan["deadline_text"]) == (True, "deadline met: done 3 h before it")
    assert plan["tokens_done"] < plan["tokens"]
    killed = _plan(planned(tmp_path / "killed", end=False, reason=None, plan=asked))
    assert (killed["met"], killed["finished_s"]) == (None, None), "nobody knows whether it meant to"


def test_a_run_that_goes_on_is_not_judged(tmp_path: Path) -> None:
    plan = _plan(planned(tmp_path, DAY[:12], end=False, reason=None), now_unix_s=T0_S + 91)
    assert plan["deadline_text"] == "43.0 % done, 12 h left until the deadline"
    assert set(plan["unknown"].values()) == {"the run is still going"}
    assert plan["saving_vs_static"] is None


def test_the_books_tell_what_a_killed_process_did_not(tmp_path: Path) -> None:
    folder = planned(tmp_path, DAY[:12], end=False, reason=None, plan={"tokens_done": 0.0})
    plan = _plan(folder)
    assert plan["tokens_done"] == pytest.approx(67_500)
    assert plan["saving_vs_static"] == pytest.approx(1 - _grams(DAY[:12]) / _grams((BF16,) * 9))


def test_a_resumed_run_has_one_plan_and_a_hole_in_it(tmp_path: Path) -> None:
    """Killed after 12 of the grid's hours, gone on with 4 hours later."""
    folder = planned(tmp_path, DAY[:12], end=False, reason=None, plan={"tokens_done": 0.0})
    t_s = T0_S + 16 * 7.5
    decision = {
        "t": t_s, "name": "decision", "text": "fp8", "row": FP8, "action": None, "done": False, "reason": "late",
        "grid_s": START_S + 16 * 3600.0, "next_s": START_S + 17 * 3600.0, "g_per_kwh": 200.0, "shielded": True,
        "step": 99, "tokens": 67_500.0,
    }  # fmt: skip
    again = Folder.__new__(Folder)
    again.path, again.run_id, again.world_size = folder, "planned", 1
    work = entry(t_s, t_s + 15, {"GPU-0": device(450 * 15.0)}, tokens=22_500, g_per_kwh=200.0)
    again.rank(0, [GPU], [work], events=[decision])
    plan = _plan(folder)
    assert plan["tokens_done"] == pytest.approx(90_000)
    held = [((a - START_S) / 3600, (b - START_S) / 3600, row) for a, b, row in plan["stretches"]]
    assert held[-2:] == [(8.0, pytest.approx(12.0), FP8), (16.0, pytest.approx(18.0), FP8)]
    assert plan["end_s"] == pytest.approx(START_S + 18 * 3600)
    assert plan["shielded"] == 1


def test_decisions_of_another_folder_are_not_guessed(tmp_path: Path) -> None:
    carried = Totals(energy_j=36_000.0, duration_s=60.0, operational_g=4.8, by_provenance={"measured": 36_000.0})
    for provenance, actual_g in (("assumed", None), ("measured", 4.0 + 36_000 / 3.6e6 * 400)):
        told = facts(provenance=provenance, tokens_done=157_500.0)
        folder = Folder(tmp_path / provenance, plan=told)
        work = entry(T0_S + 60, T0_S + 180, {"GPU-0": device(36_000.0)}, tokens=100_000)
        decision = {
            "t": T0_S + 60, "name": "decision", "text": "", "row": FP8, "action": None, "done": False, "reason": "",
            "grid_s": START_S + 60 * 480, "next_s": 0.0, "g_per_kwh": 1.0, "shielded": False, "step": 1,
            "tokens": 50_000.0,
        }  # fmt: skip
        plan = _plan(folder.rank(0, [GPU], [work], carried=carried, events=[decision]).path)
        assert plan["actual_g"] == (None if actual_g is None else pytest.approx(actual_g))
        if provenance == "assumed":
            assert "earlier parts of the run is not in this folder" in plan["unknown"]["regret"]


def test_a_plan_before_its_first_decision(tmp_path: Path) -> None:
    work = entry(T0_S, T0_S + 10, {"GPU-0": device(3000.0)}, tokens=10)
    plan = _plan(Folder(tmp_path, plan=facts()).rank(0, [GPU], [work]).path)
    assert (plan["decisions"], plan["changes"], plan["pauses"], plan["stretches"]) == (0, 0, 0, [])
    assert "nothing was decided" in plan["unknown"]["saving_vs_static"]


def test_lists_are_bounded_and_warnings_stay(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {
            "t": T0_S + i * 0.1, "name": "decision", "text": "", "row": 1 + i % 2, "action": None, "done": False,
            "reason": str(i), "grid_s": START_S + i * 48, "next_s": 0.0, "g_per_kwh": 1.0, "shielded": False,
            "step": i, "tokens": 10.0 * i,
        }
        for i in range(1500)
    ]  # fmt: skip
    events.append({"t": T0_S + 151, "name": "warning", "text": "too hot"})
    work = entry(T0_S, T0_S + 180, {"GPU-0": device(3000.0)}, tokens=15_000)
    folder = Folder(tmp_path, plan=facts()).rank(0, [GPU], [work], events=events).path
    summary = summarize(read_run(folder))
    assert [event["text"] for event in summary["events"] if event["name"] == "warning"] == ["too hot"]
    assert sum(event["name"] == "decision" for event in summary["events"]) == MAX_SHIFTS
    assert (summary["plan"]["decisions"], summary["plan"]["changes"]) == (1500, 1499)
    assert len(summary["plan"]["changed"]) == MAX_CHANGES
    assert (summary["plan"]["changed"][0]["reason"], summary["plan"]["changed"][-1]["reason"]) == ("0", "1499")


def test_samples_are_called_samples(tmp_path: Path) -> None:
    work = entry(T0_S, T0_S + 10, {"GPU-0": device(3000.0)}, samples=10)
    assert _plan(Folder(tmp_path, plan=facts()).rank(0, [GPU], [work]).path)["unit"] == "samples"
    assert _plan(planned(tmp_path / "tokens"))["unit"] == "tokens"


@pytest.mark.parametrize(
    "action",
    [Action(gear=Gear.FP8), Action(gear=Gear.BF16, cap=0.7), Action(gear=Gear.FP8, cap=0.65, ranks=4)],
)
def test_actions_are_found_again_by_their_names(action: Action) -> None:
    rows = [facts()["rows"][0], {**facts()["rows"][1], "name": str(action)}]
    assert menu_of(facts(rows=rows), 1.0).actions == (None, action)


def test_plans_that_could_not_pause_are_held_against_such(tmp_path: Path) -> None:
    rows = (BF16,) * 7 + (FP8,) * 10 + (BF16,)
    free = _plan(planned(tmp_path / "a", rows))
    bound = _plan(planned(tmp_path / "b", rows, plan={"pausable": False}))
    assert bound["static_g"] == free["static_g"]
    assert bound["oracle_g"] > 1.01 * free["oracle_g"], "it had to begin at once"
    assert bound["regret"] < free["regret"]


def test_hours_are_cut_at_the_end(tmp_path: Path) -> None:
    folder = planned(tmp_path, plan={"deadline_s": START_S + 23.5 * 3600})
    plan = PlanRecord.of(read_run(folder))
    assert plan is not None
    assert [length_s for _, length_s in plan.hours(plan.horizon_s)] == [3600.0] * 23 + [1800.0]
    assert plan.grams(1000.0, START_S + 1800, START_S + 5400) == pytest.approx((GRID[0] + GRID[1]) / 2)
    assert plan.grams(1000.0, START_S - 1, START_S) is None
    assert plan.grams(0.0, START_S - 1, START_S) == 0.0
