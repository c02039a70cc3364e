"""A table of stages from a YAML or a CSV file, every key checked.

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
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Stage
from greentrain.policy.offload.timeline import MOST_PARTS
from greentrain.simulator.pipeline.figure import Figure, Origin
from greentrain.simulator.pipeline.table import FORWARD_SHARE, NONE, PipelineTable, StageRow
from greentrain.utils.validation import bound, choice, nearest

_TOP: Final = (
    "name", "kind", "source", "tokens", "sequences", "micro_batches", "forward_share", "old_share", "gpu", "card",
    "stages",
)  # fmt: skip
_GPU: Final = ("name", "count", "idle_w")
_CARD: Final = ("name", "idle_w", "embodied_kg", "embodied_source")
_STAGE: Final = ("gpu_s", "gpu_w", "card_s", "card_w")
_FIGURE: Final = ("value", "kind", "source")
_COLUMNS: Final = ("stage", "where", "seconds", "watts")
_MORE: Final = ("kind", "source")
_IDLE: Final = "idle"
_KINDS: Final = tuple(Origin)
MOST: Final = 1e9


def read_table(path: Path, *, tokens: float | None = None) -> PipelineTable:
    """Read a file.

    Args:
        path: ``.yaml``, ``.yml`` or ``.csv``.
        tokens: Output tokens of a step, in place of the file's own.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong; the message names key, value and bound.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if path.suffix.lower() == ".csv":
        return from_csv(text, str(path), tokens=tokens)
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    return from_mapping(data, str(path), tokens=tokens)


def from_mapping(data: Any, where: str, *, tokens: float | None = None) -> PipelineTable:
    """Return the table of a mapping.

    Args:
        data: As YAML has it.
        where: Its file, for errors and sources.
        tokens: Output tokens of a step, in place of its own.

    Raises:
        ConfigError: Something in it is wrong.
    """
    top = _section(data, _TOP, where)
    reader = _TableReader(where, kind=str(top.get("kind") or ""), source=str(top.get("source") or ""))
    gpu = _section(top.get("gpu") or {}, _GPU, f"{where}: gpu")
    card = _section(top.get("card") or {}, _CARD, f"{where}: card")
    stages = _section(top.get("stages") or {}, tuple(Stage), f"{where}: stages")
    rows = {Stage(name): _row(reader, name, stages[name], where) for name in Stage if name in stages}
    embodied = card.get("embodied_kg")
    found = PipelineTable(
        name=str(top.get("name") or Path(where).stem),
        rows=rows,
        tokens=_tokens(top.get("tokens") if tokens is None else tokens, where),
        sequences=_integer(top.get("sequences"), f"{where}: sequences"),
        micro_batches=_integer(top.get("micro_batches"), f"{where}: micro_batches", MOST_PARTS) or 8,
        forward_share=reader.share(top.get("forward_share"), "forward_share") or FORWARD_SHARE,
        old_share=reader.share(top.get("old_share"), "old_share") or NONE,
        gpu=str(gpu.get("name", "GPU")),
        gpus=_integer(gpu.get("count"), f"{where}: gpu.count") or 1,
        gpu_idle_w=reader.figure(gpu.get("idle_w"), "gpu.idle_w"),
        card=str(card.get("name", "card")),
        card_idle_w=reader.figure(card.get("idle_w"), "card.idle_w"),
        embodied_kg=None if embodied is None else _three(embodied, f"{where}: card.embodied_kg"),
        embodied_source=str(card.get("embodied_source", f"declared in {where}")),
    )
    return found


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
    for number, line in enumerate(reader, start=2):
        place = f"{where}, line {number}"
        stage, side = (line["stage"] or "").strip(), (line["where"] or "").strip()
        choice(f"{place}: where", side, ("gpu", "card"))
        told = {key: value.strip() for key in _MORE if (value := line.get(key))}
        figures = {
            key: {"value": _number(value, f"{place}: {column}"), **told}
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


class _TableReader:
    """Reads figures, with what the file says of all of them."""

    def __init__(self, where: str, *, kind: str, source: str) -> None:
        self._where = where
        if kind:
            choice(f"{where}: kind", kind, _KINDS)
        self._kind = kind
        self._source = source or f"declared in {where}"

    def figure(self, given: Any, key: str) -> Figure | None:
        if given is None:
            return None
        place = f"{self._where}: {key}"
        told = _section(given, _FIGURE, place) if isinstance(given, Mapping) else {"value": given}
        kind = str(told.get("kind") or self._kind)
        if not kind:
            raise ConfigError(
                f"{place} does not say where it is from: add kind to it, or once for the file: {', '.join(_KINDS)}"
            )
        choice(f"{place}: kind", kind, _KINDS)
        value = _number(told.get("value"), place)
        bound(place, value, 0, MOST)
        return Figure(value=value, origin=Origin(kind), source=str(told.get("source") or self._source))

    def share(self, given: Any, key: str) -> Figure | None:
        found = self.figure(given, key)
        if found is not None:
            bound(f"{self._where}: {key}", found.value, 0, 1)
        return found


def _row(reader: _TableReader, name: str, given: Any, where: str) -> StageRow:
    told = _section(given, _STAGE, f"{where}: stages.{name}")
    figures = {key: reader.figure(told.get(key), f"stages.{name}.{key}") for key in _STAGE}
    gpu_s = figures["gpu_s"]
    if gpu_s is None:
        raise ConfigError(f"{where}: stages.{name} has no gpu_s: what does it take where it runs without a card?")
    return StageRow(gpu_s=gpu_s, gpu_w=figures["gpu_w"], card_s=figures["card_s"], card_w=figures["card_w"])


def _section(given: Any, known: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} is {given!r}; it must be a section with keys: {', '.join(known)}")
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key}; known here: {', '.join(known)}{nearest(str(key), known)}")
    return given


def _number(given: Any, where: str) -> float:
    try:
        if isinstance(given, bool):
            raise ValueError
        return float(given)
    except (TypeError, ValueError):
        raise ConfigError(f"{where} is {given!r}; it is a number") from None


def _integer(given: Any, where: str, most: int = 10**9) -> int | None:
    if given is None:
        return None
    if type(given) is not int or not 1 <= given <= most:
        raise ConfigError(f"{where} is {given!r}; it is a whole number of at least 1 and at most {most}")
    return given


def _tokens(given: Any, where: str) -> float:
    if given is None:
        raise ConfigError(f"{where}: nobody says how many tokens a step puts out: give tokens, or --tokens")
    found = _number(given, f"{where}: tokens")
    bound(f"{where}: tokens", found, 1e-9, 1e15)
    return found


def _three(given: Any, where: str) -> tuple[float, float, float]:
    values = [_number(value, where) for value in (given if isinstance(given, list) else [given])]
    if len(values) == 1:
        values = values * 3
    if len(values) != 3 or not values[0] <= values[1] <= values[2]:
        raise ConfigError(f"{where} is {given!r}; give one figure, or low, mid and high in this order (kg)")
    for value in values:
        bound(where, value, 0, 1e6)
    return values[0], values[1], values[2]
