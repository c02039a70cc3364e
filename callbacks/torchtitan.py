"""Energy and carbon of a torchtitan training, without a changed line of it.

Example::

    torchrun ... -m greentrain.callbacks.torchtitan --job.config_file llama3_8b.toml

The configuration is what GREENTRAIN_CONFIG names, if anything. In a program of your own ``main(measured(Trainer,
"green.yaml"))`` stands in place of ``main(Trainer)``. Written to torchtitan 0.2.2 (torchtitan/train.py).
"""

import functools
import os
from typing import Any

import torch.distributed as dist

from greentrain.callbacks.driver import Driver, SessionLike
from greentrain.errors import ConfigError
from greentrain.types import Phase
from greentrain.utils.never_raise import never_raises, warn_experimental


def measured(trainer: type, green: SessionLike = None) -> Any:
    """Return a subclass of a torchtitan Trainer whose ``train`` is a run; its ``green`` is the session. Experimental.

    Tokens are torchtitan's own ``ntokens_seen``; of ranks that share a batch they count once. Its loggers, TensorBoard
    and W&B, get ``green/energy_j`` and so on with every line. A training that goes on from a checkpoint goes on with
    its totals, which lie beside the checkpoints; with and without GreenTrain, either loads the other's.

    Args:
        trainer: ``torchtitan.train.Trainer`` or a subclass of it.
        green: A finished GreenSession, or anything GreenSession accepts.

    Raises:
        ConfigError: The configuration is wrong, or names gears: torchtitan has its own converters (float8, mx).
    """
    warn_experimental("the adapter of torchtitan", "it was run on a CPU, with torchtitan's own Trainer")
    driver = Driver(green)
    session = driver.session
    if session.gears is not None:
        raise ConfigError("precision.gears cannot be used in torchtitan: set model.converters in its own configuration")

    class Measured(trainer):  # type: ignore[misc]
        green = session

        def train(self) -> None:
            load = self.checkpointer.load
            driver.replace(self.checkpointer, "load", lambda *args, **kwargs: self._begin(load(*args, **kwargs)))
            try:
                super().train()
            except BaseException:
                driver.stop("exception")
                raise
            driver.stop("finished")
            never_raises(self.metrics_processor.logger.log)(session.metrics(), self.step)

        def _begin(self, loaded: Any) -> Any:
            dims, checkpointer, logger = self.parallel_dims, self.checkpointer, self.metrics_processor.logger
            mesh = dims.get_mesh("batch") if dims.dp_enabled else None
            if checkpointer.enable:
                driver.resume(checkpointer.folder, dist.get_rank(), self.step)
                driver.replace(checkpointer, "save", functools.partial(self._save, checkpointer.save))
            driver.start(
                rank=dist.get_rank(),
                world_size=dist.get_world_size(),
                local_rank=int(os.environ["LOCAL_RANK"]),
                data_parallel=(0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size()),
                model=None if dims.pp_enabled else self.model_parts[0],  # else a stage is all that a rank has
            )
            for part in self.model_parts:
                driver.tap(part, counts=False, after=Phase.BACKWARD)
            driver.hook(self.optimizers.register_step_pre_hook, functools.partial(driver.enter, Phase.OPTIMIZER))
            driver.hook(self.optimizers.register_step_post_hook, functools.partial(driver.enter, None))
            driver.replace(logger, "log", functools.partial(_log, logger.log))
            return loaded

        def _save(self, save: Any, step: int, last_step: bool = False) -> None:
            checkpointer, due = self.checkpointer, session.checkpoint_due
            interval, checkpointer.interval = checkpointer.interval, 1 if due else checkpointer.interval
            try:  # the plan pauses after the next step: a whole checkpoint, where the last may be of weights alone
                saves = checkpointer._should_save(step, last_step)
                with driver.nested(Phase.CHECKPOINT):
                    save(step, last_step=last_step)
                    if due:
                        checkpointer._async_wait()
            finally:
                checkpointer.interval = interval
            if saves:
                driver.keep(checkpointer.folder, dist.get_rank(), step)
                session.checkpoint()

        def train_step(self, data_iterator: Any) -> None:
            before = self.ntokens_seen
            driver.enter(Phase.DATA)
            super().train_step(data_iterator)
            driver.step(self.ntokens_seen - before)

        def should_continue_training(self) -> bool:
            return not session.should_stop and bool(super().should_continue_training())

    def _log(log: Any, metrics: dict[str, Any], step: int) -> None:
        log({**metrics, **(never_raises(session.metrics)() or {})}, step)

    Measured.__name__, Measured.__qualname__ = f"Measured{trainer.__name__}", f"Measured{trainer.__qualname__}"
    return Measured


if __name__ == "__main__":
    from torchtitan.train import Trainer, main

    main(measured(Trainer))
