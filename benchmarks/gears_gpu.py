"""Case gpu: tokens/s, watts and J/token of GPT blocks in each gear on one GPU, compiled, beside torchao and TE.

One process a width (gears_gpu_worker.py): what crashes CUDA there takes nobody else's figures along. Nothing here was
measured on a machine without a GPU; there the case is one row that says so.
"""

import os
import time
from collections.abc import Mapping
from typing import Any, Final

import torch

from benchmarks.gears_common import TORCHAO, TRANSFORMER_ENGINE, Bench, Row, Value, in_worker

BLOCKS: Final = {1024: 16, 2048: 8, 4096: 4, 8192: 2}
"""Blocks by width: 0.2, 0.4, 0.8 and 1.6 B parameters, so that a step of 16,384 tokens takes 0.05 to 0.5 s."""
TIME_S: Final = 470.0
"""For all widths together."""
METRICS: Final = {"tokens_per_s": "tokens/s", "power_w": "W", "mj_per_token": "mJ/token"}
BESIDE: Final = {
    "fp32": {},
    "fp16": {},
    "fp8 tensorwise": {TORCHAO: f"{TORCHAO} tensorwise", TRANSFORMER_ENGINE: TRANSFORMER_ENGINE},
    "fp8 rowwise": {TORCHAO: f"{TORCHAO} rowwise"},
}
"""By gear: peers, and the worker's names of them."""


def gpu(bench: Bench) -> list[Row]:
    """Train GPT blocks in turns in every gear; energy is that of GreenTrain's own NVML session."""
    if not torch.cuda.is_available():
        return [Row(case="gpu", what="FP8, BF16 and FP16 on a GPU", unit="", ours="n/a: no CUDA device here")]
    end_s = time.monotonic() + (TIME_S / 4 if bench.quick else TIME_S)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # the session measures all that is visible
    rows: list[Row] = []
    widths = list(BLOCKS)[:1] if bench.quick else list(BLOCKS)
    for place, width in enumerate(widths):
        left_s = (end_s - time.monotonic()) / (len(widths) - place)
        words = in_worker(
            "gpu",
            left_s + 20,
            environ={"CUDA_VISIBLE_DEVICES": visible},
            width=width,
            blocks=BLOCKS[width],
            time_s=left_s - 15,
            folder=str(bench.scratch / f"gpu-{width}"),
        )
        bench.say(f"gpu, width {width}: {words}")
        for note in words.get("notes", []):
            bench.notes.append(f"gpu, width {width}: {note}")
        if "device" in words and words["device"] not in bench.notes:
            bench.notes.append(words["device"])
        rows += rows_of(width, words)
    return rows


def rows_of(width: int, words: Mapping[str, Any]) -> list[Row]:
    """Return the lines of one width.

    Args:
        width: Of the blocks.
        words: What its worker said: ``variants``, a mapping of names to figures or reasons; or ``error``.
    """
    variants: Mapping[str, Any] = words.get("variants", {})
    why = str(words.get("error", "n/a: not reached in time"))

    def value(name: str, key: str) -> Value:
        found = variants.get(name, why)
        return found.get(key, "n/a") if isinstance(found, Mapping) else str(found)

    what = f"{BLOCKS[width]} blocks of width {width}"
    rows = [
        Row(
            case="gpu",
            what=f"{what}, BF16: a step with gears / plain, compiled",
            unit="ms",
            ours=value("bf16", "step_ms"),
            plain=value("plain bf16", "step_ms"),
            bar=1.01,
        )
    ]
    for gear, peers in BESIDE.items():
        rows += [
            Row(
                case="gpu",
                what=f"{what}, {gear} beside plain BF16",
                unit=unit,
                ours=value(gear, key),
                plain=value("plain bf16", key),
                peers={peer: value(name, key) for peer, name in peers.items()},
            )
            for key, unit in METRICS.items()
        ]
    return rows
