"""Does the program compute what the model computes? In floating point, on random tokens, with random weights."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler.floating import FloatEngine
from greentrain.fpga_backend.compiler.trace import Call
from greentrain.fpga_backend.errors import UnsupportedModelError
from greentrain.fpga_backend.program import Program

SEED = 20261122
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 55)
"""Tokens of the sequences that are compared, as far as the model takes them."""
TOLERANCE = 1e-3
"""Largest difference, in units of the spread of the model's own results. Reordered sums differ by about 1e-5."""


def verify(
    model: nn.Module, call: Call, program: Program, tensors: Mapping[str, torch.Tensor], avoid: set[int]
) -> None:
    """Compare a program with the model from which it was made.

    Args:
        model: In evaluation mode, binary32, on the CPU, with the weights that ``tensors`` hold.
        call: How to call it.
        program: Its lowering.
        tensors: In binary32.
        avoid: Token ids that mean something to the model: padding.

    Raises:
        UnsupportedModelError: They differ: the lowering is wrong, or the model has a state.
    """
    batch = _batch(program, avoid)
    got = FloatEngine(program, tensors).run(batch)
    mine = got.scores if got.scores is not None else np.concatenate(got.logprobs or ())
    theirs = np.concatenate(_model(model, call, program, batch))
    if mine.shape != theirs.shape:
        raise UnsupportedModelError(
            f"{type(model).__name__} returns {list(theirs.shape)} where its program gives {list(mine.shape)}: "
            "it cannot be compiled; please report its class"
        )
    spread = float(np.ptp(theirs)) if theirs.size else 0.0
    worst = float(np.abs(mine - theirs).max(initial=0.0))
    if not worst <= TOLERANCE * spread + 1e-6:
        raise UnsupportedModelError(
            f"the program of {type(model).__name__} differs from the model by {worst:.3g} where its results spread "
            f"over {spread:.3g} (allowed: {TOLERANCE * spread:.3g}): something in it is not what it looks like, "
            "so it is not compiled; please report its class"
        )


def _batch(program: Program, avoid: set[int]) -> Batch:
    random = np.random.default_rng(SEED)
    allowed = np.setdiff1d(np.arange(program.vocabulary), sorted(avoid))
    lengths = [n for n in LENGTHS if n <= program.max_tokens]
    ids = [random.choice(allowed, n) for n in lengths]
    prompts = [max(1, n // 2) for n in lengths]
    if len(ids[-1]) > 2 and program.causal:  # one more behind the same prompt, which is then shared
        ids.append(np.concatenate([ids[-1][: prompts[-1]], random.choice(allowed, 2)])[: program.max_tokens])
        prompts.append(prompts[-1])
    types = [random.integers(0, max(program.types, 1), len(row)) for row in ids]
    if len(ids) > len(lengths):
        types[-1][: prompts[-1]] = types[-2][: prompts[-1]]
    return Batch.of(ids, types=types, prompt_tokens=prompts)


@torch.inference_mode()
def _model(
    model: nn.Module, call: Call, program: Program, batch: Batch
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    found = []
    for i, row in enumerate(batch.ids):
        ids = torch.from_numpy(row).long()[None]
        types = torch.from_numpy(batch.types[i]).long()[None] if batch.types is not None else None
        output = first(model(**call.arguments(ids, types)))
        if program.labels:
            found.append(output.reshape(1, -1).numpy())
        else:
            start = max(batch.prompt_tokens[i], 1) if batch.prompt_tokens is not None else 1
            logs = output[0].log_softmax(-1)
            found.append(logs[torch.arange(start - 1, len(row) - 1), ids[0, start:]].numpy())
    return found


def first(output: object) -> torch.Tensor:
    """Return the first tensor of what a model returns: itself, or that of a tuple, a dict or a Hugging Face output."""
    if isinstance(output, torch.Tensor):
        return output
    values = list(output.values()) if isinstance(output, Mapping) else list(output)  # type: ignore[call-overload]
    found: torch.Tensor = next(v for v in values if isinstance(v, torch.Tensor))
    return found
