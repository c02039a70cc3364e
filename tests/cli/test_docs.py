"""The page of the command line: every command, with an example of its own."""

import re
from pathlib import Path

from tests.helpers.command_line import every_command

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_every_command_has_a_line_and_an_example() -> None:
    rows = re.findall(
        r"^\| `([a-z ]+)` \| (.+) \| `greentrain (.+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(name for name, _, _ in rows) == sorted(every_command())
    for name, does, example in rows:
        assert example.startswith(f"{name} ") or example == name
        assert does.endswith(".")
