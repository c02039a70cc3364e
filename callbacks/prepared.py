"""Hooks on what Accelerate prepares: models, optimizers, data loaders and DeepSpeed engines."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from greentrain.callbacks.driver import Driver
from greentrain.types import Phase
from greentrain.utils.never_raise import never_raises


class Prepared:
    """Follows prepared objects, each once.

    Args:
        driver: What the hooks drive.
        begin: Starts the session; called before the first batch and the first forward.
    """

    def __init__(self, driver: Driver, begin: Callable[[], None]) -> None:
        self._driver = driver
        self._begin = begin
        self._followed: list[Any] = []

    @never_raises
    def follow(self, item: Any, *, counts: bool) -> None:
        """Hook an object.

        Args:
            item: Anything that ``Accelerator.prepare`` returns.
            counts: The model's inputs and the optimizer's steps are those of the run.
        """
        if any(item is known for known in self._followed):
            return
        self._followed.append(item)
        if isinstance(item, torch.nn.Module):
            self._driver.undo(item.register_forward_pre_hook(lambda *_: self._begin()).remove)
            self._driver.tap(item, counts=counts, after=None)
            if hasattr(item, "global_steps") and hasattr(item, "step"):  # a DeepSpeed engine steps in backward()
                self._driver.wrap(item, "step", Phase.OPTIMIZER, then=self._engine_step(item))
        elif isinstance(item, torch.optim.Optimizer):
            inner = getattr(item, "optimizer", item)  # its hooks run only when it really steps
            if hasattr(inner, "register_step_pre_hook"):
                self._driver.undo(inner.register_step_pre_hook(lambda *_: self._driver.enter(Phase.OPTIMIZER)).remove)
                self._driver.undo(inner.register_step_post_hook(lambda *_: self._after_step(counts)).remove)
        elif isinstance(item, torch.utils.data.DataLoader):
            timed = self._timed(type(item))
            object.__dict__["__class__"].__set__(item, timed)  # Accelerate hides __class__ behind a property

    def _after_step(self, counts: bool) -> None:
        self._driver.enter(None)
        if counts:
            self._driver.step()

    def _engine_step(self, engine: Any) -> Callable[[], None]:
        steps = engine.global_steps

        def then() -> None:
            nonlocal steps
            before, steps = steps, engine.global_steps
            if steps > before:
                self._driver.boundary()
                self._driver.step()

        return then

    def _timed(self, kind: Any) -> Any:
        driver, begin = self._driver, self._begin

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
