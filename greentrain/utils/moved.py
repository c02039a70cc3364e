"""Old paths of modules that documents named before they moved: importing one warns and gives the module of today."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MOVED: Final[Mapping[str, str]] = {
    "greentrain.elastic": "greentrain.control.elastic",
    "greentrain.precision": "greentrain.control.precision",
    "greentrain.units": "greentrain.types",
}
"""Old path and new path; the modules below an old path moved with it. Kept until version 0.3 (docs/architecture.md)."""


def new_path(name: str) -> str | None:
    """Return where a module is today, or None if it never had another path.

    Args:
        name: Dotted path that was asked for.
    """
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


class MovedModules(MetaPathFinder, Loader):
    """Finds modules by their old paths; asked last, so a real module of that name always wins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old path, None for every other name."""
        return None if new_path(fullname) is None else ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module at its new path under the old name, and warn."""
        old = module.__name__
        new = new_path(old)
        assert new is not None
        warnings.warn(f"{old} is {new} now: the old path goes in version 0.3", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(new)  # importlib hands out what stands here after this call


def install() -> None:
    """Let old paths be found; called once, by ``import greentrain``."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
