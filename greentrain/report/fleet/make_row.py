"""Makes the row of a run from what its journals say.

What one journal says, the sums apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import Totals
from greentrain.report import MOST_ENTRIES
from greentrain.report.estimated import estimated
from greentrain.report.fleet.cells import Cells, Sensors
from greentrain.report.fleet.row import RunRow
from greentrain.report.summary import summarize
from greentrain.types import FORMAT_VERSION, Provenance, kwh_from_j


@dataclass(slots=True, kw_only=True)
class RankFacts:
    """Facts of one rank; what it used goes to the run's cells."""

    opens: list[Mapping[str, Any]] = field(default_factory=list)
    sensors: Sensors = field(default_factory=Sensors)
    names: dict[str, str] = field(default_factory=dict)
    carried: Totals = field(default_factory=Totals)
    reason: str | None = None
    wall_s: float = 0.0
    steps: int = 0
    gear_steps: dict[str, int] = field(default_factory=dict)
    end_s: float | None = None

    def take(self, record: Mapping[str, Any], cells: Cells) -> None:
        """Take over one record.

        Raises:
            RunFolderError: It has a newer format.
        """
        kind = record["kind"]
        if kind == "entry":
            self._entry(record, cells)
        elif kind == "open":
            if record["format"] > FORMAT_VERSION:
                raise RunFolderError(
                    f"format {record['format']}, this GreenTrain reads up to {FORMAT_VERSION}: upgrade it"
                )
            self.opens.append(record)
            self.reason = None
            if record.get("carried"):
                self.carried = self.carried + Totals.from_dict(record["carried"])
            self._learn(record)
        elif kind == "sensors":
            self._learn(record)
        elif kind == "close":
            self.reason = str(record.get("reason") or "finished")

    def _entry(self, record: Mapping[str, Any], cells: Cells) -> None:
        cells.add(record, self.sensors)
        self.wall_s += record["t1"] - record["t0"]
        self.steps += record["steps"]
        self.end_s = max(record["t1"], self.end_s or 0.0)
        for gear, use in record.get("gears", {}).items():
            self.gear_steps[gear] = self.gear_steps.get(gear, 0) + use["steps"]

    def _learn(self, record: Mapping[str, Any]) -> None:
        self.sensors.learn(record["sensors"])
        self.names.update({sensor["uid"]: str(sensor["name"]) for sensor in record["sensors"]})

    def carry(self, cells: Cells, pue: float) -> None:
        """Book what earlier parts of the run used, whose journals are not in the folder."""
        if self.carried != Totals():
            cells.carry(self.carried, pue)
            self.wall_s += self.carried.duration_s
            self.steps += self.carried.steps
            for gear, use in self.carried.by_gear.items():
                self.gear_steps[gear] = self.gear_steps.get(gear, 0) + use.steps


MOST_INT: Final = 2**53
"""Figures are below it: a thousand runs with the largest still add up in a table's 64 bits."""
WRONG_DATA: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, IndexError)
"""What records raise that make no sense."""
_FRAMEWORKS: Final = ("torch", "lightning", "accelerate", "transformers", "deepspeed")
_BEFORE_UNKNOWN: Final = ("exception", "sigterm")
"""Ends that say more than that another rank has none; in this order, as in ``summarize``."""


def make_row(
    folder: Path, run: Mapping[str, Any], run_id: str, ranks: list[RankFacts], cells: Cells, market: float | None
) -> RunRow:
    """Return the row of a run.

    Args:
        folder: Its folder.
        run: run.json.
        run_id: Its id.
        ranks: Its journals.
        cells: Its sums.
        market: Contracted factor (g/kWh), None without one.

    Raises:
        RunFolderError: A count is absurdly large.
    """
    tags = {clean(key): clean(value) for key, value in dict(run.get("tags") or {}).items()}
    sums = Sums.of(cells)
    tokens = sum(work.tokens for work in cells.work.values()) or None
    samples = sum(work.samples for work in cells.work.values()) or None
    wall_s = max(rank.wall_s for rank in ranks) or None
    steps = max(rank.steps for rank in ranks) or None
    if steps is not None and steps >= MOST_INT:
        raise RunFolderError("a count of its ledger is absurdly large")
    total_g = None if sums.operational_g is None else sums.operational_g + (sums.embodied_g or 0.0)
    packages, world_size = dict(run.get("packages") or {}), run.get("world_size") or ranks[0].opens[0].get("world_size")
    config = run.get("config") or {}
    names = [name for rank in ranks for name in rank.names.values()]
    starts = [float(opened["t"]) for rank in ranks for opened in rank.opens[:1] if "t" in opened]
    created_s = run.get("created_unix_s")
    return RunRow(
        run_id=run_id,
        folder=folder,
        name=clean(run.get("name") or run_id),
        project=tags.get("project"),
        user=tags.get("user"),
        tags=tags,
        zone=_zone(cells, run),
        signal=clean_or_none((run.get("carbon") or {}).get("signal")),
        created_unix_s=min(starts, default=None) if created_s is None else float(created_s),
        end_unix_s=max((rank.end_s for rank in ranks if rank.end_s is not None), default=None),
        wall_s=wall_s,
        reason=_reason([rank.reason for rank in ranks]),
        world_size=None if world_size is None else int(world_size),
        missing_ranks=max(int(world_size or 0) - len(ranks), 0),
        devices=tuple(dict.fromkeys(map(clean, names))),
        frameworks=tuple(f"{name} {clean(packages[name])}" for name in _FRAMEWORKS if name in packages),
        steps=steps,
        tokens=tokens,
        samples=samples,
        energy_j=sums.energy_j,
        measured_j=sums.measured_j,
        modelled_j=sums.modelled_j,
        missing_s=max(sums.missing_s, 0.0),
        device_s=sums.device_s,
        facility_j=sums.facility_j,
        unpriced_j=sums.unpriced_j,
        operational_g=sums.operational_g,
        market_g=sums.market_g(market),
        embodied_g=sums.embodied_g,
        total_g=total_g,
        saved_g=_saved_g(folder) if run.get("plan") else None,
        g_per_token=_ratio(total_g, tokens),
        j_per_token=_ratio(sums.energy_j, tokens),
        tokens_per_s=_ratio(tokens, wall_s),
        gears=_gear_shares(ranks),
        policy=clean_or_none((config.get("policy") or {}).get("name")),
        estimate_ratio=_estimate_ratio(folder, tokens, wall_s, sums),
        greentrain_version=clean_or_none(run.get("greentrain_version")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Cells of a run, added up; None where nothing is known."""

    energy_j: float | None
    measured_j: float | None
    modelled_j: float | None
    facility_j: float | None
    unpriced_j: float | None
    device_s: float
    missing_s: float
    operational_g: float | None
    embodied_g: float | None

    @classmethod
    def of(cls, cells: Cells) -> "Sums":
        """Add up."""
        parts = cells.cells.items()
        known = [cell for key, cell in parts if key.provenance != Provenance.MISSING]
        by_provenance = {
            name: sum(cell.energy_j for key, cell in parts if key.provenance == name)
            for name in (Provenance.MEASURED, Provenance.MODELLED)
        }
        energy_j = sum(cell.energy_j for cell in known)
        priced = any(cell.priced for cell in known) or energy_j == 0
        embodied = [cell.embodied_g for _, cell in parts if cell.embodied]
        return cls(
            energy_j=energy_j if known else None,
            measured_j=by_provenance[Provenance.MEASURED] if known else None,
            modelled_j=by_provenance[Provenance.MODELLED] if known else None,
            facility_j=sum(cell.facility_j for cell in known) if known else None,
            unpriced_j=sum(cell.unpriced_j for cell in known) if known else None,
            device_s=sum(cell.device_s for cell in known),
            missing_s=sum(cell.missing_s for _, cell in parts),
            operational_g=sum(cell.operational_g for cell in known) if known and priced else None,
            embodied_g=sum(embodied) if embodied else None,
        )

    def market_g(self, market_g_per_kwh: float | None) -> float | None:
        """Return grams by a contracted factor (g/kWh); None where either is unknown."""
        if market_g_per_kwh is None or self.facility_j is None:
            return None
        return kwh_from_j(self.facility_j) * market_g_per_kwh


def _zone(cells: Cells, run: Mapping[str, Any]) -> str | None:
    by_zone: dict[str, float] = {}
    for key, cell in cells.cells.items():
        if key.zone is not None:
            by_zone[key.zone] = by_zone.get(key.zone, 0.0) + cell.energy_j
    most = max(by_zone, key=lambda zone: by_zone[zone], default=None)
    return clean_or_none(most or (run.get("carbon") or {}).get("zone"))


def _reason(reasons: list[str | None]) -> str | None:
    for word in _BEFORE_UNKNOWN:
        if word in reasons:
            return word
    if None in reasons:
        return None
    return next((clean(word) for word in reasons if word != "finished"), "finished")


def _gear_shares(ranks: list[RankFacts]) -> dict[str, float]:
    steps: dict[str, int] = {}
    for rank in ranks:
        for gear, count in rank.gear_steps.items():
            steps[clean(gear)] = max(steps.get(clean(gear), 0), count)
    whole = sum(steps.values())
    return {gear: count / whole for gear, count in steps.items()} if whole > 0 else {}


def _saved_g(folder: Path) -> float | None:
    try:
        plan = summarize(read_run(folder, most=MOST_ENTRIES))["plan"]
    except (RunFolderError, *WRONG_DATA):
        return None  # the books are whole; only the plan's own records are not
    if plan is None or plan["saving_vs_static"] is None:
        return None
    return float(plan["static_g"] - plan["actual_g"])


def _estimate_ratio(folder: Path, tokens: int | None, wall_s: float | None, sums: Sums) -> float | None:
    found = estimated(
        folder,
        {
            "run": {},
            "work": {"tokens": tokens},
            "time": {"wall_s": wall_s},
            "energy": {"energy_j": sums.energy_j},
            "carbon": {"operational_location_g": sums.operational_g},
        },
    )
    figure = None if found is None else found["figures"]["energy_j"]
    return None if figure is None else figure["ratio"]


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def clean(value: object) -> str:
    """Return text that UTF-8 can hold: JSON can escape halves of a character."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def clean_or_none(value: object) -> str | None:
    """Return the same, or None for nothing."""
    return clean(value) if value else None
