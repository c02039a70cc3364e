"""From timestamps and meters to the Energy Density Index of a step.

The training thread only notes when stages began and ended. Their joules are looked up later, when the sensors have
reported past the step: the GPU's side from the session, which is everything it measures but the offload devices, and
the offload devices' from the session too: give it their meters, ``extra_meters=[device.meter]``.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from greentrain.fpga_backend.device import EnergyReading, OffloadDevice
from greentrain.policy.offload.edi import EdiMatrix, EdiReading
from greentrain.policy.offload.stages import Hardware, Stage, worst
from greentrain.session.session import GreenSession
from greentrain.types import Provenance

PATIENCE_S: Final = 10.0
"""A window that the sensors have not reported on after this long is unknown (s)."""

UNKNOWN: Final = EnergyReading(energy_j=None, provenance=Provenance.MISSING)
NOTHING: Final = EnergyReading(energy_j=0.0, provenance=Provenance.MEASURED)


class EnergySource(Protocol):
    """Where the joules of a window come from."""

    def between(self, t0_s: float, t1_s: float) -> Mapping[Hardware, EnergyReading] | None:
        """Return the joules between two ``time.monotonic()`` times; None where they will be known later."""


class SessionEnergy:
    """Joules of a session: of the offload devices that are its ``extra_meters``, and of all else, the GPU's side.

    Args:
        session: Session that measures; None: nobody knows any joules.
        devices: Offload devices.
    """

    def __init__(self, session: GreenSession | None, devices: Sequence[OffloadDevice]) -> None:
        self._session = session
        self._devices = [device.probe().uid for device in devices]

    def between(self, t0_s: float, t1_s: float) -> Mapping[Hardware, EnergyReading] | None:
        """Return joules by hardware; None while the sensors have not reported so far."""
        run = None if self._session is None else self._session.active()
        known = {} if run is None else {s.device.uid: s.provenance for s in run.sensors}
        found: Mapping[str, float] | None = {}
        if self._session is not None and known:
            found = self._session.energy(t0_s, t1_s)
            if found is None and time.monotonic() - t1_s < PATIENCE_S:
                return None
        read = {uid: _joules(joules, known[uid]) for uid, joules in (found or {}).items() if uid in known}
        gpu = [joules for uid, joules in read.items() if uid not in self._devices]
        return {
            Hardware.GPU: _sum(gpu) if gpu else UNKNOWN,
            Hardware.OFFLOAD: _sum([read.get(uid, UNKNOWN) for uid in self._devices]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """A stretch of the training thread."""

    stage: Stage
    t0_s: float
    t1_s: float
    waits: bool = False
    """True: the GPU stood still for the stage; False: it computed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What is known of a step when it ends."""

    t0_s: float
    t1_s: float
    tokens: float
    """Output tokens."""
    windows: Sequence[StepWindow]
    """In the order in which they ended; a window lies in another one, or beside it."""
    offload_s: Mapping[Stage, float] = field(default_factory=dict)
    """Time that offload devices computed each stage (s)."""


class EdiMeter:
    """Turns steps into readings of an EDI matrix, and into idle watts.

    Time that no window covers counts as generation: no pass hides behind it unless it streams.

    Args:
        source: Source of the joules.
        matrix: Matrix that is updated.
        cards: Offload devices, all with the same idle power.
    """

    def __init__(self, source: EnergySource, matrix: EdiMatrix, cards: int = 1) -> None:
        self.matrix = matrix
        self._cards = cards
        self._source = source
        self._pending: deque[StepRecord] = deque(maxlen=1024)
        self._gpu_idle = self._card_idle = _PassSpan()

    def add(self, record: StepRecord) -> None:
        """Take a step, and book those whose joules are known by now."""
        self._pending.append(record)
        self.settle()

    def settle(self) -> None:
        """Book the steps whose joules are known by now, in order."""
        while self._pending and self._book(self._pending[0]):
            self._pending.popleft()

    @property
    def gpu_idle(self) -> tuple[float | None, Provenance]:
        """Draw of the GPU's side while it stands still (W), and where that is from."""
        return self._gpu_idle.mean_w

    @property
    def card_idle(self) -> tuple[float | None, Provenance]:
        """Draw of the offload devices together in steps without a pass (W), and where that is from."""
        return self._card_idle.mean_w

    def _book(self, record: StepRecord) -> bool:
        whole = self._source.between(record.t0_s, record.t1_s)
        if whole is None:
            return False
        spans = _exclusive(record, self._source.between)
        if spans is None:
            return False
        self._note_idle(record, whole[Hardware.OFFLOAD], spans)
        for stage, span in spans.computed.items():
            known = {"stage": stage, "hardware": Hardware.GPU, "tokens": record.tokens, "busy_s": span.seconds}
            self._update(span.joules, idle_j=0.0, **known)
        busy_s = sum(record.offload_s.values())
        for stage, own_s in record.offload_s.items():
            if own_s > 0:
                self._book_away(record, stage, own_s, busy_s, whole[Hardware.OFFLOAD], spans)
        return True

    def _note_idle(self, record: StepRecord, card: EnergyReading, spans: "_Spans") -> None:
        seconds = sum(span.seconds for span in spans.waited.values())
        joules = _sum([span.joules for span in spans.waited.values()])
        if seconds > 0 and joules.energy_j is not None:
            self._gpu_idle = self._gpu_idle.plus(seconds, joules)
        if not any(record.offload_s.values()) and card.energy_j is not None:
            self._card_idle = self._card_idle.plus(record.t1_s - record.t0_s, card)

    def _book_away(
        self, record: StepRecord, stage: Stage, own_s: float, busy_s: float, card: EnergyReading, spans: "_Spans"
    ) -> None:
        idle_w, idle_from = self.card_idle
        wait = spans.waited.get(stage, _PassSpan())
        gpu_idle_w, gpu_from = self.gpu_idle
        active_j = idle_j = None
        if card.energy_j is not None and idle_w is not None:
            kept_j = min(card.energy_j, idle_w * max(0.0, record.t1_s - record.t0_s - busy_s / self._cards))
            active_j = (card.energy_j - kept_j) * own_s / busy_s
            wait_j = gpu_idle_w * wait.seconds if gpu_idle_w is not None else (None if wait.seconds > 0 else 0.0)
            idle_j = None if wait_j is None else kept_j * own_s / busy_s + wait_j
        origins = worst(card.provenance, idle_from, gpu_from if wait.seconds > 0 else Provenance.MEASURED)
        known = {"stage": stage, "hardware": Hardware.OFFLOAD, "tokens": record.tokens, "busy_s": own_s}
        self._update(EnergyReading(energy_j=active_j, provenance=origins), idle_j=idle_j, **known)

    def _update(self, active: EnergyReading, **known: Any) -> None:
        self.matrix.update(EdiReading(active_j=active.energy_j, provenance=active.provenance, **known))


@dataclass(slots=True)
class _PassSpan:
    seconds: float = 0.0
    joules: EnergyReading = NOTHING

    @property
    def mean_w(self) -> tuple[float | None, Provenance]:
        """Mean power (W) and where it is from; None of no time."""
        if self.seconds <= 0 or self.joules.energy_j is None:
            return None, Provenance.MISSING
        return self.joules.energy_j / self.seconds, self.joules.provenance

    def plus(self, seconds: float, joules: EnergyReading) -> "_PassSpan":
        return _PassSpan(self.seconds + seconds, _sum([self.joules, joules]))

    def less(self, other: "_PassSpan") -> "_PassSpan":
        mine, theirs = self.joules.energy_j, other.joules.energy_j
        left = None if mine is None or theirs is None else max(0.0, mine - theirs)
        origin = worst(self.joules.provenance, other.joules.provenance)
        return _PassSpan(max(0.0, self.seconds - other.seconds), EnergyReading(energy_j=left, provenance=origin))


@dataclass(slots=True)
class _Spans:
    computed: dict[Stage, _PassSpan]
    waited: dict[Stage, _PassSpan]


def _exclusive(
    record: StepRecord, between: Callable[[float, float], Mapping[Hardware, EnergyReading] | None]
) -> _Spans | None:
    """Return time and GPU joules of each stage without what lies within its windows; None if not known yet."""
    whole = StepWindow(stage=Stage.GENERATE, t0_s=record.t0_s, t1_s=record.t1_s)
    spans = _Spans({}, {})
    inner: list[tuple[StepWindow, _PassSpan]] = []  # ended, and not yet inside another one
    for window in (*record.windows, whole):
        found = between(window.t0_s, window.t1_s)
        if found is None:
            return None
        full = _PassSpan().plus(window.t1_s - window.t0_s, found[Hardware.GPU])
        own = full
        while inner and inner[-1][0].t0_s >= window.t0_s:
            own = own.less(inner.pop()[1])
        inner.append((window, full))
        into = spans.waited if window.waits else spans.computed
        into[window.stage] = into.get(window.stage, _PassSpan()).plus(own.seconds, own.joules)
    return spans


def _joules(energy_j: float, origin: Provenance) -> EnergyReading:
    return UNKNOWN if origin is Provenance.MISSING else EnergyReading(energy_j=max(0.0, energy_j), provenance=origin)


def _sum(parts: Sequence[EnergyReading]) -> EnergyReading:
    known = [part.energy_j for part in parts if part.energy_j is not None]
    if len(known) < len(parts):
        return UNKNOWN
    return EnergyReading(energy_j=sum(known), provenance=worst(*(part.provenance for part in parts)))
