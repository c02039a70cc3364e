"""A table from what was measured: the ledger of a run with phases, and the statistics of an offload engine."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.ledger.reader import RankRecord, RunRecord, read_run
from greentrain.ledger.totals import Totals
from greentrain.policy.offload.stages import MOVABLE, Stage
from greentrain.simulator.pipeline.figure import Figure, Origin
from greentrain.simulator.pipeline.table import FORWARD_SHARE, PipelineTable, StageRow
from greentrain.types import DeviceKind, Phase, Provenance
from greentrain.utils.validation import bound

_TRAIN: Final = ("train", Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
"""Phases that are training."""
_PHASES: Final = {**{str(stage): stage for stage in Stage}, **{str(name): Stage.TRAIN for name in _TRAIN}}

GAP: Final = 0.01
"""Share of an interval in which a sensor may have been silent for its joules to count."""
KNOWN: Final = 0.9
"""Share of a stage's time whose joules must be known for its watts to be."""


@dataclass(slots=True)
class _Sum:
    """Of one stage over all ranks and intervals."""

    rank_s: float = 0.0
    energy_j: float = 0.0
    device_s: float = 0.0
    """Of all metered devices."""
    known_s: float = 0.0
    """Of it, in intervals without a gap: those of ``energy_j``."""
    provenances: set[Provenance] = field(default_factory=set)


def table_of_run(folder: Path, *, tokens: float | None = None) -> PipelineTable:
    """Read a run folder whose step was phased, with everything on the GPUs.

    Seconds are those of a rank's step, watts the joules of the phase over its seconds, both of intervals in which the
    sensors had no gap; where these are less than KNOWN of its time, watts are unknown. Time outside the named stages is
    training's: it is in the step, and nothing can move it. Devices are GPUs where there are any, else whatever else
    was metered, but for cards.

    Args:
        folder: The run's.
        tokens: Output tokens of a step; None: those that the run counted.

    Raises:
        RunFolderError: It is no run folder.
        ConfigError: It has no steps, no tokens, or no phases of generation and training.
    """
    record = read_run(folder)
    by_rank = [dataclasses.replace(rank, carried=Totals()).totals for rank in record.ranks]
    job = Totals.of_job(by_rank)
    steps = sum(rank.steps for rank in by_rank)
    if not steps:
        raise ConfigError(f"{folder}: the run told no steps, so nobody knows what one took: call session.step()")
    if tokens is None and not job.tokens:
        raise ConfigError(f"{folder}: the run counted no tokens: give --tokens, the output tokens of a step")
    seconds = _phase_s(by_rank)
    _check_phases(seconds, folder)
    gpus, sums = _sums(record)
    source = f"{record.run_id}, {job.steps} steps"
    others = sorted(set(seconds) - set(_PHASES))
    told = {Stage.TRAIN: f"{source}: with the time of {', '.join(others)}"} if others else {}
    rows = {}
    for stage in (stage for stage in Stage if stage in sums):
        of_step = Figure(value=sums[stage].rank_s / steps, origin=Origin.MEASURED, source=told.get(stage, source))
        rows[stage] = _row(sums[stage], of_step)
    forward_s, backward_s = seconds.get(Phase.FORWARD, 0.0), seconds.get(Phase.BACKWARD, 0.0)
    train_s = sums[Stage.TRAIN].rank_s
    share = FORWARD_SHARE
    if forward_s and backward_s:
        share = Figure(value=forward_s / train_s, origin=Origin.MEASURED, source=f"{source}: phases in training")
    return PipelineTable(
        name=record.run_id,
        rows=rows,
        tokens=job.tokens / max(job.steps, 1) if tokens is None else tokens,
        forward_share=share,
        gpus=max(1, gpus),
        gpu=_gpu_name(record),
        notes=(
            "Phases of the run as it was: passes that ran on a card in it show as the time the GPUs waited for them.",
        ),
    )


def with_engine(
    table: PipelineTable,
    stats: Any,
    where: str,
    *,
    card_w: Mapping[Stage, Figure] | None = None,
) -> PipelineTable:
    """Return the table with the card's seconds from an engine's statistics.

    Args:
        table: What all else takes.
        stats: ``{"steps": 100, "passes": {"reward": {"busy_s": ...}, ...}}``: the fields of ``PassStats``.
        where: Its file, for errors and sources.
        card_w: Draw of the card by pass; a pass without one has unknown joules.

    Raises:
        ConfigError: Something is missing, or a pass is not in the step.
    """
    if not isinstance(stats, Mapping) or set(stats) != {"steps", "passes"} or not isinstance(stats["passes"], Mapping):
        raise ConfigError(
            f'{where}: engine statistics are {{"steps": 100, "passes": {{"reward": {{"busy_s": ...}}}}}}, as '
            "OffloadEngine.stats() has them"
        )
    steps = stats["steps"]
    if type(steps) is not int or steps < 1:
        raise ConfigError(f"{where}: steps is {steps!r}; it is a whole number of at least 1")
    passes: dict[Stage, tuple[Figure, Figure | None]] = {}
    for name, fields in stats["passes"].items():
        if name not in MOVABLE:
            raise ConfigError(f"{where}: pass {name!r} is none of {', '.join(MOVABLE)}")
        busy_s = fields.get("busy_s") if isinstance(fields, Mapping) else None
        if isinstance(busy_s, bool) or not isinstance(busy_s, int | float):
            raise ConfigError(f"{where}: {name} has busy_s {busy_s!r}; give the seconds that the device computed")
        bound(f"{where}: {name}.busy_s", float(busy_s), 0, 1e9)
        if not busy_s:
            raise ConfigError(f"{where}: {name} has busy_s 0, so it never ran on the device: leave it away")
        stage = Stage(name)
        figure = Figure(value=busy_s / steps, origin=Origin.MEASURED, source=f"{where}, {steps} steps")
        passes[stage] = (figure, (card_w or {}).get(stage))
    return table.with_card(passes)


def _phase_s(by_rank: list[Totals]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for totals in by_rank:
        for name, value in totals.phase_s.items():
            seconds[name] = seconds.get(name, 0.0) + value
    return seconds


def _check_phases(seconds: Mapping[str, float], folder: Path) -> None:
    for stage, names in ((Stage.GENERATE, (Stage.GENERATE,)), (Stage.TRAIN, _TRAIN)):
        if not any(seconds.get(name) for name in names):
            raise ConfigError(
                f"{folder} has no phase {' or '.join(names)}; it has {', '.join(sorted(seconds)) or 'none'}: mark the "
                f"stages of the loop with session.phase({str(stage)!r})"
            )


def _sums(record: RunRecord) -> tuple[int, dict[Stage, _Sum]]:
    """Return how many devices the job has, and the sums by stage."""
    sums: dict[Stage, _Sum] = {}
    devices: set[tuple[str, str]] = set()
    for rank in record.ranks:
        uids = _metered(rank)
        devices |= {(rank.host, uid) for uid in uids}
        for entry in rank.entries:
            interval_s = entry.t1_unix_s - entry.t0_unix_s
            for name, value in entry.phase_s.items():
                _of(sums, name).rank_s += value
            for uid in uids:
                device = entry.devices.get(uid)
                known = device is not None and device.is_known(interval_s) and device.missing_s <= GAP * interval_s
                for name, phase_s in entry.phase_s.items():
                    into = _of(sums, name)
                    into.device_s += phase_s
                    if device is not None and known:
                        into.known_s += phase_s
                        into.energy_j += device.phases.get(name, 0.0)
                        into.provenances.add(device.provenance)
    return len(devices), sums


def _of(sums: dict[Stage, _Sum], phase: str) -> _Sum:
    return sums.setdefault(_PHASES.get(phase, Stage.TRAIN), _Sum())


def _metered(rank: RankRecord) -> list[str]:
    kinds = {uid: sensor.get("kind") for uid, sensor in rank.sensors.items()}
    if any(kind == DeviceKind.GPU for kind in kinds.values()):
        return [uid for uid, kind in kinds.items() if kind == DeviceKind.GPU]
    return [uid for uid, kind in kinds.items() if kind != DeviceKind.FPGA]


def _row(found: _Sum, gpu_s: Figure) -> StageRow:
    """Return a row: watts of a device are the joules of all over their seconds, where both are known."""
    share = found.known_s / found.device_s if found.device_s else 0.0
    if share < KNOWN:
        return StageRow(gpu_s=gpu_s)
    whole = share == 1 and found.provenances == {Provenance.MEASURED}
    source = gpu_s.source if share == 1 else f"{gpu_s.source}, of the {share:.0%} of its time without gaps"
    watts = Figure(
        value=found.energy_j / found.known_s, origin=Origin.MEASURED if whole else Origin.MODELLED, source=source
    )
    return StageRow(gpu_s=gpu_s, gpu_w=watts)


def _gpu_name(record: RunRecord) -> str:
    names = [str(rank.sensors[uid].get("name") or uid) for rank in record.ranks for uid in _metered(rank)]
    return " and ".join(dict.fromkeys(names)) or "GPU"
