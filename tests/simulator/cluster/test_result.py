"""What is told of policies: figures by hand, fairness by user, and the command that prints them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from greentrain.cli.app import app
from greentrain.simulator.cluster.policies import Fcfs, open_policy
from greentrain.simulator.cluster.result import FleetResult, score, slowdown_by_user
from greentrain.simulator.cluster.world import FleetSite
from tests.simulator.cluster.fleets import drawn, fleet, jobs
from tests.simulator.grids import HOUR, wandering
from tests.simulator.planning import write_csv


def test_slowdowns_are_means_by_user() -> None:
    work = jobs((0, 90, 64, 2), (0, 90, 64, 2), (0, 90, 64, 4), users=(7, 7, 9))
    run = fleet(work, gpus=64, switch_s=0.0).run(Fcfs())
    assert run.end_s.tolist() == pytest.approx([2 * HOUR, 4 * HOUR, 8 * HOUR])
    assert slowdown_by_user(run).tolist() == pytest.approx([1.5, 2.0])


def test_a_score_tells_misses_caps_and_regret() -> None:
    work = jobs((0, 3, 64, 2), (0, 3, 64, 2))
    cap_w = 64 * 975.0
    run = fleet(work, gpus=64, cap_w=cap_w, switch_s=0.0).run(Fcfs())
    told = score(run, run, bound_g=float(run.grams.sum()) / 1.1)
    assert (told.missed, told.unfinished, told.over_cap, told.moves) == (1, 0, 0, 0)
    assert told.regret is None, "a late plan may emit less than any punctual one"
    assert told.peak_to_cap == pytest.approx(1.0) and told.peak_w == pytest.approx(cap_w)
    assert told.wait_h == pytest.approx(1.0) and told.kwh == pytest.approx(cap_w * 4 * HOUR / 3.6e6)
    in_time = fleet(jobs((0, 9, 64, 2)), gpus=64).run(Fcfs())
    assert score(in_time, in_time, float(in_time.grams.sum()) / 1.1).regret == pytest.approx(0.1)


def test_where_nobody_says_a_price_money_is_unknown() -> None:
    told = fleet(jobs((0, 9, 64, 2)))
    untold = dataclasses.replace(told, sites=(FleetSite(grid=told.sites[0].grid),))
    assert score(told.run(Fcfs()), told.run(Fcfs())).money == pytest.approx(0.1 * told.run(Fcfs()).joules[0] / 3.6e6)
    assert score(untold.run(Fcfs()), untold.run(Fcfs())).money is None


def test_a_users_slowdown_is_compared_with_the_first_policy() -> None:
    world = fleet(drawn(15, days=1.0), gpus=128)
    result = FleetResult(world=world, runs=[world.run(open_policy(name)) for name in ("fcfs", "pcaps_like")])
    ratio = slowdown_by_user(result.runs[1]) / slowdown_by_user(result.runs[0])
    assert [each.worst_to_first for each in result.scores] == pytest.approx([1.0, float(ratio.max())])
    document = result.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert [each["policy"] for each in document["policies"]] == ["fcfs", "pcaps_like"]


def test_the_command_compares_policies_and_repeats_its_jobs(tmp_path: Path) -> None:
    write_csv(tmp_path / "one.csv", wandering(60 * 24))
    words = [
        "fleet",
        "simulate",
        "--trace",
        str(tmp_path / "one.csv"),
        "--gpus",
        "64",
        "--json",
        "--respond",
        "20,24,0.7",
    ]
    few = ["--policy", "fcfs", "--policy", "carbon_blind"]
    drawn_ones = CliRunner().invoke(
        app, [*words, *few, "--count", "12", "--days", "2", "--longest-h", "48", "--out", str(tmp_path / "jobs.csv")]
    )
    assert drawn_ones.exit_code == 0, drawn_ones.output
    read_ones = CliRunner().invoke(app, [*words, *few, "--jobs", str(tmp_path / "jobs.csv")])
    one, two = json.loads(drawn_ones.stdout), json.loads(read_ones.stdout)
    assert np.allclose([each["kg"] for each in one["policies"]], [each["kg"] for each in two["policies"]])
    table = CliRunner().invoke(
        app, [word for word in (*words, "--policy", "fcfs", "--jobs", str(tmp_path / "jobs.csv")) if word != "--json"]
    )
    assert table.exit_code == 0 and "fcfs" in table.stdout


@pytest.mark.parametrize("text", ["20,10,0.7", "1,2", "1,2,x", "1,2,70"])
def test_a_wrong_event_is_refused(tmp_path: Path, text: str) -> None:
    write_csv(tmp_path / "one.csv", wandering(60 * 24))
    done = CliRunner().invoke(app, ["fleet", "simulate", "--trace", str(tmp_path / "one.csv"), "--respond", text])
    assert done.exit_code == 2 and "is no FROM_H,UNTIL_H,SHARE" in done.output
