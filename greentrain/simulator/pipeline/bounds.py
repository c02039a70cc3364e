"""What physics allows, and what was published beside it.

The split of a step that was published for an RLHF pipeline with cards beside the GPUs, as an example.
"""

from dataclasses import dataclass
from typing import Any, Final

from greentrain.fpga_backend.explore.claims import Claim, check, claims
from greentrain.policy.offload.stages import MOVABLE, Stage
from greentrain.simulator.pipeline.figure import Figure, Origin
from greentrain.simulator.pipeline.simulate import amdahl
from greentrain.simulator.pipeline.table import PipelineTable, StageRow

NOT_REPRODUCED: Final = "published, not reproduced"
REFUTED: Final = "published, impossible"
_OF_PIPELINES: Final = ("throughput", "latency", "sweep", "power", None)
"""Kinds of claims that speak of speed or energy of passes; None: headlines without conditions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The most that moving some passes can bring."""

    passes: tuple[Stage, ...]
    share: float
    """Of the step with everything on the GPUs."""
    speedup: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"passes": [str(stage) for stage in self.passes], "share": self.share, "speedup": self.speedup}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published figure, and what stands against it."""

    said: str
    verdict: str
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"said": self.said, "verdict": self.verdict, "why": self.why}


def caps(table: PipelineTable) -> tuple[Cap, ...]:
    """Return the caps of Amdahl's law: of the reward alone, with the reference, and of all passes of the step."""
    sets = [(Stage.REWARD,), (Stage.REWARD, Stage.REFERENCE), MOVABLE]
    found: dict[frozenset[Stage], Cap] = {}
    for wanted in sets:
        there = tuple(stage for stage in wanted if stage in table.rows)
        if there:
            speedup = amdahl(table, there)
            found.setdefault(frozenset(there), Cap(passes=there, share=1 - 1 / speedup, speedup=speedup))
    return tuple(found.values())


def published_figures() -> tuple[Published, ...]:
    """Return what was published of speed and energy with cards, each with a verdict."""
    return tuple(_judged(claim) for claim in claims() if claim.terms.get("kind") in _OF_PIPELINES and _of_card(claim))


def _of_card(claim: Claim) -> bool:
    return "gpu" not in claim.terms and not (claim.terms.get("note") and not claim.id.startswith("headline"))


def _judged(claim: Claim) -> Published:
    found = check(claim)
    if found is None:
        return Published(said=claim.said, verdict=NOT_REPRODUCED, why=str(claim.terms.get("note", "")))
    why = f"needs {found.needed:.3g} {found.unit}; the card has {found.bound:.3g} at most: {found.over:.3g} times more"
    return Published(said=claim.said, verdict=REFUTED if found.over > 1 else NOT_REPRODUCED, why=why)


NAME: Final = "published"
STEP_S: Final = 21.0
GENERATE: Final = 0.43
INFERENCE: Final = 0.21
TRAIN: Final = 0.36
_PAPER: Final = "EcoRL-Sched"
_PASSES: Final = {Stage.CRITIC: 1.05, Stage.REFERENCE: 1.68, Stage.REWARD: 1.68}
"""Seconds into which the published share of all inference is cut here (5, 8 and 8 % of the step)."""
_POWER: Final = "an H100 of a training node, Morrison et al., arXiv 2503.05804: "


def published() -> PipelineTable:
    """Return the table: shares and step published, their parts and all watts assumed. It has no card."""
    rows = {
        Stage.GENERATE: _row(GENERATE * STEP_S, Origin.PUBLISHED, f"{_PAPER}: 43 % of a step of 21 s"),
        **{
            stage: _row(seconds, Origin.ASSUMED, f"a part of the 21 % that {_PAPER} has for all inference")
            for stage, seconds in _PASSES.items()
        },
        Stage.TRAIN: _row(TRAIN * STEP_S, Origin.PUBLISHED, f"{_PAPER}: 36 % of a step of 21 s"),
    }
    return PipelineTable(
        name="published split 43/21/36 of 21 s",
        rows=rows,
        tokens=256 * 512,
        sequences=256,
        gpu="H100",
        gpu_idle_w=Figure(value=100, origin=Origin.ASSUMED, source=f"{_POWER}just over 100 W while it waits"),
        notes=(
            "Published: the shares 43/21/36 and the 21 s. Assumed: into which passes the 21 % fall, 256 rollouts of "
            "512 tokens, and all watts, of one GPU.",
        ),
    )


def _row(seconds: float, origin: Origin, source: str) -> StageRow:
    watts = Figure(value=600, origin=Origin.ASSUMED, source=f"{_POWER}over 600 W")
    return StageRow(gpu_s=Figure(value=seconds, origin=origin, source=source), gpu_w=watts)
