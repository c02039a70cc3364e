"""Which is cheaper, in one plain sentence."""

from collections.abc import Sequence

from greentrain.fpga_backend.explore.gpu import GpuRow
from greentrain.fpga_backend.explore.space import DesignPoint


def verdicts(points: Sequence[DesignPoint], gpus: Sequence[GpuRow]) -> tuple[str, ...]:
    """Return a sentence a sequence length: the cards' least joules a token against the GPUs'."""
    said = []
    for sequence in dict.fromkeys(point.sequence for point in points):
        beside = [gpu for gpu in gpus if gpu.sequence == sequence]
        running = [(p.j_per_token, p) for p in points if p.sequence == sequence and p.j_per_token is not None]
        if not beside:
            continue
        gpu = min(beside, key=lambda row: row.j_per_token)
        if not running:
            said.append(f"{sequence} tokens: nothing fits on these cards; use the GPU.")
            continue
        j_per_token, best = min(running, key=lambda pair: pair[0])
        said.append(_sentence(sequence, j_per_token, best, gpu))
    return tuple(said)


def _sentence(sequence: int, j_per_token: float, best: DesignPoint, gpu: GpuRow) -> str:
    where = f"{best.cards} x {best.card}, {best.precision}, batch {best.batch}"
    ratio = j_per_token / gpu.j_per_token
    if ratio >= 1:
        return (
            f"{sequence} tokens: the GPU is cheaper. {gpu.name} ({gpu.how}) takes {gpu.j_per_token:.3g} J a token, "
            f"{ratio:.3g} times less than the best modelled card ({where}): {j_per_token:.3g} J."
        )
    return (
        f"{sequence} tokens: the model has {where} at {j_per_token:.3g} J a token, {1 / ratio:.3g} times less than "
        f"{gpu.name} ({gpu.how}): {gpu.j_per_token:.3g} J. This is a model: measure both before you decide."
    )
