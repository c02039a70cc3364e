"""Where commands print: results on standard output, progress on standard error where a person looks at it."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

WIDE: Final = 4000
"""Columns in a pipe or a file: no line is wrapped and no cell is cut."""


def console(**options: Any) -> "Console":
    """Return a console on standard output, as wide as the terminal; $COLUMNS wins, and elsewhere nothing is cut.

    Colours are rich's: none in a pipe, by NO_COLOR or TERM=dumb; FORCE_COLOR brings them back.
    """
    from rich.console import Console

    narrow = _is_terminal(sys.stdout) or bool(os.environ.get("COLUMNS"))
    return Console(width=None if narrow else WIDE, **options)


@contextlib.contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield what takes the number done and, where it is known, of all: a bar on standard error.

    Args:
        what: In words, as ``simulating``.
        quiet: Draw nothing, as for ``--json``; nor is anything drawn where standard error is no terminal.
    """
    if quiet or not _is_terminal(sys.stderr):
        yield lambda done, of=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=console.is_dumb_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of=None: bar.update(task, completed=done, total=of)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
