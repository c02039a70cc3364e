"""The ways in which a training can wait for a frozen pass, from the plainest on."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from greentrain.policy.offload.stages import Plan, Stage, Where
from greentrain.policy.offload.timeline import Late, StepShape
from greentrain.simulator.pipeline.table import PipelineTable

CHUNKS: Final = 8
"""Parts in which rollouts finish, where nobody says."""


class Mode(StrEnum):
    """What is done with the passes that a card can run."""

    GPU = "gpu"
    """Nothing: all of the step on the GPUs, the passes one after the other."""
    SEQUENTIAL = "sequential"
    """On the card; the training stands still where it would have computed them. An eager adapter, which waits at the
    call, is the same."""
    PARALLEL = "parallel"
    """Both submitted when generation ends, awaited before the advantages."""
    LATE = "late"
    """The reference awaited at the loss of its micro-batch."""
    LATE_ALL = "late-all"
    """Rewards awaited at the first loss too."""
    STREAM = "stream"
    """Submitted rollout by rollout while the others are generated, awaited before the advantages."""
    STREAM_LATE = "stream-late"
    """Streamed, and awaited at the first loss."""
    OFF_POLICY = "off-policy"
    """Awaited a step later. Another algorithm: its advantages are one step old, so it needs old log-probabilities and
    clipping, and its weights are not those of the others."""


ON_POLICY: Final = tuple(mode for mode in Mode if mode is not Mode.OFF_POLICY)
EAGER: Final = "eager"
"""Another word for SEQUENTIAL."""

_WHERE: Final = {Mode.GPU: Where.GPU, Mode.SEQUENTIAL: Where.SEQUENTIAL}
_LATE: Final[Mapping[Mode, Late]] = {
    Mode.LATE: Late.REFERENCE,
    Mode.LATE_ALL: Late.ALL,
    Mode.STREAM_LATE: Late.ALL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a mode is run."""

    cards: int = 1
    chunks: int = CHUNKS
    kl_in_reward: bool = False
    """The reference is part of the reward (PPO, RLOO): it is needed for the advantages."""


def plan_of(table: PipelineTable, mode: Mode) -> Plan:
    """Return where the stages run: all passes that have a time on the card leave, but in GPU mode."""
    away = _WHERE.get(mode, Where.CONCURRENT)
    return {stage: away if stage in table.offloadable else Where.GPU for stage in table.rows}


def shape_of(table: PipelineTable, mode: Mode, setting: Setting) -> StepShape:
    """Return where the barriers of a mode are."""
    need = {Stage.REWARD, Stage.CRITIC} | ({Stage.REFERENCE} if setting.kl_in_reward else set())
    return StepShape(
        micro_batches=table.micro_batches,
        chunks=setting.chunks if mode in (Mode.STREAM, Mode.STREAM_LATE) else 1,
        late=_LATE.get(mode, Late.NONE),
        old_share=table.old_share.value,
        forward_share=table.forward_share.value,
        advantages_need=frozenset(need),
        cards=table.lanes(setting.cards)[0],
        off_policy=mode is Mode.OFF_POLICY,
    )
