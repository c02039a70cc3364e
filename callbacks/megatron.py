"""Energy and carbon of a training with Megatron-LM, from one line in front of its ``pretrain``.

Example::

    pretrain = measured(pretrain, "green.yaml")

Written to Megatron core 0.16.1 (megatron/training/training.py), which has no callbacks: while ``pretrain`` runs, and no
longer, functions that it calls in its own module are wrapped. Experimental: no training on GPUs has run with it yet.
"""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from greentrain.callbacks.driver import Driver, SessionLike
from greentrain.errors import ConfigError
from greentrain.types import Phase
from greentrain.utils.never_raise import never_raises, warn_experimental

Call = Callable[..., Any]


def measured(pretrain: Call, green: SessionLike = None) -> Call:
    """Return Megatron's ``pretrain`` with a run of a session in it. Experimental.

    Tokens are ``seq_length`` x micro-batches x their size, as Megatron counts; ranks that share a batch count once.
    Its TensorBoard and W&B writers, which are the last rank's, get ``green/energy_j`` and so on at its own interval:
    those of that rank where there are several (``green/ranks`` is 1 then), and the report those of all. Totals lie
    beside the checkpoints in ``--save``; either version loads the other's. ``--log-energy`` stays as it is.

    Args:
        pretrain: ``megatron.training.pretrain``, wrapped for in-process restarts or not.
        green: A finished GreenSession, or anything GreenSession accepts.

    Raises:
        ConfigError: The configuration is wrong, or names gears: Megatron's layers have precisions of their own.
    """
    warn_experimental(
        "the adapter of Megatron-LM", "it was run on a CPU, with Megatron's own loop and CUDA stood in for"
    )
    driver = Driver(green)
    if driver.session.gears is not None:
        raise ConfigError("precision.gears cannot be used in Megatron-LM: set --fp8-format or --fp4-format there")
    module = inspect.unwrap(pretrain).__globals__

    @functools.wraps(pretrain)
    def run(*args: Any, **kwargs: Any) -> Any:
        around = _Around(module, driver)
        before = {name: module[name] for name in vars(_Around) if name[0] != "_" and name in module}
        for name, call in before.items():
            module[name] = functools.update_wrapper(functools.partial(getattr(around, name), call), call)
        try:
            result = pretrain(*args, **kwargs)
        except BaseException as error:
            clean = isinstance(error, SystemExit) and not error.code  # --exit-interval and its like
            driver.stop("finished" if clean else "exception")
            raise
        finally:
            module.update(before)
        driver.stop("finished")
        return result

    return run


class _Around:
    """What is done around the functions of these names in Megatron's training.py, each of which comes first."""

    def __init__(self, module: dict[str, Any], driver: Driver) -> None:
        self._module, self._driver = module, driver

    def train(self, call: Call, forward_step: Any, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        options, driver, rank, step = self._module["get_args"](), self._driver, dist.get_rank(), optimizer.step
        sizes = (getattr(options, f"{kind}_model_parallel_size", 1) for kind in ("tensor", "pipeline", "expert"))
        driver.resume(options.load, rank, options.iteration if options.load else 0)
        driver.start(
            rank=rank,
            world_size=dist.get_world_size(),
            local_rank=int(os.environ.get("LOCAL_RANK", 0)),
            model=model[0] if max(sizes) == 1 else None,  # else a part is all that a rank has
        )
        for chunk in model:
            driver.tap(chunk, counts=False, after=Phase.BACKWARD)

        def stepped() -> Any:
            driver.enter(Phase.OPTIMIZER)
            result = step()
            driver.enter(None)
            return result

        driver.replace(optimizer, "step", stepped)
        return call(forward_step, model, optimizer, *args, **kwargs)

    def train_step(self, call: Call, *args: Any, **kwargs: Any) -> Any:
        self._driver.enter(Phase.DATA)
        result = call(*args, **kwargs)
        options = self._module["get_args"]()
        self._driver.step(options.seq_length * options.micro_batch_size * self._module["get_num_microbatches"]())
        return result

    def evaluate(self, call: Call, *args: Any, **kwargs: Any) -> Any:
        with self._driver.alone(Phase.EVAL):
            return call(*args, **kwargs)

    def save_checkpoint_and_time(self, call: Call, iteration: int, *args: Any, **kwargs: Any) -> Any:
        options, driver = self._module["get_args"](), self._driver
        with driver.nested(Phase.CHECKPOINT):
            result = call(iteration, *args, **kwargs)
            if driver.session.checkpoint_due and options.async_save:
                self._module["maybe_finalize_async_save"](blocking=True)
        driver.keep(options.save, dist.get_rank(), iteration)
        driver.session.checkpoint()
        return result

    def checkpoint_and_decide_exit(self, call: Call, *args: Any, **kwargs: Any) -> Any:
        options, session = self._module["get_args"](), self._driver.session
        interval = options.save_interval
        options.save_interval = 1 if session.checkpoint_due else interval  # the plan pauses after the next step
        try:
            return call(*args, **kwargs) or session.should_stop
        finally:
            options.save_interval = interval

    def training_log(
        self, call: Call, losses: Any, totals: Any, rate: Any, iteration: int, *rest: Any, **kw: Any
    ) -> Any:
        result = call(losses, totals, rate, iteration, *rest, **kw)
        if iteration % self._module["get_args"]().tensorboard_log_interval == 0:
            board, wandb = self._module["get_tensorboard_writer"](), self._module["get_wandb_writer"]()
            metrics = (never_raises(self._driver.session.metrics)() or {}) if board or wandb else {}
            for name, value in metrics.items() if board else ():
                board.add_scalar(name, value, iteration)
            if wandb:
                wandb.log(metrics, iteration)
        return result
