"""One training of rlhf_overlap.py: GRPO by TRL on a small random policy, in one mode of offloading."""

import contextlib
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback

from benchmarks.paced_device import Paced
from greentrain import GreenSession
from greentrain.callbacks.transformers import GreenCallback
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import Handle, OffloadDevice
from greentrain.fpga_backend.devices.torch_device import TorchDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.ledger.totals import Totals
from greentrain.rlhf.engine import PassStats
from greentrain.rlhf.kinds import PassKind
from recipes.common.model import weights_of
from recipes.common.rl_parts import small
from recipes.trl.grpo_offload import config_of, engine_of, trainer_of

MODES: Final = ("sequential", "eager", "late", "stream")
HOME: Final = "home"
"""A mode without a card: the passes are computed where the training is, one after the other."""
WARM_STEPS: Final = 2
"""Not timed."""

Memory = dict[tuple[str, bytes, int], Result]
"""Results of single sequences by model, tokens and prompt: the same alone and in any batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of the training."""

    width: int = 256
    layers: int = 4
    new: int = 48
    """Tokens of the longest completion."""
    micro_batches: int = 4
    """Of four rollouts, a step."""
    steps: int = 10
    s_per_sequence: float = 0.02
    """Emulated time of a rollout in each of the two passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training took."""

    step_s: tuple[float, ...]
    """Of the timed steps."""
    steps: int
    passes: Mapping[PassKind, PassStats]
    totals: Totals
    weights: str
    """SHA-256 of all parameters."""
    parameters: int

    def phase_s(self, phase: str) -> float:
        """Return what a phase took, a step (s)."""
        return self.totals.phase_s.get(phase, 0.0) / self.steps

    def phase_j(self, phase: str) -> float | None:
        """Return what a phase used, a step (J); None where no device has a meter."""
        return self.totals.by_phase.get(phase, 0.0) / self.steps if self.totals.by_device else None

    @property
    def useful_j(self) -> float | None:
        """What a step used but for :attr:`wasted_j` (J)."""
        wasted_j = self.wasted_j
        return None if wasted_j is None else self.totals.energy_j / self.steps - wasted_j

    @property
    def wasted_j(self) -> float | None:
        """What the trainer used while it stood at a barrier, a step (J): the waited share of the passes' phases.

        None where no device has a meter.
        """
        if not self.totals.by_device:
            return None
        found = 0.0
        for kind, sums in self.passes.items():
            phase_s = self.totals.phase_s.get(str(kind), 0.0)
            if phase_s > 0:
                found += self.totals.by_phase.get(str(kind), 0.0) * min(1.0, sums.wait_s / phase_s)
        return found / self.steps


class Recalling(Emulator):
    """An emulator that computes a sequence once, and later recalls what it was: as if another machine computed.

    Args:
        memory: Of this and later devices.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory

    def submit(self, handle: Handle, batch: Batch, wait_s: float | None = None) -> Future[Result]:
        """Return what is known at once, and compute the rest. Raises as :meth:`Emulator.submit` does."""
        prompts = batch.prompt_tokens or (-1,) * len(batch.ids)
        keys = [(handle.digest, ids.tobytes(), prompt) for ids, prompt in zip(batch.ids, prompts, strict=True)]
        if all(key in self._memory for key in keys):
            known: Future[Result] = Future()
            known.set_result(Result.joined([self._memory[key] for key in keys]))
            return known
        future = super().submit(handle, batch, wait_s=wait_s)
        result = future.result()
        self._memory.update({key: result.some([i]) for i, key in enumerate(keys)})
        return future


def trained(mode: str, size: Size, folder: Path, memory: Memory | None = None, *, book_s: float = 10.0) -> Trained:
    """Train and return what it took; the same seed, so the same rollouts, each time.

    Args:
        mode: One of MODES, or HOME.
        size: Of models and training.
        folder: For the run's files.
        memory: For a device that sleeps for its emulated time, where it knows what to answer; without it, the
            emulator, which computes on this CPU.
        book_s: Length of the journal's intervals (s).
    """
    parts = small(size.new, 1.0, width=size.width, layers=size.layers)
    options = {
        "output_dir": str(folder / "checkpoints"),
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "gradient_accumulation_steps": size.micro_batches,
        "max_steps": size.steps,
        "learning_rate": 1e-3,
        "logging_steps": size.steps,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 7,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
    }
    clock = StepClock()
    sections = {"run": {"dir": str(folder), "name": mode, "report": False, "book_s": book_s}}
    home = TorchDevice() if mode == HOME else None
    with contextlib.closing(home or _device(size, memory)) as device, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        engine = engine_of(parts, device, sequential=mode in (HOME, "sequential"))
        green = GreenSession(sections, extra_meters=[device.meter])
        trainer = trainer_of(
            "grpo",
            parts,
            config_of("grpo", size.new, options),
            engine,
            "eager" if mode == HOME else mode,
            GreenCallback(green),
        )
        trainer.add_callback(clock)
        trainer.log = lambda logs, *args: None
        trainer.train()
        passes = dict(engine.stats())
    return Trained(
        step_s=clock.steps_s[WARM_STEPS:] if len(clock.steps_s) > WARM_STEPS else clock.steps_s,
        steps=size.steps,
        passes=passes,
        totals=green.totals(),
        weights=weights_of(parts.policy),
        parameters=sum(parameter.numel() for parameter in parts.policy.parameters()),
    )


def _device(size: Size, memory: Memory | None) -> OffloadDevice:
    return Emulator() if memory is None else Paced(Recalling(memory), s_per_sequence=size.s_per_sequence)


class StepClock(TrainerCallback):
    """Times steps, from end to end: generation, scoring and training."""

    def __init__(self) -> None:
        self.steps_s: tuple[float, ...] = ()
        self._last_s = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin."""
        self._last_s = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note how long the step took (s)."""
        now_s = time.perf_counter()
        self.steps_s = (*self.steps_s, now_s - self._last_s)
        self._last_s = now_s
