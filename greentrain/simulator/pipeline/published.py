"""The split of a step that was published for an RLHF pipeline with cards beside the GPUs, as an example."""

from typing import Final

from greentrain.policy.offload.stages import Stage
from greentrain.simulator.pipeline.figure import Figure, Origin
from greentrain.simulator.pipeline.table import PipelineTable, Row

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


def _row(seconds: float, origin: Origin, source: str) -> Row:
    watts = Figure(value=600, origin=Origin.ASSUMED, source=f"{_POWER}over 600 W")
    return Row(gpu_s=Figure(value=seconds, origin=origin, source=source), gpu_w=watts)
