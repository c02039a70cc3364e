"""Several offload devices as one: each holds the model, and a batch is divided among them by sequences.

    device = DataParallel([XrtDevice("kernels.xclbin", addresses=[a]) for a in ("0000:c1:00.1", "0000:c2:00.1")])

Tried with the C++ kernels under g++ and in XRT's no-op emulation; nobody has had two cards.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle, OffloadDevice
from greentrain.fpga_backend.devices.base import Loaded
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.program import Program
from greentrain.types import PowerMeter, PowerSample, Provenance, Sensor
from greentrain.utils.never_raise import warn


def split(batch: Batch, program: Program, parts: int) -> tuple[tuple[int, ...], ...]:
    """Return the sequences of each part: about equal in tokens, sequences of one shared prompt together.

    Args:
        batch: Sequences to divide.
        program: Program that will run them; where it is causal, a shared prompt is computed once.
        parts: Largest number of parts.

    Returns:
        Indices in rising order, the part with most tokens first; no part is empty.
    """
    groups: dict[object, list[int]] = {}
    for i, ids in enumerate(batch.ids):
        prompt = 0 if batch.prompt_tokens is None or not program.causal else batch.prompt_tokens[i]
        types = b"" if batch.types is None else batch.types[i][:prompt].tobytes()
        groups.setdefault((ids[:prompt].tobytes(), types) if prompt else i, []).append(i)
    costs = [(_rows(batch, group), group) for group in groups.values()]
    loads = [0] * max(parts, 1)
    chosen: list[list[int]] = [[] for _ in loads]
    for cost, group in sorted(costs, key=lambda item: -item[0]):  # the largest first, to the least loaded
        least = loads.index(min(loads))
        loads[least] += cost
        chosen[least] += group
    return tuple(
        tuple(sorted(part)) for _, part in sorted(zip(loads, chosen, strict=True), key=lambda p: -p[0]) if part
    )


def _rows(batch: Batch, group: Sequence[int]) -> int:
    """Return the rows of sequences that share a prompt."""
    tokens = sum(len(batch.ids[i]) for i in group)
    if len(group) == 1 or batch.prompt_tokens is None:
        return tokens
    return tokens - (len(group) - 1) * batch.prompt_tokens[group[0]]


WHOLE_TOKENS = 1024
"""A batch of fewer tokens goes to one device as a whole: the ends of its parts would wait for each other."""


TRIES = 3
"""How often each part of a batch is sent again, on average, before the batch fails."""


@dataclass(slots=True)
class _ReplicatedModel:
    program: Program
    handles: dict[int, Handle]
    """By the device's position; a device that is lost is not in it."""


@dataclass(slots=True)
class _BatchInParts:
    """A batch on its way."""

    batch: Batch
    model: _ReplicatedModel
    future: Future[Result]
    missing: int
    tries: int
    """How often a part may still be sent again."""
    ended: bool = False
    results: dict[tuple[int, ...], Result] = field(default_factory=dict)
    parts: list[Future[Result]] = field(default_factory=list)


class JoinedMeter:
    """Several meters as one: each device keeps its own sensor.

    Args:
        meters: Meters of the devices.
    """

    def __init__(self, meters: Sequence[PowerMeter]) -> None:
        self._meters = tuple(meters)

    @property
    def sensors(self) -> Sequence[Sensor]:
        """All sensors."""
        return [sensor for meter in self._meters for sensor in meter.sensors]

    def read(self) -> Sequence[PowerSample]:
        """Read every meter."""
        return [sample for meter in self._meters for sample in meter.read()]

    def close(self) -> None:
        """Close every meter. Idempotent."""
        for meter in self._meters:
            meter.close()


def total(readings: Sequence[EnergyReading]) -> EnergyReading:
    """Return the sum of readings: unknown where one is, modelled where one is."""
    notes = "; ".join(dict.fromkeys(reading.note for reading in readings if reading.note))
    known = [reading.energy_j for reading in readings if reading.energy_j is not None]
    if len(known) < len(readings):
        return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note=notes or "one device does not say")
    measured = all(reading.provenance is Provenance.MEASURED for reading in readings)
    provenance = Provenance.MEASURED if measured else Provenance.MODELLED
    return EnergyReading(energy_j=sum(known), provenance=provenance, note=notes)


class DataParallel:
    """An OffloadDevice made of several. Exact ones give the same bits as one of them alone.

    A device that is lost is left out from then on, with one warning; what it had is done again on another.

    Args:
        devices: Open devices, which this one closes. At least one.
        whole_tokens: Size below which a batch is not divided, see ``WHOLE_TOKENS`` (tokens).
    """

    def __init__(self, devices: Sequence[OffloadDevice], *, whole_tokens: int = WHOLE_TOKENS) -> None:
        if not devices:
            raise DeviceError("no devices were given: at least one is needed")
        infos = [device.probe() for device in devices]
        uids = [info.uid for info in infos]
        if len(set(uids)) < len(uids):
            raise DeviceError(f"a device was given twice: {', '.join(uids)}")
        self._devices = tuple(devices)
        self._whole_tokens = whole_tokens
        self._uid = "+".join(uids)
        self._lock = threading.Lock()
        self._lost: dict[int, str] = {}
        self._waiting = [0] * len(devices)
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._loaded: Loaded[_ReplicatedModel] = Loaded(self._uid)
        self._meter = JoinedMeter([device.meter for device in devices])
        memory = [info.memory_bytes for info in infos if info.memory_bytes is not None]
        self._info = DeviceInfo(
            uid=self._uid,
            name=f"{len(devices)} devices: {', '.join(dict.fromkeys(info.name for info in infos))}",
            available=True,
            exact=all(info.exact for info in infos),
            simulated=any(info.simulated for info in infos),
            memory_bytes=min(memory, default=None),  # each holds the whole model
            details={"devices": str(len(devices))},
        )

    def probe(self) -> DeviceInfo:
        """Say what is left of the devices. Never raises."""
        with self._lock:
            lost, closed = dict(self._lost), self._closed
        reason = "the device is closed" if closed else ""
        if len(lost) == len(self._devices):
            reason = reason or f"all devices are lost: {'; '.join(lost.values())}"
        if not lost and not reason:
            return self._info
        return DeviceInfo(
            uid=self._uid,
            name=self._info.name,
            available=not reason,
            reason=reason,
            exact=self._info.exact,
            simulated=self._info.simulated,
            memory_bytes=self._info.memory_bytes,
            details={**self._info.details, "lost": "; ".join(lost.values())},
        )

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Put a model on every device that is left.

        Raises:
            ArtifactError: A device cannot run it.
            DeviceError: It does not fit on one, or one failed. It may then be on others already.
            DeviceLostError: No device is left.
        """
        old = None if replacing is None else self._loaded.get(replacing)
        handles: dict[int, Handle] = {}
        for i in self._left():
            try:
                before = None if old is None else old.handles.get(i)
                handles[i] = self._devices[i].load(artifact, replacing=before)
            except DeviceLostError as error:
                self._lose(i, error)
        self._left()
        model = _ReplicatedModel(program=artifact.program, handles=handles)
        return self._loaded.put(model, artifact.digest, replacing)

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        """Divide a batch among the devices.

        Raises:
            BatchError: It does not fit the model.
            QueueFullError: No room within ``wait_s`` on one of them.
            DeviceLostError: All devices are lost, or this one is closed.
        """
        model = self._loaded.get(handle)
        batch = fitting(batch, model.program)
        left = self._left()
        ways = 1 if batch.tokens < self._whole_tokens else len(left)
        parts = split(batch, model.program, ways)
        group = _BatchInParts(batch, model, Future(), len(parts), TRIES * len(parts))
        try:
            for part in parts:
                self._send(group, part, wait_s)
        except BaseException:
            for future in group.parts:
                future.cancel()
            raise
        group.future.add_done_callback(lambda future: _cancel(group) if future.cancelled() else None)
        return group.future

    def energy(self) -> EnergyReading:
        """Return the joules of all devices; unknown where those of one are. Never raises."""
        return total([device.energy() for device in self._devices])

    @property
    def meter(self) -> PowerMeter:
        """The sensors of all devices."""
        return self._meter

    def close(self) -> None:
        """Close every device. Idempotent, never raises."""
        with self._lock:
            self._closed = True
        for device in self._devices:
            device.close()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        self._loaded.close()

    def _left(self) -> list[int]:
        """Return the devices that are not lost, the one with the shortest queue first."""
        with self._lock:
            if self._closed:
                raise DeviceLostError("the device is closed")
            left = [i for i in range(len(self._devices)) if i not in self._lost]
            if not left:
                raise DeviceLostError(f"all devices are lost: {'; '.join(self._lost.values())}")
            return sorted(left, key=lambda i: self._waiting[i])

    def _send(self, group: _BatchInParts, part: tuple[int, ...], wait_s: float | None) -> None:
        """Give a part to the device with the shortest queue, or the next one where that is lost."""
        batch = group.batch.some(part)
        tokens = batch.tokens
        while True:
            chosen = next((i for i in self._left() if i in group.model.handles), None)
            if chosen is None:
                raise DeviceLostError("the devices that had the model are lost: load it again")
            with self._lock:
                self._waiting[chosen] += tokens
            try:
                future = self._devices[chosen].submit(group.model.handles[chosen], batch, wait_s=wait_s)
            except BaseException as error:
                with self._lock:
                    self._waiting[chosen] -= tokens
                if not isinstance(error, DeviceLostError):
                    raise
                self._lose(chosen, error)
                continue
            group.parts.append(future)
            future.add_done_callback(partial(self._done, group, part, chosen, tokens))
            return

    def _done(self, group: _BatchInParts, part: tuple[int, ...], i: int, tokens: int, future: Future[Result]) -> None:
        with self._lock:
            self._waiting[i] -= tokens
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, DeviceLostError) and not self._closed:
            if not self._devices[i].probe().available:
                self._lose(i, error)
            # in a thread of its own: this one may be the queue's that has to make room
            again = threading.Thread(target=self._again, args=(group, part, error), name=f"greentrain {self._uid}")
            with self._lock:
                self._threads = [thread for thread in self._threads if thread.is_alive()] + [again]
                again.start()
        elif error is not None:
            self._end(group, error)
        else:
            with self._lock:
                group.results[part] = future.result()
                whole = len(group.results) == group.missing
            if whole:
                self._end(group, None)

    def _again(self, group: _BatchInParts, part: tuple[int, ...], error: BaseException) -> None:
        group.tries -= 1
        if group.tries < 0:
            self._end(group, error)
            return
        try:
            self._send(group, part, None)
        except Exception as last:
            self._end(group, last)

    def _end(self, group: _BatchInParts, error: BaseException | None) -> None:
        with self._lock:
            if group.ended:
                return
            group.ended = True
        if not group.future.set_running_or_notify_cancel():
            return
        if error is None:
            order = [i for part in group.results for i in part]
            group.future.set_result(Result.joined(list(group.results.values()), order=order, at_once=True))
        else:
            group.future.set_exception(error)
            _cancel(group)

    def _lose(self, i: int, error: Exception) -> None:
        with self._lock:
            known = i in self._lost
            self._lost.setdefault(i, str(error))
            left = len(self._devices) - len(self._lost)
        if not known and not self._closed:
            uid = self._devices[i].probe().uid
            warn(f"device {uid} is lost ({error}); its batches go to the {left} that are left")


def _cancel(group: _BatchInParts) -> None:
    for future in group.parts:
        future.cancel()
