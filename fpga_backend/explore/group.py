"""One card, or two that share a model: how much it holds, and what a share of a batch takes."""

from dataclasses import dataclass

from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.roofline.card_spec import CardSpec
from greentrain.fpga_backend.roofline.latency import Bound, CardService, service
from greentrain.fpga_backend.roofline.layout import BatchLayout
from greentrain.fpga_backend.roofline.memory import footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRun:
    """A share of a batch, modelled."""

    run_s: float
    energy_j: float
    assumed_j: float
    bound: Bound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardGroup:
    """Cards that share a model."""

    program: Program
    card: CardSpec
    sequence: int
    ways: int
    wave: int
    """Sequences at a time."""

    def run(self, sequences: int) -> GroupRun:
        """Return what so many sequences take, in waves one after the other."""
        full, rest = divmod(sequences, self.wave)
        parts: list[tuple[int, CardService]] = []
        for number, size in ((full, self.wave), (1 if rest else 0, rest)):
            if number:
                found = service(self.program, BatchLayout.equal(size, self.sequence), self.card, ways=self.ways)
                parts.append((number, found))
        return GroupRun(
            run_s=sum(number * found.run_s for number, found in parts),
            energy_j=sum(number * found.energy_j for number, found in parts),
            assumed_j=sum(number * found.assumed_j for number, found in parts),
            bound=parts[0][1].bound if parts else None,
        )


def most_sequences(program: Program, sequence: int, room_bytes: int, wanted: int, *, ways: int) -> int:
    """Return how many sequences a card has room for beside the weights, up to ``wanted``; 0: not even one."""
    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if footprint(program, BatchLayout.equal(middle, sequence), ways=ways).total_bytes <= room_bytes:
            low = middle
        else:
            high = middle - 1
    return low
