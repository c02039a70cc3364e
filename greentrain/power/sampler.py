"""Reading the meter in the background, and turning its samples into one curve of energy a device.

One thread of a session reads the meter and asks the bookkeeper now and then (:class:`Sampler`). Samples of every
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
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from greentrain.power.detect import EARLY, MAX_PACE_S, MAX_SHARE, CompositeMeter, MeterPart
from greentrain.power.nvml import LONG_READ_S
from greentrain.types import Counter, DeviceState, PowerMeter, PowerSample, Provenance, Sensor
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

    def observe(self, t_s: float, changed: bool | None) -> float | None:
        """Take one read into account.

        Args:
            t_s: Time of the read (s), increasing.
            changed: True if the value differs from the read before; None: it cannot be compared.

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
        elif changed is False:
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
AHEAD_S: Final = 0.1
"""How far ahead of the clock a reading's time may lie (s)."""
MAX_DEVICE_W: Final = 1e6
"""A counter that rises faster has jumped: a thousand times the power limit of a B200 (utils/devices.toml)."""
MOST_J: Final = 2.0**63
"""No counter has come so far, and NVML's, of 64 bits, cannot: such a value is no reading."""
TIMES_LIMIT: Final = 10.0
"""The same, in power limits of a device that states one: far above it also where a lowered one is raised later."""
STRAY_S: Final = 1.0
"""Time that a counter's rise may be off (s): a tick, and a read that was held up."""
LEAD_S = 1.0
"""How far the power of a counter's first interval is held back to the start of the run (s); longer is missing."""
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
        self.pace_s = sensor.period_s
        self._last_pace_s = sensor.period_s
        """How often it is read by now (s)."""
        self._first_read_s = t0_s
        self._gap = False
        self._provisional_s = 0.0
        self._last_read_s = t0_s
        self._ticks: TickTracker | None = None
        self._told: deque[tuple[float, float]] = deque(maxlen=CAPACITY)
        self._open_points = 0

    @property
    def tick_s(self) -> float | None:
        """Refresh period of a counter that is dated by its ticks (s); None of all others."""
        return None if self._ticks is None else self._ticks.tick_s

    def ticks(self, t_s: float, *, take: bool = True) -> Floats:
        """Return the ticks that were read since they were last taken, up to a time.

        Args:
            t_s: The time (s).
            take: Forget them.

        Returns:
            Time (s) and cumulative energy (J) of each, shape (n, 2); NaN joules where what came before says nothing of
            what follows.
        """
        found = list(itertools.takewhile(lambda tick: tick[0] <= t_s, self._told))
        for _ in found if take else ():
            self._told.popleft()
        return np.array(found).reshape(-1, 2)

    def start(self, t0_s: float, known: bool = True) -> None:
        """Move the start of a curve that has no reading yet (s); until the first one, nothing is known if so said."""
        self._t0_s = self._last_read_s = t0_s
        self._gap = not known

    @property
    def frontier_s(self) -> float:
        """Time up to which the curve is final (s): of a ticking counter, one tick behind its last value."""
        if self._n == 0:
            return self._t0_s
        return float(self._t[max(0, self._n - 1 - self._open_points)])

    def readings_s(self, t0_s: float, t1_s: float) -> Floats:
        """Return the times between two at which it was read, or power was seen to change, and these two (s)."""
        t = self._t[: self._n]
        return np.concatenate([[t0_s], t[(t > t0_s) & (t < t1_s)], [t1_s]])

    def bounds_j(self, t0_s: float, t1_s: float) -> tuple[float, float]:
        """Return the least and the most that a window can have used as its readings lie (J): no power is negative."""
        t = self._t[: self._n]
        after = np.minimum(np.searchsorted(t, [t0_s, t1_s]), self._n - 1)
        before = np.maximum(np.searchsorted(t, [t0_s, t1_s], side="right") - 1, 0)
        least_j = self._energy[before[1]] - self._energy[after[0]]
        return max(float(least_j), 0.0), float(self._energy[after[1]] - self._energy[before[0]])

    def wait_s(self, t_s: float) -> float:
        """Return how long after ``t_s`` a reading will surely cover it (s): until the tick after has passed."""
        return self._ticks.settled_s(t_s) - t_s if self._ticks and not self._gap else 0.0

    def append(self, sample: PowerSample, now_s: float = math.inf) -> None:
        """Add one reading. Bad readings (failed, no number, of no time that can be) become gaps, never an exception.

        Args:
            sample: The reading.
            now_s: A time by which it had been taken (s); one of a later time is bad.
        """
        value: Any = sample.energy_j if sample.energy_j is not None else sample.power_w
        t_s = math.nan
        try:
            bad = not abs(value) < MOST_J or (sample.power_w is not None and not 0 <= value <= self._most_w)
            bad = bad or not -math.inf < sample.t_s <= now_s + AHEAD_S
            value, t_s = float(value), float(sample.t_s)  # a meter may tell any kind of number
        except (TypeError, ValueError, ArithmeticError):
            bad = True
        if not bad and t_s <= self._last_read_s and self._n:
            if t_s < self._last_read_s:  # of the same time, where a clock is coarse, is no news
                self._on_event("warning", f"{self._name}: a reading is older than the one before and was dropped")
            return
        if bad:
            if not self._gap:
                reason = sample.note or f"reading was {value!r} of {sample.t_s!r} s"
                self._on_event("gap", f"{self._name}: no reading ({reason}); its energy is missing from here on")
            self._gap = True
            return
        if self._n == 0:
            self._first_read_s = t_s
            self._push(min(self._t0_s, t_s - self.sensor.averaging_s / 2), 0.0, 0.0)
            if self._gap:
                self._gap = False
                self._push(t_s, 0.0, t_s - self._t0_s)
        if sample.energy_j is not None:
            self._append_counter(t_s, value)
        else:
            self._append_power(t_s - self.sensor.averaging_s / 2, value)
        self._last_read_s = t_s

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
        """Extend the curve to ``t_s`` at its last power where a reading is not due yet; what failed is missing."""
        self._open_points = 0
        behind_s = t_s - self.frontier_s
        if behind_s <= 0:
            return
        open_s = 2 * max(self.sensor.period_s, self.pace_s, self.sensor.averaging_s)
        if self._ticks is not None:
            open_s = max(open_s, (STUCK_TICKS + 2) * self._ticks.tick_s)
        power_w = None if self._n < 2 or self._gap or behind_s > open_s else self._last_power_w()
        if power_w is None:
            self.advance_missing(t_s)
        else:
            self._push(t_s, self._energy[self._n - 1] + power_w * behind_s, self._missing[self._n - 1])

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

    @property
    def _most_w(self) -> float:
        if self.sensor.limit_w is None or self.sensor.provenance is Provenance.MODELLED:  # no model starts over
            return MAX_DEVICE_W
        return TIMES_LIMIT * self.sensor.limit_w

    def _last_power_w(self) -> float | None:
        """Return the mean power of what is known of the last quarter of a second (W); None where nothing is."""
        i = self._n - 1
        j = max(0, int(np.searchsorted(self._t[: self._n], self._t[i] - 0.25)) - 1)
        known_s = self._t[i] - self._t[j] - (self._missing[i] - self._missing[j])
        return float((self._energy[i] - self._energy[j]) / known_s) if known_s > 1e-3 else self._power_w

    def _append_counter(self, t_s: float, value_j: float) -> None:
        last_j, self._counter_j = self._counter_j, value_j
        rise_j = 0.0 if last_j is None else value_j - last_j
        jumped = not 0 <= rise_j <= self._most_w * (t_s - self._last_read_s + STRAY_S)
        edge_s = self._ticks.observe(t_s, None if jumped else last_j is None or rise_j != 0) if self._ticks else t_s
        if last_j is None:
            return
        if jumped:
            self._gap = False
            how = "ran backwards" if rise_j < 0 else f"jumped by {rise_j:.3g} J"
            self._on_event("gap", f"{self._name}: the counter {how} (driver reload?); the interval is missing")
            # What follows counts from the tick of this value, so the gap ends there.
            gap_s = max(0.0, (t_s if edge_s is None else edge_s) - float(self._t[self._n - 1]))
            self._push(self._t[self._n - 1] + gap_s, self._energy[self._n - 1], self._missing[self._n - 1] + gap_s)
            self._provisional_s = 0.0
            self._told.append((t_s, math.nan))
            return
        if value_j == last_j and self._ticks and not self._gap:
            if t_s - self.frontier_s < (STUCK_TICKS + 1) * self._ticks.tick_s:
                return
            edge_s = t_s - self._ticks.tick_s
        edge_s = t_s if edge_s is None else edge_s
        if self._n == 1:
            self._begin(edge_s, t_s, rise_j)
        missing_s = self._missing[self._n - 1]
        if self._gap:
            if self._provisional_s:
                self._on_event(
                    "recovered",
                    f"{self._name}: reads again; its counter delivers {rise_j:.1f} J of"
                    f" {self._provisional_s:.1f} s late",
                )
            missing_s -= self._provisional_s
            self._gap, self._provisional_s = False, 0.0
            edge_s = max(edge_s, float(self._t[self._n - 1]) + 1e-6)
            self._told.append((edge_s, math.nan))
        # By the rise: a sum with a counter's own value, if that is large, would take back what was booked.
        self._push(edge_s, self._energy[self._n - 1] + rise_j, missing_s)
        if self._ticks is not None:
            self._told.append((float(self._t[self._n - 1]), float(self._energy[self._n - 1])))
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

    def _begin(self, edge_s: float, t_s: float, used_j: float) -> None:
        """Book the time between the start of the run and the first value, of which a counter tells nothing.

        Args:
            edge_s: Time of the tick of the second value (s).
            t_s: Time at which that was read (s).
            used_j: Energy between both values (J).
        """
        if self._ticks is not None:
            # The first value is the energy up to the last tick before it: what was used before is not the run's.
            tick_s = self._ticks.tick_s
            self._t[0] = edge_s - math.ceil((edge_s - self._first_read_s) / tick_s) * tick_s
            return
        lead_s = self._first_read_s - float(self._t[0])
        if self._gap or lead_s <= 0:
            return
        if lead_s <= LEAD_S:  # held back, as power is
            self._push(self._first_read_s, used_j * lead_s / (t_s - self._first_read_s), 0.0)
        else:
            self._push(self._first_read_s, 0.0, lead_s)

    def _append_power(self, t_s: float, power_w: float) -> None:
        i = self._n - 1
        dt_s = t_s - float(self._t[i])
        first = self._power_w is None
        if dt_s <= 0 and not first:
            return
        # Where the pace has just become quicker, this reading still came at the old one.
        limit_s = max(2.0, 5 * self.sensor.period_s, 2 * self.pace_s, 2 * self._last_pace_s)
        self._last_pace_s = self.pace_s
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


_T = TypeVar("_T")
SHORT_S: Final = 0.12
"""Longest sleep of a reader that is not cut short at the end (s)."""
HANG_S: Final = 1.0
"""A read that takes longer is taken for hung (s): reads take 0.5 us to several ms in public measurements."""
SLOW_S: Final = 5.0
"""Longest that a meter of slow sensors is waited for (s); those of fast ones get HANG_S."""
USERS_S: Final = 3.0
"""Shortest time between two looks at which processes use the devices (s); a run's devices seldom change later."""
STATES_S: Final = 1.0
"""Shortest time between two looks at what devices do beside drawing power (s): NVML's longest sample period."""
STATES_SHARE: Final = 0.0002
"""Highest share of a core that these looks may cost: a fifth of what readings may."""
STOP_S: Final = 3.0
"""Longest that the end of the run waits for all last readings (s)."""
TICK_WAIT_S: Final = 0.15
"""Longest wait for a counter's tick after the end of the run (s)."""
PROBES_S: Final = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""How long after a probe on a busy machine did not see a counter's tick the next one comes (s): a tenth of a core for
0.4 s each, and no more after these."""
AGAIN_S: Final = 0.1
"""Later look at an overdue read (s): a stopped process, or one whose interpreter was held, is not a hung driver."""


class _Reader:
    """One thread that reads. Where a driver holds it, it is left to itself, and ends when the driver lets go."""

    def __init__(self, run: Callable[["_Reader"], None]) -> None:
        self.part: MeterPart | None = None
        """Being read."""
        self.since_s = 0.0
        """When that read began (s)."""
        self.left = False
        self.asked = self.ended = False
        """Somebody wants a reading now, or none any more."""
        self.cpu_s = 0.0
        self.going = threading.Lock()
        self.going.acquire()
        self.thread = threading.Thread(target=run, args=(self,), name="greentrain-reader", daemon=True)

    def is_left(self) -> bool:
        """Return True if another one reads in its place."""
        return self.left

    def sleep(self, wait_s: float) -> bool:
        """Sleep, and return False if somebody has woken it."""
        # A plain sleep costs half of what a wait with a time-out does, but only the latter can be cut short.
        if 0 < wait_s <= SHORT_S:
            time.sleep(wait_s)
            wait_s = 0.0
        return not self.going.acquire(timeout=max(0.0, wait_s))

    def wake(self) -> None:
        """Cut its sleep short; from any thread, and from a signal handler."""
        with contextlib.suppress(RuntimeError):  # somebody has already
            self.going.release()


class Sampler:
    """Reads a meter periodically into curves.

    One thread reads, and who works the readings in looks after it: where a driver hangs on a device, that device alone
    is given up, with a failed reading that says so, and a new thread reads the others. It is read again once its driver
    has let go.

    Args:
        meter: Meter to read; used from the reading thread only while the sampler runs.
        curves: Curves by device uid; samples of other devices are dropped. May be changed by ``on_tick``.
        sample_s: Sampling period of hardware sensors (s).
        clock: Time.
        on_tick: Called in the reading thread with the time (s), not to block there; somebody is to call ``settle``.
        tick_s: Period of these calls (s).
        on_probe: Called there when it is known what the sensors are like, and again when more is known.
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
        self._meter = meter if isinstance(meter, CompositeMeter) else CompositeMeter([meter], clock=clock)
        self._curves = curves
        self._sample_s = sample_s
        self._clock = clock
        self._on_tick = on_tick
        self._on_probe = on_probe
        self._tick_s = tick_s
        self.pids: Mapping[str, Collection[int]] = {}
        """By device, the processes that its driver shows on it, as of the last look."""
        self._wanted: frozenset[str] | None = None
        self.states: deque[DeviceState] = deque(maxlen=CAPACITY)
        """What devices did beside drawing power, for who books it to take."""
        self._unsorted: deque[PowerSample | tuple[str, float, float]] = deque()
        self._all = MeterPart(self._meter, (), clock)
        """Stands for the meter as a whole while it is probed."""
        self._stuck: list[tuple[MeterPart, _Reader]] = []
        self._first = threading.Event()
        self._probed = self._ending = False
        self._settled_s = 0.0
        self._probe_s = math.inf
        """When to probe again (s)."""
        self._probes_s = iter(PROBES_S)
        self._unseen: Collection[str] = ()
        """Devices whose counters tick, as nobody knows when."""
        self._reader = _Reader(self._run)

    @property
    def busy_s(self) -> float:
        """CPU seconds that the reading thread has used."""
        return self._reader.cpu_s

    def start(self) -> None:
        """Take the first reading now, and go on in the background; a driver that hangs is not waited for."""
        self._reader.thread.start()
        self._first.wait(HANG_S)
        self.settle()

    def stop(self, t1_s: float | None = None) -> bool:
        """Read everything a last time and end the thread.

        Args:
            t1_s: End of the run (s): the last readings are to hold it, so a tick is waited for. None: now.

        Returns:
            False if a thread hangs and had to be left: what it read is not known, and the meter is not to be closed.
        """
        end_s = time.monotonic() + STOP_S
        self._settled_s = 0.0 if t1_s is None else max((c.wait_s(t1_s) for c in self._curves.values()), default=0.0)
        self._ending = True
        while self._reader.thread.is_alive() and time.monotonic() < end_s:
            self._reader.ended = True
            self._reader.wake()
            self._reader.thread.join(SHORT_S)
            self.look_after()
        for part in self._meter.parts:
            if self._reader.part is part:
                self._give_up(part)
        return not any(reader.thread.is_alive() for reader in (self._reader, *(reader for _, reader in self._stuck)))

    def look_after(self) -> None:
        """Leave a reader whose driver does not answer, and start another one; to be called now and then."""
        reader = self._reader
        part, since_s = reader.part, reader.since_s
        if part is None:
            return
        limit_s = max(HANG_S, min(part.pace_s, SLOW_S)) if part.uids else SLOW_S
        if self._clock.monotonic_s() - since_s <= limit_s:
            return
        time.sleep(AGAIN_S)
        if reader.part is not part or reader.since_s != since_s:
            return
        reader.left = True
        self._stuck.append((part, reader))
        self._give_up(part)
        self._probed = True
        self._first.set()
        self._reader = _Reader(self._run)
        if self._ending:
            self._reader.ended = True
            self._reader.wake()
        self._reader.thread.start()

    def ask(self) -> None:
        """Have everything read now, as power changes or somebody waits for it; waits for nothing itself."""
        self._reader.asked = True
        self._reader.wake()

    def select(self, uids: Collection[str]) -> None:
        """Read only these devices from now on."""
        self._wanted = frozenset(uids)

    def settle(self) -> None:
        """Put what was read since the last call into the curves. Cheap in a batch, dear one by one: cold caches."""
        now_s = self._clock.monotonic_s()
        with contextlib.suppress(IndexError):
            while True:
                sample = self._unsorted.popleft()
                curve = self._curves.get(sample[0])
                if curve is not None:
                    curve.append(sample if isinstance(sample, PowerSample) else PowerSample(*sample), now_s)

    # -- the thread that reads ---------------------------------------------------------------------------------

    def _run(self, reader: _Reader) -> None:
        if not self._first.is_set():
            self._read(reader, all_parts=True)
            self._first.set()
        if not self._probed and not self._ending:
            self._learn(reader)
        sensors, wake_s, ticking, pace = self._paced()
        monotonic_s, push = self._clock.monotonic_s, self._unsorted.append
        counters: Sequence[tuple[MeterPart, Counter]] = ()
        quick: Sequence[MeterPart] = ()
        count_s = 0.0  # when to read counters again, where others are read in between
        start_s = read_s = settle_s = users_s = states_s = monotonic_s()
        due_s = read_s + wake_s
        while (reader.sleep(due_s - monotonic_s()) or not reader.ended) and not reader.is_left():
            t_s = now_s = monotonic_s()
            energy_j, seen = 0.0, 0
            asked, reader.asked = reader.asked, False
            if asked:
                read_s = due_s = now_s
            counting = asked or not quick or now_s >= count_s
            if quick and (now_s < read_s or not counting):
                self._read(reader, quick)
                if reader.is_left():
                    return
            if counting and now_s < read_s:
                try:
                    for part, (uid, read_j, delay_s) in counters:
                        reader.since_s, reader.part = t_s, part
                        value_j = read_j()
                        after_s = monotonic_s()
                        if reader.left:
                            break
                        push((uid, t_s + (delay_s if after_s - t_s < LONG_READ_S else (after_s - t_s) / 2), value_j))
                        energy_j += value_j
                        seen += 1
                        t_s = after_s
                except Exception:
                    read_s = now_s
                reader.part = None
                if reader.is_left():
                    return
            if counting and now_s >= read_s:
                wanted, self._wanted = self._wanted, None
                if wanted is not None:
                    self._meter.select(wanted)
                samples = self._read(reader, all_parts=asked)
                values_j = [s.energy_j for s in samples if s.device_uid in ticking and isinstance(s.energy_j, float)]
                energy_j, seen = sum(values_j), len(values_j)
                counters, read_s, quick = self._direct(ticking, now_s, wake_s)
            if counting:
                ticks = pace.after(now_s, energy_j, seen)
                count_s = due_s + (ticks - 0.5) * wake_s
            due_s += wake_s * (1 if quick else ticks)
            if due_s < now_s:
                due_s = now_s + wake_s
            if now_s >= users_s:
                self.pids = {**self.pids, **self._users(reader)}
                users_s = now_s + max(USERS_S, (now_s - start_s) / 5)
            if now_s >= states_s:
                began_s = time.thread_time()
                self._look(reader)
                states_s = now_s + max(STATES_S - wake_s / 2, (time.thread_time() - began_s) / STATES_SHARE)
            if now_s >= settle_s:
                settle_s = now_s + self._tick_s
                if now_s >= self._probe_s and not self._ending:
                    self._learn(reader)
                    if reader.is_left():
                        return
                    sensors, wake_s, ticking, pace = self._paced()
                    read_s = now_s
                wake_s = self._wake_s(sensors)
                reader.cpu_s = time.thread_time()
                self._on_tick(now_s)
        if not reader.is_left():
            time.sleep(min(TICK_WAIT_S, self._settled_s))
            self._read(reader, all_parts=True)

    def _read(
        self, reader: _Reader, parts: Sequence[MeterPart] = (), *, all_parts: bool = False
    ) -> Sequence[PowerSample]:
        """Read the parts that are due, of some or of all, or all that are wanted, but for those that hang."""
        samples: list[PowerSample] = []
        for part in parts or self._meter.parts:
            if self._hangs(part) or not (part.due() or (all_parts and not part.idle)):
                continue
            found = self._watched(reader, part, part.read)
            if reader.left:
                break  # nobody knows of when these are
            samples.extend(found)
            self._unsorted.extend(found)
        return samples

    def _direct(
        self, ticking: Collection[str], now_s: float, wake_s: float
    ) -> tuple[Sequence[tuple[MeterPart, Counter]], float, Sequence[MeterPart]]:
        """Return the counters that can be read without their meter, and until when (s): others must not wait.

        And parts without counters that are to be read each time, also while counters rest as their power stands.
        """
        counters, until_s, quick = [], self._tick_s, []
        for part in self._meter.parts:
            if self._hangs(part) or part.idle:
                continue
            found = [counter for counter in part.counters() if counter.device_uid in ticking]
            counters += [(part, counter) for counter in found]
            if ticking and part.uids and part.pace_s <= wake_s and not any(uid in ticking for uid in part.uids):
                quick.append(part)
            elif len(found) < len(part.uids):
                until_s = min(until_s, part.pace_s)
        return counters, now_s + EARLY * until_s, quick

    def _users(self, reader: _Reader) -> Mapping[str, Collection[int]]:
        found: dict[str, Collection[int]] = {}
        for part in self._meter.parts:
            users = getattr(part.meter, "users", None)
            if users is not None and not self._hangs(part):
                with contextlib.suppress(Exception):
                    found.update(self._watched(reader, part, users))
        return found

    def _look(self, reader: _Reader) -> None:
        for part in self._meter.parts:
            states = getattr(part.meter, "states", None)
            if states is not None and not part.idle and not self._hangs(part):
                with contextlib.suppress(Exception):
                    self.states.extend(self._watched(reader, part, states))

    def _learn(self, reader: _Reader) -> None:
        unseen = self._unseen or {sensor.device.uid for sensor in self._meter.sensors if sensor.tick_s}
        self._probe_s = math.inf  # a driver that hangs is not probed again
        self._watched(reader, self._all, self._meter.probe)
        if reader.left:
            return
        sensors = {sensor.device.uid: sensor for sensor in self._meter.sensors}
        for uid, sensor in sensors.items():
            curve = self._curves.get(uid)
            if curve is not None:
                curve.sensor = sensor
                if sensor.tick_s is not None:
                    curve.use_tick(sensor.tick_s, sensor.tick_edge_s)
        first, self._probed = not self._probed, True
        self._unseen = {uid for uid in unseen if uid in sensors and not sensors[uid].tick_s}
        if self._unseen:
            self._probe_s = self._clock.monotonic_s() + next(self._probes_s, math.inf)
        if first or self._unseen != unseen:
            self._on_probe()

    def _paced(self) -> tuple[Sequence[Sensor], float, Mapping[str, float], Pace]:
        """Return the sensors, how often to wake (s), by device the ticks (s) of its counter, and their pace."""
        sensors = self._meter.sensors
        wake_s = self._wake_s(sensors)
        ticking = {s.device.uid: s.tick_s for s in sensors if s.tick_s and wake_s <= s.tick_s}
        return sensors, wake_s, ticking, Pace(max(ticking.values(), default=wake_s))

    def _watched(self, reader: _Reader, part: MeterPart, call: Callable[[], _T]) -> _T:
        """Call what may hang, so that :meth:`look_after` sees since when."""
        reader.since_s, reader.part = self._clock.monotonic_s(), part
        try:
            return call()
        finally:
            reader.part = None

    def _wake_s(self, sensors: Sequence[Sensor]) -> float:
        """Return how often to wake (s), as things are now, and let the curves know how rarely they are read."""
        parts = [part for part in self._meter.parts if part.uids]
        wake_s = wake_period_s([(part.cost_s, part.pace_s) for part in parts], self._sample_s)
        if any(sensor.tick_s and 0.8 * wake_s <= sensor.tick_s <= 1.25 * wake_s for sensor in sensors):
            wake_s *= VERNIER
        for part in parts:
            for uid in part.uids:
                curve = self._curves.get(uid)
                if curve is not None:
                    curve.pace_s = max(wake_s, part.pace_s)
        return wake_s

    def _give_up(self, part: MeterPart) -> None:
        now_s = self._clock.monotonic_s()
        note = "its driver does not answer; what hangs is read again once it does"
        self._unsorted.extend(PowerSample(device_uid=uid, t_s=now_s, note=note) for uid in part.uids)

    def _hangs(self, part: MeterPart) -> bool:
        return any(stuck is part and reader.part is part for stuck, reader in self._stuck)


def wake_period_s(parts: Collection[tuple[float, float]], sample_s: float) -> float:
    """Return how often to wake (s): as asked, more rarely for slow sensors and where all reads together cost much.

    Args:
        parts: CPU time of a read (s) and own pace (s) of each part of the meter.
        sample_s: Sampling period that is asked for (s).
    """
    wake_s = max(sample_s, min((pace_s for _, pace_s in parts), default=1.0))
    while wake_s < MAX_PACE_S and sum(cost_s for cost_s, pace_s in parts if pace_s <= wake_s) > MAX_SHARE * wake_s:
        wake_s *= 1.25
    return min(wake_s, MAX_PACE_S)
