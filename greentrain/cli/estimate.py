"""``greentrain estimate``: what a training run would take, before it starts.

Exit codes: 0 fine, 1 something is not installed or failed, 2 wrong usage or input, with one line that says what to do.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from greentrain.cli import completion as complete
from greentrain.cli.terminal import WRONG_INPUT, JsonOption, console
from greentrain.errors import ConfigError

if TYPE_CHECKING:
    from greentrain.estimate.result import Estimate
    from greentrain.types import Gear

SEARCHED: Final = ("roofline", "blend")
"""Methods that split layers over devices."""
OPTIONS: Final = {
    "batch_tokens": "--batch",
    "infrastructure_share": "--infrastructure",
    "per_kwh": "--price-kwh",
    "per_device_hour": "--price-hour",
    **{
        name: "--" + name.replace("_", "-")
        for name in (
            "tokens", "sequence", "parameters", "active", "count", "limit_h", "g_per_kwh", "market_g_per_kwh", "pue",
            "node_w", "embodied", "lifetime_years", "method",
        )
    },
}  # fmt: skip
"""How the command line calls what the estimator's errors begin with."""
KEYS: Final = {"carbon.zone": "--zone", "carbon.g_per_kwh": "--g-per-kwh", "carbon.trace_csv": "--trace-csv"}
"""The same of a configuration's keys, anywhere in an error."""


def _of_shape(words: str) -> Any:
    panel = "Shape of the model, without --config or where a config.json lacks something"
    return typer.Option(help=words, rich_help_panel=panel)


def estimate(
    config: Annotated[
        str,
        complete.option(
            "Model: a name such as llama-3-8b, or a Hugging Face config.json or its folder.", complete.models
        ),
    ] = "",
    parameters: Annotated[float | None, typer.Option(help="Parameters in all, instead of --config.")] = None,
    active: Annotated[float | None, typer.Option(help="With --parameters: those that a token meets.")] = None,
    layers: Annotated[int | None, _of_shape("Layers.")] = None,
    d_model: Annotated[int | None, _of_shape("Width.")] = None,
    heads: Annotated[int | None, _of_shape("Heads of attention.")] = None,
    kv_heads: Annotated[int | None, _of_shape("Key-value heads, if fewer than heads.")] = None,
    head_dim: Annotated[int | None, _of_shape("Width of a head, if not width / heads.")] = None,
    d_ff: Annotated[int | None, _of_shape("Inner width of a dense layer.")] = None,
    vocabulary: Annotated[int | None, _of_shape("Words of the vocabulary.")] = None,
    experts: Annotated[int | None, _of_shape("Experts of a layer.")] = None,
    experts_per_token: Annotated[int | None, _of_shape("Experts that a token meets in a layer.")] = None,
    d_expert: Annotated[int | None, _of_shape("Inner width of an expert.")] = None,
    gated: Annotated[bool | None, _of_shape("Three matrices (SwiGLU) or two in a perceptron; gated if none.")] = None,
    tied: Annotated[bool | None, _of_shape("Whether the head is the embedding; not if none.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Training tokens, as in 15e12, every epoch counted.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens a sequence.")] = None,
    batch: Annotated[float | None, typer.Option(help="Tokens of a global batch.")] = None,
    precision: Annotated[
        str | None,
        complete.option("fp32, bf16, fp16, fp8, mxfp8 or nvfp4; bf16 if none, or the device's 16 bit.", complete.gears),
    ] = None,
    device: Annotated[str, complete.option("Device, as in h100, A100-80GB, TPUv4.", complete.devices)] = "",
    count: Annotated[int | None, typer.Option(help="How many devices.")] = None,
    limit_h: Annotated[float | None, typer.Option(help="Hours it may take, instead of --count.")] = None,
    zone: Annotated[
        str, complete.option("Place, as in US-CAL-CISO, FRA, CA-QC, gcp:europe-west1.", complete.zones)
    ] = "",
    g_per_kwh: Annotated[float | None, typer.Option(help="Intensity of the grid, instead of --zone.")] = None,
    trace_csv: Annotated[Path | None, typer.Option(help="Intensity over time, instead of --zone.")] = None,
    market_g_per_kwh: Annotated[float | None, typer.Option(help="By contracts, for the market-based figure.")] = None,
    start: Annotated[str | None, typer.Option(help="When it begins, as in 2026-12-01T22:00Z.")] = None,
    year: Annotated[
        int | None, typer.Option(help="Of a run of the past, whose software was slower before 2023.")
    ] = None,
    pue: Annotated[float | None, typer.Option(help="Power usage effectiveness; 1.08 to 1.2 if none.")] = None,
    infrastructure: Annotated[
        float, typer.Option(help="Energy of networks and storage, as a share of the servers'.")
    ] = 0.0,
    node_w: Annotated[float | None, typer.Option(help="Watts of a device with its share of the server.")] = None,
    embodied: Annotated[
        str, complete.option("lca: life-cycle figures; act: area x carbon per area.", complete.one_of("lca", "act"))
    ] = "lca",
    lifetime_years: Annotated[float, typer.Option(help="Years over which embodied carbon is spread.")] = 4.0,
    price_kwh: Annotated[float | None, typer.Option(help="Price of a kWh.")] = None,
    price_hour: Annotated[float | None, typer.Option(help="Price of a device-hour.")] = None,
    currency: Annotated[str, typer.Option(help="Of the prices.")] = "USD",
    method: Annotated[
        str,
        complete.option(
            "auto, blend, mfu, roofline or pilot.", complete.one_of("auto", "blend", "mfu", "roofline", "pilot")
        ),
    ] = "auto",
    pilot: Annotated[
        Path | None, complete.option("Folder of a short run, whose speed and watts are taken.", complete.run_folders)
    ] = None,
    devices: Annotated[Path | None, typer.Option(help="YAML of devices of your own.")] = None,
    as_json: JsonOption = False,
    html: Annotated[Path | None, typer.Option(help="Page to write.")] = None,
    actions: Annotated[
        Path | None, typer.Option(help="YAML to write: gears and widths for greentrain plan --actions.")
    ] = None,
    into: Annotated[
        Path | None, complete.option("Run folder: its report shows estimate beside measured.", complete.run_folders)
    ] = None,
) -> None:
    """Estimate hours, energy, carbon and money of a training run, as ranges, with every assumption."""
    with _told_by_options():
        from greentrain.estimate.api import Options
        from greentrain.estimate.api import estimate as estimate_of
        from greentrain.estimate.cluster import Cluster
        from greentrain.estimate.model_shape import Flags
        from greentrain.estimate.money import RunPrices
        from greentrain.estimate.shapes import model_of
        from greentrain.estimate.workload import Workload
        from greentrain.utils.validation import moment

        if tokens is None:
            raise ConfigError("give --tokens: how many are trained, as in --tokens 15e12")
        if not device:
            raise ConfigError("give --device: on what it runs, as in --device h100")
        if (count is None) == (limit_h is None):
            raise ConfigError("give either --count (how many devices) or --limit-h (the hours that it may take)")
        if sum((bool(zone), g_per_kwh is not None, trace_csv is not None)) != 1:
            raise ConfigError("give one of --zone, --g-per-kwh and --trace-csv: where the energy comes from")
        if parameters is not None and method in SEARCHED:
            raise ConfigError(f"--method {method} needs layers and widths: give --config or --layers, not --parameters")
        if method == "pilot" and pilot is None:
            raise ConfigError("--method pilot needs --pilot: the folder of a short run, such as runs/RUN_ID")
        if pilot is not None and method not in ("auto", "pilot"):
            raise ConfigError(f"--pilot is for --method pilot, but --method is {method}: drop one of them")
        _check_files(html, actions, into)
        model = model_of(
            config=config,
            parameters=parameters,
            active=active,
            flags=Flags(
                layers=layers,
                d_model=d_model,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                d_ff=d_ff,
                vocabulary=vocabulary,
                experts=experts,
                experts_per_token=experts_per_token,
                d_expert=d_expert,
                gated=gated,
                tied=tied,
            ),
        )
        gear, notes = _gear(precision, device, devices)
        found = estimate_of(
            model.shape,
            Workload(tokens=tokens, precision=gear, **_given(sequence=sequence, batch_tokens=batch)),
            Cluster(
                device=device,
                count=count,
                limit_h=limit_h,
                zone=zone,
                g_per_kwh=g_per_kwh,
                trace_csv=str(trace_csv or ""),
                market_g_per_kwh=market_g_per_kwh,
                pue=pue,
            ),
            method=method,
            pilot=pilot,
            options=Options(
                start=None if start is None else moment("--start", start),
                year=year,
                embodied=embodied,
                lifetime_years=lifetime_years,
                infrastructure_share=infrastructure,
                node_w=node_w,
                prices=RunPrices(per_kwh=price_kwh, per_device_hour=price_hour, currency=currency),
                devices_file=devices,
            ),
        )
        _check_count(found)
        found = dataclasses.replace(found, warnings=(*model.notes, *notes, *found.warnings))
        if as_json:
            typer.echo(json.dumps(found.to_dict(), indent=1))
        else:
            console().print(found)
        _write(found, html, actions, into, quiet=as_json)


def _check_count(found: "Estimate") -> None:
    """Check that each device has something to do: a part of a sequence, of a layer's heads, of the layers."""
    shape, sequences = found.shape, found.workload.sequences
    most = sequences * shape.heads * shape.layers
    if found.count <= most:
        return
    limit_h = found.cluster.limit_h
    given = f"--count is {found.count}" if limit_h is None else f"--limit-h is {limit_h:g}, which takes {found.count}"
    remedy = "fewer devices" if limit_h is None else "more hours"
    raise ConfigError(
        f"{given} devices; {sequences} sequences a batch through {shape.layers} layers of {shape.heads} heads are work"
        f" for {most} at most: give {remedy}, or a larger --batch"
    )


@contextlib.contextmanager
def _told_by_options() -> Iterator[None]:
    """Let errors of the estimator name the options of the command line."""
    try:
        yield
    except WRONG_INPUT as error:
        key, is_, rest = str(error).partition(" is ")
        text = f"{OPTIONS.get(key, key)}{is_}{rest}"
        for key, option in KEYS.items():
            text = text.replace(key, option)
        raise ConfigError(text) from error


def _gear(precision: str | None, device: str, devices: Path | None) -> "tuple[Gear, tuple[str, ...]]":
    """Return the precision, and a note where the device has not the usual one."""
    from greentrain.estimate import hardware
    from greentrain.types import Gear
    from greentrain.utils.validation import choice

    if precision is not None:
        choice("--precision", precision, tuple(gear.value for gear in Gear))
        return Gear(precision), ()
    found = hardware.catalogue(devices).find(device)
    gear = next((gear for gear in (Gear.BF16, Gear.FP16) if gear in found.peak_flop_s), Gear.BF16)
    return gear, () if gear is Gear.BF16 else (f"{found.name} has no bf16: {gear} is taken",)


def _write(found: "Estimate", html: Path | None, actions: Path | None, into: Path | None, *, quiet: bool) -> None:
    if html is not None:
        from greentrain.estimate.result import render_html

        _put(html, render_html(found), "--html", quiet)
    if actions is not None:
        from greentrain.estimate.result import action_document

        _put(actions, action_document(found), "--actions", quiet)
    if into is not None:
        from greentrain.ledger.run_folder import ESTIMATE

        _put(into / ESTIMATE, json.dumps(found.to_dict(), indent=1) + "\n", "--into", quiet)


def _check_files(html: Path | None, actions: Path | None, into: Path | None) -> None:
    """Check, before any work, that what is to be written has a place."""
    for option, path in (("--html", html), ("--actions", actions)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{option} {path} cannot be written: there is no folder {path.parent}; make it first")
        if path is not None and path.is_dir():
            raise ConfigError(f"{option} {path} is a folder: name a file in it")
    if into is not None and not (into / "run.json").is_file():
        raise ConfigError(f"--into {into} is no run folder: it has no run.json; name one, such as runs/RUN_ID")


def _put(path: Path, text: str, option: str, quiet: bool) -> None:
    from greentrain.utils.files import replace_file

    try:
        if option == "--into":  # whose folder may be anybody's: what is planted there leads nowhere
            replace_file(path, text.encode())
        else:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error.strerror or error}") from error
    typer.echo(f"Written: {path}", err=quiet)


def _given(**values: Any) -> dict[str, Any]:
    """Return those that were given; the others keep their defaults."""
    return {name: value for name, value in values.items() if value is not None}
