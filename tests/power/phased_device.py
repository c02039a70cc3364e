"""A device that draws another power in each phase, and a counter that ticks; its truth is known to a millisecond."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greentrain.ledger.bookkeeper import Mark
from greentrain.types import PowerSample

Floats = npt.NDArray[np.float64]
NAMES = ("data", "forward", "backward", "optimizer")
FINE_S = 0.001
MEMORY_S = 0.03
"""Time over which the noise within phases hangs together (s)."""


@dataclass(frozen=True, kw_only=True)
class PhasedDevice:
    """Phases one after the other, again and again.

    Args:
        seed: Of its jitter and noise.
        length_s: How long it runs (s).
        step_s: Mean length of a step (s).
        jitter: Deviation of the logarithm of a phase's length.
        noise_w: Deviation of the power within phases (W), which hangs together over ``MEMORY_S``.
        sees: Share of a tick that the sensor sees, at its end.
        late_s: How late it tells (s).
    """

    seed: int = 0
    length_s: float = 120.0
    step_s: float = 0.29
    jitter: float = 0.05
    noise_w: float = 20.0
    sees: float = 1.0
    late_s: float = 0.003
    tick_s: float = 0.1
    shares: tuple[float, ...] = (20 / 290, 80 / 290, 160 / 290, 30 / 290)
    powers_w: tuple[float, ...] = (110.0, 300.0, 450.0, 220.0)
    sensor_noise_w: float = 3.0

    def made(self) -> "Recording":
        """Let it run."""
        chance = np.random.default_rng(self.seed)
        steps = int(1.3 * (self.length_s + 2) / self.step_s) + 8
        mean_s = self.step_s * np.array(self.shares)
        lengths_s = (mean_s * chance.lognormal(0.0, self.jitter, (steps, len(mean_s)))).ravel()
        bounds_s = np.concatenate([[0.0], np.cumsum(lengths_s)])
        t_s = np.arange(0.0, self.length_s, FINE_S) + FINE_S / 2
        phase = (np.searchsorted(bounds_s, t_s, side="right") - 1) % len(mean_s)
        memory = np.exp(-FINE_S / MEMORY_S)
        shocks = chance.normal(0.0, self.noise_w * np.sqrt(1 - memory**2), len(t_s))
        own_w = np.empty(len(t_s))
        last = 0.0
        for i, shock in enumerate(shocks.tolist()):
            last = memory * last + shock
            own_w[i] = last
        power_w = np.maximum(np.array(self.powers_w)[phase] + own_w, 5.0)
        energy_j = np.concatenate([[0.0], np.cumsum(power_w) * FINE_S])
        ticks_s = np.arange(3 * self.tick_s, self.length_s, self.tick_s)
        seen_s = self.sees * self.tick_s
        fine_s = np.arange(len(energy_j), dtype=np.float64) * FINE_S
        told_j = np.interp(ticks_s - self.late_s, fine_s, energy_j)
        seen_w = (told_j - np.interp(ticks_s - self.late_s - seen_s, fine_s, energy_j)) / seen_s
        seen_w = seen_w + chance.normal(0.0, self.sensor_noise_w, len(ticks_s))
        counter_j = np.concatenate([[0.0], np.cumsum(seen_w[1:]) * self.tick_s])
        inside = bounds_s < self.length_s
        return Recording(
            device=self, bounds_s=bounds_s[inside], ticks_s=ticks_s, counter_j=counter_j, fine_s=fine_s, true_j=energy_j
        )


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What it did, and what its counter said."""

    device: PhasedDevice
    bounds_s: Floats
    """Where phases begin (s)."""
    ticks_s: Floats
    counter_j: Floats
    fine_s: Floats
    true_j: Floats

    def energy_j(self, t0_s: Floats, t1_s: Floats) -> Floats:
        """Return the true energy of windows (J)."""
        return np.interp(t1_s, self.fine_s, self.true_j) - np.interp(t0_s, self.fine_s, self.true_j)

    def by_phase(self, t0_s: float, t1_s: float) -> dict[str, float]:
        """Return the true energy by phase between two times (J)."""
        starts_s = np.clip(self.bounds_s, t0_s, t1_s)
        used_j = self.energy_j(starts_s, np.append(starts_s[1:], t1_s))
        return {name: float(used_j[i :: len(NAMES)].sum()) for i, name in enumerate(NAMES)}

    def marks(self) -> list[Mark]:
        """Return the marks of the training."""
        found = []
        for i, t_s in enumerate(self.bounds_s.tolist()):
            if i:
                found.append(Mark(t_s, "end", NAMES[(i - 1) % len(NAMES)], i))
            if i and i % len(NAMES) == 0:
                found.append(Mark(t_s, "step", tokens=1))
            found.append(Mark(t_s, "begin", NAMES[i % len(NAMES)], i + 1))
        return found

    def samples(self, uid: str) -> list[PowerSample]:
        """Return what a reader reads that comes a little more often than the ticks do."""
        times_s = np.arange(self.ticks_s[0] + 0.01, self.device.length_s, 0.97 * self.device.tick_s)
        found = np.searchsorted(self.ticks_s, times_s, side="right") - 1
        return [
            PowerSample(device_uid=uid, t_s=float(t_s), energy_j=1e6 + float(self.counter_j[i]))
            for t_s, i in zip(times_s, found, strict=True)
        ]
