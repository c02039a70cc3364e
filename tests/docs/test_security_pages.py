"""Each promise of the pages on security names a test, and each test that they name is there."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGES = [ROOT / "SECURITY.md", ROOT / "docs" / "security.md"]
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


def section(page: Path, title: str) -> str:
    """Return what stands under a title of the second level."""
    return page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def functions_of(file: Path) -> set[str]:
    """Return the names of a test file's tests; none where there is no file."""
    if not file.is_file():
        return set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    named = TEST.findall(page.read_text(encoding="utf-8"))
    assert len(named) >= 8, "the page names its tests in another way: this test sees nothing"
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (name in functions_of(ROOT / file) if name else functions_of(ROOT / file))
    ]
    assert missing == []


def test_every_promise_names_a_test() -> None:
    promises = re.split(r"^\* ", section(PAGES[0], "What is promised"), flags=re.MULTILINE)[1:]
    rows = [line for line in section(PAGES[1], "Against whom").splitlines() if line.startswith("|")][2:]
    assert len(promises) >= 5 and len(rows) >= 10
    assert [promise for promise in promises + rows if not TEST.search(promise)] == []
