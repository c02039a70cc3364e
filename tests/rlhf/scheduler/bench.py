"""A GPU, a card and their watts, all of them asleep: what a scheduler decides on, in known time and known joules."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.paced_device import Wrapped
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import EnergyReading, Handle
from greentrain.fpga_backend.devices.null_device import NullDevice
from greentrain.fpga_backend.program import Score
from greentrain.policy.offload.stages import Hardware, Stage
from greentrain.policy.offload.timeline import StepShape
from greentrain.policy.offload.view import Objective
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.scheduler import SchedulerSettings, StageScheduler
from greentrain.testing.offload_models import decoder, encoder
from greentrain.types import Provenance

MICRO_BATCHES = 4
TOKENS = 100.0
PACE_S = 0.012
"""A pass at home (s)."""
QUICK = SchedulerSettings(
    profile_steps=10,
    decide_steps=2,
    refresh_decisions=0,
    shape=StepShape(micro_batches=MICRO_BATCHES),
    objective=Objective(max_slowdown=1.2),  # a busy machine sleeps longer than it is told
)


@dataclass
class Power:
    """Draw of one hardware: idle, and more while it is busy."""

    idle_w: float
    active_w: float
    busy: list[tuple[float, float]] = field(default_factory=list)

    def between(self, t0_s: float, t1_s: float) -> float:
        busy_s = sum(max(0.0, min(t1_s, end_s) - max(t0_s, begun_s)) for begun_s, end_s in self.busy)
        return self.idle_w * (t1_s - t0_s) + (self.active_w - self.idle_w) * busy_s

    @contextmanager
    def at_work(self, seconds: float) -> Iterator[None]:
        begun_s = time.monotonic()
        yield
        time.sleep(max(0.0, seconds - (time.monotonic() - begun_s)))
        self.busy.append((begun_s, time.monotonic()))


class Zeros(NullDevice):
    """Scores everything 0, at once: numbers play no part here, and computing them would take the time of others."""

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> "Future[Result]":
        program = self._loaded.get(handle)
        zeros = tuple(np.zeros(max(0, len(row) - 1), np.float32) for row in batch.ids)
        scored = isinstance(program.ops[-1], Score)
        future: Future[Result] = Future()
        future.set_result(
            Result(
                scores=np.zeros((len(batch.ids), 1), np.float32) if scored else None,
                logprobs=None if scored else zeros,
                run_s=0.0,
                rows=batch.tokens,
            )
        )
        return future


class Timed(Wrapped):
    """A device that takes as long as it is told and draws power meanwhile."""

    def __init__(self, power: Power, pace_s: Callable[[Batch], float], name: str) -> None:
        super().__init__(Zeros(), name=name, depth=64)
        self.power, self.pace_s = power, pace_s

    def deliver(self, number: int, batch: Batch, inner: "Future[Result]") -> Result:
        begun_s = time.monotonic()
        with self.power.at_work(self.pace_s(batch)):
            result = inner.result()
        return replace(result, run_s=time.monotonic() - begun_s)


class Known:
    """The joules of both, at once."""

    def __init__(self, gpu: Power, card: Power) -> None:
        self.gpu, self.card = gpu, card

    def between(self, t0_s: float, t1_s: float) -> Mapping[Hardware, EnergyReading]:
        return {
            Hardware.GPU: EnergyReading(energy_j=self.gpu.between(t0_s, t1_s), provenance=Provenance.MEASURED),
            Hardware.OFFLOAD: EnergyReading(energy_j=self.card.between(t0_s, t1_s), provenance=Provenance.MODELLED),
        }


class Bench:
    """A training of sleeps, with a reward and a reference pass.

    Args:
        card_s: How long the card takes for a batch; at home it takes PACE_S.
        card_w: Idle and active draw of the card.
        settings: Of the scheduler.
    """

    def __init__(
        self,
        card_s: Callable[[Batch], float],
        card_w: tuple[float, float] = (5.0, 30.0),
        settings: SchedulerSettings = QUICK,
    ) -> None:
        self.gpu, self.card = Power(60.0, 400.0), Power(*card_w)
        self._home = Timed(self.gpu, lambda batch: PACE_S, "home")
        self._device = Timed(self.card, card_s, "card")
        artifacts = {PassKind.REWARD: encoder(), PassKind.REFERENCE: decoder()}
        self.engine = OffloadEngine(
            [place(kind, artifact, self._device, home=self._home) for kind, artifact in artifacts.items()]
        )
        self.scheduler = StageScheduler(self.engine, settings=settings, energy=Known(self.gpu, self.card))

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        self._device.close()
        self._home.close()

    def step(self, length: int = 8) -> None:
        """A step of GRPO with a late reference."""
        batch = Batch.of([[1 + i % 50 for i in range(length)]] * 2)
        with self.scheduler.stage(Stage.GENERATE), self.gpu.at_work(0.01):
            pass
        reference = self.scheduler.submit(PassKind.REFERENCE, batch)
        reward = self.scheduler.submit(PassKind.REWARD, batch)
        reward.result()
        for _ in range(MICRO_BATCHES):
            with self.scheduler.stage(Stage.TRAIN), self.gpu.at_work(0.002):
                pass
            reference.result()
            with self.scheduler.stage(Stage.TRAIN), self.gpu.at_work(0.004):
                pass
        self.scheduler.step_end(tokens=TOKENS)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
