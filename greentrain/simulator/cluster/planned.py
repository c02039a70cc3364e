"""One plan for the whole fleet, made anew at each event, and what no plan could have bettered in hindsight."""

import math
from functools import lru_cache
from typing import Final

import numpy as np

from greentrain.carbon.forecast import trusted
from greentrain.policy.cluster.planner import solve
from greentrain.policy.cluster.problem import (
    DONE,
    LATE,
    MOVE_PAYS,
    TIGHT_H,
    ClusterJob,
    Plan,
    Pool,
    Problem,
    Row,
    Site,
    shortest_s,
)
from greentrain.policy.cluster.problem import OFF as NO_ROW
from greentrain.policy.menu import OFF
from greentrain.simulator.cluster.policies import needed_s
from greentrain.simulator.cluster.workload import Array, Ints
from greentrain.simulator.cluster.world import Choice, FleetPool, FleetWorld, Tables, View
from greentrain.types import S_PER_HOUR

_OLD_H: Final = 12
"""Hours after which a plan is made anew though nothing happened: its steps are of an hour for a day."""


class Planned:
    """Rows of the plan that emits least under all caps and by all deadlines; new at each event and forecast.

    Args:
        slowdown: Each job ends before so many times its shortest time, too; None: its deadline is all that it asks for.
        margin_h: Kept between the end of a job and its deadline, against wrong estimates and failures (h).
        every_h: A new forecast alone is an event after so many hours at the earliest; arrivals, ends, failures and caps
            are at once.
    """

    name = "planned"

    def __init__(self, slowdown: float | None = None, margin_h: float = 0.0, every_h: float = 1.0) -> None:
        self._slowdown, self._margin_s, self._every_s = slowdown, margin_h * S_PER_HOUR, every_h * S_PER_HOUR
        if slowdown is not None:
            self.name = f"planned_{slowdown:g}x"
        self._plan: Plan | None = None
        self._seen: tuple[object, ...] = ()
        self._told: tuple[float, Array] | None = None
        self.plans = 0
        """Number of plans that were made."""

    def decide(self, view: View) -> Choice:
        """Return what the plan says for now; a new plan where something happened since the last one."""
        seen = (view.job.tobytes(), view.gpus.tobytes(), view.cap_w[:, 0].tobytes())
        if self._plan is None or seen != self._seen or self._news(view):
            problem = self.problem(view)
            self._plan, self._seen, self._told = solve(problem, self._plan), seen, (view.t_s, view.g_per_kwh)
            self.plans += 1
        return self._choice(view, self._plan)

    def _news(self, view: View) -> bool:
        """Return whether a job is to run no more and is not done, the forecast is another, or the plan is old."""
        assert self._told is not None
        told_s, told = self._told
        if self._plan is not None and (self._plan.rows[:, self._step(view) :] == NO_ROW).all(axis=1).any():
            return True
        if view.t_s - told_s < self._every_s - 1e-6:
            return False
        passed = math.floor(view.t_s / S_PER_HOUR + 1e-9) - math.floor(told_s / S_PER_HOUR + 1e-9)
        hours = min(24, told.shape[1] - passed, view.g_per_kwh.shape[1])
        same = hours > 0 and np.allclose(told[:, passed : passed + hours], view.g_per_kwh[:, :hours], rtol=1e-9)
        return not same or passed >= _OLD_H

    def problem(self, view: View) -> Problem:
        """Return what is left to be done, as the planner takes it."""
        now_s = view.start_unix_s + view.t_s
        known = [_rows(view.tables, view.pools, kind) for kind in view.kind.tolist()]
        current = [_index(places, view, i) if view.row[i] != OFF else None for i, (places, _) in enumerate(known)]
        given = zip(view.tokens_left.tolist(), known, current, strict=True)
        need_s = np.array([shortest_s(tokens, rows, view.switch_s, now) for tokens, (_, rows), now in given])
        due_s, soon_s = self._due_s(view), view.t_s + LATE * need_s + 2 * S_PER_HOUR
        due_s = np.where(due_s < view.t_s + need_s * (1 - DONE), soon_s, due_s)
        tight_s = due_s[due_s - view.t_s - need_s < TIGHT_H * S_PER_HOUR]
        edges_s = view.start_unix_s + _edges_s(view.t_s, float(due_s.max()), tight_s)
        jobs = []
        for i in range(len(view.job)):
            jobs.append(
                ClusterJob(
                    name=str(view.job[i]),
                    release_s=now_s,
                    deadline_s=view.start_unix_s + float(due_s[i]),
                    tokens=float(view.tokens_left[i]),
                    rows=known[i][1],
                    user=str(view.user[i]),
                    switch_s=view.switch_s,
                    move_s=float(view.move_s[i]),
                    move_g=MOVE_PAYS * float(view.move_g[i]),
                    current=current[i],
                    held_s=float(view.held_s[i]),
                    site=None if view.pool[i] < 0 else str(view.pools[view.pool[i]].site),
                )
            )
        return Problem(
            edges_s=edges_s,
            sites=_sites(
                _means(trusted(view.g_per_kwh, view.trust), view, edges_s),
                _means(view.cap_w, view, edges_s, lowest=True),
                view.pue,
            ),
            pools=_pools(view.pools, view.gpus, len(edges_s) - 1),
            jobs=tuple(jobs),
        )

    def _due_s(self, view: View) -> Array:
        due_s = np.maximum(view.deadline_s - self._margin_s, np.minimum(view.deadline_s, view.t_s + needed_s(view)))
        if self._slowdown is None:
            return due_s
        alone_s = view.tokens / view.speed(view.tables.fastest[view.kind], view.home)
        return np.minimum(due_s, view.release_s + view.step_s + self._slowdown * alone_s)

    def _step(self, view: View) -> int:
        assert self._plan is not None
        edges_s = self._plan.problem.edges_s
        return (
            min(int(np.searchsorted(edges_s, view.start_unix_s + view.t_s + 1e-3, side="right")), len(edges_s) - 1) - 1
        )

    def _choice(self, view: View, plan: Plan) -> Choice:
        rows, pools = np.zeros(len(view.job), np.int64), np.where(view.pool >= 0, view.pool, view.home)
        for i, row in enumerate(plan.rows[:, self._step(view)].tolist()):
            if row != NO_ROW:
                pools[i], rows[i] = _rows(view.tables, view.pools, int(view.kind[i]))[0][row]
        return Choice(rows=rows, pools=pools, order=np.argsort(view.row == OFF, kind="stable"))


def hindsight(world: FleetWorld) -> Plan:
    """Return a plan that knows all jobs, the grid and each event from the start; its bound is one for every policy.

    Args:
        world: The fleet; its failures are left out, which only lowers the bound.
    """
    work, step_s = world.work, world.step_s
    k = math.ceil(float(work.deadline_s.max()) / step_s)
    edges_s = np.asarray(world.start_unix_s + np.arange(k + 1) * step_s)
    grids = [np.diff(site.grid.integral(edges_s)) / step_s for site in world.sites]
    caps, pue = world.cap_w(np.asarray(np.arange(k) * step_s)), np.array([site.pue for site in world.sites])
    least_g = world.move_gb * world.link_kwh_per_gb * np.min(grids)
    jobs = [
        ClusterJob(
            name=str(i),
            release_s=world.start_unix_s + float(work.release_s[i]),
            deadline_s=world.start_unix_s + float(work.deadline_s[i]),
            tokens=float(work.tokens[i]),
            rows=_rows(world.tables, world.pools, int(work.kind[i]))[1],
            switch_s=world.switch_s,
            move_s=float(world.move_s[i]),
            move_g=float(least_g[i]),
        )
        for i in range(len(work))
    ]
    gpus = np.array([pool.gpus for pool in world.pools])
    return solve(
        Problem(
            edges_s=edges_s,
            sites=_sites(np.array(grids), caps, pue),
            pools=_pools(world.pools, gpus, k),
            jobs=tuple(jobs),
        )
    )


def _sites(g_per_kwh: Array, cap_w: Array, pue: Array) -> tuple[Site, ...]:
    return tuple(
        Site(name=str(i), g_per_kwh=g_per_kwh[i], power_cap_w=cap_w[i], pue=np.full(g_per_kwh.shape[1], pue[i]))
        for i in range(len(pue))
    )


def _pools(pools: tuple[FleetPool, ...], gpus: Ints, steps: int) -> tuple[Pool, ...]:
    return tuple(
        Pool(name=str(i), site=str(pool.site), nodes=np.full(steps, float(gpus[i]))) for i, pool in enumerate(pools)
    )


def _edges_s(t_s: float, end_s: float, tight_s: Array) -> Array:
    """Return edges of steps: of an hour for a day, then longer, as forecasts tell less; deadlines that are tight stay.

    Args:
        t_s: Now.
        end_s: Latest deadline.
        tight_s: Deadlines that must not be rounded.
    """
    hour = math.floor(t_s / S_PER_HOUR + 1e-9)
    last = max(hour + 1, math.ceil(end_s / S_PER_HOUR - 1e-9))
    ahead = np.concatenate([np.arange(1, 25), np.arange(27, 73, 3), np.arange(78, max(79, last - hour), 6)]) + hour
    hours = np.concatenate([ahead, np.floor(tight_s / S_PER_HOUR + 1e-9), [last]])
    return np.unique(np.concatenate([[t_s], hours[(hours > hour) & (hours <= last)] * S_PER_HOUR]))


def _means(values: Array, view: View, edges_s: Array, *, lowest: bool = False) -> Array:
    """Return (s, h) means, or the lowest, over the steps of hourly values from now on; the last value is kept."""
    begin = np.floor((edges_s[:-1] - view.start_unix_s) / S_PER_HOUR + 1e-9).astype(np.int64)
    begin -= begin[0]
    size = np.diff(np.append(begin, begin[-1] + max(1, round((edges_s[-1] - edges_s[-2]) / S_PER_HOUR))))
    padded = np.pad(values, ((0, 0), (0, max(0, begin[-1] + size[-1] - values.shape[1]))), mode="edge")
    padded = padded[:, : begin[-1] + size[-1]]
    if lowest:
        return np.asarray(np.minimum.reduceat(padded, begin, axis=1))
    return np.asarray(np.add.reduceat(padded, begin, axis=1) / size)


@lru_cache(maxsize=64)
def _rows(
    tables: Tables, pools: tuple[FleetPool, ...], kind: int
) -> tuple[tuple[tuple[int, int], ...], tuple[Row, ...]]:
    """Return the rows of the hull of a kind of job in pools that are wide enough: pools, rows of the menu; and rows."""
    menu = tables.menus[kind]
    places = tuple(
        (number, int(row))
        for number, pool in enumerate(pools)
        for row in menu.hull
        if row != OFF and menu.width[row] <= pool.gpus
    )
    return places, tuple(
        Row(
            name=menu.names()[row],
            pool=str(number),
            nodes=int(menu.width[row]),
            tokens_per_s=float(menu.tokens_per_s[row]) * pools[number].speed,
            power_w=float(menu.power_w[row]) * pools[number].power,
        )
        for number, row in places
    )


def _index(places: tuple[tuple[int, int], ...], view: View, i: int) -> int | None:
    """Return the index of a row of the same width and pool as a job has now."""
    width = view.tables.gpus[view.kind[i], view.row[i]]
    return next(
        (
            index
            for index, (pool, row) in enumerate(places)
            if pool == view.pool[i] and view.tables.gpus[view.kind[i], row] == width
        ),
        None,
    )
