"""``greentrain simulate | plan``: what policies would have emitted, and when and where to start.

Exit codes: 0 fine, 1 something is not installed, 2 wrong usage or input, with one line that says what to do.
"""

import functools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from greentrain.cli import completion as complete
from greentrain.cli.terminal import JsonOption, console, progress
from greentrain.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from greentrain.config.schema import GreenConfig
    from greentrain.policy.action_sources import Actions
    from greentrain.simulator.scene import Scene

NONE: Final = "none"
"""In place of a picture's format or file: no picture."""
WINDOWS: Final = 24
HISTORY_H: Final = 21 * 24.0
"""As of ``greentrain.simulator.jobs``, which needs NumPy."""

ActionsOption = Annotated[
    str | None,
    complete.option(
        "Table of actions: a run folder, a YAML file, or 'reference' (assumed).", complete.actions, "--actions"
    ),
]
TraceOption = Annotated[
    list[str] | None,
    typer.Option("--trace", help="Recorded grid (CSV), may be repeated; FILE@marginal says that it is marginal."),
]


def simulate(
    config: Annotated[Path | None, typer.Argument(help="green.yaml with carbon, policy and precision.")] = None,
    run: Annotated[
        Path | None, complete.option("Replay a run folder: what would others have done?", complete.run_folders, "--run")
    ] = None,
    trace: TraceOption = None,
    actions: ActionsOption = None,
    policy: Annotated[
        list[str] | None,
        complete.option("Policy to compare, may be repeated; the usual ones if none.", complete.policies, "--policy"),
    ] = None,
    slack: Annotated[
        list[float] | None,
        typer.Option("--slack", help="Time to the deadline / time of the usual training, may be repeated."),
    ] = None,
    windows: Annotated[int, typer.Option(help="Jobs a grid, one behind the other or spread over it.")] = WINDOWS,
    seeds: Annotated[int, typer.Option(help="Times that each job is run, for policies that draw.")] = 1,
    history_h: Annotated[float, typer.Option(help="Hours of a grid before its first job.")] = HISTORY_H,
    out: Annotated[Path | None, typer.Option(help="Folder for table.csv, result.json and pictures.")] = None,
    pictures: Annotated[
        str,
        complete.option("Format of the pictures: png, svg, pdf or none.", complete.one_of("png", "svg", "pdf", NONE)),
    ] = "png",
    as_json: JsonOption = False,
) -> None:
    """Compare policies on recorded grids, or with what a run did: table, CSV, JSON and pictures."""
    if run is not None:
        if slack or (windows, seeds, history_h) != (WINDOWS, 1, HISTORY_H):
            raise ConfigError(
                "--slack, --windows, --seeds and --history-h are for jobs on a grid, but --run replays one job:"
                " drop them; policy.deadline_h of a CONFIG sets another deadline"
            )
        _replay(run, config, trace or [], actions, policy or [], out, pictures, as_json)
        return
    if config is None:
        raise ConfigError("name a configuration (greentrain simulate green.yaml) or a run (--run runs/RUN_ID)")
    from greentrain.config.schema import GreenConfig
    from greentrain.simulator.grids import grids_of
    from greentrain.simulator.study import Study, render, run_study, to_csv

    settings = GreenConfig.load(config)
    _check_pictures(pictures)
    study = Study(
        config=settings,
        grids=grids_of(settings.carbon, trace or []),
        actions=_actions(actions, settings),
        policies=policy or (),
        slacks=tuple(dict.fromkeys(slack or ())),
        windows=windows,
        seeds=seeds,
        history_h=history_h,
    )
    with progress("simulating", quiet=as_json) as told:
        result = run_study(study, told)
    several = len(result.cases) > 1
    scenes = [
        (f"{scene.grid_name}-slack-{case.slack:g}" if several else scene.grid_name, scene)
        for case, scene in ([] if pictures == NONE else result.scenes())
    ]
    folder = out or Path("simulations") / f"{config.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    _finish(folder, result.to_dict(), to_csv(result), scenes, pictures, as_json)
    if not as_json:
        _print(render(result), f"Written to {folder}")


def plan(
    deadline: Annotated[str, typer.Option(help="Hours from the start, or a time with its offset (ISO 8601).")],
    tokens: Annotated[float | None, typer.Option(help="Tokens of the job, such as 2e9.")] = None,
    grams: Annotated[
        float | None, typer.Option(help="In place of tokens: as many as these grams of CO2e are enough for.")
    ] = None,
    zones: Annotated[str, complete.option("Grid zones, as in US-CAL-CISO,US-MIDA-PJM.", complete.grid_zones)] = "",
    actions: ActionsOption = None,
    start: Annotated[
        str | None, typer.Option(help="Earliest start with its offset (ISO 8601); the next full hour if none.")
    ] = None,
    trace: TraceOption = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="green.yaml with carbon and policy.")] = None,
    picture: Annotated[
        str | None, typer.Option(help="File of the picture (.png, .svg, .pdf), or none; plan.png if not --json.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say when and where to start a job, what that saves, and draw it."""
    from greentrain.config.schema import GreenConfig
    from greentrain.policy.action_sources import REFERENCE
    from greentrain.simulator.advice import advise, most_tokens, render
    from greentrain.simulator.grids import recordings, zone_grids
    from greentrain.simulator.jobs import terms_of

    if (tokens is None) == (grams is None):
        raise typer.BadParameter("give --tokens, or --grams for as many tokens as those are enough for")
    settings = GreenConfig.load(config)
    named = [zone.strip() for zone in zones.split(",") if zone.strip()]
    file = None if picture == NONE or (picture is None and as_json) else Path(picture or "plan.png")
    if file is not None:
        _check_pictures(file.suffix.removeprefix("."))
    recorded = recordings(settings.carbon, trace or [], named)
    terms = terms_of(1.0 if tokens is None else tokens, deadline, start, [grid.trace for grid in recorded])
    plan_of = functools.partial(
        advise,
        zone_grids(settings.carbon, named, recorded, terms.start_s, terms.deadline_s),
        start_s=terms.start_s,
        deadline_s=terms.deadline_s,
        actions=_actions(actions, settings, REFERENCE),
        policy=settings.policy,
        precision=settings.precision,
    )
    advice = plan_of(tokens=terms.tokens) if grams is None else most_tokens(lambda n: plan_of(tokens=n), grams)
    if file is not None:
        from greentrain.simulator.advice import draw_advice
        from greentrain.simulator.picture import save

        save(draw_advice(advice), file)
    if as_json:
        typer.echo(json.dumps(advice.to_dict(), indent=1, allow_nan=False))
    else:
        _print(render(advice), "" if file is None else f"Picture: {file}")


def _replay(
    run: Path,
    config: Path | None,
    trace: Sequence[str],
    actions: str | None,
    policies: Sequence[str],
    out: Path | None,
    pictures: str,
    as_json: bool,
) -> None:
    from greentrain.config.schema import GreenConfig
    from greentrain.policy.action_sources import read_actions
    from greentrain.simulator.grids import recorded_grid
    from greentrain.simulator.replay import render, replay, to_csv

    if len(trace) > 1:
        raise ConfigError(f"--run replays one grid, but {len(trace)} traces are named: name the one of the run")
    _check_pictures(pictures)
    result = replay(
        run,
        policy=None if config is None else GreenConfig.load(config).policy,
        policies=policies,
        actions=None if actions is None else read_actions(actions),
        grid=recorded_grid(trace[0]) if trace else None,
    )
    folder = out or run / "simulation"
    scenes = [] if pictures == NONE else [("replay", result.scene)]
    _finish(folder, result.to_dict(), to_csv(result), scenes, pictures, as_json)
    if not as_json:
        _print(render(result), f"Written to {folder}")


def _actions(where: str | None, settings: "GreenConfig", otherwise: str | None = None) -> "Actions":
    from greentrain.policy.action_sources import read_actions

    found = where or settings.policy.actions or otherwise
    if found is None:
        raise ConfigError(
            "nobody says what actions bring and cost: name the folder of a run that measured its gears, a YAML file or"
            " 'reference' with --actions, or a YAML file with policy.actions"
        )
    return read_actions(found)


def _check_pictures(form: str) -> None:
    """Check, before any work, that pictures of a format can be drawn."""
    if form == NONE:
        return
    from greentrain.simulator.picture import check_format, check_pictures

    check_format(form)
    check_pictures()


def _finish(
    folder: Path,
    result: Mapping[str, Any],
    table_csv: str,
    scenes: "Sequence[tuple[str, Scene]]",
    pictures: str,
    as_json: bool,
) -> None:
    from greentrain.simulator.study import write_results

    write_results(folder, result, table_csv, scenes, f".{pictures}")
    if as_json:
        typer.echo(json.dumps({**result, "folder": str(folder)}, indent=1, allow_nan=False))


def _print(what: "RenderableType", last: str) -> None:
    out = console(highlight=False)
    out.print(what)
    if last:
        out.print(last, soft_wrap=True)
