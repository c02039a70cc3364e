"""Waiting outside the allocation, with Slurm's own daemons."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from greentrain.control.launch import slurm as slurm_module
from greentrain.control.launch.slurm import Job, Scontrol, Shape, SlurmError, SlurmWaiting, open_slurm
from greentrain.control.launcher_protocol import LauncherFiles, Notice
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


# -- Slurm as a test plays it ----------------------------------------------------------------------------------------

NOW_S = 1_700_000_000.25
RUNNING = {"JobState": "RUNNING", "BatchFlag": "1", "NumNodes": "2", "NumTasks": "2", "CPUs/Task": "4"}


class Played(Scontrol):
    """Answers what a test says, and keeps what it was asked.

    Args:
        answers: What follows a first word of an order: a refusal, in its turn; None: it is done.
        job: What it says of the job.
    """

    def __init__(self, answers: dict[str, list[str | None]] | None = None, **job: str) -> None:
        super().__init__("scontrol")
        self.answers, self.facts = answers or {}, {**RUNNING, **job}
        self.asked: list[str] = []
        self.blocked: list[bool] = []

    def ask(self, *words: str) -> str:
        if words[0] == "show":
            return " ".join(f"{key}={value}" for key, value in self.facts.items())
        self.asked.append(" ".join(words))
        self.blocked.append(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        left = self.answers.get(words[0])
        refusal = left.pop(0) if left else None
        if refusal is not None:
            state, _, text = refusal.rpartition("|")
            self.facts["JobState"] = state or self.facts["JobState"]
            raise SlurmError(text)
        return ""


def played(folder: Path, slurm: Scontrol, room: Room, said: list[str] | None = None, **more: Any) -> SlurmWaiting:
    warn: Any = pytest.fail if said is None else said.append
    return SlurmWaiting(
        slurm, "7", _handover(folder), room, **{"ranks": 2, "warn": warn, "clock": lambda: NOW_S, **more}
    )


def test_a_wait_that_pays_is_spent_in_the_queue_and_others_here(tmp_path: Path) -> None:
    for wait_s, away in ((59.0, False), (60.0, True), (3600.5, True), (-5.0, False), (None, False)):
        slurm, room = Played(), Room()
        until_s = None if wait_s is None else NOW_S + wait_s
        assert played(tmp_path, slurm, room).away(until_s, 2) is away
        if away:
            assert wait_s is not None
            # Slurm counts from a whole second, and never too early
            assert slurm.asked == ["requeue 7", f"update JobId=7 StartTime=now+{math.ceil(wait_s + 0.25)}"]
            assert room.until == []
        else:
            assert slurm.asked == [] and room.until == [until_s]
    slurm = Played()
    assert played(tmp_path, slurm, Room(), min_away_s=5.0, soon_s=40.0).away(NOW_S + 10.0, 2)
    assert slurm.asked[-1] == "update JobId=7 StartTime=now+41", "not before the last process has ended"


def test_a_job_that_is_no_batch_job_is_never_requeued(tmp_path: Path) -> None:
    slurm, room = Played(BatchFlag="0"), Room()
    waiting = played(tmp_path, slurm, room)
    assert not waiting.requeues and not waiting.away(NOW_S + 1e5, 4) and slurm.asked == [] and len(room.until) == 1


def test_an_allocation_that_ends_is_left_whatever_the_wait(tmp_path: Path) -> None:
    hand = _handover(tmp_path)
    hand.write(Notice(attempt=1, reason="of an earlier allocation"))
    slurm, room = Played(), Room()
    waiting = played(tmp_path, slurm, room)
    assert not waiting.away(None, 2) and slurm.asked == []
    hand.write(Notice(attempt=1, reason="SIGUSR1"))
    os.utime(tmp_path / "notice.json", ns=(1, 1))
    assert waiting.away(None, 2) and slurm.asked == ["requeue 7", "update JobId=7 StartTime=now+16"]


def test_another_width_is_another_allocation(tmp_path: Path) -> None:
    slurm = Played()
    waiting = played(tmp_path, slurm, Room(), ranks=16)
    assert waiting.ranks == 16 and not waiting.away(None, 16)
    assert waiting.away(None, 8)
    assert slurm.asked[-1] == "update JobId=7 StartTime=now+16 NumNodes=1-1 NumTasks=1 NumCPUs=4"
    uneven = Played(NumNodes="3", NumTasks="3")
    waiting = played(tmp_path / "none", uneven, Room(), ranks=16)
    assert waiting.ranks is None and not waiting.away(None, 8) and uneven.asked == [], "its size is left alone"


def test_a_requeue_that_is_refused_is_tried_once_more_before_the_time_limit(tmp_path: Path) -> None:
    end_s = math.floor(NOW_S) + 1000
    slurm = Played({"requeue": ["denied", None]}, EndTime=datetime.fromtimestamp(end_s).isoformat())
    room, said = Room(), list[str]()
    waiting = played(tmp_path, slurm, room, said)
    assert waiting.end_unix_s == end_s
    assert waiting.away(NOW_S + 2000.0, 2)
    assert room.until == [end_s - 120.0] and slurm.asked[:2] == ["requeue 7"] * 2
    assert said == ["Slurm did not requeue the job (denied), so it waits inside its allocation"]


@pytest.mark.parametrize(
    ("end_s", "until_s", "rooms"),
    [
        (1000.0, 879.0, [879.0]),  # it starts before the end comes near
        (1000.0, 881.0, [880.0, 881.0]),
        (120.0, 2000.0, [2000.0]),  # the end is near already
        (None, 2000.0, [2000.0]),
    ],
)
def test_a_wait_that_slurm_refuses_is_spent_inside(
    tmp_path: Path, end_s: float | None, until_s: float, rooms: list[float]
) -> None:
    now_s = math.floor(NOW_S)
    end = "Unknown" if end_s is None else datetime.fromtimestamp(now_s + end_s).isoformat()
    slurm, room = Played({"requeue": ["denied", "denied"]}, EndTime=end), Room()
    waiting = played(tmp_path, slurm, room, [], clock=lambda: float(now_s))
    assert not waiting.away(now_s + until_s, 2)
    assert [None if until is None else until - now_s for until in room.until] == rooms


def test_sigterm_is_held_back_while_the_job_is_let_go(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    of: list[dict[str, list[str | None]]] = [{}, {"requeue": ["denied"]}]
    for answers in of:
        slurm = Played(answers)
        played(tmp_path, slurm, Room(), []).away(NOW_S + 1e4, 2)
        assert all(slurm.blocked) and signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_job_that_may_not_be_requeued_is_allowed_to_once(tmp_path: Path) -> None:
    slurm = Played({"requeue": ["Requeue is disabled", None]})
    assert played(tmp_path, slurm, Room()).away(NOW_S + 1e4, 2)
    assert slurm.asked[:3] == ["requeue 7", "update JobId=7 Requeue=1", "requeue 7"] and len(slurm.asked) == 4
    slurm, said, room = Played({"requeue": ["disabled"] * 9}), list[str](), Room()
    assert not played(tmp_path, slurm, room, said).away(NOW_S + 1e4, 2)
    assert slurm.asked.count("requeue 7") == 2 and "Requeue=1 did not help" in said[0] and len(room.until) == 1


@pytest.mark.parametrize(
    ("state", "away"), [("PENDING", True), ("COMPLETING", True), ("RUNNING", False), ("SUSPENDED", False)]
)
def test_whether_a_refusal_was_none_is_seen_by_the_state_of_the_job(tmp_path: Path, state: str, away: bool) -> None:
    slurm = Played({"requeue": [f"{state}|Socket timed out"]})
    assert played(tmp_path, slurm, Room(), []).away(NOW_S + 1e4, 2) is away


def test_a_start_that_slurm_refuses_is_told_and_the_job_is_requeued_all_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    slurm = Played({"update": ["no size", "no time"]})
    assert played(tmp_path, slurm, Room(), said, ranks=16).away(NOW_S + 1e4, 24)
    assert len(slurm.asked) == 3 and len(said) == 2 and "NumNodes=3-3" in said[0] and said[1].endswith("(no time)")
    slurm = Played({"update": ["no time"]})
    assert played(tmp_path, slurm, Room(), []).away(NOW_S + 1e4, 2) and len(slurm.asked) == 2, (
        "asked once where it is one"
    )


def test_the_shape_is_that_of_the_first_start(tmp_path: Path) -> None:
    assert played(tmp_path, Played(), Room(), ranks=16).ranks == 16
    assert json.loads((tmp_path / "slurm.json").read_text())["shape"] == {"ranks_per_node": 8, "task_a_rank": False}
    smaller = Played(NumNodes="1", NumTasks="1")
    assert played(tmp_path, smaller, Room(), ranks=16).ranks == 8, "eight a node, whatever was asked for then"
    for text in (
        "{torn",
        '{"job_id": "7", "shape": {"x": 1}}',
        "[]",
        '{"job_id": "8", "shape": {"ranks_per_node": 3}}',
    ):
        (tmp_path / "slurm.json").write_text(text)
        assert played(tmp_path, smaller, Room(), ranks=4).ranks == 4
    srun = Played(NumNodes="1", NumTasks="4")
    assert played(tmp_path / "gone", srun, Room(), ranks=4).ranks == 4, "a folder that cannot be written"


@pytest.mark.parametrize(
    ("ranks_per_node", "task_a_rank", "ranks", "words"),
    [
        (0, True, 6, ("NumTasks=6", "NumCPUs=12")),
        (4, True, 8, ("NumNodes=2-2", "NumTasks=8", "NumCPUs=16")),
        (4, False, 8, ("NumNodes=2-2", "NumTasks=2", "NumCPUs=4")),
        (4, False, 6, None),
    ],
)
def test_what_slurm_is_told_for_a_width(
    ranks_per_node: int, task_a_rank: bool, ranks: int, words: tuple[str, ...] | None
) -> None:
    job = Job(state="RUNNING", batch=True, nodes=3, tasks=5, cpus_per_task=2, end_unix_s=None, per_job_gres=False)
    shape = Shape(ranks_per_node=ranks_per_node, task_a_rank=task_a_rank)
    assert shape.words(job, ranks) == words and shape.ranks(job) == (5 if task_a_rank else 3 * ranks_per_node)


def test_what_slurm_says_of_a_job() -> None:
    class Says(Scontrol):
        text = ""

        def ask(self, *words: str) -> str:
            assert words == ("show", "job", "--oneliner", "7")
            return self.text

    slurm = Says("scontrol")
    slurm.text = (
        "JobId=7 JobName=a b=c JobState=PENDING BatchFlag=2 NumNodes=2-4 NumTasks=3 CPUs/Task=N/A"
        " EndTime=2026-11-21T10:00:00 TresPerJob=gres:gpu:4"
    )
    end_s = datetime(2026, 11, 21, 10).timestamp()
    assert slurm.job("7") == Job(
        state="PENDING", batch=True, nodes=2, tasks=3, cpus_per_task=1, end_unix_s=end_s, per_job_gres=True
    )
    slurm.text = "JobState=RUNNING BatchFlag=0 NumNodes=1 NumTasks=1 CPUs/Task=8 EndTime=Unknown TresPerJob="
    assert slurm.job("7") == Job(
        state="RUNNING", batch=False, nodes=1, tasks=1, cpus_per_task=8, end_unix_s=None, per_job_gres=False
    )
    for text in ("JobState=RUNNING", "JobState=R BatchFlag=0 NumNodes=one NumTasks=1 CPUs/Task=8", ""):
        slurm.text = text
        with pytest.raises(SlurmError, match="scontrol show job 7 answered '"):
            slurm.job("7")


def test_scontrol_is_asked_again_where_another_answer_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []
    asked: list[tuple[list[str], Any, float]] = []
    slept: list[float] = []

    def run(words: list[str], *, env: Any, timeout: float, **how: Any) -> Any:
        asked.append((words, env, timeout))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        code, out, error = answer
        return subprocess.CompletedProcess(words, code, out, error)

    told = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(slurm_module, "subprocess", told)
    ask = Scontrol("/x/scontrol", environ={"A": "b"}, pauses_s=(1.0, 2.0), sleep=slept.append)
    answers += [(1, "", "Unable to contact\n  slurm controller"), OSError("no memory"), (0, "yes", "")]
    assert ask.ask("requeue", "7") == "yes" and slept == [1.0, 2.0]
    assert asked[0] == (["/x/scontrol", "requeue", "7"], {"A": "b"}, 60.0) and len(asked) == 3
    slept.clear()
    answers += [subprocess.TimeoutExpired("x", 60.0), (9, "", ""), (1, "", "Unable to contact\n slurm controller")]
    with pytest.raises(SlurmError, match=r"^scontrol requeue 7: Unable to contact slurm controller$"):
        ask.ask("requeue", "7")
    assert slept == [1.0, 2.0]
    slept.clear()
    for final in (
        "Access/permission denied",
        "Invalid job id specified",
        "Job is pending execution",
        "Requeue disabled",
    ):
        answers.append((1, "", final))
        with pytest.raises(SlurmError, match=final.split()[-1]):
            ask.ask("requeue", "7")
    assert slept == [] and answers == [], "nothing would change"
    with pytest.raises(SlurmError, match="exit code 9"):
        answers.append((9, "", ""))
        Scontrol("/x/scontrol", pauses_s=()).ask("requeue", "7")
    assert sum(slurm_module.PAUSES_S) >= 30.0, "slurmctld may be started again meanwhile"


def test_the_job_of_this_process_is_found_by_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found_job = Played(NumNodes="1", NumTasks="4").job("7")

    def job(self: Scontrol, job_id: str) -> Job:
        assert job_id == "7" and self._program == str(program) and self._environ is environ
        return found_job

    monkeypatch.setattr(Scontrol, "job", job)
    for more, ranks_per_node in (({}, 0), ({"SLURM_NTASKS_PER_NODE": "4"}, 4), ({"SLURM_STEP_ID": "0"}, 0)):
        (tmp_path / "slurm.json").unlink(missing_ok=True)
        environ = {"SLURM_JOB_ID": "7", "PATH": str(tmp_path), **more}
        found = open_slurm(environ, _handover(tmp_path), Room(), ranks=4, min_away_s=9.0, soon_s=3.0)
        assert found is not None and found.requeues and found.ranks == 4
        assert json.loads((tmp_path / "slurm.json").read_text())["shape"]["ranks_per_node"] == ranks_per_node
        assert (found._min_away_s, found._soon_s) == (9.0, 3.0)
    environ = {"SLURM_JOB_ID": "7", "PATH": str(tmp_path), "SLURM_STEP_NUM_TASKS": "4"}  # of sbatch, not of srun
    assert open_slurm(environ, _handover(tmp_path), Room(), ranks=4) is not None


def _handover(folder: Path) -> LauncherFiles:
    return LauncherFiles(folder)


def _scontrol(slurm: Cluster, sleep: object = time.sleep) -> Scontrol:
    assert callable(sleep)
    return Scontrol(slurm.scontrol, environ=slurm.environ, sleep=sleep)
