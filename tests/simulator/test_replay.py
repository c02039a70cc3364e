"""A run folder replayed: what ran, what others would have done, and what is missing where that cannot be told."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from greentrain.carbon.typical import TypicalSignal
from greentrain.config.schema import GreenConfig
from greentrain.control.plan.planner import means
from greentrain.errors import ConfigError, RunFolderError, TraceError
from greentrain.ledger.reader import read_run
from greentrain.policy.waterfill import solve
from greentrain.report.summary import summarize
from greentrain.simulator.grids import recorded_grid
from greentrain.simulator.replay import RunReplay, render, replay, to_csv
from greentrain.simulator.scene import NOTHING, ORACLE, RAN
from greentrain.types import GearUse
from tests.report.planned_run import BF16, DAY, FP8, GRID, OFF, START_S, planned
from tests.report.run_folders import GPU, T0_S, Folder, device, entry
from tests.simulator.grids import HOUR
from tests.simulator.planning import ACTIONS, TABLE, write_csv

HOURS = [round(300.0 + 150.0 * math.cos((hour - 2) / 24 * 2 * math.pi), 1) for hour in range(24)]


def _lines(result: RunReplay) -> dict[str, Any]:
    return {line.name: line for line in result.lines}


def _plain(
    root: Path,
    hours: Sequence[float | None] = HOURS,
    *,
    gears: Sequence[str] = ("bf16",) * 24,
    table: bool = True,
    tokens: bool = True,
    carbon: dict[str, Any] | None = None,
    **run: Any,
) -> Path:
    """Return the folder of a run of an entry an hour without a plan: 400 W and 1000 tokens/s in bf16, more in fp8."""
    config = {"carbon": carbon or {"signal": "constant", "zone": "FRA"}, "policy": {}}
    folder = Folder(root, "plain", config=config, action_table=TABLE.to_dict() if table else None, **run)
    entries = []
    for i, value in enumerate(hours):
        watt, speed = (400.0, 1000) if gears[i] == "bf16" else (450.0, 1500)
        done = speed * 3600 if tokens else 0
        use = GearUse(energy_j=watt * 3600, seconds=3600.0, device_s=3600.0, steps=10, tokens=done)
        entries.append(
            entry(
                T0_S + i * HOUR, T0_S + (i + 1) * HOUR, {"GPU-0": device(watt * 3600)}, g_per_kwh=value, tokens=done,
                gears={gears[i]: use}, pue=1.25,
            )
        )  # fmt: skip
    return folder.rank(0, [GPU], entries).path


# -- with a plan -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("provenance", "ranks"), [("assumed", 1), ("measured", 1), ("measured", 2)])
def test_the_three_numbers_are_those_of_the_report(tmp_path: Path, provenance: str, ranks: int) -> None:
    folder = planned(tmp_path, plan={"provenance": provenance}, ranks=ranks)
    plan = summarize(read_run(folder))["plan"]
    found = replay(folder)
    for name in ("saving_vs_static", "saving_vs_blind", "regret"):
        assert getattr(found.verdict, name) == pytest.approx(plan[name], rel=1e-9)
    lines = _lines(found)
    assert lines[RAN].grams == plan["actual_g"] and lines[RAN].changes == plan["changes"]
    assert lines["static"].grams == pytest.approx(plan["static_g"], rel=1e-9)
    assert lines[ORACLE].grams == pytest.approx(plan["oracle_g"], rel=1e-9)
    assert found.to_dict()["grams_of"] == ("table" if provenance == "assumed" else "run")
    assert ("assumed" in found.notes[0]) == (provenance == "assumed") and provenance in found.notes[1]


def test_what_ran_is_drawn_as_it_ran(tmp_path: Path) -> None:
    found = replay(planned(tmp_path))
    ran = found.scene.courses[0]
    assert ran.name == RAN and ran.total_g == pytest.approx(found.lines[0].grams, rel=1e-9)
    middles = (ran.edges_unix_s[:-1] + ran.edges_unix_s[1:]) / 2
    hour = ((middles - START_S) // HOUR).astype(int)
    assert (ran.rows == np.array(DAY)[np.minimum(hour, len(DAY) - 1)]).all()
    half = float(np.interp(START_S + 9 * HOUR, ran.edges_unix_s, ran.grams))
    watts = {OFF: 0.0, BF16: 400.0, FP8: 450.0}
    assert half == pytest.approx(sum(watts[DAY[h]] * GRID[h] / 1000 for h in range(9)) / 480, rel=1e-6)


def test_policies_do_the_work_that_was_done_by_the_deadline(tmp_path: Path) -> None:
    found = replay(planned(tmp_path), policies=("mpc", "threshold"))
    lines = _lines(found)
    assert list(lines) == [RAN, "static", "carbon_blind", "mpc", "threshold", ORACLE]
    assert all(line.tokens_left == 0 for line in found.lines)
    assert all(START_S < lines[name].done_s <= START_S + 24 * HOUR for name in ("static", "mpc", "threshold"))
    assert lines[ORACLE].grams <= lines["mpc"].grams * (1 + 1e-9)
    assert lines["mpc"].grams < lines["static"].grams


def test_a_typical_signal_tells_the_three_weeks_before(tmp_path: Path) -> None:
    signal = TypicalSignal("US-CAL-CISO")
    edges = START_S + np.arange(25) * HOUR
    seen = {"tokens": 148_000.0, "hourly_g_per_kwh": means(signal, edges).tolist()}
    carbon = {"signal": "typical", "zone": "US-CAL-CISO"}
    known = replay(planned(tmp_path / "a", plan=seen, config={"carbon": carbon}))
    assert "policies learn as they go" not in known.notes[2]
    live = replay(planned(tmp_path / "b", plan=seen, config={"carbon": {"signal": "gb", "zone": "GB"}}))
    assert "policies learn as they go" in live.notes[2]
    seen["past_hourly_g_per_kwh"] = means(signal, START_S + np.arange(-504, 1) * HOUR).tolist()
    told = replay(planned(tmp_path / "c", plan=seen, config={"carbon": {"signal": "gb", "zone": "GB"}}))
    assert "policies learn as they go" not in told.notes[2]
    assert _lines(told)["mpc"].grams == pytest.approx(_lines(known)["mpc"].grams, rel=1e-9)
    assert _lines(known)["mpc"].grams < 0.99 * _lines(live)["mpc"].grams
    assert _lines(known)["mpc"].grams == pytest.approx(_lines(known)[ORACLE].grams, rel=0.01)


def test_a_signal_that_tells_another_story_is_not_asked(tmp_path: Path) -> None:
    found = replay(planned(tmp_path, config={"carbon": {"signal": "typical", "zone": "US-CAL-CISO"}}))
    assert "policies learn as they go" in found.notes[2]
    carbon = {"signal": "typical", "zone": "US-CAL-CISO"}
    with pytest.raises(ConfigError, match="4 of 24 hours until the deadline: its signal tells another story today"):
        replay(_plain(tmp_path, [*HOURS[:20], None, None, None, None], carbon=carbon))


def test_a_late_run_is_held_against_plans_that_were_in_time(tmp_path: Path) -> None:
    late = [OFF] * 6 + [BF16] * 20
    found = replay(planned(tmp_path, late, hours=GRID[:30], plan={"tokens": 149_000.0, "hourly_g_per_kwh": GRID}))
    lines = _lines(found)
    assert found.scene.courses[0].late and lines[RAN].done_s > found.deadline_s
    assert lines["mpc"].tokens_left == 0
    assert found.scene.edges_unix_s[-1] == pytest.approx(START_S + 26 * HOUR)


# -- without a plan ----------------------------------------------------------------------------------------------------


def test_a_run_without_a_plan_needs_only_a_table_and_intensities(tmp_path: Path) -> None:
    found = replay(_plain(tmp_path))
    grams = sum(400.0 * value / 1000 for value in HOURS)
    lines = _lines(found)
    assert lines[RAN].grams == pytest.approx(grams) and lines["static"].grams == pytest.approx(grams)
    assert found.verdict.saving_vs_static == pytest.approx(0.0, abs=1e-12)
    best = solve(np.array(HOURS), np.full(24, HOUR), 24 * HOUR * 1000.0, found.menu)
    assert lines[ORACLE].grams == pytest.approx(best.grams, rel=1e-9)
    assert found.happened.policy == "the run" and found.deadline_s == T0_S + 24 * HOUR
    assert lines["mpc"].grams < 0.85 * grams
    assert "the run's own joules, measured" in found.notes[0] and "assumed" in found.notes[1]
    assert (found.scene.courses[0].rows == BF16).all()


def test_an_hour_of_which_the_books_have_little_is_not_known(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "holes", action_table=TABLE.to_dict(), config={"carbon": {"signal": "gb", "zone": "GB"}})
    lengths = {0: 3600.0, 1: 1900.0, 2: 1700.0, 3: 3600.0}
    entries = [
        entry(T0_S + h * HOUR, T0_S + h * HOUR + length_s, {"GPU-0": device(1.0)}, g_per_kwh=300.0, tokens=1000)
        for h, length_s in lengths.items()
    ]
    with pytest.raises(ConfigError, match="intensity of 1 of 4 hours until the deadline: gb was asked live"):
        replay(folder.rank(0, [GPU], entries).path)


def test_gears_of_a_run_without_a_plan_are_drawn(tmp_path: Path) -> None:
    found = replay(_plain(tmp_path, gears=["bf16"] * 12 + ["fp8"] * 12))
    rows = found.scene.courses[0].rows
    assert (rows[: len(rows) // 2] == BF16).all() and (rows[len(rows) // 2 :] == FP8).all()
    assert found.verdict.unknown["saving_vs_static"].startswith("it would last 30 h")


def test_a_later_deadline_and_held_ranks_are_set_by_a_configuration(tmp_path: Path) -> None:
    signal = TypicalSignal("US-CAL-CISO")
    hours = means(signal, T0_S + np.arange(25) * HOUR).tolist()
    folder = _plain(tmp_path, hours, carbon={"signal": "typical", "zone": "US-CAL-CISO"})
    policy = GreenConfig.load({"policy": {"deadline_h": 48.0, "released": False, "idle_w": 100.0}}).policy
    found = replay(folder, policy=policy)
    assert found.deadline_s == T0_S + 48 * HOUR and found.menu.power_w[OFF] == 100.0
    assert "24 of 48 hours from its signal, asked again" in found.notes[2]


def test_another_table_and_a_recording_take_the_place_of_the_runs_own(tmp_path: Path) -> None:
    folder = _plain(tmp_path, [None] * 24, table=False)
    rng = np.random.default_rng(0)
    path = write_csv(tmp_path / "grid.csv", rng.uniform(100, 500, 40 * 24), T0_S - 25 * 24 * HOUR)
    found = replay(folder, actions=ACTIONS, grid=recorded_grid(str(path)))
    lines = _lines(found)
    assert lines[RAN].grams is None and found.verdict.saving_vs_static is None
    assert lines["mpc"].grams >= lines[ORACLE].grams > 0
    assert "grams unknown" in found.notes[0] and "declared in a test" in found.notes[1]
    assert "recorded" in found.notes[2]
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["rows"][0]["g"] is None and "saving_vs_static" in data["unknown"]


def test_a_share_of_fp8_holds_for_a_table_of_the_run(tmp_path: Path) -> None:
    config = {"precision": {"gears": ["bf16", "fp8"], "fp8_max_share": 0.5}}
    folder = Folder(tmp_path, "half", action_table=TABLE.to_dict(), config=config)
    entries = [
        entry(T0_S + h * HOUR, T0_S + (h + 1) * HOUR, {"GPU-0": device(400 * HOUR)}, tokens=3_600_000) for h in range(4)
    ]
    found = replay(folder.rank(0, [GPU], entries).path)
    assert found.menu.tokens_per_s[FP8] == pytest.approx(2 / (1 / 1000 + 1 / 1500))


def test_a_replayed_grid_keeps_joules_a_token(tmp_path: Path) -> None:
    """An hour of the machine is ten of the grid."""
    time = {"unix_s": T0_S, "grid_s": START_S, "speed": 10.0}
    found = replay(_plain(tmp_path, grid=time))
    assert found.happened.start_s == START_S and found.deadline_s == START_S + 240 * HOUR
    assert found.menu.power_w[BF16] == pytest.approx(40.0) and found.menu.tokens_per_s[BF16] == pytest.approx(100.0)
    assert _lines(found)["static"].grams == pytest.approx(_lines(found)[RAN].grams, rel=1e-9)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"table": False}, ["an action table", "--actions"]),
        ({"tokens": False}, ["tokens: its steps told none"]),
        ({"hours": [*HOURS[:20], None, None, None, None]}, ["4 of 24 hours until the deadline", "--trace"]),
        ({"hours": [None] * 24, "table": False, "tokens": False}, ["24 of 24 hours", "action table", "told none"]),
        ({"hours": HOURS[:1]}, []),
    ],
)
def test_what_is_missing_is_said_at_once(tmp_path: Path, keys: dict[str, Any], said: list[str]) -> None:
    keys = {"carbon": {"signal": "gb", "zone": "GB"}, **keys}
    folder = _plain(tmp_path, keys.pop("hours", HOURS), **keys)
    if not said:
        assert len(replay(folder).lines) > 3
        return
    with pytest.raises(ConfigError, match="run plain cannot be replayed, as it lacks") as caught:
        replay(folder)
    assert all(word in str(caught.value) for word in said)


def test_a_run_of_minutes_and_of_another_unit(tmp_path: Path) -> None:
    short = Folder(tmp_path, "short", action_table=TABLE.to_dict())
    short.rank(0, [GPU], [entry(T0_S, T0_S + 60, {"GPU-0": device(1.0)}, tokens=5)])
    with pytest.raises(ConfigError, match="from start to deadline it has 1 min;"):
        replay(short.path)
    other = Folder(tmp_path, "samples", action_table=TABLE.to_dict())
    other.rank(0, [GPU], [entry(T0_S, T0_S + 7200, {"GPU-0": device(1.0)}, samples=5)])
    with pytest.raises(ConfigError, match="an action table in samples: its own counts tokens"):
        replay(other.path)


def test_a_recording_that_does_not_cover_the_run_and_no_run_at_all(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "grid.csv", np.full(48, 300.0), T0_S + HOUR)
    with pytest.raises(TraceError, match=r"the run goes from 2026-01-01T00:00Z .* but trace 'grid' covers"):
        replay(_plain(tmp_path), grid=recorded_grid(str(path)))
    with pytest.raises(RunFolderError, match="does not exist"):
        replay(tmp_path / "absent")
    with pytest.raises(ConfigError, match="--policy is 'mcp'"):
        replay(tmp_path / "plain", policies=("mcp",))


def test_the_table_for_people_and_the_csv(tmp_path: Path) -> None:
    found = replay(planned(tmp_path))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(found))
    text = console.export_text()
    assert "what ran" in text and "replayed" in text and "assumed" in text
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [row["policy"] for row in rows] == [line.name for line in found.lines]
    assert rows[0]["saving_vs_run"] == "0.0"
    half = dataclasses.replace(found.lines[0], name="mpc", done_s=None, tokens_left=5e6)
    console.print(render(dataclasses.replace(found, lines=[half])))
    assert "late, 5.00 M left" in console.export_text() and NOTHING not in found.scene.courses[1].rows[:10]
