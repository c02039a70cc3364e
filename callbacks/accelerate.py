"""Energy and carbon of a training script of Hugging Face Accelerate, from one changed line.

Example::

    accelerator = GreenAccelerator(gradient_accumulation_steps=2, green="green.yaml")

Hooks mark phases on what Accelerate prepares: models, optimizers, data loaders and DeepSpeed engines.
"""

import functools
import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from greentrain.callbacks.driver import Driver, SessionLike
from greentrain.control.precision.gearbox import unwrap
from greentrain.types import Phase
from greentrain.utils.files import write_json
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import never_raises

with try_import("accelerate") as _imports:
    from accelerate import Accelerator, DistributedType, PartialState
    from accelerate.tracking import GeneralTracker
_imports.check()


class GreenAccelerator(Accelerator):  # type: ignore[misc]
    """An Accelerator that drives a GreenSession. Everything else is as in Accelerator.

    The run starts with the first batch, forward or backward after ``prepare`` (so after ``load_state``, which lets
    it continue the run of the checkpoint) and ends with ``end_training`` or with the process. Steps are those of
    the optimizer that was prepared first, counted when it really steps. ``log`` adds ``green/energy_j``,
    ``green/power_w``, ``green/emissions_g``, ``green/tokens_per_j`` and ``green/g_per_ktoken`` to what the trackers
    get, for all ranks whose files rank 0 can see (``green/ranks`` counts them).

    Args:
        *args: Passed to Accelerator.
        green: A finished GreenSession, or anything GreenSession accepts.
        **kwargs: Passed to Accelerator.

    Raises:
        ConfigError: The configuration is wrong.
    """

    def __init__(self, *args: Any, green: SessionLike = None, **kwargs: Any) -> None:
        self._driver = Driver(green)
        self.green = self._driver.session
        """The session, with its totals, run folder and report path."""
        self._ended = False
        super().__init__(*args, **kwargs)
        self._follow_none()

    def _follow_none(self) -> None:
        self._followed: list[Any] = []
        self._lead: Callable[[], Any] = lambda: None  # the run's model, held weakly
        self._at_load = self.register_load_state_pre_hook(_weakly(self._load))

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle gets: nothing of ours is hooked to what it holds."""
        hooks = self._load_model_state_pre_hook
        theirs = type(hooks)((key, hook) for key, hook in hooks.items() if key != self._at_load.id)
        own = {"_followed", "_lead", "_at_load"}
        return {k: v for k, v in vars(self).items() if k not in own} | {"_load_model_state_pre_hook": theirs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._follow_none()

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        optimizers = [item for item in args if isinstance(item, Optimizer)]
        held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        for item in args:  # of a teacher and a student, the student
            if isinstance(item, Module) and (not held or any(id(p) in held for p in item.parameters())):
                self._gear(item)
        prepared = super().prepare(*args, **kwargs)
        for given, item in zip(args, prepared if isinstance(prepared, tuple) else (prepared,), strict=False):
            self._follow(item, given)
        return prepared

    def prepare_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        self._gear(model)
        return self._follow(super().prepare_model(model, *args, **kwargs), model)

    def free_memory(self, *objects: Any) -> Any:
        self._driver.release()
        self._followed.clear()
        self._lead = lambda: None
        return super().free_memory(*objects)

    def prepare_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        return self._follow(super().prepare_optimizer(*args, **kwargs))

    def prepare_data_loader(self, *args: Any, **kwargs: Any) -> Any:
        return self._follow(super().prepare_data_loader(*args, **kwargs))

    def skip_first_batches(self, *args: Any, **kwargs: Any) -> Any:
        return self._follow(super().skip_first_batches(*args, **kwargs))

    def _gear(self, model: Any) -> None:
        """Make the first model that is trained the run's: its inputs count, and it gets the gears."""
        if self._lead() is None and any(p.requires_grad for p in model.parameters()):
            self._lead = weakref.ref(unwrap(model))
        if self._lead() is unwrap(model):
            self._driver.gear(model, device=self.device, scaler=self.scaler)

    def _follow(self, item: Any, given: Any = None) -> Any:
        counts = unwrap(given) is self._lead() if isinstance(given, Module) else len(self._optimizers) <= 1
        if self.green.gears is not None and counts:
            if isinstance(item, Module):
                self.green.gears.check(item)
            if isinstance(item, Optimizer):  # a DeepSpeed engine's steps once a sub-group
                self._driver.bind(item, counts=self.distributed_type != DistributedType.DEEPSPEED)
        self._hook(item, counts=counts)
        return item

    @never_raises
    def _hook(self, item: Any, *, counts: bool) -> None:
        """Hook what ``prepare`` returns, once; ``counts``: a model's inputs, an optimizer's steps are the run's."""
        if any(item is known for known in self._followed):
            return
        self._followed.append(item)
        if isinstance(item, Module):
            self._driver.tap(item, counts=counts, after=None, first=_weakly(self._begin))
            if hasattr(item, "global_steps") and hasattr(item, "step"):  # a DeepSpeed engine steps in backward()
                self._driver.wrap(item, "step", Phase.OPTIMIZER, then=self._engine_step(item))
        elif isinstance(item, Optimizer) and self.distributed_type != DistributedType.DEEPSPEED:  # an engine's is told
            inner = getattr(item, "optimizer", item)  # its hooks run only when it really steps
            if hasattr(inner, "register_step_pre_hook"):
                enter, ended = self._driver.enter, _weakly(self._after_step)
                self._driver.hook(inner.register_step_pre_hook, functools.partial(enter, Phase.OPTIMIZER))
                self._driver.hook(inner.register_step_post_hook, functools.partial(ended, counts))
        elif isinstance(item, torch.utils.data.DataLoader):
            timed = self._timed(type(item))
            object.__dict__["__class__"].__set__(item, timed)  # Accelerate hides __class__ behind a property

    def _after_step(self, counts: bool) -> None:
        self._driver.enter(None)
        if counts:
            self._driver.step()

    def _engine_step(self, engine: Any) -> Callable[[], None]:
        steps, driver = engine.global_steps, self._driver

        def then() -> None:
            nonlocal steps
            before, steps = steps, engine.global_steps
            if steps > before:
                driver.boundary()
                driver.step()

        return then

    def _timed(self, kind: Any) -> Any:
        driver, begin = self._driver, _weakly(self._begin)

        class Timed(kind):  # type: ignore[misc]
            def __iter__(self) -> Iterator[Any]:
                begin()
                batches = super().__iter__()
                while True:
                    driver.enter(Phase.DATA)
                    try:
                        batch = next(batches)
                    except StopIteration:
                        return
                    finally:
                        driver.enter(None)
                    yield batch

        Timed.__name__, Timed.__qualname__ = kind.__name__, kind.__qualname__
        return Timed

    def _begin(self) -> None:
        if self._driver.owned and not self.green.running:  # somebody has closed it: a model that is used on starts none
            self._ended = True  # hooks stay: torch has listed those that it calls now
        if not self._ended and not self.green.running:
            self._driver.start(
                rank=self.process_index,
                world_size=self.num_processes,
                local_rank=self.local_process_index,
                data_parallel=self._driver.batches_of(self),
                model=self._lead(),
            )

    def backward(self, loss: Any, **kwargs: Any) -> None:
        self._begin()
        self._driver.enter(Phase.BACKWARD)
        super().backward(loss, **kwargs)
        self._driver.enter(None)

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: Any = None) -> None:
        metrics = never_raises(self.green.metrics)() or {}
        super().log({**metrics, **values}, step=step, log_kwargs=log_kwargs or {})  # accelerate 1.2 takes no None

    def end_training(self) -> None:
        self._ended = True
        self._driver.stop("finished")
        super().end_training()

    def save_state(self, *args: Any, **kwargs: Any) -> Any:
        with self._driver.nested(Phase.CHECKPOINT):
            folder = super().save_state(*args, **kwargs)
        self._save(folder)
        return folder

    # Beside Accelerate's own files, one a rank: with or without GreenTrain, each loads the other's checkpoints.
    @never_raises
    def _save(self, folder: Any) -> None:
        write_json(_state_path(folder, self.process_index), self.green.state_dict())
        self.green.checkpoint()

    @never_raises
    def _load(self, models: Any, folder: str) -> None:
        for rank in (self.process_index, 0):  # more ranks than were saved: the run is the same, totals start at 0
            path = _state_path(folder, rank)
            if path.exists():
                state = json.loads(path.read_text(encoding="utf-8"))
                self._driver.load(state, 0 if rank == self.process_index else self.process_index)
                return


class GreenTracker(GeneralTracker):  # type: ignore[misc]
    """A run from ``init_trackers`` to ``end_training``, for scripts that take ``log_with`` from their command line.

    It sees neither batches nor steps, so there are joules and grams of the whole and no figure per token:
    GreenAccelerator has these.
    """

    name, requires_logging_directory, main_process_only = "greentrain", False, False

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self._driver, place = Driver(None), PartialState()
        rank, local_rank = place.process_index, place.local_process_index
        self._driver.start(rank=rank, world_size=place.num_processes, local_rank=local_rank)

    @property
    def tracker(self) -> Any:
        return self._driver.session

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None: ...

    def finish(self) -> None:
        self._driver.stop("finished")


def register() -> None:
    """Let ``log_with="greentrain"``, of Accelerate 1.13 and later, add a GreenTracker to every later Accelerator."""
    from accelerate.tracking import register_tracker_class

    register_tracker_class(GreenTracker)


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return what calls a method for as long as its object lives, and does not keep it alive: hooks stay on models."""
    held = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        living = held()
        if living is not None:
            living(*args)

    return call


def _state_path(folder: Any, rank: int) -> Path:
    return Path(folder) / f"greentrain_{rank}.json"
