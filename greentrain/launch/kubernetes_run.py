"""``greentrain launch --kubernetes``: the plan of one Job, followed from a pod beside it."""

import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from greentrain.config import GreenConfig
from greentrain.errors import ConfigError
from greentrain.handover import Handover
from greentrain.launch.inbox import STOP, Inbox
from greentrain.launch.kubernetes import KubernetesJob
from greentrain.launch.kubernetes_control import KubernetesControl
from greentrain.launch.window import REMEDY, GreenWindow


class PlanWanted(GreenWindow):
    """Says what a plan wants; see :class:`greentrain.launch.kubernetes_control.Wanted`.

    Args:
        tokens_done: Returns the tokens in the newest checkpoint.
        held: Ranks of the Job now, kept where the plan names no width.
        **window: See :class:`greentrain.launch.window.GreenWindow`.
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
        progress = None if folder is None else Handover(folder).progress()
        return 0.0 if progress is None else progress.tokens

    wanted = PlanWanted(
        config,
        tokens_done=tokens_done,
        held=view.width * view.ranks_per_pod,
        actions=actions,
        job_unix_s=view.created_unix_s,
        tell=tell,
    )
    with closing(wanted), Inbox() as inbox:

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
