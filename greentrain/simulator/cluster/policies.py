"""Policies of a fleet, each a class with a name and ``decide``; a user's own stands in a file beside them.

None but ``planned`` (``greentrain.simulator.cluster.planned``) knows a price of the cluster. All may use every row of
a job's menu; those whose papers know one width run a job at its fastest. Watts are in all of them but
:class:`EachAlone`, so that their grams compare under the same caps: a job whose watts do not fit waits. "Like" says
that a rule of a paper is carried over to trainings, not that its program is run:

* :class:`Fcfs`: first come, first served, with EASY backfill as Slurm does it (Lifka, JSSPP 1995; sched/backfill).
* :class:`CarbonBlind`: earliest deadline first, each job at the pace of least energy that its deadline allows.
* :class:`EachAlone`: each job fills its own hours by its own price, as a GreenTrain of its own does.
* :class:`SuspendResume`: run below the 30th percentile of the next day's intensity, wait above it, as long as the
  deadline allows (Ecovisor, Souza et al., ASPLOS 2023; Let's wait awhile, Wiesner et al., Middleware 2021).
* :class:`GaiaLike`: a job waits for the start of the most grams saved an hour until its end, at most 6 h if short and
  24 h if long, by the mean length of its queue, and then runs through (GAIA, Hanafy et al., ASPLOS 2024: policy
  ``cst_average``).
* :class:`CarbonFlexLike`: how much of the cluster works is what a best plan of the last two weeks had at the hours
  most like this one; jobs of the most tokens a GPU first, wider while it pays (CarbonFlex, Hanafy et al., arXiv
  2505.18357).
* :class:`PcapsLike`: a job runs while the intensity is below a threshold that rises exponentially with how urgent it
  is (PCAPS, Lechowicz et al., arXiv 2502.09717, its function of gamma; trainings have no precedences, so urgency is
  the share of the time left that a job needs).
"""

import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from greentrain.errors import ConfigError
from greentrain.policy.menu import OFF
from greentrain.policy.waterfill import deadline_price, row_at
from greentrain.simulator.cluster.workload import Array, Ints
from greentrain.simulator.cluster.world import Choice, Flags, FleetPolicy, View
from greentrain.types import S_PER_HOUR


def fastest(view: View) -> Ints:
    """Return (m,) the fastest row of each job."""
    return view.tables.fastest[view.kind]


def needed_s(view: View) -> Array:
    """Return (m,) how long each job takes at its fastest at home, a start included."""
    return view.tokens_left / view.speed(fastest(view), view.home) + view.switch_s


def urgent(view: View, steps: float = 2.0) -> Flags:
    """Return (m,) which jobs must run at their fastest from now on: their deadlines leave no more than some steps."""
    late: Flags = view.deadline_s - view.t_s - needed_s(view) < steps * view.step_s
    return late


def admitted(view: View, rows: Ints, first: Flags) -> Choice:
    """Return what fits at home: urgent jobs by their deadlines, then those that run, then the others as they came.

    Args:
        view: What is seen.
        rows: (m,) wanted.
        first: (m,) jobs that come before all others.
    """
    order = np.lexsort((view.job, np.where(first, view.deadline_s, 0.0), view.row == OFF, ~first))
    return Choice(rows=view.fits(rows, view.home, order), pools=view.home, order=order)


class Fcfs:
    """First come, first served; a job that fits may pass one that does not, if that starts no later for it."""

    name = "fcfs"

    def decide(self, view: View) -> Choice:
        """Return the running jobs, and those that may start."""
        rows, running = fastest(view), view.row != OFF
        return _backfilled(view, rows, running, np.flatnonzero(~running))


def _backfilled(view: View, rows: Ints, running: Flags, queue: Ints) -> Choice:
    """Return running jobs, which go on where the caps let them, and jobs of a queue by EASY backfill.

    The first that does not fit gets a reservation: the time at which the ends of running jobs leave room for it. Who
    would end after that may only take what it leaves. Nobody ahead waits longer where users say how long jobs take.
    """
    order = np.concatenate([np.flatnonzero(running), queue]).astype(np.int64)
    kept = view.fits(np.where(running, rows, OFF), view.home, order)
    need = view.tables.gpus[view.kind, rows].astype(np.float64)
    watts, site = view.facility_w(rows, view.home), np.array([pool.site for pool in view.pools])[view.home]
    on = kept != OFF
    free = view.gpus - np.bincount(view.home, need * on, len(view.pools))
    free_w = view.cap_w[:, 0] * (1 + 1e-9) - np.bincount(site, watts * on, len(view.pue))
    ends_s = view.t_s + view.tokens_left / view.speed(rows, view.home)
    found, head, shadow_s, extra, extra_w = kept.copy(), -1, math.inf, 0.0, 0.0
    for i in queue.tolist():
        pool, grid = view.home[i], site[i]
        if need[i] > free[pool] or watts[i] > free_w[grid]:
            if head < 0:
                head = i
                going = np.flatnonzero((found != OFF) & (site == grid))
                shadow_s, extra, extra_w = _reservation(
                    need[i],
                    watts[i],
                    free[pool],
                    free_w[grid],
                    ends_s[going],
                    need[going] * (view.home[going] == pool),
                    watts[going],
                )
            continue
        if head >= 0 and grid == site[head] and ends_s[i] > shadow_s:
            here = pool == view.home[head]
            if (here and need[i] > extra) or watts[i] > extra_w:
                continue
            extra, extra_w = extra - need[i] * here, extra_w - watts[i]
        found[i] = rows[i]
        free[pool] -= need[i]
        free_w[grid] -= watts[i]
    return Choice(rows=found, pools=view.home, order=order)


def _reservation(
    need: float, need_w: float, free: float, free_w: float, ends_s: Array, gpus: Array, watts: Array
) -> tuple[float, float, float]:
    """Return when a job fits at the latest (s), and the GPUs and watts that it leaves then."""
    order = np.argsort(ends_s, kind="stable")
    then, then_w = free + np.cumsum(gpus[order]), free_w + np.cumsum(watts[order])
    fits = np.flatnonzero((then >= need) & (then_w >= need_w))
    if not fits.size:
        return math.inf, 0.0, 0.0
    return float(ends_s[order[fits[0]]]), float(then[fits[0]] - need), float(then_w[fits[0]] - need_w)


class CarbonBlind:
    """Earliest deadline first, at the slowest row of the hull that the deadline allows: it needs least energy."""

    name = "carbon_blind"

    def decide(self, view: View) -> Choice:
        """Return a row for each job by its pace."""
        left_s = np.maximum(view.deadline_s - view.t_s - view.switch_s - view.step_s, view.step_s)
        pace = view.tokens_left / left_s / np.array([pool.speed for pool in view.pools])[view.home]
        rows = np.zeros(len(view.job), np.int64)
        for kind in np.unique(view.kind):
            hull, some = view.tables.menus[kind].hull, view.kind == kind
            at = np.searchsorted(view.tables.speed[kind, hull], pace[some] * (1 - 1e-9))
            rows[some] = hull[np.clip(at, 1, len(hull) - 1)]
        order = np.lexsort((view.job, view.deadline_s))
        return Choice(rows=view.fits(rows, view.home, order), pools=view.home, order=order)


class EachAlone:
    """Each job by its own price, on a cluster that it believes to be empty; in order of arrival where that is wrong."""

    name = "each_alone"

    def decide(self, view: View) -> Choice:
        """Return the row that each job's own plan has now."""
        site = np.array([pool.site for pool in view.pools])
        rows, edges_s = fastest(view), view.t_s + np.arange(view.g_per_kwh.shape[1]) * S_PER_HOUR
        left_s = view.deadline_s - view.step_s / 2 - view.switch_s  # as a job keeps a margin
        for kind in np.unique(view.kind):
            for number in np.unique(site):
                some = np.flatnonzero((view.kind == kind) & (site[view.home] == number))
                if some.size:
                    weights_s = np.clip(left_s[some, None] - edges_s, 0.0, S_PER_HOUR)
                    seen = np.broadcast_to(view.g_per_kwh[number], weights_s.shape)
                    menu = view.tables.menus[kind]
                    price = deadline_price(seen, weights_s, view.tokens_left[some], menu)
                    rows[some] = row_at(menu, view.g_per_kwh[number, :1], price)
        order = np.arange(len(rows))
        return Choice(rows=view.fits(rows, view.home, order, watts=False), pools=view.home, order=order)


class SuspendResume:
    """Run while the grid is cleaner than a percentile of its next day; when the deadline asks for it, always.

    Args:
        percentile: Of the next 24 hours, 30 in Ecovisor.
    """

    name = "suspend_resume"

    def __init__(self, percentile: float = 30.0) -> None:
        self._percentile = percentile

    def decide(self, view: View) -> Choice:
        """Return the fastest row or off for each job."""
        limit = np.percentile(view.g_per_kwh[:, :24], self._percentile, axis=1)
        clean = (view.g_per_kwh[:, 0] <= limit)[np.array([pool.site for pool in view.pools])[view.home]]
        must = urgent(view)
        return admitted(view, np.where(clean | must, fastest(view), OFF), must)


class GaiaLike:
    """Wait for the start that saves most an hour until the end, then run through.

    Args:
        short_h: Up to this length a job is short (h).
        waits_h: Longest wait of short jobs and of long ones (h).
    """

    name = "gaia_like"

    def __init__(self, short_h: float = 2.0, waits_h: tuple[float, float] = (6.0, 24.0)) -> None:
        self._short_h, self._waits_h = short_h, waits_h
        self._start_s: dict[int, float] = {}

    def decide(self, view: View) -> Choice:
        """Return the running jobs, and those whose start has come."""
        length_h = np.maximum(needed_s(view) / S_PER_HOUR, 1.0)
        short = length_h <= self._short_h
        mean_h = [float(length_h[some].mean()) if some.any() else 1.0 for some in (short, ~short)]
        site = np.array([pool.site for pool in view.pools])[view.home]
        for i in np.flatnonzero([job not in self._start_s for job in view.job.tolist()]).tolist():
            slack_h = (view.deadline_s[i] - view.t_s - needed_s(view)[i]) / S_PER_HOUR - 2.0
            most = int(max(0.0, min(self._waits_h[0 if short[i] else 1], slack_h)))
            self._start_s[int(view.job[i])] = view.t_s + S_PER_HOUR * _best_wait(
                view.g_per_kwh[site[i]], math.ceil(mean_h[0 if short[i] else 1]), most
            )
        starts_s = np.array([self._start_s[job] for job in view.job.tolist()])
        running = view.row != OFF
        queue = np.flatnonzero(~running & (starts_s <= view.t_s + 1e-6))
        return _backfilled(view, fastest(view), running, queue[np.argsort(starts_s[queue], kind="stable")])


def _best_wait(g_per_kwh: Array, length_h: int, most_h: int) -> int:
    """Return the wait (h) of the most saved over the time until the end."""
    sums = np.concatenate([[0.0], np.cumsum(np.pad(g_per_kwh, (0, length_h + most_h), mode="edge"))])
    at = np.arange(most_h + 1)
    grams = sums[at + length_h] - sums[at]
    return int(np.argmax((grams[0] - grams) / (at + length_h)))


class CarbonFlexLike:
    """Work as many GPUs as a best plan had in like hours, and give them to those that make most of them.

    What hours are alike: the rank of the intensity within its day, how it changes, and how much work is due. Urgent
    jobs always run, as the paper's do when their delay is used up.

    Args:
        neighbours: Hours that are averaged.
    """

    name = "carbonflex_like"

    def __init__(self, neighbours: int = 5) -> None:
        self._neighbours = neighbours

    def decide(self, view: View) -> Choice:
        """Return rows of the most tokens a GPU within what is provisioned."""
        must = urgent(view)
        rows = np.where(must, fastest(view), OFF)
        order = np.lexsort((view.deadline_s, view.row == OFF, ~must))
        used = np.bincount(view.home, view.tables.gpus[view.kind, rows], len(view.pools))
        for pool in range(len(view.pools)):
            here = np.flatnonzero((view.home == pool) & ~must)
            if here.size:
                room = self._provisioned(view, pool) * view.gpus[pool] - used[pool]
                _widen(view, rows, here[np.argsort(view.deadline_s[here])], room)
        return Choice(rows=view.fits(rows, view.home, order), pools=view.home, order=order)

    def _provisioned(self, view: View, pool: int) -> float:
        """Return the share of a pool's GPUs that worked in like hours of a best plan of the last two weeks."""
        here = view.home == pool
        left_h = np.maximum((view.deadline_s - view.t_s) / S_PER_HOUR, 1.0)
        gpu_h = view.tables.gpus[view.kind, fastest(view)] * needed_s(view) / S_PER_HOUR
        demand = float(np.sum(np.where(here, gpu_h * np.minimum(1.0, 24.0 / left_h), 0.0))) / 24
        share = min(1.0, demand / max(1.0, float(view.gpus[pool])))
        past = view.past_g_per_kwh[view.pools[pool].site, -14 * 24 :]
        past = past[np.isfinite(past)]
        now = view.g_per_kwh[view.pools[pool].site, 0]
        if len(past) < 48:
            return share
        seen = np.lib.stride_tricks.sliding_window_view(np.append(past, now), 24)
        rank, change = (seen < seen[:, -1:]).mean(axis=1), (seen[:, -1] - seen[:, -2]) / seen.mean(axis=1)
        around = np.lib.stride_tricks.sliding_window_view(past, 24)  # hour 12 of these days, for the plan in hindsight
        best = np.mean(around < around[:, 12:13], axis=1) < share
        known = len(best) - 11  # windows of `seen` whose last hour is hour 12 of such a day: `seen[j]` ends at j + 23
        far = (rank[:known] - rank[-1]) ** 2 + (change[:known] - change[-1]) ** 2
        return float(best[np.argsort(far, kind="stable")[: self._neighbours] + 11].mean())


def _widen(view: View, rows: Ints, jobs: Ints, room: float) -> None:
    """Give the GPUs of a room to jobs, each next width to whom a GPU brings most; changes ``rows``."""
    tables = view.tables
    offers: list[tuple[float, int, int, float]] = []
    for kind in np.unique(view.kind[jobs]).tolist():
        widths = np.unique(tables.gpus[kind])
        ladder = [int(np.argmax(np.where(tables.gpus[kind] == width, tables.speed[kind], -1.0))) for width in widths]
        speed = tables.speed[kind, ladder]
        gain = np.diff(speed) / np.diff(widths) / (speed[1] / widths[1])
        for rank in np.flatnonzero(view.kind[jobs] == kind).tolist():
            gpus = np.diff(widths).tolist()
            offers += [(-gain[step], rank, ladder[step + 1], gpus[step]) for step in range(len(gpus))]
    closed: set[int] = set()
    for _, rank, row, gpus in sorted(offers):
        if rank in closed or gpus > room:
            closed.add(rank)
        else:
            rows[jobs[rank]] = row
            room -= gpus


class PcapsLike:
    """Run below a threshold between the least and the most intensity of the next two days that rises with urgency.

    Args:
        gamma: How strictly the grid is followed: 0 not at all, 1 most.
    """

    name = "pcaps_like"

    def __init__(self, gamma: float = 0.8) -> None:
        self._gamma = gamma

    def decide(self, view: View) -> Choice:
        """Return the fastest row or off for each job."""
        site = np.array([pool.site for pool in view.pools])[view.home]
        low, high = view.g_per_kwh[:, :48].min(axis=1)[site], view.g_per_kwh[:, :48].max(axis=1)[site]
        left_s = np.maximum(view.deadline_s - view.t_s, view.step_s)
        importance = np.clip(needed_s(view) / left_s, 0.0, 1.0)
        floor = self._gamma * low + (1 - self._gamma) * high
        rise = np.expm1(self._gamma * importance) / np.expm1(self._gamma) if self._gamma > 0 else importance
        must = urgent(view)
        runs = must | (view.g_per_kwh[:, 0][site] <= floor + (high - floor) * rise)
        return admitted(view, np.where(runs, fastest(view), OFF), must)


POLICIES: Final[Mapping[str, Callable[[], FleetPolicy]]] = {
    each.name: each for each in (Fcfs, CarbonBlind, EachAlone, SuspendResume, GaiaLike, CarbonFlexLike, PcapsLike)
}
"""Named rules, each made anew for a run."""
PLANNED: Final = "planned"
"""Name of the one plan for all, ``greentrain.simulator.cluster.planned.Planned``."""


def open_policy(name: str) -> FleetPolicy:
    """Return a policy by its name, or from a file: ``FILE.py`` with a function ``policy()`` that returns one.

    Args:
        name: Name or path. A file is run as it stands: take none that you would not run yourself.

    Raises:
        ConfigError: There is no such policy, or the file has none.
    """
    if name in POLICIES:
        return POLICIES[name]()
    if name == PLANNED:
        from greentrain.simulator.cluster.planned import Planned

        return Planned()
    path = Path(name)
    if path.suffix != ".py" or not path.exists():
        raise ConfigError(
            f"no policy {name!r}: name one of {', '.join((*POLICIES, PLANNED))}, or a file FILE.py with policy()"
        )
    spec = importlib.util.spec_from_file_location(f"fleet_policy_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, "policy", None)
    if not callable(made):
        raise ConfigError(f"{path} has no function policy(): it must return an object with name and decide(view)")
    found: FleetPolicy = made()
    return found
