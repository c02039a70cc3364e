"""Many jobs side by side on one recorded grid, each decided by the same kernel as in training."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import TraceError
from greentrain.policy.decision_kernel import Decided, DecisionKernel
from greentrain.policy.menu import OFF
from greentrain.policy.outlook import Array, Outlook
from greentrain.simulator.grid_trace import GridTrace, Sight
from greentrain.simulator.jobs import Jobs
from greentrain.types import J_PER_KWH, S_PER_HOUR, iso

DONE: Final = 1e-9
"""Share of a job's tokens that is rounding: what is left then counts as done."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """What every job did, epoch by epoch: n jobs, k epochs. After a job's end its columns are off and 0."""

    epoch_s: float
    rows: NDArray[np.int64]
    """(n, k) of the menu."""
    g_per_kwh: Array
    """(n, k) mean over the epoch."""
    tokens: Array
    """(n, k) done in the epoch."""
    grams: Array
    """(n, k) emitted in the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Track:
    """What became of n jobs."""

    tokens_left: Array
    """(n,) at the deadline; 0 where the job was done."""
    grams: Array
    """(n,) of IT power, held and idle ranks included."""
    joules: Array
    """(n,)"""
    end_s: Array
    """(n,) when the job was done, after its start (s); the deadline where it was not."""
    switches: NDArray[np.int64]
    """(n,) changes of width, pauses among them."""
    shielded: NDArray[np.int64]
    """(n,) epochs in which the deadline overruled the policy."""
    decisions: int
    """Of all jobs together."""
    history: History | None

    @property
    def missed(self) -> NDArray[np.bool_]:
        """(n,) which jobs were not done by their deadline."""
        return self.tokens_left > 0


class World:
    """A grid that policies see through a sight.

    Args:
        trace: The truth.
        sight: Sight through which policies see the trace.
        epoch_s: Time between two decisions (s).
    """

    def __init__(self, trace: GridTrace, sight: Sight, epoch_s: float = S_PER_HOUR) -> None:
        self.trace, self._sight, self._epoch_s = trace, sight, epoch_s

    def run(self, kernel: DecisionKernel, jobs: Jobs, *, history: bool = False) -> Track:
        """Run jobs from their start to their deadline, or until they are done.

        A job starts in the row of the usual training, so that its first epoch costs no change of width.

        Args:
            kernel: Policy, menu and rules.
            jobs: Jobs to run; they lie within the trace.
            history: Whether to keep every epoch.

        Raises:
            TraceError: A job is not within the trace.
        """
        course = self.begin(kernel, jobs, history=history)
        while not course.over:
            course.step()
        return course.track()

    def begin(self, kernel: DecisionKernel, jobs: Jobs, *, history: bool = False) -> "JobsUnderway":
        """Return jobs at their start, to be run epoch by epoch; arguments and errors are those of :meth:`run`."""
        self._check(jobs)
        return JobsUnderway(self.trace, self._sight, self._epoch_s, kernel, jobs, history)

    def _check(self, jobs: Jobs) -> None:
        late = jobs.start_unix_s + jobs.deadline_s > self.trace.end_unix_s + 1.0
        early = jobs.start_unix_s < self.trace.start_unix_s - 1.0
        if late.any() or early.any():
            i = int(np.argmax(late | early))
            raise TraceError(
                f"job {i} runs from {iso(jobs.start_unix_s[i])} for {jobs.deadline_s[i] / S_PER_HOUR:.1f} h, but trace"
                f" {self.trace.name!r} covers {iso(self.trace.start_unix_s)} to {iso(self.trace.end_unix_s)}: take a"
                " longer trace, another start or a shorter policy.deadline_h"
            )


class JobsUnderway:
    """Jobs on their way. ``over`` once none is left to decide for.

    Args:
        trace: The truth.
        sight: Sight through which policies see the trace.
        epoch_s: Time between two decisions (s).
        kernel: Policy, menu and rules.
        jobs: Jobs that lie within the trace.
        history: Whether to keep every epoch.
    """

    def __init__(
        self, trace: GridTrace, sight: Sight, epoch_s: float, kernel: DecisionKernel, jobs: Jobs, history: bool
    ) -> None:
        self._trace, self._sight, self._epoch_s = trace, sight, epoch_s
        self._kernel, self._jobs = kernel, jobs
        n = len(jobs.tokens)
        epochs = math.ceil(float(jobs.deadline_s.max()) / epoch_s - 1e-9)
        self.epoch = 0
        """How many are over."""
        self.tokens_left = jobs.tokens.astype(np.float64)
        """(n,)"""
        self.current = np.full(n, kernel.menu.static)
        """(n,) row in use until now."""
        self.grams = np.zeros(n)
        """(n,) emitted until now."""
        self._held_s = np.full(n, math.inf)
        self._joules, self._end_s = np.zeros(n), np.zeros(n)
        self._switches, self._shielded = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._decisions = 0
        self._history: History | None = None
        if history:
            self._history = History(
                epoch_s=epoch_s,
                rows=np.full((n, epochs), OFF),
                g_per_kwh=np.full((n, epochs), np.nan),
                tokens=np.zeros((n, epochs)),
                grams=np.zeros((n, epochs)),
            )

    @property
    def over(self) -> bool:
        """Whether all jobs are done or at their deadline."""
        return not self._live().any()

    def look(self) -> Outlook:
        """Return what the policy sees of the jobs that are not over."""
        policy, step_s, jobs = self._kernel.policy, self._sight.step_s, self._jobs
        live, at_s = np.flatnonzero(self._live()), self.epoch * self._epoch_s
        t_unix_s, left_s = jobs.start_unix_s[live] + at_s, jobs.deadline_s[live] - at_s
        ahead_s = min(float(getattr(policy, "ahead_s", math.inf)), float(left_s.max()))
        ahead_h = min(max(1, math.ceil(ahead_s / step_s - 1e-9)), self._sight.horizon_h)
        past_h = int(min(float(getattr(policy, "past_s", math.inf)) / step_s, self._sight.past_h))
        return Outlook(
            epoch_s=self._epoch_s,
            step_s=step_s,
            t_unix_s=t_unix_s,
            left_s=left_s,
            total_s=jobs.deadline_s[live],
            tokens_left=self.tokens_left[live],
            tokens=jobs.tokens[live],
            current=self.current[live],
            held_s=self._held_s[live],
            past_g_per_kwh=self._sight.past(t_unix_s, past_h) if past_h else np.zeros((len(live), 0)),
            forecast_g_per_kwh=self._sight.ahead(t_unix_s, ahead_h),
            job=live,
        )

    def step(self, seen: Outlook | None = None) -> Decided:
        """Decide, and let the jobs that are not over do that for one epoch.

        Args:
            seen: Outlook that :meth:`look` has just returned; None: look now.
        """
        seen = self.look() if seen is None else seen
        decided = self._kernel.decide(seen)
        self._advance(seen, decided)
        self.epoch += 1
        return decided

    def track(self) -> Track:
        """Return what has become of the jobs."""
        return Track(
            tokens_left=self.tokens_left,
            grams=self.grams,
            joules=self._joules,
            end_s=self._end_s,
            switches=self._switches,
            shielded=self._shielded,
            decisions=self._decisions,
            history=self._history,
        )

    def _live(self) -> NDArray[np.bool_]:
        live: NDArray[np.bool_] = (self.tokens_left > 0) & (self._jobs.deadline_s > self.epoch * self._epoch_s)
        return live

    def _advance(self, seen: Outlook, decided: Decided) -> None:
        assert seen.job is not None
        menu, rows, left, live = self._kernel.menu, decided.rows, seen.tokens_left, seen.job
        speed, power_w = menu.tokens_per_s[rows], menu.power_w[rows]
        epoch_s = np.minimum(seen.left_s, self._epoch_s)
        pending_s = self._kernel.reach.pending_s(rows, seen.current, seen.held_s)
        could = speed * np.maximum(epoch_s - pending_s, 0.0)
        done = could >= left - DONE * seen.tokens
        with np.errstate(divide="ignore", invalid="ignore"):
            used_s = np.where(done, np.minimum(pending_s + left / speed, epoch_s), epoch_s)
        start_g = self._trace.integral(seen.t_unix_s)
        grams = power_w * (self._trace.integral(seen.t_unix_s + used_s) - start_g) / J_PER_KWH
        moved = menu.width[rows] != menu.width[seen.current]
        self.grams[live] += grams
        self._joules[live] += power_w * used_s
        self.tokens_left[live] = np.where(done, 0.0, left - could)
        self._end_s[live] += used_s
        self._held_s[live] = np.where(moved, 0.0, seen.held_s) + epoch_s
        self.current[live] = rows
        self._switches[live] += moved
        self._shielded[live] += decided.shielded
        self._decisions += len(live)
        if self._history is not None:
            self._history.rows[live, self.epoch] = rows
            mean = (self._trace.integral(seen.t_unix_s + epoch_s) - start_g) / epoch_s
            self._history.g_per_kwh[live, self.epoch] = mean
            self._history.tokens[live, self.epoch] = np.where(done, left, could)
            self._history.grams[live, self.epoch] = grams
