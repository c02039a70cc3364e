"""Several meters as one, each read at its own pace."""

import contextlib
import warnings
from collections.abc import Collection, Iterator, Sequence

from greentrain.errors import GreenTrainWarning
from greentrain.types import Counter, PowerMeter, PowerSample, Sensor
from greentrain.utils.clock import Clock, SystemClock

EARLY: float = 0.9
"""A member is due when this share of its period has passed: a timer that wakes a little early skips no read."""


class CompositeMeter:
    """The union of several meters' sensors.

    ``read`` returns the samples of the members that are due, so not every sensor each time. A member that raises,
    against its contract, gives failed samples and one warning.

    Args:
        meters: The members. Where two have the same device, the first one's sensor is used.
        clock: Time.
    """

    def __init__(self, meters: Sequence[PowerMeter], *, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        seen: set[str] = set()
        self._members: list[_Member] = []
        for meter in meters:
            uids = [s.device.uid for s in meter.sensors if s.device.uid not in seen]
            seen.update(uids)
            self._members.append(_Member(meter, tuple(dict.fromkeys(uids)), clock))

    @property
    def meters(self) -> Sequence[PowerMeter]:
        """The members."""
        return [member.meter for member in self._members]

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The sensors of all members, in their order."""
        return [sensor for member in self._members for sensor in member.sensors()]

    def read(self) -> Sequence[PowerSample]:
        """Read the members whose period has passed."""
        return [sample for member in self._members if member.due() for sample in member.read()]

    def read_all(self) -> Sequence[PowerSample]:
        """Read every member now, due or not: at the end of a run."""
        return [sample for member in self._members for sample in member.read()]

    def select(self, uids: Collection[str]) -> None:
        """Tell the members which devices are still wanted; one of which none is wanted is not read."""
        for member in self._members:
            member.select(uids)

    def counters(self) -> Sequence[Counter]:
        """Return the counters of all members that may be read directly."""
        return [counter for member in self._members for counter in member.counters()]

    def probe(self) -> None:
        """Let the members that can find out how fast their sensors tick and what a read costs."""
        for member in self._members:
            member.probe()

    def close(self) -> None:
        """Close all members. Idempotent."""
        for member in self._members:
            member.close()


class Borrowed:
    """A meter whose owner is somebody else, who closes it: an offload device that outlives the run.

    Args:
        meter: Of the other.
    """

    def __init__(self, meter: PowerMeter) -> None:
        self._meter = meter

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The other's."""
        return self._meter.sensors

    def read(self) -> Sequence[PowerSample]:
        """Read the other's."""
        return self._meter.read()

    def close(self) -> None:
        """Leave the meter open."""


class _Member:
    def __init__(self, meter: PowerMeter, uids: tuple[str, ...], clock: Clock) -> None:
        self.meter = meter
        self._uids = uids
        self._clock = clock
        self._last_s: float | None = None
        self._warned = False
        self._idle = False
        self._sensors = self._kept(meter.sensors)
        self._period_s = min((s.period_s for s in self._sensors), default=0.0)

    def sensors(self) -> Sequence[Sensor]:
        with self._guard("naming its sensors"):
            self._sensors = self._kept(self.meter.sensors)
            self._period_s = min((s.period_s for s in self._sensors), default=0.0)
        return self._sensors

    def due(self) -> bool:
        if self._last_s is None:
            return True
        return not self._idle and self._clock.monotonic_s() - self._last_s >= EARLY * self._period_s

    def read(self) -> Sequence[PowerSample]:
        if not self._uids:
            return ()
        self._last_s = self._clock.monotonic_s()
        try:
            return [sample for sample in self.meter.read() if sample.device_uid in self._uids]
        except Exception as error:
            self._warn("reading", error)
            note = f"{type(self.meter).__name__} failed: {error!r}"
            return [PowerSample(device_uid=uid, t_s=self._last_s, note=note) for uid in self._uids]

    def select(self, uids: Collection[str]) -> None:
        self._idle = not any(uid in uids for uid in self._uids)
        select = getattr(self.meter, "select", None)
        if select is not None:
            with self._guard("selecting devices"):
                select(uids)

    def counters(self) -> Sequence[Counter]:
        counters = getattr(self.meter, "counters", None)
        if counters is not None and not self._idle:
            with self._guard("listing its counters"):
                return [counter for counter in counters() if counter.device_uid in self._uids]
        return ()

    def probe(self) -> None:
        probe = getattr(self.meter, "probe", None)
        if probe is not None and self._uids:
            with self._guard("probing"):
                probe()
            self.sensors()

    def close(self) -> None:
        with self._guard("closing"):
            self.meter.close()

    def _kept(self, sensors: Sequence[Sensor]) -> Sequence[Sensor]:
        return [sensor for sensor in sensors if sensor.device.uid in self._uids]

    @contextlib.contextmanager
    def _guard(self, action: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._warn(action, error)

    def _warn(self, action: str, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        text = f"GreenTrain: {type(self.meter).__name__} failed while {action} ({error!r}); training goes on"
        with contextlib.suppress(GreenTrainWarning):
            warnings.warn(text, GreenTrainWarning, stacklevel=4)
