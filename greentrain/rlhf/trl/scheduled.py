"""Lets a scheduler follow a trainer of TRL: when it generates, when it trains, when a step ends."""

from typing import Any

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Stage
from greentrain.rlhf.scheduler import StageScheduler
from greentrain.utils.imports import try_import

with try_import("transformers") as _imports:
    from transformers import TrainerCallback
_imports.check()


def follow(trainer: Any, scheduler: StageScheduler) -> None:
    """Tell a scheduler of a trainer's steps. Give the same scheduler as ``engine`` to its reward and reference.

    A step begins with a generation and lasts until the optimizer step that ends the first pass over its rollouts; what
    is trained on them after that belongs to the next one. Evaluations and checkpoints belong to none. The trainer's
    ``_generate`` and ``training_step`` are wrapped, and do what they did.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer, offloading or stock, before ``train``.
        scheduler: Scheduler of this process.

    Raises:
        ConfigError: The trainer does not generate.
    """
    if not hasattr(trainer, "_generate"):
        raise ConfigError(f"{type(trainer).__name__} does not generate: give a GRPOTrainer or an RLOOTrainer of TRL")
    steps = _Steps(scheduler)
    generate, train = trainer._generate, trainer.training_step

    def generating(*args: Any, **kwargs: Any) -> Any:
        if not trainer.model.training:
            return generate(*args, **kwargs)
        with scheduler.stage(Stage.GENERATE):
            made = generate(*args, **kwargs)
        steps.tokens += sum(len(ids) for ids in made[1])
        return made

    def training(*args: Any, **kwargs: Any) -> Any:
        with scheduler.stage(Stage.TRAIN):
            return train(*args, **kwargs)

    trainer._generate, trainer.training_step = generating, training
    trainer.add_callback(steps)


class _Steps(TrainerCallback):
    """Ends the scheduler's steps; the rollouts are the same number on every rank, so all end together."""

    def __init__(self, scheduler: StageScheduler) -> None:
        self._scheduler = scheduler
        self.tokens = 0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.tokens = 0
        self._scheduler.restart()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        if self.tokens:
            tokens, self.tokens = self.tokens, 0
            self._scheduler.step_end(tokens=tokens)

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._scheduler.restart()

    on_save = on_evaluate
