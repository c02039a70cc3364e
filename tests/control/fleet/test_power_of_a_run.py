"""Demand response from a folder of a fleet to the limit of a card: controller, training process, driver."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from greentrain import GreenSession
from greentrain.control.fleet.controller import FleetController
from greentrain.control.fleet.engines import EngineJob
from greentrain.control.fleet.spec import FleetSpec
from greentrain.ledger.fleet_state import FleetState
from greentrain.ledger.journal import read_journal
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, Wave
from greentrain.utils.files import write_json
from tests.control.fleet.fake_engine import FakeEngine
from tests.helpers.flat_meter import FlatMeter

FOUND_W, ASKED_W = 650.0, 455.0
"""A power limit, and 70 % of it."""
TRAINING = """
import json, sys, time
import torch
from greentrain import GreenSession

torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with GreenSession(json.loads(sys.argv[1])) as green:
    green.watch(model, optimizer)
    print("trains", flush=True)
    while True:
        time.sleep(0.02)
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        green.step(tokens=100)
"""
FLEET = """
name: east
sites:
- {name: here, carbon: {signal: constant, g_per_kwh: 400}, power_cap_w: 700}
- {name: there, carbon: {signal: constant, g_per_kwh: 400}}
pools:
- {name: gpu, site: here, nodes: 1}
- {name: far, site: there, nodes: 1}
actions: actions.yaml
"""
ACTIONS = "- {gear: fp32, tokens_per_s: 5000, power_w: 600}"


def until(true: Callable[[], bool], longest_s: float = 30.0) -> None:
    end_s = time.monotonic() + longest_s
    while not true():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    with FakeDriver([FakeGpu(power=(Wave(low_w=600.0),), limit_w=FOUND_W, obeys_limit=True)]) as found:
        yield found


@pytest.fixture
def run(tmp_path: Path, driver: FakeDriver) -> Iterator[Path]:
    """A run that trains, and obeys power events."""
    config = {
        "run": {"dir": str(tmp_path / "runs"), "id": "gpt", "report": False, "live": False, "book_s": 0.5},
        "power": {"meters": ["nvml"], "sample_s": 0.1},
        "carbon": {"signal": "constant", "g_per_kwh": 400.0},
        "precision": {"gears": ["fp32"], "probe_every": 0},
        "actuators": {"demand": {}},
    }
    kept = {"GREENTRAIN_CACHE_DIR": str(tmp_path / "cache"), "GREENTRAIN_CLAIMS_DIR": str(tmp_path / "claims")}
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING, json.dumps(config)], env=driver.env() | kept, stdout=subprocess.PIPE, text=True
    )
    try:
        assert training.stdout is not None and training.stdout.readline() == "trains\n"
        yield tmp_path / "runs" / "gpt"
        assert training.poll() is None, "it still trains"
    finally:
        training.terminate()
        training.communicate()


@pytest.mark.alone
def test_thirty_percent_less_of_a_site_reaches_the_card_of_a_run_within_five_seconds_and_back(
    tmp_path: Path, driver: FakeDriver, run: Path
) -> None:
    passed_s, now_s = 0.0, time.time()

    def clock() -> float:
        return time.time() + passed_s

    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "actions.yaml").write_text(ACTIONS)
    spec = FleetSpec.read(tmp_path / "fleet.yaml")  # which looks at its engine every 20 s
    tag = f"greentrain:hours=1,deadline_h=20,run={run},actions={tmp_path}/actions.yaml"
    job = EngineJob(
        id="1", name="gpt", state="running", nodes=1, partition="gpu", tag=tag, submit_s=now_s, start_s=now_s
    )
    state, lines, ended = FleetState(spec.state, clock=clock), list[str](), threading.Event()
    controller = FleetController(spec, FakeEngine(1, job), state, tell=lines.append, clock=clock)
    controller.start()
    thread = threading.Thread(target=controller.run, args=(ended,))
    thread.start()
    try:
        until(lambda: state.plan() is not None)
        events = Path(spec.events)
        events.mkdir()
        write_json(events / "elsewhere.json", {"site": "there", "percent": 10, "hours": 1})
        told_s = time.monotonic()
        write_json(events / "peak.json", {"site": "here", "percent": 70, "hours": 1, "reason": "evening peak"})
        until(lambda: driver.state(0).power_limit_w <= ASKED_W)
        assert time.monotonic() - told_s < 5.0
        limits_w = set[float]()

        def planned_anew() -> bool:
            limits_w.add(driver.state(0).power_limit_w)
            kept = state.plan()
            return kept is not None and kept["reason"] == "demand response"

        until(planned_anew)  # and the plan, which is made afterwards, leaves the limit where it is
        assert limits_w == {ASKED_W}
        passed_s, over_s = 3600.0, time.monotonic()  # and the event is over by its time
        until(lambda: driver.state(0).power_limit_w == FOUND_W)
        assert time.monotonic() - over_s < 5.0
        until(lambda: len(state.actions()) == 2 and not state.unknown())
        down, up = state.actions()
        assert (down.verb, down.outcome, down.reason) == ("cap", "done", "evening peak") and "to 70% until" in down.what
        assert (up.verb, up.what, up.outcome) == ("cap", "lifted", "done")
        assert not any("nothing was changed" in line for line in lines), lines
    finally:
        ended.set()
        thread.join()
        controller.close()
        state.close()


GEARS = "- {gear: bf16, tokens_per_s: 5000, power_w: 600}\n- {gear: fp32, tokens_per_s: 3000, power_w: 300}\n"


def test_the_gear_of_the_plan_reaches_a_training_and_the_end_of_the_time_changes_it(tmp_path: Path) -> None:
    passed_s, now_s, begun_s = 0.0, 450_000 * 3600.0, time.monotonic()

    def clock() -> float:
        return now_s + time.monotonic() - begun_s + passed_s

    config = {
        "run": {"dir": str(tmp_path / "runs"), "id": "gpt", "report": False, "live": False, "book_s": 0.2},
        "carbon": {"signal": "constant", "g_per_kwh": 400.0},
        "precision": {"gears": ["bf16", "fp32"], "probe_every": 0},
        "actuators": {"demand": {}},
    }
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "actions.yaml").write_text(GEARS)
    spec, folder = FleetSpec.read(tmp_path / "fleet.yaml"), tmp_path / "runs" / "gpt"
    tag = f"greentrain:hours=1,deadline_h=20.333,run={folder},actions={tmp_path}/actions.yaml"
    job = EngineJob(
        id="1", name="gpt", state="running", nodes=1, partition="gpu", tag=tag, submit_s=now_s, start_s=now_s
    )
    state = FleetState(spec.state, clock=clock)
    controller = FleetController(spec, FakeEngine(1, job), state, clock=clock)
    controller.start()
    with GreenSession(config, meter=FlatMeter()) as green:
        green.watch(model, optimizer)

        def trained_in(gear: str) -> bool:
            for _ in range(5):
                time.sleep(0.01)
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                green.step(tokens=100)
            seen = [one["gear"] for one in read_journal(folder / "rank-00000.jsonl") if one.get("name") == "gear"]
            return seen[-1:] == [gear]

        try:
            trained_in("bf16")
            controller.turn()  # 0.1 J a token in place of 0.12, and time enough
            until(lambda: trained_in("fp32"))

            def seen_in(gear: str) -> bool:
                controller.turn()
                return trained_in(gear) and state.now().jobs[0].gear == gear

            until(lambda: seen_in("fp32"))  # as its books say
            passed_s = 19 * 3600.0  # and now it has to be fast
            controller.turn()
            until(lambda: trained_in("bf16"))
        finally:
            told = [(one.verb, one.what.split(" until")[0], one.outcome) for one in state.actions()]
            controller.close()
            state.close()
    assert told == [("gear", "to fp32", "done"), ("gear", "to bf16", "done")]
    reason = next(one["text"] for one in read_journal(folder / "rank-00000.jsonl") if one.get("name") == "gear")
    assert "the fleet: the plan of the fleet" in reason
