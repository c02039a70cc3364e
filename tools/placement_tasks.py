"""Four workloads on which placements are trained and compared: EcoRL-Sched's mix of kinds of prompt.

Kinds and weights are published: mathematics 40 %, code 25 %, reasoning 20 %, following instructions 15 %. What
a step of each takes is not. Here each stands for a kind of step that differs in what decides a placement: whether there
is a critic, where the KL goes, how long generation lasts, and how large the reward model is. **Every figure is
assumed**: ranges, not measurements, wide enough to hold cases in which a device pays, in which it is too slow, and in
which its idle power eats the gain. Draws are marked modelled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from greentrain.policy.offload.stages import CostTable, Hardware, Stage, StageCost
from greentrain.policy.offload.timeline import Late, StepShape
from greentrain.types import Provenance

Range = tuple[float, float]

STEP_S: Final[Range] = (5.0, 60.0)
"""A step with everything on the GPU (s), log-uniform."""
TOKENS_PER_S: Final[Range] = (500.0, 8000.0)
"""Output tokens a second of that step, log-uniform."""
COMPUTE_W: Final[Range] = (350.0, 650.0)
"""Draw of the GPU in each stage (W)."""
GPU_IDLE_W: Final[Range] = (70.0, 140.0)
"""Draw of the GPU with its memory held (W)."""
SLOWER: Final[Range] = (0.4, 8.0)
"""Pass on the device / on the GPU, log-uniform for the device and by half as much again for each pass."""
CARD_W: Final[Range] = (30.0, 150.0)
"""Draw of the device while it computes (W)."""
CARD_IDLE_SHARE: Final[Range] = (0.15, 0.8)
"""Of that, while it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A kind of step."""

    name: str
    weight: float
    """Share of the mix."""
    parts: Mapping[Stage, Range]
    """Parts of the step's time, before they are made to sum to 1."""
    late: Late = Late.REFERENCE
    chunks: tuple[int, ...] = (1, 8)
    kl_in_reward: bool = False
    old_share: float = 0.0

    def draw(self, rng: np.random.Generator) -> tuple[CostTable, StepShape]:
        """Return a step of this kind, on a GPU and beside a device that are drawn too."""
        parts = {stage: rng.uniform(*given) for stage, given in self.parts.items()}
        step_s = _log_uniform(rng, STEP_S)
        seconds = {stage: step_s * part / sum(parts.values()) for stage, part in parts.items()}
        slower, card_w = _log_uniform(rng, SLOWER), rng.uniform(*CARD_W)
        costs: dict[tuple[Stage, Hardware], StageCost] = {}
        for stage, gpu_s in seconds.items():
            costs[stage, Hardware.GPU] = _cost(gpu_s, rng.uniform(*COMPUTE_W))
            if stage in (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC):
                own = float(np.exp(rng.uniform(-0.5, 0.5)))
                costs[stage, Hardware.OFFLOAD] = _cost(gpu_s * slower * own, card_w)
        table = CostTable(
            costs=costs,
            tokens=step_s * _log_uniform(rng, TOKENS_PER_S),
            gpu_idle_w=rng.uniform(*GPU_IDLE_W),
            gpu_idle_provenance=Provenance.MODELLED,
            card_idle_w=card_w * rng.uniform(*CARD_IDLE_SHARE),
            card_idle_provenance=Provenance.MODELLED,
            card_stays=bool(rng.random() < 0.25),
        )
        needs = {Stage.REWARD, Stage.CRITIC} | ({Stage.REFERENCE} if self.kl_in_reward else set())
        shape = StepShape(
            micro_batches=int(rng.choice((2, 4, 8))),
            chunks=int(rng.choice(self.chunks)),
            late=self.late,
            old_share=self.old_share,
            advantages_need=frozenset(needs),
        )
        return table, shape


@dataclass(frozen=True, slots=True, kw_only=True)
class SameStep(Task):
    """One machine's step of a kind, each time."""

    table: CostTable
    shape: StepShape

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "SameStep":
        """Return a step of the mix."""
        task = draw_task(rng)
        table, shape = task.draw(rng)
        return cls(name=task.name, weight=task.weight, parts=task.parts, table=table, shape=shape)

    def draw(self, rng: np.random.Generator) -> tuple[CostTable, StepShape]:
        """Return it."""
        return self.table, self.shape


TASKS: Final = (
    Task(
        name="mathematics, GRPO",
        weight=0.40,
        parts={
            Stage.GENERATE: (0.50, 0.70),
            Stage.REWARD: (0.02, 0.06),
            Stage.REFERENCE: (0.05, 0.12),
            Stage.TRAIN: (0.20, 0.35),
        },
    ),
    Task(
        name="code, RLOO",
        weight=0.25,
        parts={
            Stage.GENERATE: (0.40, 0.60),
            Stage.REWARD: (0.04, 0.10),
            Stage.REFERENCE: (0.05, 0.12),
            Stage.TRAIN: (0.25, 0.40),
        },
        kl_in_reward=True,
        old_share=0.2,
    ),
    Task(
        name="reasoning, PPO with a critic",
        weight=0.20,
        parts={
            Stage.GENERATE: (0.30, 0.50),
            Stage.REWARD: (0.05, 0.10),
            Stage.REFERENCE: (0.05, 0.10),
            Stage.CRITIC: (0.03, 0.08),
            Stage.TRAIN: (0.30, 0.45),
        },
        kl_in_reward=True,
        old_share=0.15,
    ),
    Task(
        name="instructions, large reward model",
        weight=0.15,
        parts={
            Stage.GENERATE: (0.20, 0.35),
            Stage.REWARD: (0.15, 0.35),
            Stage.REFERENCE: (0.05, 0.12),
            Stage.TRAIN: (0.30, 0.45),
        },
        late=Late.ALL,
    ),
)


def draw_task(rng: np.random.Generator) -> Task:
    """Return a task by the weights of the mix."""
    return TASKS[int(rng.choice(len(TASKS), p=[task.weight for task in TASKS]))]


def _cost(duration_s: float, power_w: float) -> StageCost:
    return StageCost(duration_s=duration_s, energy_j=duration_s * power_w, provenance=Provenance.MODELLED)


def _log_uniform(rng: np.random.Generator, within: Range) -> float:
    return float(np.exp(rng.uniform(*np.log(within))))
