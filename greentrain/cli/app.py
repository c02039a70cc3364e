"""The command ``greentrain``: its parts in one place, with ``doctor`` and ``measure``, which need no other module.

``measure`` and ``launch`` end with the exit code of what they ran; the other codes are in ``greentrain.cli.terminal``.
"""

import contextlib
import errno
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from greentrain.cli import config as cli_config
from greentrain.cli import daemon, estimate, fleet, fpga, launch, rlhf, runs, schedule, serve, tune, ui
from greentrain.cli.terminal import (
    WRONG_INPUT,
    Commands,
    ConfigOption,
    JsonOption,
    console,
    flush,
    handled,
    interrupted,
    say,
    words_after,
)
from greentrain.errors import ConfigError, MissingExtraError
from greentrain.utils.version import __version__

if TYPE_CHECKING:
    from greentrain.config.schema import GreenConfig
    from greentrain.session.session import GreenSession

app = typer.Typer(
    name="greentrain",
    cls=Commands,
    help="Energy and carbon of PyTorch training, measured.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings of a command after whose own options a program with its options follows."""


def main() -> None:
    """Run the command line; a GreenTrain error is one line on standard error, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII alone shows ? for a dot
    try:
        app()
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


@app.command()
def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show which sensors can be read, why not, what permission is missing, and how accurate they are."""
    import dataclasses

    from greentrain.carbon.detect import open_signal
    from greentrain.config.schema import GreenConfig
    from greentrain.control.actuators.power_cap import survey_caps
    from greentrain.power.daemon_client import survey_daemon
    from greentrain.power.detect import survey

    settings = GreenConfig.load(config)
    findings = survey(settings.power)
    ticks = _ticks_of_last_run(Path(settings.run.dir))
    signal_facts = dict(open_signal(settings.carbon).describe())
    if settings.carbon.relative_error is not None:
        signal_facts["error"] = f"{settings.carbon.relative_error:.1%} (carbon.relative_error)"
    if as_json:
        sensors = [dataclasses.asdict(f) for f in findings]
        told = {"sensors": sensors, "carbon": signal_facts, "caps": [*survey_caps(), survey_daemon()], "ticks": ticks}
        typer.echo(json.dumps(told, indent=1))
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Sensors of this machine", title_justify="left")
    for column in ("meter", "device", "", "error", "how, or why not"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = f"[green]{finding.provenance}[/]" if finding.usable else "[red]missing[/]"
        error = "" if finding.uncertainty is None else f"{finding.uncertainty:.0%}"
        table.add_row(finding.meter, escape(finding.device), mark, error, escape(finding.detail))
    out = console()
    out.print(table)
    place = ", ".join(f"{key} {value}" for key, value in signal_facts.items() if key != "terms")
    out.print(f"Carbon intensity: {place}", highlight=False, markup=False)
    for line in (*survey_caps(), survey_daemon(), *(f"In the last run: {device['text']}" for device in ticks)):
        out.print(line, highlight=False, markup=False)


def _ticks_of_last_run(runs: Path) -> list[dict[str, Any]]:
    """Return what the newest run found of its counters' ticks: only phases that come again show it."""
    from greentrain.errors import RunFolderError
    from greentrain.ledger.reader import read_run
    from greentrain.report.live.follow import find_run

    try:
        ranks = read_run(find_run(runs), most=1).ranks
    except (RunFolderError, OSError):
        return []
    keys = ("device", "text", "tick_s", "sees_s", "late_s")
    return [{key: told[key] for key in keys} for rank in ranks for told in rank.told.values() if told["text"]]


@app.command(context_settings=PASSED_ON)
def measure(
    context: typer.Context,
    config: ConfigOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; the program's name by default.")] = None,
    summary: Annotated[
        Path | None, typer.Option(help="Write the run's figures to this file too, as report --json prints them.")
    ] = None,
) -> None:
    """Measure any program and its whole process tree, as in: greentrain measure -- python train.py."""
    command = words_after(context)
    if not command:
        raise typer.BadParameter("give the program to measure after --, for example: greentrain measure -- python x.py")
    import dataclasses

    from greentrain.config.schema import GreenConfig
    from greentrain.report.live.terminal import name_report

    settings = GreenConfig.load(config)
    run = dataclasses.replace(settings.run, name=name or Path(command[0]).name.lstrip(".") or "measure")
    settings = dataclasses.replace(settings, run=run)
    _check_writable(Path(run.dir))
    if summary is not None:
        if not run.report:
            raise ConfigError("--summary needs the report, but run.report is false: leave one of them out")
        try:  # before the program runs, not after hours
            summary.open("a", encoding="utf-8").close()
        except OSError as error:
            raise ConfigError(f"--summary {summary} cannot be written: {error.strerror}; name another file") from error
    _check_program(command[0])
    with _forwarding() as children:
        green = _measuring(settings, children)
        try:
            child = subprocess.Popen(command)
        except OSError as error:
            if green is not None:
                green.close("exception")
            _cannot_start(command[0], error)
        children.append(child)
        # Until the books are closed the child stays a zombie, whose CPU time can still be read.
        code = _await(child)
        if green is not None:
            green.close("finished" if code == 0 else "failed", exit_code=code)
        child.wait()
    if green is not None and green.report_path is not None:
        name_report(green.report_path)
        if summary is not None:
            figures = green.report_path.with_name("summary.json")
            try:
                summary.write_text(figures.read_text(encoding="utf-8"), encoding="utf-8")
            except OSError as error:  # the program has ended: its exit code counts
                say(f"greentrain: cannot write {summary}: {error.strerror}; the figures are in {figures}")
    sys.exit(code)


app.command()(runs.report)
app.command(cls=runs.TwoGroups)(runs.compare)
app.command()(runs.audit)
app.command()(schedule.simulate)
app.command()(schedule.plan)
app.command()(estimate.estimate)
app.command(context_settings=PASSED_ON)(launch.launch)
app.add_typer(cli_config.app)
app.command()(runs.watch)
app.add_typer(runs.app)
app.add_typer(runs.event)
app.command()(ui.ui)
app.add_typer(fleet.app)
app.add_typer(fpga.app)
app.add_typer(rlhf.app)
app.command()(serve.serve)
app.command()(daemon.daemon)
app.add_typer(tune.app)


def _measuring(settings: "GreenConfig", children: "list[subprocess.Popen[bytes]]") -> "GreenSession | None":
    """Begin to measure what will be the first of these children; None, and a line that says why, where that fails."""
    import functools

    from greentrain.power.claims import claims_dir, other_pids
    from greentrain.power.detect import open_meters
    from greentrain.session.session import GreenSession
    from greentrain.types import Topology

    others = functools.partial(other_pids, claims_dir())  # a child with a session books for itself
    try:
        meter = open_meters(
            settings.power, root_pid=lambda: children[0].pid if children else None, excluded_pids=others
        )
        return GreenSession(settings, meter=meter, topology=Topology(host=platform.node())).start()
    except (*WRONG_INPUT, MissingExtraError):  # which the user can put right before anything runs
        raise
    except Exception as error:
        say(f"greentrain: the program runs, but is not measured: {error}")
        return None


def _check_program(name: str) -> None:
    """Exit where a program cannot be started, before a run is begun for it."""
    if shutil.which(name) is None:
        number = errno.EACCES if shutil.which(name, os.F_OK) or os.path.exists(name) else errno.ENOENT
        _cannot_start(name, OSError(number, os.strerror(number)))


def _cannot_start(name: str, error: OSError) -> NoReturn:
    say(f"greentrain: cannot start {name!r}: {error.strerror}")
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)  # as shells do


def _await(child: "subprocess.Popen[bytes]") -> int:
    """Wait for the end of a child and leave it a zombie, where the platform can; return its exit code, as shells do."""
    if sys.platform != "win32" and hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        if ended is not None:
            return ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
    code = child.wait()
    return code if code >= 0 else 128 - code


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

    with handled({signal.SIGTERM: forward, signal.SIGINT: wait_only}):
        yield children


def _check_writable(folder: Path) -> None:
    from greentrain.errors import RunFolderError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot create {folder}: {error.strerror}; set run.dir to a writable folder") from error
    if not os.access(folder, os.W_OK):
        raise RunFolderError(f"cannot write to {folder}; make it writable or set run.dir")
