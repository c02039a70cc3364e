"""The cumulative-energy curve of one device: (time, joules) points, and the energy between any two times.

Samples of every sensor end in one monotone curve. A step or a phase is two timestamps on it; its energy is the
difference of the interpolated curve, computed later, so nothing is read when a step ends, windows may nest and
overlap, and parts always sum to the whole. Beside the joules runs a second curve: the seconds of which nothing
is known.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from greentrain.power.ticks import TickTracker
from greentrain.types import PowerSample, Sensor

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
        sensor: How the device is read.
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
