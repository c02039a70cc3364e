"""Puts GreenTrain into every Trainer and Accelerator of this process and of those that it starts.

Python imports a module of this name at its start if its folder is on PYTHONPATH. What is injected follows the import
of the framework, which may come at any time; GREENTRAIN_INJECT names the frameworks, GREENTRAIN_INJECTED a file that is
made when one was met, GREENTRAIN_CONFIG the configuration (``greentrain.callbacks.CONFIG``).
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def _with_callback(trainer: Any, adapter: str) -> None:
    """Have each Trainer of a class made with one GreenCallback more."""
    init = trainer.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        made_by = importlib.import_module(adapter).GreenCallback
        try:
            bound = signature.bind_partial(self, *args, **kwargs)
        except TypeError:
            init(self, *args, **kwargs)  # which says so in its own words
            return
        told = bound.arguments.get("callbacks")
        told = [] if told is None else list(told) if isinstance(told, (list, tuple)) else [told]
        if not any(isinstance(each, made_by) for each in told):
            bound.arguments["callbacks"] = [*told, made_by()]
        init(*bound.args, **bound.kwargs)

    trainer.__init__ = made


def _lightning(module: ModuleType) -> None:
    _with_callback(module.Trainer, "greentrain.callbacks.lightning")


def _transformers(module: ModuleType) -> None:
    _with_callback(module.Trainer, "greentrain.callbacks.transformers")


def _accelerate(module: ModuleType) -> None:
    from greentrain.callbacks.accelerate import GreenAccelerator

    for each in (module, sys.modules["accelerate.accelerator"]):
        vars(each)["Accelerator"] = GreenAccelerator


def _in_place_of(module: ModuleType, old: Any, new: Any) -> None:
    """Have torch's tests of an optimizer made with another class of its name."""
    torch = sys.modules["torch"]
    new.__name__ = new.__qualname__ = old.__name__
    setattr(torch.optim, old.__name__, new)
    for info in module.optim_db:
        if info.optim_cls is old:
            info.optim_cls = new


def _subclass(module: ModuleType) -> None:
    from torch.optim import AdamW

    from greentrain.optim import GearAdamW

    _in_place_of(module, AdamW, type("AdamW", (GearAdamW,), {}))


def _hooks(module: ModuleType) -> None:
    from torch.optim import Adam, AdamW

    from greentrain.optim import adapt

    for old in (AdamW, Adam):

        class Made(old):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                adapt(self, lambda: 1.0)

        _in_place_of(module, old, Made)


PLACES: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "lightning": ("lightning.pytorch.trainer.trainer", _lightning),
    "transformers": ("transformers.trainer", _transformers),
    "accelerate": ("accelerate", _accelerate),
    "subclass": ("torch.testing._internal.common_optimizers", _subclass),
    "hooks": ("torch.testing._internal.common_optimizers", _hooks),
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a few modules where the others find them, and has something done once they are there."""

    def __init__(self, then: dict[str, Callable[[ModuleType], None]]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._then:
            return None
        then = self._then.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run: Any = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            run(module)
            then(module)
            open(os.environ.get("GREENTRAIN_INJECTED", os.devnull), "a").close()

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


wanted = [name for name in os.environ.get("GREENTRAIN_INJECT", "").split(",") if name]
if wanted:
    sys.meta_path.insert(0, _Finder(dict(PLACES[name] for name in wanted)))
