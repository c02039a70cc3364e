"""docs/papers-coverage.md: every item once, and what it names is there and is accepted by its own parser."""

import argparse
import importlib
import re
import shlex
import sys

import pytest

from benchmarks import papers_coverage
from benchmarks.papers_coverage import STATUSES, Item
from tests.docs.command_lines import wrong
from tests.docs.pages import ROOT

ITEMS = papers_coverage.items()
COUNTS = {"E": 90, "G": 44, "O": 25, "S": 25}
"""Items of each paper."""
SHOWN = [(one, shown) for one in ITEMS for shown in one.shows]
SCRIPTS = sorted({shown for one in ITEMS for shown in one.shows if shown.startswith("python ")})


class _Read(Exception):
    """The arguments were read, and nothing ran."""


def test_each_item_stands_once_in_its_order() -> None:
    assert [one.id for one in ITEMS] == [f"{letter}{n + 1}" for letter, count in COUNTS.items() for n in range(count)]
    assert {one.status for one in ITEMS} <= set(STATUSES)


@pytest.mark.parametrize("one", ITEMS, ids=lambda one: one.id)
def test_a_status_says_what_shows_it_and_why(one: Item) -> None:
    if one.status in ("has", "emulated"):
        assert one.shows, "what is there is shown"
    if one.status != "has":
        assert one.why, "what is not all there has a reason"
    assert not re.search(r"[|`]", one.item + "".join(one.shows)), "would break the table"


def test_paths_are_there() -> None:
    named = [shown for one in ITEMS for shown, command in zip(one.shows, one.is_command, strict=True) if not command]
    assert len(named) > 100
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_commands_of_greentrain_are_accepted() -> None:
    named = [shown for _, shown in SHOWN if shown.startswith("greentrain ")]
    assert len(named) > 20
    assert {line: said for line in named if (said := wrong(line))} == {}


@pytest.mark.parametrize("line", SCRIPTS)
def test_scripts_accept_their_arguments(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's own parser reads them; it is stopped before anything runs."""
    words = shlex.split(line)[1:]
    name, arguments = words[0].removesuffix(".py").replace("/", "."), words[1:]
    assert (ROOT / words[0]).is_file()
    read = argparse.ArgumentParser.parse_args

    def stopped(parser: argparse.ArgumentParser, args: object = None, namespace: object = None) -> None:
        read(parser, arguments)
        raise _Read

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stopped)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    try:
        script = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("benchmarks", "recipes", "greentrain"):
            raise
        pytest.skip(f"{name} needs {error.name}")
    with pytest.raises(_Read):
        script.main()


def test_wrong_arguments_would_be_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert wrong("greentrain estimate --no-such-option 3")
    with pytest.raises(SystemExit):
        test_scripts_accept_their_arguments("python benchmarks/papers_coverage.py --no-such-option", monkeypatch)
    assert "--no-such-option" in capsys.readouterr().err


def test_the_page_is_what_the_records_make() -> None:
    text = papers_coverage.PAGE.read_text(encoding="utf-8")
    assert papers_coverage.page(text, ITEMS) == text, "run benchmarks/papers_coverage.py --into docs/papers-coverage.md"
    assert all(f"| {one.id} |" in text for one in ITEMS)
    assert papers_coverage.page(text, ITEMS[1:]) != text
