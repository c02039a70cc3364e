"""What the journal of one rank has said so far: sums, the grid, gear and events, and what its plan has saved."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from greentrain.ledger.journal import WRONG_DATA, entry_from_json, is_event
from greentrain.ledger.reader import RankBooks, RankRecord, RunRecord
from greentrain.ledger.totals import Totals
from greentrain.report.plan import PlanRecord
from greentrain.types import S_PER_HOUR, DeviceEnergy, LedgerEntry, Provenance

MIXED: Final = "mixed"
"""Provenance of joules that a checkpoint has summed over measured and modelled ones."""
LAST_EVENTS: Final = 20
RECENT_S: Final = 60.0
"""Time over which speeds are taken (s)."""
_PLAN_EVENTS: Final = ("decision", "leave")


def _joined(a: LedgerEntry, b: LedgerEntry) -> LedgerEntry:
    """Return two entries that follow each other as one, with the mean intensity by time; their devices are one."""
    t0_s, t1_s, old, new = a.t0_unix_s, b.t1_unix_s, a.carbon.g_per_kwh, b.carbon.g_per_kwh
    share = (b.t1_unix_s - b.t0_unix_s) / (t1_s - t0_s) if t1_s > t0_s else 0.0
    energy = DeviceEnergy(energy_j=a.energy_j + b.energy_j, provenance=Provenance.MODELLED, phases={})
    mean = None if old is None or new is None else old + (new - old) * share
    return replace(
        a,
        t1_unix_s=t1_s,
        devices={"": energy},
        carbon=replace(a.carbon, t1_unix_s=t1_s, g_per_kwh=mean),
        steps=a.steps + b.steps,
        tokens=a.tokens + b.tokens,
        samples=a.samples + b.samples,
    )


class RankState:
    """The sums of one growing journal and what a page shows beside them; memory grows by a line an hour.

    All figures are None, or not in their mapping, until something is known.
    """

    def __init__(self) -> None:
        self.books = RankBooks()
        self.opened: Mapping[str, Any] | None = None
        """The latest ``open`` record: run id, rank, host, pid."""
        self.power_w: dict[str, float] = {}
        """Mean over the last booked interval, by device uid (W)."""
        self.states: dict[str, Mapping[str, Mapping[str, float]]] = {}
        """What drivers told beside power in it, by device uid and phase (``greentrain.ledger.journal.STATE_KEYS``)."""
        self.carbon: Mapping[str, Any] | None = None
        """Of the last entry: g_per_kwh, zone, kind, basis, source."""
        self.per_kwh: float | None = None
        """Price of electricity in the last entry (currency/kWh)."""
        self.pue: tuple[float, str] | None = None
        """PUE of the last entry, and where it is from."""
        self.gear: str | None = None
        self.cap: float | None = None
        """Power limit that was decided on last, as a share of the limit found; None: nobody decided."""
        self.booked_unix_s: float | None = None
        """End of the last entry."""
        self.events: deque[Mapping[str, Any]] = deque(maxlen=LAST_EVENTS)
        self.decisions: list[Mapping[str, Any]] = []
        """Events of the plan, its leaves among them."""
        self.recent: deque[LedgerEntry] = deque()
        """Entries of the last minute."""
        self._hours: dict[tuple[Any, ...], LedgerEntry] = {}
        """Entries of one process, hour and PUE, added up."""
        self._totals: Totals | None = None

    @property
    def totals(self) -> Totals:
        """Totals of the rank, earlier parts of its run included."""
        if self._totals is None:
            self._totals = self.books.carried + self.books.sums.totals()
        return self._totals

    @property
    def opens(self) -> Sequence[Mapping[str, Any]]:
        """One record a process."""
        return self.books.opens

    @property
    def close(self) -> Mapping[str, Any] | None:
        """The record of a clean end after the last start."""
        return self.books.close

    @property
    def energy_j(self) -> dict[tuple[str, str], float]:
        """Known energy by device uid and provenance (J)."""
        carried = self.books.carried
        one = len(carried.by_provenance) == 1
        provenance = next(iter(carried.by_provenance)) if one else MIXED
        out = {(uid, provenance): joules for uid, joules in carried.by_device.items()}
        for uid, device in self.books.sums.devices.items():
            for name, part in device.known.items():
                out[uid, name] = out.get((uid, name), 0.0) + part.energy_j
        return out

    @property
    def total_j(self) -> float | None:
        """Known energy of all devices (J)."""
        found = self.energy_j
        return sum(found.values()) if found else None

    @property
    def operational_g(self) -> float | None:
        """Operational grams of the energy whose intensity is known."""
        carried = self.books.carried
        known = self.books.sums.priced or carried.energy_j > carried.unpriced_j
        return self.totals.operational_g if known else None

    @property
    def embodied_g(self) -> float | None:
        """Mid estimate of the embodied grams."""
        known = self.books.sums.embodied or self.books.carried.embodied_g
        return self.totals.embodied_g if known else None

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one record. One that is damaged, or of a kind not known here, counts nothing."""
        try:
            if record["kind"] == "event":
                if is_event(record):
                    self.books.add(record)
                    self._event(record)
                return
            self.books.add(record)
            self._totals = None
            if record["kind"] == "entry":
                self._entry(record)
            elif record["kind"] == "open":
                self.opened, self.power_w, self.states = record, {}, {}
                self.recent.clear()
        except WRONG_DATA:
            return

    def record(self) -> RankRecord:
        """Return what a plan's judge needs of this rank: processes, decisions and hourly sums."""
        assert self.opened is not None
        return RankRecord(
            rank=int(self.opened["rank"]),
            host=str(self.opened["host"]),
            opens=self.opens,
            sensors={},
            excluded=(),
            entries=list(self._hours.values()),
            events=self.decisions,
            close=self.close,
            carried=Totals(),
        )

    def _entry(self, record: Mapping[str, Any]) -> None:
        self.power_w = self.books.sums.power_w
        self.carbon, self.booked_unix_s = record["carbon"], record["t1"]
        self.per_kwh = (record.get("price") or {}).get("per_kwh")
        self.pue = (record["pue"], str(record.get("pue_from", "constant")))
        gears = list(record.get("gears", {}))
        if gears and self.gear not in gears:
            self.gear = gears[-1]
        elif len(gears) == 1:
            self.gear = gears[0]
        entry = entry_from_json(record)
        self.states = {uid: device.states for uid, device in entry.devices.items() if device.states}
        self.recent.append(entry)
        while self.recent and self.recent[0].t1_unix_s < entry.t1_unix_s - RECENT_S:
            self.recent.popleft()
        key = (len(self.opens), entry.t0_unix_s // S_PER_HOUR, entry.pue, entry.carbon.g_per_kwh is None)
        held = self._hours.get(key)
        self._hours[key] = entry if held is None else _joined(held, entry)

    def _event(self, record: Mapping[str, Any]) -> None:
        name = record["name"]
        self.events.append(record)
        if name in _PLAN_EVENTS:
            self.decisions.append(record)
        if name == "gear":
            self.gear = str(record["gear"])
        elif name == "cap":
            self.cap = float(record["cap"])
        elif name == "decision" and record.get("action") is not None:
            self.cap = float(record["action"]["cap"])


def rate_per_s(entries: Sequence[LedgerEntry], what: str) -> float | None:
    """Return steps, tokens, samples or joules a second over the last entries; None where there are none.

    Args:
        entries: The entries.
        what: Name of an attribute of :class:`LedgerEntry`.
    """
    seconds = sum(entry.t1_unix_s - entry.t0_unix_s for entry in entries)
    return sum(getattr(entry, what) for entry in entries) / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGrams:
    """What a plan has saved."""

    grams: float
    """Below 0 where more was emitted."""
    provenance: str
    """Of the table's watts: ``measured``, ``modelled``, ``mixed`` or ``assumed``."""
    against: str
    """What is compared with: the usual training's gear, as ``bf16``."""


def saved_so_far(run: Mapping[str, Any], rank: RankState) -> SavedGrams | None:
    """Return what the plan has saved until now; None without a plan, or where an hour's intensity is not known.

    Both sides rest on the action table, for the tokens trained until now, with the usual training as fast against the
    table as the run was: what was decided, hour by hour, and the usual gear at full speed from the start. The report of
    the ended run weighs the run's own joules in place of the table's. Grams have no PUE, unless the plan counted it.

    Args:
        run: The content of run.json.
        rank: The state of rank 0, which decides.
    """
    if not run.get("plan") or not any(event["name"] == "decision" for event in rank.decisions):
        return None
    own = rank.record()
    world = int(run.get("world_size") or 1)
    entries = [replace(entry, tokens=entry.tokens * world, samples=entry.samples * world) for entry in own.entries]
    plan = PlanRecord.of(RunRecord(folder=Path(), run=run, ranks=[replace(own, entries=entries)]))
    if plan is None or not plan.stretches:
        return None
    total_g, usual = plan.decided_g(), plan.facts["rows"][int(plan.facts["static"])]
    speed = float(usual["tokens_per_s"]) * plan.speed_of_table
    static_g = plan.grams(float(usual["power_w"]), plan.start_s, plan.start_s + plan.tokens_done / speed)
    if total_g is None or static_g is None:
        return None
    return SavedGrams(grams=static_g - total_g, provenance=str(plan.facts["provenance"]), against=str(usual["name"]))
