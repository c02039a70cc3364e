"""The devices of one rank: which it books, which others book, and what making them cost."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from greentrain.config.schema import CarbonConfig
from greentrain.ledger.embodied import EmbodiedRate, embodied_rates, why_unknown
from greentrain.power.claims import Claims, claims_dir, preferred
from greentrain.power.curve import EnergyCurve
from greentrain.types import DeviceKind, Provenance, Sensor, Topology


class ClaimedDevices(Mapping[str, EnergyCurve]):
    """Curves by device uid: those that this rank books, and those whose claim is still open.

    Args:
        sensors: All sensors of the meter, in its order.
        topology: Place of this rank.
        owner: What other processes are told about this one.
        carbon: Embodied figures and lifetimes.
        on_event: Called with a name and a sentence when a device changes hands or its sensor misbehaves.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        topology: Topology,
        owner: Mapping[str, str | int],
        carbon: CarbonConfig,
        on_event: Callable[[str, str], None],
    ) -> None:
        self.curves: dict[str, EnergyCurve] = {}
        """Of the devices that this rank books."""
        self.unread: list[Sensor] = []
        """Devices that exist but cannot be read; booked as missing by local rank 0."""
        self.rates: dict[str, EmbodiedRate] = {}
        """Embodied rate of the devices that this rank books and that have one."""
        self.excluded: list[dict[str, str]] = []
        """Devices that another run on this node books: uid, name and reason."""
        self._candidates: dict[str, EnergyCurve] = {}
        self._claims = Claims(claims_dir(), owner)
        self._run_id = owner.get("run_id")
        self._topology = topology
        self._node = [sensor.device for sensor in sensors]
        self._node_rates = embodied_rates(self._node, carbon)
        self._on_event = on_event
        self._t0_s = 0.0
        positions: dict[DeviceKind, int] = {}
        for sensor in sensors:
            kind = sensor.device.kind
            position = positions[kind] = positions.get(kind, -1) + 1
            self._sort(sensor, position, sum(s.device.kind is kind for s in sensors))

    def __getitem__(self, uid: str) -> EnergyCurve:
        found = self.curves.get(uid)
        return found if found is not None else self._candidates[uid]

    def __iter__(self) -> Iterator[str]:
        yield from self.curves
        yield from self._candidates

    def __len__(self) -> int:
        return len(self.curves) + len(self._candidates)

    @property
    def sensors(self) -> list[Sensor]:
        """Sensors of what this rank books, unreadable ones included."""
        return [curve.sensor for curve in self.curves.values()] + self.unread

    def start(self, t0_s: float) -> None:
        """Let all curves begin at a monotonic time (s)."""
        if self._claims.degraded:
            self._on_event("warning", f"ranks of this node may book the same device: {self._claims.degraded}")
        self._t0_s = t0_s
        for curve in self.values():
            curve.start(t0_s)

    def claim_rest(self, booked_s: float, closing: bool) -> bool:
        """Book what nobody books: left over at the start, or of a rank that has ended.

        What nobody booked since the start counts from the start on; a device that somebody held is taken over now.

        Args:
            booked_s: Monotonic time up to which the books are closed (s).
            closing: The run ends: there is nothing to take over any more.

        Returns:
            True if the devices to be read have changed.
        """
        first = booked_s == self._t0_s
        if closing and not first:
            return False
        changed = first and bool(self._candidates)
        for uid, curve in list(self._candidates.items()):
            if not self._claims.take(uid):
                if first:
                    self._tell_holder(curve.sensor)
                continue
            free_s = max(booked_s, self._claims.free_since_s(uid))
            late = not first or free_s > self._t0_s
            if late and closing:
                self._on_event("claim", f"{_name(curve.sensor)} was booked by another process up to now")
                continue
            if late:
                curve = EnergyCurve(curve.sensor, free_s, self._on_event)  # before, it is in the other rank's books
                if curve.sensor.tick_s is not None:
                    curve.use_tick(curve.sensor.tick_s)
                self._on_event("claim", f"{_name(curve.sensor)} is booked by this rank from here on")
            del self._candidates[uid]
            self.excluded = [item for item in self.excluded if item["uid"] != uid]
            self._own(curve)
            changed = True
        return changed

    def release(self) -> None:
        """Give the devices back to the node. Idempotent."""
        self._claims.release()

    def records(self) -> list[dict[str, Any]]:
        """Return the sensors as the journal holds them."""
        records = []
        for sensor in self.sensors:
            device = sensor.device
            record: dict[str, Any] = {"uid": device.uid, "kind": str(device.kind), "name": device.name}
            for item in dataclasses.fields(sensor):
                if item.name not in ("device", "shared", "tick_edge_s"):
                    record[item.name] = getattr(sensor, item.name)
            rate = self.rates.get(device.uid)
            record["embodied_g_per_h"] = None if rate is None else rate.to_dict()
            if device.uid not in self._node_rates:
                record["embodied_note"] = why_unknown(device, self._node)
            records.append(record)
        return records

    def _sort(self, sensor: Sensor, position: int, of_kind: int) -> None:
        place = self._topology
        if sensor.provenance is Provenance.MISSING:
            if place.local_rank == 0:
                self.unread.append(sensor)
                self._rate(sensor)
            return
        curve = EnergyCurve(sensor, 0.0, self._on_event)
        if not sensor.shared:
            self._own(curve)
            return
        if sensor.device.kind is DeviceKind.GPU:
            mine = preferred(position, of_kind, place.local_rank, place.local_world_size)
        else:
            mine = place.local_rank == 0
        if mine and self._claims.take(sensor.device.uid):
            self._own(curve)
        else:
            self._candidates[sensor.device.uid] = curve

    def _own(self, curve: EnergyCurve) -> None:
        self.curves[curve.sensor.device.uid] = curve
        self._rate(curve.sensor)

    def _rate(self, sensor: Sensor) -> None:
        # A modelled CPU has a sensor in every rank, but the node was made once.
        rate = self._node_rates.get(sensor.device.uid)
        if rate is not None and (sensor.shared or self._topology.local_rank == 0):
            self.rates[sensor.device.uid] = rate

    def _tell_holder(self, sensor: Sensor) -> None:
        holder = self._claims.holder(sensor.device.uid)
        run_id = holder.get("run_id")
        if run_id not in (None, self._run_id):
            reason = f"booked by another run, {run_id} (pid {holder.get('pid')})"
            self.excluded.append({"uid": sensor.device.uid, "name": sensor.device.name, "reason": reason})
            self._on_event(
                "warning",
                f"{_name(sensor)} is {reason}: its energy is in that run's report, not in this one's",
            )


def _name(sensor: Sensor) -> str:
    return f"{sensor.device.name} ({sensor.device.uid})"
