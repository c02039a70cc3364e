"""How a command ends where what it was given is wrong."""

import contextlib
from collections.abc import Iterator

import typer


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
        raise typer.Exit(2) from error
