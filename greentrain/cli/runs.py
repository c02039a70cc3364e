"""``greentrain report | compare | watch | export | audit``: what is read from run folders, of a run or of many.

``audit`` ends with 1 where something differs from the document or cannot be read.
"""

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from greentrain.cli import completion as complete
from greentrain.cli.terminal import FAILED, JsonOption, OutOption, console, progress, put
from greentrain.errors import ConfigError
from greentrain.utils.display import one_line

if TYPE_CHECKING:
    from greentrain.report.live.follow import RunFollow, RunNow


app = typer.Typer(
    name="export",
    help="What a Prometheus server and Grafana need to show and watch a running job.",
    no_args_is_help=True,
)


@app.command()
def dashboard(out: OutOption = None) -> None:
    """Print the Grafana dashboard, for Dashboards > New > Import."""
    _give("dashboard.json", out)


@app.command()
def alerts(out: OutOption = None) -> None:
    """Print Prometheus alerting rules, for rule_files."""
    _give("alerts.yaml", out)


event = typer.Typer(name="event", help="What a running job should obey.", no_args_is_help=True)


@event.command()
def power(
    run: Annotated[Path, complete.argument("Folder of the running job.", complete.run_folders)],
    hours: Annotated[float, typer.Option(help="For how long.")],
    percent: Annotated[float | None, typer.Option(help="At most this share of the power limits found.")] = None,
    power_w: Annotated[float | None, typer.Option(help="At most this many watts, of all GPUs of the job.")] = None,
    start: Annotated[str | None, typer.Option(help="From when on (ISO 8601 with offset); now by default.")] = None,
    reason: Annotated[str, typer.Option(help="Reason, for the journal.")] = "",
) -> None:
    """Ask a running job for less power for a time; it needs actuators.demand."""
    from greentrain.control.demand import FOLDER, PowerEvent
    from greentrain.ledger.journal import RUN_JSON
    from greentrain.types import iso
    from greentrain.utils.files import write_json

    told = {"percent": percent, "power_w": power_w, "hours": hours, "start": start, "reason": reason or None}
    found = {key: value for key, value in told.items() if value is not None}
    asked = PowerEvent.of(found, "the event", time.time())
    if not (run / RUN_JSON).is_file():
        raise ConfigError(f"{run} is no run folder: it holds no {RUN_JSON}")
    path = run / FOLDER / f"power-{time.time_ns()}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, found)
    console().print(f"{path}: until {iso(asked.end_s)}; remove it to end it before", markup=False, highlight=False)


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="One run folder, or several to compare.", show_default=False, autocompletion=complete.run_folders
        ),
    ] = None,
    as_json: JsonOption = False,
    root: Annotated[
        Path | None, typer.Option("--all", help="Totals of all runs under this folder, in place of single runs.")
    ] = None,
    by: Annotated[
        str | None,
        complete.option(
            "With --all: project (the default), user, zone, month (UTC), device, provenance, tag:NAME.",
            complete.some_of("project", "user", "zone", "month", "device", "provenance", "tag:"),
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
    standard: Annotated[
        list[str] | None,
        complete.option(
            "Of one run: write annex-xi, sci-ai or scope2-hourly into its folder, from its raw journals.",
            complete.some_of("annex-xi", "sci-ai", "scope2-hourly"),
        ),
    ] = None,
    contracts: Annotated[
        Path | None, typer.Option(help="With --standard scope2-hourly: CSV of the hourly certificates of this run.")
    ] = None,
) -> None:
    """Print a run's table and write report.html, summary.json, emissions.csv, model_card.yaml and boamps.json."""
    if (root is None) == (not runs):
        raise typer.BadParameter("give run folders, or --all with a folder that holds them")
    if standard or contracts is not None:
        if runs is None or len(runs) != 1 or (contracts is not None and "scope2-hourly" not in (standard or ())):
            raise typer.BadParameter("--standard is for one run folder, and --contracts for --standard scope2-hourly")
        from greentrain.report.standards import write_standard

        for name in standard or ():
            path = write_standard(runs[0], name, contracts if name == "scope2-hourly" else None)
            typer.echo(f"{name}: {one_line(str(path))}")
        return
    if root is None:
        if any(option is not None for option in (by, since, until, where or None, export, export_totals, cache)):
            raise typer.BadParameter(
                "--by, --since, --until, --where, --export, --export-totals and --cache need --all"
            )
        _report(runs or [], as_json=as_json)
        return
    from greentrain.report.fleet import report as fleet
    from greentrain.report.fleet.totals import RunSelection, parse_where

    only = RunSelection(since=since, until=until, where=parse_where(where or []))
    keys = fleet.DEFAULT_BY if by is None else [key.strip() for key in by.split(",") if key.strip()]
    asked = fleet.FleetReportRequest(
        root=root, by=keys, only=only, runs_file=export, totals_file=export_totals, cache=cache
    )
    fleet.report(asked, console(), as_json=as_json)


def _report(runs: list[Path], *, as_json: bool) -> None:
    from greentrain.report import RunReport, compare, table

    if len(runs) > 1:
        comparison = compare.compare([RunReport.read(folder).summary for folder in runs])
        if as_json:
            typer.echo(json.dumps(comparison, indent=1))
        else:
            console().print(comparison)
        return
    found = RunReport.read(runs[0])
    html = found.write()
    if as_json:
        typer.echo(json.dumps(found.summary, indent=1))
        return
    console().print(table.render(found.summary))
    console().print(f"Report: {html}", highlight=False, markup=False, soft_wrap=True)


_BETWEEN: Final = "\0--"
"""Stands for ``--`` among the folders; no name of a folder holds a NUL."""


class TwoGroups(TyperCommand):
    """A command whose folders are two groups with ``--`` between them; options may stand anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the ``--``, which click would drop."""
        return super().parse_args(ctx, [_BETWEEN if arg == "--" else arg for arg in args])


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run folders of A, then --, then those of B.",
            metavar="A... -- B...",
            show_default=False,
            autocompletion=complete.run_folders,
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="What to compare, as j_per_token; several may be named. Energy, grams and speed by default."),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="Tag that pairs a run of A with one of B, as seed.")] = None,
    margin: Annotated[float, typer.Option(help="Largest relative difference that does not matter.")] = 0.01,
    values: Annotated[
        Path | None,
        typer.Option(help="CSV with a column run (folder or id) and further figures, as loss: a row for each column."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell which of two groups of runs is better, as often as one likes, as in: greentrain compare a1 a2 -- b1 b2."""
    from greentrain.report import RunReport
    from greentrain.report.compare import compare_groups, read_values

    if runs.count(_BETWEEN) != 1:
        raise typer.BadParameter(
            "give two groups of run folders with -- between them: greentrain compare a1 a2 -- b1 b2"
        )
    middle = runs.index(_BETWEEN)
    figures = None if values is None else read_values(values)
    groups = [[RunReport.read(run).summary for run in group] for group in (runs[:middle], runs[middle + 1 :])]
    comparison = compare_groups(*groups, metrics=metric or (), pair=pair, margin=margin, values=figures)
    if as_json:
        typer.echo(json.dumps(comparison, indent=1))
    else:
        console().print(comparison)


def watch(
    run: Annotated[Path, complete.argument("Folder of a run; one of runs: the newest of them.", complete.run_folders)],
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a look.")] = False,
    every_s: Annotated[float, typer.Option("--every-s", help="Time between two looks (s).")] = 2.0,
) -> None:
    """Show a run while it goes on, from its files alone; ends when the run has ended."""
    from greentrain.report.live import follow_view
    from greentrain.report.live.follow import RunFollow, find_run
    from greentrain.utils.validation import bound

    bound("--every-s", every_s, 0.1, 3600.0)
    looks = _looks(RunFollow(find_run(run)), every_s)
    if as_json:
        for now in itertools.islice(looks, 1 if once else None):
            typer.echo(json.dumps(dataclasses.asdict(now), allow_nan=False))
    elif once:
        follow_view.show(next(looks), console())
    elif sys.stdout.isatty():
        from rich.live import Live

        now = next(looks)
        with Live(follow_view.frame(now), console=console(), auto_refresh=False, vertical_overflow="crop") as live:
            for now in looks:
                live.update(follow_view.frame(now), refresh=True)
        typer.echo(follow_view.final_line(now))
    else:
        lines = (follow_view.final_line(now) if now.over else follow_view.line(now) for now in looks)
        for text, _ in itertools.groupby(lines):  # a line that is as the one before is left out
            typer.echo(text)


def _looks(follow: "RunFollow", every_s: float) -> "Iterator[RunNow]":
    """Yield the run as it is now, and again every so many seconds until it has ended."""
    while not (now := follow.look()).over:
        yield now
        time.sleep(every_s)
    yield now


def _give(name: str, out: Path | None) -> None:
    put(resources.files("greentrain.report.live").joinpath(name).read_text(encoding="utf-8"), out)


def audit(
    root: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder, or a folder of run folders.", show_default=False, autocompletion=complete.run_folders
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write audit.json into the folder, in place of printing.")] = (
        False
    ),
    check: Annotated[
        Path | None, typer.Option("--verify", help="Check this document against the files beside it, or in the folder.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="Secret of at least 16 bytes: sign by HMAC-SHA256, or check the signature.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --verify: print the findings as JSON.")] = False,
) -> None:
    """Hash the raw files of runs and derive their totals, as in: greentrain audit runs --write."""
    if check is None and root is None:
        raise typer.BadParameter("give a run folder or a folder of them, or --verify with an audit document")
    if (check is not None and write) or (check is None and as_json):
        raise typer.BadParameter("--write is for a new document and --json for --verify: leave one out")
    from greentrain.report.fleet.audit import read_key

    key = None if key_file is None else read_key(key_file)
    if check is not None:
        _verify(check, root or check.parent, key, as_json=as_json)
    elif root is not None:
        _audit(root, key, write=write)


def _audit(root: Path, key: bytes | None, *, write: bool) -> None:
    from greentrain.report.fleet.audit import AUDIT, audit, sign
    from greentrain.utils.files import write_atomic
    from greentrain.utils.quantities import energy

    path = root / AUDIT
    if write and path.exists():
        raise ConfigError(f"{path} exists; an audit is kept: check it with --verify {path}, or move it elsewhere first")
    with progress("reading runs", quiet=not write) as told:
        document = audit(root, told)
    if key is not None:
        document = sign(document, key)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if not write:
        put(text, None)
        return
    write_atomic(path, text)
    files = sum(len(run["files"]) for run in document["runs"])
    signed = "signed" if key is not None else "not signed"
    counted = _counted(len(document["runs"]), files)
    typer.echo(f"{one_line(str(path))}: {counted}, {energy(document['totals']['energy_j'])}, {signed}")


def _verify(path: Path, root: Path, key: bytes | None, *, as_json: bool) -> None:
    from greentrain.report.fleet.audit import read_document, verify

    document = read_document(path)
    with progress("checking runs", quiet=as_json) as told:
        verdict = verify(document, root, key=key, progress=told)
    word = "as audited" if verdict.ok else "differs"
    if as_json:
        findings = [{"kind": str(f.kind), "place": f.place, "text": f.text} for f in verdict.findings]
        answer: dict[str, Any] = {"ok": verdict.ok, "runs": verdict.runs, "files": verdict.files, "findings": findings}
        put(json.dumps(answer, indent=1, ensure_ascii=False) + "\n", None)
    else:
        for finding in verdict.findings:
            typer.echo(one_line(f"{finding.kind}: {finding.place}: {finding.text}"))
        signed = "" if key is None or not verdict.ok else ", signature valid"
        when = one_line(str(document.get("created_utc")))
        typer.echo(f"{word}: {_counted(verdict.runs, verdict.files)}, audited {when}{signed}")
    if not verdict.ok:
        raise typer.Exit(FAILED)


def _counted(runs: int, files: int) -> str:
    return f"{runs} run{'s' * (runs != 1)}, {files} file{'s' * (files != 1)}"
