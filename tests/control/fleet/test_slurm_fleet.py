"""A fleet beside a real Slurm with three nodes on this machine."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from greentrain.control.fleet.controller import FleetController
from greentrain.control.fleet.engines import Slurm
from greentrain.control.fleet.spec import FleetSpec
from greentrain.control.launch.slurm import Scontrol
from greentrain.ledger.fleet_state import FleetState
from tests.control.launch.slurm_cluster import ROOT, Cluster, cluster

FILE = """
name: day
every_s: 0.3
replay_start: "2022-06-01T00:00Z"
speed: {speed}
sites:
- {{name: here, carbon: {{signal: trace, trace_csv: grid.csv}}, power_cap_w: {cap_w}}}
pools:
- {{name: gpu, site: here, nodes: 3, partition: main}}
actions: actions.yaml
"""
ACTIONS = """
- {gear: bf16, ranks: 1, tokens_per_s: 100, power_w: 1000}
- {gear: bf16, ranks: 2, tokens_per_s: 190, power_w: 2000}
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster() as found:
        yield found


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="greentrain-fleet-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def spec_in(folder: Path, speed: float, clean: range = range(10, 16), cap_w: float = 1e5) -> FleetSpec:
    days = [*(f"2022-05-{d:02}" for d in range(20, 32)), *(f"2022-06-{d:02}" for d in range(1, 8))]
    rows = [f"{day}T{h:02}:00Z,{100 if h in clean else 500}" for day in days for h in range(24)]
    (folder / "grid.csv").write_text("timestamp_utc,g_per_kwh\n" + "\n".join(rows) + "\n")
    (folder / "actions.yaml").write_text(ACTIONS)
    (folder / "fleet.yaml").write_text(FILE.format(speed=speed, cap_w=cap_w))
    return FleetSpec.read(folder / "fleet.yaml")


def submitted(
    slurm: Cluster, folder: Path, name: str, tag: str, script: str, nodes: int = 1, hold: bool = False
) -> str:
    (folder / name).mkdir()
    options = (
        *(("-H",) if hold else ()),
        "-J",
        name,
        "-N",
        str(nodes),
        "--ntasks-per-node",
        "1",
        "--exclusive",
        "--comment",
        f"greentrain:{tag}",
    )
    return slurm.submit(folder / name, script, *options)


def test_slurm_is_held_resized_released_and_requeued(slurm: Cluster, folder: Path) -> None:
    engine = Slurm(Scontrol(slurm.scontrol, environ=slurm.environ, pauses_s=()), {"named"})
    waits = submitted(slurm, folder, "gpt", "hours=1,restart=yes", "exec sleep 30")
    other = slurm.submit(folder, "exec sleep 30", "-N", "1", "--exclusive")
    named = slurm.submit(folder, "exec sleep 30", "-J", "named", "-H")
    slurm.wait(waits, "RUNNING")
    slurm.wait(other, "RUNNING")

    def job(job_id: str):  # type: ignore[no-untyped-def]
        return next(one for one in engine.look().jobs if one.id == job_id)

    view = engine.look()
    assert {one.id for one in view.jobs} == {waits, named} and view.nodes_up == {"main": 3}
    assert view.taken == {"main": 1}
    assert job(named).state == "held" and job(waits).state == "running" and job(waits).nodes == 1
    assert job(waits).tag == "greentrain:hours=1,restart=yes" and job(waits).user == "root"
    assert abs(job(waits).start_s - time.time()) < 60
    engine.hold(job(waits))
    end_s = time.monotonic() + 20
    while job(waits).state != "held":
        assert time.monotonic() < end_s, job(waits)
        time.sleep(0.1)
    engine.hold(job(waits))  # told twice
    assert job(waits).state == "held"
    engine.release(job(waits), 2, "main")
    found = slurm.wait(waits, "RUNNING", timeout_s=30)
    assert found["NumNodes"] == "2" and found["Restarts"] == "1"
    slurm.run("scancel", waits, other, named)
    slurm.wait(waits, "CANCELLED")
    assert job(waits).state == "cancelled"
    slurm.run("scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=test")
    assert engine.look().nodes_up == {"main": 2}
    slurm.run("scontrol", "update", "NodeName=n3", "State=RESUME")


def test_a_dry_run_changes_nothing(slurm: Cluster, folder: Path) -> None:
    spec = spec_in(folder, 1.0)
    job_id = submitted(slurm, folder, "dry", "hours=2,deadline_h=30", "exec sleep 60", nodes=2)
    state, lines = FleetState(spec.state), list[str]()
    engine = Slurm(Scontrol(slurm.scontrol, environ=slurm.environ, pauses_s=()))
    slurm.wait(job_id, "RUNNING")
    slurm.run("scontrol", "requeuehold", job_id)
    slurm.wait(job_id, "PENDING")
    controller = FleetController(spec, engine, state, dry_run=True, tell=lines.append)
    controller.start()
    before = slurm.run("scontrol", "show", "job", "--oneliner", job_id)
    controller.turn()
    assert slurm.run("scontrol", "show", "job", "--oneliner", job_id) == before
    assert [one.dry_run for one in state.actions()] == [True] * len(lines)
    controller.close()
    state.close()
    slurm.run("scancel", job_id)


@pytest.mark.long
def test_a_day_with_kills_ends_all_jobs_and_keeps_the_cap(slurm: Cluster, folder: Path) -> None:
    """A day in 24 s: an hour is a second. Jobs note where they are each tenth of a second, as checkpoints do."""
    rng = random.Random(int(os.environ.get("GREENTRAIN_CHAOS_SEED", "22")))
    spec = spec_in(folder, 3600.0, cap_w=2500.0)  # two of three nodes
    script = "i=$(cat at || echo 0); while [ $i -lt {n} ]; do sleep 0.1; i=$((i+1)); echo $i > at; done; touch done"
    tag = "deadline_h=22,restart=yes,switch_s=600,min_run_s=3600"
    lengths = {"a": 2.0, "b": 3.0, "c": 2.0, "d": 1.0}
    jobs = {
        name: submitted(slurm, folder, name, f"hours={h + 1},{tag}", script.format(n=int(h * 10)), hold=True)
        for name, h in lengths.items()
    }
    environ = {**slurm.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "greentrain", "fleet", "run", str(folder / "fleet.yaml")]
    begun_s, kills, requeued = time.monotonic(), 0, dict.fromkeys(jobs.values(), 0)
    with (folder / "log").open("a") as log:
        controller = subprocess.Popen(words, env=environ, stdout=log, stderr=log)
        try:
            while not all((folder / name / "done").exists() for name in lengths):
                assert time.monotonic() - begun_s < 90, (folder / "log").read_text()
                time.sleep(0.5)
                running = [one for one in jobs.values() if slurm.job(one)["JobState"] == "RUNNING"]
                assert len(running) <= 2, (folder / "log").read_text()
                assert controller.poll() is None, (folder / "log").read_text()
                if rng.random() < 0.1:
                    kills += 1
                    controller.kill()
                    controller.wait()
                    controller = subprocess.Popen(words, env=environ, stdout=log, stderr=log)
                elif running and rng.random() < 0.1:
                    slurm.run("scontrol", "requeue", chosen := rng.choice(running))  # as a node that fails
                    requeued[chosen] += 1
            while f":{controller.pid}" not in _holder(spec):
                time.sleep(0.1)
            controller.send_signal(signal.SIGTERM)
            assert controller.wait(20) == 0
        finally:
            controller.kill()
            controller.wait()
    state = FleetState(spec.state, read_only=True)
    actions = state.actions(most=1000)
    assert not state.now().controller.alive and not state.unknown()
    state.close()
    assert kills and all(one.reason and one.outcome for one in actions)
    for name, job_id in jobs.items():
        restarts = int(slurm.job(job_id)["Restarts"])
        ours = [one for one in actions if one.job == f"{name}-{job_id}" and one.verb == "requeue"]
        assert restarts <= len(ours) + requeued[job_id]  # nothing was done twice, or without a note
    assert int((folder / "b" / "at").read_text()) == 30


def _holder(spec: FleetSpec) -> str:
    state = FleetState(spec.state, read_only=True)
    try:
        return state.now().controller.holder
    finally:
        state.close()
