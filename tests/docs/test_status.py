"""docs/status.md says of each feature what the tests, the markers and the sources say."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

COLUMNS = ["feature", "GPU", "card", "cluster", "emulated", "read", "says so"]
HARDWARE = COLUMNS[1:4]
RAN = re.compile(r"ran \d{4}-\d\d-\d\d: \[[^]]+\]\(([^)#]+)\)")
PACKAGES = {
    "greentrain": "greentrain",
    **{f"greentrain/{name}": name for name in ("callbacks", "fpga_backend", "optim")},
}


def _rows(text: str) -> list[dict[str, str]]:
    table = text.partition("<!-- status -->")[2].partition("<!-- end of status -->")[0]
    head, _, *lines = [line for line in table.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]
    assert cells[0] == COLUMNS
    return [dict(zip(COLUMNS, row, strict=True)) for row in cells[1:]]


ROWS = _rows((DOCS / "status.md").read_text(encoding="utf-8"))


def _named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _modules() -> dict[str, str]:
    """Return the source of every module by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = (*package.split("/"), *path.relative_to(ROOT / folder).with_suffix("").parts)
            found[".".join(part for part in parts if part != "__init__")] = path.read_text(encoding="utf-8")
    return found


def _says_so(text: str) -> bool:
    return "Experimental: " in text or ("warn_experimental(" in text and "def warn_experimental(" not in text)


def test_a_cell_says_what_it_may() -> None:
    for row in ROWS:
        for column in HARDWARE:
            cell = row[column]
            assert cell == "-" or cell.startswith("not yet") or RAN.fullmatch(cell), (row["feature"], column, cell)
        if any(row[column].startswith("not yet") for column in HARDWARE):
            assert _named(row["emulated"]) or row["GPU"].startswith("not yet: "), row["feature"]


def test_what_is_named_is_there() -> None:
    modules = _modules()
    for row in ROWS:
        for path in (name for column in (*HARDWARE, "emulated") for name in _named(row[column])):
            assert (ROOT / path).exists(), (row["feature"], path)
        for link in re.findall(r"\]\(([^)#]+)\)", " ".join(row.values())):
            assert (DOCS / link).exists(), (row["feature"], link)
        assert [name for name in _named(row["says so"]) if name not in modules] == []


def test_every_test_that_needs_a_gpu_is_in_the_column() -> None:
    marked = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        marks = [
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)
        ]
        if any(
            node.attr == "gpu" and isinstance(node.value, ast.Attribute) and node.value.attr == "mark" for node in marks
        ):
            marked.add(path.relative_to(ROOT).as_posix())
    assert {name for row in ROWS for name in _named(row["GPU"])} == marked


def test_what_never_met_its_hardware_says_so_in_its_module() -> None:
    named = {name for row in ROWS for name in _named(row["says so"])}
    assert {name for name, text in _modules().items() if _says_so(text)} == named


def test_a_feature_that_says_so_has_not_run() -> None:
    for row in ROWS:
        if _named(row["says so"]):
            assert any(row[column].startswith("not yet") for column in HARDWARE), row["feature"]


@pytest.mark.parametrize("page", ["gears-benchmarks.md", "actuation-benchmarks.md"])
def test_a_table_of_a_gpu_is_recorded_before_a_cell_says_so(page: str) -> None:
    """The pages with tables from a GPU say today that there is none; once they have one, the matrix has to say so."""
    empty = re.search(
        r"no machine with a GPU was at hand|no GPU has run this yet", (DOCS / page).read_text(encoding="utf-8")
    )
    ran = any(RAN.fullmatch(row["GPU"]) and page in row["GPU"] for row in ROWS)
    assert bool(empty) != ran


def test_readme_points_here() -> None:
    assert "docs/status.md" in Path(ROOT / "README.md").read_text(encoding="utf-8")
