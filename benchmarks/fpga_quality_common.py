"""What the cases of fpga_quality.py share: the ways of computing a model that are compared, and how figures look."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from torch import nn

from benchmarks.fpga_quality_figures import Interval
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Ids, Result
from greentrain.fpga_backend.compiler import SmoothQuant
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.compiler.finish import Head
from greentrain.fpga_backend.devices.torch_device import TorchDevice
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.program import ActivationBits, Activations, Precision
from greentrain.fpga_backend.quality.flips import Floats

Run = Callable[[Batch], Result]
"""Computes one batch: ``Engine.run`` of the emulator, or a device's submit and the future's result."""

BF16: Final = "BF16, torch (the floor)"
W8A16: Final = "W8A16"
W4A16: Final = "W4A16"
PER_TOKEN: Final = "W8A8 per token (ours)"
TWO_DIGITS: Final = "W8A8 with 16-bit activations (W8A16, exact)"
SMOOTH: Final = "W8A8 per token, SmoothQuant"
PER_TENSOR: Final = "W8A8 per tensor (published rule)"
CALIBRATION: Final = 256
"""Sequences that SmoothQuant sees: of the training part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a case gets."""

    quick: bool
    snippets: Path
    """The rated snippets: a folder or an archive."""
    lm: Path | None
    """A GGUF file with the weights of a causal language model."""
    say: Callable[[str], None]
    keep: Path | None = None
    """Where trainings are written as they end, and read from by a later run."""
    seeds: int | None = None
    """Of the trainings; None: as many as the case takes."""

    def pick(self, full: int, quick: int) -> int:
        """Return one of two numbers."""
        return quick if self.quick else full


def ways(model: nn.Module, *, max_tokens: int, head: Head, calibration: Sequence[Ids]) -> Iterator[tuple[str, Run]]:
    """Yield names and runs of a model's compilations, one after the other; a run is closed when the next is asked for.

    W8A8 is computed by the emulator, which is exact; weight-only precisions by torch in FP32 on rounded weights.
    """
    seen = [Batch.of(calibration[i : i + 32]) for i in range(0, min(len(calibration), CALIBRATION), 32)]

    def compiled(
        precision: Precision, activations: Activations = "token", smooth: bool = False, bits: ActivationBits = 8
    ) -> Artifact:
        return compile_model(
            model,
            max_tokens=max_tokens,
            head=head,
            precision=precision,
            activations=activations,
            activation_bits=bits,
            smooth=SmoothQuant(batches=seen) if smooth else None,
        )

    weights: Sequence[tuple[str, Precision]] = ((W8A16, "w8a16"), (W4A16, "w4a16"))
    for name, precision in weights:
        device = TorchDevice("cpu", "fp32")
        try:
            yield name, _submitted(device, compiled(precision))
        finally:
            device.close()
    yield PER_TOKEN, Engine(compiled("w8a8")).run
    yield TWO_DIGITS, Engine(compiled("w8a8", bits=16)).run
    yield SMOOTH, Engine(compiled("w8a8", smooth=True)).run
    yield PER_TENSOR, Engine(compiled("w8a8", activations="tensor")).run


def _submitted(device: TorchDevice, artifact: Artifact) -> Run:
    handle = device.load(artifact)
    return lambda batch: device.submit(handle, batch).result()


def scores(run: Run, sequences: Sequence[Ids], *, size: int = 32, label: int = 0) -> Floats:
    """Return a score a sequence [sequences], computed in batches of ``size`` in the order given.

    Args:
        run: Function that runs a program which ends in a score head.
        sequences: Token ids.
        size: Sequences a batch. It matters only where a score depends on its company.
        label: Number of the score among those of the head.

    Raises:
        ValueError: The program has no such score.
        OffloadError: The batch does not fit, or the device failed.
    """
    found = []
    for start in range(0, len(sequences), size):
        made = run(Batch.of(sequences[start : start + size])).scores
        if made is None or label >= made.shape[1]:
            raise ValueError(f"the program has no score {label}: compile the model with a score head")
        found.append(made[:, label].astype(np.float64))
    return np.concatenate(found) if found else np.empty(0)


def logprobs(
    run: Run, sequences: Sequence[Ids], *, prompt_tokens: Sequence[int] | None = None, size: int = 8
) -> Floats:
    """Return the log-probabilities of all tokens behind the prompts, sequence after sequence [tokens].

    Args:
        run: Function that runs a program which ends in log-probabilities.
        sequences: Token ids.
        prompt_tokens: Leading tokens of each sequence that are not asked about; None: the first.
        size: Sequences a batch.

    Raises:
        ValueError: The program gives no log-probabilities.
        OffloadError: The batch does not fit, or the device failed.
    """
    found: list[Floats] = []
    for start in range(0, len(sequences), size):
        part = slice(start, start + size)
        prompts = None if prompt_tokens is None else prompt_tokens[part]
        made = run(Batch.of(sequences[part], prompt_tokens=prompts)).logprobs
        if made is None:
            raise ValueError("the program gives no log-probabilities: compile the model with head='logprob'")
        found += [row.astype(np.float64) for row in made]
    return np.concatenate(found) if found else np.empty(0)


def percent(rate: float, span: Interval | None = None) -> str:
    """Return a rate of 0 to 1 with its interval, as percent."""
    text = figure(100 * rate)
    return text if span is None else f"{text} [{figure(100 * span.low)}, {figure(100 * span.high)}]"


def figure(value: float) -> str:
    """Return a number in three digits."""
    return "0" if value == 0 else f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"
