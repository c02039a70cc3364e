"""Sweep devices, years, precisions and grids: what a model of a given loss costs the climate. No training, no network.

    python recipes/estimate/sweeps.py --out sweeps

Any machine, a few seconds; needs the extra [simulate] for the figures. It draws the questions of CarbonScaling
(arXiv 2508.06524) with GreenTrain's own tables: device_generations, technology_scaling, few_bits and grid_intensity,
each as SVG, PNG and a CSV with every value and what it rests on. Nothing in them is measured. --effective-share takes
what your own runs in FP8 showed; --rates takes the growth of later devices from CarbonScaling's table 2, with carbon
per area that grows by 10 % a year or stays (-flat); --small draws few points.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from greentrain.errors import GreenTrainError
from greentrain.estimate.mfu import FP8_SPEEDUP
from greentrain.estimate.values import Range
from greentrain.simulator.picture import check_pictures, save
from greentrain.utils.validation import bound
from recipes.estimate import curves, drawing, sheet
from recipes.estimate.projection import GrowthRates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOPS: Final = (1e20, 1e26)
_RANGES: Final = (
    "Bands: hours as 80 % of unseen families of models, watts, PUE and grid by their bounds, in quadrature."
)
_LAWS: Final = "Laws: Ludziejewski et al., arXiv 2402.07871, as quoted; best model of each budget."


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("sweeps"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--zone", default="world")
    parser.add_argument("--pue", type=float)
    parser.add_argument("--effective-share", type=float)
    parser.add_argument("--rates", choices=list(curves.RATES), default="epoch")
    given = parser.parse_args(argv)
    try:
        check_pictures()
        if given.effective_share is not None:
            bound("--effective-share", given.effective_share, 0.5, 1.0)
        rates = curves.RATES[given.rates]
        share = given.effective_share
        written = sweep(given.out, small=given.small, zone=given.zone, pue=given.pue, share=share, rates=rates)
    except GreenTrainError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 2
    print("\n".join(str(path) for path in written))
    return 0


def sweep(
    out: Path, *, small: bool, zone: str, pue: float | None, share: float | None, rates: GrowthRates
) -> list[Path]:
    """Write all four figures and return their files."""
    where = curves.place(zone, pue)
    flops = np.geomspace(*FLOPS, 7 if small else 49).tolist()
    older = curves.generations(flops, where)
    first = older[0].samples[0].found
    pue_said = f"PUE {_said(first.pue)}."
    there = f"{zone}: {_said(first.g_per_kwh)} g/kWh, {pue_said}"
    found = _write(
        out / "device_generations",
        drawing.draw_losses(
            older, "Device generations: loss against carbon, modelled", f"{there} {_RANGES}\n{_LAWS} V100 in FP16."
        ),
        older,
    )
    later = curves.projections(flops, where, rates)
    title = f"Technology scaling from the {curves.TODAY}: loss against carbon, modelled; later devices are assumed"
    found += _write(
        out / "technology_scaling",
        drawing.draw_losses(later, title, f"{_rates(rates)}\n{there} {_RANGES} {_LAWS}"),
        later,
    )
    bits, equal, taken = curves.few_bits(5 if small else 25, share, where)
    said = f"{taken:.3f}, given" if share is not None else f"{taken:.3f} by Kumar et al.,\narXiv 2411.04330"
    found += _write(
        out / "few_bits",
        drawing.draw_few_bits(bits, equal, taken, said, f"{_few_bits_caption(share is not None)}\n{there} {_LAWS}"),
        [*bits, equal],
    )
    swept, zones = curves.intensities(11 if small else 41, where)
    caption = f"{pue_said} {_RANGES} Embodied: over 4 years (6, card alone, to 3)."
    zoned = [dataclasses.replace(curve, name=f"zone {curve.name}") for curve in zones]
    found += _write(
        out / "grid_intensity",
        drawing.draw_intensities(swept, zones, "H100-SXM", f"{caption}\nZones: means of a year in the tables. {_LAWS}"),
        [*swept, *zoned],
    )
    return found


def _write(stem: Path, figure: "Figure", of: Sequence[curves.Curve]) -> list[Path]:
    png = save(figure, stem.with_suffix(".png"))
    figure.set_layout_engine("none")  # the layout stands, and takes longer than the drawing
    return [png, save(figure, stem.with_suffix(".svg")), sheet.write(stem.with_suffix(".csv"), of)]


def _said(of: Range) -> str:
    return f"{of.mid:.3g}" + ("" if of.low == of.high else f" ({of.low:.3g} to {of.high:.3g})")


def _rates(rates: GrowthRates) -> str:
    grown = ", ".join(
        f"{name} {rate.per_year - 1:+.0%}"
        for name, rate in (
            ("peak", rates.peak),
            ("power", rates.power),
            ("embodied carbon of the card", rates.embodied),
        )
    )
    whose = "Epoch AI 2023; embodied as CarbonScaling takes it" if rates == GrowthRates() else rates.peak.source
    return f"Assumed a year: {grown} ({whose.split(':')[0]}); share of the peak reached and server as today."


def _few_bits_caption(given: bool) -> str:
    gain = FP8_SPEEDUP
    fitted = (
        " The share was fitted to integers and models of up to 220 million parameters, quoted second-hand; dense models"
        " only. DeepSeek-V3 (arXiv 2412.19437, as quoted) reports a loss within 0.25 % of BF16."
    )
    return (
        f"{curves.FEW_BITS_ON}, FP8 {gain.mid:g} x as fast ({gain.low:g} to {gain.high:g}) at the same watts; bands:"
        f" that gain alone, all else is the same on both sides.{' The share was given.' if given else fitted}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
