"""``greentrain fleet run --metrics-port``: Prometheus and the page see what the controller has done."""

import json
import re
import socket
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("prometheus_client", reason="the extra 'export' is not installed")

from greentrain.cli.app import app
from greentrain.control.fleet.controller import FleetController
from greentrain.ledger.fleet_state import FleetSample, FleetState
from greentrain.report.cluster import Cluster
from tests.control.fleet.fake_engine import FakeEngine
from tests.control.fleet.test_controller import job, spec_in
from tests.report.live.shown import samples, value


def test_a_controller_is_scraped_while_it_controls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec_in(tmp_path)
    with (tmp_path / "fleet.yaml").open("a") as file:
        file.write("replay_start: 2022-06-01T00:01:00Z\n")
    now_s = time.time()
    waits = replace(job("1", "hours=2,deadline_h=20"), submit_s=now_s)
    runs = replace(job("2", "hours=3,deadline_h=4", state="running"), submit_s=now_s, start_s=now_s)
    engine = FakeEngine(4, waits, runs)
    monkeypatch.setattr("greentrain.control.fleet.engines.open_engine", lambda spec: engine)
    seen: list[str] = []
    turn = FleetController.turn

    def turned(self: FleetController) -> None:
        turn(self)
        turn(self)  # what it has told the engine is noted the next time
        (port,) = {port for port in ports if port}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20.0) as answer:
            seen.append(answer.read().decode())

    ports: list[int] = []
    monkeypatch.setattr(FleetController, "turn", turned)
    monkeypatch.setattr("greentrain.cli.fleet.say", lambda text: ports.append(int(re.findall(r":(\d+)/", text)[0])))
    done = CliRunner().invoke(app, ["fleet", "run", str(tmp_path / "fleet.yaml"), "--once", "--metrics-port", "0"])
    assert done.exit_code == 0, done.output
    found = samples(seen[0])
    assert value(found, "fleet_controller_alive", fleet="east") == 1
    assert value(found, "fleet_jobs", state="running") == 1 and value(found, "fleet_jobs", state="held") == 1
    assert value(found, "fleet_actions_total", verb="hold", outcome="done") == 1
    watts = value(found, "fleet_power_watts", site="here")
    assert watts and watts == value(found, "fleet_planned_power_watts", site="here")
    assert value(found, "fleet_power_cap_watts", site="here") == 1e5
    assert value(found, "fleet_carbon_intensity_grams_per_kwh", site="here") == 500.0
    assert 0.0 <= (value(found, "fleet_replan_seconds") or -1.0) < 600.0
    assert value(found, "fleet_bound_gap_ratio") is not None
    cluster = Cluster(tmp_path)
    now = cluster.now(time.time())
    cluster.close()
    assert now is not None and now.is_present, "the replay's hour, not that of this machine"
    told = now.to_dict()
    lines = {line["name"]: line for line in told["jobs"]}
    assert sorted(line["state"] for line in lines.values()) == ["held", "running"]
    waiting = next(line for line in lines.values() if line["state"] == "held")
    assert "in place of 500 now" in waiting["waits_for"] and waiting["until_s"] == waiting["stays"][0][0]
    assert [one["verb"] for one in told["actions"]] == ["hold"] and not told["fleet"]["alive"]
    json.dumps(told, allow_nan=False)


def test_a_port_that_is_taken_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec_in(tmp_path)
    monkeypatch.setattr("greentrain.control.fleet.engines.open_engine", lambda spec: FakeEngine(4))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(app, ["fleet", "run", str(tmp_path / "fleet.yaml"), "--once", "--metrics-port", port])
    assert done.exit_code == 2 and f"--metrics-port {port}" in done.output, done.output


def test_a_plan_has_what_the_fleet_left_of_its_budget(tmp_path: Path) -> None:
    spec_in(tmp_path)
    with (tmp_path / "fleet.yaml").open("a") as file:
        file.write("replay_start: 2022-06-01T00:01:00Z\nbudget_kg: 20\njobs: [{name: gpt, hours: 3, deadline_h: 20}]\n")
    words = ["fleet", "plan", str(tmp_path / "fleet.yaml"), "--declared", "--out", str(tmp_path / "plan.json")]

    def budget_g() -> float:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return float(json.loads((tmp_path / "plan.json").read_text())["problem"]["budget_g"])

    assert budget_g() == 20_000.0
    state = FleetState(tmp_path / "fleet.db")
    state.take("east")
    state.write(samples=[FleetSample(t_s=1.0, site="here", power_w=1.0, grams=4_000.0)])
    state.close()
    assert budget_g() == 16_000.0
