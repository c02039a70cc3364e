"""Waiting outside the allocation, with Slurm's own daemons."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.slurm_cluster import NOBODY, ROOT, Cluster, cluster, python_of

JOB = ROOT / "tests" / "launch" / "slurm_job.py"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster() as found:
        yield found


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


def test_an_ordinary_user_waits_outside_the_allocation(slurm: Cluster, shared: Path) -> None:
    job_id = slurm.submit(shared, f"exec {python_of(NOBODY)} {JOB} {shared} 1 3:1 0.5:1", uid=NOBODY)
    slurm.wait(job_id, "PENDING")
    found = slurm.wait(job_id, "COMPLETED")
    assert found["Restarts"] == "1"
    (first, second), until = lines(shared, "start"), lines(shared, "until")[0]
    assert float(first[0]) < float(until[0]) <= float(second[0]) < float(until[0]) + 3.0
    assert [away for (away,) in lines(shared, "away")] == ["True", "False"]  # the second wait is too short to leave
    assert second[1] == "1"
    assert not lines(shared, "warn")
