"""How sure a flip rate is: other draws of the same items.

Pairs that share an item are not independent, so items are drawn again, not pairs: with replacement, and a pair counts
as often as both its items were drawn together. All candidates see the same draws, so their ratios can be judged too.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.quality.pairs import Floats, Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where a figure lies with a probability, by percentiles of the draws."""

    low: float
    high: float


def resampled(counts: npt.ArrayLike, pairs: Pairs, items: int, *, draws: int = 500, seed: int = 0) -> Floats:
    """Return the flip rates of other draws of the items.

    Args:
        counts: Weight of each pair, by candidate [candidates, pairs], from :func:`flips.flips`; NaN: not counted.
        pairs: The pairs.
        items: Number of items.
        draws: Number of draws.
        seed: Seed of the draws.

    Returns:
        [candidates, draws]; NaN where a draw holds no pair.

    Raises:
        ValueError: Counts are not of the pairs, or there are no pairs.
    """
    table = np.atleast_2d(np.asarray(counts, dtype=np.float64))
    pairs.check(items)
    if table.ndim != 2 or table.shape[1] != len(pairs):
        raise ValueError(f"counts have shape {list(table.shape)}; [candidates, {len(pairs)} pairs] is expected")
    counted = ~np.isnan(table)
    values = np.where(counted, table, 0.0)
    everything = bool(counted.all())
    draw = np.random.default_rng(seed)
    rates = np.empty((len(table), draws))
    for i in range(draws):
        times = np.bincount(draw.integers(0, items, items), minlength=items).astype(np.float64)
        weights = times[pairs.better] * times[pairs.worse]
        total = weights.sum() if everything else counted @ weights
        with np.errstate(invalid="ignore"):
            rates[:, i] = (values @ weights) / total
    return rates


def interval(rates: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the middle part of what was drawn, NaN left out.

    Args:
        rates: Rates of one candidate [draws], or the ratio of two candidates' rates.
        confidence: Share of the draws within.
    """
    values = np.asarray(rates, dtype=np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        return Interval(low=float("nan"), high=float("nan"))
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(low=float(low), high=float(high))
