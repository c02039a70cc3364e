"""The loop of the pod beside a Job: what the plan wants, Kubernetes is told.

``greentrain launch --kubernetes``: the plan of one Job, followed from a pod beside it.
"""

import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

from greentrain.config.schema import GreenConfig
from greentrain.control.launch.kubernetes import ELASTIC_ANNOTATION, JobView, KubernetesJob
from greentrain.control.launch.kubernetes_api import GoneError, KubernetesError
from greentrain.control.launch.signals import STOP, SignalQueue
from greentrain.control.launch.start_window import REMEDY, GreenWindow
from greentrain.control.launcher_protocol import LauncherFiles
from greentrain.errors import ConfigError

LOOK_S: Final = 60.0
"""How often the Job is looked at, between decisions too: it may have ended (s)."""
DRAIN_S: Final = 2.0
"""How often it is looked at while its pods end (s)."""
PODS_FILE: Final = "pods"
"""File in the shared folder that tells the pods how many they are: a pod's environment cannot."""


class Wanted(Protocol):
    """Says what a plan wants."""

    def wanted(self, now_unix_s: float) -> tuple[bool, int, float]:
        """Return whether the job is to run now, on how many ranks, and when to ask again (s since the epoch)."""
        ...


class KubernetesControl:
    """Follows a plan with one Job, until the Job has ended.

    A change of width is a suspend, the change, and a resume: all pods start from one checkpoint and know their number.

    Args:
        job: The Job.
        wanted: The plan.
        tell: Shows a line to people.
        folder: Shared with the pods, for PODS_FILE; None: the width does not change.
        wait: Waits so many seconds; returns True where somebody wants the loop to end.
        clock: Returns the time (s since the epoch).
    """

    def __init__(
        self,
        job: KubernetesJob,
        wanted: Wanted,
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
        on, ranks, next_s = self._wanted.wanted(now_s)
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
        part = self._folder / f"{PODS_FILE}.tmp"
        try:
            part.write_text(f"{pods}\n", encoding="utf-8")
            part.replace(self._folder / PODS_FILE)
        except OSError as error:
            raise KubernetesError(f"{self._folder / PODS_FILE} cannot be written: {error.strerror}") from error

    def _tell_new(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._tell(text)


class PlanWanted(GreenWindow):
    """Says what a plan wants; see :class:`greentrain.control.launch.kubernetes_run.Wanted`.

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
        if self._planner is None:
            self.close()
            raise ConfigError(f"the plan of a Job needs a table of actions before the Job has run: {REMEDY}")

    def wanted(self, now_unix_s: float) -> tuple[bool, int, float]:
        """Return the plan's choice for now, and when it decides again (s since the epoch)."""
        assert self._planner is not None
        word = self._planner.decide(now_unix_s, self._tokens_done())
        if word.action is not None and word.action.ranks is not None:
            self._held = word.action.ranks
        return word.action is not None or word.done, self._held, self._time.real(word.next_s)


def run_kubernetes(
    config: GreenConfig, job: str, *, folder: Path | None, actions: str | None, tell: Callable[[str], None]
) -> int:
    """Follow the plan with a Job until it has ended, or a signal ends us.

    Args:
        config: With a policy that plans.
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
    with closing(wanted), SignalQueue() as inbox:

        def wait(seconds: float) -> bool:
            until_s = time.time() + seconds
            while inbox.sleep_until(until_s):
                while (signum := inbox.take()) is not None:
                    if signum in STOP:
                        tell(f"{signal.Signals(signum).name}: the Job stays as it is, and nobody pauses or resumes it")
                        return True
            return False

        shared = None if folder is None else folder.parent
        return KubernetesControl(controlled, wanted, tell=tell, folder=shared, wait=wait).run()
