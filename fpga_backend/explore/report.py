"""The design space for people: as a table, and as a sentence that says which device is cheaper."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from greentrain.fpga_backend.explore.gpu import GpuRow
from greentrain.fpga_backend.explore.space import DesignPoint, Subject
from greentrain.fpga_backend.roofline.cards import CONSTANTS, CardSpec, unit_of
from greentrain.fpga_backend.roofline.cycles import TIMING


def table(
    subject: Subject,
    points: Sequence[DesignPoint],
    gpus: Sequence[GpuRow],
    said: Sequence[str],
    cards: Sequence[CardSpec],
) -> RenderableType:
    """Return table, sentences and what was assumed."""
    flips = any(point.flip_rate is not None for point in points)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("cards", "type", "limit"):
        shown.add_column(column, no_wrap=True)
    for column in ("batch", "tokens", "tokens/s", "W", "mJ/token", "assumed", *(("flips",) if flips else ())):
        shown.add_column(column, justify="right", no_wrap=True)
    for point in points:
        shown.add_row(*_cells(point), *((_share(point.flip_rate, 3),) if flips else ()))
    for gpu in gpus:
        shown.add_row(
            gpu.name, "bf16", "", "", str(gpu.sequence), *_figures(gpu.tokens_per_s, gpu.power_w), style="bold"
        )
    lines = [*_why(points), *_of_gpus(gpus), *_notes(points, flips), *_assumed(cards)]
    title = Text(f"{subject.name}, {subject.source}: modelled, not run on a card", style="italic")
    return Group(title, *(Text(line) for line in said), shown, *(Text(line) for line in lines))


def _cells(point: DesignPoint) -> tuple[str, ...]:
    name = f"{point.cards} x {point.card}"
    head = (name, point.precision)
    size = (str(point.batch), str(point.sequence))
    if point.tokens_per_s is None or point.power_w is None:
        return (*head, "does not run", *size, "-", "-", "-", "")
    figures = _figures(point.tokens_per_s, point.power_w)
    return (*head, str(point.bound), *size, *figures, _share(point.assumed_share, 0))


def _figures(tokens_per_s: float, power_w: float) -> tuple[str, str, str]:
    return _number(tokens_per_s), f"{power_w:,.0f}", _number(1000 * power_w / tokens_per_s)


def _why(points: Sequence[DesignPoint]) -> list[str]:
    """Return each reason once, with what it is true of, where that is not everything."""
    by_reason: dict[str, dict[str, None]] = {}
    for point in points:
        if point.reason:
            by_reason.setdefault(point.reason, {})[_where(point)] = None
    all_ = len({_where(point) for point in points})
    return [
        f"Does not run: {reason}" + ("." if len(names) == all_ else f" ({'; '.join(names)}).")
        for reason, names in by_reason.items()
    ]


def _where(point: DesignPoint) -> str:
    return f"{point.cards} x {point.card}, {point.precision}"


def _of_gpus(gpus: Sequence[GpuRow]) -> list[str]:
    if not any("data sheet" in gpu.how for gpu in gpus):
        return []
    return ["A GPU reaches less with small models or batches: measure yours (--gpu-tokens-per-s, --gpu-power-w)."]


def _notes(points: Sequence[DesignPoint], flips: bool) -> list[str]:
    found = []
    if any(0 < point.wave < point.batch // point.cards for point in points):
        found.append("Some batches run in waves, because their registers take more than a card's memory.")
    if not flips:
        found.append("Rank flips: not measured (--texts measures them on a Hugging Face folder with weights).")
    if any(point.precision == "int8a16" for point in points):
        found.append("int8a16 has weights of 8 bits and activations of 16: each of its products is two of 8 bits.")
    if any(point.precision.startswith("kernel") for point in points):
        found.append(
            "kernel is int8 on the kernels of this repository, clock by clock; other types are an ideal array."
        )
        found += [f"Kernels, {name} assumed: {value}." for name, value in TIMING.items()]
    if any(point.precision == "int4" for point in points):
        found.append("int4 is of weights only: its products are of 16 bits.")
    return found


def _assumed(cards: Sequence[CardSpec]) -> list[str]:
    found = []
    for card in cards:
        names = [name for name in CONSTANTS if name in card.constants and card.kind(name) == "assumed"]
        if names:
            units = {name: unit_of(name).replace("1", "") for name in names}
            listed = ", ".join(f"{name} {card.value(name):.3g} {units[name]}".strip() for name in names)
            found.append(f"{card.name}, assumed: {listed}.")
    return found


def _share(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:.3g}"


def verdicts(points: Sequence[DesignPoint], gpus: Sequence[GpuRow]) -> tuple[str, ...]:
    """Return sentences a sequence length: least joules a token of our kernels and of ideal arrays, and a GPU's."""
    said = []
    for sequence in dict.fromkeys(point.sequence for point in points):
        beside = [gpu for gpu in gpus if gpu.sequence == sequence]
        running = [(p.j_per_token, p) for p in points if p.sequence == sequence and p.j_per_token is not None]
        ours = [pair for pair in running if pair[1].precision.startswith("kernel")]
        if not beside:
            continue
        gpu = min(beside, key=lambda row: row.j_per_token)
        if not running:
            said.append(f"{sequence} tokens: nothing fits on these cards; use the GPU.")
            continue
        for kind in (ours, [pair for pair in running if pair not in ours]):
            if kind:
                said.append(_sentence(sequence, *min(kind, key=lambda pair: pair[0]), gpu))
    return tuple(said)


def _sentence(sequence: int, j_per_token: float, best: DesignPoint, gpu: GpuRow) -> str:
    where = f"{best.cards} x {best.card}, {best.precision}, batch {best.batch}"
    if best.precision.startswith("kernel"):
        where += f", {best.tokens_per_s:.4g} tokens/s at {best.power_w:.0f} W: our kernels"
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
