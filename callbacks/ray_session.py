"""The worker's side of a Ray Train run: a session that knows its place and its run, and makes way for a resize."""

import socket
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from greentrain.callbacks.ray_coordinator import Resize
from greentrain.callbacks.ray_launcher import RayLauncher, find_desk
from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError
from greentrain.session.session import GreenSession
from greentrain.types import Topology
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import never_raises, warn

with try_import("ray") as _imports:
    import ray.train
    from ray.train import Checkpoint, collective
_imports.check()

KEY: Final = "greentrain"
"""Of the session's state in the metadata of a checkpoint."""


class GreenRaySession(GreenSession):
    """A GreenSession inside a Ray Train worker; make it in the training function.

    It has the configuration of GreenTorchTrainer and the ranks of Ray Train's context, and goes on with the run of
    the newest reported checkpoint. Report checkpoints through :meth:`report`. When the plan, an operator or the
    cluster brings another number of workers, ``checkpoint_due`` is True on all ranks after the same step; the report
    that follows does not return: Ray ends the workers and starts others from it.

    Args:
        config: Under a plain TorchTrainer, anything that GreenSession accepts (with an absolute ``run.dir``: Ray
            changes the working folder); else None.
        **parts: As in GreenSession: meter, signal, clock.

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
        self._desk = find_desk(context.get_experiment_name())
        self._first = place.rank == 0
        self._ray: RayLauncher | None = None
        if self._desk is not None:
            if config is not None:
                raise ConfigError(
                    "GreenRaySession was given a configuration, and so was GreenTorchTrainer(green=...): leave out this"
                )
            self._ray = RayLauncher(self._desk, ranks=place.world_size, first=self._first, tell=self._resized)
            config = self._ray.terms.config
        super().__init__(config, topology=place, launcher=self._ray, **parts)
        newest = ray.train.get_checkpoint()
        state = None if newest is None else newest.get_metadata().get(KEY)
        if state is not None:
            self.load_state_dict(self._own(state))

    def __enter__(self) -> "GreenRaySession":
        super().__enter__()
        return self

    def report(self, metrics: dict[str, Any], checkpoint: "Checkpoint | None" = None, **more: Any) -> None:
        """Call ``ray.train.report`` with the run's state in the checkpoint of rank 0; every rank calls it.

        Args:
            metrics: As in ray.train.report.
            checkpoint: As there. Where ``checkpoint_due`` is True, that of rank 0 is the one that was asked for.
            **more: As there.
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
        """Ask for another number of workers, from rank 0; the other ranks' calls do nothing.

        Raises:
            ConfigError: It is outside the trainer's range, or the trainer is not GreenTorchTrainer.
        """
        if self._desk is None:
            raise ConfigError(f"{ranks} workers are wanted, but only GreenTorchTrainer can change their number")
        if self._first:
            ray.get(self._desk.want.remote(ranks, reason))

    # -- inside ------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Make way where Ray has room for the workers that are wanted; else go on."""
        leaving = self._control.leaving
        if self._ray is None or leaving is None:
            super()._leave()
            return
        leaving.tell()
        leaving.request = None
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
        self.start()
        warn("Ray did not resize, so training goes on as it was, measured without phases and gears")

    def _own(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of rank 0 as this rank continues it: the run is everybody's, the totals are not."""
        return state if self._first else {**state, "totals": {}}

    @never_raises
    def _sign(self, checkpoint: "Checkpoint") -> None:
        checkpoint.update_metadata({KEY: self.state_dict()})

    def _resized(self, resize: Resize) -> None:
        run = self.active()
        if run is not None:
            text = f"{resize.before} -> {resize.after} workers in {resize.seconds:.1f} s"
            run.event("resize", text, **asdict(resize))
