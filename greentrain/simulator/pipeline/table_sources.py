"""Tables of stages from a YAML or a CSV file, every key checked, or from what was measured.

    name: PPO of ours
    kind: measured                  # of every figure that does not say otherwise
    source: timers and nvidia-smi, 100 steps, 21 Nov
    tokens: 65536                   # output tokens of a step
    sequences: 128
    micro_batches: 8
    gpu: {name: A100, count: 8, idle_w: 60}
    card: {name: U55C, idle_w: {value: 30, kind: assumed, source: twice the shell's}, embodied_kg: [45, 57.5, 70]}
    stages:
      generate: {gpu_s: 9.0, gpu_w: 310}
      reward: {gpu_s: 1.7, gpu_w: 280, card_s: 3.2, card_w: 60}
      train: {gpu_s: 7.6, gpu_w: 370}

A CSV has the columns ``stage``, ``where`` (gpu or card), ``seconds``, ``watts`` and, if it likes, ``kind`` and
``source``; a row of the stage ``idle`` has watts alone. Its tokens are given beside it.

Tables of what was measured come from the ledger of a run with phases, and from the statistics of an offload engine.
"""

import csv
import dataclasses
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.ledger.reader import RankRecord, RunRecord, read_run
from greentrain.ledger.totals import Totals
from greentrain.policy.offload.stages import MOVABLE, Stage
from greentrain.policy.offload.timeline import MOST_PARTS
from greentrain.simulator.pipeline.table import FIGURE_KINDS, FORWARD_SHARE, NONE, PipelineTable, StageRow
from greentrain.types import DeviceKind, Phase, Provenance
from greentrain.utils.devices import check_keys, number, sourced, three
from greentrain.utils.quantities import SourcedNumber, SourceKind
from greentrain.utils.validation import bound, choice

_TOP: Final = (
    "name", "kind", "source", "tokens", "sequences", "micro_batches", "forward_share", "old_share", "gpu", "card",
    "stages",
)  # fmt: skip
_GPU: Final = ("name", "count", "idle_w")
_CARD: Final = ("name", "idle_w", "embodied_kg", "embodied_source")
_STAGE: Final = ("gpu_s", "gpu_w", "card_s", "card_w")
_COLUMNS: Final = ("stage", "where", "seconds", "watts")
_MORE: Final = ("kind", "source")
_IDLE: Final = "idle"
MOST: Final = 1e9


def read_table(path: Path, *, tokens: float | None = None) -> PipelineTable:
    """Read a file.

    Args:
        path: Path of the file: ``.yaml``, ``.yml`` or ``.csv``.
        tokens: Output tokens of a step, in place of the file's own.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong; the message names key, value and bound.
    """
    if path.suffix.lower() != ".csv":
        from greentrain.utils import yaml_file  # loads yaml

        return from_mapping(yaml_file.read(path, "table of stages"), str(path), tokens=tokens)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return from_csv(text, str(path), tokens=tokens)


def from_mapping(data: Any, where: str, *, tokens: float | None = None) -> PipelineTable:
    """Return the table of a mapping.

    Args:
        data: Mapping as YAML reads it.
        where: File that it is from, for errors and sources.
        tokens: Output tokens of a step, in place of its own.

    Raises:
        ConfigError: Something in it is wrong.
    """
    top = check_keys(data, where, _TOP)
    row = {"kind": top.get("kind"), "source": top.get("source") or f"declared in {where}"}
    if row["kind"]:
        choice(f"{where}: kind", str(row["kind"]), FIGURE_KINDS)

    def figure(given: Any, key: str, most: float = MOST) -> SourcedNumber | None:
        if given is None:
            return None
        unit = {"s": "s", "w": "W"}.get(key.rpartition("_")[2], "1")
        return sourced(given, unit, f"{where}: {key}", row, FIGURE_KINDS, least=0.0, most=most)

    gpu = check_keys(top.get("gpu") or {}, f"{where}: gpu", _GPU)
    card = check_keys(top.get("card") or {}, f"{where}: card", _CARD)
    stages = check_keys(top.get("stages") or {}, f"{where}: stages", tuple(Stage))
    rows = {}
    for name in (name for name in Stage if name in stages):
        told = check_keys(stages[name], f"{where}: stages.{name}", _STAGE)
        figures = {key: figure(told.get(key), f"stages.{name}.{key}") for key in _STAGE}
        gpu_s = figures.pop("gpu_s")
        if gpu_s is None:
            raise ConfigError(f"{where}: stages.{name} has no gpu_s: what does it take where it runs without a card?")
        rows[name] = StageRow(gpu_s=gpu_s, **figures)
    embodied = card.get("embodied_kg")
    return PipelineTable(
        name=str(top.get("name") or Path(where).stem),
        rows=rows,
        tokens=_tokens(top.get("tokens") if tokens is None else tokens, where),
        sequences=_integer(top.get("sequences"), f"{where}: sequences"),
        micro_batches=_integer(top.get("micro_batches"), f"{where}: micro_batches", MOST_PARTS) or 8,
        forward_share=figure(top.get("forward_share"), "forward_share", 1) or FORWARD_SHARE,
        old_share=figure(top.get("old_share"), "old_share", 1) or NONE,
        gpu=str(gpu.get("name", "GPU")),
        gpus=_integer(gpu.get("count"), f"{where}: gpu.count") or 1,
        gpu_idle_w=figure(gpu.get("idle_w"), "gpu.idle_w"),
        card=str(card.get("name", "card")),
        card_idle_w=figure(card.get("idle_w"), "card.idle_w"),
        embodied_kg=None if embodied is None else three(embodied, f"{where}: card.embodied_kg"),
        embodied_source=str(card.get("embodied_source", f"declared in {where}")),
    )


def from_csv(text: str, where: str, *, tokens: float | None = None) -> PipelineTable:
    """Return the table of a CSV text.

    Raises:
        ConfigError: Something in it is wrong, or nobody says how many tokens a step has.
    """
    reader = csv.DictReader(io.StringIO(text))
    columns = tuple(reader.fieldnames or ())
    for column in _COLUMNS:
        if column not in columns:
            raise ConfigError(f"{where}: no column {column}; it has {', '.join(columns) or 'none'}")
    stages: dict[str, dict[str, Any]] = {}
    idle: dict[str, Any] = {}
    seen: set[tuple[str, str]] = set()
    for at, line in enumerate(reader, start=2):
        place = f"{where}, line {at}"
        stage, side = (line["stage"] or "").strip(), (line["where"] or "").strip()
        choice(f"{place}: where", side, ("gpu", "card"))
        told = {key: value.strip() for key in _MORE if (value := line.get(key))}
        figures = {
            key: {"value": number(value, f"{place}: {column}", least=0.0), **told}
            for key, column in (("s", "seconds"), ("w", "watts"))
            if (value := (line[column] or "").strip())
        }
        choice(f"{place}: stage", stage, (*Stage, _IDLE))
        if (stage, side) in seen:
            raise ConfigError(f"{place}: {stage} on the {side} is there already: give one line each, or their sum")
        seen.add((stage, side))
        if stage == _IDLE:
            if "s" in figures:
                raise ConfigError(f"{place}: {_IDLE} has seconds: it is the watts of what waits, so leave them empty")
            idle[side] = figures.get("w")
            continue
        stages.setdefault(stage, {}).update({f"{side}_{key}": figure for key, figure in figures.items()})
    data: dict[str, Any] = {"stages": stages, "tokens": tokens}
    data |= {side: {"idle_w": watts} for side, watts in idle.items()}
    return from_mapping(data, where)


def _integer(given: Any, where: str, most: int = 10**9) -> int | None:
    if given is None:
        return None
    if type(given) is not int or not 1 <= given <= most:
        raise ConfigError(f"{where} is {given!r}; it is a whole number of at least 1 and at most {most}")
    return given


def _tokens(given: Any, where: str) -> float:
    if given is None:
        raise ConfigError(f"{where}: nobody says how many tokens a step puts out: give tokens, or --tokens")
    return number(given, f"{where}: tokens", most=1e15)


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
        folder: The run's folder.
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
        of_step = SourcedNumber(
            value=sums[stage].rank_s / steps, unit="s", kind=SourceKind.MEASURED, source=told.get(stage, source)
        )
        rows[stage] = _measured_row(sums[stage], of_step)
    forward_s, backward_s = seconds.get(Phase.FORWARD, 0.0), seconds.get(Phase.BACKWARD, 0.0)
    train_s = sums[Stage.TRAIN].rank_s
    share = FORWARD_SHARE
    if forward_s and backward_s:
        share = SourcedNumber(
            value=forward_s / train_s, unit="1", kind=SourceKind.MEASURED, source=f"{source}: phases in training"
        )
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
    card_w: Mapping[Stage, SourcedNumber] | None = None,
) -> PipelineTable:
    """Return the table with the card's seconds from an engine's statistics.

    Args:
        table: Table with what all other stages take.
        stats: ``{"steps": 100, "passes": {"reward": {"busy_s": ...}, ...}}``: the fields of ``PassStats``.
        where: File that it is from, for errors and sources.
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
    passes: dict[Stage, tuple[SourcedNumber, SourcedNumber | None]] = {}
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
        figure = SourcedNumber(
            value=busy_s / steps, unit="s", kind=SourceKind.MEASURED, source=f"{where}, {steps} steps"
        )
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


def _measured_row(found: _Sum, gpu_s: SourcedNumber) -> StageRow:
    """Return a row: watts of a device are the joules of all over their seconds, where both are known."""
    share = found.known_s / found.device_s if found.device_s else 0.0
    if share < KNOWN:
        return StageRow(gpu_s=gpu_s)
    whole = share == 1 and found.provenances == {Provenance.MEASURED}
    source = gpu_s.source if share == 1 else f"{gpu_s.source}, of the {share:.0%} of its time without gaps"
    watts = SourcedNumber(
        value=found.energy_j / found.known_s,
        unit="W",
        kind=SourceKind.MEASURED if whole else SourceKind.MODELLED,
        source=source,
    )
    return StageRow(gpu_s=gpu_s, gpu_w=watts)


def _gpu_name(record: RunRecord) -> str:
    names = [str(rank.sensors[uid].get("name") or uid) for rank in record.ranks for uid in _metered(rank)]
    return " and ".join(dict.fromkeys(names)) or "GPU"
