"""A study: what is simulated, at which slack, and what its table and its picture say."""

import csv
import dataclasses
import io
import json
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError, TraceError
from greentrain.policy.menu import OFF, Menu
from greentrain.simulator.grids import Grid, typical_year
from greentrain.simulator.scene import NOTHING, ORACLE, oracle_course
from greentrain.simulator.simulate import simulate
from greentrain.simulator.study import Study, StudyResult, render, run_study, to_csv
from greentrain.types import CarbonBasis
from tests.simulator.grids import HOUR, START, trace
from tests.simulator.planning import ACTIONS, grid

TOKENS = 24 * HOUR * 1000.0
"""Those of a day of the usual training."""


def _study(*policies: str, **keys: Any) -> Study:
    policy = {"name": "mpc", "tokens": TOKENS, "deadline_h": 36.0, **keys.pop("policy", {})}
    given = {"grids": [grid()], "windows": 4, "history_h": 24.0 * 7, **keys}
    return Study(config=GreenConfig.load({"policy": policy}), actions=ACTIONS, policies=policies, **given)


@pytest.fixture(scope="module")
def result() -> StudyResult:
    return run_study(_study("threshold", "mpc"))


def test_the_table_is_that_of_simulate_and_ends_with_the_oracle(result: StudyResult) -> None:
    study = result.study
    other = simulate(
        study.config,
        [grid().trace],
        policies=("threshold", "mpc"),
        table=ACTIONS.table,
        count=4,
        history_h=24.0 * 7,
    )
    rows = {row["policy"]: row for row in result.rows()}
    assert list(rows) == ["static", "carbon_blind", "threshold", "mpc", ORACLE]
    for name in ("threshold", "mpc"):
        assert rows[name]["kg"] == other.of(name).grams / 1000
        assert rows[name]["excess_over_oracle"] == other.of(name).excess
    known = other.of("mpc").references
    assert rows[ORACLE]["kg"] == pytest.approx(float(known.oracle_g.sum()) / 1000, rel=1e-12)
    saving = 1 - float(known.oracle_g.sum() / known.static_g.sum())
    assert rows[ORACLE]["saving_vs_static"] == pytest.approx(saving, rel=1e-9)
    assert rows["static"]["saving_vs_static"] == pytest.approx(0.0, abs=1e-12)
    assert rows[ORACLE]["kg"] <= rows["mpc"]["kg"] < rows["static"]["kg"]
    assert rows["mpc"]["misses"] == 0 and rows["mpc"]["jobs"] == 4


def test_without_policies_the_usual_ones_and_the_configured_one_run() -> None:
    assert _study().names == ("static", "carbon_blind", "threshold", "lowest_window", "mpc", "carbongear")
    assert _study(policy={"name": "spot"}).names[-1] == "spot"
    assert _study("oracle", "mpc", "mpc").names == ("static", "carbon_blind", "mpc")


@pytest.mark.parametrize(
    ("policy", "slacks", "cases"),
    [
        ({}, (), [(1.5, TOKENS, 36.0)]),
        ({}, (1.25, 2.0), [(1.25, TOKENS, 30.0), (2.0, TOKENS, 48.0)]),
        ({"name": "static", "tokens": None}, (2.0,), [(2.0, TOKENS * 0.75, 36.0)]),
        ({"name": "static", "deadline_h": None}, (2.0,), [(2.0, TOKENS, 48.0)]),
    ],
)
def test_two_of_tokens_deadline_and_slack_give_the_third(
    policy: dict[str, Any], slacks: tuple[float, ...], cases: list[tuple[float, float, float]]
) -> None:
    found = run_study(_study("static", policy=policy, slacks=slacks)).cases
    assert [(c.slack, c.tokens, c.deadline_h) for c in found] == [pytest.approx(case) for case in cases]


def test_the_usual_training_is_static_whatever_gear_is_configured() -> None:
    rows = run_study(_study("static", policy={"name": "static", "gear": None})).rows()
    config = GreenConfig.load({"precision": {"gears": ["bf16", "fp8"]}, "policy": {"name": "static", "gear": "fp8"}})
    policy = dataclasses.replace(config.policy, tokens=TOKENS, deadline_h=36.0)
    study = dataclasses.replace(_study("static"), config=dataclasses.replace(config, policy=policy))
    assert run_study(study).rows()[0]["kg"] == rows[0]["kg"]


def test_the_section_precision_says_which_gears_and_how_much_of_fp8() -> None:
    def oracle(precision: dict[str, Any]) -> tuple[float, list[str]]:
        study = _study("static")
        config = dataclasses.replace(study.config, precision=GreenConfig.load({"precision": precision}).precision)
        found = run_study(dataclasses.replace(study, config=config))
        return found.rows()[-1]["kg"], found.notes()

    both, bf16 = oracle({}), oracle({"gears": ["bf16"]})
    half = oracle({"gears": ["bf16", "fp8"], "fp8_max_share": 0.5})
    assert both[0] == oracle({"gears": ["bf16", "fp8"]})[0] < half[0] < bf16[0]
    assert any("At most 50% of the steps are in FP8" in note for note in half[1])
    assert not any("FP8" in note for note in both[1])
    with pytest.raises(ConfigError, match="none that may be used"):
        oracle({"gears": ["fp32"]})


def test_progress_counts_every_run_of_every_case() -> None:
    told: list[tuple[int, int]] = []
    grids = [grid(name="a"), grid(name="b", seed=1)]
    run_study(_study("mpc", grids=grids, slacks=(1.5, 2.0)), lambda done, of: told.append((done, of)))
    assert told == [(i, 12) for i in range(1, 13)]


@pytest.mark.parametrize(
    ("study", "error", "said"),
    [
        (_study("mcp"), ConfigError, r"--policy is 'mcp'.* Did you mean 'mpc'"),
        (_study(policy={"name": "static", "tokens": None}), ConfigError, "needs two of three"),
        (_study(slacks=(0.0,)), ConfigError, r"--slack is 0\.0"),
        (_study(slacks=(float("nan"),)), ConfigError, "--slack is nan"),
        (_study(seeds=0), ConfigError, "--seeds is 0"),
        (_study(windows=0), ConfigError, "windows is 0"),
        (_study(history_h=-1.0), ConfigError, r"--history-h is -1\.0"),
        (_study(history_h=24.0 * 60), TraceError, "shorter than 1440 h of history"),
        (_study(policy={"deadline_h": 1.0}), ConfigError, "earliest feasible deadline is 57600 s"),
        (_study(grids=[Grid(trace=trace(np.zeros(960)), recorded=True)]), ConfigError, "0 g/kWh throughout"),
        (_study(policy={"released": False}), ConfigError, r"policy\.idle_w"),
    ],
)
def test_bad_input(study: Study, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        run_study(study)


def test_mixed_bases() -> None:
    marginal = Grid(trace=trace(grid().trace.g_per_kwh, name="m", basis=CarbonBasis.MARGINAL), recorded=True)
    with pytest.raises(ConfigError, match="the traces mix bases"):
        run_study(_study(grids=[grid(), marginal]))


def test_the_csv_and_the_json_hold_the_same_rows(result: StudyResult) -> None:
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    rows = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert [row["policy"] for row in rows] == [row["policy"] for row in data["rows"]]
    for row, other in zip(rows, data["rows"], strict=True):
        assert float(row["kg"]) == other["kg"] and float(row["saving_vs_static"]) == other["saving_vs_static"]
    assert rows[-1]["kwh"] == "" and data["rows"][-1]["kwh"] is None
    assert data["cases"][0]["tokens"] == TOKENS and len(data["cases"][0]["starts"]["made up"]) == 4
    assert data["actions"] == {
        "source": "declared in a test", "provenance": "assumed", "static": "bf16", "count": 2,
    }  # fmt: skip


def test_what_is_assumed_and_what_is_replayed_is_said(result: StudyResult) -> None:
    notes = " ".join(result.notes())
    assert "Watts and speeds assumed: declared in a test" in notes and "recorded, 2022-01-01" in notes
    assert "given back, and cost nothing" in notes and "without PUE" in notes
    typical = run_study(_study("mpc", grids=[typical_year("CISO")], windows=1)).notes()
    assert any("a profile, not a recording" in note for note in typical)
    held = run_study(_study("mpc", policy={"released": False, "idle_w": 90.0, "switch_s": 60.0})).notes()
    assert any("held, at 90 W each; a change of width costs 60 s" in note for note in held)
    spot = run_study(_study("spot", "carbongear-printed", policy={"seed": 3})).notes()
    assert any("synthetic (seed 3)" in note for note in spot) and any("for the record" in note for note in spot)


def test_the_table_for_people_fits_a_terminal_of_80_columns(result: StudyResult) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(result))
    text = console.export_text()
    assert "made up, 4 jobs of 86.4 M tokens in 36 h (slack 1.5)" in text
    line = next(line for line in text.splitlines() if line.startswith("mpc"))
    row = next(row for row in result.rows() if row["policy"] == "mpc")
    assert all(f"{100 * row[key]:.1f} %" in line for key in ("saving_vs_static", "excess_over_oracle"))
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_scene_shows_the_job_of_median_saving(result: StudyResult) -> None:
    ((case, scene),) = result.scenes()
    outcome = case.result.of("mpc")
    savings = 1 - outcome.track.grams / outcome.references.static_g
    job = int(np.flatnonzero(np.isclose(outcome.track.grams, scene.courses[3].total_g))[0])
    assert sorted(savings.tolist()).index(float(savings[job])) == 1
    assert [course.name for course in scene.courses] == ["static", "carbon_blind", "threshold", "mpc", ORACLE]
    assert scene.courses[-1].total_g == pytest.approx(float(outcome.references.oracle_g[job]), rel=1e-9)
    assert scene.deadline_unix_s == scene.edges_unix_s[-1] == scene.edges_unix_s[0] + 36 * HOUR
    static = scene.courses[0]
    assert (static.rows[:24] == scene.menu.static).all() and (static.rows[24:] == NOTHING).all()
    assert (np.diff(scene.courses[3].grams) >= 0).all() and OFF in scene.courses[3].rows


def test_the_oracle_is_over_when_its_work_is() -> None:
    values = np.concatenate([np.full(20, 100.0), np.full(20, 500.0)])
    menu = Menu.of(ACTIONS.table)
    course = oracle_course(trace(values), START, 40 * HOUR, 10 * HOUR * 1500.0, menu)
    assert set(course.rows[20:].tolist()) == {NOTHING} and course.total_g == pytest.approx(450.0)
