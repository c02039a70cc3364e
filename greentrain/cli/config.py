"""``greentrain config schema | check | show | docs``: the configuration for editors, checked, and for people."""

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer

from greentrain.cli.terminal import WRONG, OutOption, put, say
from greentrain.errors import CarbonSignalError, ConfigError, MissingExtraError
from greentrain.utils import redact
from greentrain.utils.display import one_line

app = typer.Typer(name="config", help="The configuration: its schema, checks and values.", no_args_is_help=True)


@app.command()
def schema(
    out: OutOption = None,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="That of fleet.yaml, with which many jobs are one plan.")
    ] = False,
) -> None:
    """Print the JSON Schema of green.yaml, by which editors complete and check it."""
    from greentrain.config.reference import schema as found

    made = found()
    if fleet:
        from greentrain.control.fleet.spec import FleetSpec

        made = found(FleetSpec, "GreenTrain fleet")
    put(json.dumps(made, indent=1) + "\n", out)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="One green.yaml, or several.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print file, ok and error of each as JSON.")] = False,
) -> None:
    """Check configurations: ends with 0 where all are right, with 2 and what is wrong where one is not."""
    from greentrain.carbon.client import Secret
    from greentrain.carbon.detect import open_signal
    from greentrain.config.schema import GreenConfig

    found = []
    for path in files:
        try:
            carbon = GreenConfig.load(path).carbon
            with contextlib.suppress(MissingExtraError):  # extras and keys may be on the machine that trains
                open_signal(carbon, key=lambda variable, signal: Secret(variable))
        except (ConfigError, CarbonSignalError) as error:
            found.append({"file": str(path), "ok": False, "error": str(error)})
            say(f"greentrain: {error}")
        else:
            found.append({"file": str(path), "ok": True, "error": None})
            if not as_json:
                typer.echo(one_line(f"{path}: fine"))
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    if not all(one["ok"] for one in found):
        raise typer.Exit(WRONG)


@app.command()
def show(
    file: Annotated[Path | None, typer.Argument(help="green.yaml; without it the defaults.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML with comments.")] = False,
) -> None:
    """Print every value in use with its meaning, bounds and default, as a green.yaml that can be loaded."""
    from greentrain.config.reference import commented_yaml, plain
    from greentrain.config.schema import GreenConfig

    config = GreenConfig.load(file)
    shown = GreenConfig.load(redact.settings(plain(config)))
    if shown != config:
        say(f"greentrain: what looks like a secret is shown as {redact.HIDDEN}")
    put(json.dumps(plain(shown), indent=1) + "\n" if as_json else commented_yaml(shown), None)


@app.command()
def docs(out: OutOption = None) -> None:
    """Print the reference of every key in Markdown."""
    from greentrain.config.reference import reference

    put(reference(), out)
