"""Reads what loggers wrote, each from its own files: the values of each key in the order they were logged."""

import csv
import importlib
import json
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Series = Mapping[str, list[float]]


def read_logged(logger: str, out: Path) -> Series:
    """Return all numbers that a logger keeps below a folder; the Trainer's own prefix ``train/`` is left out."""
    rows = {"csv": _csv, "tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}[logger](out)
    found: dict[str, list[float]] = defaultdict(list)
    for key, value in rows:
        found[key.removeprefix("train/")].append(value)
    return found


def _csv(out: Path) -> Iterator[tuple[str, float]]:
    (file,) = out.rglob("metrics.csv")
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        yield from ((key, float(value)) for key, value in row.items() if value)


def _tensorboard(out: Path) -> Iterator[tuple[str, float]]:
    from tensorboard.backend.event_processing import event_accumulator

    (file,) = out.rglob("events.out.tfevents.*")
    events: Any = event_accumulator.EventAccumulator(str(file), {"scalars": 0})
    events.Reload()
    for key in events.Tags()["scalars"]:
        yield from ((key, event.value) for event in events.Scalars(key))


def _mlflow(out: Path) -> Iterator[tuple[str, float]]:
    with sqlite3.connect(out / "mlflow.db") as store:
        # The table latest_metrics beside it has only each key's last value.
        rows = store.execute("select key, value from metrics order by step, timestamp, rowid").fetchall()
    store.close()
    yield from rows


def _wandb(out: Path) -> Iterator[tuple[str, float]]:
    records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (file,) = out.glob("wandb/offline-run-*/*.wandb")
    for raw in _records(file.read_bytes()):
        record = records.Record()
        record.ParseFromString(raw)
        for item in record.history.item:
            value = json.loads(item.value_json)
            if isinstance(value, int | float):
                yield item.key or "/".join(item.nested_key), float(value)


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of LevelDB's log format, which W&B keeps behind a header of seven bytes.

    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    assert data[:4] == b":W&B"
    place, part = 7, b""
    while place < len(data):
        left = 32768 - place % 32768
        if left < 7:  # no header fits into the rest of a block
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of its parts
            yield part
            part = b""
