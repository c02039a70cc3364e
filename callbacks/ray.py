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
"""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from greentrain.callbacks.ray_coordinator import ASK_S, PREFIX, Resize
from greentrain.callbacks.ray_launcher import find_desk
from greentrain.callbacks.ray_scaling import WantedWidth, check_version, open_desk
from greentrain.callbacks.ray_session import GreenRaySession
from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError
from greentrain.ledger.run_folder import ENV_RUN_ID, new_run_id
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import never_raises, warn_experimental

with try_import("ray") as _imports:
    import ray
    from ray.train import Result
    from ray.train.v2.api.config import ScalingConfig
    from ray.train.v2.torch.torch_trainer import TorchTrainer
_imports.check()

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
        self.resizes: list[Resize] = []
        """Of the last ``fit``."""
        self.folder: Path | None = None
        """Run folder of the last ``fit``."""
        self._desk: Any = None

    def fit(self) -> "Result":
        """Train, as TorchTrainer.fit does."""
        if not ray.is_initialized():
            ray.init()
        if sum(bool(node["Alive"]) for node in ray.nodes()) > 1:  # type: ignore[no-untyped-call]
            warn_experimental("GreenTorchTrainer on several nodes", "it ran on one machine with several workers")
        config = self._config()
        self.folder = Path(config.run.dir) / str(config.run.id)
        self._desk = open_desk(
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
            self.resizes = never_raises(ray.get)(self._desk.resizes.remote(), timeout=ASK_S) or []
            never_raises(ray.kill)(self._desk)

    def _initialize_and_run_controller(self, **controller: Any) -> "Result":
        if self._scaling.elasticity_enabled:
            controller["scaling_policy"] = WantedWidth(self._scaling, self._desk, self._ranks)
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
        ranks: How many.
        run: ``RunConfig.name`` of the trainer.
        reason: For the log.

    Raises:
        ConfigError: There is no such run, or the number is outside its range.
    """
    desk = find_desk(run)
    if desk is None:
        raise ConfigError(
            f"no GreenTorchTrainer of the name {run!r} runs in this Ray namespace: name RunConfig.name, and connect"
            " with ray.init(address=..., namespace=...) as its driver did"
        )
    ray.get(desk.want.remote(ranks, reason), timeout=ASK_S)
