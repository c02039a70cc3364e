"""What somebody else named is printed as text: nothing in it steers the terminal."""

import io

import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from greentrain.utils.display import Plain, one_line, plain

STEERING = "\x1b]0;t\x07\x1b[2J\x1b]52;c;eA==\x07\x9b31m\u202egnp.exe\x85\u2028\b\r\x7f\ud800"
HOLE = "\N{REPLACEMENT CHARACTER}"


def test_what_steers_a_terminal_is_replaced_and_letters_stay() -> None:
    shown = plain(f"a{STEERING}\nb")
    assert shown == f"a{HOLE}]0;t{HOLE}{HOLE}[2J{HOLE}]52;c;eA=={HOLE}{HOLE}31m{HOLE}gnp.exe{HOLE * 6}\nb"
    assert plain(shown) == shown
    assert one_line("a\nb") == "a b"
    letters = (
        "H100 \N{MICRO SIGN}J CO\N{SUBSCRIPT TWO}e 1\N{THIN SPACE}000 \N{GREEK SMALL LETTER ALPHA} \u6f22 \U0001f331"
    )
    assert plain(letters) == letters


@pytest.mark.parametrize("terminal", [False, True])
def test_so_it_is_within_tables_and_under_styles(terminal: bool) -> None:
    table = Table(title=Text(STEERING))
    table.add_column(Text(STEERING))
    table.add_row(Text(STEERING, style="bold red"))
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=terminal, color_system="standard" if terminal else None)
    console.print(Plain(Group(table, Text(STEERING))))
    shown = out.getvalue()
    assert not {"\x07", "\x9b", "\u202e", "\b", "\r", "\x7f", "\x85"} & set(shown)
    assert ("\x1b[1;31m" in shown) == terminal and "\x1b]" not in shown and "\x1b[2J" not in shown
