"""What a cluster has to do and what it has for that, as values: sites, pools, jobs, prices, and a plan with its bound.

Time is cut into steps by ``edges_s``, of any length each (the first may begin now, in the middle of an hour). In a step
a job is off, or in one of its rows: nodes of a pool, tokens/s and watts. It has the nodes and watts for the whole step,
and draws power until its tokens are done; what is left of its last step costs no grams. Rows of one pool and width are
one form: gears and caps change within a form at no cost. Each start in a form loses ``switch_s`` of the form's fastest
row in tokens, and emits ``switch_g``; a start at another site than that of the checkpoint adds ``move_s`` and
``move_g``. A job stays in a form for ``min_run_s`` unless it ends.

Watts of a row are what it adds to idle nodes, and the cap of a site is what idle nodes leave of it, at the meter of the
facility: a row of 1,000 W at a PUE of 1.2 takes 1,200 W of it.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.types import J_PER_KWH

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

OFF: Final = -1
"""In place of a row: the job has no nodes."""
KIND: Final = "greentrain cluster plan"
FORMAT: Final = 1
DONE: Final = 1e-9
"""Share of a job's tokens that is rounding, and no deadline missed."""

CHECKPOINT_GB: Final = 16.0
"""Of each GPU of a job at its widest: 1 TB at 64 GPUs, assumed."""
LINK_GBIT_S: Final = 13.0
"""Between two sites, for each move: assumed."""
LINK_KWH_PER_GB: Final = 0.06
"""Of core and access networks, 2015; it halved every two years or so (Aslan, Mayers, Koomey and France, "Electricity
Intensity of Internet Data Transmission", J. Industrial Ecology 22(4), 2018). Links between data centres take less, so
that no move is made to look better than it is."""
LATE: Final = 1.1
"""A job past its deadline gets a new one: now and so many times the shortest time that it needs, and two hours."""
TIGHT_H: Final = 12.0
"""A deadline that leaves less over the shortest time that a job needs is no edge's to round (h)."""
MOVE_PAYS: Final = 3.0
"""A move has to save so many times what its transfer emits: jobs that come later, which nobody knows of, may take the
place that it is for (``benchmarks/fleet_bench.py --only sites``)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """A grid connection."""

    name: str
    g_per_kwh: Array
    """(h,) mean intensity of each step, known or forecast."""
    power_cap_w: Array
    """(h,) facility power that jobs may draw; inf: no cap."""
    pue: Array
    """(h,) facility watts for one of IT."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Nodes of one device at one site."""

    name: str
    site: str
    nodes: Array
    """(h,) nodes that work; less where some are broken or kept."""
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way for a job to run."""

    name: str
    """For people: the action, such as 'fp8 at 70% on 4'."""
    pool: str
    nodes: int
    tokens_per_s: float
    power_w: float
    """IT power of the whole job over that of the idle nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """What is left of a job. All times are s since the epoch, UTC, or s."""

    name: str
    release_s: float
    deadline_s: float
    tokens: float
    """Left to be trained."""
    rows: tuple[Row, ...]
    priority: float = 1.0
    """Weight of its miss; a plan weighs misses before grams."""
    user: str = ""
    switch_s: float = 0.0
    """Work lost at each start in a form."""
    switch_g: float = 0.0
    """Emitted by each start."""
    move_s: float = 0.0
    """Work lost at a start at another site than that of the checkpoint, beside ``switch_s``."""
    move_g: float = 0.0
    """Emitted by the transfer."""
    min_run_s: float = 0.0
    """Shortest stay in a form."""
    current: int | None = None
    """Row in use at the start of the plan; None: off."""
    held_s: float = math.inf
    """For how long it has been in the form of this row."""
    site: str | None = None
    """Where its checkpoint lies, if it does not run at the start of the plan; None: nowhere yet."""


def shortest_s(tokens: float, rows: Sequence[Row], switch_s: float, current: int | None) -> float:
    """Return how long a job takes at least: at its fastest after a start, or without one in the form that it is in.

    Args:
        tokens: Left to be trained.
        rows: Its ways to run.
        switch_s: Work lost at a start (s).
        current: Row that it is in; None: it is off.
    """
    here = None if current is None else (rows[current].pool, rows[current].nodes)
    speeds = [(row.tokens_per_s, 0.0 if (row.pool, row.nodes) == here else switch_s) for row in rows]
    return min(tokens / speed + lost_s for speed, lost_s in speeds if speed > 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A cluster, its grids and its jobs.

    Raises:
        ConfigError: Names or shapes do not fit together, or a figure is out of its range.
    """

    edges_s: Array
    """(h + 1,) of the steps (s since the epoch, UTC)."""
    sites: tuple[Site, ...]
    pools: tuple[Pool, ...]
    jobs: tuple[ClusterJob, ...]
    budget_g: float = math.inf
    """What all jobs may emit."""

    def __post_init__(self) -> None:
        for what, names in (("site", self.sites), ("pool", self.pools), ("job", self.jobs)):
            seen: set[str] = set()
            for some in names:
                if some.name in seen:
                    raise ConfigError(f"two {what}s are called {some.name!r}; each needs a name of its own")
                seen.add(some.name)
        h = self.steps
        if h < 1 or not (np.isfinite(self.edges_s).all() and (np.diff(self.edges_s) > 0).all()):
            raise ConfigError(f"edges_s has {h + 1} times; a plan needs two or more, each later than the one before")
        for site in self.sites:
            for what, values, least in (("g_per_kwh", site.g_per_kwh, 0.0), ("pue", site.pue, 1.0)):
                _check_series(f"{what} of site {site.name!r}", values, h, least, finite=True)
            _check_series(f"power_cap_w of site {site.name!r}", site.power_cap_w, h, 0.0, finite=False)
        for pool in self.pools:
            _check_series(f"nodes of pool {pool.name!r}", pool.nodes, h, 0.0, finite=True)
            if pool.site not in self.site_index:
                raise ConfigError(f"pool {pool.name!r} is at site {pool.site!r}, which is not among the sites")
        for job in self.jobs:
            self._check_job(job)
        if not self.budget_g >= 0:
            raise ConfigError(f"budget_g is {self.budget_g:g}; it must be 0 g or more")

    def _check_job(self, job: ClusterJob) -> None:
        where = f"job {job.name!r}"
        if not any(row.tokens_per_s > 0 for row in job.rows):
            raise ConfigError(f"{where} has no row with tokens/s; it needs at least one way to run")
        for row in job.rows:
            if row.pool not in self.pool_index:
                raise ConfigError(f"{where}: row {row.name!r} is of pool {row.pool!r}, which is not among the pools")
            if not (row.nodes >= 1 and 0 <= row.tokens_per_s < math.inf and 0 <= row.power_w < math.inf):
                raise ConfigError(f"{where}: row {row.name!r} needs 1 node or more, tokens/s and W of 0 or more")
        values = (job.priority, job.switch_s, job.switch_g, job.move_s, job.move_g, job.min_run_s)
        if not (0 < job.tokens < math.inf and all(0 <= value < math.inf for value in values) and job.held_s >= 0):
            raise ConfigError(f"{where}: tokens must be above 0; priority, switching, moving and min_run_s 0 or more")
        if job.current is not None and not 0 <= job.current < len(job.rows):
            raise ConfigError(f"{where}: current is row {job.current} of {len(job.rows)}")
        if job.current is not None and job.release_s > self.edges_s[0]:
            raise ConfigError(f"{where} runs at the start of the plan, so its release_s cannot be later")
        if job.site is not None and job.site not in self.site_index:
            raise ConfigError(f"{where}: its checkpoint is at {job.site!r}, which is not among the sites")

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.edges_s) - 1

    @cached_property
    def length_s(self) -> Array:
        """(h,) of each step."""
        return np.diff(self.edges_s)

    @cached_property
    def site_index(self) -> Mapping[str, int]:
        """Index of each site."""
        return {site.name: i for i, site in enumerate(self.sites)}

    @cached_property
    def pool_index(self) -> Mapping[str, int]:
        """Index of each pool."""
        return {pool.name: i for i, pool in enumerate(self.pools)}

    @cached_property
    def job_index(self) -> Mapping[str, int]:
        """Index of each job."""
        return {job.name: i for i, job in enumerate(self.jobs)}

    @cached_property
    def nodes(self) -> Array:
        """(p, h) nodes of the pools."""
        return np.array([pool.nodes for pool in self.pools], dtype=np.float64)

    @cached_property
    def cap_w(self) -> Array:
        """(s, h) caps of the sites, in watts of IT."""
        return np.array([site.power_cap_w / site.pue for site in self.sites], dtype=np.float64)

    @cached_property
    def g_per_w(self) -> Array:
        """(s, h) grams that one watt of IT emits in a step."""
        grams = [site.g_per_kwh * site.pue * self.length_s / J_PER_KWH for site in self.sites]
        return np.array(grams, dtype=np.float64)

    def place(self, job: ClusterJob) -> int | None:
        """Return the index of the site that a job begins from without moving; None: any."""
        if job.current is None:
            return None if job.site is None else self.site_index[job.site]
        return self.site_index[self.pools[self.pool_index[job.rows[job.current].pool]].site]

    def window(self, job: ClusterJob) -> tuple[int, int]:
        """Return the first step in which a job may run, and the one after the last, both of whole steps."""
        first = int(np.searchsorted(self.edges_s, job.release_s, side="left"))
        return first, max(first, int(np.searchsorted(self.edges_s, job.deadline_s, side="right")) - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the problem in plain JSON types."""
        return {
            "edges_s": _numbers(self.edges_s),
            "sites": [{key: _numbers(value) for key, value in vars(site).items()} for site in self.sites],
            "pools": [{key: _numbers(value) for key, value in vars(pool).items()} for pool in self.pools],
            "jobs": [{key: _plain(value) for key, value in asdict(job).items()} for job in self.jobs],
            "budget_g": _plain(self.budget_g),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Problem":
        """Return what :meth:`to_dict` wrote."""
        jobs = []
        for job in data["jobs"]:
            held_s = math.inf if job["held_s"] is None else job["held_s"]
            jobs.append(ClusterJob(**{**job, "held_s": held_s, "rows": tuple(Row(**row) for row in job["rows"])}))
        return cls(
            edges_s=_array(data["edges_s"]),
            sites=tuple(
                Site(name=one["name"], **{key: _array(one[key]) for key in ("g_per_kwh", "power_cap_w", "pue")})
                for one in data["sites"]
            ),
            pools=tuple(Pool(**{**one, "nodes": _array(one["nodes"])}) for one in data["pools"]),
            jobs=tuple(jobs),
            budget_g=math.inf if data["budget_g"] is None else data["budget_g"],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Prices:
    """What a unit of each scarce thing is worth, in grams: the dual."""

    nodes: Array
    """(p, h) of one node for a step."""
    watts: Array
    """(s, h) of one watt of IT for a step."""
    tokens: Array
    """(n,) of one token of each job: its water level."""

    @classmethod
    def zero(cls, problem: Problem) -> "Prices":
        """Return prices at which nothing is scarce."""
        h = problem.steps
        return cls(
            nodes=np.zeros((len(problem.pools), h)),
            watts=np.zeros((len(problem.sites), h)),
            tokens=np.zeros(len(problem.jobs)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the prices in plain JSON types, as decimals; those of nodes and watts where they are not 0."""
        tokens = [_decimal(price) for price in self.tokens.tolist()]
        return {"nodes": _sparse(self.nodes), "watts": _sparse(self.watts), "tokens": tokens}

    @classmethod
    def from_dict(cls, problem: Problem, data: Mapping[str, Any]) -> "Prices":
        """Return what :meth:`to_dict` wrote.

        Args:
            problem: What the prices are of.
            data: What was written.
        """
        prices = cls.zero(problem)
        for to, given in ((prices.nodes, data["nodes"]), (prices.watts, data["watts"])):
            for i, t, price in given:
                to[i, t] = float(price)
        return replace(prices, tokens=np.array([float(price) for price in data["tokens"]], dtype=np.float64))

    def carried(self, old: Problem, new: Problem) -> "Prices":
        """Return the prices for another problem, by the names of pools, sites and jobs and by time: a warm start.

        Args:
            old: Problem that these prices are of.
            new: Problem after an event: an arrival, an end, a failure, a new forecast. What is new in it costs nothing.
        """
        middle_s = (new.edges_s[1:] + new.edges_s[:-1]) / 2
        at = np.searchsorted(old.edges_s, middle_s, side="right") - 1
        known = (at >= 0) & (at < old.steps)
        at = np.clip(at, 0, old.steps - 1)
        share = np.where(known, new.length_s / old.length_s[at], 0.0)
        found = self.zero(new)
        for to, here, names, there in (
            (found.nodes, self.nodes, new.pool_index, old.pool_index),
            (found.watts, self.watts, new.site_index, old.site_index),
        ):
            for name, i in names.items():
                if name in there:
                    to[i] = here[there[name]][at] * share
        before = {job.name: price for job, price in zip(old.jobs, self.tokens.tolist(), strict=True)}
        return replace(found, tokens=np.array([before.get(job.name, 0.0) for job in new.jobs], dtype=np.float64))


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Rows of all jobs by step, and how far from the best possible they are at most."""

    problem: Problem
    rows: Rows
    """(n, h) row of each job in each step; OFF: none. A job ends when its tokens are done, within its last step."""
    prices: Prices
    bound_g: float
    """No plan that meets the deadlines that this one meets emits less."""
    grams: float
    """Emitted by the jobs that meet their deadlines."""
    late_g: float = 0.0
    """Emitted by those that do not."""
    missed: tuple[str, ...] = ()
    """Names of jobs that miss their deadlines."""
    excuse: tuple[float, float, Prices] | None = None
    """What weight of deadlines every plan misses at least, the worth of a gram in it, and the prices that prove that;
    None where nothing is missed."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """How the plan was found: seconds, evaluations."""

    @property
    def gap(self) -> float:
        """By what share of the bound the plan emits more; 0 where there is nothing to emit."""
        return max(0.0, self.grams / self.bound_g - 1.0) if self.bound_g > 0 else (math.inf if self.grams > 0 else 0.0)

    def row(self, job: str, t_s: float) -> Row | None:
        """Return what a job does at a time.

        Args:
            job: Name of the job.
            t_s: Time (s since the epoch, UTC), within the plan.
        """
        index = next(i for i, one in enumerate(self.problem.jobs) if one.name == job)
        step = int(np.searchsorted(self.problem.edges_s, t_s, side="right")) - 1
        row = int(self.rows[index, step]) if 0 <= step < self.problem.steps else OFF
        return None if row == OFF else self.problem.jobs[index].rows[row]

    def carried(self, new: Problem) -> Rows:
        """Return (n, h) rows for another problem, by the names of jobs and by time, within their windows.

        Args:
            new: Problem after an event. A job that is new in it, or whose rows are others, has none.
        """
        old, middle_s = self.problem, (new.edges_s[1:] + new.edges_s[:-1]) / 2
        at = np.searchsorted(old.edges_s, middle_s, side="right") - 1
        known, found = (at >= 0) & (at < old.steps), np.full((len(new.jobs), new.steps), OFF, np.int64)
        for i, job in enumerate(new.jobs):
            j, (first, end) = old.job_index.get(job.name), new.window(job)
            if j is not None and old.jobs[j].rows == job.rows:
                found[i, first:end] = np.where(known, self.rows[j, np.clip(at, 0, old.steps - 1)], OFF)[first:end]
        return found

    def used_nodes(self) -> Array:
        """Return (p, h) nodes in use."""
        return self._used()[0]

    def used_w(self) -> Array:
        """Return (s, h) watts of IT in use."""
        return self._used()[1]

    def _used(self) -> tuple[Array, Array]:
        problem = self.problem
        nodes, watts = np.zeros_like(problem.nodes), np.zeros_like(problem.cap_w)
        for job, rows in zip(problem.jobs, self.rows, strict=True):
            for i, row in enumerate(job.rows):
                at = rows == i
                pool = problem.pool_index[row.pool]
                nodes[pool, at] += row.nodes
                watts[problem.site_index[problem.pools[pool].site], at] += row.power_w
        return nodes, watts

    def runs(self, index: int) -> Iterator[tuple[int, int, int]]:
        """Yield the stays of a job in a row: first step, the one after the last, row.

        Args:
            index: Index of the job.
        """
        rows = self.rows[index]
        cuts = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), len(rows)]
        for a, b in pairwise(cuts):
            if rows[a] != OFF:
                yield a, b, int(rows[a])

    def to_dict(self) -> dict[str, Any]:
        """Return the plan and what it rests on in plain JSON types, which ``greentrain.policy.check_plan`` reads."""
        document = {
            "kind": KIND,
            "format": FORMAT,
            "problem": self.problem.to_dict(),
            "jobs": [[list(run) for run in self.runs(i)] for i in range(len(self.problem.jobs))],
            "missed": list(self.missed),
            "grams": self.grams,
            "late_g": self.late_g,
            "prices": self.prices.to_dict(),
            "bound_g": _decimal(self.bound_g),
        }
        if self.excuse is not None:
            least, gram, prices = self.excuse
            document["misses"] = {"least": _decimal(least), "gram": _decimal(gram), **prices.to_dict()}
        return {**document, "sha256": digest(document)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        """Return what :meth:`to_dict` wrote."""
        problem = Problem.from_dict(data["problem"])
        rows = np.full((len(problem.jobs), problem.steps), OFF, dtype=np.int64)
        for i, runs in enumerate(data["jobs"]):
            for a, b, row in runs:
                rows[i, a:b] = row
        why = data.get("misses")
        return cls(
            problem=problem,
            rows=rows,
            prices=Prices.from_dict(problem, data["prices"]),
            excuse=why and (float(why["least"]), float(why["gram"]), Prices.from_dict(problem, why)),
            bound_g=float(data["bound_g"]),
            grams=data["grams"],
            late_g=data["late_g"],
            missed=tuple(data["missed"]),
        )


def digest(document: Mapping[str, Any]) -> str:
    """Return SHA-256 of a document in plain JSON types, in hex: keys sorted, no spaces."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _check_series(what: str, values: Array, h: int, least: float, *, finite: bool) -> None:
    if values.shape != (h,):
        raise ConfigError(f"{what} has the shape {values.shape}; a plan of {h} steps needs ({h},)")
    if np.isnan(values).any() or (values < least).any() or (finite and np.isinf(values).any()):
        at = int(np.argmax(np.isnan(values) | (values < least) | np.isinf(values)))
        raise ConfigError(f"{what} is {values[at]:g} in step {at}; it must be {least:g} or more and known")


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: None for what is not limited."""
    return None if isinstance(value, float) and math.isinf(value) else value


def _numbers(value: Any) -> Any:
    return [_plain(one) for one in value.tolist()] if isinstance(value, np.ndarray) else value


def _array(values: Any) -> Array:
    return np.array([math.inf if value is None else value for value in values], dtype=np.float64)


def _decimal(value: float) -> str:
    """Return a number as a decimal: what the checker reads is exactly what stands there."""
    return f"{value:.9e}"


def _sparse(prices: Array) -> list[list[Any]]:
    return [[int(i), int(t), _decimal(float(prices[i, t]))] for i, t in np.argwhere(prices > 0)]
