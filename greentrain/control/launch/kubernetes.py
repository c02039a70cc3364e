"""One Job of Kubernetes, suspended, resumed and resized from a controller pod beside it.

A Job's ``spec.suspend`` ends its pods, with their preStop hook and grace period, and gives the nodes back; resuming
starts new ones (kubernetes.io/docs/concepts/workloads/controllers/job/, "Suspending a Job", 2026-11-21). Where the Job
has a label of Kueue, ``spec.suspend`` belongs to Kueue: what we change then is the ``stopPolicy`` of a LocalQueue that
is this Job's own (kueue.sigs.k8s.io/docs/concepts/local_queue/, v0.19, 2026-11-21). Rejected there: ``spec.active`` of
the Workload, whose name holds a hash of the Job's uid, so that no Role can name it before.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from greentrain.control.launch import kubernetes_api as api
from greentrain.errors import ConfigError
from greentrain.utils.imports import try_import

with try_import("kubernetes") as _imports:
    from kubernetes import client

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
ELASTIC_ANNOTATION: Final = "kueue.x-k8s.io/elastic-job"
"""Both of Kueue v0.19 (pkg/controller/constants, docs/concepts/elastic_workload)."""
OWN_QUEUE_LABEL: Final = "greentrain-job"
"""Label of a LocalQueue that says whose it is: to stop a queue ends all that is in it."""
KUEUE: Final = "kueue.x-k8s.io"
KUEUE_VERSIONS: Final = ("v1beta2", "v1beta1")
"""v0.19 serves both; an older Kueue the second alone."""
STOPPED: Final = "HoldAndDrain"
GOES: Final = "None"
TIMEOUT_S: Final = 30.0
"""Of one request (s)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A Job, as far as it matters here."""

    going: bool
    """Whether it may have pods, as far as we are concerned: Kueue may still hold it."""
    width: int
    """Pods at a time."""
    ranks_per_pod: int
    """GPUs of a pod; 1 where it has none."""
    elastic: bool
    """Whether that number may change: an Indexed Job with as many completions, and in Kueue an elastic one."""
    pods: int
    """That run, wait to run, or end."""
    queue: str | None
    """Kueue's LocalQueue; None: Kueue has nothing to do with it."""
    created_unix_s: float
    """When it was made (s since the epoch): its deadline counts from there."""
    outcome: str | None
    """``Complete`` or ``Failed``; None: it goes on."""


class KubernetesJob:
    """Suspends, resumes and resizes one Job. Its methods raise KubernetesError where Kubernetes does not do it.

    Experimental: it ran against an imitated API server, never on a cluster (docs/status.md).

    Args:
        namespace: Of the Job.
        name: Of the Job.
        connection: The client; None: that of the pod we are in, or of the kubeconfig.
        pauses_s: Before each repetition of a request that failed (s).
        sleep: Sleeps so many seconds.

    Raises:
        MissingExtraError: The client is not installed.
        ConfigError: There is neither a ServiceAccount nor a kubeconfig.
    """

    def __init__(
        self,
        namespace: str,
        name: str,
        *,
        connection: "client.ApiClient | None" = None,
        pauses_s: tuple[float, ...] = api.PAUSES_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        _imports.check()
        self.namespace, self.name = namespace, name
        self._pauses_s, self._sleep = pauses_s, sleep
        connection = api.connect() if connection is None else connection
        self._jobs = client.BatchV1Api(connection)
        self._custom = client.CustomObjectsApi(connection)
        self._kueue_version: str | None = None

    def look(self) -> JobView:
        """Return the Job as it is.

        Raises:
            ConfigError: It lies in a LocalQueue of Kueue that is not its own.
        """
        job: Any = self._ask(
            "get",
            "batch",
            "jobs",
            self.name,
            lambda: self._jobs.read_namespaced_job(self.name, self.namespace, _request_timeout=TIMEOUT_S),
        )
        spec, status = job.spec, job.status
        queue = (job.metadata.labels or {}).get(QUEUE_LABEL)
        width = 1 if spec.parallelism is None else spec.parallelism
        may_scale = queue is None or (job.metadata.annotations or {}).get(ELASTIC_ANNOTATION) == "true"
        ends = [c.type for c in status.conditions or () if c.status == "True" and c.type in ("Complete", "Failed")]
        return JobView(
            going=not spec.suspend if queue is None else self._queue_goes(queue),
            width=width,
            ranks_per_pod=max(1, sum(map(_gpus, spec.template.spec.containers))),
            elastic=may_scale and spec.completion_mode == "Indexed" and spec.completions == width,
            pods=(status.active or 0) + (status.terminating or 0),
            queue=queue,
            created_unix_s=job.metadata.creation_timestamp.timestamp(),
            outcome=ends[0] if ends else None,
        )

    def check(self) -> JobView:
        """Return the Job, once it is sure that what the methods below do is allowed.

        Raises:
            ConfigError: It lies in a LocalQueue of Kueue that is not its own.
        """
        view = self.look()
        if view.queue is None:
            self._patch_job({"suspend": not view.going}, dry_run="All")
        else:
            self._patch_queue(view.queue, {"stopPolicy": GOES if view.going else STOPPED}, dry_run="All")
            self._patch_job({"parallelism": view.width}, dry_run="All")
        return view

    def go(self, view: JobView, going: bool) -> None:
        """Let it have pods, or end them after their grace period."""
        if view.queue is None:
            self._patch_job({"suspend": not going})
        else:
            self._patch_queue(view.queue, {"stopPolicy": GOES if going else STOPPED})

    def resize(self, pods: int) -> None:
        """Set the number of pods, and of completions with it (KEP-3715, stable in Kubernetes 1.31)."""
        self._patch_job({"parallelism": pods, "completions": pods})

    def _patch_job(self, spec: dict[str, Any], dry_run: str | None = None) -> None:
        self._ask(
            "patch",
            "batch",
            "jobs",
            self.name,
            lambda: self._jobs.patch_namespaced_job(
                self.name,
                self.namespace,
                _json_patch(spec),
                field_manager="greentrain",
                field_validation="Strict",
                dry_run=dry_run,
                _request_timeout=TIMEOUT_S,
            ),
        )

    def _patch_queue(self, queue: str, spec: dict[str, Any], dry_run: str | None = None) -> None:
        self._ask(
            "patch",
            KUEUE,
            "localqueues",
            queue,
            lambda: self._custom.patch_namespaced_custom_object(
                KUEUE,
                self._kueue_version or KUEUE_VERSIONS[0],
                self.namespace,
                "localqueues",
                queue,
                {"spec": spec},  # the client sends patches of custom objects as merge patches
                field_manager="greentrain",
                field_validation="Strict",
                dry_run=dry_run,
                _request_timeout=TIMEOUT_S,
            ),
        )

    def _queue_goes(self, queue: str) -> bool:
        found = self._read_queue(queue)
        labels = (found.get("metadata") or {}).get("labels") or {}
        if labels.get(OWN_QUEUE_LABEL) != self.name:
            raise ConfigError(
                f"Job {self.namespace}/{self.name} lies in Kueue's LocalQueue {queue!r}, whose label {OWN_QUEUE_LABEL}"
                f" is {labels.get(OWN_QUEUE_LABEL)!r}: to pause the Job its queue is stopped, with all that is in it."
                f" Give the Job a LocalQueue of its own with the label {OWN_QUEUE_LABEL}: {self.name}, as"
                " recipes/kubernetes/kueue.yaml does"
            )
        return bool((found.get("spec") or {}).get("stopPolicy", GOES) == GOES)

    def _read_queue(self, queue: str) -> dict[str, Any]:
        versions = KUEUE_VERSIONS if self._kueue_version is None else (self._kueue_version,)

        def read() -> dict[str, Any]:
            found: Any = self._custom.get_namespaced_custom_object(
                KUEUE, version, self.namespace, "localqueues", queue, _request_timeout=TIMEOUT_S
            )
            return dict(found)

        for version in versions:
            try:
                found = self._ask("get", KUEUE, "localqueues", queue, read)
            except api.GoneError:
                if version == versions[-1]:
                    raise
                continue  # an older Kueue
            self._kueue_version = version
            return found
        raise AssertionError  # the last version is returned or raised

    def _ask(self, verb: str, group: str, resource: str, name: str, request: Callable[[], T]) -> T:
        return api.insist(
            request,
            verb=verb,
            group=group,
            resource=resource,
            namespace=self.namespace,
            name=name,
            pauses_s=self._pauses_s,
            sleep=self._sleep,
        )


def _json_patch(spec: dict[str, Any]) -> Any:
    """Return a JSON Patch (RFC 6902) that sets fields of a spec: a list, which clients from 31 on send as one."""
    return [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]


def _gpus(container: Any) -> int:
    """Return how many GPUs a container asks for, of any vendor (nvidia.com/gpu, amd.com/gpu)."""
    limits = (container.resources.limits or {}) if container.resources else {}
    return sum(int(count) for resource, count in limits.items() if resource.endswith("/gpu"))
