"""Draws from a Gibbs distribution, the same for the same seed, job and time: a policy that draws stays a function."""

import math

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.outlook import Array


def draw(energy: Array, seed: int, jobs: NDArray[np.int64], t_unix_s: Array) -> NDArray[np.int64]:
    """Return (n,): one column of each job, drawn with probability in proportion to exp(-energy).

    Args:
        energy: (n, v) cost / temperature.
        seed: Of the draws, 0 or above.
        jobs: (n,) which jobs these are.
        t_unix_s: (n,) time of the decision (s since the epoch, UTC).
    """
    below = np.cumsum(np.exp(energy.min(axis=1, keepdims=True) - energy), axis=1)
    keys = zip(jobs.tolist(), t_unix_s.tolist(), strict=True)
    drawn = np.array([np.random.default_rng((seed, job, max(0, math.floor(t_s)))).random() for job, t_s in keys])
    columns: NDArray[np.int64] = np.count_nonzero(below <= drawn[:, None] * below[:, -1:], axis=1)
    columns = np.minimum(columns, energy.shape[1] - 1)
    return columns
