"""``greentrain watch | export | ui``: runs that go on, and many of them."""

import json
import sys
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greentrain.cli import completion as complete
from greentrain.cli.exit_codes import input_checked
from greentrain.errors import RunFolderError

if TYPE_CHECKING:
    from rich.console import Console

    from greentrain.report.live.follow import RunFollow, RunNow

app = typer.Typer(
    name="export",
    help="What a Prometheus server and Grafana need to show and watch a running job.",
    no_args_is_help=True,
)
OutOption = Annotated[Path | None, typer.Option(help="Write to this file in place of standard output.")]


@app.command()
def dashboard(out: OutOption = None) -> None:
    """Print the Grafana dashboard, for Dashboards > New > Import."""
    _give("dashboard.json", out)


@app.command()
def alerts(out: OutOption = None) -> None:
    """Print Prometheus alerting rules, for rule_files."""
    _give("alerts.yaml", out)


def watch(
    run: Annotated[
        Path,
        typer.Argument(help="Folder of a run; one of runs: the newest of them.", autocompletion=complete.run_folders),
    ],
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a look.")] = False,
    every_s: Annotated[float, typer.Option("--every-s", help="Time between two looks (s).")] = 2.0,
) -> None:
    """Show a run while it goes on, from its files alone; ends when the run has ended."""
    from greentrain.cli.console import console as console_of
    from greentrain.errors import ConfigError
    from greentrain.report.live.follow import RunFollow, find_run
    from greentrain.utils.validation import bound

    with input_checked(RunFolderError, ConfigError):
        bound("--every-s", every_s, 0.1, 3600.0)
        follow = RunFollow(find_run(run))
        now = follow.look()
    console = console_of()
    try:
        with input_checked(RunFolderError):
            if as_json:
                _print_json(follow, now, once, every_s)
            elif once:
                _show_once(now, console)
            else:
                _show(follow, now, console, every_s)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _show_once(now: "RunNow", console: "Console") -> None:
    from greentrain.report.live import follow_view

    follow_view.show(now, console)


def _show(follow: "RunFollow", now: "RunNow", console: "Console", every_s: float) -> None:
    from rich.live import Live

    from greentrain.report.live import follow_view

    if sys.stdout.isatty():
        with Live(follow_view.frame(now), console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while not now.over:
                time.sleep(every_s)
                now = follow.look()
                live.update(follow_view.frame(now), refresh=True)
    else:
        said = ""
        while not now.over:
            said = _say(follow_view.line(now), said)
            time.sleep(every_s)
            now = follow.look()
    typer.echo(follow_view.final_line(now))


def _say(text: str, said: str) -> str:
    """Print a line unless it is the one before."""
    if text != said:
        typer.echo(text)
    return text


def _print_json(follow: "RunFollow", now: "RunNow", once: bool, every_s: float) -> None:
    import dataclasses

    while True:
        typer.echo(json.dumps(dataclasses.asdict(now), allow_nan=False))
        if once or now.over:
            return
        time.sleep(every_s)
        now = follow.look()


def _give(name: str, out: Path | None) -> None:
    text = resources.files("greentrain.report.live").joinpath(name).read_text(encoding="utf-8")
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"greentrain: cannot write {out}: {error.strerror}", err=True)
        raise typer.Exit(2) from error
