"""Talking to Slurm through its own command, scontrol: there is no library that every site has."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from greentrain.errors import ConfigError, GreenTrainError

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
        environ: Its environment; None: ours.
        pauses_s: Before each repetition (s).
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
                end_unix_s=_unix_s(found.get("EndTime", "")),
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


def _unix_s(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()  # scontrol prints local time
    except ValueError:
        return None
