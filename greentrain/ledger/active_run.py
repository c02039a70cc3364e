"""One run from start to close: sampler, books, journal, claims. ``GreenSession`` drives it.

Life of a run::

    Starting --first reading--> Running --close()/SIGTERM/exit--> Closing --last booking--> Closed
                                   ^   |
                                   +---+  every book_s: claim what is free, book, write one line

``ClaimedDevices`` says which devices this rank books and which others book; ``metrics_of`` has the figures as of the
last booking for a logger.
"""

import contextlib
import dataclasses
import itertools
import logging
import os
import re
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from greentrain.config.schema import CarbonConfig, GreenConfig
from greentrain.errors import GreenTrainWarning, NewerFormatError, RunFolderError
from greentrain.ledger.bookkeeper import Bookkeeper, Mark, folded
from greentrain.ledger.embodied import EmbodiedRate, embodied_rates, why_unknown
from greentrain.ledger.journal import ATTRIBUTION, CLOCKS, RUN_JSON, SHARED, Journal, rank_path, read_object
from greentrain.ledger.pue import in_run_time, open_facility
from greentrain.ledger.reader import OtherRanksTotals, RankBooks, RankRecord, read_books, read_run_json, sums_of_others
from greentrain.ledger.run_folder import run_json
from greentrain.ledger.totals import EnergyLedger, Totals
from greentrain.power.claims import Claims, claims_dir, gpus_in_use, has_ended, preferred
from greentrain.power.device_clock import DeviceClock, Stamps
from greentrain.power.sampler import EnergyCurve, Sampler
from greentrain.types import (
    FORMAT_VERSION,
    S_PER_HOUR,
    CarbonSignal,
    DeviceKind,
    DeviceWindow,
    LedgerEntry,
    PowerMeter,
    PriceSignal,
    Provenance,
    Sensor,
    Topology,
    WindowEnergy,
)
from greentrain.utils.background import BackgroundWork
from greentrain.utils.clock import Clock
from greentrain.utils.files import write_json


class ClaimedDevices(Mapping[str, EnergyCurve]):
    """Curves by device uid: those that this rank books, and those whose claim is still open.

    Args:
        sensors: All sensors of the meter, in its order.
        topology: Place of this rank.
        owner: The facts that other processes are told about this one.
        carbon: Embodied figures and lifetimes.
        on_event: A function that is called with a name and a sentence when a device changes hands or its sensor
            misbehaves.
        named: The GPUs were named by ``power.gpus``, so they are booked whether or not they are used.
        only_used: Book no GPU that this process is not known to compute on.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        topology: Topology,
        owner: Mapping[str, str | int],
        carbon: CarbonConfig,
        on_event: Callable[[str, str], None],
        named: bool = False,
        *,
        only_used: bool = False,
    ) -> None:
        self.curves: dict[str, EnergyCurve] = {}
        """Of the devices that this rank books."""
        self.references: dict[str, EnergyCurve] = {}
        """Of sensors that contain others: local rank 0 keeps them, and nobody claims them, as they are in no sum."""
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
        self._rate_records = {uid: rate.to_dict() for uid, rate in self._node_rates.items()}
        self._on_event = on_event
        self._t0_s = 0.0
        self._named, self._only_used = named, only_used
        self._used: set[str] = set()
        self._inherited: set[str] = set()
        self.gpus = [s.device.uid for s in sensors if s.device.kind is DeviceKind.GPU and s.shared]
        """All GPUs that this process sees, in the order of the meter."""
        self._look_at_use({})
        positions: dict[DeviceKind, int] = {}
        for sensor in sensors:
            kind = sensor.device.kind
            position = positions[kind] = positions.get(kind, -1) + 1
            self._sort(sensor, position, sum(s.device.kind is kind for s in sensors))

    def __getitem__(self, uid: str) -> EnergyCurve:
        found = self.curves.get(uid) or self.references.get(uid)
        return found if found is not None else self._candidates[uid]

    def __iter__(self) -> Iterator[str]:
        yield from self.curves
        yield from self.references
        yield from self._candidates

    def __len__(self) -> int:
        return len(self.curves) + len(self.references) + len(self._candidates)

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

    def claim_rest(self, booked_s: float, closing: bool, pids: Mapping[str, Collection[int]]) -> bool:
        """Book what nobody books: left over at the start, or of a rank that has ended.

        What nobody booked since the start counts from the start on; a device that somebody held is taken over now. Once
        it is known which GPUs this process uses, the others are left to whoever does (:meth:`let_go`), but for those
        of a rank of this run that was killed.

        Args:
            booked_s: Monotonic time up to which the books are closed (s).
            closing: The run ends: there is nothing to take over any more.
            pids: By GPU, the processes that its driver shows on it.

        Returns:
            True if the devices to be read have changed.
        """
        first = booked_s == self._t0_s
        if closing and not first:
            return False
        changed = first and bool(self._candidates)
        self._look_at_use(pids)
        for uid, curve in list(self._candidates.items()):
            if not (self._may_use(uid) or self._is_orphan(uid)):
                continue
            if not self._claims.take(uid):
                if uid in self._used:
                    self._claims.ask(uid)
                if first:
                    self._tell_holder(curve.sensor)
                continue
            free_s = max(booked_s, self._claims.free_since_s(uid))
            late = not first or free_s > self._t0_s
            if late and closing:
                self._on_event("claim", f"{_name(curve.sensor)} was booked by another process up to now")
                self._claims.let_go(uid, free_s)  # at once, and as it was: the next run of a faster rank may want it
                continue
            if late:
                curve = EnergyCurve(curve.sensor, free_s, self._on_event)  # before, it is in the other rank's books
                curve.start(free_s, known=False)
                if curve.sensor.tick_s is not None:
                    curve.use_tick(curve.sensor.tick_s)
                self._on_event("claim", f"{_name(curve.sensor)} is booked by this rank from here on")
            del self._candidates[uid]
            self.excluded = [item for item in self.excluded if item["uid"] != uid]
            self._own(curve)
            changed = True
        return changed

    def let_go(self, booked_s: float) -> bool:
        """Give back the GPUs that this process turned out not to use, and those that one needs that does.

        Args:
            booked_s: Monotonic time up to which the books are closed (s).

        Returns:
            True if the devices to be read have changed.
        """
        left = [uid for uid in self.curves if uid in self.gpus and not self._keeps(uid)]
        for uid in left:
            sensor = self.curves.pop(uid).sensor
            self.rates.pop(uid, None)
            self._candidates[uid] = EnergyCurve(sensor, booked_s, self._on_event)
            self._claims.let_go(uid, booked_s)
            self._on_event("claim", f"{_name(sensor)} is not used by this process, and not booked by it from here on")
        return bool(left)

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
                if item.name not in ("device", "shared", "tick_edge_s", "reference"):
                    record[item.name] = getattr(sensor, item.name)
            record["embodied_g_per_h"] = self._rate_records[device.uid] if device.uid in self.rates else None
            if device.uid not in self._node_rates:
                record["embodied_note"] = why_unknown(device, self._node)
            records.append(record)
        return records

    def _sort(self, sensor: Sensor, position: int, of_kind: int) -> None:
        place = self._topology
        if sensor.reference:
            if place.local_rank == 0:
                self.references[sensor.device.uid] = EnergyCurve(sensor, 0.0, self._on_event)
            return
        if sensor.provenance is Provenance.MISSING:
            if place.local_rank == 0:
                self.unread.append(sensor)
                self._rate(sensor)
            return
        curve = EnergyCurve(sensor, 0.0, self._on_event)
        if not sensor.shared:
            self._own(curve)
            return
        uid = sensor.device.uid
        if uid in self._used:
            mine = True
        elif sensor.device.kind is DeviceKind.GPU:
            mine = self._may_use(uid) and preferred(position, of_kind, place.local_rank, place.local_world_size)
        else:
            mine = place.local_rank == 0
        if mine and self._claims.take(uid):
            self._own(curve)
        else:
            self._claims.look(uid)
            self._candidates[uid] = curve

    def _look_at_use(self, pids: Mapping[str, Collection[int]]) -> None:
        if not self._named:
            self._used |= gpus_in_use(self.gpus, pids)

    def _may_use(self, uid: str) -> bool:
        return (not self._used and not self._only_used) or uid in self._used or uid not in self.gpus

    def _keeps(self, uid: str) -> bool:
        if uid in self._used or uid in self._inherited or self._named:
            return True
        return not self._used and not self._claims.is_asked_for(uid)

    def _is_orphan(self, uid: str) -> bool:
        holder = self._claims.holder(uid)
        if holder.get("run_id") == self._run_id and has_ended(holder):
            self._inherited.add(uid)
        return uid in self._inherited

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


log = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_MARKS: Final = 1 << 20
"""Marks that wait for the bookkeeper, 0.15 GB: older ones fall out where its thread is stuck, and are counted."""
HURRY_MARKS: Final = 1 << 16
"""More than these make the bookkeeper look at once."""
MANY_MARKS: Final = 1 << 18
"""Marks of one ledger interval; of more, steps are counted and phases are not told apart any more."""
_COUNTED: Final = ("step", "count")
SAVE_S: Final = 1.0
"""Longest wait on the training thread for books and disk (s)."""
CLOSE_S: Final = 8.0
"""Longest wait for the last booking (s): 5 s for a driver that hangs, and the disk."""
CLAIM_S = 3.0
"""How often to look whether a device of another rank has become free (s)."""
PEERS_S = 2.0
"""Shortest time between two looks at the other ranks' journals (s)."""
PEER_COST_S = 0.1
"""More ranks, rarer looks: one look at a rank in this many seconds, so 1,000 ranks are looked at in 100 s."""
MAX_LAG_S = 5.0
"""A sensor that is silent for longer is booked as missing, so that the others' energy is not held back."""
LIVE_S = 1.0
"""How often readings are worked in (s) while a live line shows them."""
SETTLE_S = 2.0
"""The same while nobody looks: each time costs a core about as much as a reading, and the last ones wait till asked."""
LATE_S = SETTLE_S + 0.5
"""Longest time by which a booking is late (s): readings wait to be worked in, a counter's last tick to be seen."""
LATE_TICK_S = 0.5
"""A tick of the sampler that is later than this (s) is not waited for: a driver may hold its thread."""
FAULTS: Final = ("gap", "recovered", "warning")
MOST_ALIKE: Final = 100
"""Events of a fault that are journalled: a sensor that fails at every other reading would fill the disk."""
_FIGURE: Final = re.compile(r"(?<![\w:/-])[-+]?\d[\w.+-]*|\b-?(?:nan|inf)\b")
CHANGES_S: Final = 1.0
"""Shortest time between two readings because power changes (s): a policy may shift its gear at each step."""
_REST: Final = Mark(0.0, "")[:-1]
"""What a queued mark may leave out."""
START_S: Final = 1.0
"""Longest wait on the training thread for what devices were given to do before the run (s)."""
QUEUED_S: Final = 3.0
"""Longest wait of the last booking for what devices still have to do (s); ``CLOSE_S`` holds a driver's 5 s beside."""
FIRST_BOOK_S = 1.0
"""First ledger interval (s); they grow with the run to ``run.book_s``."""


class ActiveRun:
    """A run being measured.

    Args:
        config: The checked configuration.
        folder: The run's folder; another one where a process of this node writes this run.
        topology: Place of this process in the job.
        meter: Opened meter; closed with the run.
        signal: The carbon intensity of the grid.
        price: The price of electricity; None: nobody says.
        clock: The clock that the run goes by.
        run_id: The id of the run.
        carried: The totals of earlier parts of this run, from a checkpoint.
        parameters: The number of model parameters, where known.
        on_second: A function that is called about once a second, in the sampler thread.

    Raises:
        RunFolderError: The run folder cannot be written, or a newer version began the run.
    """

    def __init__(
        self,
        *,
        config: GreenConfig,
        folder: Path,
        topology: Topology,
        meter: PowerMeter,
        signal: CarbonSignal,
        price: PriceSignal | None = None,
        clock: Clock,
        run_id: str,
        carried: Totals | None = None,
        parameters: int | None = None,
        on_second: Callable[["ActiveRun"], None] = lambda run: None,
    ) -> None:
        self.config = config
        self.topology = topology
        self.meter = meter
        self.signal, self._price = signal, price
        self.facility = open_facility(config.carbon, lambda text: self.event("warning", text), clock)
        """Its PUE, in the grid's own time."""
        self.run_id = run_id
        self.parameters = parameters
        self.folder = folder
        self.last_entry: LedgerEntry | None = None
        self.closed = False
        self.marks: deque[tuple[Any, ...]] = deque(maxlen=MAX_MARKS)
        self._clock = clock
        self._on_second = on_second
        self._next_second_s = self._next_peers_s = self._next_change_s = 0.0
        self._others = OtherRanksTotals()
        self._run_json: dict[str, Any] = {}
        self._lock = threading.Lock()  # of the curves; never taken by a signal handler, nor while a file is written
        self._windows: deque[Callable[[], None]] = deque(maxlen=MOST_ALIKE)
        """Asked for, and not known yet."""
        self._files: dict[str, Callable[[], Mapping[str, Any] | None]] = {}
        self._books_ident = 0
        self._warned: set[str] = set()
        self._told: dict[str, int] = {}
        self._clocks_told: dict[str, dict[str, str]] = {}
        self._attributed: dict[str, int] = {}
        """By device, readings on which what was last told of its phases rests."""
        self._shared_next_s = 0.0
        self._counted = 0
        self._asked = self._started = self._ended = self._facts_new = self._sensors_new = False
        self._closing: tuple[str, float, Stamps] | None = None
        self._brought_back = 0
        self._journal, earlier, note = self._open_journal(carried)
        with contextlib.ExitStack() as undo:  # a run that does not come about holds no file, and no device
            undo.callback(self._journal.close)
            self.ledger = EnergyLedger(self._journal, carried if earlier is None else earlier)
            self._carried = carried if earlier is None else None
            self.t0_s = clock.monotonic_s()
            self._offset_s = clock.unix_s() - self.t0_s
            owner: dict[str, str | int] = {"run_id": self.run_id, "rank": topology.rank}
            named = config.power.gpus not in (None, ("used",))
            strict = config.power.gpus == ("used",)
            self._devices = ClaimedDevices(
                meter.sensors, topology, owner, config.carbon, self.event, named, only_used=strict
            )
            undo.callback(self._devices.release)
            uids = self._devices.gpus if config.power.device_clock == "auto" else ()
            self._device_clock: DeviceClock[Mark] = DeviceClock(uids, clock, self.event, numbered=not named)
            self._books = self._open_books()
            self._next_book_s = 0.0
            self._next_claim_s = 0.0
            tick_s = min(LIVE_S if config.run.live else SETTLE_S, config.run.book_s)
            self._sampler = Sampler(
                meter,
                self._devices,
                sample_s=config.power.sample_s,
                clock=clock,
                on_tick=self._tick,
                tick_s=tick_s,
                on_probe=self._probed,
            )
            if note:
                self.event("warning", note)
            # Each tick of the sampler asks for a pass; where a driver holds that thread, the books look by themselves.
            self._books_thread = BackgroundWork("greentrain-books", self._pass, tick_s + LATE_TICK_S)
            undo.callback(self._books_thread.stop, 0.0)
            self._books_thread.start()
            undo.pop_all()

    def start(self) -> None:
        """Write the opening line, take the first reading and start the sampler."""
        self._write_run_json()
        pue_error = self.config.carbon.pue_relative_error
        self._journal.append(
            {
                "kind": "open",
                "format": FORMAT_VERSION,
                "run_id": self.run_id,
                **dataclasses.asdict(self.topology),
                "pid": os.getpid(),
                "t": self._clock.unix_s(),
                "sensors": self._devices.records(),
                "carried": self._carried.to_dict() if self._carried else None,
                **({} if pue_error is None else {"pue_error": pue_error}),
            }
        )
        self._journal.flush(SAVE_S)
        if self._device_clock.look():
            self._device_clock.wait(self._device_clock.record(), START_S)
        self.t0_s = self._clock.monotonic_s()  # as late as can be: what is used before the first reading is lost
        self._books = self._open_books()
        self._devices.start(self.t0_s)
        self._next_book_s = self.t0_s + min(FIRST_BOOK_S, self.config.run.book_s)
        self._next_second_s = self.t0_s + LIVE_S
        self.facility.start()
        self._sampler.start()
        self._started = True

    def _open_books(self) -> Bookkeeper:
        facility = in_run_time(self.facility, self.signal)
        return Bookkeeper(
            t0_s=self.t0_s,
            unix_offset_s=self._offset_s,
            signal=self.signal,
            facility=facility,
            price=self._price,
            carbon_error=self.config.carbon.relative_error,
        )

    @property
    def sensors(self) -> list[Sensor]:
        """Sensors of the devices that this rank books, unreadable ones included."""
        return self._devices.sensors

    def unix_s(self) -> float:
        """Return the time of the run's clock (s since the epoch, UTC)."""
        return self._clock.unix_s()

    def monotonic_s(self) -> float:
        """Return the time of the run's clock that never jumps (s)."""
        return self._clock.monotonic_s()

    @property
    def embodied_g_per_s(self) -> float:
        """Mid estimate of the embodied carbon of the devices that this rank books (g/s); those without one count 0."""
        return sum(rate.mid_g_per_h for rate in self._devices.rates.values()) / S_PER_HOUR

    @property
    def busy_s(self) -> float:
        """CPU seconds of sampler and bookkeeper so far."""
        return self._sampler.busy_s + self._books_thread.busy_s

    def event(self, name: str, text: str, **more: Any) -> None:
        """Queue an event for the journal, also from a signal handler; a gap or warning is also shown, once a cause."""
        end = ""
        if name in FAULTS and not more:
            cause = _FIGURE.sub("", text)
            self._told[cause] = times = self._told.get(cause, 0) + 1
            if times > MOST_ALIKE:
                return
            end = "; more like it are not listed" if times == MOST_ALIKE else ""
        try:
            self._journal.append({"kind": "event", "t": self._clock.unix_s(), "name": name, "text": text + end, **more})
        except ValueError as error:
            log.warning("GreenTrain: the event %r is not in the journal: %s", name, error)
        if name in ("gap", "warning"):
            self.warn(text)

    def warn(self, text: str, then: str = "training goes on") -> None:
        """Show a warning and what follows, once a cause, whatever its figures; never raises, even where warnings do."""
        cause = _FIGURE.sub("", text)
        if cause not in self._warned:
            self._warned.add(cause)
            with contextlib.suppress(Exception):
                warnings.warn(f"GreenTrain: {text}; {then}", GreenTrainWarning, stacklevel=3)

    def read_now(self) -> None:
        """Have the sensors read, as somebody waits for it; waits for nothing itself."""
        self._sampler.ask()

    def changes(self, t_s: float) -> None:
        """Have them read as power changes at a time (s), so that no reading is of what is before and after it."""
        if t_s >= self._next_change_s:
            self._next_change_s = t_s + CHANGES_S
            self._sampler.ask()

    def window(self, t0_s: float, t1_s: float, *, exact: bool = True, wait_s: float = SAVE_S) -> WindowEnergy | None:
        """Return what was used between two monotonic times.

        Args:
            t0_s: Start (s).
            t1_s: End (s).
            exact: Follow the phases between a counter's ticks, which takes a millisecond a device; False: straight.
            wait_s: Longest wait for what was read to be worked in (s).

        Returns:
            None while the curves are not known up to ``t1_s``, or no longer from ``t0_s``; also in a forked child.
        """
        return self._of_books(lambda: self._window(float(t0_s), float(t1_s), exact), wait_s)

    def rank_record(self, wait_s: float = SAVE_S) -> RankRecord | None:
        """Return what a reader of this rank's journal would know of it by now, but for entries and most events.

        Args:
            wait_s: Longest wait for the thread of the books (s); it returns None where that takes longer.
        """
        return self._of_books(self._rank_record, wait_s)

    def _of_books(self, look: Callable[[], _T], wait_s: float) -> _T | None:
        found: list[_T] = []
        if threading.get_ident() == self._books_ident:
            return look()
        # Whoever is interrupted here, or is a forked child, leaves no lock behind that the books wait for.
        self._windows.append(lambda: found.append(look()))
        if self._books_thread.ask(wait_s) and self._ended and not found:
            return look()
        return found[0] if found else None

    def _rank_record(self) -> RankRecord:
        carried, sums = self.ledger.parts()
        clocks = self._books.clocks().items()
        return RankRecord(
            rank=self.topology.rank,
            host=self.topology.host,
            opens=[{"pue_error": self.config.carbon.pue_relative_error, **dataclasses.asdict(self.topology)}],
            sensors={record["uid"]: record for record in self._devices.records()},
            excluded=self._devices.excluded,
            entries=(),
            events=[{"name": CLOCKS, "device": uid, "phases": phases} for uid, phases in clocks],
            close=None,
            carried=carried,
            sums=sums,
            told=self._books.attributions(),
            shared=self._books.shared(),
        )

    def _window(self, t0_s: float, t1_s: float, exact: bool) -> WindowEnergy | None:
        devices: dict[str, DeviceWindow] = {}
        missing_s = 0.0
        for uid, curve in self._devices.curves.items():
            if curve.frontier_s < t1_s or curve.oldest_s > t0_s:
                return None
            energy_j, gap_s = self._books.between(uid, curve, t0_s, t1_s) if exact else curve.between(t0_s, t1_s)
            missing_s += gap_s
            (low_j, high_j), error = curve.bounds_j(t0_s, t1_s), curve.sensor.uncertainty or 0.0
            devices[uid] = DeviceWindow(
                energy_j=energy_j,
                provenance=curve.sensor.provenance,
                low_j=min(low_j, energy_j) * (1 - error),
                high_j=max(high_j, energy_j) * (1 + error),
            )
        return WindowEnergy(seconds=t1_s - t0_s, devices=devices, missing_s=missing_s)

    def job_sums(self) -> OtherRanksTotals:
        """Return the sums of this rank and, on rank 0, of all ranks whose journals can be seen."""
        entry = self.last_entry
        power_w = 0.0 if entry is None else entry.energy_j / max(entry.t1_unix_s - entry.t0_unix_s, 1e-9)
        own = OtherRanksTotals(ranks=1, power_w=power_w, **self.ledger.totals.sums())
        return own + self._others

    @property
    def has_device_clock(self) -> bool:
        """True where marks are to be queued with an event of each device; costs a microsecond where none is used."""
        return bool(self._device_clock.uids) and self._device_clock.look()

    def queue_stamped(self, mark: tuple[Any, ...]) -> None:
        """Queue a mark, and let the devices that are used record that they get to it."""
        self.marks.append((*mark, *_REST[len(mark) :], self._device_clock.record()))

    def look_at_others(self) -> None:
        """Read what the other ranks have booked so far; only rank 0 does."""
        if self.topology.rank == 0 and (self.topology.world_size > 1 or rank_path(self.folder, 1).exists()):
            self._others = sums_of_others(self.folder, 0, self.topology.world_size)

    def hurry(self) -> None:
        """Let the bookkeeper look now, as many marks wait; costs the training thread a lock's release."""
        self._books_thread.ask()

    def now(self) -> tuple[float, float]:
        """Return energy so far (J), resumed parts included, and the power of the last second (W), of known parts."""
        with self._lock:
            energy_j, power_w = self.ledger.totals.energy_j, 0.0
            for curve in self._devices.curves.values():
                frontier_s = curve.frontier_s
                energy_j += curve.between(self._books.t_s, frontier_s)[0]
                power_w += curve.between(frontier_s - 1.0, frontier_s)[0] / max(min(1.0, frontier_s - self.t0_s), 1e-3)
        return energy_j, power_w

    def close(self, reason: str) -> None:
        """Book the rest, write the closing line, release everything. Idempotent; never raises, and waits bounded.

        Whoever was interrupted while it waited may call it again, and waits for the rest.
        """
        if self._closing is None:
            self._closing = reason, self._clock.monotonic_s(), self._device_clock.record()
        self.closed = True
        if not self._books_thread.stop(CLOSE_S):
            log.warning("GreenTrain: a driver hangs, or the disk; the last interval of %s is not booked", self.folder)
        elif self._journal.unwritten:
            self._tell_unwritten()

    def know(self, **facts: Any) -> None:
        """Note in run.json what was learned after the start: number of parameters, layers. None says nothing."""
        known = {key: value for key, value in facts.items() if value is not None}
        if self._run_json and any(self._run_json.get(key) != value for key, value in known.items()):
            self._run_json = {**self._run_json, **known}  # a new one, as the other is being written, perhaps
            self._facts_new = True
            self._journal.flush(0)

    def leave(self, name: str, make: Callable[[], Mapping[str, Any] | None]) -> None:
        """Write a file beside run.json, on rank 0; a fault in it is a warning.

        Args:
            name: Name of the file.
            make: Returns what it holds, or None for no file; called in the thread of the journal.
        """
        if self._run_json:
            self._files[name] = make
            self._journal.flush(0)

    def book_now(self, wait_s: float = SAVE_S) -> None:
        """Bring books and journal up to what the sensors have said: before a checkpoint, at SIGTERM. Never raises.

        The bookkeeper's thread does it, so that nothing is booked half, or twice, where a signal comes meanwhile.

        Args:
            wait_s: Longest time to wait for it (s); it goes on afterwards.
        """
        end_s = time.monotonic() + wait_s
        self._asked = True
        if not self._books_thread.ask(wait_s) and not self.closed:
            self.warn("the books are late, as a device or the disk hangs: a checkpoint has what was booked before")
        self.save(max(end_s - time.monotonic(), 0.0))

    def save(self, wait_s: float = SAVE_S) -> None:
        """Wait until what was noted so far is in the journal's file, at most so long (s), and say what is not."""
        if not self._journal.flush(wait_s):
            self._tell_unwritten()

    def _tell_unwritten(self) -> None:
        self.warn(f"the disk does not take the journal of {self.folder}: what it does not hold is lost with a kill")

    # -- in the thread of the books ----------------------------------------------------------------------------

    def _tick(self, now_s: float) -> None:
        self._books_thread.ask()

    def _probed(self) -> None:
        self._sensors_new = True
        self._books_thread.ask()

    def _pass(self) -> None:
        """Look at what there is to book, or to close."""
        self._books_ident = threading.get_ident()
        if self._closing is not None and not self._ended:
            self._ended = True
            self._close(*self._closing)
        if self._ended or not self._started:
            return
        self._sampler.look_after()
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._sampler.settle()
            if self._sensors_new:
                self._sensors_new = False
                self._write_sensors()
        self._take_marks()
        while self._windows:
            self._windows.popleft()()
        crowded = self._books.timeline.waiting > MANY_MARKS // 2 and now_s - self._books.t_s >= FIRST_BOOK_S
        if self._asked or crowded or now_s >= self._next_book_s:
            self._asked = False
            self._book(now_s)
        elif now_s >= self._next_claim_s and self._books.t_s > self.t0_s:
            with self._lock:
                self._claim_rest()
        if now_s >= self._next_second_s:
            self._next_second_s = now_s + 1.0
            self._on_second(self)

    def _book(self, now_s: float) -> None:
        with self._lock:
            self._claim_rest()
            for curve in self._devices.curves.values():
                if now_s - curve.frontier_s > max(MAX_LAG_S, 4 * curve.sensor.period_s, 1.5 * curve.pace_s):
                    curve.advance_missing(now_s - curve.sensor.period_s)
            t1_s = min((curve.frontier_s for curve in self._devices.curves.values()), default=now_s)
            if t1_s > self._books.t_s:
                self._record(t1_s)
                if self._devices.let_go(t1_s):
                    self._devices_changed()
        elapsed_s = now_s - self.t0_s
        longest_s = max(self.config.run.book_s - LATE_S, self.config.run.book_s / 2)
        self._next_book_s = min(now_s, self._books.t_s + LATE_S) + min(longest_s, max(FIRST_BOOK_S, elapsed_s / 5))

    def _close(self, reason: str, t1_s: float, stamps: Stamps) -> None:
        if self._started and stamps:  # joules of what they still have to do are the run's
            self._device_clock.wait(stamps, QUEUED_S)
            t1_s = self._clock.monotonic_s()
        stopped = self._sampler.stop(t1_s)
        self.facility.close()
        # A handler that closes may have interrupted the main thread where it reads a curve: that one waits for us.
        locked = self._lock.acquire(timeout=SAVE_S)
        try:
            if self._started:  # an interrupted start has no first moment, and nothing to book
                self._sampler.settle()
                self._claim_rest()
                for curve in (*self._devices.curves.values(), *self._devices.references.values()):
                    curve.finish(t1_s)
                self._record(t1_s, last=True)
        except Exception as error:
            log.warning("GreenTrain: booking the last interval failed: %r", error)
        finally:
            if locked:
                self._lock.release()
        if self._started:
            totals = self.ledger.totals.to_dict()
            self._journal.append({"kind": "close", "t": t1_s + self._offset_s, "reason": reason, "totals": totals})
        self._journal.close(SAVE_S)
        self._devices.release()
        if stopped:
            self.meter.close()

    def _claim_rest(self) -> None:
        self._next_claim_s = self._clock.monotonic_s() + CLAIM_S
        if self._devices.claim_rest(self._books.t_s, closing=self.closed, pids=self._sampler.pids):
            self._devices_changed()

    def _devices_changed(self) -> None:
        self._sampler.select(frozenset([*self._devices.curves, *self._devices.references]))
        self._write_sensors()

    def _record(self, t1_s: float, *, last: bool = False) -> None:
        self._take_marks(t1_s if last else float("inf"))
        looked = self._sampler.states
        self._books.look(looked.popleft() for _ in range(len(looked)))
        devices = self._devices
        entry = self._books.book(t1_s, devices.curves, devices.unread, devices.rates, devices.references, last=last)
        self.ledger.record(entry)
        self.last_entry = entry
        for uid, told in self._books.attributions({} if last else self._attributed).items():
            self._attributed[uid] = told["readings"]
            seen_ms, tick_ms, late_ms = (1e3 * told[key] for key in ("sees_s", "tick_s", "late_s"))
            text = f"{uid}: its counter tells {seen_ms:.0f} ms of each {tick_ms:.0f} ms, {late_ms:.0f} ms late"
            self.event(ATTRIBUTION, text, device=uid, **told)
        if last or entry.t1_unix_s - self._offset_s - self.t0_s >= self._shared_next_s:
            self._shared_next_s = 2 * (entry.t1_unix_s - self._offset_s - self.t0_s)
            for uid, phases in self._books.shared().items():
                parts = ", ".join(f"{name} {share:.0%}" for name, share in phases.items())
                self.event(SHARED, f"{uid}: in readings with other phases: {parts}", device=uid, phases=phases)
        for uid, clocks in self._books.clocks().items():
            if clocks != self._clocks_told.get(uid, {}):
                self._clocks_told[uid] = clocks
                by = ", ".join(f"{name} by {whose}" for name, whose in clocks.items())
                self.event(CLOCKS, f"{uid}: whose times cut its joules: {by}", device=uid, phases=clocks)

    def _take_marks(self, end_s: float = float("inf")) -> None:
        """Hand the marks of the training to the timeline: of too many, only what they count."""
        marks = [self.marks.popleft() for _ in range(len(self.marks))]
        first = next((mark[3] for mark in marks if mark[1] in _COUNTED), None)
        if first is not None:
            lost = first - self._counted - 1
            if lost > 0 and len(marks) >= MAX_MARKS:
                text = f"{lost} steps, with their tokens, came faster than they could be booked and are in no sum"
                self.event("warning", text, steps=lost)
            self._counted = next(mark[3] for mark in reversed(marks) if mark[1] in _COUNTED)
        timeline = self._books.timeline
        if few := timeline.waiting + len(marks) <= MANY_MARKS:
            found = [Mark(*mark) for mark in marks]
        else:
            found = [mark._replace(stamps=()) for mark in folded(marks)]
        # Of a device that is new, the marks before are the host's: it goes on from what the timeline has by now.
        for uid, device in self._device_clock.devices.items():
            device.expect((mark.t_s, dict(mark.stamps).get(uid), mark) for mark in found)
            self._books.follow(uid, device.passed(end_s))
        timeline.add(found)
        if not few:
            self.warn(
                f"more than {MANY_MARKS} marks in one interval: all steps count, short phases are in those around them"
            )

    # -- files -------------------------------------------------------------------------------------------------

    def _write_sensors(self) -> None:
        excluded = list(self._devices.excluded)
        self._journal.append({"kind": "sensors", "sensors": self._devices.records(), "excluded": excluded})

    def _write_run_json(self) -> None:
        if self.topology.rank != 0:
            return
        path = self.folder / RUN_JSON
        if path.exists():
            self.event("resume", "the run continues in a new process")
            with contextlib.suppress(OSError, RunFolderError):  # a damaged file stays as it is
                self._run_json = read_object(path)
            return
        self._run_json = run_json(
            run_id=self.run_id,
            config=self.config,
            topology=self.topology,
            created_unix_s=self._clock.unix_s(),
            carbon=self.signal.describe(),
            parameters=self.parameters,
        )
        self._facts_new = True

    def _beside(self) -> None:
        """Write and read the other files of the run, in the thread of the journal."""
        if not (self._started or self._facts_new):
            return
        back, self._brought_back = self._journal.brought_back - self._brought_back, self._journal.brought_back
        if self._facts_new or (back and self._run_json):
            self._facts_new = False
            path = self.folder / RUN_JSON
            try:
                write_json(path, self._run_json)
            except OSError as error:
                self.event("warning", f"cannot write {path} ({error.strerror})")
        while self._files:
            name, make = self._files.popitem()
            try:
                made = make()
                if made is not None:
                    write_json(self.folder / name, made)
            except Exception as error:  # it is of use, and no part of the books
                self.event("warning", f"cannot write {self.folder / name} ({error})")
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_peers_s:
            self._next_peers_s = now_s + max(PEERS_S, PEER_COST_S * self.topology.world_size)
            self.look_at_others()

    def _open_journal(self, carried: Totals | None) -> tuple[Journal, Totals | None, str]:
        """Open the journal of this rank; in a run of its own where another process of this node has it open.

        Returns:
            The journal, the totals of earlier processes if there were any, and a warning, or "".
        """
        run_id, note = self.run_id, ""
        for attempt in itertools.count(2):
            path = rank_path(self.folder, self.topology.rank)
            resumed = path.exists() and path.stat().st_size > 0
            journal = Journal(path, beside=self._beside)
            try:
                earlier, host = self._earlier(carried) if resumed else (None, self.topology.host)
            except BaseException:
                journal.close()
                raise
            if journal.alone:
                return journal, earlier, note
            if host != self.topology.host:  # whose lock may outlive it
                return journal, earlier, f"{path} is locked by {host}: if it goes on there, its steps count twice"
            journal.close()
            self.run_id = f"{run_id}-{attempt}"
            self.folder = self.folder.with_name(self.run_id)
            note = f"another process writes run {run_id} as rank {self.topology.rank}: this one is run {self.run_id}"
        raise AssertionError

    def _earlier(self, carried: Totals | None) -> tuple[Totals, str]:
        """Return what earlier processes of this rank have booked, from its own journal, and the host of the last."""
        earlier, host = carried or Totals(), self.topology.host
        try:
            books = read_books(rank_path(self.folder, self.topology.rank), RankBooks())
            if books.opens:
                earlier, host = books.carried + books.sums.totals(), str(books.opens[-1]["host"])
            read_run_json(self.folder)
        except NewerFormatError:
            raise  # a line of this version among newer ones would make their figures wrong
        except Exception as error:
            log.warning("GreenTrain: cannot read the earlier part of run %s: %r", self.run_id, error)
        return earlier, host


def metrics_of(run: ActiveRun) -> dict[str, float]:
    """Return ``green/energy_j`` and so on, of all ranks whose journals can be seen; what is not known is left out."""
    sums, entry = run.job_sums(), run.last_entry
    out: dict[str, float] = {}
    if run.ledger.totals.by_device or sums.energy_j:
        out["green/energy_j"] = sums.energy_j
    if sums.energy_j > sums.unpriced_j:
        out["green/emissions_g"] = sums.emissions_g
    if entry is not None and any(not device.missing_s for device in entry.devices.values()):
        out["green/power_w"] = sums.power_w
    if sums.energy_j > 0 and sums.tokens:
        out["green/tokens_per_j"] = sums.tokens / sums.energy_j
        if "green/emissions_g" in out:
            out["green/g_per_ktoken"] = 1000 * sums.emissions_g / sums.tokens
    elif sums.energy_j > 0 and sums.samples:
        out["green/samples_per_j"] = sums.samples / sums.energy_j
    if run.topology.world_size > 1:
        out["green/ranks"] = float(sums.ranks)
    return out
