"""``greentrain rlhf simulate | waterfall | sensitivity``: an RLHF step with frozen passes on cards, and its limits."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from greentrain.cli import completion as complete
from greentrain.cli.terminal import Commands, JsonOption, console, whole_numbers_of, words_of
from greentrain.errors import ConfigError

if TYPE_CHECKING:
    from greentrain.simulator.pipeline.simulate import Mode
    from greentrain.simulator.pipeline.study import StudyAnswer, StudyRequest
    from greentrain.simulator.pipeline.what_if import GpuLink

app = typer.Typer(
    name="rlhf",
    cls=Commands,
    help="RLHF steps with frozen passes on cards: time, joules, grams, limits.",
    no_args_is_help=True,
)
ALL: Final = "all"
MODES: Final = (
    "gpu", "sequential", "eager", "parallel", "late", "late-all", "stream", "stream-late", "off-policy",
)  # fmt: skip
"""For the shell; as of ``greentrain.simulator.pipeline.simulate``, which needs NumPy."""
CHUNKS: Final = 8
"""As of ``greentrain.simulator.pipeline.simulate``, which needs NumPy."""
_B_PER_GB: Final = 1e9

CardsOption = Annotated[int, typer.Option(help="How many cards.")]


def _shared(
    table: Annotated[str, typer.Argument(help="A table (YAML, CSV), a run folder, or 'published'.")],
    tokens: Annotated[float | None, typer.Option(help="Output tokens of a step, in place of the table's.")] = None,
    slowdown: Annotated[
        float | None, typer.Option(help="A card that takes so many times the GPUs' time for each pass (assumed).")
    ] = None,
    engine: Annotated[Path | None, typer.Option(help="Statistics of an offload engine (JSON): measured.")] = None,
    card: Annotated[str | None, complete.option("Model the passes on this card: U55C, V80.", complete.cards)] = None,
    reward_model: Annotated[
        str | None, complete.option("Reward model on the card: a name or a folder.", complete.models)
    ] = None,
    reference_model: Annotated[
        str | None, complete.option("Reference on the card: a name or a folder.", complete.models)
    ] = None,
    sequences: Annotated[int | None, typer.Option(help="Rollouts of a step, for --card.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a rollout, prompt included, for --card.")] = None,
    precision: Annotated[str, typer.Option(help="fp16, int8, int8a16 or int4, for --card.")] = "int8",
    given: Annotated[
        list[str] | None, typer.Option("--set", help="A constant of the card, as idle_power_w=31:measured.")
    ] = None,
    assume: Annotated[
        bool, typer.Option("--assume", help="Take assumed values for the card's unknown constants.")
    ] = False,
    gpu_model: Annotated[
        str | None, typer.Option(help="Model the same passes on this GPU too, from its data sheet: H100, A100.")
    ] = None,
    mfu: Annotated[float | None, typer.Option(help="Share of its peak that the GPU reaches, for --gpu-model.")] = None,
    card_w: Annotated[str | None, typer.Option(help="Watts of a working card, as 75 or 75:measured.")] = None,
    card_idle_w: Annotated[str | None, typer.Option(help="Watts of a waiting card.")] = None,
    gpu_idle_w: Annotated[str | None, typer.Option(help="Watts of a waiting GPU.")] = None,
    card_stays: Annotated[bool, typer.Option("--card-stays", help="The cards are powered whatever the plan.")] = False,
    grid: Annotated[str | None, typer.Option(help="g/kWh, or a zone for the mean of its typical year.")] = None,
    pue: Annotated[float, typer.Option(help="Facility energy over IT energy.")] = 1.0,
    embodied_kg: Annotated[str | None, typer.Option(help="Making one card, kg: one figure, or low,mid,high.")] = None,
    chunks: Annotated[int, typer.Option(help="Parts in which rollouts finish, when streamed.")] = CHUNKS,
    micro_batches: Annotated[
        int | None, typer.Option(help="Micro-batches of training, in place of the table's.")
    ] = None,
    kl_in_reward: Annotated[
        bool, typer.Option("--kl-in-reward", help="The reference is part of the reward (PPO, RLOO).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """The argument and the options that all commands share."""


def _command(answer: "Callable[..., StudyAnswer]", without: str = "") -> None:
    """Make a command of a function that answers what is asked.

    Args:
        answer: Function that takes what the shared options ask for, and then its own options.
        without: Name of a shared option that means nothing to it.
    """
    (table, *shared), (_, *own) = (inspect.signature(part).parameters.values() for part in (_shared, answer))
    every = {each.name: each for each in (table, *own, *shared) if each.name != without}

    def command(**given: Any) -> None:
        found = answer(_asked(given), **{each.name: given[each.name] for each in own})
        if given["as_json"]:
            typer.echo(json.dumps(found.document, indent=1, allow_nan=False))
        else:
            console().print(*found.shown, sep="\n")

    command.__annotations__ = {name: parameter.annotation for name, parameter in every.items()}
    command.__signature__ = inspect.Signature(list(every.values()))  # type: ignore[attr-defined]
    app.command(name=answer.__name__.replace("_", "-"), help=answer.__doc__)(command)


@_command
def simulate(
    asked: "StudyRequest",
    mode: Annotated[str, complete.option("Modes, as in late,stream; all.", complete.some_of(ALL, *MODES))] = ALL,
    cards: Annotated[str, typer.Option(help="How many cards, as in 1,2.")] = "1",
    steps: Annotated[int, typer.Option(help="Steps in a row: the mean, with filling and draining.")] = 1,
    gpus: Annotated[str | None, typer.Option(help="Also T(N) on so many GPUs, as in 8,16,32.")] = None,
    gradient_gb: Annotated[float | None, typer.Option(help="Gradients that the GPUs exchange in a step (GB).")] = None,
    link_gb_s: Annotated[float | None, typer.Option(help="Link of a GPU, one way (GB/s).")] = None,
    link_latency_us: Annotated[float, typer.Option(help="Of a round between neighbours.")] = 0.0,
    serial_s: Annotated[float, typer.Option(help="Part of a step that more GPUs do not shorten (s).")] = 0.0,
) -> "StudyAnswer":
    """Show a step in each mode: time, bubble, useful and wasted joules, grams, break-even, and what physics allows."""
    from greentrain.simulator.pipeline.study import answer_modes

    link = _link(gpus, gradient_gb, link_gb_s, link_latency_us, serial_s)
    numbers = [] if gpus is None else whole_numbers_of("--gpus", gpus)
    return answer_modes(asked, _modes(mode), whole_numbers_of("--cards", cards), steps=steps, gpus=numbers, link=link)


@_command
def waterfall(asked: "StudyRequest", cards: CardsOption = 1) -> "StudyAnswer":
    """Show what each thing brings that is added to the plain step, and what a scheduler makes of all of them."""
    from greentrain.simulator.pipeline.study import answer_waterfall

    return answer_waterfall(asked, cards)


@functools.partial(_command, without="card_stays")
def sensitivity(
    asked: "StudyRequest",
    over: Annotated[
        str, complete.option("reward-model, batch or grid.", complete.one_of("reward-model", "batch", "grid"))
    ] = "reward-model",
    values: Annotated[
        str | None, typer.Option(help="Factors of the reward model or the batch; models, with --card; g/kWh.")
    ] = None,
    mode: Annotated[
        str, complete.option("How the training waits for passes on the card.", complete.one_of(*MODES))
    ] = "late",
    cards: CardsOption = 1,
) -> "StudyAnswer":
    """Show how time, joules and break-even move with the reward model's size, the batch, or the grid."""
    from greentrain.simulator.pipeline.study import answer_sensitivity

    modes = _modes(mode)
    if len(modes) != 1:
        raise ConfigError(f"--mode {mode} names {len(modes)} modes: a sensitivity is of one")
    words = [] if values is None else words_of("--values", values)
    return answer_sensitivity(asked, over, words, modes[0], cards)


def _asked(given: Mapping[str, Any]) -> "StudyRequest":
    """Return what the options that all commands share ask for."""
    from greentrain.policy.offload.stages import Stage
    from greentrain.simulator.pipeline.inputs import PipelineInputs
    from greentrain.simulator.pipeline.study import StudyRequest

    models = {Stage.REWARD: given["reward_model"], Stage.REFERENCE: given["reference_model"]}
    same = (
        "table", "tokens", "slowdown", "engine", "card", "sequences", "length", "precision", "assume", "mfu", "card_w",
        "card_idle_w", "gpu_idle_w", "micro_batches",
    )  # fmt: skip
    wanted = PipelineInputs(
        **{name: given[name] for name in same},
        models={stage: model for stage, model in models.items() if model is not None},
        given=tuple(given["given"] or ()),
        gpu=given["gpu_model"],
    )
    return StudyRequest(
        wanted=wanted,
        card_stays=bool(given.get("card_stays")),
        **{name: given[name] for name in ("chunks", "kl_in_reward", "grid", "pue", "embodied_kg")},
    )


def _link(
    gpus: str | None, gradient_gb: float | None, link_gb_s: float | None, latency_us: float, serial_s: float
) -> "GpuLink | None":
    from greentrain.simulator.pipeline.what_if import GpuLink

    if gpus is None:
        if gradient_gb is not None or link_gb_s is not None:
            raise ConfigError("--gradient-gb and --link-gb-s are of T(N): name the numbers of GPUs with --gpus 8,16,32")
        return None
    if gradient_gb is None or link_gb_s is None:
        raise ConfigError("--gpus needs --gradient-gb and --link-gb-s: what the GPUs exchange in a step, and how fast")
    return GpuLink(
        gradient_bytes=gradient_gb * _B_PER_GB,
        bytes_per_s=link_gb_s * _B_PER_GB,
        latency_s=latency_us / 1e6,
        serial_s=serial_s,
    )


def _modes(text: str) -> "list[Mode]":
    from greentrain.simulator.pipeline.simulate import EAGER, Mode
    from greentrain.utils.validation import choice

    if text == ALL:
        return list(Mode)
    words = [Mode.SEQUENTIAL if word == EAGER else word for word in words_of("--mode", text)]
    for word in words:
        choice("--mode", word, tuple(Mode))
    return list(dict.fromkeys(Mode(word) for word in words))
