"""The versions that pyproject.toml allows are those that .ci/matrix runs, and the tested ones are among them."""

import ast
import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    """Return .ci/matrix as a module."""
    loader = importlib.machinery.SourceFileLoader("ci_matrix", str(ROOT / ".ci" / "matrix"))
    spec = importlib.util.spec_from_loader("ci_matrix", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_matrix"] = module  # dataclasses look their module up
    write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = write
        del sys.modules["ci_matrix"]
    return module


def _tested() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {name.lower().replace("_", "-"): version for name, _, version in (line.partition("==") for line in lines)}


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)][:3]


def test_the_tested_versions_are_within_the_bounds(matrix: ModuleType) -> None:
    tested, bounds = _tested(), matrix.lower_bounds()
    known = bounds.keys() & tested.keys()
    assert {"torch", "lightning", "accelerate", "transformers", "trl", "codecarbon", "typer", "httpx"} <= known
    assert [name for name in known if _numbers(tested[name]) < _numbers(bounds[name])] == []


def test_every_framework_has_a_cell_at_its_lower_bound(matrix: ModuleType) -> None:
    bounds = matrix.lower_bounds()
    pinned = {name for cell in matrix.CELLS.values() for name in cell.oldest}
    assert {"lightning", "accelerate", "transformers", "codecarbon"} <= pinned
    for cell in matrix.CELLS.values():
        pins = matrix.pins(cell)
        assert all(any(pin.startswith(f"{name}=={bounds[name]}") for pin in pins) for name in cell.oldest)
        assert not [pin for pin in pins if pin.partition("=")[0] in ("torch", "numpy")], (
            "these stay as they are in .venv"
        )
    assert "torch 2.6" in matrix.DECLARED and bounds["torch"] == "2.6"


def test_what_a_cell_runs_is_there(matrix: ModuleType) -> None:
    for cell in matrix.CELLS.values():
        names = set()
        for file in cell.tests:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            names |= {f"{file}::{node.name}" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert cell.left_out.keys() <= names
        for word in cell.quick.split(" or "):
            assert any(word in name for name in names), word


def test_the_list_says_what_is_not_run(matrix: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.main(["--list"]) == 0
    told = capsys.readouterr().out
    assert "lightning: lightning==" in told and "torch 2.6: declared, not run" in told
    with pytest.raises(SystemExit):
        matrix.main(["nonsense"])


def test_a_cell_that_cannot_be_fetched_fails_but_for_quick(matrix: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "pins", lambda cell: ["greentrain-no-such-package==0.0.0.dev0"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    cell: Any = matrix.CELLS["lightning"]
    assert matrix._run(cell, True) == "left out: cannot be fetched"
    assert matrix._run(cell, False) == "failed"


def test_trackers_of_the_oldest_accelerate_get_no_none(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate = pytest.importorskip("accelerate")
    from greentrain.callbacks.accelerate import GreenAccelerator

    seen: list[object] = []

    def log(self: object, values: object, step: int | None = None, log_kwargs: Any = {}) -> None:  # noqa: B006
        seen.append(log_kwargs.get("tracker", {}))  # as accelerate 1.2 does

    monkeypatch.setattr(accelerate.Accelerator, "log", log)
    GreenAccelerator(cpu=True).log({"loss": 1.0})
    assert seen == [{}]
