"""docs/architecture.md shows the rooms that there are, their floors, and paths whose every name exists."""

import ast
import os
import re
import tomllib
from functools import cache

import pytest

from tests.docs.pages import DOCS, ROOT

TEXT = (DOCS / "architecture.md").read_text(encoding="utf-8")
FLOORS = next(
    contract["layers"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    if contract["type"] == "layers"
)
NO_ROOMS = {"__init__.py", "__main__.py", "py.typed"}


def _tables(name: str) -> list[list[list[str]]]:
    parts = re.findall(rf"<!-- {name} -->(.*?)<!-- end of {name} -->", TEXT, flags=re.DOTALL)
    rows = [[line for line in part.splitlines() if line.startswith("|")][2:] for part in parts]
    return [[[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in part] for part in rows]


ROOMS = _tables("rooms")[0]
STEPS = [row for table in _tables("path") for row in table]


@cache
def _defined(room: str) -> dict[str, set[str]]:
    """Return what the files of a room define at their top level: classes with their methods, functions."""
    folder = ROOT / "greentrain" / room
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    found: dict[str, set[str]] = {}
    for path in files:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                body = node.body if isinstance(node, ast.ClassDef) else []
                names = {each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
                found.setdefault(node.name, set()).update(names)
    return found


def test_the_rooms_are_those_of_the_folder() -> None:
    there = {name for name in os.listdir(ROOT / "greentrain") if name != "__pycache__"}
    assert {row[1] for row in ROOMS} == {name.removesuffix(".py") for name in there - NO_ROOMS}
    assert len(there) <= 22


def test_the_floors_are_those_of_import_linter() -> None:
    assert len(FLOORS) <= 12
    linted = [
        {part.strip().removeprefix("greentrain.") for part in re.split(r"[|:]", layer)} for layer in reversed(FLOORS)
    ]
    shown: dict[int, set[str]] = {}
    for floor, room, _ in ROOMS:
        shown.setdefault(int(floor), set()).add(room)
    assert [shown[floor] for floor in sorted(shown)] == linted and sorted(shown) == list(range(1, len(linted) + 1))


@pytest.mark.parametrize("row", STEPS, ids=lambda row: f"{row[2]}-{row[1]}")
def test_a_step_of_a_path_is_in_its_room(row: list[str]) -> None:
    _, name, room, _ = row
    owner, _, method = name.partition(".")
    defined = _defined(room)
    assert owner in defined, f"no {owner} in greentrain/{room}"
    inherited = set().union(*defined.values())
    assert not method or method in defined[owner] | inherited


def test_each_path_is_numbered_and_in_rooms() -> None:
    tables = _tables("path")
    assert len(tables) == 3
    for table in tables:
        assert [row[0] for row in table] == [str(number) for number in range(1, len(table) + 1)]


def test_the_table_of_changes_names_rooms() -> None:
    table = TEXT.partition("## Which room to open")[2].partition("\n## ")[0]
    rooms = [line.split("|")[2].strip().strip("`") for line in table.splitlines() if line.startswith("| ")][1:]
    assert rooms and set(rooms) <= {row[1] for row in ROOMS}
