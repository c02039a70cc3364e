"""The best layout for a number of devices, and the smallest number of devices that keeps a time limit."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from greentrain.errors import ConfigError
from greentrain.estimate import layouts as memory
from greentrain.estimate import roofline
from greentrain.estimate.hardware import Accelerator, Practice, peak_flop_s, practice_of
from greentrain.estimate.layouts import Floats, Layouts, ParallelLayout, enumerate_layouts
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.roofline import step_parts
from greentrain.estimate.values import Assumption
from greentrain.estimate.workload import Workload
from greentrain.types import S_PER_HOUR

Takes = Callable[[Floats, Floats], Floats]
"""Seconds that real runs take, of their numbers of devices and the optimum's seconds; falls with more devices."""
_SWEEP: Final = 32
"""Numbers of devices that are searched at a time."""
_FINE: Final = 128
"""Numbers of devices between one and its double: few and round ones, since those split in many ways."""
_FURTHEST: Final = 64.0
"""How many times the devices that would do at the peak are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The fastest layout that fits."""

    layout: ParallelLayout
    step_s: float
    """Of one optimizer step in which nothing goes wrong: real runs need longer."""
    parts_s: Mapping[str, float]
    """By cause; they add up to the step."""
    memory_bytes: Mapping[str, float]
    """Of the fullest device, by term."""
    mfu: float
    """Share of the peak that the model's FLOP are of; work that is done again does not count."""
    ideal_step_s: float
    """The same FLOP at the peak."""
    run_s: float
    """All steps."""
    tried: int
    """Layouts that the shape allows."""
    fitting: int
    """Of these, how many fit into memory."""
    assumptions: tuple[Assumption, ...]

    @property
    def count(self) -> int:
        """Devices."""
        return self.layout.count

    @property
    def gpu_hours(self) -> float:
        """Device-hours of the run."""
        return self.run_s * self.count / S_PER_HOUR


def search(
    shape: ModelShape, workload: Workload, accelerator: Accelerator, count: int, practice: Practice | None = None
) -> Optimum:
    """Return the fastest layout of a model on ``count`` devices.

    Args:
        shape: The model.
        workload: Tokens, sequence, batch, precision.
        accelerator: The device.
        count: Number of devices.
        practice: Constants; None: those of the device's family.

    Raises:
        ConfigError: Nothing fits: the largest term of the leanest layout is named. Or the devices cannot be split.
    """
    used = practice or practice_of(accelerator, workload.precision)
    return _Task(shape, workload, accelerator, used).best([count])


def cost(
    shape: ModelShape,
    workload: Workload,
    accelerator: Accelerator,
    layout: ParallelLayout,
    practice: Practice | None = None,
) -> Optimum:
    """Return what one given layout takes, by the same formulas.

    Raises:
        ConfigError: It does not fit: the largest term is named.
    """
    used = practice or practice_of(accelerator, workload.precision)
    return _Task(shape, workload, accelerator, used).of(Layouts.of([layout]))


def optimum_s(count: Floats, run_s: Floats) -> Floats:
    """Return the optimum's own seconds: a run that nothing holds up."""
    return run_s


def smallest_count(
    shape: ModelShape,
    workload: Workload,
    accelerator: Accelerator,
    limit_s: float,
    *,
    takes: Takes = optimum_s,
) -> Optimum:
    """Return the layout with the fewest devices that ends a run within ``limit_s``.

    Whole nodes are tried, upward from what would do at the peak, in steps of at most 1/64.

    Args:
        shape: The model.
        workload: Tokens, sequence, batch, precision.
        accelerator: The device.
        limit_s: Time limit (s).
        takes: Function from devices and the optimum's seconds to those of real runs, which keep the limit.

    Raises:
        ConfigError: No number up to 64 times that one keeps the limit, or nothing fits into memory.
    """
    if not (math.isfinite(limit_s) and limit_s > 0):
        raise ConfigError(f"limit_s is {limit_s!r}; give seconds above 0")
    used = practice_of(accelerator, workload.precision)
    task = _Task(shape, workload, accelerator, used)
    counts = _upward(_enough(task.ideal_step_s(1) * workload.steps, limit_s, takes), min(accelerator.node, 8))
    quickest_s, last = math.inf, counts[:_SWEEP]
    for start in range(0, len(counts), _SWEEP):
        some = counts[start : start + _SWEEP]
        found = sweep(shape, workload, accelerator, some, used)
        last = some if found.tried else last
        run_s = takes(found.layouts.count.astype(float), found.step_s * workload.steps)
        if (run_s <= limit_s).any():
            return search(shape, workload, accelerator, int(found.layouts.count[run_s <= limit_s].min()), used)
        quickest_s = min(quickest_s, float(run_s.min(initial=math.inf)))
    if math.isinf(quickest_s):
        return task.best(last)  # refuses: nothing fits, or nothing splits
    raise ConfigError(
        f"no layout of {counts[0]} to {counts[-1]} x {accelerator.name} ends {workload.tokens:g} tokens of "
        f"{shape.name} within {limit_s / S_PER_HOUR:g} h; the quickest takes {quickest_s / S_PER_HOUR:.3g} h, since "
        f"a batch of {workload.sequences} sequences splits no further. Give more time or a larger batch"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Layouts that fit and the seconds of a step of each, as arrays."""

    layouts: Layouts
    step_s: Floats
    tried: int


def sweep(
    shape: ModelShape,
    workload: Workload,
    accelerator: Accelerator,
    counts: Sequence[int],
    practice: Practice | None = None,
) -> Swept:
    """Return every layout that fits on any of these numbers of devices, with its time. None fitting is no error."""
    used = practice or practice_of(accelerator, workload.precision)
    every = enumerate_layouts(shape, workload, accelerator.node, counts)
    needed = memory.memory(shape, workload, every, used).total
    fitting = every.take(needed <= memory.capacity_bytes(accelerator, used))
    parts = step_parts(shape, workload, accelerator, fitting, used)
    return Swept(layouts=fitting, step_s=parts.step_s, tried=len(every))


@dataclass(frozen=True, slots=True)
class _Task:
    shape: ModelShape
    workload: Workload
    accelerator: Accelerator
    practice: Practice

    def best(self, counts: Sequence[int]) -> Optimum:
        every = enumerate_layouts(self.shape, self.workload, self.accelerator.node, counts)
        if not len(every):
            raise ConfigError(
                f"{counts[0]} x {self.accelerator.name}: no way to split {self.shape.name} ({self.shape.layers} "
                f"layers, {self.shape.heads} heads) and {self.workload.sequences} sequences over so many. Give a "
                f"number with more divisors, a larger batch, or with a time limit more hours"
            )
        return self.of(every)

    def of(self, every: Layouts) -> Optimum:
        """Return the fastest of these layouts."""
        needed = memory.memory(self.shape, self.workload, every, self.practice)
        total = needed.total
        fits = total <= memory.capacity_bytes(self.accelerator, self.practice)
        if not fits.any():
            leanest = int(np.argmin(total))
            raise memory.refusal(every.at(leanest), needed.bytes_by_term(leanest), self.accelerator, self.practice)
        where = np.flatnonzero(fits)
        parts = step_parts(self.shape, self.workload, self.accelerator, every.take(where), self.practice)
        index = int(np.argmin(parts.step_s))
        layout = every.at(int(where[index]))
        by_part = parts.seconds_by_part(index)
        step_s = math.fsum(by_part.values())
        ideal = self.ideal_step_s(layout.count)
        return Optimum(
            layout=layout,
            step_s=step_s,
            parts_s=by_part,
            memory_bytes=needed.bytes_by_term(int(where[index])),
            mfu=ideal / step_s,
            ideal_step_s=ideal,
            run_s=step_s * self.workload.steps,
            tried=len(every),
            fitting=len(where),
            assumptions=(*self.practice.assumptions(), *roofline.assumptions(self.shape), *memory.assumptions()),
        )

    def ideal_step_s(self, count: int) -> float:
        tokens = self.workload.sequences * self.workload.sequence
        peak = peak_flop_s(self.accelerator, self.workload.precision)
        return self.shape.flop_per_token(self.workload.sequence) * tokens / (count * peak)


def _enough(ideal_s: float, limit_s: float, takes: Takes) -> float:
    """Return the devices, 1 or more, that keep the limit where each makes all FLOP at the peak (``ideal_s`` alone)."""

    def late(count: float) -> bool:
        return bool(takes(np.array([count]), np.array([ideal_s / count]))[0] > limit_s)

    low, high = 1.0, 1.0
    while late(high):
        low, high = high, 2.0 * high
    while high / low > 1.0 + 1e-9:
        between = math.sqrt(low * high)
        low, high = (between, high) if late(between) else (low, between)
    return low


def _upward(ideal: float, node: int) -> list[int]:
    """Return numbers of devices from what would do at the peak: parts of a node, whole nodes, larger steps."""
    least = max(1, math.ceil(ideal))
    counts = [each for each in range(1, node) if node % each == 0 and each >= least]
    each = math.ceil(least / node) * node
    most = max(ideal * _FURTHEST, 64.0 * node)
    while each <= most:
        step = node * 2 ** max(0, math.floor(math.log2(each / (node * _FINE))) + 1)
        each = math.ceil(each / step) * step
        counts.append(each)
        each += step
    return counts
