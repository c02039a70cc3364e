"""Energy and carbon of a Lightning run, from one callback.

Example::

    trainer = L.Trainer(callbacks=[GreenCallback("green.yaml")])     # no argument = measure only
"""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from greentrain.callbacks.driver import Driver, SessionLike
from greentrain.errors import ConfigError
from greentrain.types import Phase
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import never_raises

with try_import("lightning") as _imports:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities.exceptions import SIGTERMException
    from lightning.pytorch.utilities.model_helpers import is_overridden
_imports.check()

CARDS = "model_cards"
"""Folder in that of the run with the footprint of each checkpoint; beside it, one would be loaded or counted as one."""
PAUSE_CHECKPOINT = "greentrain-pause.ckpt"
"""Written to the Trainer's root folder before the plan pauses or a budget ends the run; the next one replaces it."""


class GreenCallback(Callback):
    """Drives a GreenSession from Lightning's hooks.

    Each ``fit`` is a run; one from a checkpoint continues the run of the checkpoint. A ``validate``, ``test`` or
    ``predict`` before or after a fit, also of another Trainer with this callback, is a phase ``eval`` of the fit's run:
    nothing is booked in between. Rank 0 logs ``green/energy_j``, ``green/power_w``, ``green/emissions_g``,
    ``green/tokens_per_j`` and ``green/g_per_ktoken`` to the Trainer's loggers every ``log_every_n_steps`` and at the
    end, for all ranks whose files it can see (``green/ranks`` counts them).

    Args:
        session: A finished GreenSession, or anything GreenSession accepts. Of LightningCLI's command line
            ``--trainer.callbacks+=GreenCallback --trainer.callbacks.session.run.name=mine`` sets a key.

    Raises:
        ConfigError: The configuration is wrong.
    """

    def __init__(self, session: SessionLike = None) -> None:
        self._driver = Driver(_sections(session) if isinstance(session, Mapping) else session)
        self.session = self._driver.session
        """The session, with its totals, run folder and report path."""
        self._steps = 0
        self._rank = 0
        self._fitting = False
        self._engine = False

    # The run starts in the first hook after callbacks are restored, with any strategy, and after Lightning's signal
    # handlers are in place: they call what was there before, ours would end the process that they keep alive.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._driver.stop("exception")  # a training that ended without a word
        self._rank, self._fitting = trainer.global_rank, stage == "fit"
        _check_world(trainer.world_size)
        gears = self.session.gears
        if gears is not None and self._fitting:
            plugin, device = trainer.precision_plugin, trainer.strategy.root_device
            scaler = getattr(plugin, "scaler", None)
            gear = functools.partial(self._driver.gear, pl_module, device=device, scaler=scaler, wrap_forward=False)
            self._gear_configured(pl_module, gear)
            context = functools.partial(gears.box.context, device.type)
            self._driver.replace(plugin, "forward_context", lambda: context(pl_module.training))

    def _gear_configured(self, module: LightningModule, gear: Callable[[], None]) -> None:
        """Give a module its gears, once ``configure_model`` has made or sharded its layers, where it does."""
        configure = module.configure_model
        if not is_overridden("configure_model", module):
            gear()
            return

        @functools.wraps(configure)
        def configured() -> None:
            configure()
            gear()

        self._driver.replace(module, "configure_model", configured)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start(trainer, pl_module)
        self._bind(trainer)
        self._hook(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start(trainer, pl_module)
        self._driver.enter(Phase.EVAL)

    on_test_start = on_predict_start = on_validation_start

    def _start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._driver.start(
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            local_rank=trainer.local_rank,
            local_world_size=trainer.num_devices,
            data_parallel=vars(trainer.strategy).get("_device_mesh"),  # ModelParallelStrategy's
            model=pl_module,
            training=self._fitting,
        )

    on_sanity_check_start = _start

    def _bind(self, trainer: Trainer) -> None:
        gears = self.session.gears
        if gears is not None and trainer.model is not None:
            gears.check(trainer.model)
            self._engine = hasattr(trainer.model, "global_steps")  # DeepSpeed's optimizer steps once a sub-group
            for optimizer in trainer.optimizers:
                self._driver.bind(optimizer, counts=not self._engine)

    @never_raises
    def _hook(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # No hook of Lightning ends an optimizer step or brackets the writing of a checkpoint.
        self._steps = trainer.global_step
        for optimizer in trainer.optimizers:
            if hasattr(optimizer, "register_step_post_hook"):
                after = None if pl_module.automatic_optimization else Phase.FORWARD
                self._driver.hook(optimizer.register_step_post_hook, functools.partial(self._driver.enter, after))
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def carded(filepath: Any, *args: Any, **kwargs: Any) -> None:
            save(filepath, *args, **kwargs)
            if (folder := self.session.folder) is not None:
                self.session.write_card(folder / CARDS / f"{os.path.basename(filepath)}.yaml")

        self._driver.replace(trainer, "save_checkpoint", carded)
        self._driver.wrap(trainer, "save_checkpoint", Phase.CHECKPOINT, then=self.session.checkpoint)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._driver.enter(Phase.DATA)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._driver.enter(Phase.FORWARD)
        self._driver.add(batch)
        gears = self.session.gears
        if gears is not None and gears.recorder is not None and pl_module.automatic_optimization:
            gears.recorder.offer(functools.partial(_loss, trainer, pl_module, batch_idx), batch)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        self._driver.enter(Phase.BACKWARD)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._driver.enter(None if pl_module.automatic_optimization else Phase.FORWARD)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._driver.enter(Phase.OPTIMIZER)

    @never_raises
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before, self._steps = self._steps, trainer.global_step
        if self._steps > before:
            if self._engine:
                self._driver.boundary()
            self._driver.step()
            if self.session.checkpoint_due:  # the plan pauses after the next step, or the budget is spent
                trainer.save_checkpoint(Path(trainer.default_root_dir) / PAUSE_CHECKPOINT)
            if self.session.should_stop:
                trainer.should_stop = True
            every = trainer.log_every_n_steps  # type: ignore[attr-defined]
            if every and self._steps // every > before // every:
                self._log(trainer)
        self._driver.enter(Phase.DATA)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._driver.enter(Phase.DATA if self._fitting and not trainer.sanity_checking else None)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._driver.enter(None)

    on_test_end = on_predict_end = on_train_end

    def _log(self, trainer: Trainer) -> None:
        metrics = self.session.metrics() if trainer.is_global_zero else {}
        for logger in trainer.loggers if metrics else ():
            logger.log_metrics(metrics, step=max(trainer.global_step - 1, 0))  # as Lightning numbers its own metrics

    @never_raises
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        owned = self._driver.owned
        self._driver.stop("finished")
        if owned and self._fitting:
            self._log(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._driver.stop("sigterm" if isinstance(exception, SIGTERMException) else "exception")

    def state_dict(self) -> dict[str, Any]:
        return never_raises(self.session.state_dict)() or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._fitting:
            self._driver.load(state_dict, self._rank)


def _sections(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration whose keys with dots, as jsonargparse makes of ``session.run.name=text``, are sections."""
    if not any("." in str(key) for key in told):
        return told
    out: dict[str, Any] = {}
    for key, value in told.items():
        *path, last = str(key).split(".")
        section = out
        for name in path:
            section = section.setdefault(name, {})
        read = _read(value)
        section[last] = {**section.get(last, {}), **read} if isinstance(read, dict) else read
    return out


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _read(inner) for key, inner in value.items()}
    return yaml.safe_load(value) if isinstance(value, str) else value


def _loss(trainer: Trainer, pl_module: LightningModule, batch_idx: int, batch: Any) -> Any:
    """Return the loss of a batch once more, and log nothing."""
    silent = {"log": lambda *args, **kwargs: None, "log_dict": lambda *args, **kwargs: None}
    before = {name: vars(pl_module)[name] for name in silent if name in vars(pl_module)}
    vars(pl_module).update(silent)
    try:
        with trainer.precision_plugin.train_step_context():
            output = pl_module.training_step(batch, batch_idx)
    finally:
        for name in silent:
            del vars(pl_module)[name]
        vars(pl_module).update(before)
    return output["loss"] if isinstance(output, Mapping) else output


def _check_world(found: int) -> None:
    """Refuse processes that a launcher started as one job and that train side by side without knowing each other."""
    started = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and started.isdigit() and found == 1 < int(started):
        raise ConfigError(
            f"the launcher started {started} processes, but each has a Trainer of its own with a world size of 1: pass"
            ' devices=int(os.environ["LOCAL_WORLD_SIZE"]) to the Trainer'
        )
