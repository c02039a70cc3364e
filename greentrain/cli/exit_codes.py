"""How a command ends: 0 as asked, 1 failed, 2 wrong usage or input, 130 interrupted."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.core import TyperGroup

from greentrain.errors import CarbonSignalError, ConfigError, RunFolderError

FAILED: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells say it."""
WRONG_INPUT: Final = (ConfigError, CarbonSignalError, RunFolderError)
"""Raised where what was given is wrong; any other GreenTrainError is a failure."""


@contextlib.contextmanager
def input_checked(*wrong: type[Exception]) -> Iterator[None]:
    """End with 2, and one line, where what was given is wrong.

    Args:
        wrong: What is raised for wrong input.
    """
    try:
        yield
    except wrong as error:
        typer.echo(f"greentrain: {error}", err=True)
        raise typer.Exit(WRONG) from error


@contextlib.contextmanager
def ended_by_signal() -> Iterator[threading.Event]:
    """Yield what SIGINT and SIGTERM set; their handlers are put back."""
    ended = threading.Event()
    old = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Commands(TyperGroup):
    """Commands that Ctrl-C ends with 130 and one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(interrupted()) from None


def interrupted() -> int:
    """Say that the user ended it, and return the exit code."""
    with contextlib.suppress(OSError):
        typer.echo("greentrain: interrupted", err=True)
    return INTERRUPTED


def flush() -> None:
    """Write what is left; a reader that has gone away, as ``head`` does, is no error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):  # or the interpreter tries again, and complains
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
