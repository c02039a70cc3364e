"""From the grid and the job's progress to a decision: the decision kernel, run by rank 0 of a training.

The plan thinks in the grid's time. Where a recorded grid is replayed faster, a job of three minutes is one of a day
there: its speed and its power are divided by the factor, so that joules a token stay what was measured.

What is known of the grid at one moment (:class:`GridOutlook`): three weeks behind, and the time to the deadline ahead.
A PUE that does not change scales all hours alike, so plans leave it out. One that is recorded for all of a job's time
(a facility with free cooling at night, a replayed day) does not: then an hour's intensity is multiplied by its PUE.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.forecast import ProfileForecast
from greentrain.carbon.price import KWH_PER_MWH
from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig, PolicyConfig
from greentrain.ledger.pue import Facility
from greentrain.policy.action_table import Action
from greentrain.policy.cluster.planner import solve_alone
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array, Outlook, SchedulePolicy
from greentrain.policy.waterfill import filled
from greentrain.types import G_PER_KG, S_PER_HOUR, CarbonPoint, CarbonSignal, Gear, PriceSignal, PueSource

PAST_H: Final = 21 * 24
"""Hours of history that forecasts use: more than three weeks adds nothing (docs/scheduling-benchmarks.md)."""


class Overhead:
    """The PUE of a job's hours, as its facility has recorded them.

    Args:
        facility: Facility in the grid's own time.
        start_s: Start of the job (s since the epoch, UTC).
        deadline_s: Deadline of the job (s since the epoch, UTC).
    """

    def __init__(self, facility: Facility, start_s: float, deadline_s: float) -> None:
        self._facility = facility
        self._deadline_s = deadline_s
        self._usual = facility.pue(start_s, deadline_s).value

    @classmethod
    def of(cls, facility: Facility, start_s: float, deadline_s: float) -> "Overhead | None":
        """Return the overhead; None where no record covers the whole job: then each hour counts alike."""
        return cls(facility, start_s, deadline_s) if facility.covers(start_s, deadline_s) else None

    def means(self, edges_s: NDArray[np.floating[Any]]) -> Array:
        """Return the PUE between each two edges; the mean of the job's time where nothing is recorded.

        Args:
            edges_s: (k + 1,) s since the epoch, UTC. Of an interval across the deadline the part before it counts.
        """
        values = []
        for a, b in pairwise(edges_s.tolist()):
            point = self._facility.pue(a, min(b, self._deadline_s) if a < self._deadline_s else b)
            values.append(point.value if point.source is PueSource.TRACE else self._usual)
        return np.array(values, dtype=np.float64)


class CostAim:
    """What a plan minimises in the place of grams: money, grams counting by their price; in currency/MWh.

    Args:
        config: The checked configuration; ``policy.objective`` counts cost.
        price: Price of electricity in the grid's own time.
    """

    def __init__(self, config: GreenConfig, price: PriceSignal) -> None:
        assert config.price is not None
        carbon, self.of_price = config.policy.weights
        self.of_g = carbon * (config.price.carbon_per_t or 0.0) / G_PER_KG
        """Money a MWh for each g/kWh."""
        self.unit = f"{config.price.currency}/MWh"
        self._price = price
        self._forecast = ProfileForecast(self)

    @classmethod
    def of(cls, config: GreenConfig, price: PriceSignal | None) -> "CostAim | None":
        """Return the aim of a configuration; None where its plans minimise grams."""
        return cls(config, price) if price is not None and config.policy.weights[1] else None

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        """Return the price of an interval where plans look for an intensity (currency/MWh)."""
        found = self._price.mean(t0_unix_s, t1_unix_s)
        value = None if found.per_kwh is None else found.per_kwh * KWH_PER_MWH
        return CarbonPoint(
            t0_unix_s=t0_unix_s, t1_unix_s=t1_unix_s, g_per_kwh=value, zone=found.currency, source=found.source
        )

    def describe(self) -> Mapping[str, str]:
        """Return what it is, as signals do."""
        return {"signal": "cost"}

    def forecast(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        """Return the prices that are known ahead, by the hour."""
        hours = np.arange(t0_unix_s, t1_unix_s, S_PER_HOUR).tolist()
        return [self.mean(t_s, t_s + S_PER_HOUR) for t_s in hours]

    def weigh(self, g_per_kwh: Array, price: Array) -> Array:
        """Return the weighted sum, in currency/MWh; what counts nothing need not be known."""
        return self.of_price * price + (self.of_g * g_per_kwh if self.of_g else 0.0)

    def ahead(self, grid_s: float, edges_s: Array, hours: int) -> tuple[Array, Array]:
        """Return the prices of the past hours and of those ahead, forecast where nobody knows (currency/MWh).

        Args:
            grid_s: The moment (s since the epoch, UTC).
            edges_s: Edges of the past hours.
            hours: Number of hours ahead.
        """
        past = means(self, edges_s)
        return past, self._forecast.ahead(grid_s, hours, past)


class GridOutlook:
    """Asks a signal, in the grid's time, and forecasts what it does not say.

    Args:
        signal: The signal.
        overhead: Multiplies every intensity; None: nothing does.
        aim: Counts money in the place of grams, in what :meth:`at` returns; None: nothing does.
    """

    step_s: Final = S_PER_HOUR
    """Spacing of past and forecast (s)."""

    def __init__(self, signal: CarbonSignal, overhead: Overhead | None = None, aim: CostAim | None = None) -> None:
        self._signal = signal
        self._overhead, self._aim = overhead, aim
        self._forecast = ProfileForecast(signal)
        self.now_g_per_kwh: float | None = None
        """Intensity of the running hour, as of the last look ahead; None where nobody knows."""
        self.unit = GRAMS if aim is None else aim.unit
        """Unit of what :meth:`at` returns."""

    def at(self, grid_s: float, ahead_s: float) -> tuple[Array, Array]:
        """Return the past hours, oldest first, and the hours ahead, the running one first (g/kWh; NaN: unknown).

        Args:
            grid_s: The moment (s since the epoch, UTC).
            ahead_s: Length of the look ahead (s).
        """
        edges_s = self._past_edges_s(grid_s)
        hours, past = math.ceil(ahead_s / self.step_s), means(self._signal, edges_s)
        ahead = self._forecast.ahead(grid_s, hours, past)
        self.now_g_per_kwh = float(ahead[0]) if hours and np.isfinite(ahead[0]) else None
        if self._aim is not None:
            prices = self._aim.ahead(grid_s, edges_s, hours)
            past, ahead = self._aim.weigh(past, prices[0]), self._aim.weigh(ahead, prices[1])
        if self._overhead is None:
            return past, ahead
        ahead_edges_s = grid_s + np.arange(hours + 1) * self.step_s
        return past * self._overhead.means(edges_s), ahead * self._overhead.means(ahead_edges_s)

    def past(self, grid_s: float) -> Array:
        """Return the three weeks before a moment, hour by hour, oldest first (g/kWh; NaN: unknown)."""
        return self.means(self._past_edges_s(grid_s))

    @property
    def with_pue(self) -> bool:
        """True if intensities are multiplied by the PUE of their hour."""
        return self._overhead is not None

    @property
    def basis(self) -> str:
        """What the last look ahead rests on, for people; empty before."""
        return self._forecast.basis

    @property
    def own_h(self) -> int:
        """Hours of the last look ahead, the running one among them, that the signal said itself."""
        return self._forecast.own_h

    def means(self, edges_s: NDArray[np.floating[Any]]) -> Array:
        """Return the intensity between each two edges, as :func:`means` does."""
        values = means(self._signal, edges_s)
        return values if self._overhead is None else values * self._overhead.means(edges_s)

    def _past_edges_s(self, grid_s: float) -> Array:
        return np.asarray(grid_s - np.arange(PAST_H, -1, -1) * self.step_s, dtype=np.float64)


def means(signal: CarbonSignal, edges_s: NDArray[np.floating[Any]]) -> Array:
    """Return the mean intensity between each two edges (g/kWh); NaN where the signal does not know it.

    Args:
        signal: Carbon signal of one zone.
        edges_s: (k + 1,) s since the epoch, UTC.
    """
    values = [signal.mean(a, b).g_per_kwh for a, b in pairwise(edges_s.tolist())]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


GRAMS: Final = "g/kWh"
RECALIBRATE: Final = 0.02
"""A job that is faster or slower than its table by less keeps its plan: hours of one gear differ as much."""
MOST_EPOCHS: Final = 500
"""Later decisions that are looked at to find the end of a pause: a 14-day job by the hour has 336."""
MEMORY: Final = 0.7
"""Weight of earlier epochs in the observed speed, an epoch."""


class GridForecast(Protocol):
    """What is known of the grid, in its own time; see greentrain.control.plan.planner."""

    @property
    def step_s(self) -> float:
        """Spacing of past and forecast (s)."""

    @property
    def unit(self) -> str:
        """Unit of what :meth:`at` returns."""

    @property
    def now_g_per_kwh(self) -> float | None:
        """Intensity of the running hour, as of the last look ahead; None where nobody knows."""

    def at(self, grid_s: float, ahead_s: float) -> tuple[Array, Array]:
        """Return the past and what lies ahead (g/kWh, or what the plan counts in its place)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMessage:
    """What rank 0 tells all ranks."""

    row: int
    """Row of the menu."""
    action: Action | None
    """None: off."""
    done: bool
    """True when all tokens of the plan are trained: there is nothing left to decide."""
    reason: str
    grid_s: float
    """Grid time of the decision (s since the epoch, UTC)."""
    next_s: float
    """Grid time of the next one."""
    g_per_kwh: float | None
    """Intensity at that time; None where nobody knows."""
    shielded: bool = False
    """True where the deadline overruled the policy."""
    resume_s: float | None = None
    """Where it is off: grid time at which it would train again, if the forecast came true; None: nobody knows."""
    resume_ranks: int | None = None
    """Ranks that it would use then; None: as many as before."""
    away: bool = False
    """Whether the processes end for this pause, and somebody starts them again."""

    def to_dict(self) -> dict[str, Any]:
        """Return the message in plain JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PlanMessage":
        """Return what :meth:`to_dict` wrote."""
        action = data["action"]
        if action is not None:
            action = Action(**{**action, "gear": Gear(action["gear"])})
        return cls(**{**data, "action": action})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """What has to be done by when."""

    tokens: float
    start_s: float
    """Grid time of the start (s since the epoch, UTC)."""
    deadline_s: float
    """Grid time of the deadline."""


class Planner:
    """Decides for one training job.

    Args:
        config: Section ``policy``.
        job: Tokens and deadline.
        time: The grid's time.
        grid: Past and forecast intensity of the grid.
        menu: Menu of the choices of the job, in real time.
        make: Returns the policy for a menu.
        pausable: Whether off may be chosen.
        ranks: Number of ranks of this process's job now, where the menu has several widths.
    """

    def __init__(
        self,
        config: PolicyConfig,
        *,
        job: PlannedJob,
        time: GridTime,
        grid: GridForecast,
        menu: Menu,
        make: Callable[[Menu], SchedulePolicy],
        pausable: bool,
        ranks: int | None = None,
    ) -> None:
        self.job = job
        self.time = time
        self.menu = replace(menu, tokens_per_s=menu.tokens_per_s / time.speed, power_w=menu.power_w / time.speed)
        """The choices in the grid's time."""
        self.pausable = pausable
        """Whether off may be chosen."""
        self._config, self._grid, self._make = config, grid, make
        self._row = self._usual(ranks)
        self._width_s = max(job.start_s, time.grid_s)  # of a job that was restarted: another width, as far as is known
        self._scale = 1.0
        self._observed = self._expected = 0.0
        self._kernel = self._kernel_at(1.0)

    @property
    def row(self) -> int:
        """Row in use."""
        return self._row

    def stayed(self, action: Action) -> None:
        """Note that another action than the one decided on is in use: its launcher could not bring the width about."""
        found = self.menu.find(lambda other: other == action)
        if found is not None:
            self._row = found

    def _usual(self, ranks: int | None) -> int:
        """Return the row of the usual training at a width."""
        same = [i for i, action in enumerate(self.menu.actions) if action is not None and action.ranks in (None, ranks)]
        return (
            self.menu.static
            if self.menu.static in same or not same
            else max(same, key=lambda i: float(self.menu.tokens_per_s[i]))
        )

    @property
    def scale(self) -> float:
        """By how much the job was faster than its table (1: as fast)."""
        return self._scale

    def observe(self, tokens: float, real_s: float) -> None:
        """Take in what an epoch has brought.

        Args:
            tokens: Tokens that all ranks have trained.
            real_s: Time that this took, without pauses (s).
        """
        expected = float(self.menu.tokens_per_s[self._row]) * self.time.speed * real_s
        if expected <= 0:
            return
        self._observed = MEMORY * self._observed + tokens
        self._expected = MEMORY * self._expected + expected
        scale = min(10.0, max(0.1, self._observed / self._expected))
        if abs(scale / self._scale - 1) > RECALIBRATE:
            self._scale = scale
            self._kernel = self._kernel_at(scale)

    def decide(
        self, unix_s: float, tokens_done: float, *, vetoed: Collection[Gear] = (), awake: bool = False
    ) -> PlanMessage:
        """Return what is done until the next decision.

        Args:
            unix_s: Time (s since the epoch, UTC).
            tokens_done: Tokens that all ranks have trained until now.
            vetoed: Gears that must not be used now.
            awake: Somebody has ended a pause by hand: off is no choice until the next decision.
        """
        now_s = self.time.at(unix_s)
        left_s = self.job.deadline_s - now_s
        seen = self._outlook(now_s, left_s, max(0.0, self.job.tokens - tokens_done))
        barred = np.array([action is not None and action.gear in vetoed for action in self.menu.actions])
        barred[OFF] = awake or not self.pausable
        decided = self._kernel.decide(seen, barred)
        row = int(decided.rows[0])
        if (row == OFF) != (self._row == OFF):
            self._width_s = now_s
        done = bool(seen.tokens_left[0] <= 0)
        reason = "woken by hand" if awake else self._kernel.explain(seen, decided)
        unit = self._grid.unit
        if unit != GRAMS:  # what stands for a gram is a thousandth of the currency
            reason = reason.replace(GRAMS, unit).replace(" g per million", f" m{unit.partition('/')[0]} per million")
        self._row = row
        now_g = float(seen.now_g_per_kwh[0]) if unit == GRAMS else self._grid.now_g_per_kwh
        ahead = self._next_on(seen, barred) if row == OFF and not done else None
        return PlanMessage(
            row=row,
            action=self.menu.actions[row],
            done=done,
            reason=reason,
            grid_s=now_s,
            next_s=now_s + self._epoch_s(left_s),
            g_per_kwh=now_g if now_g is not None and math.isfinite(now_g) else None,
            shielded=bool(decided.shielded[0]),
            resume_s=None if ahead is None else ahead[0],
            resume_ranks=None if ahead is None else ahead[1],
        )

    def next_on(self, unix_s: float, tokens_done: float) -> float | None:
        """Return when the plan would train next, if the forecast came true.

        Args:
            unix_s: Time (s since the epoch, UTC).
            tokens_done: Tokens that all ranks have trained until now.

        Returns:
            ``unix_s`` where it would train now, else the time of a later decision (s since the epoch, UTC); None where
            there is none before the deadline.
        """
        now_s = self.time.at(unix_s)
        left_s = self.job.deadline_s - now_s
        seen = self._outlook(now_s, left_s, max(0.0, self.job.tokens - tokens_done))
        barred = np.zeros(len(self.menu), bool)
        if int(self._kernel_at(self._scale).decide(seen, barred).rows[0]) != OFF or left_s <= 1.0:
            return unix_s
        found = self._next_on(seen, barred)
        return None if found is None else self.time.real(found[0])

    def certificate(self, unix_s: float, tokens_done: float) -> Callable[[], dict[str, Any] | None]:
        """Return what makes the best plan against what is forecast now, with its bound, as ``plan.json`` has it.

        Args:
            unix_s: Time (s since the epoch, UTC).
            tokens_done: Tokens that all ranks have trained until now.
        """
        now_s = self.time.at(unix_s)
        left = max(0.0, self.job.tokens - tokens_done)
        seen = self._outlook(now_s, self.job.deadline_s - now_s, left)
        menu = replace(self.menu, tokens_per_s=self.menu.tokens_per_s * self._scale)

        def made() -> dict[str, Any] | None:
            weights_s = seen.weights_s()
            used = weights_s[0] > 0
            if not used.any() or np.isnan(seen.forecast_g_per_kwh[0][used]).all():
                return None
            edges_s = now_s + np.concatenate([[0.0], np.cumsum(weights_s[0][used])])
            g_per_kwh = filled(seen.forecast_g_per_kwh, weights_s)[0][used]
            plan = solve_alone(g_per_kwh, edges_s, left, menu, pausable=self.pausable)
            return None if plan is None else plan.to_dict()

        return made

    def _next_on(self, seen: Outlook, barred: NDArray[np.bool_]) -> tuple[float, int | None] | None:
        """Return grid time and ranks of the first later decision that is not off; the job waits until there.

        The decisions of all later epochs are taken side by side, each from what is forecast now.
        """
        now_s, left_s = float(seen.t_unix_s[0]), float(seen.left_s[0])
        epoch_s = max(seen.epoch_s, left_s / MOST_EPOCHS)
        later_s: Array = np.arange(1, int(left_s / epoch_s) + 1, dtype=np.float64) * epoch_s
        later_s = later_s[later_s < left_s]
        if not len(later_s):
            return None
        n = len(later_s)
        whole = np.concatenate([seen.past_g_per_kwh, seen.forecast_g_per_kwh], axis=1)[0]
        columns, p = np.arange(len(whole)), seen.past_g_per_kwh.shape[1]
        shift = later_s[:, None] / seen.step_s
        # Past the last column the last one holds: what is forecast ends at the deadline.
        moved = np.interp(columns[None, :] + shift, columns, whole)
        then = replace(
            seen,
            t_unix_s=now_s + later_s,
            left_s=left_s - later_s,
            total_s=np.repeat(seen.total_s, n),
            tokens_left=np.repeat(seen.tokens_left, n),
            tokens=np.repeat(seen.tokens, n),
            current=np.full(n, OFF),
            held_s=seen.held_s + later_s,
            past_g_per_kwh=moved[:, :p],
            forecast_g_per_kwh=moved[:, p:],
            job=np.zeros(n, np.int64),
        )
        rows = self._kernel_at(self._scale).decide(then, barred).rows
        on = np.flatnonzero(rows != OFF)
        if not len(on):
            return None
        first = int(on[0])
        action = self.menu.actions[int(rows[first])]
        return now_s + float(later_s[first]), None if action is None else action.ranks

    def _epoch_s(self, left_s: float) -> float:
        """Return the time to the next decision: as configured, but not past the deadline."""
        return min(self._config.decide_s, left_s) if left_s > 1.0 else self._config.decide_s

    def _outlook(self, now_s: float, left_s: float, tokens_left: float) -> Outlook:
        past, ahead = self._grid.at(now_s, max(left_s, S_PER_HOUR))
        return Outlook(
            epoch_s=self._epoch_s(left_s),
            step_s=self._grid.step_s,
            t_unix_s=np.array([now_s]),
            left_s=np.array([left_s]),
            total_s=np.array([self.job.deadline_s - self.job.start_s]),
            tokens_left=np.array([tokens_left]),
            tokens=np.array([self.job.tokens]),
            current=np.array([self._row]),
            held_s=np.array([now_s - self._width_s]),
            past_g_per_kwh=past[None, :],
            forecast_g_per_kwh=ahead[None, :],
        )

    def _kernel_at(self, scale: float) -> DecisionKernel:
        menu = replace(self.menu, tokens_per_s=self.menu.tokens_per_s * scale)
        return DecisionKernel(
            self._make(menu),
            menu,
            switch_s=self._config.switch_s,
            shift_s=self._config.shift_s,
            dwell_s=self._config.dwell_s,
            margin_s=self._config.margin_s,
        )


def plan_document(
    planner: Planner,
    *,
    policy: str,
    grid: GridOutlook,
    past: Sequence[float | None],
    tokens: float,
) -> dict[str, Any]:
    """Return the plan in plain JSON types.

    Args:
        planner: Planner that decides.
        policy: Name of the policy in the configuration.
        grid: Past and forecast intensity of the grid.
        past: Intensities before the job (g/kWh), by the hour.
        tokens: Tokens that all ranks have trained.
    """
    menu = planner.menu
    hours = math.ceil((planner.job.deadline_s - planner.job.start_s) / S_PER_HOUR)
    edges_s = np.minimum(planner.job.start_s + np.arange(hours + 1) * S_PER_HOUR, planner.job.deadline_s)
    return {
        "policy": policy,
        **asdict(planner.job),
        "grid": asdict(planner.time),
        "pausable": planner.pausable,
        "held": bool(menu.power_w[OFF] > 0),
        "provenance": menu.provenance,
        "rows": [
            {"name": name, "tokens_per_s": float(speed), "power_w": float(power), "width": int(width)}
            for name, speed, power, width in zip(menu.names(), menu.tokens_per_s, menu.power_w, menu.width, strict=True)
        ],
        "static": menu.static,
        "tokens_done": tokens,
        "forecast": grid.basis,
        "with_pue": grid.with_pue,
        **({} if grid.unit == GRAMS else {"objective": grid.unit}),
        "speed_of_table": planner.scale,
        "hourly_g_per_kwh": or_none(grid.means(edges_s)),
        "past_hourly_g_per_kwh": past,
    }


def or_none(values: Array) -> list[float | None]:
    """Return numbers as JSON has them: None for what nobody knows."""
    return [None if math.isnan(value) else value for value in values.tolist()]
