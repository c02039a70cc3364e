"""What a shifted reward does to a group's advantages, as GRPO uses them.

An advantage is a reward less the mean of its group, over the group's standard deviation (Shao et al., DeepSeekMath,
arXiv:2402.03300, 4.1.2). Its sign says whether an answer is made likelier or less likely.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.quality.pairs import Floats, scored


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
