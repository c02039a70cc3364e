"""Whether a block of Python uses what greentrain has: its modules, names, arguments and attributes."""

import ast
import dataclasses
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

USUAL = {"green": "greentrain.session.session:GreenSession", "session": "greentrain.session.session:GreenSession"}
"""What these names stand for on every page."""


def parsed(text: str) -> ast.Module:
    """Return a block's tree; a ``with`` line alone counts as one with a body."""
    try:
        return ast.parse(text)
    except IndentationError:
        return ast.parse(text.rstrip() + "\n    ...\n")


class Lookup:
    """Follows the blocks of one page from the first to the last, and collects what greentrain does not have."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._names: dict[str, Any] = {}
        self._objects = {name: _named(place) for name, place in USUAL.items()}

    def follow(self, text: str) -> None:
        """Read one block."""
        tree = parsed(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "greentrain":
                self._imported(node)
        for name, value in _bound(tree):
            made = self._value(value.func) if isinstance(value, ast.Call) else None
            if inspect.isclass(made):
                self._objects[name] = made
            else:
                self._objects.pop(name, None)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self._called(node)
            elif isinstance(node, ast.Attribute):
                self._read(node)

    def _imported(self, node: ast.ImportFrom) -> None:
        assert node.module is not None
        try:
            module = importlib.import_module(node.module)
        except ImportError as error:
            self.wrong.append(f"cannot import {node.module}: {error}")
            return
        for alias in node.names:
            try:
                value = (
                    getattr(module, alias.name)
                    if hasattr(module, alias.name)
                    else importlib.import_module(f"{node.module}.{alias.name}")
                )
            except ImportError:
                self.wrong.append(f"{node.module} has no {alias.name}")
            else:
                self._names[alias.asname or alias.name] = value
                self._objects.pop(alias.asname or alias.name, None)

    def _value(self, node: ast.expr) -> Any:
        """Return the class or function that an expression names; None: not ours."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in self._objects:
                return getattr(self._objects[node.value.id], node.attr, None)
            owner = self._value(node.value)
            return getattr(owner, node.attr, None) if inspect.isclass(owner) or inspect.ismodule(owner) else None
        return None

    def _called(self, node: ast.Call) -> None:
        function = self._value(node.func)
        if not (inspect.isfunction(function) or inspect.ismethod(function) or inspect.isclass(function)):
            return
        if function.__module__.split(".")[0] != "greentrain":
            return
        parameters = inspect.signature(function).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in parameters:
                self.wrong.append(f"{function.__qualname__} takes no {keyword.arg}")

    def _read(self, node: ast.Attribute) -> None:
        owner: Any = None
        if isinstance(node.value, ast.Name):
            owner = self._objects.get(node.value.id) or self._names.get(node.value.id)
        if owner is None or not (inspect.isclass(owner) or inspect.ismodule(owner)):
            return
        if not hasattr(owner, node.attr) and not (inspect.isclass(owner) and node.attr in _own(owner)):
            self.wrong.append(f"{owner.__name__} has no {node.attr}")


def _bound(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            yield node.optional_vars.id, node.context_expr


def _named(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def _own(owner: type) -> set[str]:
    """Return what a class gives its objects beside its own attributes: fields, and what methods set."""
    found = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    for base in owner.__mro__:
        if base.__module__.split(".")[0] != "greentrain":
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
    return found
