"""What is left of a fleet's jobs, as the planner of a cluster takes it: rows, tokens, deadlines, grids, caps, nodes."""

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from greentrain.carbon.detect import open_signal
from greentrain.carbon.forecast import forecast_trust
from greentrain.control.demand import PowerEvent
from greentrain.control.fleet.engines import EngineJob, EngineView
from greentrain.control.fleet.spec import FleetSpec, JobTerms, PoolSpec, deadline_s
from greentrain.control.plan.planner import GridOutlook
from greentrain.errors import CarbonSignalError, ConfigError, RunFolderError
from greentrain.ledger.fleet_state import FleetJob
from greentrain.ledger.journal import RUN_JSON, last_record, read_journal, read_object
from greentrain.policy.action_sources import read_actions
from greentrain.policy.action_table import Action
from greentrain.policy.cluster.problem import (
    CHECKPOINT_GB,
    LATE,
    MOVE_PAYS,
    TIGHT_H,
    Array,
    ClusterJob,
    Pool,
    Problem,
    Row,
    Site,
    shortest_s,
)
from greentrain.policy.menu import OFF, Menu
from greentrain.types import S_PER_DAY, S_PER_HOUR
from greentrain.utils.never_raise import call_if_present

HORIZON_H: Final = 14 * 24
"""Furthest that a plan looks (h): weather is not forecast further, and a profile repeats."""
LEFT: Final = 0.02
"""Least share of its work that a job which still runs is thought to have left: who said its length was wrong."""
FRESH_S: Final = 120.0
"""A journal whose last entry is older says nothing of the power of now (s): entries last ten seconds at most."""


class RunWords(NamedTuple):
    """What the configuration of a run says to its fleet."""

    obeys: bool | None = None
    """Whether it looks for events (``actuators.demand``); None: it has not begun, or has no run folder."""
    gears: Collection[str] = ()
    """That it may shift to; empty: its own alone, as far as is known."""


def _stamp(where: str) -> tuple[int, ...]:
    """Return what is another one where a table, or a run's run.json, was written anew; empty: it is not there."""
    with suppress(OSError):
        stat = (Path(where, RUN_JSON) if Path(where).is_dir() else Path(where)).stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns
    return ()


@lru_cache(maxsize=4096)
def _words(run: str, stamp: tuple[int, ...]) -> RunWords:
    try:
        config = read_object(Path(run) / RUN_JSON)["config"]
        return RunWords(config["actuators"]["demand"] is not None, tuple(config["precision"]["gears"]))
    except (RunFolderError, OSError, KeyError, TypeError):
        return RunWords()


@lru_cache(maxsize=4096)
def _table(where: str, stamp: tuple[int, ...]) -> Menu | str:
    try:
        return Menu.of(read_actions(where).table)
    except ConfigError as error:
        return str(error)  # kept as well: a run that measures nothing stays without a table


@dataclass(frozen=True, kw_only=True)
class Known:
    """A job of the engine, with all that a plan needs."""

    name: str
    """Of the fleet: unique, and for people."""
    engine: EngineJob
    terms: JobTerms
    rows: tuple[Row, ...]
    actions: tuple[Action, ...]
    """Of each row."""
    tokens: float
    tokens_left: float
    deadline_s: float
    power_w: float | None = None
    """Measured IT power of the whole job over that of its idle nodes (W), as of rows; None: nobody measures it."""
    run: "RunWords"
    """What the configuration of its run says."""
    gear: str | None = None
    """In which it trained last; None: nobody knows."""

    def row(self, nodes: int, pool: str, cap: float | None = None, gear: str | None = None) -> int | None:
        """Return the fastest row of a width in a pool, with cap and gear where they are named; None: there is none."""
        found = [
            i
            for i, (row, action) in enumerate(zip(self.rows, self.actions, strict=True))
            if (row.nodes, row.pool) == (nodes, pool) and cap in (None, action.cap) and gear in (None, action.gear)
        ]
        return max(found, key=lambda i: self.rows[i].tokens_per_s, default=None)


def rows_of(
    spec: FleetSpec, terms: JobTerms, job: EngineJob, run: RunWords
) -> tuple[tuple[Row, ...], tuple[Action, ...]]:
    """Return the rows that a job may be given, and their actions.

    What a fleet can tell a job is where and how wide it starts, and cap and gear where GreenTrain runs in it (``run``)
    and looks for events. Of gears that nobody may choose, that of the table's fastest row is planned with where there
    is a run, and the usual one elsewhere.

    Args:
        spec: The fleet.
        terms: Of the job.
        job: What the engine says of it.
        run: What its run says.

    Raises:
        ConfigError: Its table has no row that it may use.
    """
    rows: list[Row] = []
    actions: list[Action] = []
    low, high = terms.widths or (job.nodes, job.nodes)
    for pool in spec.pools_of(terms, job.partition):
        menu = _menu(spec, terms, pool)
        gear = menu.actions[menu.static if terms.run is None else menu.fastest]
        assert gear is not None
        gears = {str(a.gear) for a in menu.actions if a is not None} & set(run.gears if run.obeys else ())
        obeys = terms.run is not None and run.obeys is not False
        nodes = -(-menu.width // pool.ranks_per_node)
        fits = [
            i
            for i, action in enumerate(menu.actions)
            if action is not None and action.gear in (gears or {gear.gear}) and (obeys or action.cap == 1.0)
        ]
        chosen: set[int] = set()
        for least, most in ((low, high), (job.nodes, job.nodes)):  # a width that it has now is one to stay in, too
            some = np.array([OFF, *(i for i in fits if least <= nodes[i] <= min(most, pool.nodes))])
            chosen |= {int(some[i]) for i in menu.only(some).hull} - {OFF} if len(some) > 1 else set()
        for i in sorted(chosen):
            action = menu.actions[i]
            assert action is not None
            count = int(nodes[i])
            power_w = max(0.0, float(menu.power_w[i]) - count * pool.idle_w)
            speed = float(menu.tokens_per_s[i])
            rows.append(Row(name=str(action), pool=pool.name, nodes=count, tokens_per_s=speed, power_w=power_w))
            actions.append(action)
    if not rows:
        asked = f"{low}" if low == high else f"{low} to {high}"
        raise ConfigError(f"its table of actions has no row for {asked} nodes; name another with actions=FILE")
    return tuple(rows), tuple(actions)


def _menu(spec: FleetSpec, terms: JobTerms, pool: PoolSpec) -> Menu:
    for where in (terms.actions, terms.run, pool.actions, spec.actions):
        if where is not None:
            found = _table(where, _stamp(where))
            if isinstance(found, Menu):
                return found
            if where is not terms.run:  # a run that has not measured its gears yet has no table
                raise ConfigError(found)
    raise AssertionError  # the fleet has one


def known(spec: FleetSpec, job: EngineJob, terms: JobTerms, name: str, before: FleetJob | None, now_s: float) -> Known:
    """Return a job with what is left of it: as its run says, else by the row that it was in since it was seen last.

    Args:
        spec: The fleet.
        job: What the engine says of it.
        terms: Of the job.
        name: Its name in the fleet.
        before: What was noted of it last; None: it is new.
        now_s: Now (s since the epoch, UTC, in the fleet's time).

    Raises:
        ConfigError: Its terms or its table are wrong.
    """
    run = RunWords() if terms.run is None else _words(terms.run, _stamp(terms.run))
    rows, actions = rows_of(spec, terms, job, run)
    asked = [row.tokens_per_s for row in rows if row.nodes == job.nodes] or [row.tokens_per_s for row in rows]
    tokens = terms.tokens if terms.tokens is not None else (terms.hours or 0.0) * S_PER_HOUR * max(asked)
    left, seen_s = tokens, job.start_s or now_s
    if before is not None and before.tokens is not None and before.tokens_left is not None:
        tokens, left = before.tokens, before.tokens_left
        seen_s = before.seen_s or now_s
        if before.state != "running" and job.start_s is not None:
            seen_s = max(seen_s, job.start_s)
    done, power_w, gear = (None, None, None) if terms.run is None else run_facts(Path(terms.run), now_s)
    if power_w is not None:
        idle_w = next((pool.idle_w for pool in spec.pools if pool.name == pool_of(spec, job)), 0.0)
        power_w = max(0.0, power_w - job.nodes * idle_w)
    found = Known(
        name=name,
        engine=job,
        terms=terms,
        rows=rows,
        actions=actions,
        tokens=tokens,
        tokens_left=left,
        deadline_s=deadline_s(terms, job.submit_s, tokens / max(row.tokens_per_s for row in rows)),
        power_w=power_w,
        run=run,
        gear=gear,
    )
    index = found.row(job.nodes, pool_of(spec, job) or rows[0].pool) if job.state == "running" else None
    rate = (before.tokens_per_s or 0.0) if before is not None and before.state == "running" else 0.0
    rate = rate if index is None or rate else rows[index].tokens_per_s
    left = left - rate * max(0.0, now_s - seen_s) if done is None else tokens - done
    return replace(found, tokens_left=max(left, (LEFT if job.state == "running" else 1e-6) * tokens))


def run_facts(folder: Path, now_s: float) -> tuple[float | None, float | None, str | None]:
    """Return a run's tokens until now, and the IT power (W) and the gear of its newest entries; None: nobody knows.

    Args:
        folder: Run folder.
        now_s: Now (s since the epoch, UTC).
    """
    power_w, tokens, gear = list[float](), 0.0, None
    for path in sorted(folder.glob("rank-*.jsonl")):
        record = last_record(path, "entry", "close")
        if record is None:
            return None, None, gear
        try:
            sums = record["totals"] if record.get("kind") == "close" else record.get("sum")
            tokens += math.nan if sums is None else float(sums["tokens"])
            if record.get("kind") == "close":
                continue
            seconds = float(record["t1"]) - float(record["t0"])
            devices = record["devices"].values()
            if seconds > 0 and now_s - record["t1"] < FRESH_S and all(d["prov"] != "missing" for d in devices):
                power_w.append(sum(float(device["j"]) for device in devices) / seconds)
            if gears := record.get("gears"):
                gear = str(max(gears, key=lambda name: gears[name]["s"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            return None, None, gear
    return tokens if tokens > 0 else None, sum(power_w) if power_w else None, gear


def run_grams(folder: Path, since_s: float, until_s: float, idle_w: float) -> tuple[float, bool] | None:
    """Return what a run booked as emitted in a time (g), and whether all of it was measured; None: it does not know.

    Args:
        folder: Run folder.
        since_s: From when on (s since the epoch, UTC).
        until_s: Until when (s since the epoch, UTC).
        idle_w: Power of its idle nodes (W), whose share is left out.
    """
    grams, energy_j, ran_s, measured = 0.0, 0.0, 0.0, True
    try:
        for path in sorted(folder.glob("rank-*.jsonl")):
            booked_s = 0.0
            for entry in read_journal(path, short=True):
                if entry.get("kind") != "entry":
                    continue
                t0_s, t1_s, devices = float(entry["t0"]), float(entry["t1"]), entry["devices"].values()
                inside_s = min(t1_s, until_s) - max(t0_s, since_s)
                if inside_s <= 0:
                    continue
                share = inside_s / (t1_s - t0_s)
                grams, booked_s = grams + share * float(entry["op_g"]), booked_s + inside_s
                energy_j += share * sum(float(device["j"]) for device in devices)
                measured = measured and all(device["prov"] == "measured" for device in devices)
            ran_s = max(ran_s, booked_s)
    except (RunFolderError, KeyError, TypeError, ValueError, AttributeError):  # null where the intensity is not known
        return None
    return (grams * max(0.0, 1.0 - idle_w * ran_s / energy_j), measured) if energy_j > 0 else None


class Grids:
    """The grids of all sites, in the fleet's time.

    Args:
        spec: The fleet.

    Raises:
        CarbonSignalError: A signal cannot be built.
    """

    def __init__(self, spec: FleetSpec) -> None:
        self._signals = [open_signal(site.carbon) for site in spec.sites]
        self._outlooks = [GridOutlook(signal) for signal in self._signals]
        for signal in self._signals:
            call_if_present(signal, "start")
        self.trust: Array = np.ones(len(self._signals))
        """(s,) how much of the swings to believe that :meth:`hours` told last."""

    def hours(self, now_s: float, hours: int) -> list[Array]:
        """Return the running hour and those after it of each site (g/kWh).

        Args:
            now_s: Now (s since the epoch, UTC, in the fleet's time).
            hours: How many.

        Raises:
            CarbonSignalError: A signal knows nothing of now, and nothing of before.
        """
        found = []
        for i, (outlook, signal) in enumerate(zip(self._outlooks, self._signals, strict=True)):
            past, ahead = outlook.at(math.floor(now_s / S_PER_HOUR) * S_PER_HOUR, hours * S_PER_HOUR)
            if np.isnan(ahead).all():
                problem = getattr(signal, "problem", "") or "it knows nothing of now nor of before"
                raise CarbonSignalError(f"the grid of {signal.describe()['zone']}: {problem}; see carbon.fallback")
            found.append(np.where(np.isnan(ahead), np.nanmean(ahead), ahead))
            self.trust[i] = 1.0 if outlook.own_h > 1 else forecast_trust(past)  # a source knows more than its past
        return found

    def mean(self, site: int, t0_s: float, t1_s: float) -> float | None:
        """Return the mean intensity of a time that is over at a site (g/kWh); None: it is not known."""
        value = float(self._outlooks[site].means(np.array([t0_s, t1_s]))[0])
        return value if math.isfinite(value) else None

    def close(self) -> None:
        """Close the signals."""
        for signal in self._signals:
            call_if_present(signal, "close")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEvent:
    """A demand-response event, in the fleet's time."""

    event: PowerEvent
    site: str | None = None
    """None: all sites."""

    def cap_w(self, cap_w: float) -> float:
        """Return what it leaves of a cap (W)."""
        return self.event.power_w if self.event.power_w is not None else cap_w * self.event.share(None)


def problem(
    spec: FleetSpec,
    jobs: Sequence[Known],
    view: EngineView,
    g_per_kwh: Sequence[Array],
    events: Sequence[SiteEvent],
    now_s: float,
    budget_g: float = math.inf,
) -> Problem:
    """Return what is left to be done, as the planner takes it.

    Args:
        spec: The fleet.
        jobs: All jobs that wait or run.
        view: What the engine says of nodes.
        g_per_kwh: Hours of each site, the running one first.
        events: Demand response.
        now_s: Now (s since the epoch, UTC, in the fleet's time).
        budget_g: What all jobs may still emit (g).
    """
    need = [shortest_s(job.tokens_left, job.rows, job.terms.switch_s, _current(spec, job)) for job in jobs]
    due = [_due_s(job, need_s, now_s) for job, need_s in zip(jobs, need, strict=True)]
    changes = [t_s for site in spec.sites for t_s in site.changes_s(now_s, now_s + S_PER_DAY)]
    edges_s = edges(now_s, due, need, [one.event for one in events], changes)
    begin = np.floor(edges_s[:-1] / S_PER_HOUR + 1e-9).astype(int) - math.floor(now_s / S_PER_HOUR)
    end = np.maximum(begin + 1, np.ceil(edges_s[1:] / S_PER_HOUR - 1e-9).astype(int) - math.floor(now_s / S_PER_HOUR))
    sites = []
    for site, hours in zip(spec.sites, g_per_kwh, strict=True):
        last = len(hours) - 1
        means = np.array(
            [hours[min(a, last) : max(min(a, last) + 1, b)].mean() for a, b in zip(begin, end, strict=True)]
        )
        own_w = [min(map(site.cap_w, (a, *site.changes_s(a, b)))) for a, b in pairwise(edges_s.tolist())]
        cap_w = np.array(own_w)
        for one in events:
            if one.site in (None, site.name):
                holds = (edges_s[:-1] < one.event.end_s) & (edges_s[1:] > one.event.start_s)
                cap_w[holds] = np.minimum(cap_w, [one.cap_w(cap) for cap in own_w])[holds]
        cap_w = np.maximum(0.0, cap_w - spec.idle_w(site))
        pue = np.full(len(begin), site.carbon.pue)
        sites.append(Site(name=site.name, g_per_kwh=means, power_cap_w=cap_w, pue=pue))
    day_g = float(np.mean([hours[:24].mean() for hours in g_per_kwh]))
    return Problem(
        edges_s=edges_s,
        sites=tuple(sites),
        pools=tuple(
            Pool(name=p.name, site=p.site, nodes=np.full(len(begin), free(p, view)), device=p.device)
            for p in spec.pools
        ),
        jobs=tuple(_cluster_job(spec, job, due_s, now_s, day_g) for job, due_s in zip(jobs, due, strict=True)),
        budget_g=budget_g,
    )


def free(pool: PoolSpec, view: EngineView) -> float:
    """Return the nodes of a pool that work and that no job from outside of the fleet has."""
    partition = pool.partition or pool.name
    up = min(pool.nodes, view.nodes_up.get(partition, pool.nodes))
    return float(max(0, up - view.taken.get(partition, 0)))


def pool_of(spec: FleetSpec, job: EngineJob) -> str | None:
    """Return the pool that a job is in; None: in none of the fleet."""
    return next((pool.name for pool in spec.pools if (pool.partition or pool.name) == job.partition), None)


def _current(spec: FleetSpec, job: Known) -> int | None:
    """Return the row that a job runs in; None: it does not, or nobody knows the row."""
    pool = pool_of(spec, job.engine)
    return None if job.engine.state != "running" or pool is None else job.row(job.engine.nodes, pool)


def _due_s(job: Known, need_s: float, now_s: float) -> float:
    late_s = now_s + LATE * need_s + 2 * S_PER_HOUR
    return min(job.deadline_s if job.deadline_s >= now_s + need_s else late_s, now_s + HORIZON_H * S_PER_HOUR)


def _cluster_job(spec: FleetSpec, job: Known, due_s: float, now_s: float, day_g: float) -> ClusterJob:
    """Return a job as the planner takes it; ``day_g`` (g/kWh) is what a move between two sites emits at."""
    running = job.engine.state == "running"
    pools = {pool.name: pool for pool in spec.pools}
    pool = pools.get(pool_of(spec, job.engine) or "")
    current = _current(spec, job)
    gb = job.terms.checkpoint_gb
    if gb is None:
        gb = CHECKPOINT_GB * max(row.nodes * pools[row.pool].ranks_per_node for row in job.rows)
    stays = current is not None and not job.terms.restart  # nobody brings it back, so nobody ends it
    return ClusterJob(
        name=job.name,
        release_s=now_s,
        deadline_s=due_s,
        tokens=job.tokens_left,
        rows=job.rows,
        priority=job.terms.priority,
        user=job.engine.user,
        switch_s=job.terms.switch_s,
        move_s=8 * gb / spec.link_gbit_s,
        move_g=MOVE_PAYS * gb * spec.link_kwh_per_gb * day_g,
        site=None if pool is None or job.tokens_left >= job.tokens else pool.site,
        min_run_s=due_s - now_s + S_PER_HOUR if not job.terms.restart else job.terms.min_run_s,
        current=current,
        held_s=0.0 if stays else (max(0.0, now_s - (job.engine.start_s or now_s)) if running else math.inf),
    )


def edges(
    now_s: float,
    due: Sequence[float],
    need: Sequence[float],
    events: Sequence[PowerEvent],
    changes: Sequence[float] = (),
) -> Array:
    """Return edges of steps: of an hour for a day, then longer, as forecasts tell less; caps and tight deadlines stay.

    Args:
        now_s: Now (s since the epoch, UTC).
        due: Deadlines (s since the epoch, UTC).
        need: Shortest time that each job takes (s).
        events: Demand response, each end of which is an edge.
        changes: Other times that are edges (s since the epoch, UTC).
    """
    hour, last_s = math.floor(now_s / S_PER_HOUR), max([now_s + S_PER_HOUR, *due])
    ahead = np.concatenate([np.arange(1, 25), np.arange(27, 73, 3), np.arange(78, HORIZON_H + 6, 6)])
    hours = (hour + ahead) * S_PER_HOUR
    tight = [d for d, need_s in zip(due, need, strict=True) if d - now_s - need_s < TIGHT_H * S_PER_HOUR]
    own = [t for event in events for t in (event.start_s, event.end_s)] + tight + list(changes)
    found = np.unique(np.floor(np.concatenate([hours[hours < last_s], own, [last_s]])))
    return np.concatenate([[now_s], found[(found > now_s + 1.0) & (found <= last_s)]])
