"""``greentrain doctor | measure | report | audit | simulate | plan | estimate | launch | config | watch | export | ui |
fpga | rlhf | serve``, from ``simulate`` on in ``greentrain.cli_*``.

Exit codes: 0 as asked, 1 failed, 2 wrong usage or input, 130 interrupted, each but 0 with a line on standard error;
``measure`` and ``launch`` end with the exit code of what they ran.
"""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from greentrain.cli import (
    audit,
    completion,
    estimate,
    fpga,
    launch,
    rlhf,
    schedule,
    serve,
    ui,
)
from greentrain.cli import (
    config as cli_config,
)
from greentrain.cli import (
    runs as cli_runs,
)
from greentrain.cli.exit_codes import FAILED, WRONG, WRONG_INPUT, Commands, flush, input_checked, interrupted
from greentrain.errors import ConfigError, GreenTrainError
from greentrain.utils.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="greentrain",
    cls=Commands,
    help="Energy and carbon of PyTorch training, measured.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; a GreenTrain error is one line on standard error, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII alone shows ? for a dot
    try:
        app()
    except GreenTrainError as error:
        typer.echo(f"greentrain: {error}", err=True)
        sys.exit(WRONG if isinstance(error, WRONG_INPUT) else FAILED)
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(interrupted())
    finally:
        flush()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"greentrain-torch {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Energy and carbon of PyTorch training, measured."""


ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="green.yaml with run, power and carbon.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show which sensors can be read, why not, what permission is missing, and how accurate they are."""
    import dataclasses

    from greentrain.carbon.detect import open_signal
    from greentrain.config.schema import GreenConfig
    from greentrain.control.actuators.cap_survey import survey_caps
    from greentrain.power.detect import survey

    settings = GreenConfig.load(config)
    findings = survey(settings.power)
    signal_facts = dict(open_signal(settings.carbon).describe())
    if as_json:
        sensors = [dataclasses.asdict(f) for f in findings]
        told = {"sensors": sensors, "carbon": signal_facts, "caps": list(survey_caps())}
        typer.echo(json.dumps(told, indent=1))
        return
    from rich.markup import escape
    from rich.table import Table

    from greentrain.cli.console import console as console_of

    table = Table(title="Sensors of this machine", title_justify="left")
    for column in ("meter", "device", "", "error", "how, or why not"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = f"[green]{finding.provenance}[/]" if finding.usable else "[red]missing[/]"
        error = "" if finding.uncertainty is None else f"{finding.uncertainty:.0%}"
        table.add_row(finding.meter, escape(finding.device), mark, error, escape(finding.detail))
    console = console_of()
    console.print(table)
    place = ", ".join(f"{key} {value}" for key, value in signal_facts.items() if key != "terms")
    console.print(f"Carbon intensity: {place}", highlight=False, markup=False)
    for line in survey_caps():
        console.print(line, highlight=False, markup=False)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def measure(
    context: typer.Context,
    config: ConfigOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; the program's name by default.")] = None,
    summary: Annotated[
        Path | None, typer.Option(help="Write the run's figures to this file too, as report --json prints them.")
    ] = None,
) -> None:
    """Measure any program and its whole process tree, as in: greentrain measure -- python train.py."""
    command = [word for i, word in enumerate(context.args) if not (i == 0 and word == "--")]
    if not command:
        raise typer.BadParameter("give the program to measure after --, for example: greentrain measure -- python x.py")
    sys.exit(_measure(command, config, name, summary))


@app.command()
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="One run folder, or several to compare.", show_default=False, autocompletion=completion.run_folders
        ),
    ] = None,
    as_json: JsonOption = False,
    root: Annotated[
        Path | None, typer.Option("--all", help="Totals of all runs under this folder, in place of single runs.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="With --all: project (the default), user, zone, month (UTC), device, provenance, tag:NAME.",
            autocompletion=completion.some_of("project", "user", "zone", "month", "device", "provenance", "tag:"),
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help="With --all: first month or day (UTC), as 2026-01.")] = None,
    until: Annotated[str | None, typer.Option(help="With --all: last month or day, itself included.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="With --all: NAME=VALUE, as project=demo; all of several must hold.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="With --all: write the runs as .csv or .parquet.")] = None,
    export_totals: Annotated[
        Path | None, typer.Option(help="With --all: write the totals as .csv or .parquet.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="With --all: file of what was read; in your cache folder by default.")
    ] = None,
) -> None:
    """Print a run's table and write report.html, summary.json, emissions.csv, model_card.yaml and boamps.json."""
    from greentrain.cli.console import console

    if (root is None) == (not runs):
        raise typer.BadParameter("give run folders, or --all with a folder that holds them")
    if root is None:
        if any(option is not None for option in (by, since, until, where or None, export, export_totals, cache)):
            raise typer.BadParameter(
                "--by, --since, --until, --where, --export, --export-totals and --cache need --all"
            )
        _report(runs or [], console(), as_json=as_json)
        return
    with input_checked(ConfigError):
        from greentrain.report.fleet import report as fleet
        from greentrain.report.fleet.totals import Selection, parse_where

        only = Selection(since=since, until=until, where=parse_where(where or []))
        keys = fleet.DEFAULT_BY if by is None else [key.strip() for key in by.split(",") if key.strip()]
        asked = fleet.Asked(root=root, by=keys, only=only, runs_file=export, totals_file=export_totals, cache=cache)
        fleet.report(asked, console(), as_json=as_json)


def _report(runs: list[Path], console: "Console", *, as_json: bool) -> None:
    from greentrain.ledger.reader import read_run
    from greentrain.report import compare, table, write_report
    from greentrain.report.summary import summarize

    summaries: list[dict[str, Any]] = [summarize(read_run(folder)) for folder in runs]
    if len(runs) > 1:
        comparison = compare.compare(summaries)
        if as_json:
            typer.echo(json.dumps(comparison, indent=1))
        else:
            console.print(compare.render(comparison))
        return
    html = write_report(runs[0])
    if as_json:
        typer.echo(json.dumps(summaries[0], indent=1))
        return
    console.print(table.render(summaries[0]))
    console.print(f"Report: {html}", highlight=False, markup=False, soft_wrap=True)


app.command()(audit.audit)
app.command()(schedule.simulate)
app.command()(schedule.plan)
app.command()(estimate.estimate)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)(launch.launch)
app.add_typer(cli_config.app)
app.command()(cli_runs.watch)
app.add_typer(cli_runs.app)
app.command()(ui.ui)
app.add_typer(fpga.app)
app.add_typer(rlhf.app)
app.command()(serve.serve)


def _measure(command: list[str], config: Path | None, name: str | None, summary: Path | None) -> int:
    import dataclasses
    import functools

    from greentrain.config.schema import GreenConfig
    from greentrain.power.claims import claims_dir, other_pids
    from greentrain.power.detect import open_meters
    from greentrain.session.session import GreenSession
    from greentrain.types import Topology

    settings = GreenConfig.load(config)
    run = dataclasses.replace(settings.run, name=name or Path(command[0]).name.lstrip(".") or "measure")
    settings = dataclasses.replace(settings, run=run)
    _check_writable(Path(run.dir))
    if summary is not None:
        if not run.report:
            raise ConfigError("--summary needs the report, but run.report is false: leave one of them out")
        _check_file(summary)
    with _forwarding() as children:
        try:
            child = subprocess.Popen(command)
        except OSError as error:
            typer.echo(f"greentrain: cannot start {command[0]!r}: {error.strerror}", err=True)
            return 127 if isinstance(error, FileNotFoundError) else 126
        children.append(child)
        try:
            others = functools.partial(other_pids, claims_dir())  # a child with a session books for itself
            meter = open_meters(settings.power, root_pid=child.pid, excluded_pids=others)
            green = GreenSession(settings, meter=meter, topology=Topology(host=platform.node())).start()
        except BaseException:
            child.terminate()
            child.wait()
            raise
        # Until the books are closed the child stays a zombie, whose CPU time can still be read.
        _await(child)
        green.close("finished")
        code = child.wait()
    if green.report_path is not None:
        typer.echo(f"greentrain: report {green.report_path}", err=True)
        if summary is not None:
            _copy(green.report_path.with_name("summary.json"), summary)
    return code if code >= 0 else 128 - code  # as shells do for a process that signal n killed


def _await(child: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a child and leave it a zombie, where the platform can."""
    if sys.platform != "win32" and hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    else:
        child.wait()


@contextlib.contextmanager
def _forwarding() -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Pass SIGTERM on to the children in the list that is returned; the books are closed when they have ended."""
    children: list[subprocess.Popen[bytes]] = []

    def forward(signum: int, frame: object) -> None:
        if not children:
            sys.exit(128 + signum)
        for child in children:
            child.send_signal(signum)

    def wait_only(signum: int, frame: object) -> None:
        """The terminal has sent SIGINT to the child too."""

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, forward),
        signal.SIGINT: signal.signal(signal.SIGINT, wait_only),
    }
    try:
        yield children
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _check_writable(folder: Path) -> None:
    from greentrain.errors import RunFolderError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot create {folder}: {error.strerror}; set run.dir to a writable folder") from error
    if not os.access(folder, os.W_OK):
        raise RunFolderError(f"cannot write to {folder}; make it writable or set run.dir")


def _check_file(path: Path) -> None:
    """Check, before the program runs, that a file can be written."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise ConfigError(f"--summary {path} cannot be written: {error.strerror}; name another file") from error


def _copy(source: Path, to: Path) -> None:
    try:
        to.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:  # the program has ended: its exit code counts
        typer.echo(f"greentrain: cannot write {to}: {error.strerror}; the figures are in {source}", err=True)
