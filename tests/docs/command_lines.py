"""Reading of ``greentrain ...`` lines against the command line's own parser, without running anything."""

import re
import shlex
from typing import Any

import typer.main

from greentrain.cli.app import app

_INLINE = re.compile(r"`(greentrain [^`]+)`")


def inline(text: str) -> list[str]:
    """Return the commands in a page's running text."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(r"\s+", " ", command) for command in _INLINE.findall(prose)]


def in_shell(text: str) -> list[str]:
    """Return the commands of a shell block: continued lines as one, prompts and comments left out."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip().removeprefix("$ ") for line in lines if re.match(r"\s*(\$ )?greentrain\b", line)]


def wrong(line: str) -> str:
    """Return what the command line would not take; "": all of it is known."""
    words = [word for word in shlex.split(line, comments=True)[1:] if word != "..."]
    try:
        _read(typer.main.get_command(app), "greentrain", words, None)
    except Exception as error:
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return ""


def _read(command: Any, name: str, words: list[str], parent: Any) -> None:
    context = command.context_class(command, info_name=name, parent=parent, **command.context_settings)
    given, rest, _ = command.make_parser(context).parse_args(args=list(words))
    for parameter in command.params:
        value = given.get(parameter.name)
        choices = getattr(parameter, "type", None)
        if value is not None and hasattr(choices, "choices"):
            parameter.type_cast_value(context, value)
    commands = getattr(command, "commands", None)
    if commands is None:
        if rest and not context.allow_extra_args and not any(p.param_type_name == "argument" for p in command.params):
            raise ValueError(f"{name} takes no {rest}")
        return
    if not rest:
        return
    if rest[0] not in commands:
        raise ValueError(f"{name} has no command {rest[0]!r}")
    _read(commands[rest[0]], rest[0], rest[1:], context)
