"""The schedulers that run a fleet's jobs: what they have, and to hold, release and resize it.

An engine is asked what is, each time anew, and told single things that may be told twice: whoever dies in between
does no harm.
"""

import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from greentrain.control.fleet.spec import TAG, FleetSpec
from greentrain.control.launch.slurm import Scontrol, Shape, SlurmError, unix_s_of
from greentrain.errors import ConfigError, GreenTrainError
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn_experimental


class EngineError(GreenTrainError):
    """The scheduler refused, or did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """A job, as its engine has it."""

    id: str
    name: str
    state: str
    """``queued``, ``held``, ``running``, ``ending``, ``stopped`` (by whom, the engine does not say), ``done``,
    ``failed``, ``cancelled``."""
    nodes: int
    """That it has, or asks for."""
    partition: str = ""
    user: str = ""
    tag: str = ""
    submit_s: float = 0.0
    """(s since the epoch, UTC)."""
    start_s: float | None = None
    """Of what runs (s since the epoch, UTC)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """What an engine has."""

    jobs: Sequence[EngineJob]
    nodes_up: Mapping[str, int] = field(default_factory=dict)
    """Nodes that work, by partition; a partition that is not there: all of them, as far as anybody knows."""
    taken: Mapping[str, int] = field(default_factory=dict)
    """Nodes that jobs have which are not of the fleet, by partition."""


class Engine(Protocol):
    """A scheduler. Each method raises EngineError where it refuses or does not answer."""

    def look(self) -> EngineView:
        """Return what it has."""

    def hold(self, job: EngineJob) -> None:
        """Keep a job from starting; end it first where it runs, so that it can be brought back."""

    def release(self, job: EngineJob, nodes: int, partition: str) -> None:
        """Let a job that is held start, on so many nodes of a partition."""


class Declared:
    """The jobs of fleet.yaml as if they had been submitted now; nothing runs them: for a plan without an engine.

    Args:
        spec: The fleet.
    """

    def __init__(self, spec: FleetSpec) -> None:
        pool = spec.pools[0]
        widths = [(job, job.widths or (1, 1)) for job in spec.jobs]
        self._jobs = [
            EngineJob(
                id=job.name, name=job.name, state="held", nodes=most, partition=pool.partition or pool.name,
                submit_s=time.time(),
            )
            for job, (_, most) in widths
        ]  # fmt: skip

    def look(self) -> EngineView:
        """Return them."""
        return EngineView(jobs=self._jobs)

    def hold(self, job: EngineJob) -> None:
        """Do nothing."""

    def release(self, job: EngineJob, nodes: int, partition: str) -> None:
        """Do nothing."""


def open_engine(spec: FleetSpec) -> Engine:
    """Return the engine of a fleet.

    Raises:
        ConfigError: Its programs are not here.
        MissingExtraError: Its client is not installed.
    """
    kinds: Mapping[str, Callable[[FleetSpec], Engine]] = {"slurm": Slurm.open, "kueue": Kueue.open, "ray": Ray.open}
    return kinds[spec.engine.kind](spec)


# -- Slurm -----------------------------------------------------------------------------------------------------


_KEY: Final = re.compile(r"(?:^|\s)([A-Za-z/:]+)=(\S*)")
_HELD: Final = ("JobHeldUser", "JobHeldAdmin", "job_requeued_in_held_state")
"""Reasons of a job that waits for a release (job_reason_codes of squeue(1), 22.05)."""
_STATES: Final[Mapping[str, str]] = {
    "PENDING": "queued", "RUNNING": "running", "SUSPENDED": "running", "CONFIGURING": "running", "RESIZING": "running",
    "COMPLETING": "ending", "SIGNALING": "running", "STAGE_OUT": "ending", "REQUEUED": "ending",
    "REQUEUE_HOLD": "held", "REQUEUE_FED": "ending", "STOPPED": "running", "SPECIAL_EXIT": "held", "COMPLETED": "done",
    "CANCELLED": "cancelled",
}  # fmt: skip
"""JOB STATE CODES of squeue(1), 22.05; all others are failures."""
_DOWN: Final = re.compile(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|MAINT|POWERED_DOWN|FUTURE")
"""NODE STATE CODES of sinfo(1), 22.05, in which nothing starts."""


class Slurm:
    """Slurm by scontrol; who runs it must be an operator of Slurm, or the jobs' own user.

    Args:
        scontrol: Slurm.
        declared: Names and ids of jobs that are of the fleet without a tag.
    """

    def __init__(self, scontrol: Scontrol, declared: Collection[str] = ()) -> None:
        self._scontrol, self._declared = scontrol, declared

    @classmethod
    def open(cls, spec: FleetSpec) -> "Slurm":
        """Return that of this machine."""
        program = shutil.which("scontrol")
        if program is None:
            raise ConfigError("engine.kind is 'slurm', and scontrol is not on PATH: load the site's module of Slurm")
        return cls(Scontrol(program, pauses_s=(0.5, 2.0)), {job.name for job in spec.jobs})

    def look(self) -> EngineView:
        """Return all jobs of the fleet, arrays left out, and the nodes that work."""
        jobs, taken = [], dict[str, int]()
        for line in self._ask("show", "job", "--oneliner").splitlines():
            found = dict(_KEY.findall(line))
            if not found.get("JobId", "").isdigit() or "ArrayJobId" in found:
                continue
            job = _slurm_job(found)
            if job.tag or {job.id, job.name} & set(self._declared):
                jobs.append(job)
            elif job.state in ("running", "ending"):
                taken[job.partition] = taken.get(job.partition, 0) + job.nodes
        up: dict[str, int] = {}
        for line in self._ask("show", "node", "--oneliner").splitlines():
            found = dict(_KEY.findall(line))
            for partition in filter(None, found.get("Partitions", "").split(",")):
                up[partition] = up.get(partition, 0) + (not _DOWN.search(found.get("State", "DOWN")))
        return EngineView(jobs=jobs, nodes_up=up, taken=taken)

    def hold(self, job: EngineJob) -> None:
        """Hold what waits; requeue and hold what runs, which gets SIGTERM and KillWait to write its checkpoint."""
        if job.state != "running":
            self._ask("hold", job.id)
            return
        try:
            self._ask("requeuehold", job.id)
        except EngineError as error:
            if "disabled" not in str(error):
                raise
            self._ask("update", f"JobId={job.id}", "Requeue=1")  # submitted with --no-requeue, but it says restart=yes
            self._ask("requeuehold", job.id)

    def release(self, job: EngineJob, nodes: int, partition: str) -> None:
        """Set size and partition where they differ, and release."""
        words = [f"Partition={partition}"] if partition != job.partition else []
        if nodes != job.nodes:
            try:
                now = self._scontrol.job(job.id)
            except SlurmError as error:
                raise EngineError(str(error)) from error
            shape = Shape.of(now, now.tasks, by_node=True)
            size = None if shape is None else shape.words(now, max(1, shape.ranks_per_node) * nodes)
            if size is None:
                raise EngineError(f"job {job.id} asked for GPUs of the whole job, so its size cannot change")
            words += size
        if words:
            self._ask("update", f"JobId={job.id}", *words)
        # After a requeue it would wait for the life of a credential, 121 s (cred_expire of slurm.conf(5), 22.05).
        self._ask("update", f"JobId={job.id}", "StartTime=now+1")
        self._ask("release", job.id)

    def _ask(self, *words: str) -> str:
        try:
            return self._scontrol.ask(*words)
        except SlurmError as error:
            raise EngineError(str(error)) from error


def _slurm_job(found: Mapping[str, str]) -> EngineJob:
    state = _STATES.get(found.get("JobState", ""), "failed")
    if state == "queued" and found.get("Reason") in _HELD:
        state = "held"
    if state == "queued" and found.get("Reason") == "BeginTime" and found.get("Restarts", "0") != "0":
        state = "held"  # requeued, and asleep for the life of a credential
    tag = found.get("Comment", "")
    start_s = unix_s_of(found.get("StartTime", "")) if state == "running" else None
    return EngineJob(
        id=found["JobId"],
        name=found.get("JobName", ""),
        state=state,
        nodes=int(found.get("NumNodes", "1").partition("-")[0] or 1),
        partition=found.get("Partition", ""),
        user=found.get("UserId", "").partition("(")[0],
        tag=tag if tag.startswith(TAG) else "",
        submit_s=unix_s_of(found.get("SubmitTime", "")) or time.time(),
        start_s=start_s,
    )


# -- Kubernetes ------------------------------------------------------------------------------------------------


SELECTOR: Final = "greentrain.fleet"
"""Label of Jobs that are of the fleet, whatever its value."""
ANNOTATION: Final = "greentrain.fleet/job"
"""Their terms."""
POOL_LABEL: Final = "greentrain.fleet/pool"


class Kueue:
    """Jobs of Kubernetes: suspended, or each in a LocalQueue of Kueue of its own that is stopped.

    Experimental: it ran against an imitated API server, never on a cluster (docs/status.md).

    Args:
        namespace: Of the Jobs.
        connection: The client.
    """

    def __init__(self, namespace: str, connection: Any) -> None:
        from kubernetes import client

        self._namespace, self._connection, self._api = namespace, connection, client.BatchV1Api(connection)

    @classmethod
    def open(cls, spec: FleetSpec) -> "Kueue":
        """Return that of the pod's ServiceAccount, or of the kubeconfig."""
        from greentrain.control.launch.kubernetes import connect

        return cls(spec.engine.namespace, connect())

    def look(self) -> EngineView:
        """Return all Jobs with the label."""
        try:
            found = self._api.list_namespaced_job(self._namespace, label_selector=SELECTOR, _request_timeout=30.0)
        except Exception as error:  # of the client, or of urllib3
            raise EngineError(f"list jobs {self._namespace}: {' '.join(str(error).split())[:300]}") from error
        return EngineView(jobs=[self._seen(job) for job in found.items])

    def _seen(self, job: Any) -> EngineJob:
        meta, name = job.metadata, job.metadata.name
        view = self._told(name, lambda one: one.look())
        states = {"Complete": "done", "Failed": "failed"}
        state = ("running" if view.pods else "queued") if view.going else ("ending" if view.pods else "held")
        return EngineJob(
            id=name,
            name=name,
            state=state if view.outcome is None else states[view.outcome],
            nodes=view.width,
            partition=(meta.labels or {}).get(POOL_LABEL, ""),
            tag=TAG + (meta.annotations or {}).get(ANNOTATION, ""),
            submit_s=view.created_unix_s,
            start_s=None if job.status.start_time is None else job.status.start_time.timestamp(),
        )

    def hold(self, job: EngineJob) -> None:
        """Suspend it; its pods get their preStop hook and grace period."""
        self._told(job.id, lambda one: one.go(one.look(), False))

    def release(self, job: EngineJob, nodes: int, partition: str) -> None:
        """Set the number of its pods where it differs, and resume it."""
        if partition != job.partition:
            raise EngineError(f"Job {job.id} lies in pool {job.partition!r}; Kubernetes moves none: start it there")

        def go(one: Any) -> None:
            view = one.look()
            if nodes != view.width:
                if view.pods or not view.elastic:
                    raise EngineError(f"Job {job.id} keeps its {view.width} pods: they still end, or it is not elastic")
                one.resize(nodes)
            one.go(view, True)

        self._told(job.id, go)

    def _told(self, name: str, do: Callable[[Any], Any]) -> Any:
        from greentrain.control.launch.kubernetes import KubernetesError, KubernetesJob

        try:
            return do(KubernetesJob(self._namespace, name, connection=self._connection, pauses_s=(0.5, 2.0)))
        except (KubernetesError, ConfigError) as error:
            raise EngineError(str(error)) from error


# -- Ray -------------------------------------------------------------------------------------------------------


class Ray:
    """Jobs of Ray's job server. Ray holds none: what is held is stopped, and submitted again under a new id.

    What was asked for its entry point (num_gpus, resources) Ray does not tell, so it is not asked for again.
    Experimental: it ran against an imitated server, never on a cluster (docs/status.md).

    Args:
        client: Of the server.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._newest: dict[str, tuple[int, Any]] = {}

    @classmethod
    def open(cls, spec: FleetSpec) -> "Ray":
        """Return that of an address."""
        with try_import("ray") as imports:
            from ray.job_submission import JobSubmissionClient
        imports.check()
        warn_experimental("a fleet on Ray", "it ran against an imitated job server, never on a cluster")
        try:
            return cls(JobSubmissionClient(spec.engine.address))
        except Exception as error:  # ConnectionError, RuntimeError: whatever its server answers
            raise ConfigError(
                f"engine.address is {spec.engine.address!r}, and no Ray answers there: {error}"
            ) from error

    def look(self) -> EngineView:
        """Return all jobs with the metadata ``greentrain``; of one that was brought back the newest attempt counts."""
        newest: dict[str, tuple[int, Any]] = {}
        for job in self._ask(lambda: self._client.list_jobs()):
            if not job.submission_id or "greentrain" not in (job.metadata or {}):
                continue
            base, _, nth = job.submission_id.partition("~")
            number = int(nth) if nth.isdigit() else 0
            if number >= newest.get(base, (-1, None))[0]:
                newest[base] = number, job
        self._newest = newest
        states = {"PENDING": "queued", "RUNNING": "running", "STOPPED": "stopped", "SUCCEEDED": "done"}
        jobs = []
        for base, (_, job) in newest.items():
            meta = job.metadata
            start_s = (job.start_time or 0) / 1000
            jobs.append(
                EngineJob(
                    id=base,
                    name=meta.get("name", base),
                    state=states.get(str(job.status), "failed"),
                    nodes=int(meta.get("nodes", "1")),
                    partition=meta.get("pool", ""),
                    tag=TAG + meta["greentrain"].removeprefix(TAG),
                    submit_s=start_s,
                    start_s=start_s,
                )
            )
        return EngineView(jobs=jobs)

    def hold(self, job: EngineJob) -> None:
        """Stop it: SIGTERM, and SIGKILL after RAY_JOB_STOP_WAIT_TIME_S."""
        if job.state not in ("stopped", "held"):
            self._ask(lambda: self._client.stop_job(self._newest[job.id][1].submission_id))

    def release(self, job: EngineJob, nodes: int, partition: str) -> None:
        """Submit it again; an id is taken once, so that nothing is submitted twice."""
        number, last = self._newest[job.id]
        if nodes != job.nodes or partition != job.partition:
            raise EngineError(f"Ray's job {job.id} keeps its {job.nodes} nodes of {job.partition!r}")
        self._ask(
            lambda: self._client.submit_job(
                entrypoint=last.entrypoint,
                submission_id=f"{job.id}~{number + 1}",
                runtime_env=last.runtime_env,
                metadata=last.metadata,
            )
        )

    def _ask(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except Exception as error:  # RuntimeError, ConnectionError, whatever requests raises
            raise EngineError(f"Ray: {' '.join(str(error).split())[:300]}") from error
