"""A real Ray cluster on this machine: workers come and go by GreenTrain's plan, one is killed, and nothing is lost.

One job of about a minute in a process of its own; the tests look at what it has left.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from greentrain.ledger.reader import RunRecord, read_run
from tests.callbacks.ray_here import hide_from_processes, import_ray

pytestmark = [pytest.mark.slow, pytest.mark.long]
JOB = Path(__file__).with_name("ray_job.py")
TIME_S = 300.0


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run the job once and return its folder."""
    import_ray()
    out = tmp_path_factory.mktemp("ray")
    temp = tempfile.mkdtemp(prefix="gt", dir="/tmp")  # short: a socket's path has at most 107 characters
    env = os.environ | {
        "PYTHONPATH": hide_from_processes(out / "hidden"),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",  # else a token is left in the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process less in every group
        "GREENTRAIN_CLAIMS_DIR": str(out / "claims"),
    }
    before = {folder: folder.exists() for folder in (Path("/tmp/ray"), Path.home() / ".ray")}
    command = [sys.executable, str(JOB), str(out), temp]
    try:
        with (out / "output.txt").open("w") as output:
            process = subprocess.Popen(
                command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=out
            )
            try:
                code = process.wait(TIME_S)
            except subprocess.TimeoutExpired:
                code = None
        left = _processes(temp)
        assert code == 0, (out / "output.txt").read_text(encoding="utf-8", errors="replace")[-3000:]
        assert not left, f"processes left: {left}"
        assert {folder: folder.exists() for folder in before} == before
        yield out
    finally:
        for running in [*_processes(temp), process.pid]:
            try:
                os.kill(running, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
        shutil.rmtree(temp, ignore_errors=True)


def _processes(temp: str) -> list[int]:
    """Return those of the cluster that keeps its files in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(temp in word for word in process.cmdline()[1:]) and process.pid != os.getpid():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def answer(job: Path) -> dict[str, Any]:
    return dict(json.loads((job / "result.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def steps(job: Path) -> list[dict[str, Any]]:
    """What every rank did in every optimizer step, the lost ones of the killed worker included."""
    texts = [path.read_text(encoding="utf-8") for path in job.glob("log-*.jsonl")]
    return sorted((json.loads(line) for text in texts for line in text.splitlines()), key=lambda step: step["t"])


@pytest.fixture(scope="module")
def record(job: Path) -> RunRecord:
    (folder,) = (job / "runs").iterdir()
    return read_run(folder)


def test_the_plan_makes_it_two_workers_and_one_again(answer: dict[str, Any], record: RunRecord) -> None:
    assert answer["metrics"]["widths"] == [1, 2, 1]
    assert [(before, after) for before, after, _ in answer["resizes"]] == [(1, 2), (2, 1)]
    events = record.ranks[0].events
    assert [event["ranks"] for event in events if event["name"] == "leave"] == [2, 1]
    assert [(event["before"], event["after"]) for event in events if event["name"] == "resize"] == [(1, 2), (2, 1)]


@pytest.fixture(scope="module")
def parts() -> Any:
    """The parts of the job, in this process."""
    import_ray()
    sys.argv, argv = [str(JOB), "unused", "unused"], sys.argv
    try:
        from tests.callbacks import ray_job
    finally:
        sys.argv = argv
    return ray_job


def test_every_sample_is_trained_exactly_once_an_epoch(
    steps: list[dict[str, Any]], answer: dict[str, Any], parts: Any
) -> None:
    last = {(step["step"], step["rank"]): step for step in steps}  # what the model of the end has learned from
    widths = {n: {step["world"] for (m, _), step in last.items() if m == n} for n, _ in last}
    assert all(len(seen) == 1 for seen in widths.values())
    trained = [last[n, rank]["ids"] for n, rank in sorted(last)]
    one_rank = parts.batches(parts.Share.of(parts.BATCH, micro_batch=parts.BATCH), 0)
    wanted = [i for _, ids in zip(range(answer["metrics"]["step"]), one_rank, strict=False) for i in ids]
    assert [i for ids in trained for i in ids] == wanted
    assert set(Counter(wanted).values()) == {len(wanted) // parts.SAMPLES, len(wanted) // parts.SAMPLES + 1}


def test_only_the_steps_of_the_killed_worker_are_done_again(job: Path, steps: list[dict[str, Any]]) -> None:
    done: dict[int, int] = defaultdict(int)
    for step in steps:
        if step["rank"] == 0:
            done[step["step"]] += 1
    again = sorted(n for n, times in done.items() if times > 1)
    assert (job / "killed").exists()
    assert len(again) == 2 and again[1] == again[0] + 1, "two steps after the resize, which had written a checkpoint"


def test_the_model_is_that_of_one_fixed_width(answer: dict[str, Any], parts: Any) -> None:
    model, x, y = parts.model_and_data()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.zeros(())
    one_rank = parts.batches(parts.Share.of(parts.BATCH, micro_batch=parts.BATCH), 0)
    for _, ids in zip(range(parts.STEPS), one_rank, strict=False):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[ids]), y[ids])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert answer["metrics"]["loss"] == pytest.approx(loss.item(), rel=1e-4)


def test_totals_are_one_run_and_the_sum_of_its_parts(
    record: RunRecord, steps: list[dict[str, Any]], answer: dict[str, Any]
) -> None:
    assert [rank.rank for rank in record.ranks] == [0, 1]
    assert {opened["run_id"] for rank in record.ranks for opened in rank.opens} == {record.folder.name}
    assert [len(rank.opens) for rank in record.ranks] == [4, 2]
    for rank in record.ranks:
        assert rank.close is not None
        booked = sum(entry.energy_j for entry in rank.entries)
        assert rank.close["totals"]["energy_j"] == pytest.approx(booked) and booked > 0
    assert [rank.close["reason"] for rank in record.ranks if rank.close] == ["finished", "left"]
    samples = sum(entry.samples for rank in record.ranks for entry in rank.entries)
    trained = sum(len(step["ids"]) for step in steps)
    assert 8 * answer["metrics"]["step"] <= samples <= trained, "all but what the killed worker had not booked"
