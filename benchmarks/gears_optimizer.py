"""Case optimizer: AdamW with gamma on every kernel, beside the kernel alone."""

import functools
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch.optim import AdamW, Optimizer

from benchmarks.gears_common import BITSANDBYTES, TORCHAO, Bench, Row, Value, fastest, figure, in_worker
from greentrain.optim import GearAdamW, adapt

GAMMA = 4.0
PEERS = (f"{BITSANDBYTES} AdamW", f"{BITSANDBYTES} AdamW8bit", f"{TORCHAO} AdamW8bit", f"{TORCHAO} AdamWFp8")
EMPTY: Mapping[str, Value] = {}
MATRIX = (512, 1024)
WHAT = "step of 25.2 M parameters in 96 tensors"
"""48 matrices of MATRIX and as many vectors of 1024."""


def optimizer(bench: Bench) -> list[Row]:
    """One optimizer step, with gamma 4 and without GreenTrain, on the same tensors and the same state."""
    alone: dict[str, Value] = {}
    others = []
    for kind in PEERS:
        words = _peer(kind, bench)
        alone[kind] = figure(words, "plain_s", 1000)
        others.append(
            Row(
                case="optimizer",
                what=f"{WHAT}: adapt({kind}), gamma 4",
                unit="CPU ms",
                ours=figure(words, "ours_s", 1000),
                plain=alone[kind],
                bar=1.02,
            )
        )
    repeats = bench.pick(60, 5)
    return [
        _row("GearAdamW(fused=True), gamma 4", _subclass(GAMMA, fused=True), repeats, alone),
        _row("GearAdamW(fused=True), gamma 1", _subclass(1.0, fused=True), repeats),
        _row("adapt(AdamW(fused=True)), gamma 4", _adapted(AdamW(parameters(), fused=True)), repeats),
        _row("adapt(AdamW(foreach=True)), gamma 4", _adapted(AdamW(parameters(), foreach=True)), repeats),
        *others,
    ]


def _peer(kind: str, bench: Bench) -> dict[str, Any]:
    package = kind.split()[0]
    if not find_spec(package):
        return {"error": "not installed"}
    if bench.quick and package == TORCHAO:
        return {"error": "not in --quick: it compiles for a minute"}
    return in_worker("optimizer", 300.0, kind=kind, repeats=bench.pick(20, 2))


def peer_step_s(kind: str, repeats: int) -> dict[str, float]:
    """Time a peer's optimizer, adapted and alone; runs in a worker.

    Returns:
        ``ours_s`` and ``plain_s``.
    """
    made: Optimizer
    if kind.startswith(BITSANDBYTES):
        import bitsandbytes

        made = getattr(bitsandbytes.optim, kind.split()[1])(parameters(), lr=1e-4)
    else:
        import torchao.optim  # type: ignore[import-untyped]

        made = getattr(torchao.optim, kind.split()[1])(parameters(), lr=1e-4)
    found = fastest(_adapted(made), repeats)
    return {"ours_s": found["ours"], "plain_s": found["plain"]}


def parameters() -> list[torch.nn.Parameter]:
    """Return 25.2 M parameters in 96 tensors, with gradients."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape in (MATRIX, MATRIX[1:]):
        for _ in range(48):
            parameter = torch.nn.Parameter(torch.randn(shape, generator=generator))
            parameter.grad = 1e-3 * torch.randn(shape, generator=generator)
            made.append(parameter)
    return made


def _row(what: str, calls: Mapping[str, Callable[[], float]], repeats: int, peers: Mapping[str, Value] = EMPTY) -> Row:
    found = fastest(calls, repeats)
    return Row(
        case="optimizer",
        what=f"{WHAT}: {what}",
        unit="CPU ms",
        ours=1000 * found["ours"],
        plain=1000 * found["plain"],
        peers=peers,
        bar=1.02,
    )


def _subclass(gamma: float, **kernel: Any) -> dict[str, Callable[[], float]]:
    tensors = parameters()
    plain = AdamW(tensors, lr=1e-4, **kernel)
    ours = GearAdamW(tensors, lr=1e-4, gamma=gamma, **kernel)
    ours.state = plain.state  # the same memory for both
    return {"ours": functools.partial(_step_s, ours), "plain": functools.partial(_step_s, plain)}


def _adapted(made: Optimizer) -> dict[str, Callable[[], float]]:
    def ours_s() -> float:
        adapted = adapt(made, GAMMA)
        spent_s = _step_s(made)
        adapted.remove()
        return spent_s

    return {"ours": ours_s, "plain": functools.partial(_step_s, made)}


def _step_s(made: Optimizer) -> float:
    before_s = time.process_time()
    made.step()
    return time.process_time() - before_s
