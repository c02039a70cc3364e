"""``greentrain fpga explore | ranks | devices``: models on cards, what precision does to ranks, and what is here.

Exit codes: 0 fine, 1 something is not installed or failed, 2 wrong usage or input, with one line that says what to do.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from greentrain.cli import completion as complete
from greentrain.cli.terminal import Commands, JsonOption, console, progress, put, whole_numbers_of, words_of
from greentrain.errors import ConfigError

if TYPE_CHECKING:
    from greentrain.fpga_backend.discovery import Installed
    from greentrain.fpga_backend.explore.gpu import GpuRow
    from greentrain.fpga_backend.explore.space import DesignPoint, Subject
    from greentrain.fpga_backend.roofline.cards import CardSpec

app = typer.Typer(
    name="fpga",
    cls=Commands,
    help="FPGA cards: what a model would take on them, and which are here.",
    no_args_is_help=True,
)
MAX_POINTS: Final = 5000
"""More are no table."""
LENGTHS: Final = (128, 512)
"""Tokens a sequence, where none are asked for."""


@app.command()
def explore(
    model: Annotated[
        str, complete.argument("Folder of a compiled or Hugging Face model, or a name: llama-3-8b.", complete.models)
    ],
    card: Annotated[str, complete.option("Cards, as in U55C,V80.", complete.cards)] = "U55C,V80",
    cards: Annotated[str, typer.Option(help="How many cards, as in 1,2.")] = "1,2",
    precision: Annotated[
        str,
        complete.option(
            "kernel, kernel-a16 (ours); of an ideal array fp16, int8, int8a16 (16-bit activations), int4 (weights).",
            complete.some_of("kernel", "kernel-a16", "fp16", "int8", "int8a16", "int4"),
        ),
    ] = "kernel,fp16,int8,int4",
    batch: Annotated[str, typer.Option(help="Sequences at a time.")] = "1,32",
    sequence: Annotated[
        str | None, typer.Option(help="Tokens a sequence; without it 128,512, or what the model takes.")
    ] = None,
    head: Annotated[
        str, complete.option("score or logprob; a compiled model has its own.", complete.one_of("score", "logprob"))
    ] = "score",
    given: Annotated[
        list[str] | None,
        typer.Option("--set", help="A constant, as in U55C.idle_power_w=31:measured; may be repeated."),
    ] = None,
    assume: Annotated[
        bool, typer.Option("--assume", help="Take assumed values for constants without a figure.")
    ] = False,
    texts: Annotated[
        Path | None, typer.Option(help="Texts, one a line: measure rank flips of a Hugging Face folder on them.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="GPUs beside, from their data sheets; none.")] = "H100,A100",
    mfu: Annotated[float | None, typer.Option(help="Share of its peak that a GPU reaches.")] = None,
    gpu_tokens_per_s: Annotated[float | None, typer.Option(help="Measured on your GPU.")] = None,
    gpu_power_w: Annotated[float | None, typer.Option(help="Measured on your GPU, mean of the same time.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Model tokens/s, watts and J/token of a model on cards, and say when a GPU is cheaper."""
    from greentrain.fpga_backend.explore.report import table, verdicts
    from greentrain.fpga_backend.explore.space import PRECISIONS, open_subject
    from greentrain.fpga_backend.explore.space import explore as points_of
    from greentrain.utils.validation import choice

    choice("--head", head, ("score", "logprob"))
    precisions = words_of("--precision", precision, tuple(PRECISIONS))
    batches, numbers = whole_numbers_of("--batch", batch), whole_numbers_of("--cards", cards)
    specs = _cards(card, given or [], assume)
    found = open_subject(model, head="logprob" if head == "logprob" else "score")
    sequences = _lengths(sequence, found.program.max_tokens)
    size = len(precisions) * len(sequences) * len(batches) * len(numbers) * len(specs)
    if size > MAX_POINTS:
        raise ConfigError(f"{size} points, at most {MAX_POINTS}: name fewer batches, sequences or cards")
    gpus = _gpus(found, sequences, gpu, mfu, gpu_tokens_per_s, gpu_power_w)
    with progress("measuring rank flips", quiet=as_json or texts is None):
        flips = _flips(found, texts, precisions)
    points = points_of(
        found.program,
        cards=specs,
        precisions=precisions,
        batches=batches,
        sequences=sequences,
        numbers=numbers,
        flip_rates=flips,
    )
    said = verdicts(points, gpus)
    if as_json:
        typer.echo(json.dumps(_document(found, points, gpus, said, specs), indent=1))
    else:
        console().print(table(found, points, gpus, said, specs))


@app.command()
def ranks(
    model: Annotated[
        Path, typer.Argument(help="Folder of a Hugging Face reward model (one score a text) or causal language model.")
    ],
    preferences: Annotated[
        Path, typer.Argument(help="JSON lines with chosen and rejected, as HH-RLHF's; gzip or plain.")
    ],
    precision: Annotated[
        str,
        complete.option(
            "bf16, fp16, w8a16 (weights only), int8 (W8A8), int8a16 (16-bit activations), int4 (weights only).",
            complete.some_of("bf16", "fp16", "w8a16", "int8", "int8a16", "int4"),
        ),
    ] = "bf16,w8a16,int8,int8a16",
    pairs: Annotated[int | None, typer.Option(help="Only the first so many pairs.", min=1)] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the rows, as CSV.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a precision does to a reward model's ranks or a reference's KL, and say which to take."""
    from greentrain.fpga_backend.explore.flips import advice, kind_of, rank, read_preferences, references
    from greentrain.fpga_backend.explore.space import RANKED

    precisions = words_of("--precision", precision, tuple(RANKED))
    given = read_preferences(preferences, pairs)
    with progress("scoring", quiet=as_json):
        if causal := kind_of(model) == "CausalLM":
            rows, cut = references(model, [text for pair in given for text in pair], precisions)
        else:
            rows, cut = rank(model, given, precisions)
    if out is not None:
        lines = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in rows]
        put("\n".join([",".join(rows[0]), *lines, ""]), out)
    if as_json:
        typer.echo(
            json.dumps(
                {"provenance": "measured", "pairs": len(given), "cut": cut, "rows": rows, "advice": advice(rows)},
                indent=1,
            )
        )
        return
    from rich.table import Table

    shown = Table(*(name.replace("_", " ") for name in rows[0]), title=f"{model.name}, measured", title_justify="left")
    for row in rows:
        shown.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values()))
    unit = "nats" if causal else "the model's own unit"
    console().print(shown, f"Errors are in {unit}. Cut to what it takes: {cut} of {2 * len(given)}.", advice(rows))


@app.command()
def devices(as_json: JsonOption = False) -> None:
    """List the offload devices that are installed, why each can or cannot be used, and the cards on the PCI bus."""
    from greentrain.fpga_backend.discovery import devices as installed
    from greentrain.fpga_backend.xrt import pci

    found = {name: _asked(make) for name, make in installed().items()}
    cards = [(card.address, f"{card.name}, {card.role}", card.problem) for card in pci.find()]
    if as_json:
        bus = [{"address": address, "card": what, "problem": problem} for address, what, problem in cards]
        typer.echo(json.dumps({"devices": found, "cards": bus}, indent=1))
        return
    from rich.table import Table

    shown = Table(title="Offload devices", title_justify="left")
    for column in ("name", "", "results", "what it is, or why not"):
        shown.add_column(column, overflow="fold")
    for name, told in found.items():
        mark = "[green]usable[/]" if told["available"] else "[red]not now[/]"
        kind = {True: "exact", False: "rounded", None: ""}[told["exact"]]
        shown.add_row(name, mark, kind + (", modelled" if told["simulated"] else ""), _plain(told))
    out = console()
    out.print(shown)
    for address, what, problem in cards:
        out.print(f"{address}: {what}" + (f": {problem}" if problem else ""), highlight=False, markup=False)
    if not cards:
        out.print("No card that is known is on the PCI bus.", highlight=False)


def _asked(make: "Installed") -> dict[str, Any]:
    """Return what a device says of itself, or why it cannot be opened. It is closed again."""
    try:
        device = make()
    except TypeError as error:  # a device that cannot be opened without being told which
        reason = f"is opened with arguments ({_required(make) or error}), so it was not tried"
        return {"available": False, "exact": None, "simulated": None, "name": "", "reason": reason}
    except Exception as error:  # a stranger's device: the list goes on
        return {"available": False, "exact": None, "simulated": None, "name": "", "reason": str(error)}
    try:
        info = device.probe()
        told = {"available": info.available, "exact": info.exact, "simulated": info.simulated}
        return {**told, "name": info.name, "reason": info.reason}
    finally:
        device.close()


def _required(make: "Installed") -> str:
    """Return the arguments without which the device cannot be opened, as ``url, token``."""
    if make.entry is None:
        return ""
    return ", ".join(
        name
        for name, parameter in inspect.signature(make.entry.load()).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )


def _plain(told: Mapping[str, Any]) -> str:
    from rich.markup import escape

    return escape(": ".join(part for part in (told["name"], "" if told["available"] else told["reason"]) if part))


def _cards(names: str, given: Sequence[str], assumed: bool) -> "list[CardSpec]":
    """Return the cards with what the user gave, and what he lets be assumed."""
    from greentrain.fpga_backend.roofline.cards import CARDS, assume, named
    from greentrain.fpga_backend.roofline.latency import check_card

    specs = {card.name: card for card in (named(name) for name in words_of("--card", names))}
    for text in given:
        owner, dot, rest = text.partition(".") if "." in text.partition("=")[0] else ("", "", text)
        chosen = [named(owner).name] if dot else list(specs)
        for name in chosen:
            if name not in specs:
                raise ConfigError(
                    f"--set {text} is of {name}, which --card {names} does not name; known: {', '.join(CARDS)}"
                )
            specs[name] = specs[name].given(rest)
    found = [assume(card) if assumed else card for card in specs.values()]
    for card in found:
        check_card(card)
    return found


def _gpus(
    found: "Subject",
    sequences: Sequence[int],
    names: str,
    mfu: float | None,
    tokens_per_s: float | None,
    power_w: float | None,
) -> "list[GpuRow]":
    from greentrain.fpga_backend.explore.gpu import computed, gpu_named, measured

    if (tokens_per_s is None) != (power_w is None):
        raise ConfigError("--gpu-tokens-per-s and --gpu-power-w belong together: give both, of one measurement")
    if tokens_per_s is not None and power_w is not None:
        if len(sequences) != 1:
            raise ConfigError(f"one measured GPU, but {len(sequences)} sequence lengths: name the one with --sequence")
        return [measured("your GPU", sequences[0], tokens_per_s, power_w)]
    specs = [] if names == "none" else [gpu_named(name) for name in words_of("--gpu", names)]
    taken = [sequence for sequence in sequences if sequence <= found.program.max_tokens]
    return [computed(spec, found.program, sequence, mfu) for sequence in taken for spec in specs]


def _flips(found: "Subject", texts: Path | None, precisions: Sequence[str]) -> Mapping[str, float]:
    if texts is None:
        return {}
    from greentrain.fpga_backend.explore.flips import measure

    if found.folder is None:
        raise ConfigError(f"--texts {texts} needs weights, and {found.name} has none here: name a Hugging Face folder")
    try:
        lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--texts {texts} cannot be read: {error}") from error
    return measure(found.folder, lines, precisions)


def _document(
    found: "Subject",
    points: "Sequence[DesignPoint]",
    gpus: "Sequence[GpuRow]",
    said: Sequence[str],
    specs: "Sequence[CardSpec]",
) -> dict[str, Any]:
    import dataclasses

    from greentrain.fpga_backend.roofline.cards import CONSTANTS

    constants = {
        card.name: {name: dataclasses.asdict(card.constant(name)) for name in CONSTANTS if name in card.constants}
        for card in specs
    }
    return {
        "model": found.name,
        "source": found.source,
        "provenance": "modelled",
        "constants": constants,
        "points": [dataclasses.asdict(point) for point in points],
        "gpus": [{**dataclasses.asdict(gpu), "j_per_token": gpu.j_per_token} for gpu in gpus],
        "verdicts": list(said),
    }


def _lengths(text: str | None, most: int) -> list[int]:
    """Return the sequence lengths that are asked for, at least one of them within the model's longest."""
    if text is None:
        return [length for length in LENGTHS if length <= most] or [most]
    lengths = whole_numbers_of("--sequence", text)
    if min(lengths) > most:
        raise ConfigError(f"--sequence {text}: the model takes {most} tokens at most")
    return lengths
