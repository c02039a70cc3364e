"""One width of the case gpu: the same weights trained in turns in each way, compiled; runs in a worker.

All ways share their Parameters and the optimizer, so they fit into memory side by side and are measured one beside the
other while the card is equally warm. Each is built, compiled and warmed up in a try of its own: what fails becomes a
reason in its cell. Energy is asked for at the end of a round, when the sensors have long reported it.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

import torch

from benchmarks.gears_common import TORCHAO
from benchmarks.gears_gpu_ways import ORDER, Blocks
from greentrain import GreenSession
from greentrain.errors import GreenTrainError

MEASURE_S = 2.5
"""Shortest measurement: 25 ticks of NVML's energy counter."""
ROUNDS = 2
BUILDING = 0.55
"""Share of the time that building and compiling may take."""


class Span(NamedTuple):
    """Steps of one way, one after another."""

    t0_s: float
    t1_s: float
    steps: int


def measure(
    width: int,
    blocks: int,
    time_s: float,
    folder: str,
    device: str = "cuda",
    batch: int = 8,
    context: int = 2048,
    compiled: bool = True,
    measure_s: float = MEASURE_S,
    meter: str | None = None,
) -> None:
    """Print figures of every way as JSON, anew whenever there are more: the last line counts.

    Args:
        width: Of the blocks.
        blocks: Their number.
        time_s: For everything.
        folder: Of the session's run.
        device: ``cuda``, or ``cpu`` to try the script: then there are no joules.
        batch: Sequences a step.
        context: Tokens of each.
        compiled: Compile every block.
        measure_s: Shortest measurement.
        meter: Of the joules; None: NVML on ``cuda``, else none.
    """
    end_s = time.monotonic() + time_s
    torch._dynamo.config.recompile_limit = 64  # the code of a block is compiled once a way
    words: dict[str, Any] = {"device": _device(device), "variants": {}, "notes": []}
    training = Blocks(width, blocks, device, batch, context, compiled)
    ready: dict[str, tuple[Callable[[], None], int]] = {}
    for name in ORDER:
        if end_s - time.monotonic() < (1 - BUILDING) * time_s:
            break
        try:
            step = training.way(name)
            ready[name] = step, _warm(training, step, measure_s)
        except Exception as error:
            words["variants"][name] = f"n/a: {_line(error)}"
            training.optimizer.zero_grad()
            _say(words)
    spans: dict[str, list[Span]] = {}
    with contextlib.ExitStack() as stack:
        green = stack.enter_context(_session(folder, meter or ("nvml" if device == "cuda" else "null"), words["notes"]))
        for turn in range(ROUNDS):
            for name in list(ready)[:: -1 if turn % 2 else 1]:
                try:
                    spans.setdefault(name, []).append(_span(training, *ready[name]))
                except Exception as error:
                    words["notes"].append(f"{name}: {_line(error)}")
                    ready.pop(name)
                if time.monotonic() > end_s:
                    words["notes"].append(f"time was up in round {turn + 1} of {ROUNDS}")
                    break
            for name, parts in spans.items():
                words["variants"][name] = _figures(parts, training.tokens, green) if parts else "n/a: see the notes"
            _say(words)
            if time.monotonic() > end_s:
                break


def _say(words: Mapping[str, Any]) -> None:
    print(json.dumps(words), flush=True)


def _session(folder: str, meter: str, notes: list[str]) -> GreenSession:
    """Return a session that measures the GPU; without its meter, one that measures nothing and a note of why."""
    for one in dict.fromkeys((meter, "null")):
        config = {
            "run": {"dir": folder, "report": False, "live": False},
            "power": {"meters": [one]},
            "carbon": {"g_per_kwh": 0.0},
        }
        try:
            green = GreenSession(config)
            green.start()
            green.close()
            return GreenSession(config)
        except GreenTrainError as error:
            notes.append(f"no joules: {_line(error)}")
    raise AssertionError("the meter null always opens")


def _warm(training: Blocks, step: Callable[[], None], measure_s: float) -> int:
    """Compile and warm up; return how many steps a measurement needs."""
    for _ in range(3):
        step()
    training.wait()
    before_s = time.monotonic()
    for _ in range(3):
        step()
    training.wait()
    if training.loss is None or not torch.isfinite(training.loss):
        raise ArithmeticError(f"the loss is {training.loss}")
    return max(3, round(3 * measure_s / (time.monotonic() - before_s)))


def _span(training: Blocks, step: Callable[[], None], steps: int) -> Span:
    for _ in range(3):
        step()
    training.wait()
    t0_s = time.monotonic()
    for _ in range(steps):
        step()
    training.wait()
    return Span(t0_s, time.monotonic(), steps)


def _figures(spans: list[Span], tokens_per_step: int, green: GreenSession) -> dict[str, float]:
    """Return the means of one way over its rounds."""
    seconds, steps = sum(s.t1_s - s.t0_s for s in spans), sum(s.steps for s in spans)
    tokens = steps * tokens_per_step
    found = {"rounds": len(spans), "step_ms": 1000 * seconds / steps, "tokens_per_s": tokens / seconds}
    energies = [green.energy(span.t0_s, span.t1_s, wait_s=5.0) for span in spans]
    if all(energies):
        energy_j = sum(sum(by_device.values()) for by_device in energies if by_device)
        found |= {"power_w": energy_j / seconds, "mj_per_token": 1000 * energy_j / tokens}
    return found


def _device(device: str) -> str:
    if device != "cuda":
        return f"torch {torch.__version__} on {device}"
    one = torch.cuda.get_device_properties(0)
    text = f"{one.name}, {one.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, torch {torch.__version__}"
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
        limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
        text += f", driver {pynvml.nvmlSystemGetDriverVersion()}, power limit {limit_w:.0f} W"
    for package in ("triton", TORCHAO, "transformer-engine"):
        with contextlib.suppress(Exception):
            text += f", {package} {version(package)}"
    return text


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:160]
