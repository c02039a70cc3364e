"""The one background thread of a session: it reads the meter, and calls the bookkeeper now and then.

How long until the next reading: longer while power does not change.

Two readings of a cumulative counter on a straight line say all there is between them, and one step of power in a
longer interval is found as well as in a short one (``EnergyCurve``). So a counter is read at every tick only while
its power moves; a wake-up and a read cost a core about 100 us, whatever they find.
"""

import contextlib
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from greentrain.errors import GreenTrainWarning
from greentrain.power.curve import EnergyCurve
from greentrain.power.ticks import VERNIER
from greentrain.types import Counter, PowerMeter, PowerSample, Sensor
from greentrain.utils.clock import Clock

FLAT: Final = 0.03
"""Largest relative change of power from one reading to the next that counts as none."""
FLAT_FOR: Final = 2
"""Flat readings after which every second tick is read."""
STEADY_FOR: Final = 10
"""Flat readings after which every third tick is read."""
LOOK_EVERY: Final = 10
"""Every so many readings one follows after a single tick, so that a period of two or three ticks cannot hide."""


class Pace:
    """Follows the summed power of the ticking counters of a meter.

    Args:
        tick_s: Their refresh period (s).
    """

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._energy_j = self._t_s = self._power_w = 0.0
        self._flat = 0
        self._seen = 0

    def after(self, t_s: float, energy_j: float, seen: int) -> int:
        """Return after how many ticks to read again.

        Args:
            t_s: Time of the reading (s).
            energy_j: Sum of the counters (J).
            seen: How many counters are in it; with none every tick is read.
        """
        if not seen or seen != self._seen:
            self._seen, self._flat, self._energy_j, self._t_s = seen, 0, energy_j, t_s
            return 1
        power_w = (energy_j - self._energy_j) / (round((t_s - self._t_s) / self._tick_s) or 1)
        change_w = power_w - self._power_w
        self._energy_j, self._t_s, self._power_w = energy_j, t_s, power_w
        if not -FLAT * power_w <= change_w <= FLAT * power_w:
            self._flat = 0
            return 1
        self._flat += 1
        if self._flat < FLAT_FOR or self._flat % LOOK_EVERY == 0:
            return 1
        return 2 if self._flat < STEADY_FOR else 3


MAX_SHARE = 0.001
"""Highest share of one core that reading may cost; a slow sensor is read less often."""
MAX_WAKE_S = 10.0
"""Longest time between two readings (s), whatever they cost."""
EARLY = 0.9
"""The meter is read when this share of the shortest period has passed: a timer may wake a little early."""
SHORT_S = 0.12
"""Longest sleep that stop() waits for (s)."""


class Sampler:
    """Reads a meter periodically into curves.

    Args:
        meter: What to read; used from this thread only while the sampler runs.
        curves: By device uid; samples of other devices are dropped. May be changed by ``on_tick``.
        sample_s: Sampling period of hardware sensors (s).
        clock: Time.
        on_tick: Called in this thread, with the time (s); is to call ``settle``.
        tick_s: How often that is (s).
    """

    def __init__(
        self,
        meter: PowerMeter,
        curves: Mapping[str, EnergyCurve],
        *,
        sample_s: float,
        clock: Clock,
        on_tick: Callable[[float], None],
        tick_s: float = 1.0,
        on_probe: Callable[[], None] = lambda: None,
    ) -> None:
        self._meter = meter
        self._curves = curves
        self._sample_s = sample_s
        self._clock = clock
        self._on_tick = on_tick
        self._on_probe = on_probe
        self._tick_s = tick_s
        self._running = threading.Lock()
        self._running.acquire()
        self._thread: threading.Thread | None = None
        self._warned = False
        self._wanted: frozenset[str] | None = None
        self._unsorted: deque[PowerSample | tuple[str, float, float]] = deque()
        self.busy_s = 0.0
        """CPU seconds that the thread has used."""

    def start(self) -> None:
        """Take the first reading now, in the caller's thread, then go on in the background."""
        self.read()
        self.settle()
        self._thread = threading.Thread(target=self._run, name="greentrain-sampler", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End the thread; return False if it hangs in a driver and had to be left."""
        if self._running.locked():
            self._running.release()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def read(self, final: bool = False) -> Sequence[PowerSample]:
        """Read the meter once, for :meth:`settle` to work in. Never raises.

        Args:
            final: Read sensors that are not due as well: it is the end of the run.
        """
        try:
            read = getattr(self._meter, "read_all", self._meter.read) if final else self._meter.read
            samples: Sequence[PowerSample] = read()
        except Exception as error:
            self._warn(f"the power meter failed ({error!r})")
            now_s = self._clock.monotonic_s()
            samples = [PowerSample(device_uid=uid, t_s=now_s, note=f"meter failed: {error!r}") for uid in self._curves]
        self._unsorted.extend(samples)
        return samples

    def select(self, uids: Collection[str]) -> None:
        """Tell the meter which devices are still wanted. Never raises."""
        self._wanted = frozenset(uids)
        select = getattr(self._meter, "select", None)
        if select is not None:
            try:
                select(uids)
            except Exception as error:
                self._warn(f"the power meter cannot select devices ({error!r})")

    def settle(self) -> None:
        """Put what was read since the last call into the curves. Cheap in a batch, dear one by one: cold caches."""
        with contextlib.suppress(IndexError):
            while True:
                sample = self._unsorted.popleft()
                curve = self._curves.get(sample[0])
                if curve is not None:
                    curve.append(sample if isinstance(sample, PowerSample) else PowerSample(*sample))

    def _run(self) -> None:
        try:
            self._probe()
        except Exception as error:
            self._warn(f"the probe of the sensors failed ({error!r})")
        sensors = self._meter.sensors
        wake_s = wake_period_s(sensors, self._sample_s)
        ticking = {s.device.uid: s.tick_s for s in sensors if s.tick_s and wake_s <= s.tick_s}
        pace = Pace(max(ticking.values(), default=wake_s))
        monotonic_s, push = self._clock.monotonic_s, self._unsorted.append
        counters: Sequence[Counter] = ()
        due_s = read_s = settle_s = monotonic_s() + wake_s
        while self._sleep(due_s - monotonic_s()):
            now_s, energy_j, seen = monotonic_s(), 0.0, 0
            if now_s < read_s:
                try:
                    for uid, read_j, delay_s in counters:
                        t_s, value_j = monotonic_s(), read_j()
                        push((uid, t_s + delay_s, value_j))
                        energy_j += value_j
                        seen += 1
                except Exception:
                    read_s = now_s
            if now_s >= read_s:
                values_j = [s.energy_j for s in self.read() if s.energy_j is not None and s.device_uid in ticking]
                energy_j, seen = sum(values_j), len(values_j)
                counters, read_s = self._direct(sensors, ticking, now_s)
            due_s += wake_s * pace.after(now_s, energy_j, seen)
            if due_s < now_s:
                due_s = now_s + wake_s
            if now_s < settle_s:
                continue
            settle_s = now_s + self._tick_s
            try:
                self._on_tick(now_s)
            except Exception as error:
                self._warn(f"a background task failed ({error!r})")
            self.busy_s = time.thread_time()

    def _direct(
        self, sensors: Iterable[Sensor], ticking: Collection[str], now_s: float
    ) -> tuple[Sequence[Counter], float]:
        """Return the counters that can be read without their meter, and until when (s): others must not wait."""
        listed = getattr(self._meter, "counters", None)
        try:
            counters = () if listed is None else [counter for counter in listed() if counter.device_uid in ticking]
        except Exception as error:
            self._warn(f"the power meter cannot list its counters ({error!r})")
            counters = ()
        direct = {counter.device_uid for counter in counters}
        until_s = self._tick_s
        for sensor in sensors:
            uid = sensor.device.uid
            if uid not in direct and (self._wanted is None or uid in self._wanted):
                until_s = min(until_s, sensor.period_s)
        return counters, now_s + EARLY * until_s

    def _sleep(self, wait_s: float) -> bool:
        # A plain sleep costs half of what a wait with a time-out does, but only the latter can be cut short.
        if 0 < wait_s <= SHORT_S:
            time.sleep(wait_s)
            return self._running.locked()
        return not self._running.acquire(timeout=max(0.0, wait_s))

    def _probe(self) -> None:
        probe = getattr(self._meter, "probe", None)
        if probe is None:
            return
        probe()
        for sensor in self._meter.sensors:
            curve = self._curves.get(sensor.device.uid)
            if curve is not None:
                curve.sensor = sensor
                if sensor.tick_s is not None:
                    curve.use_tick(sensor.tick_s, sensor.tick_edge_s)
        self._on_probe()

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            with contextlib.suppress(Exception):
                warnings.warn(f"GreenTrain: {text}; training goes on", GreenTrainWarning, stacklevel=2)


def wake_period_s(sensors: Iterable[Sensor], sample_s: float) -> float:
    """Return how often to wake (s): as asked, slower for slow or costly sensors, a vernier for ticking ones."""
    listed = list(sensors)
    if not listed:
        return max(sample_s, 1.0)
    wake_s = max(sample_s, min(sensor.period_s for sensor in listed))
    while _cost(listed, wake_s) > MAX_SHARE and wake_s < MAX_WAKE_S:
        wake_s *= 1.25
    if any(sensor.tick_s and 0.8 * wake_s <= sensor.tick_s <= 1.25 * wake_s for sensor in listed):
        wake_s *= VERNIER
    return min(wake_s, MAX_WAKE_S)


def _cost(sensors: Iterable[Sensor], wake_s: float) -> float:
    """Return the share of a core that reading costs: a sensor is read when it is due, not at every wake."""
    return sum((sensor.read_cost_s or 0.0) / max(wake_s, sensor.period_s) for sensor in sensors)
