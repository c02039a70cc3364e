"""Tables of docs/rlhf-pipeline.md: the simulator against closed forms and a real loop, ablation, sensitivity, scaling.

    python benchmarks/rlhf_pipeline.py                                # two minutes, most of it the real loop
    python benchmarks/rlhf_pipeline.py --quick                        # without the loop
    python benchmarks/rlhf_pipeline.py --into docs/rlhf-pipeline.md

Only the loop is measured, on this machine. All else is modelled, from figures that say where they are from.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.published_claims import published_figures
from greentrain.policy.offload.stages import Hardware, Stage
from greentrain.simulator.pipeline import display
from greentrain.simulator.pipeline.bounds import break_even, caps, published
from greentrain.simulator.pipeline.inputs import PipelineInputs, open_footprint, open_grid, open_table
from greentrain.simulator.pipeline.simulate import Mode, Setting, simulate, step_ends
from greentrain.simulator.pipeline.table import PipelineTable
from greentrain.simulator.pipeline.what_if import GpuLink, over_grids, point, scale, waterfall

SLOWDOWNS: Final = (0.5, 1.0, 2.0, 4.0, 10.0)
GRID: Final = open_grid("400", 1.2)
ERROR_BAR: Final = 0.05
G_S, O_S, T_S, P_S = 9.03, 1.05, 7.56, 1.68
"""Generation, what comes before the advantages, training, each of two passes (s): the published split."""
CLOSED: Final[Mapping[tuple[Mode, int], Callable[[float], float]]] = {
    (Mode.SEQUENTIAL, 1): lambda x: G_S + O_S + T_S + 2 * P_S * x,
    (Mode.PARALLEL, 1): lambda x: G_S + max(O_S, 2 * P_S * x) + T_S,
    (Mode.PARALLEL, 2): lambda x: G_S + max(O_S, P_S * x) + T_S,
    (Mode.STREAM, 1): lambda x: max(G_S + O_S, G_S / 8 + 2 * P_S * x, G_S + 2 * P_S * x / 8) + T_S,
    (Mode.STREAM, 2): lambda x: max(G_S + O_S, G_S / 8 + P_S * x, G_S + P_S * x / 8) + T_S,
    (Mode.OFF_POLICY, 1): lambda x: max(G_S + O_S + T_S, 2 * P_S * x),
    (Mode.OFF_POLICY, 2): lambda x: max(G_S + O_S + T_S, P_S * x),
}
"""The step by hand, with passes x times as long as on the GPUs."""
LOOPS: Final = ((0.01, 1), (0.02, 1), (0.02, 2))
"""Seconds a sequence and cards of the real loop."""
ASSUMED: Final = PipelineInputs(table="published", slowdown=2.0, card_w="75", card_idle_w="30")
MODELS: Final = {Stage.REWARD: "minilm", Stage.REFERENCE: "qwen2-0.5b"}


def modelled(*, reward: str = "minilm", reference: bool = False, batch: float = 1.0) -> PipelineTable:
    """Return the published step with passes of named models on a U55C, both sides modelled."""
    models = {Stage.REWARD: reward} | ({Stage.REFERENCE: MODELS[Stage.REFERENCE]} if reference else {})
    return open_table(
        PipelineInputs(table="published", card="U55C", assume=True, gpu="H100", models=models, batch=batch)
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the real loop")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of the real loop")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between its two marks")
    args = parser.parse_args(argv)
    if args.into is not None and args.quick:
        parser.error("--into replaces all tables, so it goes without --quick")
    about = facts(machine("benchmarks/rlhf_pipeline.py"))
    parts = [
        about, closed_forms(), *([] if args.quick else [loops(args.rounds)]), limits(),
        ablation("a card that takes twice the GPUs' time, at 75 W, 30 W waiting: all assumed", open_table(ASSUMED)),
        ablation("MiniLM as the reward on a U55C and on an H100, both modelled", modelled()),
        ablation("the same, with Qwen2-0.5B as the reference, two cards", modelled(reference=True), cards=2),
        models(), batches(), grids(), steady(), scaling(),
    ]  # fmt: skip
    found = "\n\n".join(parts)
    print(found)
    if args.into is not None:
        put(found, args.into)
    return 0


def closed_forms() -> str:
    """Return the published split's speed-ups, and how far they are from the formulas."""
    rows, worst = [], 0.0
    for cards in (1, 2):
        for mode in Mode:
            if mode is Mode.GPU or (mode is Mode.SEQUENTIAL and cards == 2):
                continue
            steps = [simulate(published().slowed(x), mode, Setting(cards=cards)).line.step_s for x in SLOWDOWNS]
            form = CLOSED.get((mode, cards))
            if form is not None:
                pairs = zip(SLOWDOWNS, steps, strict=True)
                worst = max(worst, *(abs(step_s - form(x)) for x, step_s in pairs))
            told = "" if form is None else "yes"
            rows.append([str(cards), str(mode), *(f"{21 / step_s:.2f}" for step_s in steps), told])
    head = ["cards", "mode", *(f"x{x:g}" for x in SLOWDOWNS), "closed form"]
    return "\n\n".join(
        (
            "**Speed-up of the published split**, by how many times the GPUs' time a card takes for each pass",
            _table(head, rows),
            f"Largest difference from the {len(CLOSED)} closed forms: {worst:.1e} s "
            f"({'PASS' if worst < 1e-9 else 'MISS'}: below 1e-9 s).",
        )
    )


def loops(rounds: int) -> str:
    """Return predictions beside a real loop."""
    import torch

    from benchmarks.rlhf_pipeline_loop import validate

    torch.set_num_threads(1)
    found = [one for pace, cards in LOOPS for one in validate(pace, cards, rounds)]
    rows = [
        [
            str(one.mode), str(one.cards), f"{1e3 * one.s_per_sequence:g} ms", f"{one.predicted_s:.3f}",
            f"{one.measured_s:.3f}", f"{one.error:+.1%}", "PASS" if abs(one.error) <= ERROR_BAR else "MISS",
        ]
        for one in found
    ]  # fmt: skip
    head = ["mode", "cards", "a sequence", "predicted s", "measured s", "error", f"within {ERROR_BAR:.0%}"]
    return "\n\n".join(
        (
            f"**A real loop**, {rounds} rounds, medians; each round is predicted from its sequential step",
            _table(head, rows),
        )
    )


def limits() -> str:
    """Return caps and published figures."""
    amdahl = [[", ".join(cap.passes), f"{cap.share:.0%}", f"{cap.speedup:.2f}"] for cap in caps(published())]
    said = [[figure.said, figure.verdict, figure.why] for figure in published_figures()]
    return "\n\n".join(
        (
            "**At most**, by Amdahl's law, of the published split",
            _table(["passes that take no time", "share of the step", "speed-up"], amdahl),
            "**Published figures** beside what the hardware has",
            _table(["published", "verdict", "why"], said),
        )
    )


def ablation(what: str, table: PipelineTable, cards: int = 1) -> str:
    """Return a waterfall."""
    rows = waterfall(table, Setting(cards=cards), GRID)
    cells = [[row.name, *display.figures(row.outcome)] for row in rows]
    head = ["added", "step s", "x", "tokens/s", "bubble", "useful", "wasted", "J/token", "g/Mtoken"]
    made = open_footprint(table, None if table.card == "U55C" else "45,57.5,70")
    streamed = rows[-2].outcome
    paid = None if made is None else break_even(rows[0].outcome, streamed, made)
    chosen = rows[-1].outcome
    where = "the GPUs alone" if not chosen.line.busy_s[Hardware.OFFLOAD] else f"{chosen.mode}"
    return "\n\n".join(
        (
            f"**Ablation**: {what}",
            _table(head, cells),
            f"The scheduler's choice: {where}. Cap of the passes that moved: x{streamed.cap:.2f}. Hours until the "
            f"streamed cards are paid for, at {GRID.g_per_kwh:g} g/kWh and PUE {GRID.pue:g}: {display.hours(paid)}.",
        )
    )


def models() -> str:
    """Return what the size of the reward model does."""
    names = ("minilm", "bert-base", "qwen2-0.5b", "llama-3-8b")
    made = open_footprint(modelled(), None)
    points = [point(name, modelled(reward=name), Mode.STREAM, Setting(), GRID, made) for name in names]
    rows = []
    for one in points:
        row = modelled(reward=str(one.value)).rows[Stage.REWARD]
        card_s = 0.0 if row.card_s is None else row.card_s.value
        rows.append(
            [
                str(one.value), f"{row.gpu_s.value:.3g}", f"{card_s:.3g}", f"{one.home.line.step_s:.4g}",
                f"{one.away.line.step_s:.4g}", f"{one.away.speedup:.2f}", f"{one.away.cap:.3f}",
                _number(one.home.line.j_per_token), _number(one.away.line.j_per_token), display.hours(one.paid),
            ]
        )  # fmt: skip
    head = [
        "reward model", "pass, H100 s", "pass, U55C s", "step s", "streamed s", "x", "cap", "J/token", "streamed",
        "break-even",
    ]  # fmt: skip
    return "\n\n".join(("**Size of the reward model**, one U55C, 256 rollouts of 512 tokens", _table(head, rows)))


def batches() -> str:
    """Return what the batch does."""
    rows = []
    for factor in (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1.0, 4.0):
        table = modelled(batch=factor)
        row = table.rows[Stage.REWARD]
        card_s = 0.0 if row.card_s is None else row.card_s.value
        one = point(factor, table, Mode.STREAM, Setting(), GRID, None)
        rows.append(
            [
                str(table.sequences), f"{table.tokens / card_s:,.0f}", f"{one.home.line.step_s:.3g}",
                f"{one.away.line.step_s:.3g}", f"{one.away.speedup:.3f}", _number(one.away.line.j_per_token),
            ]
        )  # fmt: skip
    head = ["rollouts a step", "tokens/s of the card", "step s", "streamed s", "x", "J/token streamed"]
    return "\n\n".join(
        ("**Size of the batch**, MiniLM on one U55C; all stages of the GPUs in proportion", _table(head, rows))
    )


def grids() -> str:
    """Return what the grid does."""
    table = open_table(ASSUMED)
    points = over_grids(
        table, (20, 50, 100, 200, 400, 800), Mode.STREAM, Setting(), GRID, open_footprint(table, "45,57.5,70")
    )
    rows = [
        [f"{one.value:g}", _number(one.home.g_per_mtoken), _number(one.away.g_per_mtoken), display.hours(one.paid)]
        for one in points
    ]
    head = ["g/kWh", "g/Mtoken on the GPU", "streamed", "break-even h"]
    return "\n\n".join(
        ("**The grid**: the assumed card of the first ablation, streamed; making it 45 to 70 kg", _table(head, rows))
    )


def steady() -> str:
    """Return what filling and draining costs."""
    counts = (1, 2, 10, 100)
    rows = [
        [f"x{x:g}", *(f"{step_ends(published().slowed(x), Mode.OFF_POLICY, n)[-1] / n:.2f}" for n in counts),
         f"{simulate(published().slowed(x), Mode.OFF_POLICY).line.step_s:.2f}"]
        for x in SLOWDOWNS
    ]  # fmt: skip
    head = ["card", *(f"{n} step{'s' if n > 1 else ''}" for n in counts), "for ever"]
    return "\n\n".join(("**Steps in a row**, one step off-policy: mean step (s)", _table(head, rows)))


def scaling() -> str:
    """Return T(N)."""
    link = GpuLink(gradient_bytes=16e9, bytes_per_s=50e9, latency_s=5e-6)
    rows = [
        [
            str(one.gpus), f"{one.home.line.step_s:.3g}", f"{one.efficiency:.0%}", f"{one.comm_s:.3g}",
            f"{one.away.line.step_s:.3g}", f"{one.away.speedup:.2f}",
        ]
        for one in scale(open_table(ASSUMED), (1, 2, 4, 8, 16, 64), link, Mode.STREAM)
    ]  # fmt: skip
    head = ["GPUs", "T(N) s", "efficiency", "all-reduce s", "with one card, streamed s", "x"]
    return "\n\n".join(
        (
            "**T(N)**: the first ablation's step on more GPUs; 16 GB of gradients over 50 GB/s and 5 us (assumed)",
            _table(head, rows),
        )
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    raise SystemExit(main())
