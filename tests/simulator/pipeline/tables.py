"""Tables of steps for the tests."""

from greentrain.policy.offload.stages import Stage
from greentrain.simulator.pipeline.table import PipelineTable, StageRow
from greentrain.utils.quantities import SourcedNumber, SourceKind

YAML = """
name: ours
kind: measured
source: timers
tokens: 1000
sequences: 10
micro_batches: 2
forward_share: 0.5
gpu: {name: A100, count: 2, idle_w: 50}
card: {name: U55C, idle_w: {value: 30, kind: assumed, source: a guess}, embodied_kg: [45, 57.5, 70]}
stages:
  generate: {gpu_s: 4, gpu_w: 300}
  reference: {gpu_s: 1, gpu_w: 200, card_s: 2, card_w: 60}
  reward: {gpu_s: 1, gpu_w: 200, card_s: 2, card_w: 60}
  train: {gpu_s: 4, gpu_w: 400}
"""
"""10 s on the GPUs, 12 s with both passes on one card one after the other."""


def measured(value: float) -> SourcedNumber:
    return SourcedNumber(value=value, unit="s", kind=SourceKind.MEASURED, source="timers")


def table(
    generate: float = 4,
    reward: float = 1,
    reference: float = 1,
    train: float = 4,
    *,
    card: tuple[float, float] | None = (2, 2),
    micro_batches: int = 2,
    forward: float = 0.5,
    gpus: int = 2,
) -> PipelineTable:
    """Return the table of ``YAML``; ``card`` is the time of reward and reference there."""
    reward_s, reference_s = (None, None) if card is None else (measured(card[0]), measured(card[1]))
    busy_w = None if card is None else measured(60)
    return PipelineTable(
        name="ours",
        rows={
            Stage.GENERATE: StageRow(gpu_s=measured(generate), gpu_w=measured(300)),
            Stage.REWARD: StageRow(gpu_s=measured(reward), gpu_w=measured(200), card_s=reward_s, card_w=busy_w),
            Stage.REFERENCE: StageRow(
                gpu_s=measured(reference), gpu_w=measured(200), card_s=reference_s, card_w=busy_w
            ),
            Stage.TRAIN: StageRow(gpu_s=measured(train), gpu_w=measured(400)),
        },
        tokens=1000,
        sequences=10,
        micro_batches=micro_batches,
        forward_share=measured(forward),
        gpus=gpus,
        gpu_idle_w=measured(50),
        card="U55C",
        card_idle_w=measured(30),
    )
