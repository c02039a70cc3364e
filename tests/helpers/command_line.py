"""The command line as a user has it: its own process, pipes or a terminal, and a list of all commands."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer.main

from greentrain.cli.app import app

COMMAND = (sys.executable, "-c", "import sys; from greentrain.cli import main; sys.argv[0] = 'greentrain'; main()")
_OURS = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CI", "GITHUB_ACTIONS")


def environment(**more: str) -> dict[str, str]:
    """Return the environment without what changes widths and colours, and with what is given."""
    return {name: value for name, value in os.environ.items() if name not in _OURS} | more


def greentrain(*words: str, cwd: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run a command with pipes."""
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment(**environ),
        timeout=240,
    )


def every_command() -> dict[str, Any]:
    """Return all commands by name, as ``fpga explore``."""
    return dict(_commands(typer.main.get_group(app), ()))


def _commands(group: Any, above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*above, name))
        else:
            yield " ".join((*above, name)), command


def options(command: Any) -> set[str]:
    """Return the options of a command."""
    return {option for parameter in command.params for option in parameter.opts}


def in_terminal(
    words: Sequence[str], *, cwd: Path, which: Sequence[str] = ("stdout", "stderr"), columns: int = 80, **environ: str
) -> tuple[int, str, str]:
    """Run a command with a terminal; return its exit code, what the terminal showed, and what went into the pipe.

    Args:
        words: The command.
        cwd: Where it runs.
        which: The streams that are the terminal; the others are one pipe.
        columns: Width of the terminal.
        environ: More of the environment.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    streams: dict[str, Any] = {name: slave if name in which else subprocess.PIPE for name in ("stdout", "stderr")}
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env=environment(**{"TERM": "xterm-256color", **environ}),
        **streams,
    )
    os.close(slave)
    pipe = process.stdout or process.stderr
    shown, piped = b"", b""
    open_fds = [master, *([pipe.fileno()] if pipe is not None else [])]
    end_s = time.monotonic() + 240
    with contextlib.closing(pipe) if pipe is not None else contextlib.nullcontext():
        while open_fds:
            assert time.monotonic() < end_s
            for fd in select.select(open_fds, [], [], 1.0)[0]:
                try:
                    data = os.read(fd, 65536)
                except OSError:  # the last one who had the terminal open is gone
                    data = b""
                if not data:
                    open_fds.remove(fd)
                elif fd == master:
                    shown += data
                else:
                    piped += data
        code = process.wait(timeout=240)
    os.close(master)
    return code, shown.decode().replace("\r\n", "\n"), piped.decode()
