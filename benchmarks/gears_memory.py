"""Case memory: what gears add to a model, and what a step keeps and needs in each."""

import gc
import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gears_common import RECIPE, SMALL, TORCHAO, Bench, Row, Training, Value, figure, in_worker
from benchmarks.gears_step import convert
from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision.gearbox import GearBox
from recipes.common.model import GPT

CONFIGURATIONS = (
    ("fp32", "ours", "plain"),
    ("bf16", "ours", "plain"),
    ("fp8 tensorwise", "ours", TORCHAO),
    ("fp8 rowwise", "ours", TORCHAO),
)
"""Gear, and who takes steps in it. Plain BF16 is what FP8 is held against."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
"""Has glibc give freed memory back at once: what is resident is then what is in use (man mallopt, 2026-11-21)."""


def memory(bench: Bench) -> list[Row]:
    """Bytes: of attaching, kept from forward to backward, and the peak of a step."""
    rows = _attached(bench)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for gear, *who in CONFIGURATIONS:
        for tool in who:
            if tool == TORCHAO and not find_spec(TORCHAO):
                found[gear, tool] = {"error": "not installed"}
                continue
            found[gear, tool] = in_worker("memory", 120.0, environ=MALLOC, gear=gear, tool=tool, small=bench.quick)
    for what, key, bar in (
        ("kept from forward to backward", "kept", 1.0),
        ("peak of resident memory in a step, above rest", "peak", 1.01),
    ):
        for gear, *who in CONFIGURATIONS:
            low = gear.startswith("fp8")
            beside = " beside plain BF16" if low else ""
            rows.append(
                Row(
                    case="memory",
                    what=f"{what}, {gear}{beside}, {'0.7' if bench.quick else '10.5'} M parameters",
                    unit="MB",
                    ours=figure(found[gear, "ours"], key, 1e-6),
                    plain=figure(found["bf16" if low else gear, "plain"], key, 1e-6),
                    peers={TORCHAO: figure(found[gear, TORCHAO], key, 1e-6)} if TORCHAO in who else {},
                    bar=None if low else bar,
                )
            )
    return rows


def step_bytes(gear: str, tool: str, small: bool) -> dict[str, float]:
    """Measure one way to take steps; runs in a worker, whose peak is nobody else's.

    Returns:
        ``kept``: bytes of all tensors saved for backward but parameters. ``peak``: resident memory of a step at its
        peak, less that before it.
    """
    name, _, scaling = gear.partition(" ")
    training = Training(SMALL if small else RECIPE, [name], scaling=scaling or "tensorwise")
    if tool == TORCHAO:
        convert(training.model, scaling)
    autocast = name if tool == "plain" else "bf16"
    step: Callable[[], float] = lambda: training.step_s(None if tool == "ours" else autocast)  # noqa: E731
    gears = training.geared()
    if tool == "ours":
        gears.__enter__()
    for _ in range(3):
        step()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before = _status("VmRSS")
    step()
    peak = _status("VmHWM") - before
    kept: dict[tuple[int, int], int] = {}
    parameters = {p.untyped_storage().data_ptr() for p in training.model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr(), storage.nbytes()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return {"kept": float(sum(kept.values())), "peak": float(peak)}


def _attached(bench: Bench) -> list[Row]:
    """What is there after attach that was not before."""
    model = GPT(bench.size)
    box = GearBox(PrecisionConfig(gears=("bf16", "fp8"), min_features=64))
    box.attach(model)  # once before: the trial of FP8 loads what stays loaded
    box.detach()
    before = _tensor_bytes(model)
    added: dict[str, Value] = {"ours": _python_bytes(lambda: box.attach(model)) / 1000}
    after = _tensor_bytes(model)
    box.detach()
    if find_spec(TORCHAO):
        convert(GPT(SMALL), "tensorwise")
        added[TORCHAO] = _python_bytes(lambda: convert(model, "tensorwise")) / 1000
    what = "once: memory of Python's objects that gears add / that a conversion leaves"
    return [
        Row(case="memory", what="bytes of parameters and buffers that gears add", unit="", ours=after - before, bar=0),
        Row(
            case="memory",
            what=what,
            unit="kB",
            ours=added["ours"],
            peers={TORCHAO: added.get(TORCHAO, "not installed")},
        ),
    ]


def _tensor_bytes(model: torch.nn.Module) -> float:
    return float(sum(t.nbytes for t in [*model.parameters(), *model.buffers()]))


def _python_bytes(action: Callable[[], object]) -> float:
    gc.collect()
    tracemalloc.start()
    try:
        action()
        gc.collect()
        return float(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def _status(key: str) -> int:
    """Return a line of /proc/self/status (bytes)."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024
