"""fleet.yaml: what a fleet is (sites, pools, caps, engine) and what its jobs say of themselves.

A job is of the fleet where it says so to its engine, in one text without spaces: ``sbatch --comment
greentrain:hours=6,deadline_h=24,nodes=1-4,restart=yes``, the annotation ``greentrain.fleet/job`` of a Job of
Kubernetes, the metadata ``greentrain`` of a job of Ray; or where ``jobs`` of this file names it.
"""

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

from greentrain.config.schema import CarbonConfig
from greentrain.errors import ConfigError
from greentrain.policy.action_sources import REFERENCE, read_actions
from greentrain.policy.cluster.problem import LINK_GBIT_S, LINK_KWH_PER_GB
from greentrain.types import S_PER_DAY, S_PER_HOUR
from greentrain.utils.validation import Bound, Choice, NotEmpty, build, check_fields, folder_name, load, moment, shown

TAG: Final = "greentrain:"
ENGINES: Final = ("slurm", "kueue", "ray")
_CLOCK: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """What a job says of itself: in fleet.yaml, or to its engine."""

    name: str = ""
    """Name or id in the engine, in ``jobs``; a tag need not say it."""
    hours: Annotated[float, Bound(1e-4, 1e5)] | None = None
    """How long it takes on the nodes that it asked for, in its fastest row."""
    tokens: Annotated[float, Bound(1.0, 1e18)] | None = None
    """All that it trains, in place of ``hours``."""
    deadline: Annotated[str, moment] | None = None
    """ISO 8601 with offset."""
    deadline_h: Annotated[float, Bound(0.0, 1e5)] | None = None
    """After its submission, in place of ``deadline`` (h). With neither: twice its shortest time, and an hour."""
    nodes: str = ""
    """Widths that it may run in, as in 1-4; only the number that it asked for by default."""
    pools: str = ""
    """Pools that it may run in, joined by ``+``; that of its partition by default."""
    actions: str | None = None
    """Its table of actions: a file, or a run folder; that of its run, of its pool or of the fleet by default."""
    run: str | None = None
    """Its run folder, where GreenTrain trains in it: its progress, its power and its table come from there, and power
    events go there."""
    restart: bool = False
    """Whether it writes checkpoints and may be ended and brought back. One that runs is left alone otherwise."""
    priority: Annotated[float, Bound(0.001, 1e6)] = 1.0
    """Weight of its miss."""
    switch_s: Annotated[float, Bound(0.0, 1e5)] = 300.0
    """Work that a start costs (s)."""
    min_run_s: Annotated[float, Bound(0.0, 1e6)] = 1800.0
    """Shortest stay on the same nodes (s)."""
    checkpoint_gb: Annotated[float, Bound(0.0, 1e6)] | None = None
    """What has to be sent where it goes on at another site; by default 16 GB for each rank of its widest row."""

    def __post_init__(self) -> None:
        check_fields(self, "job")
        if self.deadline is not None and self.deadline_h is not None:
            raise ConfigError("job.deadline and job.deadline_h both say when the job has to be ready: drop one")
        if self.hours is not None and self.tokens is not None:
            raise ConfigError("job.hours and job.tokens both say how much is to be done: drop one")
        if self.hours is None and self.tokens is None:
            raise ConfigError("job.hours and job.tokens are missing: say how long it takes, or how much it trains")
        _ = self.widths

    @property
    def widths(self) -> tuple[int, int] | None:
        """Fewest and most nodes; None: as many as it asked for."""
        if not self.nodes:
            return None
        low, _, high = self.nodes.partition("-")
        if not (low.isdigit() and (high or low).isdigit() and 1 <= int(low) <= int(high or low)):
            raise ConfigError(f"job.nodes is {shown(self.nodes)}; write a number of nodes, or a range such as 1-4")
        return int(low), int(high or low)

    @classmethod
    def of_tag(cls, text: str) -> "JobTerms | None":
        """Return the terms in what a job tells its engine; None where it is not of the fleet.

        Raises:
            ConfigError: A key is unknown, or a value wrong.
        """
        if not text.startswith(TAG):
            return None
        pairs = [word.partition("=") for word in text.removeprefix(TAG).split(",") if word]
        kinds = {field.name: str(field.type) for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, sign, value in pairs:
            number = "float" in kinds.get(key, "")
            try:
                values[key] = float(value) if number and sign else value
            except ValueError:
                values[key] = value  # which the check names
            values[key] = {"true": True, "false": False}.get(value, values[key])
        return build(cls, values, where="job.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapStep:
    """A cap from a time on, until the next one."""

    time: str
    """Of each day in UTC, as ``"17:00"``, or one moment: ISO 8601 with offset."""
    power_w: Annotated[float, Bound(0.0, 1e12)]
    """Most that the facility may draw at its meter (W)."""

    def __post_init__(self) -> None:
        check_fields(self, "power_caps")
        _ = self.at_s

    @property
    def is_daily(self) -> bool:
        """Whether it is of each day."""
        return _CLOCK.fullmatch(self.time) is not None

    @property
    def at_s(self) -> float:
        """Seconds after midnight, or since the epoch (UTC)."""
        if clock := _CLOCK.fullmatch(self.time):
            return int(clock[1]) * S_PER_HOUR + int(clock[2]) * 60.0
        if "T" not in self.time:
            raise ConfigError(
                f"power_caps.time is {shown(self.time)}; write a time of each day (UTC) from '00:00' to '23:59', in"
                " quotes, or a moment such as 2026-06-01T00:00Z"
            )
        return moment("power_caps.time", self.time).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSpec:
    """A grid connection."""

    name: Annotated[str, folder_name]
    carbon: CarbonConfig
    """As the section ``carbon`` of green.yaml: typical, trace, constant or live; its ``pue`` counts."""
    power_cap_w: Annotated[float, Bound(0.0, 1e12)] | None = None
    """Most that the facility may ever draw at its meter (W); None: no cap."""
    power_caps: str | tuple[CapStep, ...] = ()
    """Caps that change, in the order of their times: a list of time and power_w, or a CSV file with these columns. All
    are of each day, or all are moments; before the first moment ``power_cap_w`` alone holds, which none passes."""

    def __post_init__(self) -> None:
        check_fields(self, f"site {self.name!r}")
        steps = self.steps
        if len({step.is_daily for step in steps}) > 1:
            raise ConfigError(
                f"site {self.name!r}: power_caps has times of each day and moments: write all of one kind"
            )
        for a, b in pairwise(steps):
            if a.at_s >= b.at_s:
                raise ConfigError(
                    f"site {self.name!r}: power_caps has {b.time!r} after {a.time!r}; each time must be later than the"
                    " one before: sort them"
                )

    @property
    def steps(self) -> tuple[CapStep, ...]:
        """The caps; those of a file are there once the fleet is read."""
        return () if isinstance(self.power_caps, str) else self.power_caps

    def cap_w(self, t_s: float) -> float:
        """Return the cap at a time (s since the epoch, UTC), in W; inf: none."""
        most_w = math.inf if self.power_cap_w is None else self.power_cap_w
        daily = bool(self.steps) and self.steps[0].is_daily
        at_s = t_s % S_PER_DAY if daily else t_s
        begun = [step.power_w for step in self.steps if step.at_s <= at_s]
        last = begun[-1:] or [step.power_w for step in self.steps[-1:] if daily]  # since the evening before
        return min([most_w, *last])

    def changes_s(self, from_s: float, until_s: float) -> list[float]:
        """Return when the cap changes within a time (s since the epoch, UTC), both ends left out."""
        days = range(math.floor(from_s / S_PER_DAY), math.ceil(until_s / S_PER_DAY)) if self.steps else ()
        found = {day * S_PER_DAY + step.at_s for day in days for step in self.steps if step.is_daily}
        found |= {step.at_s for step in self.steps if not step.is_daily}
        return sorted(t_s for t_s in found if from_s < t_s < until_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """Nodes of one kind."""

    name: Annotated[str, folder_name]
    site: str
    nodes: Annotated[int, Bound(1, 1e6)]
    partition: str = ""
    """What the engine calls it: a partition of Slurm, a label ``greentrain.fleet/pool`` in Kubernetes; its name by
    default."""
    device: str = ""
    """For people."""
    ranks_per_node: Annotated[int, Bound(1, 1024)] = 1
    """Ranks of the table of actions that fill a node."""
    idle_w: Annotated[float, Bound(0.0, 1e6)] = 0.0
    """Power of a node that is on and idle (W), which the cap carries whatever runs."""
    actions: str | None = None
    """Table of actions of jobs in this pool that have none; that of the fleet by default."""

    def __post_init__(self) -> None:
        check_fields(self, f"pool {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The scheduler."""

    kind: Annotated[str, Choice(ENGINES)] = "slurm"
    namespace: str = "default"
    """Of the Jobs, with kueue."""
    address: str = "http://127.0.0.1:8265"
    """Of Ray's dashboard, with ray."""

    def __post_init__(self) -> None:
        check_fields(self, "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A fleet."""

    name: Annotated[str, folder_name]
    sites: Annotated[tuple[SiteSpec, ...], NotEmpty("a fleet needs a site with its grid")]
    pools: Annotated[tuple[PoolSpec, ...], NotEmpty("a fleet needs a pool of nodes")]
    engine: EngineSpec = EngineSpec()
    state: str = "fleet.db"
    """File of the controller's state, or ``postgresql://...``; beside this file where it has no folder."""
    actions: str = REFERENCE
    """Table of actions of jobs that have none: a YAML file, a run folder, or ``reference``."""
    budget_kg: Annotated[float, Bound(0.0, 1e9)] | None = None
    """What its jobs may emit from its first start on (kg); None: as much as they do."""
    link_gbit_s: Annotated[float, Bound(1e-3, 1e6)] = LINK_GBIT_S
    """Of a checkpoint that moves to another site: assumed."""
    link_kwh_per_gb: Annotated[float, Bound(0.0, 10.0)] = LINK_KWH_PER_GB
    """Energy of such a move, half of it at either site."""
    events: str = "events"
    """Folder of demand response: files as of ``greentrain event power``, and ``site`` in them, else for all sites."""
    every_s: Annotated[float, Bound(0.05, 3600.0)] = 20.0
    """Time between two looks at the engine (s)."""
    jobs: tuple[JobTerms, ...] = ()
    replay_start: Annotated[str, moment] | None = None
    """Time of the fleet at its first start, to replay a recorded grid (ISO 8601 with offset); None: now."""
    speed: Annotated[float, Bound(1.0, 1e5)] = 1.0
    """Seconds of the fleet's time that pass in a second, for a replay; deadlines and hours of jobs are in its time."""

    def __post_init__(self) -> None:
        check_fields(self, "")
        for what, some in (("sites", self.sites), ("pools", self.pools)):
            names = [one.name for one in some]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ConfigError(f"{what}: two are called {twice!r}; each needs a name of its own")
        sites = [site.name for site in self.sites]
        for pool in self.pools:
            if pool.site not in sites:
                raise ConfigError(f"pool {pool.name!r}: site is {shown(pool.site)}; known: {', '.join(sites)}")
        for site in self.sites:
            if site.carbon.replay_start is not None or site.carbon.speed != 1.0:
                raise ConfigError(
                    f"site {site.name!r}: carbon.replay_start and carbon.speed are keys of the fleet: all sites and"
                    " jobs have one time; write them at the top of the file"
                )
            idle_w, named = self.idle_w(site), [("power_cap_w", site.power_cap_w)]
            named += [(f"power_caps at {step.time}", step.power_w) for step in site.steps]
            for what, cap_w in named:
                if cap_w is not None and idle_w >= cap_w:
                    raise ConfigError(
                        f"site {site.name!r}: {what} is {cap_w:g}, and its idle nodes draw {idle_w:g} W at the"
                        " meter: no job could run; raise the cap or lower pools.idle_w"
                    )
        for terms in self.jobs:
            if not terms.name:
                raise ConfigError("jobs: one has no name; say what the engine calls it")
            self.pools_of(terms, self.pools[0].name)

    @classmethod
    def read(cls, path: Path) -> "FleetSpec":
        """Return the fleet of a file; paths in it are relative to it.

        Raises:
            ConfigError: Names the file, key, value, bound and remedy.
        """
        spec = load(cls, path, "specification of a fleet", "a mapping with name, sites and pools")
        here = path.absolute().parent

        def near(text: str) -> str:
            return text if "://" in text or text == REFERENCE else str(here / text)

        try:
            spec = replace(
                spec,
                state=near(spec.state),
                events=near(spec.events),
                actions=near(spec.actions),
                sites=tuple(
                    replace(
                        site,
                        power_caps=_caps_in(Path(near(site.power_caps)))
                        if isinstance(site.power_caps, str)
                        else site.steps,
                        carbon=site.carbon
                        if site.carbon.trace_csv is None
                        else replace(site.carbon, trace_csv=near(site.carbon.trace_csv)),
                    )
                    for site in spec.sites
                ),
                pools=tuple(
                    pool if pool.actions is None else replace(pool, actions=near(pool.actions)) for pool in spec.pools
                ),
                jobs=tuple(
                    replace(
                        job,
                        actions=None if job.actions is None else near(job.actions),
                        run=None if job.run is None else near(job.run),
                    )
                    for job in spec.jobs
                ),
            )
            for where in {spec.actions, *(pool.actions or spec.actions for pool in spec.pools)}:
                read_actions(where)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        return spec

    def idle_w(self, site: SiteSpec) -> float:
        """Return what the nodes of a site draw at the meter of the facility with no job (W)."""
        return sum(pool.nodes * pool.idle_w for pool in self.pools if pool.site == site.name) * site.carbon.pue

    def pools_of(self, terms: JobTerms, partition: str) -> list[PoolSpec]:
        """Return the pools that a job may run in.

        Args:
            terms: Of the job.
            partition: In which the engine has it.

        Raises:
            ConfigError: There is no such pool.
        """
        wanted = terms.pools.split("+") if terms.pools else [partition]
        found = [pool for pool in self.pools if {pool.name, pool.partition or pool.name} & set(wanted)]
        if not found:
            names = ", ".join(pool.name for pool in self.pools)
            raise ConfigError(f"job {terms.name!r}: its pools are {'+'.join(wanted)!r}; known: {names}")
        return found


def _caps_in(path: Path) -> tuple[CapStep, ...]:
    """Return the caps of a CSV file with the columns ``time`` and ``power_w``."""
    try:
        rows: Sequence[dict[str | None, Any]] = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"power_caps is {shown(str(path))}, which cannot be read: {error}") from error
    found = []
    for number, row in enumerate(rows, 2):
        try:
            if row.keys() != {"time", "power_w"}:
                raise ConfigError(f"it has {', '.join(map(str, row))}; its columns are time,power_w")
            found.append(CapStep(time=str(row["time"]).strip(), power_w=float(row["power_w"] or "")))
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"power_caps is {shown(str(path))}, and in line {number} {error}") from error
    return tuple(found)


def deadline_s(terms: JobTerms, submit_s: float, shortest_s: float) -> float:
    """Return the deadline of a job (s since the epoch, UTC, in the fleet's time).

    Args:
        terms: Of the job.
        submit_s: When it was submitted (s since the epoch, UTC).
        shortest_s: What it takes at least (s).
    """
    if terms.deadline is not None:
        return datetime.fromisoformat(terms.deadline).timestamp()
    if terms.deadline_h is not None:
        return submit_s + terms.deadline_h * S_PER_HOUR
    return submit_s + 2 * shortest_s + S_PER_HOUR
