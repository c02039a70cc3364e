"""Ray Train with a number of workers that follows GreenTrain's plan, beyond one machine too.

Example::

    def train():
        with GreenRaySession() as green:
            ...                                       # resume from ray.train.get_checkpoint(), as always
            for batch in batches:
                ...
                green.step(tokens=batch.numel())
                if green.checkpoint_due or step % 500 == 0:
                    ...                               # save into folder
                    green.report({"loss": loss}, checkpoint=Checkpoint.from_directory(folder))

    trainer = GreenTorchTrainer(train, green="green.yaml", scaling_config=ScalingConfig(num_workers=(1, 8)))
    trainer.fit()

A resize is a restart of all workers from a checkpoint. Ray keeps at least one: a plan that says "off" holds the
workers still in memory, it cannot give them back.

Ray has the elasticity (``ScalingConfig(num_workers=(min, max))``), but no public way to say which number. What is
used beneath is private: ``ray/train/v2/_internal/execution/scaling_policy/elastic.py`` and ``DataParallelTrainer.
_initialize_and_run_controller``, both of ray 2.60.0, read 2026-11-21; ``tests/callbacks/test_ray_contract.py`` holds
them to it.

:class:`GreenTorchTrainer` and :class:`WantedWidth` are the driver's side, :class:`GreenRaySession` the worker's: a
session that knows its place and its run, and makes way for a resize. To the plan Ray is the launcher
(:class:`RayLauncher`).
"""

import dataclasses
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from greentrain.callbacks.ray_coordinator import ASK_S, PREFIX, Opening, Order, RayCoordinator, Terms, WorkerResize
from greentrain.config.schema import GreenConfig
from greentrain.control.launcher_protocol import Notice, Offer, Progress, Request
from greentrain.errors import ConfigError, MissingExtraError
from greentrain.ledger.run_folder import ENV_RUN_ID, new_run_id
from greentrain.session.session import GreenSession
from greentrain.types import Topology
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import never_raises, warn, warn_experimental

with try_import("ray") as _imports:
    import ray
    import ray.train
    from ray.train import Checkpoint, CheckpointConsistencyMode, Result, collective
    from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision, ScalingDecision
    from ray.train.v2.api.config import ScalingConfig
    from ray.train.v2.torch.torch_trainer import TorchTrainer
_imports.check()

OPEN_S: Final = 10.0
"""How long workers stand still for Ray to find room for those that the plan wants (s): a few of its health checks."""
HOLD_S: Final = 600.0
"""How long workers stand still for a resize that Ray could do (s)."""
POLL_S: Final = 0.2


def find_coordinator(run: str) -> Any:
    """Return the coordinator of a Ray Train run of this Ray namespace; None where GreenTrain did not start it."""
    try:
        return ray.get_actor(PREFIX + run)
    except ValueError:
        return None


class RayLauncher:
    """One rank's line to the coordinator; see greentrain.control.preemption.Launcher.

    Args:
        coordinator: Handle of the coordinator's actor.
        ranks: Workers of this group.
        first: Whether this is rank 0.
        tell: Called with the resize that the first optimizer step has ended.
    """

    exits: Final = False
    """Ray ends the workers."""

    def __init__(self, coordinator: Any, *, ranks: int, first: bool, tell: Callable[[WorkerResize], None]) -> None:
        self._coordinator, self._ranks, self._first, self._tell = coordinator, ranks, first, tell
        self.terms: Terms = ray.get(coordinator.terms.remote())

    def offer(self) -> Offer:
        """Return the widths that the trainer allows."""
        terms = self.terms
        return Offer(
            attempt=terms.attempt,
            ranks=self._ranks,
            min_ranks=terms.least,
            max_ranks=terms.most,
            can_wait=False,
            resize_s=terms.resize_s,
        )

    def notice(self) -> Notice | None:
        """Return that Ray could start another number of workers now."""
        opening = self._opening()
        if opening is None:
            return None
        return Notice(attempt=self.terms.attempt, reason=f"{opening.ranks} workers: {opening.reason}")

    def write(self, word: Request | Progress) -> None:
        """Ask for the workers that the plan wants."""
        if isinstance(word, Request) and word.ranks != self._ranks:
            ray.get(self._coordinator.want.remote(word.ranks, word.reason), timeout=ASK_S)

    def mark(self, what: str, attempt: int, **more: Any) -> None:
        """Tell the coordinator of the first optimizer step. Never raises."""
        if what == "step":
            resize: WorkerResize | None = never_raises(ray.get)(self._coordinator.stepped.remote(), timeout=ASK_S)
            if resize is not None:
                self._tell(resize)

    def opening(self) -> int | None:
        """Return the number of the opening for which all ranks leave, the same on all; None: they stay.

        Every rank calls it, after the report of a checkpoint.
        """
        found: int | None = collective.broadcast_from_rank_zero(self._committed() if self._first else None)
        return found

    def leave(self, nth: int) -> None:
        """Stand still until Ray ends this process. Every rank calls it, all books closed; it returns only where Ray
        does nothing.
        """
        never_raises(collective.barrier)()
        if self._first:
            never_raises(ray.get)(self._coordinator.leave.remote(nth), timeout=ASK_S)
        time.sleep(HOLD_S)

    # -- inside ------------------------------------------------------------------------------------------------

    @never_raises
    def _committed(self) -> int | None:
        """Return the opening once the controller has the checkpoint; None: Ray has no room."""
        ray.train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED, timeout_s=HOLD_S)
        end_s = time.monotonic() + OPEN_S
        while (opening := self._opening()) is None and time.monotonic() < end_s:
            time.sleep(POLL_S)
        return None if opening is None else opening.nth

    def _opening(self) -> Opening | None:
        opening: Opening | None = ray.get(self._coordinator.opening.remote(), timeout=ASK_S)
        return opening


log = logging.getLogger(__name__)

TESTED: Final = "2.60"


def check_version(version: str | None = None) -> None:
    """Refuse a Ray whose insides nobody has tried.

    Args:
        version: Version of Ray to check; None: the installed one.

    Raises:
        MissingExtraError: It is another minor version than the tested one.
    """
    version = version or ray.__version__
    if version.split(".")[:2] != TESTED.split("."):
        raise MissingExtraError(
            f"ray {version} is installed; GreenTrain sets the number of workers through parts that are private to Ray"
            f" and were tried with {TESTED} only. Install it with: pip install 'greentrain-torch[ray]', or train at a"
            " fixed width with ray.train.torch.TorchTrainer and GreenRaySession(config), which need none of them"
        )


class WantedWidth(ElasticScalingPolicy):
    """Runs as many workers as are wanted, where the cluster has them.

    It lives in Ray's controller, is asked at every health check (2 s) and raises nothing: where the coordinator does
    not answer, the last word counts.

    Args:
        scaling_config: The trainer's, with a range of workers.
        coordinator: Handle of the coordinator's actor.
        ranks: Wanted at the start.
    """

    def __init__(self, scaling_config: "ScalingConfig", coordinator: Any, ranks: int) -> None:
        super().__init__(scaling_config)
        self._coordinator, self._wanted = coordinator, ranks

    def make_decision_for_non_running_worker_group(self) -> "ScalingDecision":
        self._want(self._ask_wanted())
        return super().make_decision_for_non_running_worker_group()

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> "ScalingDecision":
        self._maybe_send_resource_request()  # type: ignore[no-untyped-call]
        current = int(worker_group_state.num_workers)
        order = self._meet(current)
        if order is not None and order.wanted != self._wanted:
            self._want(order.wanted)
            order = self._meet(current)
        if order is None or not order.go:
            return NoopDecision()
        return self._get_resize_decision(self._possible() or current)

    def _get_num_workers_for_resource_request(self) -> int:
        return self._wanted  # not the most: an autoscaler may then take away the machines that nobody wants

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        return min(int(super()._count_possible_workers(reserved_resources)), self._wanted)

    def _possible(self) -> int | None:
        reserved = self._get_reserved_resources()
        return None if reserved is None else self._count_possible_workers(reserved)

    def _want(self, ranks: int | None) -> None:
        if ranks is not None and ranks != self._wanted:
            log.info("%d workers are wanted instead of %d", ranks, self._wanted)
            self._wanted = ranks
            self._send_resource_request()  # type: ignore[no-untyped-call]
            self._latest_reserved_resources_query_time = float("-inf")  # what was reserved before is no answer

    @never_raises
    def _meet(self, current: int) -> Order | None:
        answer: Order = ray.get(self._coordinator.meet.remote(current, self._possible()), timeout=ASK_S)
        return answer

    @never_raises
    def _ask_wanted(self) -> int | None:
        answer: int = ray.get(self._coordinator.wanted.remote(), timeout=ASK_S)
        return answer


def open_coordinator(name: str, **terms: Any) -> Any:
    """Start the coordinator of a Ray Train run beside this process and return its handle.

    Args:
        name: Name of the actor.
        **terms: Arguments of RayCoordinator.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0)(RayCoordinator).options(name=name, scheduling_strategy=here).remote(**terms)


KEY: Final = "greentrain"
"""Of the session's state in the metadata of a checkpoint."""


class GreenRaySession(GreenSession):
    """A GreenSession inside a Ray Train worker; make it in the training function.

    It has the configuration of GreenTorchTrainer and the ranks of Ray Train's context, and goes on with the run of
    the newest reported checkpoint. Report checkpoints through :meth:`report`. When the plan, an operator or the
    cluster brings another number of workers, ``checkpoint_due`` is True on all ranks after the same step; the report
    that follows does not return: Ray ends the workers and starts others from it.

    Args:
        config: Anything that GreenSession accepts, under a plain TorchTrainer (with an absolute ``run.dir``: Ray
            changes the working folder); else None.
        **parts: Further arguments of GreenSession: meter, signal, clock.

    Raises:
        ConfigError: Two configurations.
    """

    def __init__(self, config: "str | Path | Mapping[str, Any] | GreenConfig | None" = None, **parts: Any) -> None:
        context = ray.train.get_context()
        place = Topology(
            rank=context.get_world_rank(),
            world_size=context.get_world_size(),
            local_rank=context.get_local_rank(),
            local_world_size=context.get_local_world_size(),
            host=socket.gethostname(),
        )
        self._coordinator = find_coordinator(context.get_experiment_name())
        self._first = place.rank == 0
        self._ray: RayLauncher | None = None
        if self._coordinator is not None:
            if config is not None:
                raise ConfigError(
                    "GreenRaySession was given a configuration, and so was GreenTorchTrainer(green=...): leave out this"
                )
            self._ray = RayLauncher(self._coordinator, ranks=place.world_size, first=self._first, tell=self._resized)
            config = self._ray.terms.config
        super().__init__(config, topology=place, launcher=self._ray, **parts)
        newest = ray.train.get_checkpoint()
        state = None if newest is None else (never_raises(newest.get_metadata)() or {}).get(KEY)  # a storage's file
        if state is not None:
            self.load_state_dict(self._own(state))

    def __enter__(self) -> "GreenRaySession":
        super().__enter__()
        return self

    def report(self, metrics: dict[str, Any], checkpoint: "Checkpoint | None" = None, **more: Any) -> None:
        """Call ``ray.train.report`` with the run's state in the checkpoint of rank 0; every rank calls it.

        Args:
            metrics: Metrics that ray.train.report takes.
            checkpoint: Checkpoint to report. Where ``checkpoint_due`` is True, rank 0's is the one that was asked for.
            **more: Further arguments of ray.train.report.
        """
        due, saved = self.checkpoint_due, checkpoint is not None
        with self.phase("checkpoint"):
            if checkpoint is not None and self._first:
                self._sign(checkpoint)
            ray.train.report(metrics, checkpoint=checkpoint, **more)
            if due:
                saved = collective.broadcast_from_rank_zero(saved)
        if saved:
            self.checkpoint()

    def want(self, ranks: int, reason: str = "asked for by the training") -> None:
        """Ask for another number of workers, from rank 0; the other ranks' calls do nothing. Waits for 5 s at most.

        Raises:
            ConfigError: It is outside the trainer's range, or the trainer is not GreenTorchTrainer.
        """
        if self._coordinator is None:
            raise ConfigError(f"{ranks} workers are wanted, but only GreenTorchTrainer can change their number")
        if self._first:
            try:
                ray.get(self._coordinator.want.remote(ranks, reason), timeout=ASK_S)
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
                warn(f"{ranks} workers are wanted, but the trainer does not answer ({error!r})")

    # -- inside ------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Make way where Ray has room for the workers that are wanted; else go on."""
        preemption = self._controller.preemption
        if self._ray is None or preemption is None:
            super()._leave()
            return
        preemption.request_leave()
        preemption.request = None
        nth = never_raises(self._ray.opening)()
        run = self.active()
        if nth is None or run is None:
            if run is not None:
                run.event("stay", "Ray has no room for another number of workers now; training goes on")
            return
        state = self.state_dict()
        self.close("left")
        never_raises(self._ray.leave)(nth)
        self.load_state_dict(self._own(state))
        if never_raises(self.start)() is not None:
            warn("Ray did not resize, so training goes on as it was, measured without phases and gears")

    def _own(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of rank 0 as this rank continues it: the run is everybody's, the totals are not."""
        return state if self._first else {**state, "totals": {}}

    @never_raises
    def _sign(self, checkpoint: "Checkpoint") -> None:
        checkpoint.update_metadata({KEY: self.state_dict()})

    def _resized(self, resize: WorkerResize) -> None:
        run = self.active()
        if run is not None:
            text = f"{resize.before} -> {resize.after} workers in {resize.seconds:.1f} s"
            run.event("resize", text, **dataclasses.asdict(resize))


__all__ = ["GreenRaySession", "GreenTorchTrainer", "want"]


class GreenTorchTrainer(TorchTrainer):
    """A TorchTrainer whose workers measure one run, and whose number follows GreenTrain.

    Experimental: it ran with several workers on one machine, never on several nodes (docs/status.md).

    Args:
        train_loop_per_worker: The training function; it makes a GreenRaySession.
        green: Anything that GreenSession accepts, but no session. A relative ``run.dir`` is meant from here and must
            be a folder that all machines share, as with every job of several machines.
        ranks: Workers at the start; None: the most.
        **kwargs: Those of TorchTrainer. ``scaling_config.num_workers=(min, max)`` lets the number change;
            ``elastic_resize_monitor_interval_s`` is how long workers may take to a checkpoint once Ray could resize.

    Raises:
        ConfigError: The configuration, the range or ``ranks`` is wrong.
        MissingExtraError: Another Ray is installed than the one that was tried.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        green: "str | Path | Mapping[str, Any] | GreenConfig | None" = None,
        ranks: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_version()
        super().__init__(train_loop_per_worker, **kwargs)
        self._scaling = cast("ScalingConfig", self.scaling_config)  # Ray annotates its first version's
        least, most = self._scaling.min_workers, self._scaling.max_workers
        if least < 1:
            raise ConfigError(
                f"ScalingConfig.num_workers is {self.scaling_config.num_workers}; Ray Train keeps at least 1 worker:"
                " begin the range at 1. A plan pauses in memory"
            )
        self._ranks = most if ranks is None else ranks
        if not least <= self._ranks <= most:
            raise ConfigError(f"ranks is {ranks}; ScalingConfig.num_workers allows {least} to {most}")
        self.green = GreenConfig.load(green)
        width = self.green.actuators.width
        if width is not None and not least <= width.min <= width.max <= most:
            raise ConfigError(
                f"actuators.width is {width.min} to {width.max}, but ScalingConfig.num_workers allows {least} to"
                f" {most}: widen the one or narrow the other"
            )
        self.resizes: list[WorkerResize] = []
        """Of the last ``fit``."""
        self.folder: Path | None = None
        """Run folder of the last ``fit``."""
        self._coordinator: Any = None

    def fit(self) -> "Result":
        """Train, as TorchTrainer.fit does."""
        if not ray.is_initialized():
            ray.init()
        if sum(bool(node["Alive"]) for node in ray.nodes()) > 1:  # type: ignore[no-untyped-call]
            warn_experimental("GreenTorchTrainer on several nodes", "it ran on one machine with several workers")
        config = self._config()
        self.folder = Path(config.run.dir) / str(config.run.id)
        self._coordinator = open_coordinator(
            PREFIX + str(self.run_config.name),
            config=config,
            least=self._scaling.min_workers,
            most=self._scaling.max_workers,
            ranks=self._ranks,
            patience_s=self._scaling.elastic_resize_monitor_interval_s,
        )
        try:
            return super().fit()
        finally:
            self.resizes = never_raises(ray.get)(self._coordinator.resizes.remote(), timeout=ASK_S) or []
            never_raises(ray.kill)(self._coordinator)

    def _initialize_and_run_controller(self, **controller: Any) -> "Result":
        if self._scaling.elasticity_enabled:
            controller["scaling_policy"] = WantedWidth(self._scaling, self._coordinator, self._ranks)
        result: Result = super()._initialize_and_run_controller(**controller)
        return result

    def _config(self) -> GreenConfig:
        """Return what the workers get: one run id for all that come, and a folder that does not depend on theirs."""
        run = self.green.run
        run_id = run.id or os.environ.get(ENV_RUN_ID) or new_run_id(run.name, time.time())
        run = dataclasses.replace(run, id=run_id, dir=str(Path(run.dir).resolve()))
        return dataclasses.replace(self.green, run=run)


def want(ranks: int, *, run: str, reason: str = "by hand") -> None:
    """Ask a running GreenTorchTrainer for another number of workers, from any process of its Ray namespace.

    Args:
        ranks: Number of workers wanted.
        run: ``RunConfig.name`` of the trainer.
        reason: Reason that the log shows.

    Raises:
        ConfigError: There is no such run, or the number is outside its range.
    """
    coordinator = find_coordinator(run)
    if coordinator is None:
        raise ConfigError(
            f"no GreenTorchTrainer of the name {run!r} runs in this Ray namespace: name RunConfig.name, and connect"
            " with ray.init(address=..., namespace=...) as its driver did"
        )
    ray.get(coordinator.want.remote(ranks, reason), timeout=ASK_S)
