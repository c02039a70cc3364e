"""EcoRL-Sched's figures of a step, made again on its published split of a step: seconds, no training, no card.

    python benchmarks/rlhf_figures.py --out build/rlhf                    # all of them, PNG and CSV
    python benchmarks/rlhf_figures.py --figure pareto
    python benchmarks/rlhf_figures.py --into docs/rlhf-pipeline.md        # the tables of that page

``pareto``    samples a second and tokens a joule of each mode and number of cards, with the front (section 4.2)
``grid``      grams of a million tokens over the grid's intensity, 50 to 650 g/kWh, with a band of PUE (Fig. 7B)
``steps``     grams over the steps of a run, with and without the card (Fig. 7C)
``cost``      what a run costs by part (Fig. 9D)
``payback``   years until a card's price is saved, over the price of a kWh (section 5.1)
``weights``   what plans lose that are chosen by the published reward, over its three weights (Eq. 7)
``frameworks``  the same step as seven RLHF frameworks order its passes (section 4.1)
``memory``    GPU memory that a moved pass frees, and bytes of its weights when they are replaced (Fig. 6C, 6D)

The split 43/21/36 of 21 s is published; into which passes the 21 % fall, all watts, a card as fast as the GPU, and all
prices are assumed. So every row is modelled, and none says anything of a real card.
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.figures import Line, Panel, Row, Sheet, arguments, make
from greentrain.fpga_backend.explore.space import compiled_to, open_subject
from greentrain.fpga_backend.roofline.counts import BatchLayout, footprint
from greentrain.policy.offload.rule import OffloadOracle
from greentrain.policy.offload.stages import Plan, Stage, Where, all_gpu, plans
from greentrain.policy.offload.view import OffloadView
from greentrain.simulator.pipeline.inputs import PipelineInputs, open_table
from greentrain.simulator.pipeline.simulate import GridIntensity, Mode, Setting, StepOutcome, simulate
from greentrain.types import J_PER_KWH, S_PER_HOUR
from tools.placement_tasks import TASKS

ASKED: Final = PipelineInputs(table="published", slowdown=1.0, card_w="75", card_idle_w="25", gpu_idle_w="100")
TABLE: Final = open_table(ASKED)
CARDS: Final = (1, 2, 4)
G_PER_KWH: Final = 323.0
PUES: Final = (1.1, 1.5, 1.8)
"""Low, the published one, and high."""
PUE: Final = 1.5
STEPS: Final = 1000
DRAWS: Final = 40
"""Steps of each task of the mix, for the weights."""
HOURS_A_YEAR: Final = 8766.0
GPU_HOUR_USD: Final = 2.5
"""Rent of a GPU; assumed."""
CARD_USD: Final = (5000.0, 8000.0)
"""Price of a card, as the paper has it."""
CARD_YEARS: Final = 4.0
KWH_USD: Final = 0.10
"""As the paper has it."""
_ASSUMED: Final = (
    "Split of the step published; passes, watts (GPU 600, idle 100; card 75, idle 25) and a card as fast as the GPU"
    " assumed."
)


def _run(mode: Mode, cards: int = 1, *, g_per_kwh: float = G_PER_KWH, pue: float = PUE) -> StepOutcome:
    return simulate(TABLE, mode, Setting(cards=cards), GridIntensity(g_per_kwh=g_per_kwh, pue=pue))


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("the table of this benchmark has all watts and an intensity")
    return value


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return which points no other beats: none is as good in both and better in one."""
    return [
        not any(a >= x and b >= y and (a > x or b > y) for a, b in points) for x, y in points
    ]  # fmt: skip


def pareto() -> Sheet:
    """Each mode with each number of cards."""
    runs = [_run(Mode.GPU)] + [_run(mode, cards) for cards in CARDS for mode in Mode if mode is not Mode.GPU]
    points = [(one.speedup, one.line.tokens / _known(one.line.energy_j)) for one in runs]
    on_policy = [point for one, point in zip(runs, points, strict=True) if one.mode is not Mode.OFF_POLICY]
    best = dict(zip(on_policy, front(on_policy), strict=True))
    rows: list[Row] = [
        {
            "mode": str(one.mode),
            "cards": one.cards,
            "samples_per_s_gpu": TABLE.sequences / one.line.step_s if TABLE.sequences else math.nan,
            "tokens_per_j": joule,
            "speedup": speed,
            "front": "no: another algorithm" if one.mode is Mode.OFF_POLICY else "yes" if best[speed, joule] else "no",
            "provenance": "modelled",
        }
        for one, (speed, joule) in zip(runs, points, strict=True)
    ]
    shown = sorted((row["samples_per_s_gpu"], row["tokens_per_j"]) for row in rows if row["front"] == "yes")
    lines = [Line(name="front, on policy", x=[x for x, _ in shown], y=[y for _, y in shown])]
    for cards in (0, *CARDS):
        some = [row for row in rows if row["cards"] == cards]
        lines.append(
            Line(
                name=f"{cards} cards",
                x=[row["samples_per_s_gpu"] for row in some],
                y=[row["tokens_per_j"] for row in some],
                points=True,
            )
        )
    return Sheet(
        name="pareto",
        title="Speed and joules by mode, modelled",
        panels=[Panel(title="published split", x="samples a second and GPU", y="tokens/J", lines=lines)],
        rows=rows,
        notes=[
            _ASSUMED,
            "Published: 4.9 times the speed. Moving reward and reference brings 1 / (1 - 0.16) = 1.19 at most.",
        ],
    )


def grid() -> Sheet:
    """Grams of a million tokens over the grid, GPUs alone and with a card."""
    swept = [float(g) for g in range(50, 651, 50)]
    rows: list[Row] = [
        {
            "mode": str(mode),
            "g_per_kwh": g,
            **{f"g_per_mtoken_pue_{pue:g}": _known(_run(mode, g_per_kwh=g, pue=pue).g_per_mtoken) for pue in PUES},
            "provenance": "modelled",
        }
        for mode in (Mode.GPU, Mode.STREAM_LATE)
        for g in swept
    ]
    low, mid, high = (f"g_per_mtoken_pue_{pue:g}" for pue in PUES)
    lines = []
    for mode in (Mode.GPU, Mode.STREAM_LATE):
        some = [row for row in rows if row["mode"] == str(mode)]
        ends = [[row[key] for row in some] for key in (low, mid, high)]
        lines.append(Line(name=str(mode), x=swept, y=ends[1], low=ends[0], high=ends[2]))
    return Sheet(
        name="grid",
        title="Grams over the grid's intensity, modelled",
        panels=[Panel(title=f"PUE {PUES[0]} to {PUES[-1]}", x="g/kWh", y="g a million tokens", lines=lines)],
        rows=rows,
        notes=[
            _ASSUMED,
            "Published: 40.4 % less CO2. Here the share saved is that of the joules, whatever grid and PUE.",
        ],
    )


def steps() -> Sheet:
    """Grams over a run."""
    home, away = _run(Mode.GPU), _run(Mode.STREAM_LATE)
    counts = list(range(0, STEPS + 1, 100))
    rows: list[Row] = [
        {
            "step": n,
            "gpu_kg": n * _known(home.g) / 1000,
            "with_card_kg": n * _known(away.g) / 1000,
            "saved_kg": n * (_known(home.g) - _known(away.g)) / 1000,
            "provenance": "modelled",
        }
        for n in counts
    ]
    names = (("GPUs alone", "gpu_kg"), ("with a card", "with_card_kg"), ("saved", "saved_kg"))
    lines = [Line(name=name, x=[float(n) for n in counts], y=[row[key] for row in rows]) for name, key in names]
    return Sheet(
        name="steps",
        title="Grams over the steps of a run, modelled",
        panels=[Panel(title=f"{G_PER_KWH:g} g/kWh, PUE {PUE}", x="steps", y="kg CO2e", lines=lines)],
        rows=rows,
        notes=[f"{_ASSUMED} Without the card's embodied carbon (greentrain rlhf simulate --embodied-kg)."],
    )


def cost() -> Sheet:
    """What a run costs: rent of the GPU, energy, the card's price by its time."""
    rows: list[Row] = []
    for mode in (Mode.GPU, Mode.SEQUENTIAL, Mode.LATE, Mode.STREAM_LATE):
        found = _run(mode)
        hours = STEPS * found.line.step_s / S_PER_HOUR
        kwh = STEPS * _known(found.line.energy_j) / J_PER_KWH * PUE
        card = found.cards * sum(CARD_USD) / 2 / (CARD_YEARS * HOURS_A_YEAR) * hours
        rows.append(
            {
                "mode": str(mode),
                "gpu_usd": hours * GPU_HOUR_USD,
                "energy_usd": kwh * KWH_USD,
                "card_usd": card,
                "total_usd": hours * GPU_HOUR_USD + kwh * KWH_USD + card,
                "provenance": "modelled",
            }
        )
    names = [row["mode"] for row in rows]
    parts = (("GPU", "gpu_usd"), ("energy", "energy_usd"), ("card", "card_usd"))
    lines = [Line(name=name, x=names, y=[row[key] for row in rows]) for name, key in parts]
    return Sheet(
        name="cost",
        title=f"Cost of {STEPS:,} steps by part, modelled",
        panels=[Panel(title="", x="", y="$", lines=lines)],
        rows=rows,
        notes=[
            f"{_ASSUMED} Prices assumed: {GPU_HOUR_USD} $ a GPU-hour, {CARD_YEARS:g} years of a card of"
            f" {sum(CARD_USD) / 2:,.0f} $; {KWH_USD} $/kWh as published, PUE {PUE}.",
        ],
    )


def payback() -> Sheet:
    """Years of training without a break until energy has paid for a card."""
    home, away = _run(Mode.GPU), _run(Mode.STREAM_LATE)
    saved_kwh_a_step = (_known(home.line.energy_j) - _known(away.line.energy_j)) / J_PER_KWH * PUE
    steps_a_year = HOURS_A_YEAR * S_PER_HOUR / away.line.step_s
    prices = [0.05, 0.10, 0.15, 0.20, 0.30, 0.40]
    rows: list[Row] = [
        {
            "usd_per_kwh": usd,
            "card_usd": card,
            "saved_usd_a_year": saved_kwh_a_step * steps_a_year * usd,
            "years": card / (saved_kwh_a_step * steps_a_year * usd) if saved_kwh_a_step > 0 else math.inf,
            "provenance": "modelled",
        }
        for card in CARD_USD
        for usd in prices
    ]
    lines = [
        Line(name=f"card of {card:,.0f} $", x=prices, y=[row["years"] for row in rows if row["card_usd"] == card])
        for card in CARD_USD
    ]
    return Sheet(
        name="payback",
        title="Years until a card is paid for by energy alone, modelled",
        panels=[Panel(title=f"{away.mode}, one card, no break", x="$/kWh", y="years", lines=lines, log="y")],
        rows=rows,
        notes=[f"{_ASSUMED} PUE {PUE}. Time that the card saves is worth more than its energy: see the cost."],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How a framework orders the frozen passes of a step."""

    name: str
    mode: Mode
    plan: Plan
    beside: bool
    """Passes have a GPU of their own beside the training's."""
    how: str
    source: str


def _plan(reward: Where, reference: Where) -> Plan:
    return {**all_gpu(TABLE.cost_table()), Stage.REWARD: reward, Stage.REFERENCE: reference}


AT_HOME: Final = _plan(Where.GPU, Where.GPU)
BOTH: Final = _plan(Where.CONCURRENT, Where.CONCURRENT)
FRAMEWORKS: Final = (
    Framework(
        name="DeepSpeed-Chat", mode=Mode.GPU, plan=AT_HOME, beside=False, how="all in turn",
        source="generate_experience, DeepSpeedExamples 45b4b715",
    ),
    Framework(
        name="TRL", mode=Mode.GPU, plan=AT_HOME, beside=False, how="all in turn",
        source="GRPOTrainer._generate_and_score_completions, 1.16.0",
    ),
    Framework(
        name="verl (HybridFlow)", mode=Mode.STREAM, plan=_plan(Where.CONCURRENT, Where.GPU), beside=True,
        how="rewards of finished rollouts behind generation, the reference in turn",
        source="RewardLoopWorker and PPOTrainer._step_once, 1dda039b",
    ),
    Framework(
        name="OpenRLHF", mode=Mode.PARALLEL, plan=BOTH, beside=True,
        how="both when generation ends, at the same time, unless they share GPUs",
        source="_dispatch_forward, 3c3be623",
    ),
    Framework(
        name="ROLL", mode=Mode.STREAM, plan=_plan(Where.CONCURRENT, Where.SEQUENTIAL), beside=True,
        how="rewards of finished rollouts behind generation, the reference waited for",
        source="RLVRPipeline.run, 8eb27cc2",
    ),
    Framework(
        name="RLHFuse", mode=Mode.STREAM, plan=BOTH, beside=True,
        how="both behind the generation of the longest rollouts; its fusion within training is not of this model",
        source="arXiv 2409.13221",
    ),
    Framework(
        name="LlamaRL", mode=Mode.OFF_POLICY, plan=BOTH, beside=True,
        how="both a step later, off policy; that it also generates while it trains is not of this model",
        source="arXiv 2505.24034",
    ),
)  # fmt: skip


def frameworks() -> Sheet:
    """The step as frameworks order it, passes on a second GPU of the same kind where they have their own."""
    beside = open_table(dataclasses.replace(ASKED, card_w="600", card_idle_w="100"))
    runs = [
        (one.name, simulate(beside if one.beside else TABLE, one.mode, plan=one.plan), one.how, one.source)
        for one in FRAMEWORKS
    ]
    runs.append(("GreenTrain, stream-late", _run(Mode.STREAM_LATE), "both on a card, streamed, waited for late", ""))
    rows: list[Row] = [
        {
            "framework": name,
            "orders": how,
            "beside": ("card" if not source else "GPU") if found.cards else "",
            "step_s": found.line.step_s,
            "speedup": found.speedup,
            "bubble": found.line.bubble,
            "tokens_per_j": found.line.tokens / _known(found.line.energy_j),
            "source": source,
            "provenance": "modelled",
        }
        for name, found, how, source in runs
    ]
    names = [row["framework"] for row in rows]
    panels = [
        Panel(title=title, x="", y="", lines=[Line(name=key, x=names, y=[row[key] for row in rows])])
        for key, title in (("speedup", "speed against all in turn"), ("tokens_per_j", "tokens/J"))
    ]
    return Sheet(
        name="frameworks",
        title="One step in the order of each framework, modelled",
        panels=panels,
        rows=rows,
        notes=[
            f"{_ASSUMED} Only the order of the passes differs, read in the named source; kernels, engines, memory and"
            " parallelism do not, so this says nothing of how fast a framework is. A pass with a GPU of its own has"
            " one of the same kind, 600 W, 100 W waiting; off policy is another algorithm.",
            "Published: 3.97 times as fast as DeepSpeed-Chat for 70B (section 4.2), or 9.4 times (table 5). Order alone"
            " brings 1.19 at most on the published split.",
        ],
    )


def memory() -> Sheet:
    """GPU memory that leaves with a frozen model, and what replacing its weights moves."""
    rows: list[Row] = []
    for name in ("minilm", "bert-base", "qwen2-0.5b", "llama-3-8b"):
        program = open_subject(name, max_tokens=512).program
        wide, narrow = (
            footprint(compiled_to(program, precision), BatchLayout.equal(1, 512)).weights_bytes
            for precision in ("fp16", "int8")
        )
        rows.append(
            {
                "model": name,
                "freed_gb": wide / 1e9,
                "sync_gb": narrow / 1e9,
                "sync_s_at_12_gb_per_s": narrow / 12e9,
                "provenance": "modelled",
            }
        )
    names = [row["model"] for row in rows]
    return Sheet(
        name="memory",
        title="GPU memory that a moved model frees, and weights to replace on the card",
        panels=[
            Panel(title=label, x="", y="GB", lines=[Line(name=label, x=names, y=[row[key] for row in rows])])
            for label, key in (("freed: weights in 16 bits", "freed_gb"), ("sent: weights in 8 bits", "sync_gb"))
        ],
        rows=rows,
        notes=[
            "Counted from the models' shapes with embeddings, without activations and without a head of a vocabulary. A"
            " frozen model is sent once; a critic after each step. 12 GB/s is the published link.",
            "Published: 7 to 9 GB freed. An 8B model in 16 bits alone is more.",
        ],
    )


def weights() -> Sheet:
    """The reward's weights on a grid: joules lost against the oracle, and steps that are too long."""
    rng, oracle = np.random.default_rng(0), OffloadOracle()
    views = [OffloadView.of(*task.draw(rng)) for task in TASKS for _ in range(DRAWS)]
    shares = [task.weight / DRAWS for task in TASKS for _ in range(DRAWS)]
    rows: list[Row] = []
    judged = []
    for view in views:
        home, best = view.step(all_gpu(view.table)), view.step(oracle.choose(view))
        found = [view.step(plan) for plan in plans(view.table, view.wheres)]
        parts = np.array(
            [(home.step_s / one.step_s, -_known(one.energy_j) / _known(home.energy_j), -one.bubble) for one in found]
        )
        lost = np.array([_known(one.energy_j) / _known(best.energy_j) - 1 for one in found])
        late = np.array([not view.objective.allows(one, home) for one in found])
        judged.append((parts, lost, late))
    for fast in range(0, 11, 2):
        for lean in range(0, 11 - fast, 2):
            weight = np.array([fast, lean, 10 - fast - lean]) / 10
            chosen = [int(np.argmax(parts @ weight)) for parts, _, _ in judged]
            more, over = (
                float(np.average([each[k][i] for each, i in zip(judged, chosen, strict=True)], weights=shares))
                for k in (1, 2)
            )
            rows.append(
                {
                    "throughput": float(weight[0]),
                    "energy": float(weight[1]),
                    "bubbles": float(weight[2]),
                    "joules_lost": more,
                    "too_long": over,
                    "provenance": "modelled",
                }
            )
    ours = next(row for row in rows if (row["throughput"], row["energy"]) == (0.4, 0.4))
    least = min(rows, key=lambda row: (row["too_long"] > 0, row["joules_lost"]))
    lines = [
        Line(
            name=f"bubbles {bubbles:g}",
            x=[row["energy"] for row in rows if row["bubbles"] == bubbles],
            y=[100 * row["joules_lost"] for row in rows if row["bubbles"] == bubbles],
        )
        for bubbles in dict.fromkeys(row["bubbles"] for row in rows)
    ]
    return Sheet(
        name="weights",
        title="Joules lost by plans of the published reward, over its weights, modelled",
        panels=[Panel(title="the mix", x="weight of energy", y="joules above the oracle, %", lines=lines)],
        rows=rows,
        notes=[
            f"{len(views)} steps drawn from assumed ranges, in the published mix; the plan of highest reward of all"
            " plans, so that no learner does better.",
            f"Published weights 0.4/0.4/0.2: {ours['joules_lost']:.2%} of the joules lost, {ours['too_long']:.1%} of"
            f" steps too long. Least without a step too long: {least['joules_lost']:.2%} at {least['throughput']:g}/"
            f"{least['energy']:g}/{least['bubbles']:g}.",
        ],
    )


FIGURES: Final[Mapping[str, Callable[[], Sheet]]] = {
    "pareto": pareto,
    "grid": grid,
    "steps": steps,
    "cost": cost,
    "payback": payback,
    "weights": weights,
    "frameworks": frameworks,
    "memory": memory,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    return make(FIGURES, arguments(parser, FIGURES, argv), "figures")


if __name__ == "__main__":
    raise SystemExit(main())
