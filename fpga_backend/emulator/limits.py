"""Sizes up to which the contract's sums are exact (CONTRACT.md, Limits): beyond them a result would be wrong unseen."""

from collections.abc import Iterator

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import Attention, Linear, LogProb, Norm, Op, Program, Score


def check(program: Program) -> None:
    """Raise if a program goes beyond what the contract allows.

    Raises:
        ArtifactError: Names the operator, the size and the bound.
    """
    if program.max_tokens > contract.MAX_WIDTH:
        raise ArtifactError(
            f"max_tokens={program.max_tokens}: the integer contract allows {contract.MAX_WIDTH} tokens a sequence"
        )
    for i, op in enumerate(program.ops):
        for value, bound, what in _sizes(op):
            if value > bound:
                raise ArtifactError(
                    f"operator {i} ({type(op).__name__.lower()}) has {value} {what}, the integer contract allows "
                    f"{bound}: use the torch device"
                )


def _sizes(op: Op) -> Iterator[tuple[int, int, str]]:
    match op:
        case Norm():
            yield op.x.width, contract.MAX_WIDTH, "columns"
        case Linear() | Score():
            yield op.x.width, contract.MAX_INNER, "inputs"
        case LogProb():
            yield op.x.width, contract.MAX_INNER, "inputs"
            yield op.vocabulary, contract.MAX_VOCABULARY, "tokens"
        case Attention():
            yield op.q.width // op.heads, contract.EXACT_F32_INNER, "columns a head"
