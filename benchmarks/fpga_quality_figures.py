"""Further figures of what another precision does: to orders, scores, advantages and log-probabilities.

Draws: pairs that share an item are not independent, so items are drawn again, not pairs: with replacement, and a pair
counts as often as both its items were drawn together. All candidates see the same draws, so their ratios can be judged
too.

Advantages are those of GRPO: a reward less the mean of its group, over the group's standard deviation (Shao et al.,
DeepSeekMath, arXiv:2402.03300, 4.1.2). Its sign says whether an answer is made likelier or less likely.

Log-probabilities: tokens are drawn from the policy q; p is the reference. With r = p / q of a token, three estimators
of KL(q || p) are in use (J. Schulman, "Approximating KL Divergence", joschu.net/blog/kl-approx.html, 2020)::

    k1 = -log r                unbiased, of high variance, often negative
    k2 = (log r)^2 / 2         biased, of low variance
    k3 = (r - 1) - log r       unbiased, of low variance, never negative

"Unbiased" speaks of the value and of tokens drawn from q itself. GRPO puts k3 into the loss. An offloaded reference
replaces p by p', and the penalty changes by what :func:`penalty_bias` measures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.quality.flips import Floats, Pairs, scored


def accuracy(scores: npt.ArrayLike, pairs: Pairs) -> float:
    """Return how often the better item scores higher, 0 to 1; a tie counts 1/2.

    Args:
        scores: [items].
        pairs: People's preferences.

    Raises:
        ValueError: A score is not finite, or there are no pairs.
    """
    values = scored(scores, "scores")
    pairs.check(len(values))
    return float((np.sign(values[pairs.better] - values[pairs.worse]) / 2 + 0.5).mean())


def kendall_tau(reference: npt.ArrayLike, candidate: npt.ArrayLike) -> float:
    """Return Kendall's tau-b, which allows for ties: 1 for the same order, -1 for the reverse.

    Args:
        reference: Scores [items].
        candidate: Scores of the same items [items].

    Returns:
        NaN where one of them scores everything the same.

    Raises:
        ValueError: Scores are not finite or not of the same items.

    Source: M. G. Kendall, "The treatment of ties in ranking problems", Biometrika 33 (1945) 239-251.
    """
    first = scored(reference, "reference")
    second = scored(candidate, "candidate", len(first))
    agreement, ordered_a, ordered_b = 0.0, 0, 0
    for i in range(len(first) - 1):  # by row: all pairs at once would need items^2 numbers
        a, b = np.sign(first[i + 1 :] - first[i]), np.sign(second[i + 1 :] - second[i])
        agreement += float(a @ b)
        ordered_a += int(np.count_nonzero(a))
        ordered_b += int(np.count_nonzero(b))
    if not ordered_a or not ordered_b:
        return float("nan")
    return agreement / float(np.sqrt(ordered_a)) / float(np.sqrt(ordered_b))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where a figure lies with a probability, by percentiles of the draws."""

    low: float
    high: float


def resampled(counts: npt.ArrayLike, pairs: Pairs, items: int, *, draws: int = 500, seed: int = 0) -> Floats:
    """Return the flip rates of other draws of the items.

    Args:
        counts: Weight of each pair, by candidate [candidates, pairs], from ``quality.flips.flips``; NaN: not counted.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Absolute differences between two scores of each item."""

    mean: float
    p99: float
    most: float
    unit: float
    """What they are divided by: the standard deviation of the reference's scores."""


def shift(reference: npt.ArrayLike, candidate: npt.ArrayLike) -> Shift:
    """Return the shift of scores in standard deviations of the reference.

    Args:
        reference: Scores [items].
        candidate: Scores of the same items in another precision [items].

    Raises:
        ValueError: Scores are not finite, not of the same items, or the reference scores everything the same.
    """
    first = scored(reference, "reference")
    second = scored(candidate, "candidate", len(first))
    unit = float(first.std()) if len(first) else 0.0
    if not unit > 0:
        raise ValueError(f"the reference scores {len(first)} items the same: there is no spread to compare shifts with")
    moved = np.abs(second - first) / unit
    return Shift(mean=float(moved.mean()), p99=float(np.quantile(moved, 0.99)), most=float(moved.max()), unit=unit)


def company_shift(score: Callable[[Sequence[int]], npt.ArrayLike], items: int, sizes: Sequence[int]) -> float:
    """Return by how much a score depends on which items it is computed with: the largest difference from alone.

    Each item is scored alone, and then in batches of every size.

    Args:
        score: Takes indices of items, returns their scores, computed as one batch.
        items: Number of items.
        sizes: Sizes of the batches, as (7, 32).

    Returns:
        In units of the score; 0.0 only if every score is the same bit for bit.

    Raises:
        ValueError: A score is not finite, or a size is below 1.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sizes are {list(sizes)}: give at least one, each at least 1")
    alone = np.concatenate([scored(score([i]), "alone", 1) for i in range(items)])
    largest = 0.0
    for size in sizes:
        together = _in_batches(score, items, size)
        largest = max(largest, float(np.abs(together - alone).max()))
    return largest


def _in_batches(score: Callable[[Sequence[int]], npt.ArrayLike], items: int, size: int) -> Floats:
    batches = [range(start, min(start + size, items)) for start in range(0, items, size)]
    return np.concatenate([scored(score(list(batch)), "batch", len(batch)) for batch in batches])


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageShift:
    """What another precision does to advantages."""

    sign_flips: float
    """Share of answers whose advantage changes its sign, 0 to 1; becoming 0 counts 1/2. NaN where none has a sign."""
    mean: float
    """Mean absolute change of the advantage; advantages have standard deviation 1 in each group."""
    best_changed: float
    """Share of groups whose best answer is another one."""


def advantages(rewards: npt.ArrayLike) -> Floats:
    """Return the advantages of groups: 0 throughout a group whose rewards are all the same.

    Args:
        rewards: Rewards [groups, size].

    Raises:
        ValueError: Not two-dimensional.
    """
    array = np.asarray(rewards, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"rewards have shape {list(array.shape)}; [groups, size] is expected")
    centred = array - array.mean(axis=1, keepdims=True)
    same = np.ptp(array, axis=1, keepdims=True) == 0
    spread = np.where(same, 1.0, array.std(axis=1, keepdims=True))
    return np.where(same, 0.0, centred / np.where(spread > 0, spread, 1.0))


def advantage_shift(reference: npt.ArrayLike, candidate: npt.ArrayLike, groups: npt.ArrayLike) -> AdvantageShift:
    """Compare the advantages that two precisions give.

    Args:
        reference: Scores [items].
        candidate: Scores of the same items in another precision [items].
        groups: Items of each group [groups, size].

    Raises:
        ValueError: Scores are not finite or not of the same items, or groups are no [groups, size] of items.
    """
    first = scored(reference, "reference")
    second = scored(candidate, "candidate", len(first))
    members = np.asarray(groups, dtype=np.intp)
    if members.ndim != 2 or members.size == 0 or members.min() < 0 or members.max() >= len(first):
        raise ValueError(f"groups of shape {list(members.shape)} must be [groups, size] of items below {len(first)}")
    was, now = advantages(first[members]), advantages(second[members])
    signs = np.sign(was)
    counts = (np.abs(signs - np.sign(now)) / 2)[signs != 0]
    return AdvantageShift(
        sign_flips=float(counts.mean()) if counts.size else float("nan"),
        mean=float(np.abs(now - was).mean()),
        best_changed=float((was.argmax(axis=1) != now.argmax(axis=1)).mean()),
    )


def drawn(kinds: npt.ArrayLike, size: int, *, seed: int) -> npt.NDArray[np.intp]:
    """Return groups of items of one kind, drawn at random, no item twice; items that are left over are in none.

    Args:
        kinds: Kind of each item [items].
        size: Items a group.
        seed: Seed of the draw.

    Returns:
        [groups, size]
    """
    kind = np.asarray(kinds)
    draw = np.random.default_rng(seed)
    found = []
    for name in np.unique(kind):
        own = draw.permutation(np.flatnonzero(kind == name))
        found.append(own[: len(own) // size * size].reshape(-1, size))
    return np.concatenate(found) if found else np.empty((0, size), dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobShift:
    """Absolute differences of log-probabilities, by token (nats)."""

    mean: float
    p99: float
    most: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kl:
    """Estimates of KL(policy || reference), nats a token: mean over tokens that the policy drew."""

    k1: float
    k2: float
    k3: float
    k3_error: float
    """Standard error of k3's mean, tokens taken for independent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """A change of a mean (nats a token)."""

    mean: float
    error: float
    """Its standard error, from the same tokens under both, taken for independent."""


def logprob_shift(reference: npt.ArrayLike, candidate: npt.ArrayLike) -> LogprobShift:
    """Return how far log-probabilities of the same tokens lie apart.

    Args:
        reference: Log-probabilities in FP32 [tokens].
        candidate: Log-probabilities of the same tokens in another precision [tokens].

    Raises:
        ValueError: They are not finite, not of the same tokens, or none.
    """
    first, second = _tokens(reference, candidate)
    moved = np.abs(second - first)
    return LogprobShift(
        mean=float(moved.mean()), p99=float(np.quantile(moved, 0.99)), most=float(moved.max()), tokens=len(moved)
    )


def kl(policy: npt.ArrayLike, reference: npt.ArrayLike) -> Kl:
    """Estimate KL(policy || reference).

    Args:
        policy: Log-probabilities under the policy that drew the tokens [tokens].
        reference: Log-probabilities of the same tokens under the reference [tokens].

    Raises:
        ValueError: They are not finite, not of the same tokens, or none.
    """
    drew, other = _tokens(policy, reference)
    log_r = other - drew
    k3 = _k3(log_r)
    return Kl(k1=float(-log_r.mean()), k2=float((log_r**2).mean() / 2), k3=float(k3.mean()), k3_error=_error(k3))


def penalty_bias(policy: npt.ArrayLike, reference: npt.ArrayLike, candidate: npt.ArrayLike) -> Bias:
    """Return by how much the mean k3 penalty changes when a candidate answers for the reference (nats a token).

    Args:
        policy: Log-probabilities under the policy that drew the tokens [tokens].
        reference: Log-probabilities of the same tokens under the reference in FP32 [tokens].
        candidate: Log-probabilities of the same tokens under the offloaded reference [tokens].

    Raises:
        ValueError: They are not finite, not of the same tokens, or none.
    """
    drew, first = _tokens(policy, reference)
    change = _k3(_tokens(policy, candidate)[1] - drew) - _k3(first - drew)
    return Bias(mean=float(change.mean()), error=_error(change))


def _k3(log_r: Floats) -> Floats:
    found: Floats = np.expm1(log_r) - log_r
    return found


def _error(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _tokens(first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[Floats, Floats]:
    a = scored(first, "log-probabilities")
    b = scored(second, "the other log-probabilities", len(a))
    if not len(a):
        raise ValueError("there are no tokens to compare")
    return a, b
