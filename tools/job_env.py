"""The decision kernel on recorded grids as a gymnasium environment, for policies that learn.

An episode is one job on one grid. Its shield, its changes of width and its books are those of ``simulate``, because a
step is an epoch of the same ``World``: the agent only stands where a policy stands.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.forecast import profile_forecast
from greentrain.errors import ConfigError
from greentrain.policy.chain import TRAILING_H, trailing_mean
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array, Choice, Outlook
from greentrain.simulator.grid_trace import Forecaster, GridTrace, Sight
from greentrain.simulator.jobs import HISTORY_H, Jobs
from greentrain.simulator.world import JobsUnderway, World
from greentrain.types import J_PER_KWH, S_PER_HOUR
from greentrain.utils.imports import try_import
from tools.trailing_dual import TrailingDual

with try_import("rl") as _imports:
    import gymnasium
    from gymnasium import spaces
_imports.check()

AHEAD_H: Final = 24
"""Hours of forecast in an observation."""
_LIMIT: Final = 5.0
"""Observations are clipped to -LIMIT..LIMIT."""

Observed = NDArray[np.float32]


class CarbonTrainEnv(gymnasium.Env[Observed, np.int64]):
    """One job with a deadline on a recorded grid.

    Action: which of ``rows`` to take for the coming epoch.

    Observation, of length 6 + 24: share of the time left; pace needed / fastest pace; intensity / its mean of the last
    14 days - 1; width / largest width; sine and cosine of the hour (UTC); forecast of the next 24 hours / mean - 1.

    Reward: what the tokens of the epoch are worth less what was emitted, in epochs of the usual training at the mean
    before the start. A token is worth its price in the best plan of a job of this pace in the 14 days before the start:
    an hour is then worth training in if it is about as clean as those which that plan took. Over an episode the sum is
    a constant less the job's grams, as long as all tokens are done; those that are left at the deadline are charged
    ``late`` times what the usual training emits for them.

    An episode ends when all tokens are done, or at the deadline. ``info`` holds ``grams`` and ``tokens`` until now,
    ``missed`` (at the end), ``row`` and ``shielded`` (of the last epoch), ``trace`` and ``start``.

    Args:
        traces: Grids; each episode draws one.
        menu: Menu of what a job can do.
        deadline_h: Time from start to deadline (h).
        slack: Deadline / time of the usual training; a pair is drawn from for each episode.
        rows: Rows of the menu that are actions; None: its hull.
        switch_s: Time in which a change of width trains nothing, at full power (s).
        epoch_s: Time between two decisions (s).
        forecaster: Forecaster of the coming hours; None: perfect foresight.
        history_h: Hours of a trace before its first start.
        shield: Whether the deadline outranks the agent.
        late: Charge on tokens that are left at the deadline.

    Raises:
        ConfigError: A figure is out of its range, or a trace is too short for one job.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - the type that gymnasium declares

    def __init__(
        self,
        traces: Sequence[GridTrace],
        menu: Menu,
        *,
        deadline_h: float = TRAILING_H,
        slack: float | tuple[float, float] = 1.5,
        rows: Sequence[int] | None = None,
        switch_s: float = 0.0,
        epoch_s: float = S_PER_HOUR,
        forecaster: Forecaster | None = profile_forecast,
        history_h: float = HISTORY_H,
        shield: bool = True,
        late: float = 1.0,
    ) -> None:
        self._slack = (slack, slack) if isinstance(slack, (int, float)) else slack
        self._rows = menu.hull if rows is None else np.array(rows, np.int64)
        _check(traces, menu, deadline_h, self._slack, self._rows, history_h)
        self._menu, self._deadline_h, self._late, self._history_h = menu, deadline_h, late, history_h
        self._agent = _Agent(menu)
        self._kernel = DecisionKernel(self._agent, menu, switch_s=switch_s, shield=shield, hysteresis=0.0)
        self._worlds = [World(trace, Sight(trace, forecaster, horizon_h=AHEAD_H + 1), epoch_s) for trace in traces]
        static = menu.static
        self._static_w = float(menu.power_w[static])
        self._static_tokens_per_s = float(menu.tokens_per_s[static])
        self._epoch_s = epoch_s
        self.action_space = spaces.Discrete(len(self._rows))
        self.observation_space = spaces.Box(-_LIMIT, _LIMIT, (6 + AHEAD_H,), np.float32)
        self._course: JobsUnderway | None = None
        self._seen: Outlook | None = None
        self._over = False
        self._where: dict[str, Any] = {}
        self._worth_g = self._usual_g = math.nan
        """Of a token."""

    @property
    def seen(self) -> Outlook:
        """What a policy would see now; at the end of an episode, what it saw last."""
        assert self._seen is not None, "reset() comes first"
        return self._seen

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Start a job.

        Args:
            seed: Seed of the draws from now on.
            options: ``start`` (hours after the start of the trace), ``trace`` (number of the trace) and ``slack`` in
                place of what would be drawn.

        Raises:
            TraceError: The job would not be within its trace.
        """
        super().reset(seed=seed)
        given = options or {}
        number = int(given.get("trace", self.np_random.integers(len(self._worlds))))
        world = self._worlds[number]
        trace_h = (world.trace.end_unix_s - world.trace.start_unix_s) / S_PER_HOUR
        last_h = int(trace_h - self._deadline_h - 1e-9)
        start_h = float(given.get("start", self.np_random.integers(int(self._history_h), last_h + 1)))
        slack = float(given.get("slack", self.np_random.uniform(*self._slack)))
        deadline_s = self._deadline_h * S_PER_HOUR
        jobs = Jobs.alike(
            np.array([world.trace.start_unix_s + start_h * S_PER_HOUR]),
            tokens=self._static_tokens_per_s * deadline_s / slack,
            deadline_s=deadline_s,
        )
        self._course = world.begin(self._kernel, jobs)
        self._over = False
        self._where = {"trace": world.trace.name, "start": start_h, "slack": slack}
        self._seen = self._kernel.observe(self._course.look())
        self._usual_g = float(_mean(self._seen)[0]) * self._static_w / self._static_tokens_per_s / J_PER_KWH
        worth_g = float(TrailingDual(self._menu).at_pace(self._seen, jobs.tokens / deadline_s)[0])
        self._worth_g = worth_g if math.isfinite(worth_g) else self._usual_g
        return self._observe(), {**self._where, "grams": 0.0, "tokens": 0.0, "missed": False}

    def step(self, action: np.int64) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Take a row for one epoch, or what the shield makes of it."""
        course, seen = self._course, self.seen
        if course is None or self._over:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        self._agent.row = int(self._rows[int(action)])
        left, grams = float(course.tokens_left[0]), float(course.grams[0])
        decided = course.step(seen)
        tokens_left, emitted = float(course.tokens_left[0]), float(course.grams[0]) - grams
        over = self._over = course.over
        missed = over and tokens_left > 0
        gained_g = (left - tokens_left) * self._worth_g - emitted
        if missed:
            gained_g -= self._late * tokens_left * self._usual_g
        if not over:
            self._seen = self._kernel.observe(course.look())
        info = {
            **self._where,
            "grams": float(course.grams[0]),
            "tokens": float(seen.tokens[0]) - tokens_left,
            "missed": missed,
            "row": int(decided.rows[0]),
            "shielded": bool(decided.shielded[0]),
        }
        an_epoch_g = self._usual_g * self._static_tokens_per_s * self._epoch_s
        return self._observe(), gained_g / an_epoch_g, over, False, info

    def _observe(self) -> Observed:
        seen = self.seen
        mean = _mean(seen)
        hour = seen.t_unix_s[0] / S_PER_HOUR % 24 * 2 * np.pi / 24
        last = seen.forecast_g_per_kwh.shape[1] - 1
        ahead = seen.forecast_g_per_kwh[0, np.minimum(np.arange(1, AHEAD_H + 1), last)]
        values = np.concatenate(
            [
                seen.left_s / seen.total_s,
                seen.tokens_left / np.maximum(seen.left_s, 1e-9) / self._menu.tokens_per_s[self._menu.fastest],
                seen.now_g_per_kwh / mean - 1.0,
                self._menu.width[seen.current] / self._menu.width.max(),
                [np.sin(hour), np.cos(hour)],
                ahead / mean - 1.0,
            ]
        )
        clipped: Observed = np.clip(values, -_LIMIT, _LIMIT).astype(np.float32)
        return clipped


class _Agent:
    """Wants what the agent of the environment has chosen."""

    name = "agent"
    past_s = TRAILING_H * S_PER_HOUR
    ahead_s = (AHEAD_H + 1) * S_PER_HOUR

    def __init__(self, menu: Menu) -> None:
        self.row = menu.static

    def choose(self, seen: Outlook) -> Choice:
        n = len(seen.left_s)
        return Choice(rows=np.full(n, self.row), reasons=("the agent's choice",), reason=np.zeros(n, np.int64))


def _mean(seen: Outlook) -> Array:
    return np.maximum(trailing_mean(seen.past_g_per_kwh, seen.now_g_per_kwh, seen.step_s), 1e-9)


def _check(
    traces: Sequence[GridTrace],
    menu: Menu,
    deadline_h: float,
    slack: tuple[float, float],
    rows: NDArray[np.int64],
    history_h: float,
) -> None:
    if not traces:
        raise ConfigError("an environment needs at least one trace")
    if not (deadline_h > 0 and history_h >= 0):
        raise ConfigError(
            f"deadline_h is {deadline_h:g} and history_h {history_h:g}; they must be above 0 and not below"
        )
    fastest = float(menu.tokens_per_s[menu.fastest] / menu.tokens_per_s[menu.static])
    if not 1.0 / fastest <= slack[0] <= slack[1]:
        raise ConfigError(
            f"slack is {slack[0]:g} to {slack[1]:g}; it must grow, from {1.0 / fastest:.3g} on: the fastest row is"
            f" {fastest:.3g} times as fast as the usual training"
        )
    if not len(rows) or rows.min() < 0 or rows.max() >= len(menu):
        raise ConfigError(f"rows are {rows.tolist()}; the menu has the rows 0 to {len(menu) - 1}, and one is needed")
    for trace in traces:
        length_h = (trace.end_unix_s - trace.start_unix_s) / S_PER_HOUR
        if length_h < history_h + deadline_h:
            raise ConfigError(
                f"trace {trace.name!r} covers {length_h:g} h, less than history_h {history_h:g} + deadline_h"
                f" {deadline_h:g}: take a longer trace, or a shorter history or deadline"
            )
