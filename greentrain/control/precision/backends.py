"""Who multiplies in 8 and 4 bits: our own product over torch's, Transformer Engine or torchao.

A backend is stateless for the run: its scales come from the values of each step (see ``fp8.py``), so that a gear can
be left and entered at any step, on any rank, with nothing to save.
"""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greentrain.control.precision.fp8 import Gemm, fp8_linear
from greentrain.errors import ConfigError

ORDER: Final = ("scaled_mm", "transformer_engine", "torchao")
"""What ``auto`` tries, one after the other; backwards, and without ``scaled_mm``, what has a scale for each block."""


class Format(NamedTuple):
    """What a scaling of FP8 or a gear needs."""

    label: str
    capability: tuple[int, int]
    """Oldest NVIDIA compute capability that multiplies it (docs.nvidia.com/cuda/cublas, cublasLtMatmul, 2026-11-21)."""
    chips: str
    sides: int = 16
    """Inputs and outputs of a layer are multiples of this (PyTorch's aten/src/ATen/native/cuda/ScaledBlas.cpp,
    2026-11-21; blocks as torchao's kernels check, 0.18.0)."""
    block: int = 0
    """Elements along what is summed that share a scale; 0: there are no blocks, and so no emulation is needed."""
    remedy: str = "drop fp8 from precision.gears"


FORMATS: Final = {
    "tensorwise": Format("FP8", (8, 9), "Ada"),
    "rowwise": Format("FP8", (8, 9), "Ada"),
    "blockwise": Format("FP8 in blocks", (9, 0), "Hopper", 128, 128, "set precision.scaling to tensorwise"),
    "mxfp8": Format("MXFP8", (10, 0), "Blackwell", 32, 32, "drop mxfp8 from precision.gears"),
    "nvfp4": Format("NVFP4", (10, 0), "Blackwell", 128, 16, "drop nvfp4 from precision.gears"),
}
TOLERANCE: Final = 0.3
"""Largest relative error of the trial: rounding makes 0.04 to 0.07 on its values, a wrong layout or scale about 1."""


class Fp8Backend(Protocol):
    """Computes a linear layer in FP8."""

    @property
    def name(self) -> str:
        """Name as in the configuration."""

    @property
    def reason(self) -> str:
        """Why it was picked, for people."""

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Return ``x W^T + b``, differentiable once, in autocast's dtype or else in that of x.

        Args:
            layer: Layer whose Parameters are used as they are.
            x: (..., in_features).
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledMm:
    """The product of ``fp8.py``."""

    name: ClassVar[str] = "scaled_mm"
    reason: str
    scaling: str
    gemm: Gemm

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Return ``x W^T + b``; the bias is added in the dtype of the result."""
        y = fp8_linear(x, layer.weight, self.scaling, self.gemm)
        return y if layer.bias is None else y + layer.bias.to(y.dtype)


def choose_backend(name: str, device: torch.device, scaling: str) -> Fp8Backend:
    """Return the backend of that name, or the first that works on the device, after trying it there.

    Args:
        name: ``auto`` or one of ORDER.
        device: The device on which the model runs.
        scaling: ``tensorwise``, ``rowwise`` or ``blockwise`` for FP8; ``mxfp8`` or ``nvfp4`` for these gears.

    Raises:
        ConfigError: None works; every one that was tried is named with its reason.
    """
    form = FORMATS[scaling]
    _check_capability(device, form)
    tried: list[str] = []
    for candidate in (ORDER[:0:-1] if form.block else ORDER) if name == "auto" else (name,):
        for build in _candidates(candidate, device, scaling):
            try:
                backend = build(f"; passed over: {'; '.join(tried)}" if tried else "")
                trial(backend, device)
            except Exception as error:
                why = f"{candidate}: {_first_line(error)}"
                tried += [] if why in tried else [why]
            else:
                return backend
    remedy = form.remedy if name == "auto" else "set precision.backend to auto"
    raise ConfigError(f"{form.label} does not run on {device} (precision.backend {name}): {'; '.join(tried)}; {remedy}")


def _check_capability(device: torch.device, form: Format) -> None:
    nvidia = device.type == "cuda" and torch.version.cuda is not None and torch.cuda.is_available()
    capability = torch.cuda.get_device_capability(device) if nvidia else None
    if capability >= form.capability if capability else not form.block or device.type == "cpu":
        return  # FP8 without blocks may run elsewhere, too: the trial tells
    needs = f"{form.label} needs compute capability {'.'.join(map(str, form.capability))} or newer ({form.chips})"
    has = f"{torch.cuda.get_device_name(device)} is {'.'.join(map(str, capability))}" if capability else ""
    raise ConfigError(
        f"{needs}{', or a CPU to emulate it' if form.block else ''}; {has or f'this is {device}'}: {form.remedy}"
    )


def _candidates(name: str, device: torch.device, scaling: str) -> Iterator[Callable[[str], Fp8Backend]]:
    """Yield what builds a backend, given what to add to its reason. Optional packages are imported by the build."""
    if name == "scaled_mm":
        if FORMATS[scaling].block:
            raise ConfigError(
                f"precision.backend is 'scaled_mm', whose scales are of a tensor or a row, and {FORMATS[scaling].label}"
                " has them for blocks: set precision.backend to auto"
            )
        gemm = Gemm.on(device.type)
        calls = {True: "torch.nn.functional.scaled_mm", False: "torch._scaled_mm"}
        for public in (True, False) if gemm.public else (False,):
            yield lambda passed, public=public: ScaledMm(  # type: ignore[misc]
                reason=f"{calls[public]} of torch {torch.__version__} works on {device.type}{passed}",
                scaling=scaling,
                gemm=gemm._replace(public=public),
            )
    elif name in ORDER:

        def build(passed: str) -> Fp8Backend:
            if name == "torchao" and FORMATS[scaling].block:
                from greentrain.control.precision.blocks import open_blocks

                return open_blocks(device, scaling, passed)
            if name == "torchao":
                from greentrain.control.precision.ao import open_ao

                return open_ao(device, scaling, passed)
            from greentrain.control.precision.te import open_te

            return open_te(device, scaling, passed)

        yield build
    else:
        raise ConfigError(f"precision.backend is {name!r}; known: auto, {', '.join(ORDER)}")


def trial(backend: Fp8Backend, device: torch.device) -> None:
    """Run a small layer forward and backward as training will, and compare. Draws no random number.

    Args:
        backend: Backend to try.
        device: Device to try it on, with 24 rows, which is no multiple of 16, and as few columns as blocks allow.

    Raises:
        Exception: Whatever it raises, or ArithmeticError if a result is far off.
    """
    wide, high = (128, 256) if FORMATS[getattr(backend, "how", "tensorwise")].block else (32, 48)
    layer = nn.Linear(wide, high, device="meta").to_empty(device=device)
    draw = torch.Generator().manual_seed(0)  # not the run's own
    shapes = ((24, wide), (high, wide), (24, high))
    x, weight, grad = (torch.randn(shape, generator=draw).to(device) for shape in shapes)
    x.requires_grad_()
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(weight[:, 0])
        leaves = (x, layer.weight, layer.bias)
        exact = F.linear(*leaves)
        expected = [exact, *torch.autograd.grad(exact, leaves, grad)]
        with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
            y = backend.linear(layer, x)
        results = [y, *torch.autograd.grad(y, leaves, grad.to(y.dtype))]
    for result, right in zip(results, expected, strict=True):
        error = float((result.detach().float() - right.detach()).norm() / right.detach().norm())
        if not error <= TOLERANCE:
            raise ArithmeticError(f"a product of the trial is off by {error:.2g} of its norm; at most {TOLERANCE:g}")


def slower_compiled(
    backend: Fp8Backend, device: torch.device, width: int = 4096, clock: Callable[[], float] = time.perf_counter
) -> str:
    """Compile a layer, and say where FP8 does not compile or takes longer than BF16. Draws no random number.

    Args:
        backend: Backend that works on the device.
        device: Device of the model.
        width: Width of layer and batch: products count there, and not launches.
        clock: Time (s).

    Returns:
        What is wrong, for people; empty where nothing is.
    """
    layer = nn.Linear(width, width, bias=False, device="meta").to_empty(device=device)
    x = torch.randn(width, width, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    layer.weight.data.copy_(x.data)

    def step(call: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False), torch.enable_grad():
            y = call(x)
        return torch.autograd.grad(y, (x, layer.weight), y.detach())[0][0, 0]

    def spent_s(way: Callable[[Tensor], Tensor]) -> float:
        call = torch.compile(way)
        float(step(call))  # compiles; to read a number waits for the device
        begun_s = clock()
        float(sum(step(call) for _ in range(10)))
        return clock() - begun_s

    try:
        ratio = 1 / spent_s(layer.forward) * spent_s(functools.partial(backend.linear, layer))
    except Exception as error:
        return f"FP8 by {backend.name} does not compile ({_first_line(error)})"
    return "" if ratio < 1 else f"compiled, FP8 by {backend.name} takes {ratio:.2g} times as long as BF16"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
