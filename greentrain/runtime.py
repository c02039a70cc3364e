"""One run from start to close: sampler, books, journal, claims. ``GreenSession`` drives it.

Life of a run::

    Starting --first reading--> Running --close()/SIGTERM/exit--> Closing --last booking--> Closed
                                   ^   |
                                   +---+  every book_s: claim what is free, book, write one line
"""

import contextlib
import dataclasses
import logging
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from greentrain.accounting.bookkeeper import Bookkeeper
from greentrain.accounting.embodied import EmbodiedRate, embodied_rates
from greentrain.accounting.timeline import Mark
from greentrain.clock import Clock
from greentrain.config import GreenConfig
from greentrain.errors import GreenTrainWarning
from greentrain.journal import Journal, rank_path
from greentrain.ledger import EnergyLedger, Totals, read_run
from greentrain.power.claims import Claims, claims_dir, preferred
from greentrain.power.curve import EnergyCurve
from greentrain.power.sampler import Sampler
from greentrain.runfolder import run_json, write_json
from greentrain.types import (
    FORMAT_VERSION,
    CarbonSignal,
    DeviceKind,
    LedgerEntry,
    PowerMeter,
    Provenance,
    Sensor,
    Topology,
)

log = logging.getLogger(__name__)

MAX_MARKS = 1 << 18
"""Marks that wait for the bookkeeper: minutes of them; older ones fall out if its thread is stuck."""
MAX_LAG_S = 5.0
"""A sensor that is silent for longer is booked as missing, so that the others' energy is not held back."""
FIRST_BOOK_S = 1.0
"""First ledger interval (s); they grow with the run to ``run.book_s``."""


class ActiveRun:
    """A run being measured.

    Args:
        config: The checked configuration.
        topology: Place of this process in the job.
        meter: Opened meter; closed with the run.
        signal: Carbon intensity.
        clock: Time.
        run_id: Id of the run.
        carried: Totals of earlier parts of this run, from a checkpoint.
        parameters: Number of model parameters, where known.
        on_second: Called about once a second, in the sampler thread.

    Raises:
        RunFolderError: The run folder cannot be written.
    """

    def __init__(
        self,
        *,
        config: GreenConfig,
        topology: Topology,
        meter: PowerMeter,
        signal: CarbonSignal,
        clock: Clock,
        run_id: str,
        carried: Totals | None = None,
        parameters: int | None = None,
        on_second: Callable[["ActiveRun"], None] = lambda run: None,
    ) -> None:
        self.config = config
        self.topology = topology
        self.meter = meter
        self.signal = signal
        self.run_id = run_id
        self.parameters = parameters
        self.folder = Path(config.run.dir) / run_id
        self.last_entry: LedgerEntry | None = None
        self.closed = False
        self.marks: deque[tuple[Any, ...]] = deque(maxlen=MAX_MARKS)
        self._clock = clock
        self._on_second = on_second
        self._next_second_s = 0.0
        self._lock = threading.RLock()
        path = rank_path(self.folder, topology.rank)
        resumed = path.exists() and path.stat().st_size > 0
        self._journal = Journal(path)
        self.ledger = EnergyLedger(self._journal, self._earlier(carried) if resumed else carried)
        self._carried = None if resumed else carried
        self.t0_s = clock.monotonic_s()
        self._offset_s = clock.unix_s() - self.t0_s
        self._claims = Claims(claims_dir(), {"run_id": run_id, "rank": topology.rank})
        self._curves: dict[str, EnergyCurve] = {}
        self._candidates: dict[str, EnergyCurve] = {}
        self._unread: list[Sensor] = []
        self._node_rates = embodied_rates([sensor.device for sensor in meter.sensors], config.carbon)
        self._rates: dict[str, EmbodiedRate] = {}
        self._claim_at_start()
        self._books = self._open_books()
        self._next_book_s = 0.0
        self._warned: set[str] = set()
        self._sampler = Sampler(
            meter,
            _Both(self._curves, self._candidates),
            sample_s=config.power.sample_s,
            clock=clock,
            on_tick=self._tick,
            tick_s=min(1.0, config.run.book_s),
            on_probe=self._write_sensors,
        )

    def start(self) -> None:
        """Write the opening line, take the first reading and start the sampler."""
        self._write_run_json()
        self._journal.append(
            {
                "kind": "open",
                "format": FORMAT_VERSION,
                "run_id": self.run_id,
                **dataclasses.asdict(self.topology),
                "pid": os.getpid(),
                "t": self._clock.unix_s(),
                "sensors": self._sensor_records(),
                "excluded": [],
                "carried": self._carried.to_dict() if self._carried else None,
            }
        )
        self.t0_s = self._clock.monotonic_s()  # as late as can be: what is used before the first reading is lost
        self._books = self._open_books()
        for curve in (*self._curves.values(), *self._candidates.values()):
            curve.start(self.t0_s)
        self._next_book_s = self.t0_s + min(FIRST_BOOK_S, self.config.run.book_s)
        self._sampler.start()

    def _open_books(self) -> Bookkeeper:
        return Bookkeeper(
            t0_s=self.t0_s, unix_offset_s=self._offset_s, signal=self.signal, pue=self.config.carbon.pue
        )

    @property
    def sensors(self) -> list[Sensor]:
        """Sensors of the devices that this rank books, unreadable ones included."""
        return [curve.sensor for curve in self._curves.values()] + self._unread

    @property
    def busy_s(self) -> float:
        """CPU seconds of the background thread so far."""
        return self._sampler.busy_s

    def event(self, name: str, text: str, **more: Any) -> None:
        """Write an event to the journal; a gap or warning is also shown, once a text."""
        with self._lock:
            self._journal.append({"kind": "event", "t": self._clock.unix_s(), "name": name, "text": text, **more})
        if name in ("gap", "warning"):
            self.warn(text)

    def warn(self, text: str) -> None:
        """Show a warning once a text; never raises, even where warnings are errors."""
        if text not in self._warned:
            self._warned.add(text)
            with contextlib.suppress(Exception):
                warnings.warn(f"GreenTrain: {text}; training goes on", GreenTrainWarning, stacklevel=3)

    def window(self, t0_s: float, t1_s: float) -> tuple[dict[str, float], float] | None:
        """Return energy by device (J) and missing device-seconds between two monotonic times.

        Returns:
            None while the curves are not known up to ``t1_s``, or no longer from ``t0_s``.
        """
        energies: dict[str, float] = {}
        missing_s = 0.0
        with self._lock:
            for uid, curve in self._curves.items():
                if curve.frontier_s < t1_s or curve.oldest_s > t0_s:
                    return None
                energies[uid], gap_s = curve.between(t0_s, t1_s)
                missing_s += gap_s
        return energies, missing_s

    def now(self) -> tuple[float, float]:
        """Return energy so far (J), resumed parts included, and the power of the last second (W), of known parts."""
        with self._lock:
            energy_j, power_w = self.ledger.totals.energy_j, 0.0
            for curve in self._curves.values():
                frontier_s = curve.frontier_s
                energy_j += curve.between(self._books.t_s, frontier_s)[0]
                power_w += curve.between(frontier_s - 1.0, frontier_s)[0] / max(min(1.0, frontier_s - self.t0_s), 1e-3)
        return energy_j, power_w

    def close(self, reason: str) -> None:
        """Book the rest, write the closing line, release everything. Idempotent; never raises."""
        if self.closed:
            return
        self.closed = True
        stopped = self._sampler.stop()
        if not self._lock.acquire(timeout=5.0):
            log.warning("GreenTrain: the bookkeeper hangs in a driver; the last interval is not booked")
            return
        try:
            self._close(reason, stopped)
        except Exception as error:
            log.warning("GreenTrain: closing the run failed: %r", error)
        finally:
            self._lock.release()

    def _close(self, reason: str, stopped: bool) -> None:
        t1_s = self._clock.monotonic_s()
        if stopped:
            time.sleep(min(0.15, max((curve.wait_s(t1_s) for curve in self._curves.values()), default=0.0)))
            self._sampler.read(final=True)
            self._sampler.settle()
        self._claim_rest()
        for curve in self._curves.values():
            curve.finish(t1_s)
        self._record(t1_s)
        self._journal.append(
            {"kind": "close", "t": t1_s + self._offset_s, "reason": reason, "totals": self.ledger.totals.to_dict()}
        )
        self._journal.close()
        self._claims.release()
        if stopped:
            self.meter.close()

    def _tick(self, now_s: float) -> None:
        if now_s >= self._next_book_s:
            self._book(now_s)
        if now_s >= self._next_second_s:
            self._next_second_s = now_s + 1.0
            self._on_second(self)

    def _book(self, now_s: float) -> None:
        with self._lock:
            if self.closed:
                return
            self._claim_rest()
            for curve in self._curves.values():
                if now_s - curve.frontier_s > max(MAX_LAG_S, 4 * curve.sensor.period_s):
                    curve.advance_missing(now_s - curve.sensor.period_s)
            t1_s = min((curve.frontier_s for curve in self._curves.values()), default=now_s)
            if t1_s > self._books.t_s:
                self._record(t1_s)
        elapsed_s = now_s - self.t0_s
        self._next_book_s = now_s + min(self.config.run.book_s, max(FIRST_BOOK_S, elapsed_s / 10))

    def _record(self, t1_s: float) -> None:
        marks = []
        with contextlib.suppress(IndexError):
            while True:
                marks.append(Mark(*self.marks.popleft()))
        self._books.timeline.add(marks)
        entry = self._books.book(t1_s, self._curves, self._unread, self._rates)
        self.ledger.record(entry)
        self.last_entry = entry

    # -- devices -----------------------------------------------------------------------------------------------

    def _claim_at_start(self) -> None:
        kinds: dict[DeviceKind, int] = {}
        sensors = list(self.meter.sensors)
        totals = {kind: sum(s.device.kind is kind for s in sensors) for kind in DeviceKind}
        for sensor in sensors:
            kind = sensor.device.kind
            position = kinds.get(kind, 0)
            kinds[kind] = position + 1
            curve = EnergyCurve(sensor, self.t0_s, self.event)
            if sensor.provenance is Provenance.MISSING:
                if self.topology.local_rank == 0:
                    self._unread.append(sensor)
                    self._rate(sensor)
                continue
            mine = not sensor.shared or bool(self._claims.degraded)
            if sensor.shared and kind is DeviceKind.GPU:
                mine = preferred(position, totals[kind], self.topology.local_rank, self.topology.local_world_size)
            elif sensor.shared:
                mine = self.topology.local_rank == 0
            if mine and (not sensor.shared or self._claims.take(sensor.device.uid)):
                self._own(curve)
            else:
                self._candidates[sensor.device.uid] = curve

    def _claim_rest(self) -> None:
        # What nobody booked since the start is ours from the start on; a device that somebody held is taken over now.
        first = self._books.t_s == self.t0_s
        before = len(self._curves)
        for uid, curve in list(self._candidates.items()):
            name = f"{curve.sensor.device.name} ({uid})"
            if self._claims.take(uid):
                del self._candidates[uid]
                if not first or self._claims.free_since_s(uid) > self.t0_s:
                    curve = EnergyCurve(curve.sensor, self._books.t_s, self.event)
                    self.event("claim", f"{name} is booked by this rank from here on")
                    if self.closed:
                        continue
                self._own(curve)
                self._write_sensors()
            elif first:
                holder = self._claims.holder(uid)
                if holder.get("run_id") not in (None, self.run_id):
                    self.event(
                        "warning",
                        f"{name} is booked by another run, {holder.get('run_id')} (pid {holder.get('pid')}): its energy"
                        " is in that run's report, not in this one's",
                    )
        if first or len(self._curves) != before:
            self._sampler.select(frozenset(self._curves))

    def _own(self, curve: EnergyCurve) -> None:
        self._curves[curve.sensor.device.uid] = curve
        self._rate(curve.sensor)

    def _rate(self, sensor: Sensor) -> None:
        # A modelled CPU has a sensor in every rank, but the node was made once.
        rate = self._node_rates.get(sensor.device.uid)
        if rate is not None and (sensor.shared or self.topology.local_rank == 0):
            self._rates[sensor.device.uid] = rate

    # -- files -------------------------------------------------------------------------------------------------

    def _sensor_records(self) -> list[dict[str, Any]]:
        records = []
        for sensor in self.sensors:
            device = sensor.device
            record = {"uid": device.uid, "kind": str(device.kind), "name": device.name}
            for item in dataclasses.fields(sensor):
                if item.name not in ("device", "shared", "tick_edge_s"):
                    record[item.name] = getattr(sensor, item.name)
            rate = self._rates.get(device.uid)
            record["embodied_g_per_h"] = None if rate is None else rate.to_dict()  # type: ignore[assignment]
            records.append(record)
        return records

    def _write_sensors(self) -> None:
        with self._lock:
            self._journal.append({"kind": "sensors", "sensors": self._sensor_records()})

    def _write_run_json(self) -> None:
        if self.topology.rank != 0:
            return
        path = self.folder / "run.json"
        if path.exists():
            self.event("resume", "the run continues in a new process")
            return
        record = run_json(
            run_id=self.run_id,
            config=self.config,
            topology=self.topology,
            created_unix_s=self._clock.unix_s(),
            carbon=self.signal.describe(),
            parameters=self.parameters,
        )
        try:
            write_json(path, record)
        except OSError as error:
            self.event("warning", f"cannot write {path} ({error.strerror})")

    def _earlier(self, carried: Totals | None) -> Totals:
        try:
            for rank in read_run(self.folder).ranks:
                if rank.rank == self.topology.rank:
                    return rank.totals
        except Exception as error:
            log.warning("GreenTrain: cannot read the earlier part of run %s: %r", self.run_id, error)
        return carried or Totals()


class _Both(Mapping[str, EnergyCurve]):
    """Booked curves and those whose claim is still open, as one mapping."""

    def __init__(self, first: Mapping[str, EnergyCurve], second: Mapping[str, EnergyCurve]) -> None:
        self._first, self._second = first, second

    def __getitem__(self, uid: str) -> EnergyCurve:
        found = self._first.get(uid)
        return found if found is not None else self._second[uid]

    def __iter__(self) -> Any:
        yield from self._first
        yield from self._second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)


def wait_for_ranks(folder: Path, world_size: int, timeout_s: float) -> bool:
    """Wait until every rank has written its closing line, so that a report holds all of them."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(Exception):
            ranks = read_run(folder).ranks
            if len(ranks) >= world_size and all(rank.close is not None for rank in ranks):
                return True
        time.sleep(0.05)
    return False
