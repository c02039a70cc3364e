"""Waiting outside the allocation, with Slurm's own daemons."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from greentrain.control.launch.slurm import Job, Scontrol, Shape, SlurmWaiting, open_slurm
from greentrain.control.launcher_protocol import LauncherFiles
from greentrain.errors import ConfigError
from tests.control.launch.slurm_cluster import NOBODY, ROOT, Cluster, cluster, python_of

JOB = ROOT / "tests" / "control" / "launch" / "slurm_job.py"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster() as found:
        yield found


@pytest.fixture(scope="module")
def limited(slurm: Cluster) -> Iterator[tuple[str, Path]]:
    """A job that hears of its time limit, and its folder: Slurm looks at limits every 30 s, so it starts first."""
    with tempfile.TemporaryDirectory(prefix="greentrain-job-") as name:
        Path(name).chmod(0o777)
        script = f"exec {python_of(NOBODY)} {JOB} {name} 60 notice:1"
        yield slurm.submit(Path(name), script, "-t", "1", "--signal=B:USR1@60", uid=NOBODY), Path(name)


@pytest.fixture(scope="module")
def planned(slurm: Cluster) -> Iterator[tuple[str, Path]]:
    """A training that mpc plans over a replayed day of 43 s, and its folder; it starts first, too."""
    with tempfile.TemporaryDirectory(prefix="greentrain-job-") as name:
        folder = Path(name)
        grams = 8 * ([500] * 4 + [100] * 6 + [500] * 4 + [100] * 10)  # a plan looks at the days before
        rows = "".join(f"2022-05-{23 + i // 24}T{i % 24:02}:00Z,{g}\n" for i, g in enumerate(grams))
        (folder / "grid.csv").write_text(f"timestamp_utc,g_per_kwh\n{rows}")
        (folder / "actions.yaml").write_text("- {gear: fp32, tokens_per_s: 400, power_w: 50}\n")
        config = {
            "run": {"dir": f"{folder}/runs", "id": "one", "report": False, "live": False, "book_s": 0.5},
            "power": {"meters": ["cpu_model"]},
            "carbon": {
                "signal": "trace",
                "trace_csv": f"{folder}/grid.csv",
                "replay_start": "2022-05-28T00:00Z",
                "speed": 2000.0,
            },
            "precision": {"gears": ["fp32"], "probe_every": 0},
            "policy": {
                "name": "mpc",
                "tokens": 4000,
                "deadline_h": 24,
                "actions": f"{folder}/actions.yaml",
                "released": True,
            },
            "actuators": {"min_away_s": 3600},
        }
        (folder / "green.yaml").write_text(json.dumps(config))
        (folder / "options.json").write_text(json.dumps({"steps": 500, "step_s": 0.02, "config": config}))
        launch = f"{sys.executable} {ROOT}/tests/control/launch/slurm_launch.py launch --config {folder}/green.yaml"
        options = f"--dir {folder}/launch --checkpoints {folder}/checkpoints --start green"
        command = f'{sys.executable} {ROOT}/tests/integration/job.py {folder} "$(cat {folder}/options.json)"'
        yield slurm.submit(folder, f"exec {launch} {options} -- {command}"), folder


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder for jobs of any user: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="greentrain-job-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def lines(shared: Path, what: str) -> list[list[str]]:
    """Return the words after a first word, of each line of the job's output that has it."""
    text = (shared / "out").read_text(encoding="utf-8")
    return [line.split()[1:] for line in text.splitlines() if line.split()[:1] == [what]]


class Room:
    """Waits inside the allocation, and notes until when."""

    def __init__(self) -> None:
        self.until: list[float | None] = []

    def away(self, until_unix_s: float | None, ranks: int) -> bool:
        self.until.append(until_unix_s)
        return False


@pytest.mark.long
def test_an_ordinary_user_waits_outside_the_allocation(
    slurm: Cluster, planned: tuple[str, Path], limited: tuple[str, Path], shared: Path
) -> None:
    job_id = slurm.submit(shared, f"exec {python_of(NOBODY)} {JOB} {shared} 1 3:1 0.5:1", uid=NOBODY)
    slurm.wait(job_id, "PENDING")
    found = slurm.wait(job_id, "COMPLETED")
    assert found["Restarts"] == "1"
    (first, second), until = lines(shared, "start"), lines(shared, "until")[0]
    assert float(first[0]) < float(until[0]) <= float(second[0]) < float(until[0]) + 3.0
    assert [away for (away,) in lines(shared, "away")] == ["True", "False"]  # the second wait is too short to leave
    assert second[1] == "1"
    assert not lines(shared, "warn")


def test_a_job_that_may_not_be_requeued_says_that_it_may(slurm: Cluster, shared: Path) -> None:
    job_id = slurm.submit(shared, f"exec {python_of(NOBODY)} {JOB} {shared} 1 2:1", "--no-requeue", uid=NOBODY)
    assert slurm.wait(job_id, "COMPLETED")["Restarts"] == "1"
    assert [start[1] for start in lines(shared, "start")] == ["0", "1"]


@pytest.mark.long
def test_the_width_of_the_next_attempt_is_that_of_its_allocation(slurm: Cluster, shared: Path) -> None:
    python = python_of(NOBODY)
    cases: dict[tuple[str, ...], tuple[list[str], list[str] | None]] = {
        ("-N", "2", "--ntasks-per-node", "1"): (["4", "6", "2"], ["2", "3", "1"]),  # torchrun: one task a node
        ("-N", "1", "--ntasks-per-node", "2"): (["2", "6", "2"], ["1", "3", "1"]),  # srun: one task a rank
        ("-n", "2", "-c", "2"): (["2", "5", "1"], None),  # ranks wherever there is room
    }
    jobs = []
    for i, (options, (ranks, _)) in enumerate(cases.items()):
        folder = shared / str(i)
        folder.mkdir()
        folder.chmod(0o777)
        waits = " ".join(f"0:{n}" for n in ranks[1:])
        script = f"export RANKS={ranks[0]}\nexec {python} {JOB} {folder} 9 {waits}"
        jobs.append((slurm.submit(folder, script, *options, uid=NOBODY), folder))
    for (job_id, folder), (ranks, nodes) in zip(jobs, cases.values(), strict=True):
        slurm.wait(job_id, "COMPLETED")
        assert [start[2] for start in lines(folder, "start")] == ranks
        assert nodes is None or [start[3] for start in lines(folder, "start")] == nodes
        assert not lines(folder, "warn")


def test_a_controller_that_is_away_for_a_moment_is_asked_again(slurm: Cluster, shared: Path) -> None:
    job_id = slurm.submit(shared, "sleep 100")
    slurm.wait(job_id, "RUNNING")
    pauses: list[float] = []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        os.kill(slurm.controller, signal.SIGCONT)

    ask = _scontrol(slurm, sleep)
    room = Room()
    waiting = SlurmWaiting(ask, job_id, _handover(shared), room, ranks=1, warn=pytest.fail)
    os.kill(slurm.controller, signal.SIGSTOP)
    try:
        assert waiting.away(time.time() + 3600.0, 1)
    finally:
        os.kill(slurm.controller, signal.SIGCONT)
    assert pauses and not room.until
    found = slurm.wait(job_id, "PENDING")
    start_s = time.mktime(time.strptime(found["EligibleTime"], "%Y-%m-%dT%H:%M:%S"))
    assert 3590 < start_s - time.time() <= 3601
    slurm.run("scancel", job_id)


def test_a_job_of_somebody_else_is_waited_for_inside_with_one_warning(slurm: Cluster, shared: Path) -> None:
    job_id = slurm.submit(shared, "sleep 100")
    slurm.wait(job_id, "RUNNING")
    refuses = shared / "scontrol"  # asks as another user
    refuses.write_text(f'#!/bin/sh\nexec setpriv --reuid={NOBODY} --clear-groups {slurm.scontrol} "$@"\n')
    refuses.chmod(0o755)
    said: list[str] = []
    room = Room()
    ask = Scontrol(str(refuses), environ=slurm.environ)
    waiting = SlurmWaiting(ask, job_id, _handover(shared), room, ranks=1, warn=said.append)
    soon_s = time.time() + 100.0
    assert not waiting.away(soon_s, 1)
    assert not waiting.away(soon_s, 1)
    assert room.until == [soon_s, soon_s]
    assert len(said) == 1 and "Access/permission denied" in said[0]
    late_s = time.time() + 3600.0  # past the time limit of the job: a last try before its end
    assert not waiting.away(late_s, 1)
    end_s = waiting.end_unix_s
    assert end_s is not None and room.until[2:] == [end_s - 120.0, late_s]
    slurm.run("scancel", job_id)
    slurm.wait(job_id, "CANCELLED", "COMPLETING")


def test_an_allocation_without_a_script_is_waited_in(slurm: Cluster, shared: Path) -> None:
    got = subprocess.run(
        ["salloc", "-Q", "sh", "-c", "echo $SLURM_JOB_ID"],
        env=slurm.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    room = Room()
    waiting = SlurmWaiting(_scontrol(slurm), got.stdout.strip(), _handover(shared), room, ranks=1)
    until_s = time.time() + 1000.0
    assert not waiting.requeues and not waiting.away(until_s, 1)
    assert room.until == [until_s]


def test_bad_surroundings_are_told_before_training(slurm: Cluster, shared: Path) -> None:
    handover, room = _handover(shared), Room()
    assert open_slurm({"PATH": os.environ["PATH"]}, handover, room, ranks=1) is None
    with pytest.raises(ConfigError, match="scontrol is not on PATH"):
        open_slurm({"SLURM_JOB_ID": "7", "PATH": "/nowhere"}, handover, room, ranks=1)
    with pytest.raises(ConfigError, match="Invalid job id"):
        open_slurm({**slurm.environ, "SLURM_JOB_ID": "999999"}, handover, room, ranks=1)
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    with pytest.raises(ConfigError, match="srun started 4 of greentrain launch"):
        open_slurm({**slurm.environ, "SLURM_JOB_ID": "7", **step}, handover, room, ranks=4)


def test_the_recipe_is_a_script_that_slurm_takes(slurm: Cluster) -> None:
    path = ROOT / "recipes" / "slurm" / "train.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    slurm.run("sbatch", "--test-only", "--gres=none", str(path), uid=NOBODY)
    text = path.read_text(encoding="utf-8")
    for line in ("--requeue", "--open-mode=append", "--signal=B:USR1@180"):
        assert f"#SBATCH {line}\n" in text
    commands = [line for line in text.replace("\\\n", "").splitlines() if line and not line.startswith("#")]
    assert len(commands) == 1 and commands[0].startswith("exec greentrain launch ")


def test_a_lost_answer_is_no_refusal(tmp_path: Path) -> None:
    """The requeue was heard, its answer lost: asked again, Slurm says that the job is no longer running."""
    program = tmp_path / "scontrol"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/asked\n'
        "case $1 in\n"
        f"show) echo JobState=$(cat {tmp_path}/state) BatchFlag=1 NumNodes=1 NumTasks=1 CPUs/Task=1 EndTime=Unknown;;\n"
        f"requeue) [ $(cat {tmp_path}/state) = RUNNING ] && {{ echo COMPLETING > {tmp_path}/state; "
        "echo Socket timed out >&2; exit 1; }; echo Job/step already completing >&2; exit 1;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    (tmp_path / "state").write_text("RUNNING")
    ask = Scontrol(str(program), environ={"PATH": os.environ["PATH"]}, pauses_s=(0.01,))
    waiting = SlurmWaiting(ask, "7", _handover(tmp_path), Room(), ranks=1, warn=pytest.fail)
    assert waiting.away(time.time() + 100.0, 1)
    assert (tmp_path / "asked").read_text().splitlines()[-1].startswith("update JobId=7 StartTime=now+")


def test_a_size_that_is_refused_leaves_the_time(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/asked\n'
        "case $* in\n"
        "show*) echo JobState=RUNNING BatchFlag=1 NumNodes=2 NumTasks=2 CPUs/Task=4 EndTime=Unknown;;\n"
        "*NumNodes*) echo Node count specification invalid >&2; exit 1;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    said: list[str] = []
    ask = Scontrol(str(program), environ={"PATH": os.environ["PATH"]}, pauses_s=())
    waiting = SlurmWaiting(ask, "7", _handover(tmp_path), Room(), ranks=16, warn=said.append)
    assert waiting.ranks == 16
    assert waiting.away(None, 24)
    asked = (tmp_path / "asked").read_text().splitlines()[-2:]
    assert asked[0] == f"{asked[1]} NumNodes=3-3 NumTasks=3 NumCPUs=12"
    assert asked[1] in ("update JobId=7 StartTime=now+15", "update JobId=7 StartTime=now+16")
    assert len(said) == 1 and "NumNodes=3-3" in said[0]
    assert not waiting.away(None, 12)  # no whole nodes: fewer ranks in the same allocation


def test_the_shape_of_a_job(tmp_path: Path) -> None:
    def job(nodes: int, tasks: int, *, gres: bool = False) -> Job:
        return Job(
            state="RUNNING", batch=True, nodes=nodes, tasks=tasks, cpus_per_task=1, end_unix_s=None, per_job_gres=gres
        )

    assert Shape.of(job(2, 2), 16, by_node=False) == Shape(ranks_per_node=8, task_a_rank=False)
    assert Shape.of(job(1, 8), 8, by_node=False) == Shape(ranks_per_node=0, task_a_rank=True)
    assert Shape.of(job(1, 8), 8, by_node=True) == Shape(ranks_per_node=8, task_a_rank=True)
    assert Shape.of(job(1, 1), 8, by_node=False) == Shape(ranks_per_node=8, task_a_rank=False)
    assert Shape.of(job(3, 3), 4, by_node=False) is None
    assert Shape.of(job(2, 2, gres=True), 16, by_node=False) is None


@pytest.mark.long
def test_a_job_leaves_before_its_time_limit(slurm: Cluster, limited: tuple[str, Path]) -> None:
    job_id, folder = limited
    assert slurm.wait(job_id, "COMPLETED")["Restarts"] == "1"
    assert [away for (away,) in lines(folder, "away")] == ["True"]  # the time has come, but not in this allocation
    assert [start[1] for start in lines(folder, "start")] == ["0", "1"]


@pytest.mark.long
def test_a_training_is_deferred_started_requeued_and_finished_by_mpc(slurm: Cluster, planned: tuple[str, Path]) -> None:
    job_id, folder = planned
    found = slurm.wait(job_id, "COMPLETED", "FAILED", timeout_s=100.0)
    out = (folder / "out").read_text()
    assert found["JobState"] == "COMPLETED", out
    said = [line.partition("greentrain launch: ")[2] for line in out.splitlines() if "greentrain launch: " in line]
    assert said.pop(0).startswith("this job is kept in")
    assert said[0].startswith("waiting until") and said[1].startswith("somebody else")  # deferred before its first step
    attempts = [text for text in said if text.startswith("attempt ") and " left: " not in text]
    assert len(attempts) >= 2 and "from " in attempts[1], out  # left by the plan, and back from its checkpoint
    assert int(found["Restarts"]) >= len(attempts)
    steps = [json.loads(line)["step"] for path in folder.glob("seen-*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(steps) == list(range(500))  # none lost, none twice
    final = json.loads((folder / "final.json").read_text())
    assert final["step"] == 500
    assert json.loads((folder / "runs" / "one" / "run.json").read_text())["config"]["policy"]["name"] == "mpc"


def _handover(folder: Path) -> LauncherFiles:
    return LauncherFiles(folder)


def _scontrol(slurm: Cluster, sleep: object = time.sleep) -> Scontrol:
    assert callable(sleep)
    return Scontrol(slurm.scontrol, environ=slurm.environ, sleep=sleep)
