"""What is told of a plan: what each job does and waits for, grams and prices by time, and files that are no plan."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from greentrain.errors import RunFolderError
from greentrain.ledger.fleet_state import FleetSample, FleetState, FleetStateError
from greentrain.policy.cluster.planner import solve
from greentrain.report.cluster import Cluster, ClusterNow
from tests.helpers.cluster_cases import cluster
from tests.helpers.hand_clock import HandClock
from tests.report.cluster_plans import HOUR_S, START_S, controlled, small, uncapped, written


def test_each_job_has_what_it_waits_for_and_until_when() -> None:
    now = ClusterNow.at(small(), START_S + 10.0)
    found = {line["name"]: line for line in now.to_dict()["jobs"]}
    told = {name: (line["state"], line["waits_for"], line["until_s"]) for name, line in found.items()}
    assert told["llama"] == ("running", None, START_S + 2 * HOUR_S) and found["llama"]["row"] == "fp8 on 4"
    assert told["vision"][::2] == ("waiting", START_S + 2 * HOUR_S)
    assert "until then nodes are worth more to others" in str(told["vision"][1])
    assert told["night"][::2] == ("waiting", START_S + 3 * HOUR_S)
    assert "at 100 g/kWh in place of 400 now" in str(told["night"][1])
    assert told["later"] == ("planned", "its release", START_S + 4 * HOUR_S)
    assert told["rest"][0] == "left out" and found["rest"]["is_late"]
    assert found["night"]["stays"] == [[START_S + 3 * HOUR_S, START_S + 4 * HOUR_S, "fp8 on 4", 4, "gpu"]]
    later = ClusterNow.at(small(), START_S + 2.5 * HOUR_S)
    assert later.job(0).state == "done" and later.job(1).state == "running"


def test_watts_are_what_a_job_waits_for_where_they_alone_cost() -> None:
    plan = small()
    plan.prices.nodes[:] = 0.0
    assert "watts are worth more to others" in str(ClusterNow.at(plan, START_S).job(1).waits_for)


def test_figures_have_the_units_that_they_say() -> None:
    plan = small()
    found = ClusterNow.at(plan, START_S).to_dict()
    (site,), (pool,) = found["sites"], found["pools"]
    assert site["power_w"][:3] == [5000.0, 5000.0, 1875.0] and site["cap_w"][0] == 6000.0
    assert site["g_per_kwh"][0] == 500.0, "at the meter of the facility"
    assert site["watt_price"][0] == pytest.approx(50.0), "0.05 g for a watt in an hour are 50 g/kWh"
    assert pool["node_price"][0] == 250.0 and pool["used"] == [4, 4, 2, 4, 2, 0]
    assert sum(found["step_g"]) == pytest.approx(plan.grams, rel=1e-12)
    assert found["step_g"][0] == pytest.approx(4.0 * 500.0)
    assert found["step_g"][3] == pytest.approx(4.0 * 125.0 * 150_000 / 360_000), "a job ends within its last step"
    assert found["gap"] == pytest.approx(0.04) and found["budget_g"] == 20_000.0


def test_what_is_not_limited_is_null_and_another_time_is_told() -> None:
    found = ClusterNow.at(uncapped(small()), START_S + 30 * HOUR_S).to_dict()
    assert not found["is_present"] and found["t_unix_s"] == START_S
    assert found["budget_g"] is None and found["sites"][0]["cap_w"] == [None] * 6
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("seed", [3, 4])
def test_grams_by_step_are_those_of_a_real_plan(seed: int) -> None:
    plan = solve(cluster(seed, jobs=8, nodes=12, h=12, pools=2, sites=2, cap=0.7, running=0.4, mean_h=4))
    now = ClusterNow.at(plan, 0.0)
    assert now.grams.sum() == pytest.approx(plan.grams + plan.late_g, rel=1e-9)
    states = {now.job(i).state for i in range(8)}
    assert "running" in states and states <= {"running", "waiting", "planned", "late", "left out", "done"}
    assert (now.power_w <= np.array([site.power_cap_w for site in plan.problem.sites]) * (1 + 1e-9)).all()


def test_a_folder_is_read_again_when_its_plan_changes_and_a_run_is_no_cluster(tmp_path: Path) -> None:
    folder = Cluster(tmp_path)
    assert folder.version(START_S) is None and folder.now(START_S) is None
    written(tmp_path, small())
    first, found = folder.version(START_S), folder.now(START_S)
    assert first and found is not None and found.plan.problem.jobs[0].name == "llama"
    assert folder.now(START_S) is not None
    again = folder.now(START_S)
    assert again is not None and again.plan is found.plan, "read once"
    written(tmp_path, small(name="other"))
    os.utime(tmp_path / "plan.json", ns=(1, 1))
    changed = folder.now(START_S)
    assert folder.version(START_S) != first and changed is not None and changed.plan.problem.jobs[0].name == "other"
    (tmp_path / "run.json").write_text("{}")
    assert folder.version(START_S) is None and folder.now(START_S) is None


def test_what_a_controller_says_goes_before_the_plan(tmp_path: Path) -> None:
    clock = HandClock()
    start_s = clock.unix_s()
    cluster = Cluster(tmp_path)
    with controlled(tmp_path / "fleet.db", clock) as state:
        first, now = cluster.version(0.0), cluster.now(0.0)
        assert now is not None and now.t_s == start_s and now.is_present, "a replay has a time of its own"
        found = now.to_dict()
        lines = {line["name"]: line for line in found["jobs"]}
        assert lines.keys() == {"llama", "vision", "night", "later", "rest", "done", "gone"}
        assert (lines["vision"]["state"], lines["vision"]["waits_for"]) == ("held", "nodes: ann is first")
        assert len(lines["vision"]["stays"]) == 1 and lines["gone"]["stays"] == []
        assert (lines["llama"]["power_w"], lines["llama"]["basis"]) == (4000.0, "measured")
        assert (lines["night"]["state"], lines["night"]["waits_for"]) == ("gone", None), "it ended since it was planned"
        (past,) = found["past"]["sites"].values()
        assert found["past"]["edges_s"] == [start_s - 2 * HOUR_S, start_s - HOUR_S, start_s]
        assert (past["measured"], past["modelled"]) == ([None, 4500.0], [4000.0, None])
        assert (past["grams"], past["now_w"]) == ([1000.0, 3000.0], 4500.0)
        assert [one["outcome"] for one in found["actions"]] == [None, "done"], "the last one first"
        assert found["fleet"]["holder"] == "host:7" and found["reason"] == "an arrival"
        json.dumps(found, allow_nan=False)
        plan = now.plan
        clock.now_s += 60.0
        state.write(samples=[FleetSample(t_s=clock.unix_s(), site="oslo", power_w=None, basis="missing")])
        later = cluster.now(0.0)
        assert cluster.version(0.0) != first and later is not None and later.plan is plan, "read once"
        assert later.t_s == start_s + 60.0 and later.to_dict()["past"]["sites"]["oslo"]["now_w"] is None
        clock.now_s += 600 * HOUR_S
        state.write(samples=[FleetSample(t_s=start_s + 5 * HOUR_S, site="oslo", power_w=1.0)])
        gap = cluster.now(0.0)
        assert gap is not None
        past = gap.to_dict()["past"]["sites"]["oslo"]
        assert past["modelled"][-1] is None and past["measured"][-1] is None, "nobody looked for hours"
        state.write(plan=("an end", small(start_s, name="new").to_dict()))
        newer = cluster.now(0.0)
        assert newer is not None and newer.reason == "an end" and newer.plan.problem.jobs[0].name == "new"
    cluster.close()


def test_a_state_that_is_another_or_none_is_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, str(tmp_path / "state.db"))
    with pytest.raises(FleetStateError, match="is not there"):
        cluster.now(0.0)
    clock = HandClock()
    FleetState(tmp_path / "state.db").close()
    assert cluster.now(0.0) is None, "nothing is planned yet"
    os.replace(tmp_path / "state.db", tmp_path / "state.db.damaged-1")
    with controlled(tmp_path / "state.db", clock, plan=uncapped(small(clock.unix_s()))):
        found = cluster.now(0.0)
        assert found is not None and found.to_dict()["budget_g"] is None, "a file set aside is not read for ever"
    cluster.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"kind": "greentrain cluster plan", "format": 2}',
        "[" * 10_000,
        "nan",
        '{"kind": 1, "format": 1}',
    ],
)
def test_what_is_no_plan_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"plan\.json is no plan of a cluster"):
        Cluster(tmp_path).now(START_S)


def test_a_row_that_a_job_has_not_is_told(tmp_path: Path) -> None:
    plan = small()
    rows = plan.rows.copy()
    rows[0, 0] = 7
    with pytest.raises(RunFolderError, match="in a row that it has not"):
        Cluster(written(tmp_path, replace(plan, rows=rows))).now(START_S)
