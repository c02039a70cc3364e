"""The design space as a picture: joules a token over tokens a second."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from greentrain.errors import ConfigError
from greentrain.fpga_backend.explore.gpu import GpuRow
from greentrain.fpga_backend.explore.space import DesignPoint
from greentrain.fpga_backend.explore.subject import Subject
from greentrain.utils.imports import try_import

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg", ".pdf")
_COLOURS: Final = {"int8": "#0072b2", "int8a16": "#7b5ea7", "fp16": "#d55e00", "int4": "#0a6b3d"}
"""After Okabe and Ito's palette (https://jfly.uni-koeln.de/color/, 2026-11-21)."""
_MARKERS: Final = "os^Dv"


def check_plot(file: Path) -> None:
    """Check that a picture can be drawn, before anything is computed.

    Raises:
        ConfigError: The file's ending names no format.
        MissingExtraError: matplotlib is not installed.
    """
    if file.suffix not in FORMATS:
        raise ConfigError(f"--plot {file} must end in {', '.join(FORMATS)}")
    with try_import("simulate") as imports:
        import matplotlib.figure  # noqa: F401
    imports.check()


def draw(subject: Subject, points: Sequence[DesignPoint], gpus: Sequence[GpuRow]) -> "Figure":
    """Return the picture; points that do not fit are left out.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_plot(Path("x.png"))
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.2), layout="constrained")
    axes = figure.subplots()
    markers = dict(zip(dict.fromkeys((p.card, p.cards) for p in points), _MARKERS * len(points), strict=False))
    for (card, cards), marker in markers.items():
        for precision, colour in _COLOURS.items():
            mine = [p for p in points if (p.card, p.cards, p.precision) == (card, cards, precision) and p.tokens_per_s]
            if mine:
                xs, ys = [p.tokens_per_s or 0.0 for p in mine], [p.j_per_token or 0.0 for p in mine]
                axes.scatter(xs, ys, marker=marker, color=colour, label=f"{cards} x {card}, {precision}", alpha=0.8)
    for name in dict.fromkeys(gpu.name for gpu in gpus):
        rows = [gpu for gpu in gpus if gpu.name == name]
        axes.scatter(
            [g.tokens_per_s for g in rows],
            [g.j_per_token for g in rows],
            marker="*",
            s=140,
            color="#64748b" if name == gpus[0].name else "#b58900",
            label=f"{name}, {rows[0].how}",
        )
    axes.set(xscale="log", yscale="log", xlabel="tokens/s", ylabel="J/token")
    axes.set_title(f"{subject.name}: modelled, not run on a card", loc="left", fontsize=10)
    axes.grid(True, which="both", alpha=0.25)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, loc="upper right")
    return figure
