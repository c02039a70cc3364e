"""``greentrain ui``: a local page over many runs.

Exit codes: 0 ended by a signal, 1 something is not installed or failed, 2 wrong usage or input.
"""

import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from greentrain.cli.terminal import ended_by_signal
from greentrain.errors import GreenTrainError


def ui(
    runs: Annotated[Path, typer.Argument(help="Folder of run folders, at most three folders deep.")],
    host: Annotated[str, typer.Option(help="Address to listen at; another than this machine's needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="TCP port; 0: any that is free.")] = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="Holds a token that scripts and other machines send; made where it is missing.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="Another host name under which it is asked, as behind a proxy.")
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(help="State of a fleet's controller: a file or postgresql://...; that in the folder by default."),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the link, and open no browser.")] = False,
    every_s: Annotated[float, typer.Option(help="Time between two looks at the folders (s).")] = 3.0,
    cache: Annotated[Path | None, typer.Option(help="File of what was read; in your cache folder by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the link as JSON, and open no browser.")] = False,
) -> None:
    """Show many runs as a page until Ctrl-C, as in: greentrain ui runs."""
    from greentrain.report.ui.server import Listening, PageServer
    from greentrain.utils.http_access import token_of

    token = None if token_file is None else token_of(token_file)
    at = Listening(host=host, port=port, token=token, names=name or [])
    try:
        server = PageServer(runs, at, cache=cache, every_s=every_s, used=_say_next, fleet=fleet)
    except OSError as error:
        raise GreenTrainError(str(error.strerror or error)) from error
    with server, ended_by_signal() as ended:
        typer.echo(json.dumps({"url": server.link}) if as_json else f"Runs of {runs}: {server.link}")
        sys.stdout.flush()
        if not (as_json or no_open) and _has_display():
            threading.Thread(target=_open, args=(server.link,), daemon=True).start()  # some browsers are waited for
        while not ended.wait(1.0):
            if not server.is_alive:
                raise GreenTrainError("the server ended by itself")


def _say_next(link: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal may be gone; the browser is in all the same
        typer.echo(f"Opened. For another browser: {link}", err=True)


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(link: str) -> None:
    import webbrowser

    with contextlib.suppress(webbrowser.Error, OSError):
        webbrowser.open(link)
