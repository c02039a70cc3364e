"""Every name that the documents, recipes and benchmarks of version 0.1.0 showed can still be imported."""

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from greentrain.utils.moved import MOVED, new_path

ROOT = Path(__file__).resolve().parents[2]
NAMES = Path(__file__).with_name("public_names.txt").read_text(encoding="utf-8").split()


@cache
def _defined(path: Path) -> set[str]:
    """Return the names that a file binds at its top level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _file(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def _found(name: str) -> bool:
    """Say whether a module, or a name in one, is there, under this path or where the path has moved.

    Files are read, for importing all of them takes every framework. A name that no file binds is asked of its module.
    """
    package, _, last = name.rpartition(".")
    if _file(new_path(name) or name) is not None:
        return True
    file = _file(new_path(package) or package)
    return file is not None and (last in _defined(file) or hasattr(importlib.import_module(package), last))


@pytest.mark.filterwarnings("ignore:greentrain:DeprecationWarning")
def test_every_name_that_documents_showed_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from greentrain.rlhf.trl import yaml_reward

    monkeypatch.setattr(yaml_reward, "settings", lambda: None)  # which TRL's command line has in its environment
    assert [name for name in NAMES if not _found(name)] == []


def test_the_list_is_sorted_and_says_nothing_twice() -> None:
    assert sorted(set(NAMES)) == NAMES


def test_a_module_of_an_old_package_is_loaded_once_and_warns_once() -> None:
    code = (
        "from greentrain.precision.graphs import GearGraphs\n"
        "from greentrain.precision.graphs import GearGraphs as Again\n"
        "from greentrain.control.precision.graphs import GearGraphs as New\n"
        "assert GearGraphs is Again is New\n"
    )
    words = [sys.executable, "-W", "always::DeprecationWarning", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("greentrain.precision.graphs is greentrain.control.precision.graphs now") == 1
    assert "<string>:1: DeprecationWarning" in done.stderr


def test_the_table_of_old_paths_hides_no_module() -> None:
    assert [old for old in MOVED if _file(old)] == []
    assert [new for new in MOVED.values() if not _file(new)] == []
