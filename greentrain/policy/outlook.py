"""What a policy may know when it decides, for n jobs side by side. A training process is n = 1."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outlook:
    """The state of n jobs at the start of an epoch, and what is known of their grids.

    Intensities are NaN where nobody knows them, never 0.
    """

    epoch_s: float
    """Time until the next decision (s); the last epoch of a job may be shorter."""
    step_s: float
    """Spacing of the columns of ``past_g_per_kwh`` and ``forecast_g_per_kwh`` (s)."""
    t_unix_s: Array
    """(n,) grid time of the decision (s since the epoch, UTC)."""
    left_s: Array
    """(n,) time to the deadline (s)."""
    total_s: Array
    """(n,) from start to deadline (s)."""
    tokens_left: Array
    """(n,)"""
    tokens: Array
    """(n,) of the whole job."""
    current: NDArray[np.int64]
    """(n,) row of the menu in use until now."""
    held_s: Array
    """(n,) since the width last changed (s)."""
    past_g_per_kwh: Array
    """(n, p) the last p steps, oldest first, the running one not among them."""
    forecast_g_per_kwh: Array
    """(n, h) column 0 is the running step, as far as it is known; columns past the deadline mean nothing."""
    price_per_h: Array | None = None
    """(n, h) price of one rank and hour, for policies that pay."""
    utilisation: Array | None = None
    """(n,) share of the devices that is busy, in 0..1."""
    job: NDArray[np.int64] | None = None
    """(n,) which jobs these are, where some of a batch are over, for policies that remember; None: 0 to n - 1."""

    @property
    def jobs(self) -> NDArray[np.int64]:
        """(n,) which jobs these are."""
        return np.arange(len(self.left_s)) if self.job is None else self.job

    @property
    def now_g_per_kwh(self) -> Array:
        """(n,) intensity of the running step."""
        return self.forecast_g_per_kwh[:, 0]

    def epoch_g_per_kwh(self) -> Array:
        """Return (n,): mean intensity of the coming epoch, as forecast; that of the running step if it is no longer."""
        steps = min(math.ceil(self.epoch_s / self.step_s - 1e-9), self.forecast_g_per_kwh.shape[1])
        if steps <= 1:
            return self.now_g_per_kwh
        length_s = np.clip(self.left_s, self.step_s, self.epoch_s)
        weights = np.clip(length_s[:, None] - np.arange(steps) * self.step_s, 0.0, self.step_s)
        ahead = np.where(weights > 0, self.forecast_g_per_kwh[:, :steps], 0.0)
        mean: Array = (ahead * weights).sum(axis=1) / length_s
        return mean

    def after(self, jobs: NDArray[np.int64], tokens_per_s: Array) -> "Outlook":
        """Return the outlook of some jobs at the end of the coming epoch, if what is forecast comes true.

        Args:
            jobs: (k,) which.
            tokens_per_s: (n,) speeds of all jobs in it.
        """
        epoch_s = np.clip(self.left_s[jobs], 0.0, self.epoch_s)
        each = max(1, round(self.step_s / self.epoch_s))
        past = max(1, round(self.epoch_s * each / self.step_s))
        ahead = np.repeat(self.forecast_g_per_kwh[jobs], each, axis=1)
        chosen = {
            name: value[jobs]
            for name in ("total_s", "tokens", "current", "past_g_per_kwh", "price_per_h", "utilisation")
            if (value := getattr(self, name)) is not None
        }
        return replace(
            self,
            **chosen,
            step_s=self.step_s / each,
            t_unix_s=self.t_unix_s[jobs] + epoch_s,
            left_s=self.left_s[jobs] - epoch_s,
            tokens_left=self.tokens_left[jobs] - tokens_per_s[jobs] * epoch_s,
            held_s=self.held_s[jobs] + epoch_s,
            forecast_g_per_kwh=ahead[:, past:] if ahead.shape[1] > past else ahead[:, -1:],
            job=self.jobs[jobs],
        )

    def weights_s(self) -> Array:
        """Return (n, h): how much of each forecast column lies before the deadline (s)."""
        edges = np.arange(self.forecast_g_per_kwh.shape[1]) * self.step_s
        return np.clip(self.left_s[:, None] - edges, 0.0, self.step_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """What a policy wants for n jobs."""

    rows: NDArray[np.int64]
    """(n,) rows of the menu."""
    reasons: Sequence[str]
    """Templates of this policy's reasons; ``{now:.0f}`` and the like are filled in where somebody reads them."""
    reason: NDArray[np.int64]
    """(n,) which reason."""
    price: Array | None = None
    """(n,) g per token, where the policy has such a price."""
    figures: Mapping[str, Array] = field(default_factory=dict)
    """(n,) each: figures of this policy that its reasons name, beside those of the decision kernel."""


@runtime_checkable
class SchedulePolicy(Protocol):
    """Chooses rows of a menu from an outlook. Pure: the same outlook gives the same choice, and no clock is read.

    Two more attributes are used where a policy has them: ``past_s`` and ``ahead_s`` say how far back and ahead it looks
    (s), so that nobody gathers more for it. Without them it gets all there is.
    """

    name: str

    def choose(self, seen: Outlook) -> Choice:
        """Return the rows for the coming epoch. Policies that draw take the random numbers from their own seed."""
