"""A cluster of Slurm on this machine: munged, slurmctld and three slurmd, in a folder of their own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel")
NODES = ("n1", "n2", "n3")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
NOBODY = 65534
_CONF = """
ClusterName=greentrain
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
MessageTimeout=2
KillWait=5
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[3]}] CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


class Cluster:
    """Submits jobs and asks after them.

    Args:
        folder: Of the daemons; everybody may read it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            "PATH": PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
        }
        self.controller = 0
        """Process id of slurmctld."""
        self.scontrol = shutil.which("scontrol", path=PATH) or ""

    def run(self, *words: str, uid: int = 0) -> str:
        """Return what a command of Slurm answers, asked by a user."""
        done = subprocess.run(
            words, env=self.environ, user=uid, group=uid, extra_groups=[], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, folder: Path, script: str, *options: str, uid: int = 0) -> str:
        """Return the id of a job with a script, whose output goes to ``out`` in a folder."""
        path = folder / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        words = ("sbatch", "--parsable", "-D", str(folder), "-o", str(folder / "out"), "--open-mode=append", "-t", "10")
        return self.run(*words, *options, str(path), uid=uid).strip()

    def job(self, job_id: str) -> Mapping[str, str]:
        """Return what Slurm says of a job."""
        text = self.run("scontrol", "show", "job", "--oneliner", job_id)
        return dict(word.partition("=")[::2] for word in text.split() if "=" in word)

    def wait(self, job_id: str, *states: str, timeout_s: float = 120.0) -> Mapping[str, str]:
        """Return what Slurm says once a job is in one of the states."""
        end_s = time.monotonic() + timeout_s
        while (found := self.job(job_id))["JobState"] not in states:
            if time.monotonic() > end_s:
                out = [path.read_text() for path in Path(found["StdOut"]).parent.glob("out")]
                raise AssertionError(f"job {job_id} is not {states} but {found}\n{out}\n{self.logs()}")
            time.sleep(0.05)
        return found

    def logs(self) -> str:
        """Return the end of the daemons' logs."""
        return "\n".join(f"{p.name}: {p.read_text(errors='replace')[-1500:]}" for p in self.folder.glob("*.log"))


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a cluster, and leave nothing of it; skip where that is not possible."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (apt-get install slurmctld slurmd slurm-client munge)")
    if os.getuid() != 0:
        pytest.skip("slurmd starts jobs of other users, which only root may")
    with tempfile.TemporaryDirectory(prefix="greentrain-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for path in ("munge", "state", *(f"spool.{node}" for node in NODES)):
            (folder / path).mkdir(mode=0o755)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        (folder / "slurm.conf").write_text(_CONF.format(folder=folder, host=host, ports=_ports()), encoding="utf-8")
        found = Cluster(folder)
        daemons: list[subprocess.Popen[bytes]] = []

        def start(*words: str) -> int:
            program = shutil.which(words[0], path=PATH)
            assert program is not None
            log = (folder / "daemons.log").open("ab")
            with log:
                command = [program, *words[1:]]
                daemons.append(subprocess.Popen(command, env=found.environ, stdout=log, stderr=log))
            return daemons[-1].pid

        files = {"key-file": "munge.key", "socket": "munge/socket", "pid-file": "munge/pid", "seed-file": "munge/seed"}
        try:
            start("munged", "-F", "--syslog", *(f"--{key}={folder / path}" for key, path in files.items()))
            _until(lambda: (folder / "munge" / "socket").exists(), found)
            found.controller = start("slurmctld", "-D", "-f", f"{folder}/slurm.conf")
            for node in NODES:
                start("slurmd", "-D", "-N", node, "-f", f"{folder}/slurm.conf")
            _until(lambda: "3 idle" in _sinfo(found), found)
            yield found
        finally:
            for daemon in daemons:
                daemon.send_signal(signal.SIGCONT)
            _end_jobs(found)
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in reversed(daemons):
                try:
                    daemon.wait(10.0)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
            left = _processes_of(folder)
            for process in left:
                process.kill()
        assert not left, f"processes left by Slurm: {left}"


def _end_jobs(found: Cluster) -> None:
    """Cancel what runs, and wait for its end."""
    end_s = time.monotonic() + 15.0
    for user in ("root", "nobody"):
        subprocess.run(["scancel", "--full", "-u", user], env=found.environ, check=False, capture_output=True)
    while time.monotonic() < end_s:
        asked = subprocess.run(["squeue", "-h"], env=found.environ, capture_output=True, check=False)
        if not asked.stdout.strip():
            return
        time.sleep(0.1)


def _ports() -> tuple[int, ...]:
    """Return four ports in a row that nobody uses now."""
    for first in range(46_800 + os.getpid() % 1000 * 4, 65_000, 4):
        with socket.socket() as a, socket.socket() as b, socket.socket() as c, socket.socket() as d:
            try:
                for offset, one in enumerate((a, b, c, d)):
                    one.bind(("127.0.0.1", first + offset))
            except OSError:
                continue
            return tuple(range(first, first + 4))
    raise AssertionError("no four free ports in a row")


def _sinfo(found: Cluster) -> str:
    words = ["sinfo", "-h", "-o", "%D %t"]
    return subprocess.run(words, env=found.environ, capture_output=True, text=True, check=False).stdout


def _until(true: object, found: Cluster) -> None:
    assert callable(true)
    end_s = time.monotonic() + 15.0
    while not true():
        assert time.monotonic() < end_s, f"Slurm did not start:\n{found.logs()}"
        time.sleep(0.05)


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Return processes that still know of the cluster, after a moment to end."""
    end_s = time.monotonic() + 5.0
    while True:
        left = [process for process in psutil.process_iter() if process.pid != os.getpid() and _knows(process, folder)]
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.1)


def _knows(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process has the cluster in its environment, or a file of it open (slurmstepd)."""
    try:
        if process.environ().get("SLURM_CONF", "").startswith(str(folder)):
            return True
        files = Path(f"/proc/{process.pid}/fd")
        return any(os.readlink(file).startswith(str(folder)) for file in files.iterdir())
    except (psutil.Error, OSError):
        return False


def python_of(uid: int) -> str:
    """Return an interpreter that a user may start and that has what the launcher needs: the standard library."""
    for program in (sys.executable, "/usr/bin/python3"):
        code = "import sys; assert sys.version_info >= (3, 11); import greentrain.control.launch.slurm"
        words = [program, "-c", code]
        try:
            done = subprocess.run(
                words,
                env={"PYTHONPATH": str(ROOT)},
                user=uid,
                group=uid,
                extra_groups=[],
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return program
    pytest.skip(f"user {uid} can start no Python from 3.11 on that reads {ROOT}")
