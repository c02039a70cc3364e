"""The sweeps as pictures, matplotlib's part."""

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from greentrain.estimate.values import Range
from greentrain.simulator.picture import GRID_COLOUR, LINES, clean
from greentrain.utils.quantities import significant
from recipes.estimate.curves import BUDGET_FLOP, Curve, Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TONNE_G: Final = 1e6
WIDTH_IN: Final = 11.0
CO2: Final = "CO\N{SUBSCRIPT TWO}e"
_MARK: Final = "#b91c1c"
Of = Callable[[Sample], Range | None]
PARTS: Final[tuple[tuple[str, Of], ...]] = (
    ("operational", lambda sample: sample.found.operational_g),
    ("embodied", lambda sample: sample.found.embodied_g),
)


def draw_losses(curves: Sequence[Curve], title: str, caption: str) -> "Figure":
    """Return loss over operational and over embodied carbon, a column a law; and ranges at one budget."""
    from matplotlib.ticker import LogLocator

    figure = _figure(8.2)
    laws = list(dict.fromkeys(curve.law for curve in curves))
    ratios = [1.0] * len(laws) + [0.7]
    grid = figure.subplots(2, len(laws) + 1, squeeze=False, gridspec_kw={"width_ratios": ratios})
    for row, (kind, of) in enumerate(PARTS):
        for axes, law in zip(grid[row], laws, strict=False):
            for curve, colour in zip((curve for curve in curves if curve.law == law), LINES, strict=False):
                _loss(axes, curve, of, colour)
            axes.sharey(grid[0][0])
            axes.set_title(f"{kind}, {law}", fontsize=9, loc="left")
        _bars(grid[row][-1], [curve for curve in curves if curve.law == laws[0]], of)
        grid[row][-1].set_title(f"{kind}, {laws[0]}, {BUDGET_FLOP:.0e} FLOP", fontsize=9, loc="left")
        grid[row][0].set_ylabel("loss (nats per token)", fontsize=9)
        for axes in grid[row]:
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.grid(True, color="#e5e7eb", linewidth=0.6)
            axes.set_xlabel(f"t {CO2}, logarithmic", fontsize=9)
            clean(axes)
        grid[row][-1].xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        grid[row][-1].xaxis.set_major_formatter(lambda grams, _: f"{grams:g}")
    _styles(grid[0][len(laws) - 1])
    grid[0][0].legend(fontsize=8, frameon=False, loc="upper right")
    _texts(figure, title, caption)
    return figure


def draw_few_bits(curves: Sequence[Curve], equal: Curve, share: float, share_said: str, caption: str) -> "Figure":
    """Return loss over carbon in BF16 and FP8, and what FP8 takes for the same loss."""
    figure = _figure(5.2)
    left, right = figure.subplots(1, 2)
    for curve, colour in zip(curves, ("#111111", LINES[1], LINES[0]), strict=True):
        losses = [sample.found.point.loss for sample in curve.samples]
        base = [_known(sample.found.total_g).mid / TONNE_G for sample in curve.samples]
        left.plot(base, losses, color=colour, linewidth=1.6, label=curve.name, linestyle="--")
        ends = [(sample.over_bf16, x) for sample, x in zip(curve.samples, base, strict=True)]
        low = [x if by is None else x * by.low / by.mid for by, x in ends]
        high = [x if by is None else x * by.high / by.mid for by, x in ends]
        left.fill_betweenx(losses, low, high, color=colour, alpha=0.13, linewidth=0)
    left.set_xscale("log")
    left.set_xlabel(f"operational and embodied, t {CO2}, logarithmic", fontsize=9)
    left.set_ylabel("loss (nats per token)", fontsize=9)
    left.legend(fontsize=8, frameon=False)
    left.set_title("all extrapolated: the law's runs were smaller", fontsize=9, loc="left")
    shares = [sample.share for sample in equal.samples]
    times = [_known(sample.over_bf16) for sample in equal.samples]
    right.plot(shares, [by.mid for by in times], color=LINES[2], linewidth=1.6)
    right.fill_between(
        shares, [by.low for by in times], [by.high for by in times], color=LINES[2], alpha=0.15, linewidth=0
    )
    right.axhline(1.0, color="#8a8a8a", linewidth=1.0)
    right.annotate("as much as BF16", (0.5, 1.0), xytext=(2, -10), textcoords="offset points", fontsize=8)
    right.axvline(share, color=_MARK, linewidth=1.2, linestyle=(0, (4, 2)))
    right.annotate(
        share_said, (share, 1.0), xycoords=("data", "axes fraction"), xytext=(-4, -4), textcoords="offset points",
        ha="right", va="top", color=_MARK, fontsize=8,
    )  # fmt: skip
    right.set_xlabel("share for which parameters count in FP8", fontsize=9)
    right.set_ylabel("grams of FP8 over BF16, same loss", fontsize=9)
    right.set_title(f"for the loss of {BUDGET_FLOP:.0e} FLOP in BF16", fontsize=9, loc="left")
    for axes in (left, right):
        axes.grid(True, which="both", color="#e5e7eb", linewidth=0.6)
        clean(axes)
    _texts(figure, "Training in few bits: loss against carbon, modelled", caption)
    return figure


def draw_intensities(swept: Sequence[Curve], zones: Sequence[Curve], detail: str, caption: str) -> "Figure":
    """Return grams of one run over the grid's intensity, and the embodied share on each device."""
    figure = _figure(6.0)
    left, right = figure.subplots(1, 2)
    one = next(curve for curve in swept if curve.name == detail)
    room = 10.0 + 5.5 * max(len(curve.name) for curve in zones)
    grids = [sample.found.g_per_kwh.mid for sample in one.samples]
    total = [_known(sample.found.total_g).mid / TONNE_G for sample in one.samples]
    left.plot(grids, total, color="#111111", linewidth=1.6, label="operational and embodied")
    for (label, of), colour in zip(PARTS, (LINES[2], LINES[1]), strict=True):
        found = [_known(of(sample)).times(1.0 / TONNE_G) for sample in one.samples]
        left.plot(grids, [by.mid for by in found], color=colour, linewidth=1.6, label=label)
        left.fill_between(
            grids, [by.low for by in found], [by.high for by in found], color=colour, alpha=0.13, linewidth=0
        )
    at = _known(one.samples[0].found.crossing_g_per_kwh).mid
    left.plot(
        [at], [found[0].mid], marker="o", markersize=5, color=_MARK, label=f"equal at {at:.0f} g/kWh", linestyle=""
    )
    left.set_ylabel(f"t {CO2} of one run", fontsize=9)
    left.set_title(f"{detail}, {BUDGET_FLOP:.0e} FLOP, dense", fontsize=9, loc="left", pad=room)
    left.set_ylim(bottom=0)
    left.set_xlim(0, 1000)
    left.legend(fontsize=8, loc="upper left", edgecolor="none", framealpha=0.9)
    for curve, colour in zip(swept, (LINES[4], LINES[2], LINES[0], LINES[3]), strict=True):
        shares = [_known(sample.found.embodied_share) for sample in curve.samples]
        even = _known(curve.samples[0].found.crossing_g_per_kwh)
        text = f"{curve.name}: {even.mid:.0f} ({even.low:.0f} to {even.high:.0f}) g/kWh"
        right.plot(grids, [by.mid for by in shares], color=colour, linewidth=1.6, label=text)
        right.fill_between(
            grids, [by.low for by in shares], [by.high for by in shares], color=colour, alpha=0.08, linewidth=0
        )
        right.plot([even.mid], [0.5], marker="o", markersize=5, color=colour)
    right.axhline(0.5, color="#8a8a8a", linewidth=1.0)
    right.set_xscale("log")
    right.set_xlim(1, 1000)
    right.set_ylim(0, 1)
    right.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    right.set_ylabel("embodied share of all grams", fontsize=9)
    right.set_title("embodied carbon dominates left of the dots", fontsize=9, loc="left", pad=room)
    right.legend(
        fontsize=8, loc="upper right", title="half is embodied at", title_fontsize=8, edgecolor="none", framealpha=0.9
    )  # fmt: skip
    for axes in (left, right):
        for curve in zones:
            g = curve.samples[0].found.g_per_kwh.mid
            axes.axvline(g, color=GRID_COLOUR, linewidth=0.7, linestyle=(0, (2, 2)))
            axes.annotate(
                curve.name, (g, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
                rotation=90, ha="center", va="bottom", fontsize=8, color=GRID_COLOUR,
            )  # fmt: skip
        axes.set_xlabel("intensity of the grid (g/kWh)", fontsize=9)
        clean(axes)
    _texts(figure, "Intensity of the grid: what dominates a run's carbon, modelled", caption)
    return figure


def _loss(axes: "Axes", curve: Curve, of: Of, colour: str) -> None:
    known = [(sample.found.point, _known(of(sample)).times(1.0 / TONNE_G)) for sample in curve.samples if of(sample)]
    losses = [point.loss for point, _ in known]
    axes.fill_betweenx(losses, [x.low for _, x in known], [x.high for _, x in known], color=colour, alpha=0.1, lw=0)
    axes.plot([x.mid for _, x in known], losses, color=colour, linewidth=1.3, linestyle="--", dashes=(3, 1.6))
    fitted = [(x.mid, point.loss) for point, x in known if not point.extrapolated]
    axes.plot([x for x, _ in fitted], [loss for _, loss in fitted], color=colour, linewidth=2.6)
    axes.plot([], [], color=colour, linewidth=2.0, label=curve.name)


def _bars(axes: "Axes", curves: Sequence[Curve], of: Of) -> None:
    """Draw each curve's range at one budget."""
    for place, (curve, colour) in enumerate(zip(curves, LINES, strict=False)):
        at = min(curve.samples, key=lambda sample: abs(math.log(sample.found.point.flop / BUDGET_FLOP)))
        grams = _known(of(at)).times(1.0 / TONNE_G)
        axes.plot([grams.low, grams.high], [place, place], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
        axes.plot([grams.mid], [place], marker="o", markersize=5, color=colour)
        axes.annotate(
            f"{significant(grams.mid, 2)} t", (grams.mid, place), xytext=(0, 5), textcoords="offset points",
            ha="center", fontsize=7.5,
        )  # fmt: skip
    axes.set_yticks(range(len(curves)), [curve.name.replace(" +", "\n+").replace(" (", "\n(") for curve in curves])
    axes.set_ylim(len(curves) - 0.5, -0.6)


def _styles(axes: "Axes") -> None:
    """Say what solid, dashed and pale mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes.legend(
        handles=[
            Line2D([], [], color="#555555", linewidth=2.6, label="within the law's runs"),
            Line2D([], [], color="#555555", linewidth=1.3, linestyle="--", label="extrapolated"),
            Patch(color="#555555", alpha=0.15, label="80 % range or bounds"),
        ],
        fontsize=8,
        frameon=False,
        loc="upper right",
    )


def _figure(height_in: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def _texts(figure: "Figure", title: str, caption: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    lines = "\n".join(textwrap.fill(line, 195) for line in caption.splitlines())
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=7.5, color="#555555")


def _known(of: Range | None) -> Range:
    if of is None:
        raise ValueError("embodied carbon of this device is in no table: choose one that has it")
    return of
