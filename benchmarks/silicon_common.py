"""What the slices of silicon.py share: rows of the table, and the device that a slice measures, real or played."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]
Value = float | str | None
"""A figure, or words where there is none; None: the question does not arise."""
TOKENS: Final = 16_384
"""Rows of a product, as a step of eight sequences of 2,048 tokens has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    unit: str
    ours: Value
    beside: Mapping[str, Value] = field(default_factory=dict)
    """The truth, the plain way or a peer, by name."""
    bar: float | None = None
    """Largest absolute value of ``ours``; None: reported without a bar."""

    @property
    def verdict(self) -> str:
        """PASS or MISS; empty without a bar, n/a where nothing was measured."""
        if self.bar is None:
            return ""
        if isinstance(self.ours, str | None) or not math.isfinite(self.ours):
            return "n/a"
        return "PASS" if abs(self.ours) <= self.bar else "MISS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The load that the fake driver plays in a dry run: a square wave, whatever the slice does."""

    epoch_s: float
    """Monotonic time of its start (s)."""
    low_w: float
    high_w: float
    period_s: float
    duty: float

    def on_spans(self, t0_s: float, t1_s: float) -> list[tuple[float, float]]:
        """Return when the load was on between two monotonic times (s)."""
        first, last = (math.floor((t_s - self.epoch_s) / self.period_s) for t_s in (t0_s, t1_s))
        starts = (self.epoch_s + i * self.period_s for i in range(first, last + 1))
        spans = ((max(t0_s, start_s), min(t1_s, start_s + self.duty * self.period_s)) for start_s in starts)
        return [(a_s, b_s) for a_s, b_s in spans if b_s > a_s]


class Rig:
    """What a slice gets: a device, time, and a place for rows. Each row is said at once, so that none is lost.

    Args:
        scratch: Folder for its files.
        time_s: How long it may take (s).
        played: In a dry run, the load that the fake driver plays; the device is then the CPU. None: a real one.
    """

    def __init__(self, scratch: Path, time_s: float, played: Played | None = None) -> None:
        self.scratch, self.played = scratch, played
        self.end_s = time.monotonic() + time_s
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.device = torch.device("cpu")
        if played is None:
            found = torch.accelerator.current_accelerator(check_available=True)
            if found is None:
                raise RuntimeError("torch sees no accelerator here: --dry-run plays one")
            self.device = torch.device(found.type, torch.accelerator.current_device_index())

    @property
    def dry(self) -> bool:
        """Nothing of this is a figure of a device."""
        return self.played is not None

    @property
    def left_s(self) -> float:
        """Time that is left (s)."""
        return self.end_s - time.monotonic()

    def pick(self, full: Any, dry: Any) -> Any:
        """Return one of two settings."""
        return dry if self.dry else full

    def row(self, what: str, unit: str, ours: Value, bar: float | None = None, **beside: Value) -> None:
        """Add a line to the table."""
        self.rows.append(Row(what=what, unit=unit, ours=ours, beside=beside, bar=bar))
        self.say()

    def note(self, text: str) -> None:
        """Add a sentence below the table."""
        self.notes.append(text)
        self.say()

    def attempt(self, what: str, unit: str, make: Callable[[], None]) -> None:
        """Do a part of a slice; if it fails, a row says why, and the other parts follow."""
        try:
            make()
        except Exception as error:
            self.row(what, unit, failed(error))

    def say(self, error: str = "") -> None:
        """Print what there is so far: the last line counts."""
        rows = [asdict(row) | {"verdict": row.verdict} for row in self.rows]
        print(json.dumps({"rows": rows, "notes": self.notes, "error": error}), flush=True)

    def wait(self) -> None:
        """Wait until the device has done everything that is queued."""
        if not self.dry:
            torch.accelerator.synchronize(self.device)

    def session(self, name: str, **power: Any) -> Any:
        """Return a GreenSession that reads the device alone and writes into a folder of this name."""
        from greentrain import GreenSession

        run = {"dir": str(self.scratch / name), "report": False, "live": False}
        return GreenSession({"run": run, "power": {"meters": ["nvml"], **power}, "carbon": {"g_per_kwh": 0.0}})

    def time_ms(self, call: Callable[[], object], seconds: float = 1.0) -> float:
        """Return what a call takes on the device (ms): the median of five rounds, each waited for at its end."""
        for _ in range(3):
            call()
        self.wait()
        before_s = time.perf_counter()
        call()
        self.wait()
        length_s: float = self.pick(seconds, 0.01)
        count = max(1, round(length_s / 5 / (time.perf_counter() - before_s)))
        found: list[float] = []
        for _ in range(5):
            before_s = time.perf_counter()
            for _ in range(count):
                call()
            self.wait()
            found.append(1000 * (time.perf_counter() - before_s) / count)
        return sorted(found)[2]


class Kernels:
    """Loads of a device that differ in power: products in BF16, products in FP32, and passes over memory.

    Args:
        rig: Where they run.
    """

    def __init__(self, rig: Rig) -> None:
        size = rig.pick(4096, 32)
        draw = torch.Generator().manual_seed(0)
        self._a = torch.randn(size, size, generator=draw).to(rig.device)
        self._half = self._a.bfloat16()
        self._wide = torch.randn(rig.pick(2**26, 2**8), generator=draw).to(rig.device)
        self._rig = rig

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return one short kernel of each kind."""
        return {
            "bf16": lambda: torch.mm(self._half, self._half),
            "fp32": lambda: torch.mm(self._a, self._a),
            "memory": lambda: torch.add(self._wide, 1.0),
        }

    def of(self, kind: str, target_ms: float) -> Callable[[], None]:
        """Return a call that queues kernels of a kind for so many milliseconds of the device."""
        call = self.calls()[kind]
        count = max(1, round(target_ms / self._rig.time_ms(call, 0.3)))

        def queue() -> None:
            for _ in range(count):
                call()

        return queue


def failed(error: BaseException) -> str:
    """Return an exception as a cell of the table."""
    lines = str(error).strip().splitlines() or [""]
    return f"failed: {type(error).__name__}: {lines[0]}"[:240]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of all does not exceed."""
    listed = sorted(values)
    return listed[min(len(listed) - 1, math.ceil(share * len(listed)) - 1)]


def non_negative(a: Floats, b: Floats, rounds: int = 4000) -> Floats:
    """Return x >= 0 with the least squares of ``a x - b``, coordinate by coordinate."""
    gram, right = a.T @ a, a.T @ b
    x: Floats = np.zeros_like(right)
    for _ in range(rounds):
        for i in range(len(x)):
            x[i] = max(0.0, x[i] + (right[i] - gram[i] @ x) / max(gram[i, i], 1e-12))
    return x


def provenance(device: torch.device) -> dict[str, str]:
    """Return device, driver, torch and the packages of peers; what cannot be found out is left out."""
    import importlib.metadata
    import subprocess

    from benchmarks.gears_gpu_worker import _device

    about: dict[str, str] = {"torch": str(torch.__version__)}
    with contextlib.suppress(Exception):
        about["device"] = _device(device.type)
    for name in ("greentrain-torch", "nvidia-ml-py", "zeus", "codecarbon", "torchao", "transformer-engine", "triton"):
        try:
            about[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            about[name] = "not installed"
    with contextlib.suppress(Exception):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        about["commit"] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return about
