"""The plan of a run: what was decided, whether the deadline was met, and how good it was in hindsight.

``PlanRecord`` is what the run folder says: who decided what, when it held, how far the job came, and the grid's hours.
All times are the grid's (s since the epoch, UTC), all speeds and watts those in its time: where a recorded grid is
replayed faster, both are smaller by the factor, and joules a token are what they were.

Three numbers compare the run with other plans for the tokens that it trained: static (the usual training, at once), the
best plan that does not look at the grid, and the best plan of all. All rest on grams of IT power: PUE is in none of
them, or, where the plan counted the recorded PUE of each hour, in all of them. The other plans have the run's action
table, but as fast and as hungry as the run was on average against it (``speed_of_table``, ``power_of_table``): a
machine that is warmer, or has other work, is so for any plan. Where somebody declared the table, the run's own joules
say nothing of it: what was decided is then weighed with the table, too, and every number is labelled ``assumed``.
``plan_texts`` and ``plan_line`` say all this to people: what the numbers rest on, what happened, one line for the log.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

from greentrain.carbon.replayed import GridTime
from greentrain.ledger.reader import RankRecord, RunRecord
from greentrain.ledger.totals import Totals
from greentrain.policy.menu import menu_of
from greentrain.types import J_PER_KWH, S_PER_HOUR, LedgerEntry
from greentrain.utils import quantities

DECISION: Final = "decision"
LEAVE: Final = "leave"
"""Names of the journal's events."""
OFF: Final = 0
"""Row of the pause, as in ``greentrain.policy.menu``."""
_EDGE_S: Final = 1e-3
"""A part of an hour that is shorter is rounding (s)."""
_NEARLY: Final = 0.995
"""A loop that has ended with this share of the tokens has done its job: the last batch of an epoch may be smaller."""
_ENOUGH: Final = 0.5
"""The books say what an hour's intensity was if they have this share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDecision:
    """One decision of rank 0."""

    grid_s: float
    row: int
    tokens: float
    """Trained until then."""
    g_per_kwh: float | None
    reason: str
    shielded: bool
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStretch:
    """A time in which one row was in use."""

    t0_s: float
    t1_s: float
    row: int

    @property
    def length_s(self) -> float:
        """Length (s)."""
        return self.t1_s - self.t0_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan and what became of it."""

    facts: Mapping[str, Any]
    """What rank 0 wrote into run.json."""
    time: GridTime
    decisions: Sequence[PlanDecision]
    """By time."""
    stretches: Sequence[PlanStretch]
    """By time, until the plan's end; not in them: the time before the first decision, and that of no process, unless
    the plan had asked for it."""
    g_per_kwh: Sequence[float | None]
    """By hour from the start; the last one is cut off at ``horizon_s``."""
    end_s: float
    """When the plan was over, the run ended, or was seen last."""
    last_step_s: float
    """When the run's last step ended, or the plan."""
    tokens_done: float
    """Until ``end_s``."""
    closed: bool
    """Whether the run has ended in order."""
    measured_j: float
    """IT energy of all ranks from the first decision to ``end_s`` (J)."""

    @classmethod
    def of(cls, record: RunRecord) -> "PlanRecord | None":
        """Return the plan of a run; None where it had none."""
        facts = record.run.get("plan")
        first = min(record.ranks, key=lambda rank: rank.rank)
        if not facts:
            return None
        time = GridTime.from_dict(facts["grid"])
        decisions = sorted(_decisions(first), key=lambda decided: decided.grid_s)
        spans = [(time.at(t0_s), time.at(t1_s)) for t0_s, t1_s in _processes(first)]
        over = next((decided for decided in decisions if decided.done), None)
        end_s = over.grid_s if over else max(t1_s for _, t1_s in spans)
        last_step_s = over.grid_s if over else max((time.at(t) for t in _steps(first)), default=end_s)
        horizon_s = max(float(facts["deadline_s"]), end_s)
        return cls(
            facts=facts,
            time=time,
            decisions=decisions,
            stretches=list(_stretches(decisions, [*spans, *_away(first, time, decisions, end_s)], end_s)),
            g_per_kwh=_hours(facts, horizon_s, time, first),
            end_s=end_s,
            last_step_s=min(last_step_s, end_s),
            tokens_done=over.tokens if over else _tokens(record, time, facts, decisions),
            closed=first.close is not None,
            measured_j=_joules(record, time.real(decisions[0].grid_s), time.real(end_s)) if decisions else 0.0,
        )

    @property
    def with_pue(self) -> bool:
        """True if the plan counted the PUE of each hour: intensities and grams here have it in them."""
        return bool(self.facts.get("with_pue"))

    @property
    def tokens(self) -> float:
        """Tokens asked for."""
        return float(self.facts["tokens"])

    @property
    def start_s(self) -> float:
        """Start of the job."""
        return float(self.facts["start_s"])

    @property
    def deadline_s(self) -> float:
        """When it has to be done."""
        return float(self.facts["deadline_s"])

    @property
    def horizon_s(self) -> float:
        """End of the last hour: the deadline, or the end where that is later."""
        return max(self.deadline_s, self.end_s)

    @property
    def finished_s(self) -> float | None:
        """When the tokens were done, between two decisions in proportion; None where they were not."""
        nearly = self.closed and self.tokens_done >= _NEARLY * self.tokens
        target = min(self.tokens, self.tokens_done) if nearly else self.tokens
        seen = [(self.start_s, 0.0), *((d.grid_s, d.tokens) for d in self.decisions)]
        seen.append((self.last_step_s, self.tokens_done))
        for (t0_s, before), (t1_s, after) in reversed(list(pairwise(seen))):
            if before < target <= after:
                return t0_s + (t1_s - t0_s) * (target - before) / (after - before)
        return None

    @property
    def speed_of_table(self) -> float:
        """How fast the job was against its table (1: as fast), over all time in which something was decided."""
        expected = sum(float(self.facts["rows"][s.row]["tokens_per_s"]) * s.length_s for s in self.stretches)
        done = self.tokens_done - self.decisions[0].tokens if self.decisions else 0.0
        return done / expected if expected > 0 and done > 0 else float(self.facts.get("speed_of_table") or 1.0)

    @property
    def power_of_table(self) -> float:
        """What the run drew against its table (1: as much) since the first decision; 1 for one that was declared."""
        expected_j = sum(float(self.facts["rows"][s.row]["power_w"]) * s.length_s for s in self.stretches)
        if self.facts["provenance"] == "assumed" or not (expected_j > 0 and self.measured_j > 0):
            return 1.0
        return self.measured_j / expected_j

    def hours(self, until_s: float) -> list[tuple[float | None, float]]:
        """Return intensity (g/kWh) and length (s) of each hour from the start to a time; the last one is cut off."""
        span_s = until_s - self.start_s
        count = math.ceil((span_s - _EDGE_S) / S_PER_HOUR)
        return [(self.g_per_kwh[h], min(S_PER_HOUR, span_s - h * S_PER_HOUR)) for h in range(count)]

    def unknown(self, until_s: float) -> str:
        """Return of how many hours until a time nobody knows the intensity, in words; empty where there are none."""
        hours = [value for value, _ in self.hours(until_s)]
        blind = sum(value is None for value in hours)
        return f"the carbon intensity of {blind} of {len(hours)} hours is unknown" if blind else ""

    def grams(self, power_w: float, t0_s: float, t1_s: float) -> float | None:
        """Return what a power emits between two times (g); None where the intensity is not known."""
        total = 0.0
        for hour, seconds in _overlaps(t0_s - self.start_s, t1_s - self.start_s):
            value = self.g_per_kwh[hour] if 0 <= hour < len(self.g_per_kwh) else None
            if value is None and power_w > 0:
                return None
            total += power_w * seconds * (value or 0.0) / J_PER_KWH
        return total

    def decided_g(self) -> float | None:
        """Return what the table says of what was decided, before it the usual training (g); None: not known."""
        rows = self.facts["rows"]
        parts = [(int(self.facts["static"]), self.start_s, self.stretches[0].t0_s)]
        parts += [(stretch.row, stretch.t0_s, stretch.t1_s) for stretch in self.stretches]
        total_g = 0.0
        for row, t0_s, t1_s in parts:
            part_g = self.grams(float(rows[row]["power_w"]), t0_s, t1_s)
            if part_g is None:
                return None
            total_g += part_g
        return total_g


def _decisions(first: RankRecord) -> Iterator[PlanDecision]:
    for event in first.events:
        if event["name"] == DECISION:
            yield PlanDecision(
                grid_s=float(event["grid_s"]),
                row=int(event["row"]),
                tokens=float(event["tokens"]),
                g_per_kwh=event["g_per_kwh"],
                reason=str(event["reason"]),
                shielded=bool(event["shielded"]),
                done=bool(event["done"]),
            )


def _processes(rank: RankRecord) -> Iterator[tuple[float, float]]:
    """Yield start and end of each process of a rank (s since the epoch, UTC)."""
    starts = [float(opened["t"]) for opened in rank.opens]
    for i, t0_s in enumerate(starts):
        until_s = starts[i + 1] if i + 1 < len(starts) else math.inf
        t1_s = max((e.t1_unix_s for e in rank.entries if t0_s - 60 < e.t0_unix_s < until_s), default=t0_s)
        if rank.close is not None and until_s == math.inf:
            t1_s = max(t1_s, float(rank.close["t"]))
        yield t0_s, min(t1_s, until_s)


def _away(
    rank: RankRecord, time: GridTime, decisions: Sequence[PlanDecision], end_s: float
) -> Iterator[tuple[float, float]]:
    """Yield the pauses that were spent outside of any process, as the plan had asked for (s, grid time)."""
    left_s = [time.at(float(event["t"])) for event in rank.events if event["name"] == LEAVE]
    for i, decided in enumerate(decisions):
        until_s = decisions[i + 1].grid_s if i + 1 < len(decisions) else end_s
        begun_s = next((t_s for t_s in left_s if decided.grid_s - time.speed <= t_s < until_s), None)
        if decided.row == OFF and begun_s is not None:
            yield max(begun_s, decided.grid_s), until_s


def _steps(rank: RankRecord) -> Iterator[float]:
    """Yield times at which steps ended, the last one among them (s since the epoch, UTC)."""
    for entry in rank.entries:
        if entry.steps:
            yield entry.step_groups[-1][1] if entry.step_groups else entry.t1_unix_s


def _stretches(
    decisions: Sequence[PlanDecision], spans: Sequence[tuple[float, float]], end_s: float
) -> Iterator[PlanStretch]:
    """Yield when each row was in use; stretches of one row that follow each other are one."""
    held: PlanStretch | None = None
    for i, decided in enumerate(decisions):
        until_s = decisions[i + 1].grid_s if i + 1 < len(decisions) else end_s
        for t0_s, t1_s in sorted(spans):
            start_s, stop_s = max(decided.grid_s, t0_s), min(until_s, t1_s, end_s)
            if held is not None:
                start_s = max(start_s, held.t1_s)  # the last moments of a process that is already on its way out
            if stop_s <= start_s or decided.done:
                continue
            if held is not None and held.row == decided.row and start_s - held.t1_s <= _EDGE_S:
                held = PlanStretch(t0_s=held.t0_s, t1_s=stop_s, row=held.row)
                continue
            if held is not None:
                yield held
            held = PlanStretch(t0_s=start_s, t1_s=stop_s, row=decided.row)
    if held is not None:
        yield held


def _joules(record: RunRecord, t0_s: float, t1_s: float) -> float:
    """Return the IT energy of all ranks between two times; that of an interval counts in proportion."""
    total = 0.0
    for rank in record.ranks:
        for entry in rank.entries:
            inside_s = min(entry.t1_unix_s, t1_s) - max(entry.t0_unix_s, t0_s)
            if inside_s > 0:
                total += entry.energy_j * inside_s / (entry.t1_unix_s - entry.t0_unix_s)
    return total


MAX_HOURS: Final = 24 * 366 * 100
"""Hours of a century: a longer plan is damage, and its list would take all memory."""


def _hours(facts: Mapping[str, Any], horizon_s: float, time: GridTime, first: RankRecord) -> list[float | None]:
    """Return the intensity by hour: as the plan knew it last, else the mean over what the books have of that hour."""
    start_s = float(facts["start_s"])
    count = math.ceil((horizon_s - start_s - _EDGE_S) / S_PER_HOUR)
    if count > MAX_HOURS:
        raise ValueError(f"a plan of {count} hours")
    known = list(facts["hourly_g_per_kwh"])[:count]
    hours: list[float | None] = [*known, *[None] * (count - len(known))]
    if None not in hours:
        return hours
    booked = mean_by_hour(first.entries, time, start_s, horizon_s, with_pue=bool(facts.get("with_pue")))
    return [seen if value is None else value for value, seen in zip(hours, booked, strict=True)]


def mean_by_hour(
    entries: Sequence[LedgerEntry], time: GridTime, start_s: float, end_s: float, *, with_pue: bool = False
) -> list[float | None]:
    """Return the mean intensity of each hour between two times; None where the books have less than half of it.

    Args:
        entries: Entries of one rank.
        time: Time of the grid.
        start_s: Start (s since the epoch, UTC, grid time).
        end_s: End, which cuts off the last hour (s since the epoch, UTC, grid time).
        with_pue: Multiply by the PUE of each entry.
    """
    seconds: dict[int, float] = defaultdict(float)
    weighted: dict[int, float] = defaultdict(float)
    for entry in entries:
        if entry.carbon.g_per_kwh is not None:
            for hour, length_s in _overlaps(time.at(entry.t0_unix_s) - start_s, time.at(entry.t1_unix_s) - start_s):
                seconds[hour] += length_s
                weighted[hour] += length_s * entry.carbon.g_per_kwh * (entry.pue if with_pue else 1.0)
    found: list[float | None] = []
    for hour in range(max(1, math.ceil((end_s - start_s - _EDGE_S) / S_PER_HOUR))):
        needed_s = _ENOUGH * min(S_PER_HOUR, end_s - start_s - hour * S_PER_HOUR)
        found.append(weighted[hour] / seconds[hour] if 0 < seconds[hour] >= needed_s else None)
    return found


def _overlaps(t0_s: float, t1_s: float) -> Iterator[tuple[int, float]]:
    """Yield each hour that an interval reaches into, and for how long (s)."""
    for hour in range(math.floor(t0_s / S_PER_HOUR), math.ceil(t1_s / S_PER_HOUR)):
        length_s = min(t1_s, (hour + 1) * S_PER_HOUR) - max(t0_s, hour * S_PER_HOUR)
        if length_s > 0:
            yield hour, length_s


def _tokens(record: RunRecord, time: GridTime, facts: Mapping[str, Any], decisions: Sequence[PlanDecision]) -> float:
    """Return what was trained in the end. A process that was killed did not tell: the books know what came last."""
    told = float(facts["tokens_done"])
    if not decisions or told > decisions[-1].tokens:
        return told
    since_s = time.real(decisions[-1].grid_s)
    more = 0.0
    for rank in record.ranks:
        for entry in rank.entries:
            length_s = entry.t1_unix_s - entry.t0_unix_s
            if length_s > 0 and entry.t1_unix_s > since_s:
                share = min(1.0, (entry.t1_unix_s - since_s) / length_s)
                more += share * (entry.tokens or entry.samples)
    return decisions[-1].tokens + more


MOST_LEFT: Final = 0.05
"""A job that stops early with a larger share of its tokens left is not held against plans that had until the deadline.
Below that it is, for the tokens it did: those plans then have it easier, so the numbers are none too good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGrams:
    """Grams of what ran, or why nobody knows them."""

    grams: float | None = None
    reason: str = ""


def three_numbers(plan: PlanRecord, actual: KnownGrams, word: str, fp8_max_share: float) -> dict[str, Any]:
    """Return the saving against static and against carbon-blind, the regret, and the grams of those plans.

    Args:
        plan: The plan.
        actual: The grams of what ran.
        word: The state of the run.
        fp8_max_share: The largest share of the time in FP8.
    """
    import numpy as np

    from greentrain.policy.hindsight import BLIND, REGRET, judge

    if word == "running":
        actual = KnownGrams(reason="the run is still going")
    hours = plan.hours(plan.horizon_s)
    verdict = judge(
        np.array([math.nan if value is None else value for value, _ in hours]),
        np.array([length_s for _, length_s in hours]),
        menu_of(plan.facts, plan.speed_of_table, plan.power_of_table),
        plan.tokens_done,
        actual.grams,
        fp8_max_share=fp8_max_share,
        why_unknown=actual.reason,
    )
    unknown = dict(verdict.unknown)
    left = 1 - plan.tokens_done / plan.tokens
    whole = plan.end_s >= plan.deadline_s or left <= MOST_LEFT
    if not whole:
        for name in (BLIND, REGRET):
            unknown.setdefault(name, f"the job was stopped early, with {left:.0%} of it left to do")
    return {
        "saving_vs_static": verdict.saving_vs_static,
        "saving_vs_blind": verdict.saving_vs_blind if whole else None,
        "regret": verdict.regret if whole else None,
        "static_name": verdict.static_name,
        "static_g": verdict.static_g,
        "blind_g": verdict.blind_g if whole else None,
        "oracle_g": verdict.oracle_g if whole else None,
        "unknown": unknown,
    }


MAX_CHANGES: Final = 200
"""Changes that are listed, the first and the last ones; the number of all of them is always told."""
MOST_UNREAD: Final = 0.005
"""Share of the devices' time without a reading from which on the run's grams are too few to be compared: ten times less
than the error of the sensors themselves (NVML: 5 %)."""

END: Final = "end"
"""In place of a row's name, where all tokens are done."""


def plan_figures(
    record: RunRecord,
    totals: Totals,
    *,
    energy: Mapping[str, Any],
    carbon: Mapping[str, Any],
    devices: Sequence[Mapping[str, Any]],
    word: str,
) -> dict[str, Any] | None:
    """Return the figures of a run's plan; None where it had none.

    Times are the grid's (s since the epoch, UTC); ``late_s`` is below 0 where the job was done early. ``unknown`` says
    why a number is null. Rows keep the order of the menu: ``stretches`` and ``static`` count from 0.

    Args:
        record: The run.
        totals: The totals of the job.
        energy: The figures of the run's energy.
        carbon: The figures of the run's emissions.
        devices: The figures of the run's devices.
        word: The state of the run.
    """
    plan = PlanRecord.of(record)
    if plan is None:
        return None
    assumed = plan.facts["provenance"] == "assumed"
    decided = _decided_grams(plan, record)
    actual = decided if assumed else _run_grams(record, plan, energy, carbon, devices)
    changed = [d for i, d in enumerate(plan.decisions) if i == 0 or d.row != plan.decisions[i - 1].row or d.done]
    off = [float(row["tokens_per_s"]) == 0 for row in plan.facts["rows"]]
    return {
        "policy": str(plan.facts["policy"]),
        "unit": "tokens" if totals.tokens or not totals.samples else "samples",
        "tokens": plan.tokens,
        "tokens_done": plan.tokens_done,
        "start_s": plan.start_s,
        "deadline_s": plan.deadline_s,
        "end_s": plan.end_s,
        "start_utc": _utc(plan.start_s),
        "deadline_utc": _utc(plan.deadline_s),
        **_deadline(plan, word),
        "grid": dict(plan.facts["grid"]),
        "replayed": not plan.time.is_real,
        "with_pue": plan.with_pue,
        "decisions": len(plan.decisions),
        "changes": max(0, sum(not d.done for d in changed) - 1),
        "pauses": sum(off[d.row] and not d.done for d in changed),
        "shielded": sum(d.shielded for d in plan.decisions),
        "rows": _rows(plan),
        "static": int(plan.facts["static"]),
        "held": bool(plan.facts["held"]),
        "speed_of_table": plan.speed_of_table,
        "power_of_table": plan.power_of_table,
        "forecast": plan.facts.get("forecast"),
        "hourly_g_per_kwh": list(plan.g_per_kwh),
        "stretches": [[stretch.t0_s, stretch.t1_s, stretch.row] for stretch in plan.stretches],
        "changed": [_change(plan, d) for d in _ends(changed)],
        "provenance": _provenance(plan, energy),
        "actual_of": "table" if assumed else "run",
        "actual_g": actual.grams,
        "decided_g": decided.grams,
        **three_numbers(plan, actual, word, _fp8_max_share(record)),
    }


def _deadline(plan: PlanRecord, word: str) -> dict[str, Any]:
    """Return whether the deadline was met, by how much, and both in words."""
    finished_s, left_s = plan.finished_s, plan.deadline_s - plan.end_s
    share = quantities.percent(plan.tokens_done / plan.tokens)
    if finished_s is not None:
        late_s = finished_s - plan.deadline_s
        what = "missed" if late_s > 0 else "met"
        when = "after" if late_s > 0 else "before"
        text = f"deadline {what}: done {quantities.duration(abs(late_s))} {when} it"
        return {"finished_s": finished_s, "met": late_s <= 0, "late_s": late_s, "deadline_text": text}
    met = False if left_s <= 0 else None
    if left_s <= 0:
        text = f"deadline missed: {share} done {quantities.duration(-left_s)} after it"
    elif word == "running":
        text = f"{share} done, {quantities.duration(left_s)} left until the deadline"
    else:
        text = f"stopped {quantities.duration(left_s)} before the deadline, {share} done"
    return {"finished_s": None, "met": met, "late_s": None, "deadline_text": text}


def _rows(plan: PlanRecord) -> list[dict[str, Any]]:
    seconds = [0.0] * len(plan.facts["rows"])
    for stretch in plan.stretches:
        seconds[stretch.row] += stretch.length_s
    return [{**row, "hours": length_s / S_PER_HOUR} for row, length_s in zip(plan.facts["rows"], seconds, strict=True)]


def _change(plan: PlanRecord, decided: PlanDecision) -> dict[str, Any]:
    return {
        "grid_s": decided.grid_s,
        "grid_utc": _utc(decided.grid_s),
        "row": decided.row,
        "name": END if decided.done else plan.facts["rows"][decided.row]["name"],
        "g_per_kwh": decided.g_per_kwh,
        "tokens": decided.tokens,
        "shielded": decided.shielded,
        "reason": decided.reason,
    }


def _ends(changed: Sequence[PlanDecision]) -> Sequence[PlanDecision]:
    if len(changed) <= MAX_CHANGES:
        return changed
    return [*changed[: MAX_CHANGES // 2], *changed[-MAX_CHANGES // 2 :]]


# -- grams -----------------------------------------------------------------------------------------------------------


def _decided_grams(plan: PlanRecord, record: RunRecord) -> KnownGrams:
    """Return what the table says of what was decided; before the first decision the usual training ran."""
    if not plan.stretches:
        return KnownGrams(reason="nothing was decided")
    if any(rank.carried.duration_s > 0 for rank in record.ranks):
        return KnownGrams(reason="what was decided in earlier parts of the run is not in this folder")
    grams = plan.decided_g()
    return KnownGrams(reason=plan.unknown(plan.end_s)) if grams is None else KnownGrams(grams=grams)


def _run_grams(
    record: RunRecord,
    plan: PlanRecord,
    energy: Mapping[str, Any],
    carbon: Mapping[str, Any],
    devices: Sequence[Mapping[str, Any]],
) -> KnownGrams:
    """Return what the run itself emitted until the plan was over, of all ranks, with PUE if the plan counted it."""
    read = [device for device in devices if device["energy_j"] is not None]
    unread_s = sum(device["missing_s"] for device in read)
    if energy["energy_j"] is None:
        return KnownGrams(reason="no energy of this run is known")
    if not carbon["complete"]:
        blind = quantities.energy(carbon["unpriced_j"])
        return KnownGrams(reason=f"the carbon intensity of {blind} of the run's energy is unknown")
    if len(record.ranks) < (record.run.get("world_size") or 1):
        return KnownGrams(reason="the files of some ranks are not in this folder")
    if unread_s > MOST_UNREAD * sum(device["booked_s"] for device in read):
        return KnownGrams(reason=f"for {quantities.duration(unread_s)} of device time there is no reading")
    until_s = plan.time.real(plan.end_s)
    pue = energy["pue"]
    total = sum(c.operational_g if plan.with_pue else c.it_grams(pue) for c in (rank.carried for rank in record.ranks))
    for rank in record.ranks:
        for entry in rank.entries:
            length_s = entry.t1_unix_s - entry.t0_unix_s
            share = 1.0 if entry.t1_unix_s <= until_s else (until_s - entry.t0_unix_s) / length_s
            total += max(0.0, share) * ((entry.operational_g if plan.with_pue else entry.it_g) or 0.0)
    return KnownGrams(grams=total)


def _provenance(plan: PlanRecord, energy: Mapping[str, Any]) -> str:
    """Return where the grams that are compared come from: the table's, and the run's where it is no declared one."""
    of_table = str(plan.facts["provenance"])
    share = energy["measured_share"]
    if of_table == "assumed" or share is None:
        return of_table
    of_run = {1.0: "measured", 0.0: "modelled"}.get(share, "mixed")
    return of_run if of_run == of_table else "mixed"


def _fp8_max_share(record: RunRecord) -> float:
    precision = (record.run.get("config") or {}).get("precision") or {}
    return float(precision.get("fp8_max_share", 1.0))


def _utc(grid_s: float) -> str:
    return datetime.fromtimestamp(grid_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


MAX_ROWS: Final = 8
"""Changes that are listed from either end; summary.json has more."""
_RESTS_ON: Final = {
    "measured": "watts measured",
    "modelled": "watts modelled",
    "mixed": "watts partly modelled",
    "assumed": "watts and speeds assumed (declared action table)",
}


def plan_line(summary: Mapping[str, Any]) -> str | None:
    """Return the plan's outcome in one line, for the log; None where the run had no plan."""
    plan = summary["plan"]
    if plan is None:
        return None
    rows = three_rows(plan)
    parts = [f"{row['value']} than {row['other']}" for row in rows if row["known"]]
    unknown: dict[str, list[str]] = {}
    for row in rows:
        if not row["known"]:
            unknown.setdefault(row["detail"], []).append(row["other"])
    parts += [f"against {' and '.join(others)} unknown: {reason}" for reason, others in unknown.items()]
    return f"{plan['policy']}: {outcome(plan)}. CO2e: {', '.join(parts)} ({rests_on(plan)})"


def outcome(plan: Mapping[str, Any]) -> str:
    """Return how far the job came, and whether in time."""
    return f"{progress(plan)}, {plan['deadline_text']}"


def progress(plan: Mapping[str, Any]) -> str:
    """Return how far the job came."""
    done, asked = quantities.count(plan["tokens_done"]), quantities.count(plan["tokens"])
    share = plan["tokens_done"] / plan["tokens"]
    if done == asked:
        return f"{done} {plan['unit']}" + (f" ({quantities.percent(share)})" if share < 1 else "")
    return f"{done} of {asked} {plan['unit']}"


def label(plan: Mapping[str, Any]) -> str:
    """Return where the numbers come from, in few words."""
    return str(plan["provenance"]) + (", replayed grid" if plan["replayed"] else "")


def rests_on(plan: Mapping[str, Any]) -> str:
    """Return where the numbers come from."""
    return _RESTS_ON[plan["provenance"]] + (", replayed grid" if plan["replayed"] else "")


def grams_of(plan: Mapping[str, Any]) -> str:
    """Return what the compared grams are of."""
    return "with the PUE of each hour, as the plan counted it" if plan["with_pue"] else "without PUE"


def three_rows(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the three numbers as texts: title, value, the other plan, and the grams behind or why it is not known."""
    static = f"static {plan['static_name']}"
    rows = []
    for key, title, other, grams in (
        ("saving_vs_static", f"Against {static}", static, "static_g"),
        ("saving_vs_blind", "Against carbon-blind", "the best carbon-blind plan", "blind_g"),
        ("regret", "Regret", "the best plan in hindsight", "oracle_g"),
    ):
        value = plan[key]
        row = {"key": key, "title": title, "other": other, "known": value is not None}
        if value is None:
            rows.append({**row, "value": quantities.UNKNOWN, "detail": plan["unknown"].get(key, "it is not known")})
            continue
        more = value > 0 if key == "regret" else value < 0
        text = f"{quantities.percent(abs(value))} {'more' if more else 'less'}"
        detail = f"{quantities.mass(plan['actual_g'])}; {other}: {quantities.mass(plan[grams])}"
        if key == "regret" and value < 0:
            detail += ", by the table: the run drew less than that says"
        rows.append({**row, "value": text, "detail": detail})
    return rows


def plan_texts(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the page shows of a plan beside its chart; None where there is none."""
    plan = summary["plan"]
    if plan is None:
        return None
    first, last, between = changes(plan)
    met = {True: "met", False: "missed", None: "open"}[plan["met"]]
    return {
        "policy": plan["policy"],
        "deadline": met,
        "detail": plan["deadline_text"].partition(": ")[2] or plan["deadline_text"],
        "progress": progress(plan),
        "numbers": three_rows(plan),
        "provenance": plan["provenance"],
        "label": label(plan),
        "rests_on": rests_on(plan),
        "grams_of": grams_of(plan),
        "with_pue": plan["with_pue"],
        "span": span(plan),
        "facts": facts(plan),
        "forecast": plan["forecast"],
        "first": first,
        "last": last,
        "between": between,
    }


def facts(plan: Mapping[str, Any]) -> str:
    """Return in a sentence what was decided, and how long each row ran."""
    counts = [quantities.counted(plan[f"{what}s"], what) for what in ("decision", "change", "pause")]
    if plan["shielded"]:
        counts.append(f"{plan['shielded']} by the deadline's shield")
    used = [row for row in plan["rows"] if row["hours"] > 0]
    used.sort(key=lambda row: -float(row["hours"]))
    hours = [f"{row['name']} {quantities.duration(row['hours'] * 3600)}" for row in used[:6]]
    before_s = plan["stretches"][0][0] - plan["start_s"] if plan["stretches"] else 0.0
    if before_s > 0.02 * (plan["end_s"] - plan["start_s"]):
        hours.append(f"{quantities.duration(before_s)} before the first decision")
    return f"{', '.join(counts)}; {', '.join(hours)}" if hours else ", ".join(counts)


def changes(plan: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the first changes to list, the last ones, and how many are left out between them."""
    rows = [{**row, "when": quantities.clock(row["grid_s"])} for row in plan["changed"]]
    if len(rows) <= 2 * MAX_ROWS:
        return rows, [], 0
    total = plan["changes"] + 1 + sum(row["name"] == END for row in rows)
    return rows[:MAX_ROWS], rows[-MAX_ROWS:], total - 2 * MAX_ROWS


def span(plan: Mapping[str, Any]) -> str:
    """Return from when to when the plan goes, in the grid's time."""
    start = datetime.fromtimestamp(plan["start_s"], UTC).strftime("%d %b %Y %H:%M")
    text = f"{start} to {quantities.clock(plan['deadline_s'])} UTC"
    speed = plan["grid"]["speed"]
    return text + (f", replayed {speed:g} times as fast" if speed != 1 else ", replayed" if plan["replayed"] else "")
