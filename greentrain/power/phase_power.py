"""What a device draws in each phase, where phases are shorter than its sensor's ticks.

A counter that ticks every 100 ms says what all phases of a tick have drawn together, and often only of the 25 ms of it
that the sensor saw. But phases come again, and lie differently in each tick: with ``x[k, p]`` the share of phase p in
what was seen of tick k and ``y[k]`` its mean power, ``y = x b`` has one unknown power ``b[p]`` a phase and an equation
a tick. Which part of a tick is seen, its width and how late it is told, is found by the same means: no other fits so
well.

A joule is then placed by what each phase draws, and what a tick has drawn more or less than its phases is spread over
that tick. The sum is the counter's, whatever the fit says. Where phases are locked to the ticks, or too few ticks were
seen, the ticks do not tell one phase from another: their errors are then as large as phases differ.

Two minutes of ticks are looked at; what older ones have said of the powers is kept as a matrix, and fades.
"""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

ROWS: Final = 1200
"""Ticks that a fit looks at: two minutes at 10 Hz, in which a card's temperature moves little."""
SEGMENTS: Final = 32_768
"""Most segments that it looks at: with phases of 4 ms those of two minutes, and 3 MB."""
WEAK: Final = 1e-4
"""Rows that the mean power counts for in a search."""
FIRST_ROWS: Final = 50
"""Ticks of the first fit; further ones come when there are four times as many, at ``ROWS``, and then every ``ROWS``."""
LONGEST_ROW: Final = 8
"""Ticks from one reading to the next from which on it says too little."""
WIDTHS: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.1)
"""Widths of what is seen that are tried first (share of a tick); cards are known with 0.25 and 1 (arXiv 2312.02741)."""
LAGS: Final = (-0.1, -0.05, 0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4)
"""How late it is told, tried first (share of a tick); negative where ticks are dated late."""
FEW: Final = 400
"""New readings below which width and lag stay what older ones said."""
SURE: Final = 1000
"""Readings of a fit whose width and lag the next one begins with."""
FINEST: Final = 1e-3
"""How finely width and lag are searched (share of a tick)."""
FARTHEST: Final = 0.05
"""How far a step of the search goes at most (share of a tick)."""
VALLEYS: Final = 4
"""Places of width and lag that are searched from, of each kind: a load that repeats nearly in step with the ticks may
look the same through another window, with other powers."""
DOUBT: Final = 6.0
"""By how much such a place may fit worse (twice the logarithm of the likelihood) and still be in doubt: beyond it has
less than 5 %, which an interval of 95 % may leave out."""
PLAIN: Final = 2
"""Parameters that one that sees a part has more than one that sees all; each is to be paid by the logarithm of the
number of readings (Schwarz 1978, doi:10.1214/aos/1176344136)."""
OUTLIER: Final = 3.0
"""Standard deviations from which on a tick counts less (Huber 1964, doi:10.1214/aoms/1177703732)."""
RESOLUTION: Final = 1e-3
"""No reading is taken for more exact than this share of the mean power."""
HAC_LAGS: Final = 8
"""Ticks over which errors may hang together (Newey and West 1987, doi:10.2307/1913610)."""
PRIOR: Final = 0.5
"""How far a phase's power may be from the mean before anything is read (share of it): data loading at a third of it,
matrix products at 1.3 times."""
FADES: Final = 0.8
"""What of older ticks counts at each ``ROWS`` of new ones: ten minutes of them together, and older ones little."""
CHANGED: Final = 4.0
"""Deviations of chi squared by which new ticks may contradict the older ones before these are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFit:
    """What the ticks of one device say of its phases."""

    power_w: Floats
    """Power in each label (W), shape (K,)."""
    error_w: Floats
    """Standard error of it (W); up to ``PRIOR`` of the mean power where ticks do not tell it."""
    mean_w: float
    """Mean power (W)."""
    width: float
    """Share of a tick that the sensor sees."""
    lag: float
    """How long after its end that is told (share of a tick)."""
    rows: int
    """Readings that it rests on."""
    sure: bool = True
    """Whether no other width and lag fit nearly as well."""
    kept: float
    """Share of a tick's own deviation that holds for all of it: 1 where all of it is seen."""
    information: Floats
    """What the ticks, older ones too, say of the powers (1/W^2), shape (K, K)."""
    scores: Floats
    """The same times the powers that they say (1/W), shape (K,)."""


class PhasePower:
    """The regression of one device.

    Args:
        tick_s: Refresh period of its counter (s).
    """

    def __init__(self, tick_s: float) -> None:
        self.tick_s = tick_s
        self.fit: PhaseFit | None = None
        """The last one; None: too few ticks so far."""
        self._bounds_s: Floats = np.empty(0)
        self._label: Ints = np.empty(0, dtype=np.intp)
        self._ticks_s: Floats = np.empty(0)
        self._ticks_j: Floats = np.empty(0)
        self._seen = self._labels = self._closed = 0
        self._next = FIRST_ROWS
        self._older: PhaseFit | None = None
        """Of ticks that are not looked at any more."""

    def add(self, bounds_s: Floats, label: Ints, ticks_s: Floats, ticks_j: Floats) -> None:
        """Add an interval, which follows the one before, and fit again where it is time.

        Args:
            bounds_s: Bounds of its segments (s), shape (m + 1,).
            label: Label of each segment, shape (m,).
            ticks_s: Times of the counter's ticks that were read (s), shape (n,).
            ticks_j: Its values (J), shape (n,); NaN where a reading says nothing of the next.
        """
        if len(self._bounds_s) and bounds_s[0] != self._bounds_s[-1]:
            self._bounds_s, self._label = self._bounds_s[:0], self._label[:0]
            self._ticks_s, self._ticks_j = self._ticks_s[:0], self._ticks_j[:0]
        self._bounds_s = np.concatenate([self._bounds_s[:-1], bounds_s])
        self._label = np.concatenate([self._label, label])
        self._ticks_s = np.concatenate([self._ticks_s, ticks_s])[-ROWS - 1 :]
        self._ticks_j = np.concatenate([self._ticks_j, ticks_j])[-ROWS - 1 :]
        old = max(0, len(self._label) - SEGMENTS)
        if len(self._ticks_s) > ROWS:
            old = max(old, int(np.searchsorted(self._bounds_s, self._ticks_s[0] - 2 * self.tick_s)) - 1)
        self._bounds_s, self._label = self._bounds_s[old:], self._label[old:]
        self._labels = max(self._labels, int(label.max()) + 1)
        self._seen += len(ticks_s)
        if self._seen >= self._next:
            full = self._seen >= ROWS
            self._next = self._seen + ROWS if full else min(4 * self._next, ROWS)
            self.refit()
            if full:
                self._older, self._closed = self.fit, self._seen

    def since(self, t_s: float) -> "PhasePower":
        """Return one of the same fit that knows what came since a time (s), to add to and to look at."""
        found = PhasePower(self.tick_s)
        found.fit, found._labels, found._next = self.fit, self._labels, sys.maxsize
        first = max(0, int(np.searchsorted(self._bounds_s, t_s, side="right")) - 1)
        found._bounds_s, found._label = self._bounds_s[first:], self._label[first:]
        kept = self._ticks_s >= t_s
        found._ticks_s, found._ticks_j = self._ticks_s[kept], self._ticks_j[kept]
        return found

    def refit(self) -> None:
        """Fit now, with what there is; of a single load there is nothing to tell apart."""
        if len(self._label) == 0 or (self._label == self._label[0]).all():
            return
        rows = self._rows()
        rows = rows.last(min(rows.count, self._seen - self._closed))
        if rows.count >= FIRST_ROWS // 2:
            with contextlib.suppress(np.linalg.LinAlgError):  # figures without sense: the fit before holds
                self.fit = _fit(rows, self.fit, self._older)

    def nodes_s(self, t0_s: float, t1_s: float) -> Floats:
        """Return the times between two at which power may change, and these two (s), increasing."""
        both = np.concatenate([self._bounds_s, self._ticks_s])
        return np.unique(np.concatenate([[t0_s], both[(both > t0_s) & (both < t1_s)], [t1_s]]))

    def labels(self, t_s: Floats) -> Ints:
        """Return the label from each of some times to the next, shape (n - 1,)."""
        middle_s = (t_s[1:] + t_s[:-1]) / 2
        return self._label[np.clip(np.searchsorted(self._bounds_s, middle_s) - 1, 0, len(self._label) - 1)]

    def covers(self, t_s: float) -> bool:
        """Return whether what was added reaches back to a time (s)."""
        return bool(len(self._bounds_s)) and self._bounds_s[0] <= t_s

    def spread(self, t_s: Floats, total_j: float) -> Floats | None:
        """Return how much of an interval's energy had been used by each of some times in it.

        Args:
            t_s: Increasing times (s), shape (n,); the first and the last are the interval's bounds. It lies in what was
                added.
            total_j: Its energy, as the counter has it (J).

        Returns:
            Joules, from 0 to ``total_j``, shape (n,); None where nothing is known of its phases.
        """
        said_j = self.said(t_s)
        return None if said_j is None else said_j * (total_j / said_j[-1])

    def said(self, t_s: Floats) -> Floats | None:
        """Return the same as the powers say it, whatever the counter says of the sum; None also where they say none."""
        fit = self.fit
        if fit is None:
            return None
        rows = self._rows()
        power_w = np.append(fit.power_w, np.full(rows.seconds.count - fit.power_w.size, fit.mean_w))
        used_j = rows.seconds(t_s) @ power_w
        if rows.count:
            own_w = fit.kept * (rows.power_w - rows.shares(fit.width, fit.lag) @ power_w)
            ends_s = rows.ends_s - fit.lag * self.tick_s
            own_j = np.concatenate([[0.0], np.cumsum(own_w * rows.lengths_s)])
            used_j = used_j + np.interp(t_s, np.concatenate([ends_s[:1] - rows.lengths_s[0], ends_s]), own_j)
        used_j = np.maximum.accumulate(used_j - used_j[0])
        return used_j if used_j[-1] > 0 else None

    def _rows(self) -> "_Rows":
        seconds = LabelSeconds(self._bounds_s, self._label, self._labels)
        lengths_s, rises_j = np.diff(self._ticks_s), np.diff(self._ticks_j)
        ticks = np.rint(lengths_s / self.tick_s)
        # What a sensor saw of the first ticks may lie before what is known of phases.
        known = self._ticks_s[:-1] >= self._bounds_s[0] + 2 * self.tick_s
        good = (ticks > 0) & (ticks <= LONGEST_ROW) & known & np.isfinite(rises_j)
        lengths_s = lengths_s[good]
        return _Rows(seconds, self.tick_s, self._ticks_s[1:][good], lengths_s, rises_j[good] / lengths_s)


class LabelSeconds:
    """How long each label has lasted up to any time.

    Args:
        bounds_s: Bounds of segments (s), shape (m + 1,), increasing.
        label: Label of each, shape (m,).
        count: Number of labels.
    """

    def __init__(self, bounds_s: Floats, label: Ints, count: int) -> None:
        self.count = count
        self._bounds_s, self._label = bounds_s, label
        spans_s = np.zeros((len(label) + 1, count))
        spans_s[np.arange(1, len(spans_s)), label] = np.diff(bounds_s)
        self._sums_s = np.cumsum(spans_s, axis=0)

    def __call__(self, t_s: Floats) -> Floats:
        """Return the seconds of each label from the first bound to each time (s), shape (n, count)."""
        i = np.clip(np.searchsorted(self._bounds_s, t_s, side="right") - 1, 0, len(self._label) - 1)
        found: Floats = self._sums_s[i]
        found[np.arange(len(i)), self._label[i]] += t_s - self._bounds_s[i]
        return found


class _Rows:
    """Readings as equations.

    Args:
        seconds: How long each label has lasted.
        tick_s: Refresh period (s).
        ends_s: When each reading's last tick was (s), shape (n,).
        lengths_s: Time from the reading before (s), shape (n,).
        power_w: Mean power in it (W), shape (n,).
    """

    def __init__(
        self, seconds: LabelSeconds, tick_s: float, ends_s: Floats, lengths_s: Floats, power_w: Floats
    ) -> None:
        self.seconds, self.ends_s, self.lengths_s, self.power_w = seconds, ends_s, lengths_s, power_w
        self.count = len(ends_s)
        self.ticks = np.rint(lengths_s / tick_s).astype(np.intp)
        self._tick_s = tick_s
        self._starts = np.cumsum(self.ticks) - self.ticks
        back = np.arange(int(self.ticks.sum())) - np.repeat(self._starts, self.ticks)
        self._each_s = np.repeat(ends_s, self.ticks) - back * np.repeat(lengths_s / self.ticks, self.ticks)

    def last(self, count: int) -> "_Rows":
        """Return the newest of them."""
        return _Rows(self.seconds, self._tick_s, self.ends_s[-count:], self.lengths_s[-count:], self.power_w[-count:])

    def shares(self, width: float, lag: float) -> Floats:
        """Return the share of each label in what was seen of each reading's ticks, shape (n, K)."""
        end_s = self._each_s - lag * self._tick_s
        seen_s = width * self._tick_s
        each = (self.seconds(end_s) - self.seconds(end_s - seen_s)) / seen_s
        if len(each) == self.count:
            return each
        return np.add.reduceat(each, self._starts, axis=0) / self.ticks[:, None]


class _Fitting:
    """The search for the powers, and for what is seen of a tick, that tell readings best.

    Args:
        rows: The readings.
        weight: Weight of each, shape (n,); None: the number of its ticks.
    """

    def __init__(self, rows: _Rows, weight: Floats | None = None) -> None:
        self.rows = rows
        self.weight: Floats = rows.ticks.astype(np.float64) if weight is None else weight
        self.mean_w = max(float(np.average(rows.power_w, weights=rows.ticks)), 1e-9)

    def solved(self, width: float, lag: float) -> tuple[Floats, Floats, Floats]:
        """Return shares (n, K), the powers (K,) that fit best, and what they leave (n,); no power is negative.

        What the rows do not tell is drawn to the mean power.
        """
        shares = self.rows.shares(width, lag)
        weighted = shares * self.weight[:, None]
        power_w = _powers(weighted.T @ shares, weighted.T @ self.rows.power_w, WEAK, self.mean_w)
        return shares, power_w, self.rows.power_w - shares @ power_w

    def missed(self, width: float, lag: float) -> tuple[float, float, float]:
        """Return the mean square that is left (W^2), with width and lag."""
        left = self.solved(width, lag)[2]
        return float(left * left @ self.weight / self.weight.sum()), width, lag

    def near(self, width: float, lag: float, *, free: bool = True) -> "_Place":
        """Follow width and lag, or the lag alone, to where they fit best (Gauss and Newton, by halved steps)."""
        best = self.missed(width, lag)
        for _ in range(MOST_STEPS):
            by = self._downhill(best[1], best[2], free=free)
            by *= min(1.0, FARTHEST / max(float(np.abs(by).max()), 1e-12))
            tried = best
            while np.abs(by).max() > FINEST / 4:
                tried = self.missed(max(best[1] + by[1], LEAST_WIDTH), best[2] + by[0])
                if tried[0] < best[0] * (1 - 1e-9):
                    break
                by /= 2
            else:
                break
            best = tried
        return _Place(*best, free)

    def places(self, starts: Sequence[tuple[float, float]] | None) -> "list[_Place]":
        """Return what may be seen of a tick, the likeliest first.

        Args:
            starts: Widths and lags to search from; None: all over.
        """
        if starts is None:
            starts = _valleys([[self.missed(width, lag) for lag in LAGS] for width in WIDTHS])
        found = [self.near(*start) for start in starts]
        whole = _valleys([[self.missed(1.0, lag) for lag in LAGS]])
        found += [self.near(*start, free=False) for start in whole]
        return sorted({(round(p.width, 2), round(p.lag, 2), p.free): p for p in found}.values(), key=self.unlike)

    def unlike(self, place: "_Place") -> float:
        """Return -2 times the logarithm of a place's likelihood, with that of its powers, and a constant."""
        apart = self.solved(place.width, place.lag)[1] / self.mean_w - 1
        unlikely = float(np.sum((apart / PRIOR) ** 2))
        count = self.rows.count
        left = max(place.missed, (RESOLUTION * self.mean_w) ** 2)
        return float(count * np.log(left) + PLAIN * np.log(count) * place.free) + unlikely

    def _downhill(self, width: float, lag: float, *, free: bool) -> Floats:
        """Return by how much lag and width should turn, were the shares linear in them, shape (2,)."""
        shares, power_w, left = self.solved(width, lag)
        columns = np.hstack([_turns(self.rows, power_w, width, lag, free=free), shares])
        weighted = columns * self.weight[:, None]
        gram = weighted.T @ columns
        found = np.linalg.solve(gram + WEAK * np.diag(np.diag(gram) + 1e-9), weighted.T @ left)
        return np.array([found[0], found[1] if free else 0.0])


class _Place(NamedTuple):
    """A width and lag that fit better than those around them."""

    missed: float
    """Mean square that is left (W^2)."""
    width: float
    lag: float
    free: bool
    """Whether the width was searched for."""


MOST_STEPS: Final = 12
SAME: Final = 1.1
"""By how much errors may grow by other places that are not in doubt."""
LEAST_WIDTH: Final = 0.02


def _valleys(missed: Sequence[Sequence[tuple[float, float, float]]]) -> list[tuple[float, float]]:
    """Return width and lag of the deepest places that no neighbour on a grid is deeper than."""
    depth = np.pad([[each[0] for each in line] for line in missed], 1, constant_values=np.inf)
    around = np.lib.stride_tricks.sliding_window_view(depth, (3, 3)).min(axis=(2, 3))
    low = np.argwhere(depth[1:-1, 1:-1] <= around).tolist()
    return [found[1:] for found in sorted(missed[i][j] for i, j in low)[:VALLEYS]]


def _powers(gram: Floats, told: Floats, prior: float, mean_w: float) -> Floats:
    """Return the powers (W), none negative, that fit best; what is not told is drawn to the mean by the prior."""
    gram, told = gram + prior * np.eye(len(gram)), told + prior * mean_w
    kept = np.ones(len(gram), dtype=bool)
    while True:
        power_w = np.zeros(len(gram))
        power_w[kept] = np.linalg.solve(gram[np.ix_(kept, kept)], told[kept])
        if (power_w >= 0).all():
            return power_w
        kept &= power_w > 0


def _fit(rows: _Rows, before: PhaseFit | None, older: PhaseFit | None) -> PhaseFit:
    fitting = _Fitting(rows)
    known = before if older is not None and rows.count < FEW else None  # it says what is seen better than these rows
    if known is not None:
        places = [_Place(*fitting.missed(known.width, known.lag), known.width != 1.0)]
    else:
        sure = before is not None and before.sure and before.rows >= SURE
        places = fitting.places([(before.width, before.lag)] if before is not None and sure else None)
    left = np.abs(fitting.solved(*places[0][1:3])[2])
    usual_w = OUTLIER * (1.4826 * float(np.median(left)) + 1e-9)
    fitting = _Fitting(rows, fitting.weight * np.minimum(1.0, usual_w / np.maximum(left, 1e-12)))
    if known is None:
        places = sorted((fitting.near(*place[1:3], free=place.free) for place in places), key=fitting.unlike)
    _, width, lag, free = places[0]
    shares, power_w, left = fitting.solved(width, lag)
    turns = _turns(rows, power_w, width, lag, free=free)
    information = _information(shares, turns, left, fitting.weight, fitting.mean_w)
    count, prior = float(rows.count), 1 / (PRIOR * fitting.mean_w) ** 2
    unlike = np.array([fitting.unlike(place) for place in places])
    likely = np.exp((unlike[0] - unlike) / 2) * (unlike < unlike[0] + DOUBT)
    each_w = np.array([fitting.solved(*place[1:3])[1] for place in places])
    power_w = likely @ each_w / likely.sum()
    doubt = likely @ (each_w - power_w) ** 2 / likely.sum()
    grown = np.sqrt(1 + doubt / np.diag(np.linalg.inv(information + prior * np.eye(len(power_w)))))
    information /= np.outer(grown, grown)
    scores = information @ power_w
    if older is not None and not _contradicts(information, power_w, older, prior):
        labels = len(older.scores)
        information[:labels, :labels] += FADES * older.information
        scores[:labels] += FADES * older.scores
        count += FADES * older.rows
    alike = float(left[1:] @ left[:-1] / max(float(left @ left), 1e-12))
    kept = 1.0 if width >= 1 else width + (1 - width) * min(max(alike, 0.0), 1.0)
    return PhaseFit(
        power_w=_powers(information, scores, prior, fitting.mean_w),
        error_w=np.sqrt(np.diag(np.linalg.inv(information + prior * np.eye(len(scores))))),
        mean_w=fitting.mean_w,
        width=width,
        lag=lag,
        rows=round(count),
        sure=bool((grown < SAME).all()) if known is None else known.sure,
        kept=kept,
        information=information,
        scores=scores,
    )


def _turns(rows: _Rows, power_w: Floats, width: float, lag: float, *, free: bool) -> Floats:
    """Return how the rows move with the lag, and with the width where it is free, per tick, shape (n, 1 or 2)."""
    turns = []
    for by in ((0.0, 0.01), (0.01, 0.0))[: 1 + free]:
        more, less = (rows.shares(width + sign * by[0], lag + sign * by[1]) for sign in (1, -1))
        turns.append((more - less) @ power_w / (2 * max(by)))
    return np.stack(turns, axis=1)


def _information(shares: Floats, turns: Floats, left: Floats, weight: Floats, mean_w: float) -> Floats:
    """Return what rows say of the powers (1/W^2), where width and lag turn with them, and errors hang together."""
    variance = max(float(np.average(left * left, weights=weight)), (RESOLUTION * mean_w) ** 2)
    count, columns = shares.shape[1], np.hstack([shares, turns])
    weighted = columns * weight[:, None]
    gram = weighted.T @ columns
    # A power is known to its own size before anything is read: what the rows do not tell stays at that.
    inverse = np.linalg.inv(gram + np.eye(len(gram)) * variance / mean_w**2)
    scores = weighted * left[:, None]
    meat = scores.T @ scores
    for k in range(1, HAC_LAGS + 1):
        beside = scores[k:].T @ scores[:-k]
        meat += (1 - k / (HAC_LAGS + 1)) * (beside + beside.T)
    grown = np.sqrt(np.maximum(np.diag(inverse @ meat @ inverse) / np.diag(variance * inverse), 1.0))[:count]
    across = gram[:count, count:]
    alone = gram[:count, :count] - across @ np.linalg.pinv(gram[count:, count:]) @ across.T
    found: Floats = alone / variance / np.outer(grown, grown)
    return found


def _contradicts(information: Floats, power_w: Floats, older: PhaseFit, prior: float) -> bool:
    """Return whether new ticks say other powers than the older ones: another load."""
    known = len(older.scores)
    weak = prior * np.eye(known)
    apart_w = power_w[:known] - older.power_w
    spread = np.linalg.inv(information[:known, :known] + weak) + np.linalg.inv(older.information + weak)
    return bool(apart_w @ np.linalg.solve(spread, apart_w) > known + CHANGED * np.sqrt(2 * known))
