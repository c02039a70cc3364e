"""How every command behaves at a terminal: its common options, what it prints where, and how it ends.

Results go to standard output, progress and one line of what is wrong to standard error. A command ends with 0 as asked,
1 failed, 2 wrong usage or input, 130 interrupted: it raises a GreenTrainError, and :class:`Commands` does the rest.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from greentrain.errors import CarbonSignalError, ConfigError, GreenTrainError, RunFolderError
from greentrain.fpga_backend.errors import ArtifactError, BatchError, UnsupportedModelError
from greentrain.utils.display import Plain, one_line, plain
from greentrain.utils.validation import choice

if TYPE_CHECKING:
    from rich.console import Console


FAILED: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells say it."""
WRONG_INPUT: Final = (
    ConfigError, CarbonSignalError, RunFolderError, ArtifactError, BatchError, UnsupportedModelError,
)  # fmt: skip
"""Raised where what was given is wrong; any other GreenTrainError is a failure."""

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="green.yaml with run, power and carbon.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Write to this file instead of standard output.")]


@contextlib.contextmanager
def handled(handlers: Mapping[int, Callable[[int, Any], object]]) -> Iterator[None]:
    """Handle signals in a block; what handled them before is put back."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ended_by_signal() -> Iterator[threading.Event]:
    """Yield what SIGINT and SIGTERM set; their handlers are put back."""
    ended = threading.Event()
    with handled(dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda *_: ended.set())):
        yield ended


class Commands(TyperGroup):
    """Commands that a GreenTrainError or Ctrl-C ends with one line on standard error and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(interrupted()) from None
        except GreenTrainError as error:
            say(f"greentrain: {error}")
            raise typer.Exit(WRONG if isinstance(error, WRONG_INPUT) else FAILED) from error


def interrupted() -> int:
    """Say that the user ended it, and return the exit code."""
    say("greentrain: interrupted")
    return INTERRUPTED


def say(line: str) -> None:
    """Print a line on standard error, where it can be written."""
    with contextlib.suppress(OSError):  # the disk of a log is full, or nobody reads it any more
        typer.echo(one_line(line), err=True)


def put(text: str, out: Path | None) -> None:
    """Print a text, or write it to the file of :data:`OutOption`.

    Args:
        text: The text, with the end of its last line.
        out: File to write to; None prints on standard output.

    Raises:
        RunFolderError: The file cannot be written.
    """
    if out is None:
        typer.echo(plain(text) if _is_terminal(sys.stdout) else text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"cannot write {out}: {error.strerror}; name a file in a writable folder") from error
    say(f"Written: {out}")


def words_of(option: str, text: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """Return the words of a list with commas, each once.

    Args:
        option: Name of the option, for messages.
        text: The list, as the option was given.
        allowed: Words that may be in it; empty: any.

    Raises:
        ConfigError: It holds no word, or one that is not allowed.
    """
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise ConfigError(f"{option} is empty")
    for word in words if allowed else ():
        choice(option, word, allowed)
    return words


def whole_numbers_of(option: str, text: str) -> list[int]:
    """Return the numbers of a list with commas; raises ConfigError for what is none from 1 to 1000000."""
    for word in (words := words_of(option, text)):
        if not word.isdecimal() or not 1 <= int(word) <= 10**6:
            raise ConfigError(f"{option} holds {word!r}; it is a list of whole numbers from 1 to 1000000, as in 1,2")
    return [int(word) for word in words]


def words_after(context: typer.Context) -> list[str]:
    """Return the words of the program that a command runs, without the ``--`` before them."""
    return context.args[1:] if context.args[:1] == ["--"] else context.args


def flush() -> None:
    """Write what is left; a reader that has gone away, as ``head`` does, is no error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):  # or the interpreter tries again, and complains
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


WIDE: Final = 4000
"""Columns in a pipe or a file: no line is wrapped and no cell is cut."""


def console(**options: Any) -> "Console":
    """Return a console on standard output, as wide as the terminal; $COLUMNS wins, and elsewhere nothing is cut.

    Colours are rich's: none in a pipe, by NO_COLOR or TERM=dumb; FORCE_COLOR brings them back.
    """
    from rich.console import Console, ConsoleRenderable, RenderHook

    class _Plainly(RenderHook):
        """Lets nothing that is printed steer the terminal; what a command shows live it wraps itself."""

        def process_renderables(self, renderables: "list[ConsoleRenderable]") -> "list[ConsoleRenderable]":
            return [Plain(renderable) for renderable in renderables]

    narrow = _is_terminal(sys.stdout) or bool(os.environ.get("COLUMNS"))
    console = Console(width=None if narrow else WIDE, **options)
    console.push_render_hook(_Plainly())
    return console


@contextlib.contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield what takes the number done and, where it is known, of all: a bar on standard error.

    Args:
        what: Name of the work under way, as ``simulating``.
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
