"""The controller of a fleet: looks at the engine, plans anew where something happened, carries out the differences.

::

    look at the engine --an arrival, an end, a failure, a cap, a new hour--> plan --differences--> note, do, conclude

What it does depends on what the engine says now, never on what it did before: one that was killed goes on where it was,
and does nothing twice. While nobody controls, jobs go on as they are. What it cannot note it does not do.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from greentrain.carbon.forecast import trusted
from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import CarbonConfig
from greentrain.control.demand import FOLDER, EventFiles, PowerEvent
from greentrain.control.fleet.engines import Engine, EngineError, EngineView
from greentrain.control.fleet.planning import Grids, Known, SiteEvent, known, pool_of, problem, run_grams
from greentrain.control.fleet.spec import FleetSpec, JobTerms
from greentrain.errors import CarbonSignalError, ConfigError, GreenTrainError
from greentrain.ledger.fleet_state import LEASE_S, FleetHeldError, FleetJob, FleetSample, FleetState, FleetStay
from greentrain.policy.cluster.explain import why
from greentrain.policy.cluster.planner import solve
from greentrain.policy.cluster.problem import OFF, Array, Plan, Row
from greentrain.types import J_PER_KWH, S_PER_HOUR, Provenance, iso
from greentrain.utils.files import write_json
from greentrain.utils.yaml_file import read

HOURS_AHEAD: Final = 15 * 24
POLL_S: Final = 1.0
"""How often demand response is looked for (s), as jobs do."""
CAP_FILE: Final = "fleet.json"
"""In the folder ``events`` of a run: its power event from the fleet."""
MISSED_LOOKS: Final = 5
"""Looks (of a minute at least) that nobody took: then what runs have booked counts, not what they draw now."""
RETRY_TURNS: Final = 5
"""Looks after which what was refused is tried again."""
_OWN: Final = ("hold", "requeue")
_ENDED: Final = ("done", "failed", "cancelled")


class _Told(NamedTuple):
    """What a run was told last."""

    share: float
    """Of its power limits."""
    until_s: float
    """(s since the epoch, of this machine)."""
    gear: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One difference between what is and what the plan says."""

    job: Known
    verb: str
    what: str
    do: Callable[[], None]
    reason: str = ""
    """Empty: what the plan says of the job."""


class FleetController:
    """Controls one fleet; what is asked of it goes through one thread.

    Args:
        spec: The fleet.
        engine: Its scheduler.
        state: Where it notes what it does; taken with :meth:`start`.
        dry_run: Whether it only notes, and tells, what it would do.
        tell: Shows a line to people.
        clock: Returns the time (s since the epoch).
    """

    def __init__(
        self,
        spec: FleetSpec,
        engine: Engine,
        state: FleetState,
        *,
        dry_run: bool = False,
        tell: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spec, self._engine, self._state, self._dry, self._tell, self._clock = (
            spec, engine, state, dry_run, tell, clock
        )  # fmt: skip
        self._grids = Grids(spec)
        self._time = GridTime(unix_s=0.0, grid_s=0.0)
        self._jobs: dict[str, FleetJob] = {}
        self._known: list[Known] = []
        self._rows: dict[str, Row] = {}
        self.plan: Plan | None = None
        """The plan of now; None: there was nothing to plan yet."""
        self.replan_s: float | None = None
        """What it took (s)."""
        self._seen: tuple[Any, ...] = ()
        self._hours: list[Array] = []
        self._tried: dict[tuple[str, str, str], int] = {}
        self._refused: set[str] = set()
        self._ended: dict[str, tuple[str, JobTerms]] = {}
        self._unheard: dict[str, str] = {}
        self._turn = 0
        self._sampled_s: float | None = None
        self._files = EventFiles([Path(spec.events)], self._read)
        self._asked: frozenset[Any] = frozenset()

    def start(self, lease_s: float = LEASE_S) -> None:
        """Take the fleet, and go on where the last controller was.

        Args:
            lease_s: How long its place is kept when it says nothing (s).

        Raises:
            FleetHeldError: Another controller has it.
            FleetStateError: The state cannot be written.
        """
        begun_s = self._state.take(self._spec.name, dry_run=self._dry, lease_s=lease_s)
        carbon = CarbonConfig(signal="typical", replay_start=self._spec.replay_start, speed=self._spec.speed)
        self._time = GridTime.of(carbon, begun_s)
        self._jobs = {job.name: job for job in self._state.now().jobs}
        self._sampled_s = max((job.seen_s for job in self._jobs.values() if job.seen_s), default=None)
        for action in self._state.unknown():
            self._state.conclude(action.seq, "unknown: the controller was cut off; the engine was asked anew")

    def close(self) -> None:
        """Give the fleet back; its jobs go on as they are."""
        self._state.release()
        self._grids.close()

    def run(self, ended: threading.Event) -> int:
        """Control until an event is set.

        Returns:
            0, or 1 where another controller has taken the fleet.
        """
        said = ""
        while not ended.is_set():
            try:
                self.turn()
                said = ""
            except FleetHeldError as error:
                self._tell(f"{error}")
                return 1
            except Exception as error:  # the jobs go on as they are, and the next look may do better
                if said != (
                    said := f"nothing was changed: {error if isinstance(error, GreenTrainError) else repr(error)}"
                ):
                    self._tell(said)
            end_s = time.monotonic() + self._spec.every_s
            while (left_s := end_s - time.monotonic()) > 0 and not ended.wait(min(POLL_S, left_s)):
                if self._events(self._now_s())[1]:
                    break
        return 0

    def turn(self) -> None:
        """Look, plan where something happened, and carry out the differences.

        Raises:
            FleetHeldError: Another controller has taken the fleet.
            FleetStateError: The state cannot be written; nothing was done that is not noted.
        """
        self._turn += 1
        now_s = self._now_s()
        events, new = self._events(now_s)
        if new:  # before anything else: a plan may take seconds, and the engine may not answer
            self._asked = frozenset(e for e in events if e.event.start_s <= now_s)
            self._rows = self._rows_of(self._known)  # the last look may have told other caps
            self._do([step for job in self._known for step in self._caps(job, events, now_s, at_once=True)], now_s)
        try:
            view = self._engine.look()
        except EngineError as error:
            self._state.write(note=f"the engine does not answer: {error}")
            raise
        notes, view = self._recognize(view, now_s)
        try:
            reason = self._happened(view, events, now_s)
            if reason:
                self._replan(view, events, now_s)
        except CarbonSignalError as error:
            reason, notes = "", [*notes, str(error)]
        jobs, before = [self._noted(job, now_s) for job in self._known], self._jobs
        self._jobs = {job.name: job for job in jobs}
        self._state.write(
            jobs=jobs,
            plan=(reason, self.plan.to_dict()) if reason and self.plan is not None else None,
            samples=self._samples(now_s, events, before),
            stays=self._stays(before, now_s),
            note="; ".join(notes),
        )
        self._do(self._differences(events, now_s), now_s)

    # -- what is -----------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return self._time.at(self._clock())

    def _recognize(self, view: EngineView, now_s: float) -> tuple[list[str], EngineView]:
        """Note the jobs of the fleet; return what is wrong with those that are left alone, and that they have nodes."""
        declared = {job.name: job for job in self._spec.jobs}
        found, notes, taken = [], [], dict(view.taken)
        self._ended = {}
        for job in view.jobs:
            name = job.id if job.name in ("", job.id) else f"{job.name}-{job.id}"
            try:
                terms = declared.get(job.name) or declared.get(job.id) or JobTerms.of_tag(job.tag)
                if terms is None:
                    continue
                if job.state in _ENDED:
                    self._ended[name] = job.state, terms
                    continue
                state = job.state
                if state == "stopped":  # by us, or by its user, whose word counts
                    last = self._state.actions(job=name, most=1)
                    if not (last and last[0].verb in _OWN and not last[0].dry_run):
                        continue
                    state = "held"
                start_s = None if job.start_s is None else self._time.at(job.start_s)
                job = replace(job, state=state, submit_s=self._time.at(job.submit_s), start_s=start_s)
                one = known(self._spec, job, terms, name, self._jobs.get(name), now_s)
                if state == "running" and self._row_of(one) is None:
                    raise ConfigError(f"it runs on {job.nodes} nodes of {job.partition!r}, of which it has no row")
            except ConfigError as error:
                notes.append(f"{name} is left alone: {error}")
                if job.state in ("running", "ending"):
                    taken[job.partition] = taken.get(job.partition, 0) + job.nodes
                continue
            found.append(one)
        self._known, self._rows = found, self._rows_of(found)
        return notes, replace(view, taken=taken)

    def _rows_of(self, jobs: Sequence[Known]) -> dict[str, Row]:
        return {job.name: row for job in jobs if (row := self._row_of(job)) is not None}

    def _row_of(self, job: Known) -> Row | None:
        """Return the row that a job runs in, as far as anybody can tell; None: it does not run."""
        if job.engine.state != "running":
            return None
        pool = pool_of(self._spec, job.engine) or job.rows[0].pool
        told = _told(job)
        share, gear = 1.0 if told is None else told.share, job.gear or (None if told is None else told.gear)
        tried = (job.row(job.engine.nodes, pool, *some) for some in ((share, gear), (share,), (None, gear), ()))
        index = next((one for one in tried if one is not None), None)
        return None if index is None else job.rows[index]

    def _noted(self, job: Known, now_s: float) -> FleetJob:
        before, row = self._jobs.get(job.name), self._rows.get(job.name)
        wants = why(self.plan, job.name, now_s) if self.plan is not None and self._is_planned(job) else None
        action = None if row is None else job.actions[job.rows.index(row)]
        pool = pool_of(self._spec, job.engine) or ""
        waits = job.engine.state != "running" and wants is not None
        is_same = before is not None and (before.row, before.nodes, before.pool, before.state) == (
            "" if row is None else row.name, job.engine.nodes, pool, job.engine.state,
        )  # fmt: skip
        stay_s = now_s if before is not None and before.state == "running" else job.engine.start_s or now_s
        return FleetJob(
            name=job.name,
            state=job.engine.state,
            user=job.engine.user,
            waits_for=""
            if not waits or wants is None
            else ("nodes: the plan runs it now" if wants.row else wants.reason()),
            until_s=wants.starts_s if waits and wants is not None else None,
            since_s=before.since_s if before is not None and before.state == job.engine.state else now_s,
            stay_s=None if row is None else (before.stay_s if before is not None and is_same else stay_s),
            row="" if row is None else row.name,
            site=next((one.site for one in self._spec.pools if one.name == pool), ""),
            pool=pool,
            nodes=job.engine.nodes,
            gear="" if action is None else str(action.gear),
            cap=None if action is None or action.cap == 1.0 else action.cap,
            power_w=job.power_w if job.power_w is not None else (None if row is None else row.power_w),
            basis=_basis(job, row),
            tokens_left=job.tokens_left,
            tokens=job.tokens,
            tokens_per_s=0.0 if row is None else row.tokens_per_s,
            seen_s=now_s,
            release_s=job.engine.submit_s,
            deadline_s=job.deadline_s,
            late=wants is not None and wants.missed,
            engine_id=job.engine.id,
        )

    def _stays(self, before: Mapping[str, FleetJob], now_s: float) -> list[FleetStay]:
        """Return what jobs that ran before do no more."""
        found = []
        for name, was in before.items():
            job = self._jobs.get(name)
            if job is None or (was.stay_s is not None and job.stay_s != was.stay_s):
                end = "" if job is not None else self._ended[name][0] if name in self._ended else "gone"
                found.append(
                    FleetStay(
                        job=name, from_s=now_s if was.stay_s is None else was.stay_s, until_s=now_s, row=was.row,
                        nodes=was.nodes, pool=was.pool, user=was.user, end=end,
                    )
                )  # fmt: skip
        return found

    def _samples(self, now_s: float, events: Sequence[SiteEvent], before: Mapping[str, FleetJob]) -> list[FleetSample]:
        found = []
        passed_s = None if self._sampled_s is None else now_s - self._sampled_s
        self._sampled_s = now_s
        for i, site in enumerate(self._spec.sites):
            there = [(j, row) for j in self._known if (row := self._rows.get(j.name)) and self._site(row) == site.name]
            values = [j.power_w if j.power_w is not None else row.power_w for j, row in there]
            power_w = sum(values) * site.carbon.pue
            g_per_kwh = float(self._hours[i][0]) if self._hours else None
            grams, as_measured = None, False
            if passed_s is not None and g_per_kwh is not None:
                jobs = [(job, watts) for (job, _), watts in zip(there, values, strict=True)]
                grams, as_measured = self._grams(i, jobs, before, now_s, passed_s, g_per_kwh)
            measured = bool(there) and all(j.power_w is not None for j, _ in there)
            basis, of_grams = (Provenance.MEASURED if fine else Provenance.MODELLED for fine in (measured, as_measured))
            cap_w = min([site.cap_w(now_s), *self._caps_now(site.name, events, now_s)])
            found.append(
                FleetSample(
                    t_s=now_s, site=site.name, power_w=power_w, basis=basis.value, g_per_kwh=g_per_kwh, grams=grams,
                    grams_basis=of_grams.value,
                    cap_w=None if math.isinf(cap_w) else max(0.0, cap_w - self._spec.idle_w(site)),
                )
            )  # fmt: skip
        return found

    def _grams(
        self,
        i: int,
        jobs: Sequence[tuple[Known, float]],
        before: Mapping[str, FleetJob],
        now_s: float,
        passed_s: float,
        g_per_kwh: float,
    ) -> tuple[float, bool]:
        """Return what jobs emitted at a site since the last look (g), those that ended included; and if measured."""
        site, parts = self._spec.sites[i], list[tuple[float, bool]]()
        alone = passed_s > MISSED_LOOKS * max(60.0, self._spec.every_s) * self._spec.speed
        if alone:
            g_per_kwh = self._grids.mean(i, now_s - passed_s, now_s) or g_per_kwh
        ran = [
            (one.terms.run, watts, one.power_w is not None, now_s - (one.engine.start_s or now_s),
             one.engine.nodes, pool_of(self._spec, one.engine))
            for one, watts in jobs
        ]  # fmt: skip
        for name, was in before.items():
            if name not in self._jobs and was.state == "running" and was.site == site.name and was.power_w is not None:
                run = self._ended[name][1].run if name in self._ended else None
                left_s = (was.tokens_left or 0.0) / was.tokens_per_s if was.tokens_per_s else passed_s
                ran.append((run, was.power_w, was.basis == Provenance.MEASURED, left_s, was.nodes, was.pool))
        for run, watts, fine, ran_s, nodes, pool in ran:
            booked = None
            if alone and run is not None and self._spec.speed == 1.0:
                idle_w = next((nodes * one.idle_w for one in self._spec.pools if one.name == pool), 0.0)
                booked = run_grams(Path(run), now_s - passed_s, now_s, idle_w)
            energy_j = watts * min(passed_s, max(0.0, ran_s)) * site.carbon.pue
            parts.append(booked or (energy_j * g_per_kwh / J_PER_KWH, fine and not alone))
        return sum(grams for grams, _ in parts), bool(parts) and all(fine for _, fine in parts)

    def _site(self, row: Row) -> str:
        return next(pool.site for pool in self._spec.pools if pool.name == row.pool)

    # -- demand response ---------------------------------------------------------------------------------------

    def _events(self, now_s: float) -> tuple[list[SiteEvent], bool]:
        """Return the events that hold or will, and whether those that hold are others than before."""
        found = [one for one in self._files.events() if one.event.end_s > now_s]
        holds = frozenset(one for one in found if one.event.start_s <= now_s)
        return found, holds != self._asked

    def _read(self, path: Path, written_s: float) -> SiteEvent | None:
        try:
            data = dict(read(path, "power event") or {})
            site = data.pop("site", None)
            if site is not None and site not in (names := [one.name for one in self._spec.sites]):
                raise ConfigError(f"{path}: site is {site!r}; known: {', '.join(names)}")
            if "gear" in data:
                raise ConfigError(
                    f"{path}: gear is {data['gear']!r}, and a site has none: the plan tells each run its own"
                )
            return SiteEvent(event=PowerEvent.of(data, str(path), self._time.at(written_s)), site=site)
        except (ConfigError, TypeError, ValueError) as error:
            self._tell(f"a power event is left out: {error}")
            return None

    def _caps_now(self, site: str, events: Sequence[SiteEvent], now_s: float) -> list[float]:
        own = next(one.cap_w(now_s) for one in self._spec.sites if one.name == site)
        return [e.cap_w(own) for e in events if e.site in (None, site) and e.event.start_s <= now_s < e.event.end_s]

    def _caps(self, job: Known, events: Sequence[SiteEvent], now_s: float, *, at_once: bool) -> list[_Step]:
        """Return what has to be told to the run of a job, for it to keep to its share of power."""
        row = self._rows.get(job.name)
        if row is None or job.terms.run is None:
            return []
        share, until_s, gear = 1.0, now_s, None
        planned = self._planned(job, now_s)
        if planned is not None and planned[0] in job.rows:
            action = job.actions[job.rows.index(planned[0])]
            share, until_s = action.cap, planned[1]
            gear = str(action.gear) if job.run.obeys and len(job.run.gears) > 1 else None
        site = self._site(row)
        holding = [e for e in events if e.site in (None, site) and e.event.start_s <= now_s < e.event.end_s]
        running = [r for r in self._rows.values() if self._site(r) == site]
        there = next(one for one in self._spec.sites if one.name == site)
        full_w = sum(r.power_w for r in running) * there.carbon.pue + self._spec.idle_w(there)
        cap_w = min(self._caps_now(site, events, now_s), default=math.inf)
        if holding and (at_once or math.isinf(cap_w) or full_w > cap_w):
            asked = min(min(1.0, e.event.share(full_w)) for e in holding)
            if asked < share:
                share, until_s = asked, max(e.event.end_s for e in holding)
        cap_w = min(cap_w, there.cap_w(now_s))
        if planned is None and job.name in self._refused and full_w > cap_w:  # nobody could end it
            share, until_s = min(share, cap_w / full_w), max(until_s, (now_s // S_PER_HOUR + 1) * S_PER_HOUR)
        told = _told(job)
        real_end_s = self._time.real(until_s)
        reason = holding[0].event.reason or "a power event" if holding else "the plan of the fleet"
        if share >= 1.0 and gear is None:
            step = _Step(job=job, verb="cap", what="lifted", do=lambda: _lift(job), reason="no cap is needed any more")
            return [] if told is None else [step]
        if told is not None and abs(told.share - share) < 1e-6 and told.gear == gear and told.until_s >= real_end_s:
            return []
        # Longer than it holds, and renewed or lifted: a plan that is late lifts none.
        hours = max(0.01, (real_end_s - self._clock()) / S_PER_HOUR + 1.0)
        verb, limit = ("cap", f"{share:.0%}") if share < 1.0 else ("gear", None)
        what = f"to {' in '.join(word for word in (limit, gear) if word)} until {iso(until_s)}"
        if job.run.obeys is False:  # none of its rows has a cap, so that the plan has all its watts
            if self._unheard.get(job.name) == what:
                return []
            self._unheard[job.name] = what
            return [_Step(job=job, verb=verb, what=what, do=_nobody_obeys, reason=reason)]
        return [_Step(job=job, verb=verb, what=what, do=lambda: _tell(job, share, gear, hours, reason), reason=reason)]

    # -- what should be ----------------------------------------------------------------------------------------

    def _happened(self, view: EngineView, events: Sequence[SiteEvent], now_s: float) -> str:
        """Return why a new plan is needed; empty: the old one stands."""
        seen = (
            tuple((j.name, j.engine.state == "running" and j.engine.nodes, j.run.obeys) for j in self._known),
            (tuple(view.nodes_up.items()), tuple(view.taken.items())),
            frozenset(events),
            math.floor(now_s / S_PER_HOUR),
        )
        before, self._seen = self._seen, seen
        if not self._known:
            self.plan = None
            return ""
        if self.plan is None or not before:
            return "the first plan"
        words = ("a job came, went or changed", "nodes came or went", "demand response", "a new hour and its forecast")
        changed = [word for word, a, b in zip(words, before, seen, strict=True) if a != b]
        if not changed and any(self._planned(job, now_s) is None and self._never(job, now_s) for job in self._known):
            changed = ["a job has more left than was planned"]
        return ", ".join(changed)

    def _never(self, job: Known, now_s: float) -> bool:
        assert self.plan is not None
        found = why(self.plan, job.name, now_s)
        return found.starts_s is None and not found.row and not found.missed

    def _replan(self, view: EngineView, events: Sequence[SiteEvent], now_s: float) -> None:
        begun_s = time.monotonic()
        self._hours = self._grids.hours(now_s, HOURS_AHEAD)
        budget_g = math.inf if self._spec.budget_kg is None else self._spec.budget_kg * 1000
        left_g = max(0.0, budget_g - self._state.now().emitted_g)
        hours = trusted(np.array(self._hours), self._grids.trust)
        new = problem(self._spec, self._known, view, list(hours), events, now_s, left_g)
        self.plan = solve(new, self.plan)
        self.replan_s = time.monotonic() - begun_s

    def _is_planned(self, job: Known) -> bool:
        return self.plan is not None and job.name in self.plan.problem.job_index

    def _planned(self, job: Known, now_s: float) -> tuple[Row, float] | None:
        """Return the row of the plan for a job now, and until when it stays (s, fleet's time); None: it is off."""
        if self.plan is None or not self._is_planned(job):
            return None
        edges_s, index = self.plan.problem.edges_s, self.plan.problem.job_index[job.name]
        step = next((i for i in range(self.plan.problem.steps) if edges_s[i] <= now_s < edges_s[i + 1]), None)
        if step is None or (row := int(self.plan.rows[index, step])) == OFF:
            return None
        end = next((i for i in range(step, self.plan.problem.steps) if self.plan.rows[index, i] != row), None)
        return self.plan.problem.jobs[index].rows[row], float(edges_s[self.plan.problem.steps if end is None else end])

    def _differences(self, events: Sequence[SiteEvent], now_s: float) -> list[_Step]:
        first, then, caps = [], [], []
        for job in self._known if self.plan is not None else ():
            if not self._is_planned(job):
                continue
            planned, state = self._planned(job, now_s), job.engine.state
            if planned is None:
                if state == "queued":
                    first.append(_Step(job=job, verb="hold", what="", do=self._hold(job)))
                elif state == "running" and job.terms.restart:
                    first.append(_Step(job=job, verb="requeue", what="ended, and held", do=self._hold(job)))
                if state == "running" and (job.name in self._refused if job.terms.restart else events):
                    caps += self._caps(job, events, now_s, at_once=False)
                continue
            row = planned[0]
            pool = next(one for one in self._spec.pools if one.name == row.pool)
            partition = pool.partition or pool.name
            differs = (row.nodes, partition) != (job.engine.nodes, job.engine.partition)
            what = f"on {row.nodes} nodes of {pool.name}"
            if state == "held" or (state == "queued" and differs):
                verb = "resize" if differs and state == "queued" else "release"
                do = self._release(job, row.nodes, partition)
                then.append(_Step(job=job, verb=verb, what=what, do=do))
            elif state == "running" and differs and job.terms.restart:
                first.append(_Step(job=job, verb="requeue", what=f"to go {what}", do=self._hold(job)))
            caps += self._caps(job, events, now_s, at_once=False)
        return first + then + caps

    def _hold(self, job: Known) -> Callable[[], None]:
        return lambda: self._engine.hold(job.engine)

    def _release(self, job: Known, nodes: int, partition: str) -> Callable[[], None]:
        return lambda: self._engine.release(job.engine, nodes, partition)

    def _do(self, steps: Sequence[_Step], now_s: float) -> None:
        """Note each, do it, and note what came of it; what was told or refused lately is not told again."""
        current = {(step.job.name, step.verb, step.what) for step in steps}
        keep = self._turn if self._dry else RETRY_TURNS
        self._tried = {k: at for k, at in self._tried.items() if k in current and self._turn - at < keep}
        for step in steps:
            key = step.job.name, step.verb, step.what
            if key in self._tried:
                continue
            self._tried[key] = self._turn
            reason = step.reason
            if not reason and self.plan is not None:
                reason = why(self.plan, step.job.name, now_s).reason()
            seq = self._state.intend(
                step.job.name, step.verb, t_s=now_s, what=step.what, reason=reason, dry_run=self._dry
            )
            outcome = "would be done" if self._dry else "done"
            if not self._dry:
                try:
                    step.do()
                except (GreenTrainError, OSError) as error:
                    outcome = f"refused: {error}"
                if step.verb == "requeue":  # one that cannot be ended runs on, and its share of power is told again
                    (self._refused.discard if outcome == "done" else self._refused.add)(step.job.name)
                self._state.conclude(seq, outcome)
            self._tell(f"{iso(now_s)} {step.verb} {step.job.name} {step.what}: {reason} [{outcome}]")


def _basis(job: Known, row: Row | None) -> str:
    if job.power_w is not None:
        return Provenance.MEASURED.value
    return (Provenance.MISSING if row is None else Provenance.MODELLED).value


def _cap_path(job: Known) -> Path:
    return Path(job.terms.run or "") / FOLDER / CAP_FILE


def _told(job: Known) -> _Told | None:
    """Return what a run was told last; None: nothing."""
    if job.terms.run is None:
        return None
    try:
        path = _cap_path(job)
        data = json.loads(path.read_text(encoding="utf-8"))
        until_s = path.stat().st_mtime + float(data["hours"]) * S_PER_HOUR
        return _Told(float(data.get("percent", 100.0)) / 100, until_s, data.get("gear"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _tell(job: Known, share: float, gear: str | None, hours: float, reason: str) -> None:
    path = _cap_path(job)
    path.parent.mkdir(exist_ok=True)
    asked = {"percent": round(share * 100, 4)} | ({} if gear is None else {"gear": gear})
    write_json(path, {**asked, "hours": hours, "reason": f"the fleet: {reason}"})


def _nobody_obeys() -> None:
    raise EngineError("nobody obeys: its run has no actuators.demand, so all its watts stay in the plan")


def _lift(job: Known) -> None:
    _cap_path(job).unlink(missing_ok=True)
