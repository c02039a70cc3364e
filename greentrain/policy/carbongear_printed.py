"""CarbonGearRL's Algorithm 1 as it is printed. Kept for the record: it does not work, and this is what shows it.

Each epoch it draws an action from exp(-Q(x, s) / T), pays its carbon, and moves Q(x, s) towards that plus the least Q
of the next state (line 5 prints a hard minimum, though draws are soft); beside it a price rises with what is left to do
(line 7, in tokens). Without the deadline's shield it does 62 % of the tokens of a job without slack. Why:

1. The target of line 5 holds the carbon and not the price: Q learns that to be off costs nothing, and no price can tell
   it otherwise. Eq. 13 has the price, but adds ``price x tokens``, so tokens are penalised (``eq13=True``).
2. The price rises with B - b, which is above 0 until the last epoch: it can only climb, and counted in tokens one step
   takes it to its limit. The sign that RobustDual (Algorithm 2, ``robust=True``) averages is 1 to the end, so there is
   nothing to damp.
3. The state (intensity, tokens done) knows neither the time left nor the hour: two jobs with as much done, and an hour
   or ten days left, must do opposite things, and this policy cannot.
4. A temperature of 1 has no unit: with costs around 1 an epoch the draw is next to uniform over the table, with costs
   in grams it is greedy from the first epoch on. Here costs are around 1.
5. One pass of 4,032 epochs over 49 actions teaches a table of thousands of cells next to nothing, and what it would
   teach is not needed: what an action costs is known, and at a given price the best one is a matter of the hour.

What the text leaves open, and is ours: costs are relative to the fastest row at mean intensity; the state has ten bins
a coordinate; the warm-up lasts 100 epochs; the price's step is Q's over sqrt(k), as it has to be smaller in the limit.

``greentrain.policy.carbongear`` keeps soft values, Gibbs policy and two time scales, and mends these.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.carbongear import draw
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array, Choice, Outlook

CAUTION: Final = (
    "policy.name is 'carbongear-printed', the published algorithm, kept for the record: its dual and its target cannot"
    " steer a job to its deadline, so only the shield keeps it, at about the emissions of a job at full speed. Use"
    " 'carbongear' or 'mpc' for training"
)
"""What to tell who chooses it for a real run."""
TEMPERATURE: Final = 1.0
"""tau_ent of Algorithm 1."""
MOST: Final = 1e3
"""lambda_max of Algorithm 1."""
MEMORY: Final = 0.99
"""rho of RobustDual's average (Algorithm 2)."""
RATE: Final = 1e-2
"""Largest step of Q (the text: alpha at most 1e-2), after the warm-up; then it falls with 1 / sqrt(k)."""
WARM_UP: Final = 100
"""Epochs in which the step of Q grows to RATE. The text has a warm-up; its length is ours."""
DISCOUNT: Final = 0.99
BINS: Final = 10
"""Of relative intensity and of tokens done."""


class CarbonGearPrinted:
    """Learns while it runs, as printed; it remembers every job from its start on.

    Args:
        menu: Menu of the choices of a job. All rows are actions, as in the text, whether they can be best or not.
        seed: Seed of the draws.
        eq13: Learn the cost of Eq. 13, carbon *plus* price x tokens, in place of line 5's carbon alone.
        robust: Move the price by Algorithm 2, RobustDual, in place of line 7.
    """

    past_s = 14 * 24 * 3600.0
    ahead_s = 0.0

    def __init__(self, menu: Menu, *, seed: int = 0, eq13: bool = False, robust: bool = False) -> None:
        self.name = "carbongear-printed"
        self._power = menu.power_w / menu.power_w.max()
        self._speed = menu.tokens_per_s / menu.tokens_per_s.max()
        self._seed, self._eq13, self._robust = seed, eq13, robust
        self._q = np.zeros((0, BINS * BINS, len(menu)))
        self._state = np.zeros(0, np.int64)
        self._relative = self._price = self._sign = self._epochs = np.zeros(0)

    def choose(self, seen: Outlook) -> Choice:
        """Learn from the epoch that is over, and draw the row of the next one."""
        jobs = seen.jobs
        self._remember(int(jobs.max()) + 1, jobs[seen.left_s >= seen.total_s - 1e-6])
        now = seen.now_g_per_kwh
        relative = now / np.maximum(np.concatenate([seen.past_g_per_kwh, now[:, None]], axis=1).mean(axis=1), 1e-9)
        done = 1.0 - seen.tokens_left / seen.tokens
        state = _bin(relative / 2) * BINS + _bin(done)
        self._learn(jobs, state, seen)
        self._state[jobs], self._relative[jobs] = state, relative
        return Choice(
            rows=draw(self._q[jobs, state] / TEMPERATURE, self._seed, jobs, seen.t_unix_s),
            reasons=_REASONS,
            reason=np.zeros(len(jobs), np.int64),
            figures={"done": done, "dual": self._price[jobs]},
        )

    def _learn(self, jobs: NDArray[np.int64], state: NDArray[np.int64], seen: Outlook) -> None:
        """Lines 5 to 7 for the jobs of which an epoch is over: Q of what they did, then the price."""
        over = np.flatnonzero(self._state[jobs] >= 0)
        job, row = jobs[over], seen.current[over]
        cost = self._relative[job] * self._power[row]
        if self._eq13:
            cost = cost + self._price[job] * self._speed[row]
        self._epochs[job] += 1
        k = self._epochs[job]
        rate = RATE * np.minimum(k / WARM_UP, np.sqrt(WARM_UP / k))
        before = self._state[job]
        target = cost + DISCOUNT * self._q[job, state[over]].min(axis=1)
        self._q[job, before, row] += rate * (target - self._q[job, before, row])
        left = seen.tokens_left[over]
        self._sign[job] = MEMORY * self._sign[job] + (1 - MEMORY) * np.sign(left)
        moved = rate / np.sqrt(k) * left * (self._sign[job] if self._robust else 1.0)
        self._price[job] = np.clip(self._price[job] + moved, 0.0, MOST)

    def _remember(self, n: int, fresh: NDArray[np.int64]) -> None:
        """Make room for n jobs, and forget what was known of those that start."""
        more = max(0, n - len(self._state))
        self._q = np.concatenate([self._q, np.zeros((more, *self._q.shape[1:]))])
        self._state = np.concatenate([self._state, np.full(more, -1)])
        self._relative, self._price, self._sign, self._epochs = (
            np.concatenate([kept, np.zeros(more)]) for kept in (self._relative, self._price, self._sign, self._epochs)
        )
        self._q[fresh], self._state[fresh] = 0.0, -1
        self._price[fresh] = self._sign[fresh] = self._epochs[fresh] = 0.0


def _bin(share: Array) -> NDArray[np.int64]:
    """Return which of the BINS each share in 0..1 is in."""
    return np.clip(share * BINS, 0, BINS - 1).astype(np.int64)


_REASONS = ("drawn by Algorithm 1 as printed, at {now:.0f} g/kWh and {done:.1%} of the tokens: {row}",)
