"""An accelerator that works behind the host, in the words of torch; what it draws and when is known in closed form."""

import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.helpers.hand_clock import HandClock

AHEAD = 1024
"""Kernels that may wait: who launches more waits itself."""


@dataclass
class BusyHost(HandClock):
    """A host whose clock goes on a little whenever it is read, and now and then more: threads share a core."""

    read_s: float = 1e-6
    held_s: float = 0.0
    """How long it is held up in one of a hundred reads (s)."""
    seed: int = 0

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng(self.seed)

    def monotonic_s(self) -> float:
        self.now_s += self._chance.exponential(self.read_s)
        if self.held_s and self._chance.random() < 0.01:
            self.now_s += self.held_s
        return self.now_s


class Stream:
    """Kernels one after the other."""

    def __init__(self, gpu: "FakeGpu") -> None:
        self.gpu = gpu
        self.free_s = 0.0
        """When all that was launched will have run (s)."""
        self.captures = False

    def is_capturing(self) -> bool:
        return self.captures


@dataclass
class FakeGpu:
    """One device.

    Args:
        host: The host that launches.
        drift: By how much its clock goes too fast.
        idle_w: Power without a kernel (W).
        late_s: How much later than an event passes the host sees it (s).
    """

    host: HandClock
    drift: float = 0.0
    idle_w: float = 80.0
    late_s: float = 0.0
    used: bool = True
    kernels: list[tuple[float, float, float]] = field(default_factory=list)
    """Start (s), end (s) and watts above idle of each."""
    broken: bool = False
    lost: bool = False
    """Events that are recorded from now on never pass."""
    made: int = 0
    """Events that were made."""
    recorded: int = 0

    def __post_init__(self) -> None:
        self.stream = Stream(self)
        self.began_s = self.host.now_s

    def launch(self, seconds: float, watts: float) -> None:
        """Queue a kernel."""
        if len(self.kernels) >= AHEAD:
            self.host.now_s = max(self.host.now_s, self.kernels[-AHEAD][1])
        start_s = max(self.host.now_s, self.stream.free_s)
        self.stream.free_s = start_s + seconds
        self.kernels.append((start_s, start_s + seconds, watts - self.idle_w))

    def synchronize(self) -> None:
        self.host.now_s = max(self.host.now_s, self.stream.free_s)

    def energy_j(self, t_s: Any) -> Any:
        """Return what it has drawn from its beginning to each time (J)."""
        t_s = np.asarray(t_s, dtype=float)
        used_j = self.idle_w * (t_s - self.began_s)
        if not self.kernels:
            return used_j
        start_s, end_s, watts = (np.array(column) for column in zip(*self.kernels, strict=True))
        done_j = np.concatenate([[0.0], np.cumsum(watts * (end_s - start_s))])
        i = np.searchsorted(start_s, t_s, side="right")
        last = np.maximum(i - 1, 0)
        part_j = watts[last] * (np.minimum(t_s, end_s[last]) - start_s[last])
        return used_j + np.where(i > 0, done_j[last] + part_j, 0.0)

    def edges_s(self) -> list[float]:
        """Return the times at which its power changes, increasing (s)."""
        return sorted({t_s for start_s, end_s, _ in self.kernels for t_s in (start_s, end_s)})


class Event:
    """As torch.Event, with float32 milliseconds."""

    def __init__(self, gpu: FakeGpu) -> None:
        gpu.made += 1
        self._gpu = gpu
        self.passed_s = float("nan")
        self._lost = False

    def record(self, stream: Stream) -> None:
        self._works()
        assert not stream.captures, "a graph that is captured would hold this event"
        self._gpu.recorded += 1
        self.passed_s = max(stream.free_s, self._gpu.host.now_s)
        self._lost = self._gpu.lost

    def query(self) -> bool:
        self._works()
        self._gpu.host.now_s += 1e-6
        return not self._lost and self._gpu.host.now_s >= self.passed_s + self._gpu.late_s

    def elapsed_time(self, end: "Event") -> float:
        self._works()
        if not (self.query() and end.query()):
            raise RuntimeError("device not ready")
        return float(np.float32((end.passed_s - self.passed_s) * (1 + self._gpu.drift) * 1e3))

    def _works(self) -> None:
        if self._gpu.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def fake_torch(gpus: Sequence[FakeGpu], monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Have the process find devices where it looks for torch's."""

    def of(device: str) -> FakeGpu:
        return gpus[int(device.partition(":")[2])]

    def event(device: str, enable_timing: bool = False) -> Event:
        assert enable_timing, "elapsed_time is an error of an event without"
        return Event(of(device))

    kind = types.SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(gpus),
        memory_reserved=lambda index: int(gpus[index].used),
        get_device_properties=lambda index: types.SimpleNamespace(),
    )
    torch = types.SimpleNamespace(
        accelerator=types.SimpleNamespace(
            current_accelerator=lambda: types.SimpleNamespace(type="fake"),
            current_stream=lambda index: gpus[index].stream,
            set_device_index=lambda index: None,
        ),
        fake=kind,
        cuda=kind,
        Event=event,
        Stream=lambda device: Stream(of(device)),
    )
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    return torch
