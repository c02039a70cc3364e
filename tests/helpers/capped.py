"""A process whose GPU's power can be limited, in its own time: for tests of the profiling phase."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from greentrain.config.schema import PrecisionConfig
from greentrain.control.coordination import RankZeroChannel
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.profiling.distributed import Caps, ProfilingRun
from greentrain.policy.action_table import ActionCache, ActionObjective
from greentrain.types import Device, DeviceKind, Provenance, Sensor
from greentrain.utils.topology import current_topology

STEP_S = 0.25
LIMIT_W, IDLE_W = 700.0, 100.0
SENSOR = Sensor(
    device=Device(uid="GPU-a", kind=DeviceKind.GPU, name="Fake GPU"),
    provenance=Provenance.MEASURED,
    method="counter",
    period_s=0.1,
    tick_s=0.1,
)


@dataclass
class FakeCaps:
    """Keeps the contract of ``PowerCap``; refuses what the test says."""

    fractions: tuple[float, ...] = (1.0, 0.8, 0.6)
    fraction: float = 1.0
    refuses: Callable[["FakeCaps", float], bool] = lambda caps, fraction: False
    asked: list[tuple[float, bool]] = field(default_factory=list)

    def apply(self, fraction: float, *, at_once: bool = False) -> bool:
        self.asked.append((fraction, at_once))
        if self.refuses(self, fraction):
            return False
        self.fraction = fraction
        return True


@dataclass
class Job:
    """A rank that trains under its caps; draws what they allow."""

    caps: Caps | None
    t_s: float = 50.0
    segments: list[tuple[float, float, float]] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    channel: RankZeroChannel | None = None
    cache: ActionCache = field(default_factory=ActionCache)
    late_s: float = 0.0
    """How long after its end the joules of a window are known (s)."""

    def speed(self, fraction: float) -> float:
        return float(((fraction * LIMIT_W - IDLE_W) / (LIMIT_W - IDLE_W)) ** (1 / 3)) / STEP_S

    @property
    def in_force(self) -> float:
        return self.caps.fraction if self.caps is not None else 1.0

    def energy(self, t0_s: float, t1_s: float) -> Mapping[str, float] | None:
        if self.t_s < t1_s + self.late_s:
            return None
        return {"GPU-a": sum(max(0.0, min(t1_s, b) - max(t0_s, a)) * w for a, b, w in self.segments)}

    def train(self) -> int:
        """Train a step under the limits that are set, whatever anybody believes."""
        fraction = self.in_force
        seconds = 1 / self.speed(fraction)
        self.segments.append((self.t_s, self.t_s + seconds, fraction * LIMIT_W))
        self.t_s += seconds
        return 640

    def phase(
        self,
        gears: tuple[str, ...] = ("bf16",),
        *,
        folder: Path | None = None,
        objective: ActionObjective | None = None,
        max_steps: int = 200,
        rounds: int | None = None,
    ) -> ProfilingRun:
        self.cache = ActionCache(folder)
        box = GearBox(PrecisionConfig(gears=gears, min_features=16))
        box.attach(nn.Linear(16, 16))
        return ProfilingRun(
            box,
            [SENSOR],
            self.energy,
            max_steps=max_steps,
            rounds=rounds,
            cache=self.cache if folder is not None else None,
            tell=self.tables.append,
            channel=self.channel or RankZeroChannel("blocks", current_topology()),
            caps=self.caps,
            objective=objective,
            clock=lambda: self.t_s,
        )

    def run(self, phase: ProfilingRun, steps: int = 500, all_done: Callable[[bool], bool] = bool) -> int:
        """Take a phase through training and return how many steps it took.

        Args:
            phase: The phase.
            steps: Most of them.
            all_done: What the gradients of ranks do that train together: no rank is ahead of another, or ends before.
        """
        took = steps
        for n in range(steps):
            if phase.done:
                took = min(took, n)
            if all_done(phase.done):
                break
            tokens = self.train()
            if not phase.done:
                phase.boundary()
                phase.step(tokens, 8)
        assert self.cache.wait(30.0)
        return took
