"""What the cases of gears.py share: rows of the table, a training step with and without gears, interleaved timing."""

import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from greentrain.config.schema import GreenConfig
from greentrain.control.gears import Gears
from recipes.common.model import GPT, Size

TORCHAO: Final = "torchao"
BITSANDBYTES: Final = "bitsandbytes"
TRANSFORMER_ENGINE: Final = "transformer_engine"
WORKER: Final = Path(__file__).with_name("gears_worker.py")

RECIPE: Final = Size(vocab=2048)
"""The recipes' GPT: 10.5 M parameters, context 128."""
SMALL: Final = Size(vocab=512, width=128, layers=3, heads=4, context=64)
"""0.7 M parameters, for what would drown in the noise of a long step."""
TINY: Final = Size(vocab=512, width=64, layers=2, heads=2, context=64)
"""For --quick, and for FP16, which has no fast product on a CPU: the recipes' model takes 10 s a step there."""
TOKENS: Final = 1024
"""A step's, context times batch."""
DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""Autocast's dtype by gear; FP32 has none."""

Value = float | str | None
"""A figure, or words where there is none; None: the question does not arise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    case: str
    what: str
    unit: str
    ours: Value
    plain: Value = None
    """The same without GreenTrain: the limit."""
    peers: Mapping[str, Value] = field(default_factory=dict)
    """What others need for the same, by name."""
    bar: float | None = None
    """Largest ours / plain, or, without ``plain``, largest ours; None: reported without a bar."""

    @property
    def ratio(self) -> float | None:
        """Ours over plain; None where one of them is no figure."""
        if isinstance(self.ours, str | None) or isinstance(self.plain, str | None) or not self.plain:
            return None
        return self.ours / self.plain

    @property
    def verdict(self) -> str:
        """PASS or MISS; empty without a bar; n/a where nothing was measured."""
        if self.bar is None:
            return ""
        judged = self.ours if self.plain is None else self.ratio
        if isinstance(judged, str | None):
            return "n/a"
        return "PASS" if judged <= self.bar else "MISS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a case gets."""

    quick: bool
    scratch: Path
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)

    def pick(self, full: int, quick: int) -> int:
        """Return one of two numbers."""
        return quick if self.quick else full

    @property
    def size(self) -> Size:
        """Size of the model."""
        return TINY if self.quick else RECIPE


class Training:
    """One model, its optimizer and one batch: steps are taken plain or in a gear on the very same memory.

    Two models would differ by where their tensors lie, by as much as what is measured here.

    Args:
        size: Of the model.
        gears: The gear to compare, and those it might shift to.
        scaled: With a GradScaler.
        batch: Blocks of ``size.context`` tokens; None: TOKENS in all.
        scaling: Of FP8.
    """

    def __init__(
        self,
        size: Size,
        gears: Sequence[str],
        *,
        scaled: bool = False,
        batch: int | None = None,
        scaling: str = "tensorwise",
    ) -> None:
        torch.manual_seed(0)
        self.model = GPT(size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.ids = torch.randint(size.vocab, (batch or TOKENS // size.context, size.context))
        self.scaler = torch.amp.GradScaler("cpu") if scaled else None
        precision = {"gears": list(gears), "min_features": 64, "scaling": scaling}
        self._config = GreenConfig.load({"precision": precision})

    @contextlib.contextmanager
    def geared(self) -> Iterator[Gears]:
        """Give the model its gears and the optimizer its hooks, as ``GreenSession.watch`` does."""
        gears = Gears(self._config, lambda *_: None)
        gears.attach(self.model, scaler=self.scaler)
        gears.bind(self.optimizer)
        try:
            yield gears
        finally:
            gears.detach()

    def step_s(self, gear: str | None = None) -> float:
        """Take a step and return its CPU time (s).

        Args:
            gear: Of torch's own autocast; None: whatever the model does by itself.
        """
        context: Any = contextlib.nullcontext()
        if gear in DTYPES:
            context = torch.autocast("cpu", dtype=DTYPES[gear])
        before_s = time.process_time()
        with context:
            loss: Tensor = self.model(self.ids, self.ids)
        if self.scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        return time.process_time() - before_s

    def geared_step_s(self) -> float:
        """Take a step in the first gear and return its CPU time (s), without that of attaching."""
        with self.geared():
            return self.step_s()


def fastest(calls: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Return the smallest figure of each call; they take turns, every other round the other way round.

    Args:
        calls: Functions that return a time; their first calls are not counted.
        repeats: How often each is called.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()  # both sides alike; a collection would fall into one of them
    try:
        for turn in range(repeats + 1):
            for name in list(calls)[:: 1 if turn % 2 else -1]:
                seconds = calls[name]()
                if turn:
                    found[name].append(seconds)
    finally:
        gc.enable()
    return {name: min(values) for name, values in found.items()}


def in_worker(
    task: str, timeout_s: float, *, environ: Mapping[str, str] | None = None, **settings: Any
) -> dict[str, Any]:
    """Run a task of gears_worker.py in a process of its own.

    Args:
        task: Its name.
        timeout_s: Longest time it may take.
        environ: More environment variables.
        settings: Arguments of the task.

    Returns:
        Its last words; the key ``error`` says why there are none.
    """
    command = [sys.executable, str(WORKER), task, json.dumps(settings)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=os.environ | (environ or {})
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        return _last_words(said) or {"error": f"n/a: more than {timeout_s:.0f} s"}
    lines = [line for line in done.stderr.splitlines() if line and not line[0].isspace()]
    return _last_words(done.stdout) or {"error": f"n/a: {lines[-1][:100] if lines else f'exit {done.returncode}'}"}


def _last_words(said: str) -> dict[str, Any] | None:
    found = [line for line in said.splitlines() if line.startswith("{") and line.endswith("}")]
    words: dict[str, Any] | None = json.loads(found[-1]) if found else None
    return words


def figure(words: Mapping[str, Any], key: str, factor: float = 1.0) -> Value:
    """Return a figure of a worker's words, or the reason why it is not there."""
    return str(words["error"]) if "error" in words else float(words[key]) * factor
