"""Many jobs side by side on one recorded grid, each decided by the same kernel as in training."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import TraceError
from greentrain.policy.loop import Decided, DecisionKernel
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array, Outlook
from greentrain.simulator.grid_trace import GridTrace, Sight
from greentrain.simulator.jobs import Jobs, iso
from greentrain.units import J_PER_KWH, S_PER_HOUR

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
        sight: What is seen of it.
        epoch_s: Time between two decisions (s).
    """

    def __init__(self, trace: GridTrace, sight: Sight, epoch_s: float = S_PER_HOUR) -> None:
        self.trace, self._sight, self._epoch_s = trace, sight, epoch_s

    def run(self, kernel: DecisionKernel, jobs: Jobs, *, history: bool = False) -> Track:
        """Run jobs from their start to their deadline, or until they are done.

        A job starts in the row of the usual training, so that its first epoch costs no change of width.

        Args:
            kernel: Policy, menu and rules.
            jobs: What has to be done.
            history: Whether to keep every epoch.

        Raises:
            TraceError: A job is not within the trace.
        """
        self._check(jobs)
        state = _State(jobs, kernel.menu, math.ceil(float(jobs.deadline_s.max()) / self._epoch_s - 1e-9), history)
        for k in range(state.epochs):
            at_s = k * self._epoch_s
            live = np.flatnonzero((state.tokens_left > 0) & (jobs.deadline_s > at_s))
            if not len(live):
                break
            seen = self._outlook(kernel, jobs, state, live, at_s)
            decided = kernel.decide(seen)
            self._advance(kernel, jobs, state, live, k, seen, decided)
        return state.track(self._epoch_s)

    def _outlook(
        self, kernel: DecisionKernel, jobs: Jobs, state: "_State", live: NDArray[np.int64], at_s: float
    ) -> Outlook:
        policy, step_s = kernel.policy, self._sight.step_s
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
            tokens_left=state.tokens_left[live],
            tokens=jobs.tokens[live],
            current=state.current[live],
            held_s=state.held_s[live],
            past_g_per_kwh=self._sight.past(t_unix_s, past_h) if past_h else np.zeros((len(live), 0)),
            forecast_g_per_kwh=self._sight.ahead(t_unix_s, ahead_h),
            job=live,
        )

    def _advance(
        self,
        kernel: DecisionKernel,
        jobs: Jobs,
        state: "_State",
        live: NDArray[np.int64],
        k: int,
        seen: Outlook,
        decided: Decided,
    ) -> None:
        """Let the jobs do for one epoch what was decided."""
        menu, rows, left = kernel.menu, decided.rows, seen.tokens_left
        speed, power_w = menu.tokens_per_s[rows], menu.power_w[rows]
        epoch_s = np.minimum(seen.left_s, self._epoch_s)
        pending_s = kernel.reach.pending_s(rows, seen.current, seen.held_s)
        could = speed * np.maximum(epoch_s - pending_s, 0.0)
        done = could >= left - DONE * seen.tokens
        with np.errstate(divide="ignore", invalid="ignore"):
            used_s = np.where(done, np.minimum(pending_s + left / speed, epoch_s), epoch_s)
        start_g = self.trace.integral(seen.t_unix_s)
        grams = power_w * (self.trace.integral(seen.t_unix_s + used_s) - start_g) / J_PER_KWH
        moved = menu.width[rows] != menu.width[seen.current]
        state.grams[live] += grams
        state.joules[live] += power_w * used_s
        state.tokens_left[live] = np.where(done, 0.0, left - could)
        state.end_s[live] += used_s
        state.held_s[live] = np.where(moved, 0.0, seen.held_s) + epoch_s
        state.current[live] = rows
        state.switches[live] += moved
        state.shielded[live] += decided.shielded
        state.decisions += len(live)
        if state.history is not None:
            state.history.rows[live, k] = rows
            state.history.g_per_kwh[live, k] = (self.trace.integral(seen.t_unix_s + epoch_s) - start_g) / epoch_s
            state.history.tokens[live, k] = np.where(done, left, could)
            state.history.grams[live, k] = grams

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


class _State:
    """Of n jobs, changed in place."""

    def __init__(self, jobs: Jobs, menu: Menu, epochs: int, history: bool) -> None:
        n = len(jobs.tokens)
        self.epochs = epochs
        self.tokens_left = jobs.tokens.astype(np.float64)
        self.current = np.full(n, menu.static)
        self.held_s = np.full(n, math.inf)
        self.grams, self.joules, self.end_s = np.zeros(n), np.zeros(n), np.zeros(n)
        self.switches, self.shielded = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.decisions = 0
        self.history: History | None = None
        if history:
            self.history = History(
                epoch_s=0.0,
                rows=np.full((n, epochs), OFF),
                g_per_kwh=np.full((n, epochs), np.nan),
                tokens=np.zeros((n, epochs)),
                grams=np.zeros((n, epochs)),
            )

    def track(self, epoch_s: float) -> Track:
        kept = self.history
        return Track(
            tokens_left=self.tokens_left,
            grams=self.grams,
            joules=self.joules,
            end_s=self.end_s,
            switches=self.switches,
            shielded=self.shielded,
            decisions=self.decisions,
            history=None if kept is None else replace(kept, epoch_s=epoch_s),
        )
