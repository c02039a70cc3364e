"""Reading the meter in the background, and turning its samples into one curve of energy a device.

One thread of a session reads the meter and calls the bookkeeper now and then (:class:`Sampler`). Samples of every
sensor end in one monotone curve (:class:`EnergyCurve`). A step or a phase is two timestamps on it; its energy is the
difference of the interpolated curve, computed later, so nothing is read when a step ends, windows may nest and overlap,
and parts always sum to the whole. Beside the joules runs a second curve: the seconds of which nothing is known.

A GPU's energy counter is refreshed about every 100 ms. A value read now is the energy up to the last tick, not up to
now: taken at face value, a 0.5 s window of a square wave is wrong by 12 % and more. :class:`TickTracker` keeps an
estimate of period and phase of the ticks from when the value was seen to change, so that every value gets the time of
its tick. Reading at 0.97 of the tick period makes the reads sweep over the ticks like a vernier: about every 33 reads
one pair of reads holds no tick and pins the phase to a few milliseconds, at no extra read.

Two readings of a cumulative counter on a straight line say all there is between them, and one step of power in a
longer interval is found as well as in a short one. So a counter is read at every tick only while its power moves
(:class:`Pace`); a wake-up and a read cost a core about 100 us, whatever they find.
"""

import contextlib
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from greentrain.errors import GreenTrainWarning
from greentrain.types import Counter, PowerMeter, PowerSample, Sensor
from greentrain.utils.clock import Clock

VERNIER = 0.97
"""Share of the tick period at which to read."""
CLEAR_TICK = 0.3
"""A read so far after a tick (share of the period) cannot be taken for one before it."""


class TickTracker:
    """Tracks the ticks of one counter.

    Args:
        tick_s: Probed refresh period (s); refined while tracking, within 5 %.
        edge_s: Time of one tick (s), where the probe saw it.
    """

    def __init__(self, tick_s: float, edge_s: float | None = None) -> None:
        self.tick_s = tick_s
        self._nominal_s = tick_s
        self._edge_s = edge_s
        self._pinned_s = edge_s
        self._read_s: float | None = None

    def observe(self, t_s: float, changed: bool) -> float | None:
        """Take one read into account.

        Args:
            t_s: Time of the read (s), increasing.
            changed: True if the value differs from the read before.

        Returns:
            The estimated time of the last tick at or before the read; None until one was seen, here or by the probe.
        """
        before_s, self._read_s = self._read_s, t_s
        if before_s is None:
            if self._edge_s is not None:
                self._edge_s += math.floor((t_s - self._edge_s) / self.tick_s) * self.tick_s
            return self._edge_s
        if self._edge_s is None:
            if changed:
                self._edge_s = (before_s + t_s) / 2 if t_s - before_s < self.tick_s else t_s
            return self._edge_s
        edge_s = self._edge_s + math.floor((t_s - self._edge_s) / self.tick_s) * self.tick_s
        if changed and edge_s <= before_s:
            # The value changed since the last read, but the estimate has no tick in between: it is too early or too
            # late. The nearer of the two reads is where the tick was missed, so the estimate moves just inside it.
            early = before_s - edge_s
            late = edge_s + self.tick_s - t_s
            edge_s = before_s + min(1e-4, (t_s - before_s) / 2) if early <= late else t_s
        elif not changed:
            # No tick in between, so one that is estimated there goes to the nearest place outside. Two reads nearly a
            # period apart leave it so little room that its phase is known to half of what is left.
            if edge_s > before_s:
                edge_s = min(before_s, t_s - self.tick_s + 1e-4)
            if t_s - before_s > 0.8 * self.tick_s:
                self._pin(before_s - (self.tick_s - (t_s - before_s)) / 2)
        self._edge_s = edge_s
        return edge_s

    def settled_s(self, t_s: float) -> float:
        """Return the next time (s) at which a reading holds all of ``t_s`` and no tick is near that may confuse it."""
        if self._edge_s is None:
            return t_s + self.tick_s + 0.002
        return self._edge_s + (math.ceil((t_s - self._edge_s) / self.tick_s) + CLEAR_TICK) * self.tick_s

    def _pin(self, edge_s: float) -> None:
        # Two reads almost a period apart and no tick between them: the ticks are just outside both.
        if self._pinned_s is None:
            self._pinned_s = edge_s
            return
        ticks = round((edge_s - self._pinned_s) / self.tick_s)
        if ticks >= 16:
            refined_s = (edge_s - self._pinned_s) / ticks
            low_s, high_s = 0.95 * self._nominal_s, 1.05 * self._nominal_s
            self.tick_s = min(max(refined_s, low_s), high_s)


Floats = npt.NDArray[np.float64]

CAPACITY = 16_384
"""Points kept a device, 27 minutes at 10 Hz: 384 KiB, allocated once."""
STEP_FLATNESS = 0.25
"""Largest change of power before and after a tick, relative to the jump across it, that still makes it a step."""
STUCK_TICKS = 10
"""Ticks without change after which a counter is taken at its word: nothing was used."""


class EnergyCurve:
    """Cumulative energy of one device as a function of monotonic time.

    Args:
        sensor: Sensor of the device.
        t0_s: Start of the curve (s); a first power reading is held back to it.
        on_event: Called with a name and a sentence when the sensor misbehaves.
    """

    def __init__(
        self, sensor: Sensor, t0_s: float, on_event: Callable[[str, str], None] = lambda name, text: None
    ) -> None:
        self.sensor = sensor
        self._t0_s = t0_s
        self._on_event = on_event
        self._t = np.empty(CAPACITY)
        self._energy = np.empty(CAPACITY)
        self._missing = np.empty(CAPACITY)
        self._n = 0
        self._counter_j: float | None = None
        self._power_w: float | None = None
        self._first_read_s = t0_s
        self._gap = False
        self._provisional_s = 0.0
        self._last_read_s = t0_s
        self._ticks: TickTracker | None = None
        self._open_points = 0

    def start(self, t0_s: float) -> None:
        """Move the start of a curve that has no reading yet (s)."""
        self._t0_s = self._last_read_s = t0_s

    @property
    def frontier_s(self) -> float:
        """Time up to which the curve is final (s): of a ticking counter, one tick behind its last value."""
        if self._n == 0:
            return self._t0_s
        return float(self._t[max(0, self._n - 1 - self._open_points)])

    def wait_s(self, t_s: float) -> float:
        """Return how long after ``t_s`` a reading will surely cover it (s): until the tick after has passed."""
        return self._ticks.settled_s(t_s) - t_s if self._ticks and not self._gap else 0.0

    def append(self, sample: PowerSample) -> None:
        """Add one reading. Bad readings (failed, NaN, out of order) become gaps, never an exception."""
        value = sample.energy_j if sample.energy_j is not None else sample.power_w
        bad = value is None or not math.isfinite(value) or (sample.power_w is not None and value < 0)
        if not bad and sample.t_s < self._last_read_s and self._n:
            self._on_event("warning", f"{self._name}: a reading is older than the one before and was dropped")
            return
        if bad:
            if not self._gap:
                reason = sample.note or f"reading was {value!r}"
                self._on_event("gap", f"{self._name}: no reading ({reason}); its energy is missing from here on")
            self._gap = True
            return
        if self._n == 0:
            self._first_read_s = sample.t_s
            self._push(min(self._t0_s, sample.t_s - self.sensor.averaging_s / 2), 0.0, 0.0)
            if self._gap:
                self._gap = False
                self._push(sample.t_s, 0.0, sample.t_s - self._t0_s)
        if sample.energy_j is not None:
            self._append_counter(sample.t_s, sample.energy_j)
        elif sample.power_w is not None:
            self._append_power(sample.t_s - self.sensor.averaging_s / 2, sample.power_w)
        self._last_read_s = sample.t_s

    def use_tick(self, tick_s: float, edge_s: float | None = None) -> None:
        """From now on, date counter values by their tick.

        Args:
            tick_s: Refresh period as the probe found it (s). Counters faster than 15 ms need no dating.
            edge_s: Monotonic time of one tick, where the probe saw it (s).
        """
        if self._ticks is None and tick_s > 0.015:
            self._ticks = TickTracker(tick_s, edge_s)

    def advance_missing(self, t_s: float) -> None:
        """Book the time up to ``t_s`` as missing because no reading came; a counter may deliver it later."""
        self._open_points = 0
        behind_s = t_s - self.frontier_s
        if behind_s <= 0:
            return
        if self._n == 0:
            self._push(self._t0_s, 0.0, 0.0)
            behind_s = t_s - self._t0_s
        if not self._gap:
            self._gap = True
            self._on_event("gap", f"{self._name}: no reading for {behind_s:.1f} s; its energy is missing")
        self._provisional_s += behind_s
        self._push(t_s, self._energy[self._n - 1], self._missing[self._n - 1] + behind_s)

    def finish(self, t_s: float) -> None:
        """Extend the curve to ``t_s`` at its last power: the part of a tick that no counter value covers yet."""
        self._open_points = 0
        behind_s = t_s - self.frontier_s
        if behind_s <= 0:
            return
        if self._n == 0 or self._gap or behind_s > max(2.0, 3 * self.sensor.period_s):
            self.advance_missing(t_s)
            return
        i = self._n - 1
        j = max(0, int(np.searchsorted(self._t[: self._n], self._t[i] - 0.25)) - 1)
        span_s = self._t[i] - self._t[j]
        slope_w = (self._energy[i] - self._energy[j]) / span_s if span_s > 0 else self._power_w or 0.0
        self._push(t_s, self._energy[i] + slope_w * behind_s, self._missing[i])

    def at(self, t_s: Floats) -> tuple[Floats, Floats]:
        """Return cumulative energy (J) and cumulative missing seconds at the times ``t_s`` (any shape)."""
        n = self._n
        if n == 0:
            return np.zeros_like(t_s), np.zeros_like(t_s)
        t = self._t[:n]
        return np.interp(t_s, t, self._energy[:n]), np.interp(t_s, t, self._missing[:n])

    def between(self, t0_s: float, t1_s: float) -> tuple[float, float]:
        """Return energy (J) and missing seconds of one interval."""
        energy, missing = self.at(np.array([t0_s, t1_s]))
        return float(energy[1] - energy[0]), float(missing[1] - missing[0])

    @property
    def oldest_s(self) -> float:
        """Earliest time still kept (s)."""
        return float(self._t[0]) if self._n else self._t0_s

    @property
    def _name(self) -> str:
        return f"{self.sensor.device.name} ({self.sensor.device.uid})"

    def _append_counter(self, t_s: float, value_j: float) -> None:
        last_j, self._counter_j = self._counter_j, value_j
        edge_s = self._ticks.observe(t_s, last_j is None or value_j != last_j) if self._ticks else t_s
        if last_j is None:
            return
        if value_j < last_j:
            self._gap = False
            self._on_event("gap", f"{self._name}: the counter ran backwards (driver reload?); the interval is missing")
            dt_s = max(0.0, t_s - float(self._t[self._n - 1]))
            self._push(t_s, self._energy[self._n - 1], self._missing[self._n - 1] + dt_s)
            self._provisional_s = 0.0
            return
        if value_j == last_j and self._ticks and not self._gap:
            if t_s - self.frontier_s < (STUCK_TICKS + 1) * self._ticks.tick_s:
                return
            edge_s = t_s - self._ticks.tick_s
        edge_s = t_s if edge_s is None else edge_s
        self._anchor_first_tick(edge_s)
        missing_s = self._missing[self._n - 1]
        if self._gap:
            if self._provisional_s:
                self._on_event(
                    "recovered",
                    f"{self._name}: reads again; its counter delivers {value_j - last_j:.1f} J of"
                    f" {self._provisional_s:.1f} s late",
                )
            missing_s -= self._provisional_s
            self._gap, self._provisional_s = False, 0.0
            edge_s = max(edge_s, float(self._t[self._n - 1]) + 1e-6)
        self._push(edge_s, self._energy[self._n - 1] + value_j - last_j, missing_s)
        if self._ticks is not None:
            self._open_points = 1
            self._resolve_step()

    def _resolve_step(self) -> None:
        """Place a step of power inside the tick it happened in.

        Four ticks of power a, b, c, d in a row where a step from p to q falls into tick c: the joules of c say
        when it happened, t = (c - q) / (p - q) of the tick (subcell resolution, Harten 1989,
        doi:10.1016/0021-9991(89)90226-X). Only where a, b before and d after are flat against the jump, so slopes
        and noise stay as they are. The energy at every tick is untouched.
        """
        n = self._n
        if n < 5:
            return
        # plain floats: on five values they cost a tenth of what arrays do
        t, energy = self._t[n - 5 : n].tolist(), self._energy[n - 5 : n].tolist()
        dt = [t[i + 1] - t[i] for i in range(4)]
        if max(dt) > 3.5 * min(dt):
            return
        before2_w, before_w, inside_w, after_w = ((energy[i + 1] - energy[i]) / dt[i] for i in range(4))
        jump_w = after_w - before_w
        if jump_w == 0.0 or abs(before_w - before2_w) > STEP_FLATNESS * abs(jump_w):
            return
        share = (after_w - inside_w) / jump_w
        if not 0.02 < share < 0.98:
            return
        missing_s = float(self._missing[n - 1])
        self._n = n - 2
        self._push(t[2] + share * dt[2], energy[2] + before_w * share * dt[2], missing_s)
        self._push(t[3], energy[3], missing_s)
        self._push(t[4], energy[4], missing_s)

    def _anchor_first_tick(self, edge_s: float) -> None:
        # The first value read is the energy up to the last tick before it: what was used before is not the run's.
        if self._ticks is not None and self._n == 1:
            tick_s = self._ticks.tick_s
            self._t[0] = edge_s - math.ceil((edge_s - self._first_read_s) / tick_s) * tick_s

    def _append_power(self, t_s: float, power_w: float) -> None:
        i = self._n - 1
        dt_s = t_s - float(self._t[i])
        first = self._power_w is None
        if dt_s <= 0 and not first:
            return
        limit_s = max(2.0, 5 * self.sensor.period_s)
        if (self._gap or dt_s > limit_s) and not first:
            if not self._gap:
                self._on_event("gap", f"{self._name}: no reading for {dt_s:.1f} s; its energy is missing")
            self._push(t_s, self._energy[i], self._missing[i] + dt_s)
            self._gap, self._provisional_s = False, 0.0
        else:
            mean_w = power_w if self._power_w is None else 0.5 * (power_w + self._power_w)
            self._push(t_s, self._energy[i] + mean_w * max(0.0, dt_s), self._missing[i])
        self._power_w = power_w

    def _push(self, t_s: float, energy_j: float, missing_s: float) -> None:
        if self._n and t_s <= self._t[self._n - 1]:
            t_s = math.nextafter(float(self._t[self._n - 1]), math.inf)
        if self._n == CAPACITY:
            half = CAPACITY // 2
            for values in (self._t, self._energy, self._missing):
                values[:half] = values[half:]
            self._n = half
        self._t[self._n] = t_s
        self._energy[self._n] = energy_j
        self._missing[self._n] = missing_s
        self._n += 1


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
            seen: Number of counters in the sum; with none every tick is read.
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
        meter: Meter to read; used from this thread only while the sampler runs.
        curves: Curves by device uid; samples of other devices are dropped. May be changed by ``on_tick``.
        sample_s: Sampling period of hardware sensors (s).
        clock: Time.
        on_tick: Called in this thread, with the time (s); is to call ``settle``.
        tick_s: Period of these calls (s).
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
