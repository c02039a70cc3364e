"""What the journal of one rank has said so far: sums by device, the grid, the gear, decisions and events."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from greentrain.ledger.reader import RankRecord
from greentrain.ledger.totals import Totals
from greentrain.types import S_PER_HOUR, CarbonPoint, DeviceEnergy, LedgerEntry, Provenance

MIXED: Final = "mixed"
"""Provenance of joules that a checkpoint has summed over measured and modelled ones."""
LAST_EVENTS: Final = 20
RECENT_S: Final = 60.0
"""Time over which speeds are taken (s)."""
_PLAN_EVENTS: Final = ("decision", "leave")
_MOST: Final = 2.0**63
"""No joule, gram, second or count of an entry is so large; what is, or is no number, is damaged."""
LATEST_S: Final = 253_402_300_800.0
"""End of the year 9999, after which Python has no date (s since the epoch, UTC)."""
_ADDED: Final = ("seconds", "energy_j", "steps", "tokens", "samples", "operational_g", "weighted")


@dataclass(slots=True)
class Span:
    """Entries of one process and one hour, added up."""

    t0_s: float
    t1_s: float
    process: int
    priced: bool
    pue: float
    seconds: float = 0.0
    energy_j: float = 0.0
    steps: int = 0
    tokens: int = 0
    samples: int = 0
    operational_g: float = 0.0
    weighted: float = 0.0
    """Intensity times seconds."""

    def joins(self, other: "Span") -> bool:
        """Return True if another one can be added."""
        same = (self.process, self.priced, self.pue, self.t0_s // S_PER_HOUR)
        return same == (other.process, other.priced, other.pue, other.t0_s // S_PER_HOUR)

    def add(self, other: "Span") -> None:
        """Add the one that follows."""
        self.t1_s = other.t1_s
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def entry(self) -> LedgerEntry:
        """Return it as the books would have it, devices and phases left out."""
        whole = DeviceEnergy(energy_j=self.energy_j, provenance=Provenance.MODELLED, phases={})
        return LedgerEntry(
            t0_unix_s=self.t0_s,
            t1_unix_s=self.t1_s,
            devices={"": whole},
            phase_s={},
            phase_inclusive_j={},
            carbon=CarbonPoint(
                t0_unix_s=self.t0_s,
                t1_unix_s=self.t1_s,
                g_per_kwh=self.weighted / self.seconds if self.priced and self.seconds > 0 else None,
                zone="",
                source="",
            ),
            pue=self.pue,
            operational_g=self.operational_g if self.priced else None,
            embodied_g=None,
            steps=self.steps,
            tokens=self.tokens,
            samples=self.samples,
        )


class RankState:
    """Sums over the records of one journal, in the order of the file; memory grows by a line an hour.

    All figures are None, or not in their mapping, until something is known.
    """

    def __init__(self) -> None:
        self.opened: Mapping[str, Any] | None = None
        """The latest ``open`` record: run id, rank, host, pid."""
        self.close: Mapping[str, Any] | None = None
        """The record of a clean end after the last start."""
        self.sensors: dict[str, Mapping[str, Any]] = {}
        """By device uid, as the journal has them."""
        self.energy_j: dict[tuple[str, str], float] = {}
        """By device uid and provenance (J)."""
        self.missing_s: dict[str, float] = {}
        """By device uid (s)."""
        self.power_w: dict[str, float] = {}
        """Mean over the last booked interval, by device uid (W)."""
        self.duration_s = self.facility_j = self.unpriced_j = 0.0
        self.operational_g: float | None = None
        self.embodied_g: float | None = None
        self.steps = self.tokens = self.samples = 0
        self.carbon: Mapping[str, Any] | None = None
        """Of the last entry: g_per_kwh, zone, kind, basis, source."""
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
        self.opens: list[Mapping[str, Any]] = []
        self.recent: deque[Span] = deque()
        """Entries of the last minute."""
        self._spans: list[Span] = []

    @property
    def total_j(self) -> float | None:
        """Known energy of all devices (J)."""
        return sum(self.energy_j.values()) if self.energy_j else None

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one record. One that is damaged, or of a kind not known here, counts nothing."""
        try:
            kind = record["kind"]
            if kind == "entry":
                self._entry(record)
            elif kind == "event":
                self._event(record)
            elif kind == "open":
                self._open(record)
            elif kind == "close":
                self.close = record
            if kind in ("open", "sensors"):
                self.sensors.update({str(sensor["uid"]): sensor for sensor in record["sensors"]})
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
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
            entries=[span.entry() for span in self._spans],
            events=self.decisions,
            close=self.close,
            carried=Totals(),
        )

    def _open(self, record: Mapping[str, Any]) -> None:
        self.opened, self.close, self.power_w = record, None, {}
        self.opens.append(record)
        self.recent.clear()
        if record.get("carried"):
            self._carry(Totals.from_dict(record["carried"]))

    def _carry(self, totals: Totals) -> None:
        one = len(totals.by_provenance) == 1
        provenance = next(iter(totals.by_provenance)) if one else MIXED
        for uid, joules in totals.by_device.items():
            self._joules(uid, provenance, joules)
        for uid, seconds in totals.missing_s.items():
            self.missing_s[uid] = self.missing_s.get(uid, 0.0) + seconds
        self.duration_s += totals.duration_s
        self.facility_j += totals.facility_j
        self.unpriced_j += totals.unpriced_j
        if totals.energy_j > totals.unpriced_j:
            self.operational_g = (self.operational_g or 0.0) + totals.operational_g
        if totals.embodied_g:
            self.embodied_g = (self.embodied_g or 0.0) + totals.embodied_g
        self.steps += totals.steps
        self.tokens += totals.tokens
        self.samples += totals.samples

    def _joules(self, uid: str, provenance: str, joules: float) -> None:
        self.energy_j[uid, provenance] = self.energy_j.get((uid, provenance), 0.0) + joules

    def _entry(self, record: Mapping[str, Any]) -> None:
        _check(record)
        interval_s = record["t1"] - record["t0"]
        span = Span(
            t0_s=record["t0"],
            t1_s=record["t1"],
            process=len(self.opens),
            priced=record["op_g"] is not None,
            pue=record["pue"],
            seconds=interval_s,
            energy_j=sum(device["j"] for device in record["devices"].values()),
            steps=record["steps"],
            tokens=record["tokens"],
            samples=record["samples"],
            operational_g=record["op_g"] or 0.0,
            weighted=(record["carbon"]["g_per_kwh"] or 0.0) * interval_s,
        )
        known = self._devices(record["devices"], interval_s)
        self.duration_s += interval_s
        self.facility_j += span.energy_j * span.pue
        if span.priced and known:
            self.operational_g = (self.operational_g or 0.0) + span.operational_g
        elif not span.priced:
            self.unpriced_j += span.energy_j
        if record["emb_g"] is not None:
            self.embodied_g = (self.embodied_g or 0.0) + record["emb_g"]
        self.steps += span.steps
        self.tokens += span.tokens
        self.samples += span.samples
        self.carbon, self.booked_unix_s = record["carbon"], span.t1_s
        self.pue = (span.pue, str(record.get("pue_from", "constant")))
        gears = list(record.get("gears", {}))
        if gears and self.gear not in gears:
            self.gear = gears[-1]
        elif len(gears) == 1:
            self.gear = gears[0]
        self._remember(span)

    def _devices(self, devices: Mapping[str, Mapping[str, Any]], interval_s: float) -> bool:
        """Add energy and missing time; return whether the energy of any device is known."""
        self.power_w = {}
        known = False
        for uid, device in devices.items():
            missing_s = device["missing_s"]
            if missing_s:
                self.missing_s[uid] = self.missing_s.get(uid, 0.0) + missing_s
            known_s = interval_s - missing_s
            if device["prov"] != "missing" and (device["j"] != 0.0 or missing_s < 0.999 * interval_s):
                known = True
                self._joules(uid, device["prov"], device["j"])
                if 0 < known_s <= 1.001 * interval_s:  # not where a counter delivers a gap's energy late
                    self.power_w[uid] = device["j"] / known_s
        return known

    def _remember(self, span: Span) -> None:
        self.recent.append(span)
        while self.recent and self.recent[0].t1_s < span.t1_s - RECENT_S:
            self.recent.popleft()
        if self._spans and self._spans[-1].joins(span):
            self._spans[-1].add(span)
        else:
            self._spans.append(replace(span))

    def _event(self, record: Mapping[str, Any]) -> None:
        name = str(record["name"])
        if not abs(float(record["t"])) < LATEST_S:
            raise ValueError("its time is in no calendar")
        self.events.append(record)
        if name in _PLAN_EVENTS:
            self.decisions.append(record)
        if name == "gear":
            self.gear = str(record["gear"])
        elif name == "cap":
            self.cap = float(record["cap"])
        elif name == "decision" and record.get("action") is not None:
            self.cap = float(record["action"]["cap"])


def _check(entry: Mapping[str, Any]) -> None:
    """Raise what :meth:`RankState.add` knows for a damaged entry, before a part of it counts."""
    grams = [entry[name] for name in ("op_g", "emb_g") if entry[name] is not None]
    figures = [*grams, *(entry[name] for name in ("t0", "t1", "pue", "steps", "tokens", "samples"))]
    figures.append(entry["carbon"]["g_per_kwh"] or 0.0)
    for device in entry["devices"].values():
        figures += [device["j"], device["missing_s"]]
        if not isinstance(device["prov"], str):
            raise TypeError("a provenance is no text")
    if not all(abs(figure) < _MOST for figure in figures):
        raise ValueError("a figure is not finite")
    list(entry.get("gears", {}))


def rate_per_s(spans: Sequence[Span], what: str) -> float | None:
    """Return steps, tokens, samples or joules a second over the last entries; None where there are none.

    Args:
        spans: Entries.
        what: Name of a field of :class:`Span`.
    """
    seconds = sum(span.seconds for span in spans)
    return sum(getattr(span, what) for span in spans) / seconds if seconds > 0 else None
