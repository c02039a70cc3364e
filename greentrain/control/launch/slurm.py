"""Waiting outside the allocation: the job goes back into Slurm's queue, with the time and the size of its next attempt.

``scontrol requeue`` is open to the owner of a batch job. It frees the nodes, and slurmctld keeps a start time that
arrives before the last process of the job has ended; otherwise it starts the job again about two minutes later
(batch_requeue_fini in src/slurmctld/job_mgr.c, the same from 20.02 to 25.11). So the order below can lose a start time,
which costs a start that is too early and another requeue, but never the job. Rejected: ``requeuehold`` and a small job
that releases it, as the job is lost or late where that one is; ``sbatch --begin`` of the script, which loses the job's
id, its options of the command line and what depends on it.

Slurm is talked to through its own command, scontrol: there is no library that every site has.
"""

import contextlib
import json
import math
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from greentrain.control.launch.supervisor import Waiting
from greentrain.control.launcher_protocol import LauncherFiles
from greentrain.errors import ConfigError, GreenTrainError
from greentrain.utils import never_raise

TIMEOUT_S: Final = 60.0
"""Longest answer (s); scontrol itself gives up after MessageTimeout, 10 s (slurm.conf(5), 22.05, 2026-11-21)."""
PAUSES_S: Final = (0.2, 1.0, 3.0, 10.0, 20.0)
"""Before each repetition of a question that got no answer (s): 34 s in all, a restart of slurmctld."""
_FINAL: Final = ("disabled", "denied", "Invalid", "invalid", "not supported", "Unspecified", "already", "pending")
"""Words of answers that another try would not change (src/common/slurm_errno.c of 22.05)."""


class SlurmError(GreenTrainError):
    """Slurm refused, or did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What Slurm says of a job."""

    state: str
    """RUNNING, COMPLETING, PENDING, ..."""
    batch: bool
    """Whether it was submitted by sbatch: only such a job can be requeued."""
    nodes: int
    tasks: int
    cpus_per_task: int
    end_unix_s: float | None
    """When its time limit ends (s since the epoch); None: it has none."""
    per_job_gres: bool
    """Whether it asked for a number of GPUs, or the like, of the whole job."""


class Scontrol:
    """Asks Slurm, again where it does not answer.

    Args:
        program: Path of scontrol.
        environ: Environment of scontrol; None: that of this process.
        pauses_s: Pauses before each repetition (s).
        sleep: Sleeps so many seconds.
    """

    def __init__(
        self,
        program: str,
        *,
        environ: Mapping[str, str] | None = None,
        pauses_s: tuple[float, ...] = PAUSES_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._program, self._environ = program, environ
        self._pauses_s = pauses_s
        self._sleep = sleep

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> "Scontrol":
        """Return that of PATH.

        Raises:
            ConfigError: There is none.
        """
        program = shutil.which("scontrol", path=environ.get("PATH"))
        if program is None:
            raise ConfigError(
                f"SLURM_JOB_ID is {environ.get('SLURM_JOB_ID')!r}, so this is a job of Slurm, but scontrol is not on"
                " PATH, and without it the job cannot be requeued: load the site's module of Slurm or, in a container,"
                " bind scontrol, its libraries, slurm.conf and the socket of munge; unset SLURM_JOB_ID to wait inside"
                " the allocation"
            )
        return cls(program, environ=environ)

    def job(self, job_id: str) -> Job:
        """Return what is known of a job.

        Raises:
            SlurmError: Slurm does not answer, or does not know it.
        """
        text = self.ask("show", "job", "--oneliner", job_id)
        found = dict(re.findall(r"(?:^|\s)([A-Za-z/]+)=(\S*)", text))
        try:
            return Job(
                state=found["JobState"],
                batch=found["BatchFlag"] != "0",
                nodes=_least(found["NumNodes"]),
                tasks=_least(found["NumTasks"]),
                cpus_per_task=int(found["CPUs/Task"]) if found["CPUs/Task"].isdigit() else 1,
                end_unix_s=unix_s_of(found.get("EndTime", "")),
                per_job_gres=bool(found.get("TresPerJob")),
            )
        except (KeyError, ValueError) as error:
            raise SlurmError(f"scontrol show job {job_id} answered {text[:200]!r}, which has no {error}") from error

    def ask(self, *words: str) -> str:
        """Return the answer to a question or an order, repeated while nobody answers.

        Raises:
            SlurmError: It was refused, or nobody answers.
        """
        for pause_s in (*self._pauses_s, None):
            try:
                return self._once(words)
            except SlurmError as error:
                if pause_s is None or any(word in str(error) for word in _FINAL):
                    raise
            self._sleep(pause_s)
        raise AssertionError  # the last pause is None

    def _once(self, words: tuple[str, ...]) -> str:
        name = f"scontrol {' '.join(words)}"
        try:
            done = subprocess.run(
                [self._program, *words],
                env=self._environ,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SlurmError(f"{name}: {error}") from error
        if done.returncode != 0:
            raise SlurmError(f"{name}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
        return done.stdout


def _least(text: str) -> int:
    """Return the lower end of ``2`` or ``2-4``."""
    return int(text.partition("-")[0])


def unix_s_of(text: str) -> float | None:
    """Return a time as scontrol prints it (s since the epoch, UTC); None: it says ``Unknown``, ``N/A`` or nothing."""
    try:
        return datetime.fromisoformat(text).timestamp()  # scontrol prints local time
    except ValueError:
        return None


MIN_AWAY_S: Final = 60.0
"""Shorter waits are spent inside the allocation (s): a requeue costs a prolog, an epilog and a place in the queue."""
SOON_S: Final = 15.0
"""The earliest start after a requeue (s): a start that has passed when the last process ends counts as none, and the
job starts after the life of a credential, 121 s (cred_expire of slurm.conf(5), 22.05)."""
RESERVE_S: Final = 120.0
"""How long before the end of the time limit a wait inside the allocation is given up (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How ranks lie in an allocation, kept from the job's first start."""

    ranks_per_node: int
    """0: the job did not ask for nodes, and its ranks lie wherever there is room."""
    task_a_rank: bool
    """A task is a rank (srun starts them); otherwise a task is a node (torchrun, one a node)."""

    @classmethod
    def of(cls, job: Job, ranks: int, *, by_node: bool) -> "Shape | None":
        """Return how ranks lie in a job.

        Args:
            job: The job.
            ranks: Number of ranks that fill the job.
            by_node: Whether the job asked for tasks a node.

        Returns:
            The shape; None where the ranks do not fill it evenly, or where GPUs were asked for the whole job: the size
            of such a job is left alone.
        """
        if job.per_job_gres or ranks % job.nodes or job.tasks not in (ranks, job.nodes):
            return None
        task_a_rank = job.tasks == ranks
        by_node = by_node or job.nodes > 1 or not task_a_rank
        return cls(ranks_per_node=ranks // job.nodes if by_node else 0, task_a_rank=task_a_rank)

    def ranks(self, job: Job) -> int:
        """Return how many ranks fill a job."""
        return job.tasks if self.task_a_rank else job.nodes * self.ranks_per_node

    def words(self, job: Job, ranks: int) -> tuple[str, ...] | None:
        """Return what scontrol is told for so many ranks; None where whole nodes do not give them."""
        if not self.ranks_per_node:
            return f"NumTasks={ranks}", f"NumCPUs={ranks * job.cpus_per_task}"
        nodes, rest = divmod(ranks, self.ranks_per_node)
        if rest:
            return None
        tasks = ranks if self.task_a_rank else nodes
        # A lone NumNodes=2 leaves the upper bound where it was, and a NumCPUs of a larger size cannot be placed.
        return f"NumNodes={nodes}-{nodes}", f"NumTasks={tasks}", f"NumCPUs={tasks * job.cpus_per_task}"


class SlurmWaiting:
    """Requeues the job it is in; see :class:`greentrain.control.launch.supervisor.Waiting`.

    Args:
        scontrol: Slurm.
        job_id: The job.
        handover: Files through which the launcher and the training talk, on a file system that all nodes see.
        local: Waits inside the allocation: short waits, and where Slurm does not let the job go.
        ranks: Number of ranks of the attempt that this allocation was made for.
        by_node: Whether the job asked for tasks a node.
        warn: Tells the user.
        min_away_s: Shortest wait that is worth a requeue (s).
        soon_s: Earliest start after a requeue (s).
        clock: Returns the time (s since the epoch).

    Raises:
        SlurmError: Slurm does not answer, or does not know the job.
    """

    def __init__(
        self,
        scontrol: Scontrol,
        job_id: str,
        handover: LauncherFiles,
        local: Waiting,
        *,
        ranks: int,
        by_node: bool = False,
        warn: Callable[[str], None] = never_raise.warn,
        min_away_s: float = MIN_AWAY_S,
        soon_s: float = SOON_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._scontrol, self._job_id, self._handover, self._local = scontrol, job_id, handover, local
        self._tell_once, self._min_away_s, self._soon_s, self._clock = never_raise.once(warn), min_away_s, soon_s, clock
        self._notice_ns = _written_ns(handover)
        self._job = scontrol.job(job_id)
        self.requeues = self._job.batch
        """Whether the job can be requeued; otherwise (salloc, srun) all waits are spent inside the allocation."""
        self.end_unix_s = self._job.end_unix_s
        """When the allocation ends (s since the epoch); None: it does not."""
        self._shape = _kept_shape(handover.folder / "slurm.json", job_id, self._job, ranks, by_node)
        self.ranks: int | None = None if self._shape is None else self._shape.ranks(self._job)
        """How many ranks fill this allocation; None where they do not fill it evenly, and its size is left alone."""

    def away(self, until_unix_s: float | None, ranks: int) -> bool:
        """Requeue the job for that time and size where it pays, or where the allocation is about to end."""
        size = self._size(ranks)
        now_s = self._clock()
        until_s = max(now_s, until_unix_s or 0.0)
        if self.requeues and (size or self._ending() or until_s - now_s >= self._min_away_s):
            if self._requeue(until_s, size):
                return True
            end_s = self.end_unix_s
            if end_s is not None and until_s > end_s - RESERVE_S and end_s - RESERVE_S > now_s:
                self._local.away(end_s - RESERVE_S, ranks)
                return self._requeue(until_s, size) or self._local.away(until_unix_s, ranks)
        return self._local.away(until_unix_s, ranks)

    def _size(self, ranks: int) -> tuple[str, ...]:
        if self._shape is None or ranks == self.ranks:
            return ()
        return self._shape.words(self._job, ranks) or ()

    def _ending(self) -> bool:
        """Return whether somebody has said that this allocation ends."""
        written_ns = _written_ns(self._handover)
        return written_ns is not None and written_ns != self._notice_ns  # that of an earlier allocation lies there too

    def _requeue(self, until_s: float, size: tuple[str, ...]) -> bool:
        # Slurm sends the SIGTERM of a requeue to all processes of the job; what is started here inherits the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._let_go()
            self._set_start(until_s, size)
            return True
        except SlurmError as error:
            self._tell_once(f"Slurm did not requeue the job ({error}), so it waits inside its allocation")
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _set_start(self, until_s: float, size: tuple[str, ...]) -> None:
        now_s = self._clock()
        wait_s = math.ceil(max(now_s + self._soon_s, until_s) - math.floor(now_s))  # Slurm's clock has no fractions
        start = f"StartTime=now+{wait_s}"  # relative: no time zone to get wrong
        for words in dict.fromkeys(((start, *size), (start,))):
            try:
                self._scontrol.ask("update", f"JobId={self._job_id}", *words)
                return
            except SlurmError as error:
                self._tell_once(f"Slurm requeued the job, but refused {' '.join(words)} ({error})")

    def _let_go(self) -> None:
        """Requeue the job, once, whatever is lost of the answer."""
        for _ in range(2):
            try:
                self._scontrol.ask("requeue", self._job_id)
                return
            except SlurmError as error:
                if self._scontrol.job(self._job_id).state not in ("RUNNING", "SUSPENDED"):
                    return  # it was heard, and only its answer was lost
                if "disabled" not in str(error):
                    raise
            # Submitted with --no-requeue, or the site has JobRequeue=0: the owner may say otherwise.
            self._scontrol.ask("update", f"JobId={self._job_id}", "Requeue=1")
        raise SlurmError(f"scontrol requeue {self._job_id}: disabled, and Requeue=1 did not help")


def open_slurm(
    environ: Mapping[str, str],
    handover: LauncherFiles,
    local: Waiting,
    *,
    ranks: int,
    min_away_s: float = MIN_AWAY_S,
    soon_s: float = SOON_S,
) -> SlurmWaiting | None:
    """Return the waiting room of the job of Slurm that this process supervises; None outside of one.

    Args:
        environ: Environment of this process.
        handover: Files through which the launcher and the training talk.
        local: Waits inside the allocation.
        ranks: Number of ranks of the next attempt.
        min_away_s: Shortest wait that is worth a requeue (s).
        soon_s: Earliest start after a requeue (s).

    Raises:
        ConfigError: There is no scontrol, Slurm does not know the job, or srun started more than one supervisor.
    """
    job_id = environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if environ.get("SLURM_STEP_ID") and tasks != "1":
        raise ConfigError(
            f"srun started {tasks} of greentrain launch (step {environ['SLURM_STEP_ID']} of job {job_id}); one"
            " supervises the whole job: write exec greentrain launch ... -- srun ... in the batch script"
        )
    scontrol = Scontrol.find(environ)
    try:
        return SlurmWaiting(
            scontrol,
            job_id,
            handover,
            local,
            ranks=ranks,
            by_node="SLURM_NTASKS_PER_NODE" in environ,
            min_away_s=min_away_s,
            soon_s=soon_s,
        )
    except SlurmError as error:
        raise ConfigError(
            f"SLURM_JOB_ID is {job_id!r}, but Slurm says: {error}. Unset SLURM_JOB_ID to wait inside the allocation"
        ) from error


def _written_ns(handover: LauncherFiles) -> int | None:
    """Return when the newest notice was written."""
    try:
        return (handover.folder / "notice.json").stat().st_mtime_ns
    except OSError:
        return None


def _kept_shape(path: Path, job_id: str, job: Job, ranks: int, by_node: bool) -> Shape | None:
    """Return the shape of the job's first start, which is noted there."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["job_id"] == job_id:
            return Shape(**kept["shape"])
    except (OSError, ValueError, TypeError, KeyError):
        pass
    shape = Shape.of(job, ranks, by_node=by_node)
    if shape is not None:
        with contextlib.suppress(OSError):
            path.write_text(json.dumps({"job_id": job_id, "shape": asdict(shape)}), encoding="utf-8")
    return shape
