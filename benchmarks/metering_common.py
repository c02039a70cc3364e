"""What the cases of metering.py share: rows of the table, waveforms, and workers that run one tool each."""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, Wave

GREENTRAIN: Final = "greentrain"
CODECARBON: Final = "codecarbon"
ZEUS: Final = "zeus"
TOOLS: Final = (GREENTRAIN, CODECARBON, ZEUS)
WORKER: Final = Path(__file__).with_name("metering_worker.py")

SQUARE: Final = (Wave(low_w=120, high_w=420, period_s=0.73, duty=0.45),)
"""A training step with a pause for data: 120/420 W, high for 45 % of 0.73 s."""
TWO_SQUARES: Final = (
    Wave(low_w=80, high_w=240, period_s=0.73, duty=0.45),
    Wave(low_w=40, high_w=180, period_s=0.31, duty=0.45),
)
"""Steps and, beside them, something faster: the periods 0.73 s and 0.31 s never meet."""
CONSTANT: Final = (Wave(low_w=300),)

OUT_OF_REACH: Final = "and out of reach"

Value = float | str | None
"""A figure, or words where there is none; None: the tool has no such function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    case: str
    what: str
    unit: str
    values: Mapping[str, Value]
    """By tool."""
    bar: float | None = None
    """Largest absolute value that GreenTrain may show; None: reported without a bar."""
    one_sided: bool = False
    """Only a value above the bar misses it, not one below zero."""
    least: float | None = None
    """The least that anybody could show, where that is known."""

    @property
    def verdict(self) -> str:
        """PASS or MISS, and whether the bar is out of everybody's reach; empty without a bar."""
        if self.bar is None:
            return ""
        ours = self.values.get(GREENTRAIN)
        if not isinstance(ours, (int, float)):
            return "MISS"
        if (ours if self.one_sided else abs(ours)) <= self.bar:
            return "PASS"
        return "MISS" if self.least is None or self.least <= self.bar else f"MISS, {OUT_OF_REACH}"

    def ratio(self, tool: str) -> float | None:
        """Return the peer's figure over ours, both without sign."""
        ours, theirs = self.values.get(GREENTRAIN), self.values.get(tool)
        if not isinstance(ours, (int, float)) or not isinstance(theirs, (int, float)) or not ours:
            return None
        return abs(theirs) / abs(ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a case gets: how long it may take, and where the compiled driver is."""

    quick: bool
    library: Path
    scratch: Path
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    begun: dict[str, Callable[[], Value]] = field(default_factory=dict)
    """What was started before the first case; each call ends it and returns its figure."""

    def pick(self, full: float, quick: float) -> float:
        """Return one of two figures."""
        return quick if self.quick else full

    def driver(self, gpus: Sequence[FakeGpu] | int) -> FakeDriver:
        """Return a fake driver with these GPUs."""
        return FakeDriver(gpus, library=self.library)


def installed(tool: str) -> bool:
    """Return True if a tool can be imported here."""
    return find_spec(tool) is not None


class Worker:
    """One tool in a process of its own. Talks JSON lines: says it is ready, waits for a start time, answers.

    Args:
        task: What to do: a function of metering_worker.py.
        tool: One of TOOLS.
        driver: The fake driver it finds; None: no NVIDIA driver at all.
        environ: More environment variables.
        settings: Arguments of the task.
    """

    def __init__(
        self,
        task: str,
        tool: str,
        driver: FakeDriver | None,
        *,
        scratch: Path,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.tool = tool
        self.folder = Path(tempfile.mkdtemp(prefix=f"{task}-{tool}-", dir=scratch))
        env = dict(os.environ) if driver is None else driver.env()
        env |= {"GREENTRAIN_CLAIMS_DIR": str(self.folder / "claims"), "PYTHONWARNINGS": "ignore"}
        env |= environ or {}
        self._errors = (self.folder / "stderr").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), task, tool, json.dumps(settings)],
            env=env,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def say(self) -> dict[str, Any] | None:
        """Return the worker's next words; None if it ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                words: dict[str, Any] = json.loads(line)
                return words
        return None

    def go(self, start_s: float) -> None:
        """Let it begin at a monotonic time (s)."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{start_s!r}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def result(self) -> dict[str, Any]:
        """Return the answer; its key ``error`` says why there is none."""
        words = self.say()
        self.end()
        return words if words is not None else {"error": self.last_error()}

    def last_error(self) -> str:
        """Return the type of the exception that ended the worker, else its exit status."""
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line and not line[0].isspace()]
        name = lines[-1].split(":")[0].rsplit(".")[-1] if lines else ""
        return f"crash: {name}" if name.isidentifier() else f"exit {self.process.returncode}"

    def end(self) -> None:
        """Wait for the process and close its pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def run_together(workers: Sequence[Worker], lead_s: float = 0.2) -> list[dict[str, Any]]:
    """Wait until all workers are ready, let them begin at one moment and return their answers."""
    ready = [worker.say() is not None for worker in workers]
    start_s = time.monotonic() + lead_s
    for worker, is_ready in zip(workers, ready, strict=True):
        if is_ready:
            worker.go(start_s)
    return [worker.result() for worker in workers]


def error_percent(found: float, truth: float) -> float:
    """Return the signed error (%)."""
    return 100.0 * (found / truth - 1.0)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value that a share of all does not exceed."""
    listed = sorted(values)
    return listed[min(len(listed) - 1, math.ceil(share * len(listed)) - 1)]


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))


def values_of(make: Callable[[str], Value], tools: Sequence[str] = TOOLS) -> dict[str, Value]:
    """Return a figure a tool; ``not installed`` where it is not."""
    return {tool: make(tool) if installed(tool) else "not installed" for tool in tools}
