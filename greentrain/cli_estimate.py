"""``greentrain estimate``: what a training run would take, before it starts.

Exit codes: 0 fine, 1 something is not installed or failed, 2 wrong usage or input, with one line that says what to do.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from greentrain.cli_input import input_checked
from greentrain.errors import CarbonSignalError, ConfigError

if TYPE_CHECKING:
    from greentrain.estimate.api import Estimate
    from greentrain.estimate.model_shape import ModelShape

WRONG_INPUT: Final = (ConfigError, CarbonSignalError)

KEPT: Final = "estimate.json"
"""Name in a run folder; the run's report shows it beside what was measured."""


def estimate(
    config: Annotated[
        str, typer.Option(help="Model: a name such as llama-3-8b, or a Hugging Face config.json or its folder.")
    ] = "",
    parameters: Annotated[
        float | None, typer.Option(help="Parameters in all, instead of --config, for --method mfu.")
    ] = None,
    active: Annotated[float | None, typer.Option(help="With --parameters: those that a token meets.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Training tokens, as in 15e12, every epoch counted.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens a sequence.")] = None,
    batch: Annotated[float | None, typer.Option(help="Tokens of a global batch.")] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16, fp16 or fp8.")] = "bf16",
    device: Annotated[str, typer.Option(help="Device, as in h100, A100-80GB, TPUv4.")] = "",
    count: Annotated[int | None, typer.Option(help="How many devices.")] = None,
    limit_h: Annotated[float | None, typer.Option(help="Hours it may take, instead of --count.")] = None,
    zone: Annotated[str, typer.Option(help="Place, as in US-CAL-CISO, FRA, CA-QC, gcp:europe-west1.")] = "",
    g_per_kwh: Annotated[float | None, typer.Option(help="Intensity of the grid, instead of --zone.")] = None,
    trace_csv: Annotated[Path | None, typer.Option(help="Intensity over time, instead of --zone.")] = None,
    market_g_per_kwh: Annotated[float | None, typer.Option(help="By contracts, for the market-based figure.")] = None,
    start: Annotated[str | None, typer.Option(help="When it begins, as in 2026-12-01T22:00Z.")] = None,
    pue: Annotated[float | None, typer.Option(help="Power usage effectiveness.")] = None,
    infrastructure: Annotated[
        float, typer.Option(help="Energy of networks and storage, as a share of the servers'.")
    ] = 0.0,
    node_w: Annotated[float | None, typer.Option(help="Watts of a device with its share of the server.")] = None,
    embodied: Annotated[str, typer.Option(help="lca: life-cycle figures; act: area x carbon per area.")] = "lca",
    lifetime_years: Annotated[float, typer.Option(help="Years over which embodied carbon is spread.")] = 4.0,
    price_kwh: Annotated[float | None, typer.Option(help="Price of a kWh.")] = None,
    price_hour: Annotated[float | None, typer.Option(help="Price of a device-hour.")] = None,
    currency: Annotated[str, typer.Option(help="Of the prices.")] = "USD",
    method: Annotated[str, typer.Option(help="mfu, roofline or pilot.")] = "mfu",
    pilot: Annotated[Path | None, typer.Option(help="Folder of a short run, for --method pilot.")] = None,
    devices: Annotated[Path | None, typer.Option(help="YAML of devices of your own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    html: Annotated[Path | None, typer.Option(help="Page to write.")] = None,
    actions: Annotated[
        Path | None, typer.Option(help="YAML to write: gears and widths for greentrain plan --actions.")
    ] = None,
    into: Annotated[Path | None, typer.Option(help="Run folder: its report shows estimate beside measured.")] = None,
) -> None:
    """Estimate hours, energy, carbon and money of a training run, as ranges, with every assumption."""
    with input_checked(*WRONG_INPUT):
        from greentrain.config_values import choice, moment
        from greentrain.estimate.api import Options
        from greentrain.estimate.api import estimate as estimate_of
        from greentrain.estimate.cluster import Cluster
        from greentrain.estimate.money import Prices
        from greentrain.estimate.workload import Workload
        from greentrain.types import Gear

        if tokens is None:
            raise ConfigError("give --tokens: how many are trained, as in --tokens 15e12")
        if not device:
            raise ConfigError("give --device: on what it runs, as in --device h100")
        choice("--precision", precision, tuple(gear.value for gear in Gear))
        found = estimate_of(
            _shape(config, parameters, active, method),
            Workload(
                tokens=tokens,
                precision=Gear(precision),
                **_given(sequence=sequence, batch_tokens=batch),
            ),
            Cluster(
                device=device,
                count=count,
                limit_h=limit_h,
                zone=zone,
                g_per_kwh=g_per_kwh,
                trace_csv=str(trace_csv or ""),
                market_g_per_kwh=market_g_per_kwh,
                **_given(pue=pue),
            ),
            method="pilot" if pilot is not None and method == "mfu" else method,
            pilot=pilot,
            options=Options(
                start=None if start is None else moment("--start", start),
                embodied=embodied,
                lifetime_years=lifetime_years,
                infrastructure_share=infrastructure,
                node_w=node_w,
                prices=Prices(per_kwh=price_kwh, per_device_hour=price_hour, currency=currency),
                devices_file=devices,
            ),
        )
        _show(found, as_json)
        _write(found, html, actions, into, quiet=as_json)


def _show(found: "Estimate", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
        return
    from rich.console import Console

    from greentrain.estimate.text import render

    Console().print(render(found))


def _write(found: "Estimate", html: Path | None, actions: Path | None, into: Path | None, *, quiet: bool) -> None:
    if html is not None:
        from greentrain.estimate.html import render_html

        _put(html, render_html(found), "--html", quiet)
    if actions is not None:
        from greentrain.estimate.actions import document

        _put(actions, document(found), "--actions", quiet)
    if into is not None:
        if not (into / "run.json").is_file():
            raise ConfigError(f"--into {into} is no run folder: it has no run.json")
        _put(into / KEPT, json.dumps(found.to_dict(), indent=1) + "\n", "--into", quiet)


def _put(path: Path, text: str, option: str, quiet: bool) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error.strerror or error}") from error
    typer.echo(f"Written: {path}", err=quiet)


def _shape(config: str, parameters: float | None, active: float | None, method: str) -> "ModelShape":
    if bool(config) == (parameters is not None):
        raise ConfigError("give --config (a name, or a config.json) or --parameters: one of them")
    if parameters is not None:
        from greentrain.estimate.sized import sized

        if method == "roofline":
            raise ConfigError("--method roofline needs layers and widths: give --config instead of --parameters")
        return sized(parameters, active)
    if active is not None:
        raise ConfigError("--active goes with --parameters: --config knows its own")
    path = Path(config)
    if path.suffix == ".json" or path.exists():
        from greentrain.estimate.hf_config import shape_of

        return shape_of(path / "config.json" if path.is_dir() else path)
    from greentrain.estimate import shapes

    return shapes.find(config)


def _given(**values: Any) -> dict[str, Any]:
    """Return those that were given; the others keep their defaults."""
    return {name: value for name, value in values.items() if value is not None}
