"""``greentrain launch --kubernetes``: one Job of Kubernetes, suspended, resumed and resized from a pod beside it.

A Job's ``spec.suspend`` ends its pods, with their preStop hook and grace period, and gives the nodes back; resuming
starts new ones (kubernetes.io/docs/concepts/workloads/controllers/job/, "Suspending a Job", 2026-11-21). Where the Job
has a label of Kueue, ``spec.suspend`` belongs to Kueue: what we change then is the ``stopPolicy`` of a LocalQueue that
is this Job's own (kueue.sigs.k8s.io/docs/concepts/local_queue/, v0.19, 2026-11-21). Rejected there: ``spec.active`` of
the Workload, whose name holds a hash of the Job's uid, so that no Role can name it before.

Requests are made again while that may help, and say what is missing where it does not.
"""

import functools
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from greentrain.config.schema import GreenConfig
from greentrain.control.launch.runners import STOP, SignalQueue
from greentrain.control.launch.start_window import REMEDY, GreenWindow
from greentrain.control.launcher_protocol import LauncherFiles
from greentrain.errors import ConfigError, GreenTrainError
from greentrain.utils.files import replace_file
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn_experimental

with try_import("kubernetes") as _imports:
    from kubernetes import client
    from kubernetes import config as settings
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Before each repetition of a request that failed (s)."""
LONGEST_PAUSE_S: Final = 60.0
"""What a server may ask for with Retry-After (s)."""

T = TypeVar("T")


class KubernetesError(GreenTrainError):
    """Kubernetes did not answer, or refused."""


class ForbiddenError(KubernetesError):
    """The ServiceAccount may not do that; the message names the rule that it lacks."""


class GoneError(KubernetesError):
    """What the request is about is not there."""


def connect() -> "client.ApiClient":
    """Return the client of the pod's ServiceAccount, or of the kubeconfig outside of a pod.

    Raises:
        MissingExtraError: The client is not installed.
        ConfigError: Neither is at hand.
    """
    _imports.check()
    configuration = client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            settings.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            path = os.environ.get("KUBECONFIG")  # the client looks at it when it is imported, which may be earlier
            settings.load_kube_config(path, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except settings.ConfigException as error:
        raise ConfigError(
            f"Kubernetes cannot be reached: {error}. In a pod name its serviceAccountName; elsewhere set KUBECONFIG, or"
            " write ~/.kube/config"
        ) from error
    if urlsplit(configuration.host).hostname not in ("127.0.0.1", "localhost", "::1"):
        warn_experimental("following a Job of Kubernetes", "it ran against an imitated API server, never on a cluster")
    return client.ApiClient(configuration)


def _message(error: Any) -> str:
    """Return the message of the v1 Status that comes with a refusal."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


def _retry_after_s(error: Any) -> float:
    try:
        return min(LONGEST_PAUSE_S, float(error.headers["Retry-After"]))
    except (TypeError, KeyError, ValueError):
        return 0.0


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
_STRICT: Final[Any] = {"field_manager": "greentrain", "field_validation": "Strict", "_request_timeout": TIMEOUT_S}
"""With each change: a field that is none is refused."""


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
        namespace: Namespace of the Job.
        name: Name of the Job.
        connection: The client; None: that of the pod we are in, or of the kubeconfig.
        pauses_s: Pauses before each repetition of a request that failed (s).
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
        pauses_s: tuple[float, ...] = PAUSES_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.namespace, self.name = namespace, name
        self._pauses_s, self._sleep = pauses_s, sleep
        connection = connect() if connection is None else connection
        self._jobs = client.BatchV1Api(connection)
        self._custom = client.CustomObjectsApi(connection)
        self._kueue_version: str | None = None

    def look(self) -> JobView:
        """Return the Job as it is.

        Raises:
            ConfigError: It lies in a LocalQueue of Kueue that is not its own.
        """
        read = functools.partial(self._jobs.read_namespaced_job, self.name, self.namespace, _request_timeout=TIMEOUT_S)
        job: Any = self._ask("get", "batch", "jobs", self.name, read)
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
        self.go(view, view.going, dry_run="All")
        if view.queue is not None:
            self._patch_job({"parallelism": view.width}, dry_run="All")
        return view

    def go(self, view: JobView, going: bool, dry_run: str | None = None) -> None:
        """Let it have pods, or end them after their grace period; ``All`` as dry_run only asks whether that may be."""
        if view.queue is None:
            self._patch_job({"suspend": not going}, dry_run)
        else:
            self._patch_queue(view.queue, {"stopPolicy": GOES if going else STOPPED}, dry_run)

    def resize(self, pods: int) -> None:
        """Set the number of pods, and of completions with it (KEP-3715, stable in Kubernetes 1.31)."""
        self._patch_job({"parallelism": pods, "completions": pods})

    def _patch_job(self, spec: dict[str, Any], dry_run: str | None = None) -> None:
        what = self.name, self.namespace, _json_patch(spec)
        patch = functools.partial(self._jobs.patch_namespaced_job, *what, dry_run=dry_run, **_STRICT)
        self._ask("patch", "batch", "jobs", self.name, patch)

    def _patch_queue(self, queue: str, spec: dict[str, Any], dry_run: str | None = None) -> None:
        where = KUEUE, self._kueue_version or KUEUE_VERSIONS[0], self.namespace, "localqueues", queue
        body = {"spec": spec}  # the client sends patches of custom objects as merge patches
        change = self._custom.patch_namespaced_custom_object
        patch = functools.partial(change, *where, body, dry_run=dry_run, **_STRICT)
        self._ask("patch", KUEUE, "localqueues", queue, patch)

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
        read = self._custom.get_namespaced_custom_object
        for version in versions:
            where = KUEUE, version, self.namespace, "localqueues", queue
            request = functools.partial(read, *where, _request_timeout=TIMEOUT_S)
            try:
                found: Any = self._ask("get", KUEUE, "localqueues", queue, request)
            except GoneError:
                if version == versions[-1]:
                    raise
                continue  # an older Kueue
            self._kueue_version = version
            return dict(found)
        raise AssertionError  # the last version is returned or raised

    def _ask(self, verb: str, group: str, resource: str, name: str, request: Callable[[], T]) -> T:
        """Return what a request returns, made again after 409, 429, 5xx and broken connections.

        Raises:
            ForbiddenError: The right to the verb is missing.
            GoneError: There is no such thing.
            KubernetesError: It was refused otherwise, or nobody answers.
        """
        what = f"{verb} {resource} {self.namespace}/{name}"
        cause: Exception
        for pause_s in (*self._pauses_s, None):
            asked_s = 0.0
            try:
                return request()
            except ApiException as error:
                said, cause = f"{what}: {error.status} {_message(error)}", error
                if error.status in (401, 403):
                    raise ForbiddenError(
                        f"{said}. Let a Role in namespace {self.namespace} give the ServiceAccount the rule"
                        f' {{apiGroups: ["{group}"], resources: ["{resource}"], resourceNames: ["{name}"],'
                        ' verbs: ["get", "patch"]}, as recipes/kubernetes/rbac.yaml does'
                    ) from error
                if error.status == 404:
                    raise GoneError(f"{said}. Create it first, or name another one") from error
                if error.status not in (0, 409, 429, None) and error.status < 500:
                    raise KubernetesError(said) from error
                asked_s = _retry_after_s(error)
            except (HTTPError, OSError) as error:
                said, cause = f"{what}: {error}", error
            if pause_s is None:
                raise KubernetesError(f"{said}; asked {len(self._pauses_s) + 1} times") from cause
            self._sleep(max(pause_s, asked_s))
        raise AssertionError  # the last pause is None


def _json_patch(spec: dict[str, Any]) -> Any:
    """Return a JSON Patch (RFC 6902) that sets fields of a spec: a list, which clients from 31 on send as one."""
    return [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]


def _gpus(container: Any) -> int:
    """Return how many GPUs a container asks for, of any vendor (nvidia.com/gpu, amd.com/gpu)."""
    limits = (container.resources.limits or {}) if container.resources else {}
    return sum(int(count) for resource, count in limits.items() if resource.endswith("/gpu"))


LOOK_S: Final = 60.0
"""How often the Job is looked at, between decisions too: it may have ended (s)."""
DRAIN_S: Final = 2.0
"""How often it is looked at while its pods end (s)."""
PODS_FILE: Final = "pods"
"""File in the shared folder that tells the pods how many they are: a pod's environment cannot."""


class KubernetesControl:
    """Follows a plan with one Job, until the Job has ended.

    A change of width is a suspend, the change, and a resume: all pods start from one checkpoint and know their number.

    Args:
        job: The Job.
        wanted: Returns what the plan wants, as :meth:`PlanWanted.wanted` does.
        tell: Shows a line to people.
        folder: Shared with the pods, for PODS_FILE; None: the width does not change.
        wait: Waits so many seconds; returns True where somebody wants the loop to end.
        clock: Returns the time (s since the epoch).
    """

    def __init__(
        self,
        job: KubernetesJob,
        wanted: Callable[[float], tuple[bool, int, float]],
        *,
        tell: Callable[[str], None],
        folder: Path | None,
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._job, self._wanted, self._tell, self._folder = job, wanted, tell, folder
        self._wait, self._clock = wait, clock
        self._said = ""

    def run(self) -> int:
        """Follow it.

        Returns:
            0 when the Job is complete, 1 when it has failed, 143 where somebody wanted the loop to end.

        Raises:
            KubernetesError: The Job cannot be read or changed at the start; later that is a line, and another try.
            ConfigError: It lies in a queue that is not its own.
        """
        view = self._job.check()
        self._note_pods(view.width)
        while True:
            try:
                code, next_s = self._turn()
            except GoneError as error:
                self._tell_new(f"the Job is gone, nothing is left to do ({error})")
                return 0
            except (KubernetesError, ConfigError) as error:
                self._tell_new(f"{error}; the Job stays as it is, asked again in {LOOK_S:.0f} s")
                code, next_s = None, self._clock() + LOOK_S
            if code is not None:
                return code
            if self._wait(max(0.0, min(LOOK_S, next_s - self._clock()))):
                return 128 + signal.SIGTERM

    def _turn(self) -> tuple[int | None, float]:
        """Look and act once; return an exit code and when to come again (s since the epoch)."""
        view = self._job.look()
        if view.outcome is not None:
            self._tell_new(f"the Job has ended: {view.outcome}")
            return (0 if view.outcome == "Complete" else 1), 0.0
        now_s = self._clock()
        on, ranks, next_s = self._wanted(now_s)
        pods, why_not = self._pods(view, ranks)
        if why_not and on:
            self._tell_new(f"the plan wants {ranks} ranks, but the Job keeps its {view.width} pods: {why_not}")
        resized = on and pods != view.width
        if view.going and (not on or resized):
            self._job.go(view, False)
            self._tell(f"suspended{f', to go on with {pods} pods' if resized else ''}")
            view = self._job.look()
        if resized:
            if view.pods:
                return None, now_s + DRAIN_S  # they still end
            self._note_pods(pods)
            self._job.resize(pods)
        if on and (resized or not view.going):
            self._job.go(view, True)
            self._tell(f"resumed with {pods} pods")
        return None, next_s

    def _pods(self, view: JobView, ranks: int) -> tuple[int, str]:
        """Return how many pods the Job gets, and why it does not get as many as are wanted (empty: it does)."""
        pods, rest = divmod(ranks, view.ranks_per_pod)
        if (pods, rest) == (view.width, 0):
            return pods, ""
        if rest:
            return view.width, f"a pod has {view.ranks_per_pod}"
        if not view.elastic:
            kueue = f", with the annotation {ELASTIC_ANNOTATION}: 'true'" if view.queue else ""
            return view.width, f"it is not Indexed with as many completions as pods at a time{kueue}"
        if self._folder is None:
            return view.width, "no folder is shared with its pods, which must know their number"
        return pods, ""

    def _note_pods(self, pods: int) -> None:
        if self._folder is None:
            return
        try:
            replace_file(self._folder / PODS_FILE, f"{pods}\n".encode())
        except OSError as error:
            raise KubernetesError(f"{self._folder / PODS_FILE} cannot be written: {error.strerror}") from error

    def _tell_new(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._tell(text)


class PlanWanted(GreenWindow):
    """Says what a plan wants.

    Args:
        tokens_done: Returns the tokens in the newest checkpoint.
        held: Ranks of the Job now, kept where the plan names no width.
        **window: See :class:`greentrain.control.launch.start_window.GreenWindow`.
    """

    def __init__(
        self,
        config: GreenConfig,
        *,
        tokens_done: Callable[[], float],
        held: int,
        actions: str | None,
        job_unix_s: float,
        tell: Callable[[str], None],
    ) -> None:
        width = config.actuators.width
        ranks = (held, held) if width is None else (width.min, width.max)
        super().__init__(config, actions=actions, ranks=ranks, job_unix_s=job_unix_s, tell=tell)
        self._tokens_done, self._held = tokens_done, held
        self._wants = True, held, 0.0
        if self._planner is None:
            self.close()
            raise ConfigError(f"the plan of a Job needs a table of actions before the Job has run: {REMEDY}")

    def wanted(self, now_unix_s: float) -> tuple[bool, int, float]:
        """Return whether the job is to run now, on how many ranks, and when to ask again (s since the epoch).

        Never raises.
        """
        assert self._planner is not None
        if now_unix_s < self._wants[2]:  # a Job is looked at more often, and each change ends all its pods
            return self._wants
        try:
            word = self._planner.decide(now_unix_s, self._tokens_done())
        except Exception as error:
            self._say_once(f"the plan does not say what to do ({error!r}), so the Job runs")
            return True, self._held, now_unix_s + LOOK_S
        if word.action is not None and word.action.ranks is not None:
            self._held = word.action.ranks
        self._wants = word.action is not None or word.done, self._held, self._time.real(word.next_s)
        return self._wants


def run_kubernetes(
    config: GreenConfig, job: str, *, folder: Path | None, actions: str | None, tell: Callable[[str], None]
) -> int:
    """Follow the plan with a Job until it has ended, or a signal ends us.

    Args:
        config: Configuration with a policy that plans.
        job: ``namespace/name``.
        folder: Launch folder of the pod with rank 0 on the volume that the pods share: progress.json is read there, and
            the number of pods written to the folder above it. None: nothing is known of the Job's progress.
        actions: Run folder or YAML file with a table of actions; None: policy.actions.
        tell: Shows a line to people.

    Returns:
        0 when the Job is complete, 1 when it has failed, 143 after SIGTERM.

    Raises:
        ConfigError: The name is none, the policy does not plan, or the Job lies in a queue that is not its own.
        KubernetesError: The Job cannot be read, or may not be changed.
        MissingExtraError: The client is not installed.
    """
    namespace, slash, name = job.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise ConfigError(f"--kubernetes is {job!r}; it must be namespace/name of a Job, such as train/gpt")
    controlled = KubernetesJob(namespace, name)
    view = controlled.check()

    def tokens_done() -> float:
        progress = None if folder is None else LauncherFiles(folder).progress()
        return 0.0 if progress is None else progress.tokens

    wanted = PlanWanted(
        config,
        tokens_done=tokens_done,
        held=view.width * view.ranks_per_pod,
        actions=actions,
        job_unix_s=view.created_unix_s,
        tell=tell,
    )
    with closing(wanted), SignalQueue() as signals:

        def wait(seconds: float) -> bool:
            end_s = time.monotonic() + seconds  # the time of day may be set back, and the Job must be looked at
            while True:
                signals.wait(max(0.0, end_s - time.monotonic()))
                while (signum := signals.take()) is not None:
                    if signum in STOP:
                        tell(f"{signal.Signals(signum).name}: the Job stays as it is, and nobody pauses or resumes it")
                        return True
                if time.monotonic() >= end_s:
                    return False

        shared = None if folder is None else folder.parent
        return KubernetesControl(controlled, wanted.wanted, tell=tell, folder=shared, wait=wait).run()
