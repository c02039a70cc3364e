"""What two or more cards have to tell each other when they share each product by its outputs.

A product, an attention by heads, and what is done to single elements leave each card with its columns. Quantising a
row, a norm, a pool and a head need the whole row, so before them the columns are brought together: each card sends its
part to the host and takes the others'. So every integer sum stays on one card, and results stay those of one card.
"""

from greentrain.fpga_backend.program import (
    Add,
    Attention,
    Columns,
    Gate,
    Linear,
    Op,
    Pool,
    Program,
    Rotary,
    read_by,
    widths,
)
from greentrain.fpga_backend.roofline.layout import Layout
from greentrain.fpga_backend.roofline.widths import widths_of


def exchanged_bytes(program: Program, layout: Layout, ways: int) -> int:
    """Return the bytes that one card sends and takes, both added up.

    Raises:
        ArtifactError: The precision has no model of a card.
    """
    if ways == 1:
        return 0
    size = widths_of(program.precision).activation_bytes
    width = widths(program)
    split: dict[int, bool] = {}
    rows: dict[int, int] = {}
    total = 0
    for op in program.ops:
        sources = list(read_by(op))
        if not _by_column(op):
            for register in {source.register for source in sources if split[source.register]}:
                # own part out, the others' in: the whole register crosses the card's link once
                total += rows[register] * width[register] * size
                split[register] = False
        out = getattr(op, "out", None)
        if out is not None:
            split[out] = isinstance(op, Linear) or (_by_column(op) and _any_split(sources, split))
            rows[out] = (
                layout.sequences if isinstance(op, Pool) else rows[sources[0].register] if sources else layout.rows
            )
    return total


def _by_column(op: Op) -> bool:
    return isinstance(op, Add | Gate | Rotary | Attention)


def _any_split(sources: list[Columns], split: dict[int, bool]) -> bool:
    return any(split[source.register] for source in sources)
