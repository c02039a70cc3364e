"""EcoRL-Sched's figures of a card, made again by the model of ``greentrain fpga explore``: seconds, no card.

    python benchmarks/fpga_figures.py --out build/fpga                   # all of them, PNG and CSV
    python benchmarks/fpga_figures.py --figure sequence --model minilm
    python benchmarks/fpga_figures.py --into docs/fpga-explore.md        # the tables of that page

``roofline``   products a joule over products a byte of the card's memory, beside the roof (Fig. 3A)
``batch``      tokens a joule over the batch (Fig. 3B)
``latency``    copy in, kernels and copy out over the batch (Fig. 3C)
``cards``      tokens a second over the number of cards, and where one more brings little (Fig. 8B)
``sequence``   tokens a joule over the length, on the card and on a GPU, and where they cross (Fig. 9C)

Every figure is modelled, and rests on assumed constants of the card (``--assume`` of the command). Published values
stand in the notes.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Line, Panel, Row, Sheet, arguments, make
from greentrain.fpga_backend.explore.gpu import computed, gpu_named
from greentrain.fpga_backend.explore.space import PRESETS, DesignPoint, compiled_to, explore, open_subject
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.fpga_backend.roofline.counts import BatchLayout, count
from greentrain.fpga_backend.roofline.latency import peak_macs_per_s, service

CARD: Final = assume(U55C)
PRECISIONS: Final = ("fp16", "int8", "int4")
BATCHES: Final = (1, 2, 4, 8, 16, 32)
SEQUENCE: Final = 512
LENGTHS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
NUMBERS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LITTLE: Final = 0.5
"""A card more that brings less than this share of a card's speed is said to be beyond saturation."""
_RESTS: Final = "U55C with GreenTrain's assumed constants; no card was there."


def _points(
    program: Program,
    *,
    precisions: Sequence[str] = ("int8",),
    batches: Sequence[int] = (32,),
    sequences: Sequence[int] = (SEQUENCE,),
    numbers: Sequence[int] = (1,),
) -> list[DesignPoint]:
    found = explore(program, cards=[CARD], precisions=precisions, batches=batches, sequences=sequences, numbers=numbers)
    return [point for point in found if point.fits]


def roofline(program: Program) -> Sheet:
    """Products a joule over products a byte, each precision at each batch, and what the card allows at most."""
    rows: list[Row] = []
    for precision in PRECISIONS:
        compiled = compiled_to(program, precision)
        for point in _points(program, precisions=[precision], batches=BATCHES):
            layout = BatchLayout.equal(point.wave, SEQUENCE)
            work = count(compiled, layout)
            found = service(compiled, layout, CARD, kernels=precision.startswith("kernel"))
            rows.append(
                {
                    "precision": precision,
                    "batch": point.batch,
                    "op_per_byte": 2 * work.macs / work.memory_bytes,
                    "op_per_j": 2 * work.macs / found.energy_j,
                    "bound": found.bound,
                    "provenance": "modelled",
                }
            )
    bandwidth, tdp_w = CARD.value("memory_bytes_per_s"), CARD.value("tdp_w")
    intensities = [2.0**i for i in range(-2, 15)]
    roofs = [
        Line(
            name=f"roof at TDP, {bits}-bit products",
            x=intensities,
            y=[min(2 * peak_macs_per_s(CARD, bits), bandwidth * each) / tdp_w for each in intensities],
            dashed=True,
        )
        for bits in (8, 16)
    ]
    lines = [
        Line(
            name=precision,
            x=[row["op_per_byte"] for row in rows if row["precision"] == precision],
            y=[row["op_per_j"] for row in rows if row["precision"] == precision],
        )
        for precision in PRECISIONS
        if any(row["precision"] == precision for row in rows)
    ]
    return Sheet(
        name="roofline",
        title="Roofline by power, modelled",
        panels=[
            Panel(title=f"batches {BATCHES[0]} to {BATCHES[-1]} of {SEQUENCE} tokens", x="OP a byte of its memory",
                  y="OP a joule", lines=[*lines, *roofs], log="xy")
        ],
        rows=rows,
        notes=[_RESTS, "Published: INT8 at 13.7 tokens/J for an 8B model: beyond the roof (published_claims.toml)."],
    )  # fmt: skip


def batch(program: Program) -> Sheet:
    """Tokens a joule over the batch, by precision."""
    rows: list[Row] = [
        {
            "precision": point.precision,
            "batch": point.batch,
            "wave": point.wave,
            "tokens_per_s": point.tokens_per_s,
            "tokens_per_j": 1 / point.j_per_token,
            "bound": point.bound,
            "provenance": "modelled",
        }
        for point in _points(program, precisions=PRECISIONS, batches=BATCHES)
        if point.j_per_token
    ]
    lines = [
        Line(
            name=precision,
            x=[float(row["batch"]) for row in rows if row["precision"] == precision],
            y=[row["tokens_per_j"] for row in rows if row["precision"] == precision],
        )
        for precision in dict.fromkeys(row["precision"] for row in rows)
    ]
    return Sheet(
        name="batch",
        title="Tokens a joule over the batch, modelled",
        panels=[Panel(title=f"{SEQUENCE} tokens each", x="sequences", y="tokens/J", lines=lines, log="x")],
        rows=rows,
        notes=[_RESTS, "Published for an 8B model: FP16 6.9, INT8 13.7, INT4 22.1 tokens/J."],
    )


def latency(program: Program) -> Sheet:
    """Where the time of a batch goes."""
    compiled = compiled_to(program, "int8")
    rows: list[Row] = []
    for point in _points(program, batches=BATCHES):
        found = service(compiled, BatchLayout.equal(point.wave, SEQUENCE), CARD)
        rows.append(
            {
                "batch": point.wave,
                "in_ms": 1000 * found.in_s,
                "kernel_ms": 1000 * found.engine_s,
                "out_ms": 1000 * found.out_s,
                "copy_share": (found.in_s + found.out_s) / found.run_s,
                "provenance": "modelled",
            }
        )
    parts = (("kernels", "kernel_ms"), ("copy in", "in_ms"), ("copy out", "out_ms"))
    x = [float(row["batch"]) for row in rows]
    return Sheet(
        name="latency",
        title="Time of a batch by part, INT8, modelled",
        panels=[
            Panel(title=f"{SEQUENCE} tokens each", x="sequences", y="ms", log="xy",
                  lines=[Line(name=name, x=x, y=[row[key] for row in rows]) for name, key in parts])
        ],
        rows=rows,
        notes=[
            f"{_RESTS} Token numbers go to the card, and scores come back: copies are small beside the kernels.",
            "Published: 4.2 ms of 7.1 ms are copies of activations, called 28 % there.",
        ],
    )  # fmt: skip


def cards(program: Program) -> Sheet:
    """Tokens a second over the number of cards, for a batch of 32."""
    rows: list[Row] = []
    for point in _points(program, numbers=NUMBERS):
        assert point.tokens_per_s is not None and point.j_per_token is not None
        alone = rows[0]["tokens_per_s"] if rows else point.tokens_per_s
        before = rows[-1] if rows else {"cards": 0, "tokens_per_s": 0.0}
        more = (point.tokens_per_s - before["tokens_per_s"]) / (point.cards - before["cards"])
        rows.append(
            {
                "cards": point.cards,
                "tokens_per_s": point.tokens_per_s,
                "gain_of_a_card": more / alone,
                "tokens_per_j": 1 / point.j_per_token,
                "provenance": "modelled",
            }
        )
    enough = [row["cards"] for row, after in itertools.pairwise(rows) if after["gain_of_a_card"] < LITTLE]
    x = [float(row["cards"]) for row in rows]
    return Sheet(
        name="cards",
        title="Several cards, modelled",
        panels=[
            Panel(title="batch of 32", x="cards", y=label, lines=[Line(name=label, x=x, y=[row[key] for row in rows])])
            for label, key in (("tokens/s", "tokens_per_s"), ("tokens/J", "tokens_per_j"))
        ],
        rows=rows,
        notes=[
            _RESTS,
            f"Beyond {enough[0]} cards another brings less than {LITTLE:.0%} of one's speed: the batch does not divide."
            if enough
            else f"Up to {NUMBERS[-1]} cards each brings {LITTLE:.0%} of a card's speed or more.",
            "A bound of the cards alone: when the rest of a step hides them is greentrain rlhf simulate --cards.",
        ],
    )  # fmt: skip


def sequence(program: Program) -> Sheet:
    """Tokens a joule over the length of a sequence, beside an H100 by its data sheet."""
    lengths = [length for length in LENGTHS if length <= program.max_tokens]
    gpu = gpu_named("H100")
    rows: list[Row] = []
    for point in _points(program, sequences=lengths):
        assert point.j_per_token is not None
        beside = computed(gpu, program, point.sequence)
        rows.append(
            {
                "sequence": point.sequence,
                "card_tokens_per_j": 1 / point.j_per_token,
                "gpu_tokens_per_j": 1 / beside.j_per_token,
                "card_over_gpu": beside.j_per_token / point.j_per_token,
                "provenance": "modelled",
            }
        )
    crossing = _crossing([row["sequence"] for row in rows], [row["card_over_gpu"] for row in rows])
    x = [float(row["sequence"]) for row in rows]
    return Sheet(
        name="sequence",
        title="Tokens a joule over the length, a batch of 32, modelled",
        panels=[
            Panel(title="INT8 on the card", x="tokens a sequence", y="tokens/J", log="xy", lines=[
                Line(name="U55C", x=x, y=[row["card_tokens_per_j"] for row in rows]),
                Line(name="H100, data sheet", x=x, y=[row["gpu_tokens_per_j"] for row in rows], dashed=True),
            ])
        ],
        rows=rows,
        notes=[
            f"{_RESTS} {computed(gpu, program, lengths[0]).how}.",
            "No crossing between these lengths." if crossing is None else f"They cross at some {crossing:.0f} tokens.",
            "Published for an 8B model: 13.7 tokens/J on the card beside 4.8 on an H100.",
        ],
    )  # fmt: skip


def _crossing(lengths: Sequence[float], over: Sequence[float]) -> float | None:
    """Return the length at which a ratio passes 1, linear between its neighbours; None where it does not."""
    for (x, a), (z, b) in itertools.pairwise(zip(lengths, over, strict=True)):
        if (a - 1) * (b - 1) <= 0 and a != b:
            return x + (z - x) * (1 - a) / (b - a)
    return None


FIGURES: Final[Mapping[str, Callable[[Program], Sheet]]] = {
    "roofline": roofline,
    "batch": batch,
    "latency": latency,
    "cards": cards,
    "sequence": sequence,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(PRESETS), default="llama-3-8b", help="model (default llama-3-8b)")
    args = arguments(parser, FIGURES, argv)
    program = open_subject(args.model, max_tokens=LENGTHS[-1]).program
    figures = {name: functools.partial(figure, program) for name, figure in FIGURES.items()}
    return make(figures, args, "figures")


if __name__ == "__main__":
    raise SystemExit(main())
