"""``greentrain rlhf simulate | waterfall | sensitivity``: an RLHF step with frozen passes on cards, and its limits.

Exit codes: 0 fine, 1 something is not installed, 2 wrong usage or input, with one line that says what to do.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from greentrain.cli import completion as complete
from greentrain.cli.exit_codes import WRONG_INPUT as WRONG
from greentrain.cli.exit_codes import input_checked
from greentrain.errors import ConfigError
from greentrain.fpga_backend.errors import ArtifactError, BatchError, UnsupportedModelError

if TYPE_CHECKING:
    from greentrain.simulator.pipeline.simulate import Mode
    from greentrain.simulator.pipeline.study import StudyAnswer, StudyRequest
    from greentrain.simulator.pipeline.what_if import GpuLink

WRONG_INPUT: Final = (*WRONG, ArtifactError, BatchError, UnsupportedModelError)

app = typer.Typer(
    name="rlhf", help="RLHF steps with frozen passes on cards: time, joules, grams, limits.", no_args_is_help=True
)
ALL: Final = "all"
MODES: Final = (
    "gpu", "sequential", "eager", "parallel", "late", "late-all", "stream", "stream-late", "off-policy",
)  # fmt: skip
"""For the shell; as of ``greentrain.simulator.pipeline.simulate``, which needs NumPy."""
CHUNKS: Final = 8
"""As of ``greentrain.simulator.pipeline.simulate``, which needs NumPy."""
_B_PER_GB: Final = 1e9

TableArgument = Annotated[str, typer.Argument(help="A table (YAML, CSV), a run folder, or 'published'.")]
TokensOption = Annotated[float | None, typer.Option(help="Output tokens of a step, in place of the table's.")]
SlowdownOption = Annotated[
    float | None, typer.Option(help="A card that takes so many times the GPUs' time for each pass (assumed).")
]
EngineOption = Annotated[Path | None, typer.Option(help="Statistics of an offload engine (JSON): measured.")]
CardOption = Annotated[
    str | None, typer.Option(help="Model the passes on this card: U55C, V80.", autocompletion=complete.cards)
]
RewardOption = Annotated[
    str | None, typer.Option(help="Reward model on the card: a name or a folder.", autocompletion=complete.models)
]
ReferenceOption = Annotated[
    str | None, typer.Option(help="Reference on the card: a name or a folder.", autocompletion=complete.models)
]
SequencesOption = Annotated[int | None, typer.Option(help="Rollouts of a step, for --card.")]
LengthOption = Annotated[int | None, typer.Option(help="Tokens of a rollout, prompt included, for --card.")]
PrecisionOption = Annotated[str, typer.Option(help="fp16, int8, int8a16 or int4, for --card.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="A constant of the card, as idle_power_w=31:measured.")
]
AssumeOption = Annotated[bool, typer.Option("--assume", help="Take assumed values for the card's unknown constants.")]
GpuModelOption = Annotated[
    str | None, typer.Option(help="Model the same passes on this GPU too, from its data sheet: H100, A100.")
]
MfuOption = Annotated[float | None, typer.Option(help="Share of its peak that the GPU reaches, for --gpu-model.")]
CardWattsOption = Annotated[str | None, typer.Option(help="Watts of a working card, as 75 or 75:measured.")]
CardIdleOption = Annotated[str | None, typer.Option(help="Watts of a waiting card.")]
GpuIdleOption = Annotated[str | None, typer.Option(help="Watts of a waiting GPU.")]
StaysOption = Annotated[bool, typer.Option("--card-stays", help="The cards are powered whatever the plan.")]
GridOption = Annotated[str | None, typer.Option(help="g/kWh, or a zone for the mean of its typical year.")]
PueOption = Annotated[float, typer.Option(help="Facility energy over IT energy.")]
EmbodiedOption = Annotated[str | None, typer.Option(help="Making one card, kg: one figure, or low,mid,high.")]
ChunksOption = Annotated[int, typer.Option(help="Parts in which rollouts finish, when streamed.")]
MicroOption = Annotated[int | None, typer.Option(help="Micro-batches of training, in place of the table's.")]
KlOption = Annotated[bool, typer.Option("--kl-in-reward", help="The reference is part of the reward (PPO, RLOO).")]
CardsOption = Annotated[int, typer.Option(help="How many cards.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
PlotOption = Annotated[Path | None, typer.Option(help="Picture: FILE.png, .svg or .pdf.")]


@app.command()
def simulate(
    context: typer.Context,
    table: TableArgument,
    mode: Annotated[
        str, typer.Option(help="Modes, as in late,stream; all.", autocompletion=complete.some_of(ALL, *MODES))
    ] = ALL,
    cards: Annotated[str, typer.Option(help="How many cards, as in 1,2.")] = "1",
    tokens: TokensOption = None,
    slowdown: SlowdownOption = None,
    engine: EngineOption = None,
    card: CardOption = None,
    reward_model: RewardOption = None,
    reference_model: ReferenceOption = None,
    sequences: SequencesOption = None,
    length: LengthOption = None,
    precision: PrecisionOption = "int8",
    given: SetOption = None,
    assume: AssumeOption = False,
    gpu_model: GpuModelOption = None,
    mfu: MfuOption = None,
    card_w: CardWattsOption = None,
    card_idle_w: CardIdleOption = None,
    gpu_idle_w: GpuIdleOption = None,
    card_stays: StaysOption = False,
    grid: GridOption = None,
    pue: PueOption = 1.0,
    embodied_kg: EmbodiedOption = None,
    chunks: ChunksOption = CHUNKS,
    micro_batches: MicroOption = None,
    kl_in_reward: KlOption = False,
    steps: Annotated[int, typer.Option(help="Steps in a row: the mean, with filling and draining.")] = 1,
    gpus: Annotated[str | None, typer.Option(help="Also T(N) on so many GPUs, as in 8,16,32.")] = None,
    gradient_gb: Annotated[float | None, typer.Option(help="Gradients that the GPUs exchange in a step (GB).")] = None,
    link_gb_s: Annotated[float | None, typer.Option(help="Link of a GPU, one way (GB/s).")] = None,
    link_latency_us: Annotated[float, typer.Option(help="Of a round between neighbours.")] = 0.0,
    serial_s: Annotated[float, typer.Option(help="Part of a step that more GPUs do not shorten (s).")] = 0.0,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Show a step in each mode: time, bubble, useful and wasted joules, grams, break-even, and what physics allows."""
    with input_checked(*WRONG_INPUT):
        _check_plot(plot)
        from greentrain.simulator.pipeline.study import answer_modes

        link = _link(gpus, gradient_gb, link_gb_s, link_latency_us, serial_s)
        numbers = [] if gpus is None else _integers("--gpus", gpus)
        found = answer_modes(
            _asked(context.params), _modes(mode), _integers("--cards", cards), steps=steps, gpus=numbers, link=link
        )
        _told(found, as_json, plot)


@app.command()
def waterfall(
    context: typer.Context,
    table: TableArgument,
    cards: CardsOption = 1,
    tokens: TokensOption = None,
    slowdown: SlowdownOption = None,
    engine: EngineOption = None,
    card: CardOption = None,
    reward_model: RewardOption = None,
    reference_model: ReferenceOption = None,
    sequences: SequencesOption = None,
    length: LengthOption = None,
    precision: PrecisionOption = "int8",
    given: SetOption = None,
    assume: AssumeOption = False,
    gpu_model: GpuModelOption = None,
    mfu: MfuOption = None,
    card_w: CardWattsOption = None,
    card_idle_w: CardIdleOption = None,
    gpu_idle_w: GpuIdleOption = None,
    card_stays: StaysOption = False,
    grid: GridOption = None,
    pue: PueOption = 1.0,
    embodied_kg: EmbodiedOption = None,
    chunks: ChunksOption = CHUNKS,
    micro_batches: MicroOption = None,
    kl_in_reward: KlOption = False,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Show what each thing brings that is added to the plain step, and what a scheduler makes of all of them."""
    with input_checked(*WRONG_INPUT):
        _check_plot(plot)
        from greentrain.simulator.pipeline.study import answer_waterfall

        _told(answer_waterfall(_asked(context.params), cards), as_json, plot)


@app.command()
def sensitivity(
    context: typer.Context,
    table: TableArgument,
    over: Annotated[
        str,
        typer.Option(
            help="reward-model, batch or grid.", autocompletion=complete.one_of("reward-model", "batch", "grid")
        ),
    ] = "reward-model",
    values: Annotated[
        str | None, typer.Option(help="Factors of the reward model or the batch; models, with --card; g/kWh.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="How the training waits for passes on the card.", autocompletion=complete.one_of(*MODES))
    ] = "late",
    cards: CardsOption = 1,
    tokens: TokensOption = None,
    slowdown: SlowdownOption = None,
    engine: EngineOption = None,
    card: CardOption = None,
    reward_model: RewardOption = None,
    reference_model: ReferenceOption = None,
    sequences: SequencesOption = None,
    length: LengthOption = None,
    precision: PrecisionOption = "int8",
    given: SetOption = None,
    assume: AssumeOption = False,
    gpu_model: GpuModelOption = None,
    mfu: MfuOption = None,
    card_w: CardWattsOption = None,
    card_idle_w: CardIdleOption = None,
    gpu_idle_w: GpuIdleOption = None,
    grid: GridOption = None,
    pue: PueOption = 1.0,
    embodied_kg: EmbodiedOption = None,
    chunks: ChunksOption = CHUNKS,
    micro_batches: MicroOption = None,
    kl_in_reward: KlOption = False,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Show how time, joules and break-even move with the reward model's size, the batch, or the grid."""
    with input_checked(*WRONG_INPUT):
        _check_plot(plot)
        from greentrain.simulator.pipeline.study import answer_sensitivity

        modes = _modes(mode)
        if len(modes) != 1:
            raise ConfigError(f"--mode {mode} names {len(modes)} modes: a sensitivity is of one")
        words = [] if values is None else _words("--values", values)
        _told(answer_sensitivity(_asked(context.params), over, words, modes[0], cards), as_json, plot)


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
    words = [Mode.SEQUENTIAL if word == EAGER else word for word in _words("--mode", text)]
    for word in words:
        choice("--mode", word, tuple(Mode))
    return list(dict.fromkeys(Mode(word) for word in words))


def _words(option: str, text: str) -> list[str]:
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise ConfigError(f"{option} is empty")
    return words


def _integers(option: str, text: str) -> list[int]:
    found = []
    for word in _words(option, text):
        if not word.isdecimal() or not 1 <= int(word) <= 10**6:
            raise ConfigError(f"{option} holds {word!r}; it is a list of whole numbers from 1 to 1000000, as in 1,2")
        found.append(int(word))
    return found


def _check_plot(plot: Path | None) -> None:
    if plot is not None:
        from greentrain.simulator.pipeline.display import check_plot

        check_plot(plot)


def _told(found: "StudyAnswer", as_json: bool, plot: Path | None) -> None:
    if as_json:
        typer.echo(json.dumps(found.document, indent=1, allow_nan=False))
    else:
        from greentrain.cli.console import console

        console().print(*found.shown, sep="\n")
    if plot is not None:
        from greentrain.simulator.picture import save

        typer.echo(f"Picture: {save(found.draw(), plot)}", err=as_json)
