"""``greentrain tune``: batch sizes and pipelines that take the least energy, carbon or money.

Exit codes: 0 fine, 1 a trial failed or something is not installed, 2 wrong usage or input.
"""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from greentrain.cli import completion as complete
from greentrain.cli.terminal import Commands, JsonOption, OutOption, put, say, whole_numbers_of, words_after
from greentrain.errors import ConfigError

app = typer.Typer(name="tune", cls=Commands, help="Batch sizes and pipelines of least energy.", no_args_is_help=True)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def batch(
    context: typer.Context,
    batches: Annotated[str, typer.Option(help="Batch sizes that may be tried, as in 32,64,128.")],
    metric: Annotated[str, typer.Option(help="Name of the metric in the training's output, as in eval_accuracy.")],
    target: Annotated[float, typer.Option(help="Value of it at which a training is done.")],
    default: Annotated[int | None, typer.Option(help="Usual size, tried first; the middle one if none.")] = None,
    lower: Annotated[bool, typer.Option("--lower", help="The metric falls, as a loss does.")] = False,
    objective: Annotated[
        str, complete.option("energy, carbon or cost.", complete.one_of("energy", "carbon", "cost"))
    ] = "energy",
    price_kwh: Annotated[float, typer.Option(help="Price of a kWh, for --objective cost.")] = 0.0,
    price_hour: Annotated[float, typer.Option(help="Price of an hour of the whole job, for cost.")] = 0.0,
    trials: Annotated[
        int | None,
        typer.Option(help="Trainings of this call, as 1 for a job that recurs; until it is settled if none."),
    ] = None,
    folder: Annotated[Path, typer.Option("--dir", help="Folder of the search: the same goes on.")] = Path(
        "greentrain-tune"
    ),
    runs: Annotated[Path, typer.Option(help="Where the training writes its run folders (run.dir).")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Find the batch size of least cost to a metric, as in: greentrain tune batch ... -- python train.py {batch}."""
    from greentrain.control.tune import CommandTraining, TrialPrice, tune_batch

    command = words_after(context)
    if not command:
        raise ConfigError("give the training after --, as in: -- python train.py --batch-size {batch}")
    if trials is not None and trials < 1:
        raise ConfigError(f"--trials is {trials}; it must be at least 1")
    result = tune_batch(
        CommandTraining(command, metric, runs=runs, told=lambda line: say(line.rstrip())),
        whole_numbers_of("--batches", batches),
        target,
        default=default,
        lower=lower,
        price=TrialPrice(objective=objective, per_kwh=price_kwh, per_hour=price_hour),
        folder=folder,
        trials=trials,
        settings={"command": command, "metric": metric},
        told=say,
    )
    typer.echo(json.dumps(dataclasses.asdict(result), indent=1) if as_json else str(result))


@app.command()
def pipeline(
    profile: Annotated[
        Path, typer.Argument(help="CSV: stage, instruction, frequency, time, energy; gear if not bf16.")
    ],
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of a step.")],
    tokens: Annotated[float, typer.Option(help="Tokens of a step of one pipeline.")],
    waiting_w: Annotated[float, typer.Option(help="Power of a device that waits for another stage.")],
    schedule: Annotated[str, complete.option("1f1b or gpipe.", complete.one_of("1f1b", "gpipe"))] = "1f1b",
    devices: Annotated[int, typer.Option(help="Devices of a stage.")] = 1,
    pipelines: Annotated[str, typer.Option(help="Pipelines side by side that a plan may use, as in 1,2,4.")] = "1",
    out: OutOption = None,
) -> None:
    """Write the time-energy frontier of a pipeline as an action table for policy.actions (experimental)."""
    import yaml

    from greentrain.policy.pipeline import Pipeline, action_rows, read_profile

    rows = []
    for gear, options in read_profile(profile).items():
        pipe = Pipeline(options, micro_batches, schedule=schedule, waiting_w=waiting_w)
        points = pipe.frontier()
        for width in whole_numbers_of("--pipelines", pipelines):
            rows += action_rows(points, gear, tokens=tokens, stages=pipe.stages, devices=devices, pipelines=width)
    put(yaml.safe_dump({"device": f"pipeline of {profile.name}", "actions": rows}, sort_keys=False), out)
