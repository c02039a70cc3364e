"""A scheduler that does what it is told at once, and notes it."""

from dataclasses import replace

from greentrain.control.fleet.engines import EngineError, EngineJob, EngineView


class FakeEngine:
    """Jobs that start when they are released, in the order of release, while there are nodes.

    Args:
        nodes: Of its one partition.
        jobs: Jobs at the start.
    """

    def __init__(self, nodes: int, *jobs: EngineJob) -> None:
        self.nodes, self.jobs = nodes, {job.id: job for job in jobs}
        self.told: list[tuple[str, str]] = []
        self.taken: dict[str, int] = {}
        self.broken = ""
        self.now_s = 0.0

    def look(self) -> EngineView:
        if self.broken:
            raise EngineError(self.broken)
        return EngineView(jobs=list(self.jobs.values()), nodes_up={"gpu": self.nodes}, taken=self.taken)

    def hold(self, job: EngineJob) -> None:
        self.told.append(("hold", job.id))
        self.jobs[job.id] = replace(self.jobs[job.id], state="held", start_s=None)

    def release(self, job: EngineJob, nodes: int, partition: str) -> None:
        self.told.append(("release", job.id))
        self.jobs[job.id] = replace(
            self.jobs[job.id], state="running", nodes=nodes, partition=partition, start_s=self.now_s
        )

    def end(self, job_id: str) -> None:
        self.jobs[job_id] = replace(self.jobs[job_id], state="done")
