"""A cluster that a policy runs, step by step: pools of GPUs at sites, caps, failures, and what really came of it.

Each step the policy sees the jobs that are there, the GPUs that work, the caps and a forecast, and says a row and a
pool for each job. The world gives GPUs in the policy's order while there are any; nothing else stands in its way, so
that what it draws beyond a cap is its own. Gears and caps change at no cost; a job that starts or changes its width
or pool loses ``switch_s`` of work. Between sites its checkpoint goes over a link: that takes time, emits, and costs
what the site that it leaves asks for. A policy knows what users say of their jobs, the caps that have been announced,
and no failure before it happens. A job that ends frees its GPUs at the next step.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.forecast import forecast_trust
from greentrain.errors import ConfigError, TraceError
from greentrain.policy.cluster.problem import CHECKPOINT_GB, LINK_GBIT_S, LINK_KWH_PER_GB
from greentrain.policy.menu import OFF, Menu
from greentrain.simulator.cluster.workload import Array, Ints, Workload
from greentrain.simulator.grid_trace import Forecaster, GridTrace, Sight
from greentrain.types import J_PER_KWH, S_PER_HOUR, iso
from greentrain.utils.validation import bound

Flags = NDArray[np.bool_]

DONE: Final = 1e-9
"""Share of a job's tokens that is rounding."""
PAST_H: Final = 21 * 24
"""Hours of the grid that policies see behind them."""
GROWS: Final = 1.2
"""A job that has done all that its user said and is not done is expected to be of this many times what it has done."""
PER_GPU_H: Final = 419 / (54 * 24 * 16_384)
"""Failures of a GPU by hour: 419 unexpected interruptions in 54 days of 16,384 GPUs (Llama Team, arXiv 2407.21783,
section 3.3.4, Table 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSite:
    """A grid connection."""

    grid: GridTrace
    """The truth; its name is the site's."""
    cap_w: float = math.inf
    """Facility power that jobs may draw (W)."""
    pue: float = 1.0
    price_per_kwh: float = math.nan
    """Money, of any currency; NaN: nobody says, and what is run here costs nobody knows what."""

    egress_per_gb: float = math.nan
    """Money for each GB that leaves the site; NaN: nobody says, and what is moved costs nobody knows what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPool:
    """GPUs of one device at one site."""

    name: str
    site: int
    """Index of the site."""
    gpus: int
    speed: float = 1.0
    """Tokens/s over those of the jobs' menus."""
    power: float = 1.0
    """Watts over those of the jobs' menus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Demand response: a site's cap is lowered to a share of itself for some time."""

    from_s: float
    """After the start (s)."""
    until_s: float
    cap_share: float
    """What is left of the cap, 0.7 at minus 30 %."""
    told_s: float = 0.0
    """How long before it is announced (s)."""
    site: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Jobs that break with one of their GPUs' nodes; the work since the last checkpoint is lost."""

    per_gpu_h: float = PER_GPU_H
    repair_s: float = 4 * S_PER_HOUR
    """For how long eight GPUs, or all of a smaller job, are missing: assumed."""
    checkpoint_s: float = S_PER_HOUR / 2
    """Between two checkpoints: assumed."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """Menus of all kinds of jobs, padded to the longest: k kinds, r rows."""

    menus: tuple[Menu, ...]
    speed: Array
    """(k, r) tokens/s."""
    power_w: Array
    """(k, r) W of IT."""
    gpus: Ints
    """(k, r)"""
    fastest: Ints
    """(k,)"""

    @classmethod
    def of(cls, menus: Sequence[Menu]) -> "Tables":
        """Return the tables of some menus."""
        most = max(len(menu) for menu in menus)

        def padded(name: str) -> Array:
            return np.array([np.pad(getattr(menu, name), (0, most - len(menu))) for menu in menus])

        return cls(
            menus=tuple(menus),
            speed=padded("tokens_per_s"),
            power_w=padded("power_w"),
            gpus=padded("width").astype(np.int64),
            fastest=np.array([menu.fastest for menu in menus]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """What a policy sees at the start of a step: m jobs that are there, p pools, s sites, h hours ahead."""

    t_s: float
    """After the start (s)."""
    step_s: float
    start_unix_s: float
    tables: Tables
    pools: tuple[FleetPool, ...]
    gpus: Ints
    """(p,) that work."""
    cap_w: Array
    """(s, h) facility power that jobs may draw in the coming hours, as announced; the first hour has begun."""
    pue: Array
    """(s,)"""
    g_per_kwh: Array
    """(s, h) the running value, then what is forecast."""
    trust: Array
    """(s,) by how much the grid rose and fell lately where it was forecast to by 1: 0 to 1, which is a known grid's."""
    past_g_per_kwh: Array
    """(s, 504) full hours behind, oldest first."""
    job: Ints
    """(m,) number of each job, in order of release."""
    kind: Ints
    """(m,) index of its menu."""
    user: Ints
    """(m,)"""
    home: Ints
    """(m,) pool that its user sent it to."""
    release_s: Array
    """(m,)"""
    deadline_s: Array
    """(m,)"""
    tokens_left: Array
    """(m,) by what its user says."""
    tokens: Array
    """(m,) all of them, by what its user says."""
    row: Ints
    """(m,) of its menu, until now; 0: off."""
    pool: Ints
    """(m,) where it is or was; -1: it has never run."""
    held_s: Array
    """(m,) for how long it has had this width and pool, or been off."""
    switch_s: float
    move_s: Array
    """(m,) work lost at a move between sites, beside ``switch_s``."""
    move_g: Array
    """(m,) grams of the transfer, at the mean of all sites in the next day."""

    def speed(self, rows: Ints, pools: Ints) -> Array:
        """Return the tokens/s of rows in pools, (m,) each."""
        return np.asarray(self.tables.speed[self.kind, rows] * self._factor("speed")[pools])

    def facility_w(self, rows: Ints, pools: Ints) -> Array:
        """Return the watts at the meter of the facility of rows in pools, (m,) each."""
        site = np.array([pool.site for pool in self.pools])[pools]
        return np.asarray(self.tables.power_w[self.kind, rows] * self._factor("power")[pools] * self.pue[site])

    def fits(self, rows: Ints, pools: Ints, order: Ints, *, watts: bool = True) -> Ints:
        """Return the rows, off where GPUs or watts ran out before a job's turn; those behind it that fit go on.

        Args:
            rows: (m,) wanted.
            pools: (m,) where.
            order: (m,) who comes first.
            watts: Whether the caps count.
        """
        need, need_w = self.tables.gpus[self.kind, rows], self.facility_w(rows, pools)
        site = np.array([pool.site for pool in self.pools])
        free, free_w = (
            self.gpus.astype(np.float64),
            self.cap_w[:, 0] * (1 + 1e-9) if watts else np.full(len(self.pue), np.inf),
        )
        found = rows.copy()
        for i in order[rows[order] != OFF].tolist():
            pool = pools[i]
            if need[i] <= free[pool] and need_w[i] <= free_w[site[pool]]:
                free[pool] -= need[i]
                free_w[site[pool]] -= need_w[i]
            else:
                found[i] = OFF
        return found

    def _factor(self, name: str) -> Array:
        return np.array([getattr(pool, name) for pool in self.pools])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """What a policy says of the m jobs of a view."""

    rows: Ints
    """(m,) of each job's menu; 0: off."""
    pools: Ints
    """(m,)"""
    order: Ints
    """(m,) indices of jobs; who comes first gets the GPUs."""


class FleetPolicy(Protocol):
    """One policy: a name, and what it says each step. It may keep what it likes between steps of one run."""

    name: str

    def decide(self, view: View) -> Choice:
        """Return a row and a pool for each job of a view."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetRun:
    """What became of n jobs in k steps on s sites."""

    policy: str
    work: Workload
    step_s: float
    first_s: Array
    """(n,) when a job first ran; inf: never."""
    end_s: Array
    """(n,) when it was done; inf: it was not when the simulation ended."""
    grams: Array
    """(n,) with those of transfers."""
    transfer_g: Array
    """(n,) of checkpoints between sites."""
    joules: Array
    """(n,) at the meter of the facility, which transfers are not."""
    money: Array
    """(n,) for electricity and transfers."""
    starts: Ints
    """(n,) times that it started, or changed its width or pool."""
    moves: Ints
    """(n,) between sites."""
    failures: Ints
    """(n,)"""
    facility_w: Array
    """(s, k)"""
    cap_w: Array
    """(s, k)"""
    gpus: Ints
    """(p, k) at work."""
    refused: int
    """Times that a job got no GPUs which the policy had given it."""
    slowest_s: float
    """Longest time that the policy thought about one step (s, wall clock)."""
    thought_s: float
    """All of it (s, wall clock)."""


@dataclass(kw_only=True, eq=False)
class FleetWorld:
    """A cluster and its jobs.

    Raises:
        ConfigError: A job is wider than every pool, or a figure is out of its range.
        TraceError: A grid does not cover the jobs.
    """

    sites: tuple[FleetSite, ...]
    pools: tuple[FleetPool, ...]
    work: Workload
    start_unix_s: float
    forecaster: Forecaster | None = None
    """None: policies know the grid."""
    events: Sequence[Event] = ()
    failures: Failures | None = None
    step_s: float = S_PER_HOUR
    switch_s: float = 120.0
    """Work lost at each start or change of width: assumed, to be measured (``greentrain.control.profiling``)."""
    checkpoint_gb: float = CHECKPOINT_GB
    """Of each GPU of a job at its widest."""
    link_gbit_s: float = LINK_GBIT_S
    """Between two sites, for each move."""
    link_kwh_per_gb: float = LINK_KWH_PER_GB
    tail_h: float = 48.0
    """How long after the last deadline the simulation ends."""
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        bound("step_s", self.step_s, 60.0, S_PER_HOUR)
        for key, least in (("checkpoint_gb", 0.0), ("link_gbit_s", 1e-6), ("link_kwh_per_gb", 0.0)):
            bound(key, getattr(self, key), least, 1e12)
        self.tables = Tables.of(self.work.menus)
        widest = max(pool.gpus for pool in self.pools)
        wide = np.flatnonzero(self.work.gpus > widest)
        if wide.size:
            raise ConfigError(
                f"job {wide[0]} has {self.work.gpus[wide[0]]} GPUs and the largest pool {widest}: give a larger pool,"
                " or narrower jobs"
            )
        end = self.start_unix_s + self.steps * self.step_s
        for site in self.sites:
            grid = site.grid
            if grid.start_unix_s > self.start_unix_s + 1 or grid.end_unix_s < end - 1:
                raise TraceError(
                    f"the jobs run from {iso(self.start_unix_s)} to {iso(end)}, but grid {grid.name!r} covers"
                    f" {iso(grid.start_unix_s)} to {iso(grid.end_unix_s)}: take another start or fewer days"
                )

    @property
    def steps(self) -> int:
        """Most steps of a simulation."""
        return math.ceil((float(self.work.deadline_s.max()) + self.tail_h * S_PER_HOUR) / self.step_s)

    @cached_property
    def home(self) -> Ints:
        """(n,) the pool of each job: drawn by their sizes among those that it fits."""
        sizes = np.array([pool.gpus for pool in self.pools])
        fits = sizes >= self.work.gpus[:, None]
        shares = np.cumsum(fits * sizes, axis=1) / (fits * sizes).sum(axis=1, keepdims=True)
        return np.asarray((np.random.default_rng(0).random((len(self.work), 1)) >= shares).sum(axis=1))

    @property
    def move_gb(self) -> Array:
        """(n,) that a move between sites transfers."""
        return np.asarray(self.checkpoint_gb * self.work.gpus)

    @property
    def move_s(self) -> Array:
        """(n,) that it takes, in which the job does not work."""
        return np.asarray(8 * self.move_gb / self.link_gbit_s)

    @cached_property
    def _sights(self) -> tuple[Sight, ...]:
        hours = math.ceil(self.steps * self.step_s / S_PER_HOUR) + 1
        return tuple(Sight(site.grid, self.forecaster, horizon_h=hours, past_h=PAST_H) for site in self.sites)

    def cap_w(self, t_s: Array, known_s: float = math.inf) -> Array:
        """Return (s, h) the caps at some times, as announced until a time (s after the start)."""
        found = np.repeat(np.array([[site.cap_w] for site in self.sites]), len(t_s), axis=1)
        for event in self.events:
            if event.from_s - event.told_s <= known_s:
                found[event.site, (t_s >= event.from_s) & (t_s < event.until_s)] *= event.cap_share
        return found

    def run(self, policy: FleetPolicy, progress: Callable[[int, int], None] = lambda done, of: None) -> FleetRun:
        """Run all jobs under a policy, to their ends or to the end of the simulation.

        Args:
            policy: The policy, new for each run.
            progress: Called with the number of steps done and the most there may be.
        """
        course = _Course(self, policy)
        for step in range(self.steps):
            if not course.step(step):
                break
            progress(step + 1, self.steps)
        return course.outcome()

    def ahead(self, t_s: float, hours: int) -> tuple[Array, Array]:
        """Return (s, hours) intensity and announced caps of the coming hours as seen at a time (s after the start)."""
        at = np.array([self.start_unix_s + t_s])
        seen = np.concatenate([sight.ahead(at, hours) for sight in self._sights])
        return seen, self.cap_w(np.asarray(t_s + np.arange(hours) * S_PER_HOUR), t_s)

    def past(self, t_s: float) -> Array:
        """Return (s, 504) intensity of the full hours behind a time, NaN where unknown."""
        return np.concatenate([sight.past(np.array([self.start_unix_s + t_s]), PAST_H) for sight in self._sights])

    def trust(self, t_s: float) -> Array:
        """Return (s,) how much of a forecast's swings to believe at a time: 1 where the grid is known."""
        if self.forecaster is None:
            return np.ones(len(self.sites))
        return np.array([forecast_trust(past, self.forecaster) for past in self.past(t_s)])


class _Course:
    """A simulation on its way."""

    def __init__(self, world: FleetWorld, policy: FleetPolicy) -> None:
        n, self._world, self._policy = len(world.work), world, policy
        self._left = world.work.tokens.astype(np.float64)
        self._done = np.zeros(n)
        self._row, self._pool, self._held_s = np.zeros(n, np.int64), np.full(n, -1), np.full(n, np.inf)
        self._first_s, self._end_s = np.full(n, np.inf), np.full(n, np.inf)
        self._grams, self._joules, self._money = np.zeros(n), np.zeros(n), np.zeros(n)
        self._transfer_g = np.zeros(n)
        self._starts, self._moves, self._failures = (np.zeros(n, np.int64) for _ in range(3))
        self._broken: list[tuple[float, int, int]] = []
        self._power: list[Array] = []
        self._gpus: list[Ints] = []
        self._refused, self._slowest_s, self._thought_s = 0, 0.0, 0.0
        self._rng = np.random.default_rng(world.failures.seed if world.failures else 0)
        self._site = np.array([pool.site for pool in world.pools])
        self._pue = np.array([site.pue for site in world.sites])

    def step(self, step: int) -> bool:
        """Run a step; False once no job is left."""
        world, work = self._world, self._world.work
        t_s = step * world.step_s
        live = np.flatnonzero((self._left > 0) & (work.release_s <= t_s))
        if not live.size:
            self._record(np.zeros(len(world.sites)), np.zeros(len(world.pools), np.int64))
            return bool((self._left > 0).any())
        self._broken = [one for one in self._broken if one[0] > t_s]
        view = self._look(t_s, live)
        began_s = time.perf_counter()
        choice = self._policy.decide(view)
        thought_s = time.perf_counter() - began_s
        self._thought_s += thought_s
        self._slowest_s = max(self._slowest_s, thought_s)
        rows = view.fits(choice.rows, choice.pools, choice.order, watts=False)
        self._refused += int(np.sum(rows != choice.rows))
        self._advance(view, rows, choice.pools)
        return True

    def _look(self, t_s: float, live: Ints) -> View:
        world, work = self._world, self._world.work
        left_h = (float(work.deadline_s[live].max()) - t_s) / S_PER_HOUR
        g_per_kwh, cap_w = world.ahead(t_s, max(48, math.ceil(left_h)))
        gpus = np.array([pool.gpus for pool in world.pools])
        for _, pool, missing in self._broken:
            gpus[pool] -= missing
        expected = work.expected_tokens[live]
        expected = np.where(self._done[live] >= expected, GROWS * self._done[live], expected)
        return View(
            t_s=t_s,
            step_s=world.step_s,
            start_unix_s=world.start_unix_s,
            tables=world.tables,
            pools=world.pools,
            gpus=np.maximum(gpus, 0),
            cap_w=cap_w,
            pue=self._pue,
            g_per_kwh=g_per_kwh,
            trust=world.trust(t_s),
            past_g_per_kwh=world.past(t_s),
            job=live,
            kind=work.kind[live],
            user=work.user[live],
            home=world.home[live],
            release_s=work.release_s[live],
            deadline_s=work.deadline_s[live],
            tokens_left=np.maximum(expected - self._done[live], DONE * expected),
            tokens=expected,
            row=self._row[live],
            pool=self._pool[live],
            held_s=self._held_s[live],
            switch_s=world.switch_s,
            move_s=world.move_s[live],
            move_g=world.move_gb[live] * world.link_kwh_per_gb * float(g_per_kwh[:, :24].mean()),
        )

    def _advance(self, view: View, rows: Ints, pools: Ints) -> None:
        world, live, tables, t_s, step_s = self._world, view.job, view.tables, view.t_s, view.step_s
        on, was = rows != OFF, view.row != OFF
        width, before = tables.gpus[view.kind, rows], tables.gpus[view.kind, view.row]
        started = on & (~was | (width != before) | (pools != view.pool))
        moved = started & (view.pool >= 0) & (self._site[pools] != self._site[view.pool])
        pending_s = np.where(started, world.switch_s, 0.0) + np.where(moved, view.move_s, 0.0)
        speed, power_w = view.speed(rows, pools), view.facility_w(rows, pools)
        could, left = speed * (step_s - pending_s), self._left[live]
        done = on & (could >= left - DONE * world.work.tokens[live])
        with np.errstate(divide="ignore", invalid="ignore"):
            used_s = np.where(done, np.minimum(pending_s + left / speed, step_s), np.where(on, step_s, 0.0))
        joules, start = power_w * used_s, np.full(len(live), world.start_unix_s + t_s)
        for number, site in enumerate(world.sites):
            here = on & (self._site[pools] == number)
            grams = power_w * (site.grid.integral(start + used_s) - site.grid.integral(start)) / J_PER_KWH
            self._grams[live[here]] += grams[here]
            self._money[live[here]] += joules[here] / J_PER_KWH * site.price_per_kwh
        self._joules[live] += joules
        self._transfer(view, pools, np.flatnonzero(moved))
        progress = np.where(done, left, could)  # below 0 where a start takes longer than the step
        lost = self._break(view, on & ~done, rows, pools, np.clip(progress, 0.0, speed * step_s))
        self._done[live] += np.where(lost >= 0, progress - np.maximum(lost, 0), progress)
        self._left[live] = np.where(done, 0.0, left - progress + np.maximum(lost, 0.0))
        self._end_s[live[done]] = t_s + used_s[done]
        self._first_s[live] = np.where(on, np.minimum(self._first_s[live], t_s), self._first_s[live])
        self._starts[live] += started
        self._moves[live] += moved
        changed = started | (was & ~on)
        self._held_s[live] = np.where(changed, 0.0, view.held_s) + step_s
        self._row[live] = np.where(lost >= 0, OFF, rows)
        self._pool[live] = np.where(on, pools, view.pool)
        watts = np.asarray(np.bincount(self._site[pools], power_w * on, len(world.sites)), dtype=np.float64)
        self._record(watts, np.bincount(pools, width * on, len(world.pools)).astype(np.int64))

    def _transfer(self, view: View, pools: Ints, moved: Ints) -> None:
        """Book the transfers of some jobs: half of the energy at either end."""
        world, jobs, ends = self._world, view.job[moved], np.stack([self._site[view.pool], self._site[pools]])[:, moved]
        span_s = view.start_unix_s + view.t_s + np.array([0.0, view.step_s])
        g_per_kwh = np.array([float(np.diff(site.grid.integral(span_s))[0]) / view.step_s for site in world.sites])
        grams = world.move_gb[jobs] * world.link_kwh_per_gb * g_per_kwh[ends].mean(axis=0)
        self._transfer_g[jobs] += grams
        self._grams[jobs] += grams
        self._money[jobs] += world.move_gb[jobs] * np.array([site.egress_per_gb for site in world.sites])[ends[0]]

    def _break(self, view: View, running: Flags, rows: Ints, pools: Ints, progress: Array) -> Array:
        """Return (m,) tokens that a job lost by a failure in this step, never more than it had; -1: none failed."""
        lost, rule = np.full(len(rows), -1.0), self._world.failures
        if rule is None or rule.per_gpu_h <= 0:
            return lost
        draw = self._rng.random((2, len(self._world.work)))[:, view.job]
        gpus = view.tables.gpus[view.kind, rows]
        fails = running & (draw[0] < -np.expm1(-rule.per_gpu_h * gpus * view.step_s / S_PER_HOUR))
        for i in np.flatnonzero(fails).tolist():
            since = draw[1][i] * min(rule.checkpoint_s, view.step_s) / view.step_s
            lost[i] = min(since * progress[i], self._done[view.job[i]] + progress[i])
            self._failures[view.job[i]] += 1
            self._broken.append((view.t_s + view.step_s + rule.repair_s, int(pools[i]), int(min(8, gpus[i]))))
        return lost

    def _record(self, watts: Array, gpus: Ints) -> None:
        self._power.append(watts)
        self._gpus.append(gpus)

    def outcome(self) -> FleetRun:
        """Return what has become of the jobs."""
        world, k = self._world, len(self._power)
        return FleetRun(
            policy=self._policy.name,
            work=world.work,
            step_s=world.step_s,
            first_s=self._first_s,
            end_s=self._end_s,
            grams=self._grams,
            transfer_g=self._transfer_g,
            joules=self._joules,
            money=self._money,
            starts=self._starts,
            moves=self._moves,
            failures=self._failures,
            facility_w=np.array(self._power).T,
            cap_w=world.cap_w(np.asarray(np.arange(k) * world.step_s)),
            gpus=np.array(self._gpus).T,
            refused=self._refused,
            slowest_s=self._slowest_s,
            thought_s=self._thought_s,
        )
