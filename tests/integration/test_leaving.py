"""A run that is asked to leave: one checkpoint, one word, code 75, and the next attempt goes on where it ended."""

import json
import os
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from greentrain.control.launcher_protocol import ENV_DIR, EXIT_REQUEUE, LauncherFiles, Notice, Offer
from greentrain.ledger.reader import read_run
from tests.helpers.ports import free_port

pytestmark = pytest.mark.slow

STEPS = 240
BOOK_S = 0.5
JOB = Path(__file__).with_name("job.py")


@pytest.fixture
def desk(tmp_path: Path) -> LauncherFiles:
    (tmp_path / "launch").mkdir()
    (tmp_path / "job").mkdir()
    return LauncherFiles(tmp_path / "launch")


def config(tmp_path: Path, **sections: Any) -> dict[str, Any]:
    return {
        "run": {"dir": str(tmp_path / "runs"), "id": "one", "report": False, "live": False, "book_s": BOOK_S},
        "power": {"meters": ["cpu_model"]},
        **sections,
    }


def start(tmp_path: Path, desk: LauncherFiles, options: dict[str, Any], attempt: int, ranks: int = 1) -> list[Any]:
    desk.write(Offer(attempt=attempt, ranks=ranks, min_ranks=1, max_ranks=2, can_wait=True))
    port = free_port()
    processes = []
    for rank in range(ranks):
        env = os.environ | {ENV_DIR: str(desk.folder), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if ranks > 1:
            env |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
            }
        command = [sys.executable, str(JOB), str(tmp_path / "job"), json.dumps(options)]
        processes.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    return processes


def end(processes: list[Any]) -> list[int]:
    codes = []
    for process in processes:
        _, errors = process.communicate(timeout=240)
        codes.append(process.returncode)
        if process.returncode not in (0, EXIT_REQUEUE):
            raise AssertionError(errors)
    return codes


def seen(tmp_path: Path) -> dict[int, list[int]]:
    """Return the samples of each step, by step; each step was done once by each rank of one attempt."""
    found: dict[int, dict[str, list[int]]] = {}
    for path in sorted((tmp_path / "job").glob("seen-*.jsonl")):
        rank = path.stem.split("-")[2]
        for line in path.read_text().splitlines():
            record = json.loads(line)
            of_step = found.setdefault(record["step"], {})
            assert rank not in of_step, f"step {record['step']} was done twice"
            of_step[rank] = record["samples"]
    return {step: sorted(chain(*by_rank.values())) for step, by_rank in sorted(found.items())}


def wait_for_step(tmp_path: Path, attempt: int, steps: int) -> None:
    path, end_s = tmp_path / "job" / f"seen-{attempt}-0.jsonl", time.monotonic() + 200
    while not (path.exists() and len(path.read_text().splitlines()) >= steps):
        assert time.monotonic() < end_s
        time.sleep(0.02)


def launch(tmp_path: Path, desk: LauncherFiles, options: dict[str, Any], *words: str) -> "subprocess.Popen[str]":
    """Start the job under ``greentrain launch``, in a session of its own."""
    job = [sys.executable, str(JOB), str(tmp_path / "job"), json.dumps(options)]
    command = [sys.executable, "-m", "greentrain", "launch", "--dir", str(desk.folder), *words, "--", *job]
    with (tmp_path / "said.txt").open("w") as said:
        return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, text=True)


@pytest.mark.long
def test_a_notice_changes_the_width_and_no_sample_is_lost(tmp_path: Path, desk: LauncherFiles) -> None:
    options = {"config": config(tmp_path), "steps": STEPS, "step_s": 0.03}
    saved = tmp_path / "job" / "checkpoints"
    supervisor = launch(tmp_path, desk, options, "--width", "1:2", "--checkpoints", str(saved))
    try:
        for attempt, wanted in enumerate([1, 2], start=1):
            wait_for_step(tmp_path, attempt, 12)
            desk.write(Notice(attempt=attempt, reason="by hand", ranks=wanted))
        supervisor.wait(240)
    finally:
        said = (tmp_path / "said.txt").read_text()
        print(said)
        supervisor.terminate()
        supervisor.wait(120)
    assert supervisor.returncode == 0, said
    changed = json.loads((tmp_path / "job" / "final.json").read_text())
    steps = seen(tmp_path)
    assert list(steps) == list(range(STEPS))
    widths = [len(list((tmp_path / "job").glob(f"seen-{attempt}-*"))) for attempt in (1, 2, 3)]
    assert widths == [2, 1, 2], said
    progress = desk.progress()
    assert progress is not None and progress.tokens == 8 * progress.steps

    fixed_path = tmp_path / "fixed"
    (fixed_path / "job").mkdir(parents=True)
    fixed_options = {"config": config(fixed_path), "steps": STEPS}
    command = [sys.executable, str(JOB), str(fixed_path / "job"), json.dumps(fixed_options)]
    subprocess.run(command, check=True, timeout=240)
    fixed = json.loads((fixed_path / "job" / "final.json").read_text())
    assert seen(fixed_path) == steps
    assert changed["loss"] == pytest.approx(fixed["loss"], rel=1e-4)

    record = read_run(tmp_path / "runs" / "one")
    totals = [rank.totals for rank in record.ranks]
    assert sum(t.samples for t in totals) == STEPS * 8
    assert max(t.steps for t in totals) == STEPS
    # What rank 0 can know: all of its own, and of the others as of their last bookings, of a heartbeat ago.
    entries = [entry for rank in record.ranks for entry in rank.entries]
    end_s = max(entry.t1_unix_s for entry in entries)
    early_j = sum(entry.energy_j for entry in entries if entry.t1_unix_s < end_s - 6 * BOOK_S)
    assert 0 < early_j <= changed["metrics"]["green/energy_j"] <= 1.001 * sum(t.energy_j for t in totals)
    marks = [json.loads(line) for line in (desk.folder / "timeline.jsonl").read_text().splitlines()]
    of_second = [mark["what"] for mark in marks if mark["attempt"] == 2]
    assert [what for what in of_second if what not in ("up", "group")] == [
        "start", "ready", "step", "request", "left", "ended"
    ]  # fmt: skip


@pytest.mark.long
def test_a_crash_before_the_first_checkpoint_continues_the_run(tmp_path: Path, desk: LauncherFiles) -> None:
    settings = config(tmp_path)
    del settings["run"]["id"]
    options = {"config": settings, "steps": 60, "step_s": 0.05, "die_at": 40}
    supervisor = launch(tmp_path, desk, options, "--retries", "2", "--back-off", "0.05")
    try:
        supervisor.wait(240)
    finally:
        said = (tmp_path / "said.txt").read_text()
        supervisor.terminate()
        supervisor.wait(120)
    assert supervisor.returncode == 0, said
    (folder,) = (tmp_path / "runs").iterdir()
    record = read_run(folder)
    assert len(record.ranks[0].opens) == 2, said
    totals = record.ranks[0].totals
    assert 60 < totals.steps <= 100 and totals.samples == 8 * totals.steps


@pytest.mark.long
def test_a_long_pause_of_the_plan_is_spent_outside(tmp_path: Path, desk: LauncherFiles) -> None:
    hours = [500 if hour < 12 else 100 for _ in range(6) for hour in range(24)]
    rows = "".join(f"2022-05-{23 + i // 24}T{i % 24:02}:00Z,{value}\n" for i, value in enumerate(hours))
    (tmp_path / "grid.csv").write_text(f"timestamp_utc,g_per_kwh\n{rows}")
    (tmp_path / "actions.yaml").write_text("- {gear: fp32, tokens_per_s: 400, power_w: 50}\n")
    speed = 3600.0  # an hour of the grid a second
    options = {
        "steps": 400,
        "step_s": 0.02,
        "config": config(
            tmp_path,
            carbon={"signal": "trace", "trace_csv": str(tmp_path / "grid.csv"), "replay_start": "2022-05-28T06:00Z",
                    "speed": speed},
            precision={"gears": ["fp32"], "probe_every": 0},
            policy={"name": "mpc", "tokens": 3200, "deadline_h": 24, "actions": str(tmp_path / "actions.yaml"),
                    "released": True, "decide_s": 3600},
            actuators={"min_away_s": 3600},
        ),
    }  # fmt: skip
    began_s = time.time()
    assert end(start(tmp_path, desk, options, 1)) == [EXIT_REQUEUE]
    request = desk.request()
    assert request is not None and request.ranks == 1 and request.not_before_unix_s is not None
    run_json = json.loads((tmp_path / "runs" / "one" / "run.json").read_text())
    noon_s = run_json["grid"]["unix_s"] + 6.0
    assert began_s <= run_json["grid"]["unix_s"] <= request.not_before_unix_s
    assert request.not_before_unix_s == pytest.approx(noon_s, abs=1.1)
    assert "off" in request.reason
    time.sleep(max(0.0, request.not_before_unix_s - time.time()))
    assert end(start(tmp_path, desk, options, 2)) == [0]
    assert list(seen(tmp_path)) == list(range(400))
    decisions = [event for rank in read_run(tmp_path / "runs" / "one").ranks for event in rank.events]
    assert sum(event["name"] == "leave" for event in decisions) == 1
