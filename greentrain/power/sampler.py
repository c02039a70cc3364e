"""The one background thread of a session: it reads the meter, and calls the bookkeeper now and then."""

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping

from greentrain.clock import Clock
from greentrain.errors import GreenTrainWarning
from greentrain.power.curve import EnergyCurve
from greentrain.power.ticks import VERNIER
from greentrain.types import PowerMeter, PowerSample, Sensor

MAX_SHARE = 0.001
"""Highest share of one core that reading may cost; a slow sensor is read less often."""


class Sampler:
    """Reads a meter periodically into curves.

    Args:
        meter: What to read; used from this thread only while the sampler runs.
        curves: By device uid; samples of other devices are dropped. May be changed by ``on_tick``.
        sample_s: Sampling period of hardware sensors (s).
        clock: Time.
        on_tick: Called after every read, in this thread, with the time (s).
    """

    def __init__(
        self,
        meter: PowerMeter,
        curves: Mapping[str, EnergyCurve],
        *,
        sample_s: float,
        clock: Clock,
        on_tick: Callable[[float], None],
        on_probe: Callable[[], None] = lambda: None,
    ) -> None:
        self._meter = meter
        self._curves = curves
        self._sample_s = sample_s
        self._clock = clock
        self._on_tick = on_tick
        self._on_probe = on_probe
        self._running = threading.Lock()
        self._running.acquire()
        self._thread: threading.Thread | None = None
        self._warned = False
        self.busy_s = 0.0
        """CPU seconds that the thread has used."""

    def start(self) -> None:
        """Take the first reading now, in the caller's thread, then go on in the background."""
        self.read()
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

    def read(self, final: bool = False) -> None:
        """Read the meter once into the curves. Never raises.

        Args:
            final: Read sensors that are not due as well: it is the end of the run.
        """
        try:
            read = getattr(self._meter, "read_all", self._meter.read) if final else self._meter.read
            samples = read()
        except Exception as error:
            self._warn(f"the power meter failed ({error!r})")
            now_s = self._clock.monotonic_s()
            samples = [PowerSample(device_uid=uid, t_s=now_s, note=f"meter failed: {error!r}") for uid in self._curves]
        for sample in samples:
            curve = self._curves.get(sample.device_uid)
            if curve is not None:
                curve.append(sample)

    def _run(self) -> None:
        try:
            self._probe()
        except Exception as error:
            self._warn(f"the probe of the sensors failed ({error!r})")
        wake_s = wake_period_s(self._meter.sensors, self._sample_s)
        due_s = self._clock.monotonic_s() + wake_s
        # A lock that stop() releases: waiting on it costs half of what an Event does.
        while not self._running.acquire(timeout=max(0.0, due_s - self._clock.monotonic_s())):
            self.read()
            now_s = self._clock.monotonic_s()
            try:
                self._on_tick(now_s)
            except Exception as error:
                self._warn(f"a background task failed ({error!r})")
            due_s += wake_s
            if due_s < now_s:
                due_s = now_s + wake_s
            self.busy_s = time.thread_time()

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
    cost_s = sum(sensor.read_cost_s or 0.0 for sensor in listed)
    wake_s = min(max(wake_s, cost_s / MAX_SHARE), 10.0)
    if any(sensor.tick_s and 0.8 * wake_s <= sensor.tick_s <= 1.25 * wake_s for sensor in listed):
        wake_s *= VERNIER
    return wake_s
