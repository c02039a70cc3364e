"""What one journal says, the sums apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from greentrain.errors import RunFolderError
from greentrain.fleet.cells import Cells, Sensors
from greentrain.ledger import Totals
from greentrain.types import FORMAT_VERSION


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
