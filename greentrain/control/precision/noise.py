"""How much noise each gear puts into the gradient, measured while training runs.

Every so many steps, between two optimizer steps, a few samples of a training step are run again::

    reference   samples a and b together, FP32    g                    its norm
    gear        the same samples, in each gear    sigma = |g_gear - g|
    samples     a alone, b alone, BF16            |g_a - g_b|: what two samples differ by

on some of the layers' weights. The gear's sigma over that of BF16 is ``sigma_ratio``, 10 to 14 for FP8 on small GPTs.
Adam's second moment also holds the minibatch noise, and what it sees is

    gamma = sqrt((sigma_batch^2 + sigma_fp8^2) / (sigma_batch^2 + sigma_bf16^2))

with all three for as many samples. Rounding noise and minibatch noise shrink alike with the batch, so a large batch has
the same ratio: 1.004 with one sequence of such a GPT, 1.005 with 16. That leaves out the part of the rounding error
that is the same for all samples and does not average out: with 128 sequences the ratio was 1.012.

What differs from training on purpose: samples of one batch only, and dropout masks that are the same in every gear. On
a GPU the reference multiplies in TF32, whose rounding is an eighth of BF16's (10 against 7 bits of mantissa, NVIDIA
A100 whitepaper, v1.0) at a multiple of FP32's speed. ``|g_a - g_b|`` is so much larger than any rounding that BF16 is
precise enough for it.

Time: a probe that took t seconds is followed by so many steps without one that the share of all probes stays under
``max_share``. All ranks probe at the same step, each with its own samples, and all use the mean: rank 0 alone would
hang where a forward talks to the other ranks (SyncBatchNorm, expert parallelism), and the others would wait anyway.

All passes use the same weights, samples and dropout masks, and leave ``.grad`` alone.
The passes leave no trace: what training computes afterwards is bit-identical.
"""

import contextlib
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from greentrain.control.coordination import LEAD, RankZeroChannel, SyncSchedule, Words
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.layers import LayerPlan
from greentrain.control.precision.recorder import CallRecorder
from greentrain.types import Gear, Topology
from greentrain.utils.never_raise import warn
from greentrain.utils.topology import topology_from_process_group

_MISSING: Final = object()
_NOT_STATE: Final = frozenset(vars(nn.Module())) - {"training"}
"""What torch itself keeps in every module: hooks, other modules, and buffers, which are looked at by themselves."""


@contextlib.contextmanager
def rehearsal(model: nn.Module) -> Iterator[Callable[[int], None]]:
    """Run a block that calls a model between two training steps, uncompiled and with gradients enabled.

    Restored are the random numbers of torch, Python and numpy, buffers, and what modules hold in plain attributes:
    batch statistics, counters, queues, the states of torchmetrics. Not restored is what a forward writes anywhere else.

    Args:
        model: The inner module, in the mode it trains in.

    Yields:
        A function to call before each pass: it rewinds the state of the model and seeds all random numbers.
    """
    state = _State(model)
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    numpy: Any = sys.modules.get("numpy")
    python_random, numpy_random = random.getstate(), numpy.random.get_state() if numpy else None

    def rewind(seed: int) -> None:
        state.restore()
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        for device in devices:  # torch.manual_seed would seed the other devices too
            torch.cuda.default_generators[device].manual_seed(seed)

    try:
        with torch.random.fork_rng(devices, device_type="cuda"), torch.enable_grad(), _eager(), _same_dropout(model):
            yield rewind
    finally:
        state.restore()
        random.setstate(python_random)
        if numpy:
            numpy.random.set_state(numpy_random)


class _State:
    """What the modules of a model hold besides parameters, hooks and other modules."""

    def __init__(self, model: nn.Module) -> None:
        self._names: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        for module in model.modules():
            self._keep_names(vars(module))
            self._keep_names(module._buffers)
            for name, value in vars(module).items():
                if name in _NOT_STATE:
                    continue
                if type(value) is dict:
                    self._keep_names(value)
                elif type(value) is list:
                    self._lists.append((value, list(value)))
                    self._keep_tensors(value)

    def restore(self) -> None:
        for now, before in self._names:
            for name in now.keys() - before.keys() - _NOT_STATE:
                del now[name]
            for name, value in before.items():
                if now.get(name, _MISSING) is not value:
                    now[name] = value
        for items, before_items in self._lists:
            if len(items) != len(before_items) or any(a is not b for a, b in zip(items, before_items, strict=True)):
                items[:] = before_items
        for tensor, value in self._tensors.values():
            tensor.data.copy_(value)  # .data: to autograd, nothing has happened

    def _keep_names(self, names: dict[str, Any]) -> None:
        before = {name: value for name, value in names.items() if name not in _NOT_STATE}
        self._names.append((names, before))
        self._keep_tensors(before.values())

    def _keep_tensors(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor) and not value.requires_grad and not isinstance(value, nn.Parameter):
                self._tensors[id(value)] = value, value.clone()


def _eager() -> contextlib.AbstractContextManager[None]:
    """Ignore torch.compile. Where nothing has loaded dynamo nothing is compiled, and loading it takes seconds."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


def _same_dropout(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Keep attention to a kernel that takes every dtype: another one draws another dropout mask from the same seed."""
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    if not on_gpu or not any(_drops(module) for module in model.modules()):
        return contextlib.nullcontext()
    # No flash attention in FP32: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, torch 2.13, 2026-11-21
    kernel: contextlib.AbstractContextManager[None] = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return kernel


def _drops(module: nn.Module) -> bool:
    rates = [value for name, value in vars(module).items() if "drop" in name or name == "p"]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


ELEMENTS: Final = 2**25
"""Weights that are probed: 128 MiB a gradient, of which two are kept at once (own choice) ..."""
SHARE: Final = 0.02
"""... or this share of the chosen layers', where one layer alone is larger: 16 bytes a weight are training's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSpread:
    """Squared norms of differences of gradients, over the probed weights."""

    by_gear: Mapping[Gear, float]
    """Squared norm of the difference between a gear's gradient and that of FP32, by gear."""
    samples: float
    """The same between one choice of samples and the expected gradient; NaN where a batch of one does not tell."""
    norm: float
    """Squared norm of the FP32 gradient itself."""


def compare_gradients(box: GearBox, recorder: CallRecorder, low: Sequence[Gear], samples: int) -> GradientSpread:
    """Run the passes, and return how far the gradients of a model's gears are apart.

    Args:
        box: The gears, attached to the model.
        recorder: The recorder that has recorded a call of that model.
        low: Gears to compare with FP32.
        samples: Number of recorded samples to use; an odd one is left out.

    Raises:
        RuntimeError: The recorded call cannot be made again, or nothing is trained.
    """
    assert box.model is not None
    model, weights = box.model, probed_weights(box.model, box.plan)
    half = samples // 2
    both = range(2 * half or 1)
    apart = together = math.nan
    with rehearsal(model) as rewind:

        def gradient(gear: Gear, rows: range, seed: int = 0) -> list[Tensor | None]:
            rewind(seed)  # the same dropout masks in every gear
            return _gradient(box, recorder, gear, rows, weights)

        if half:
            a, b = gradient(Gear.BF16, range(half), 1), gradient(Gear.BF16, range(half, 2 * half), 2)
            apart = _square(a, b)
            together = 2 * (_square(a) + _square(b)) - apart
            del a, b  # at most two gradients are in memory at a time
        reference = gradient(Gear.FP32, both)
        norm = _square(reference)
        by_gear = {gear: _square(gradient(gear, both), reference) for gear in low}
    # A loss that is a mean over samples is half the sum of the two halves' losses, one that is a sum is their sum.
    factor = 1.0 if norm > 0.75**2 * together else 0.5
    return GradientSpread(by_gear=by_gear, samples=factor**2 * apart, norm=norm)


def _gradient(
    box: GearBox, recorder: CallRecorder, gear: Gear, rows: range, weights: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradient of some recorded samples in a gear; None for a weight that they do not use."""
    replay = recorder.call(rows)
    assert replay is not None and box.model is not None
    device = weights[0].device.type
    with box.at(gear), _tf32(device):
        with box.context(device):  # not around backward, where autocast would cast what it must not
            outputs, sent_back, factor = replay.run(box.model)
        found = torch.autograd.grad(outputs, weights, sent_back, allow_unused=True)
    if all(gradient is None for gradient in found):
        raise RuntimeError(
            "no gradient reaches the probed weights alone; activation checkpointing must be torch's with"
            " use_reentrant=False"
        )
    if factor == 1.0:
        return list(found)
    return [None if gradient is None else gradient / (factor or math.nan) for gradient in found]


def probed_weights(model: nn.Module, plan: Sequence[LayerPlan]) -> list[Tensor]:
    """Return the weights whose gradients are compared.

    Of the layers that run in FP8, spread evenly over the model, as many as ELEMENTS or SHARE allow, at least one. Where
    they are frozen, as under LoRA, their noise is seen in what is trained.

    Raises:
        RuntimeError: Nothing is trained.
    """
    modules: list[Any] = [model.get_submodule(layer.name) for layer in plan if layer.chosen]
    chosen: list[Tensor] = []
    for module in modules:  # experts have several
        chosen += [module.weight] if hasattr(module, "weight") else [p for p in module.parameters(False) if p.dim() > 1]
    trained = [p for p in chosen if p.requires_grad] or [p for p in model.parameters() if p.requires_grad]
    # Gradients pass through a tensor's hooks, and those of the user are for training.
    trained = [p for p in trained if not p._backward_hooks]
    if not trained:
        raise RuntimeError("no weight of the model is trained")
    budget = max(ELEMENTS, SHARE * sum(p.numel() for p in trained))
    picked: list[int] = []
    # Multiples of the golden ratio are spread evenly however many are taken, and never hit one kind of layer only.
    for index in sorted(range(len(trained)), key=lambda i: i * (math.sqrt(5) - 1) / 2 % 1):
        budget -= trained[index].numel()
        if budget < 0 and picked:
            break
        picked.append(index)
    return [trained[index] for index in sorted(picked)]


def _square(gradients: Sequence[Tensor | None], others: Sequence[Tensor | None] | None = None) -> float:
    """Return the squared norm of gradients, or of their differences from others. Waits for the device."""
    pairs = zip(gradients, others or [None] * len(gradients), strict=True)
    parts = [
        (g if other is None else g - other).square().sum(dtype=torch.float64) for g, other in pairs if g is not None
    ]
    return float(torch.stack([part.to(parts[0].device) for part in parts]).sum()) if parts else math.nan


@contextlib.contextmanager
def _tf32(device: str) -> Iterator[None]:
    """Let FP32 products of a GPU run in TF32."""
    matmul: Any = torch.backends.cuda.matmul
    before = getattr(matmul, "fp32_precision", None)  # torch 2.9 and newer; the older flag may then refuse to be read
    if device != "cuda" or (matmul.allow_tf32 if before is None else before == "tf32"):
        yield
        return
    matmul.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32 = False
        if before is not None:
            matmul.fp32_precision = before


WARM_UP: Final = 10
"""Steps of this process before the first probe: compilers and allocators are through (own choice)."""
SAMPLES: Final = 2
SAMPLES_WITH_BATCH_NORM: Final = 16
"""Two samples normalised over each other are +1 and -1, whatever they were."""
PASSES: Final = 8.0
"""What a first probe is expected to take, in training passes of each sample: two samples took 3.9 steps of 4 sequences
and 1.1 of 16, on CPU (GPT of width 128, 4 layers, 64 tokens; torch 2.13) ..."""
LEAST: Final = 1.0
"""... but no less than this many steps."""
PATIENCE: Final = 20
"""Steps in which a recording may fail before probing ends (own choice)."""
LOW: Final[tuple[Gear, ...]] = (Gear.BF16, Gear.FP16, Gear.FP8, Gear.MXFP8, Gear.NVFP4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The gradient noise of the gears, smoothed over probes; norms over the probed weights, for a few samples."""

    step: int
    """Optimizer steps done at the last probe."""
    sigma: Mapping[Gear, float]
    """Norm of the deviation of a gear's gradient from that of FP32, by gear."""
    sigma_batch: float | None
    """Norm of the deviation from the expected gradient that the choice of samples makes; None: not known."""
    grad_norm: float
    """Norm of the FP32 gradient."""
    cost_s: float
    """Wall time of the last probe (s), mean over ranks."""

    @property
    def riskiest(self) -> Gear:
        """Gear of the fewest bits that was measured, FP8 before that."""
        return max((gear for gear in self.sigma if gear.is_low), key=list(Gear).index, default=Gear.FP8)

    @property
    def sigma_ratio(self) -> float | None:
        """Noise of the riskiest gear over that of BF16; None where one is not known."""
        low, bf16 = self.sigma.get(self.riskiest), self.sigma.get(Gear.BF16)
        return low / bf16 if low is not None and bf16 else None

    @property
    def gamma(self) -> float:
        """:meth:`gamma_in` the riskiest gear."""
        return self.gamma_in(self.riskiest)

    def gamma_in(self, gear: Gear) -> float:
        """Return the noise that Adam sees in a gear over that in BF16; 1.0 where it is not known."""
        low, bf16, batch = self.sigma.get(gear), self.sigma.get(Gear.BF16), self.sigma_batch
        if low is None or bf16 is None or not batch:
            return 1.0
        return math.sqrt((batch**2 + low**2) / (batch**2 + bf16**2))

    @property
    def note(self) -> str:
        """What is not known and why, in a sentence; empty if all is."""
        one = "a batch of one sample does not tell the noise between samples, so gamma is 1"
        return one if self.sigma_batch is None else ""


class NoiseProbe:
    """Measures the noise of a model's gears at a small share of the time.

    ::

        Idle --rank 0: arm--> Armed --all have recorded; rank 0: probe--> Probed --all have told; rank 0: state--> Idle

    A probe may run collectives of the model, and gamma must be the same on all ranks, or replicas drift: so rank 0
    decides each transition from what all have handed in, and all ranks make it after the same step or none does
    (:class:`SyncSchedule`). Nobody waits.

    Args:
        box: The gears of a model, attached to it before the first step.
        recorder: The recorder on the outermost module that training calls.
        every: Least number of steps from one probe to the next; 0: no probes.
        max_share: Largest share of the wall time that all probes may take.
        beta: Weight of the past in the means: 0.9 averages over about ten probes.
    """

    def __init__(
        self, box: GearBox, recorder: CallRecorder, every: int, max_share: float = 0.005, beta: float = 0.9
    ) -> None:
        self.noise: Noise | None = None
        """What is known; None before the first probe."""
        self.problem = ""
        """Why probing has ended; empty while it goes on."""
        self._box = box
        self._recorder = recorder
        self._every = every
        self._max_share = max_share
        self._beta = beta
        self._low = [gear for gear in LOW if gear in box.gears or gear is Gear.BF16]
        self.restart()

    def restart(self) -> None:
        """Forget what was measured: a new run begins at step 0."""
        self.noise = None
        self._next = max(self._every, math.ceil(LEAST / self._max_share))
        self._means: dict[str, _Mean] = {key: _Mean() for key in (*self._low, "batch", "norm")}
        self._spent_s = self._trained_s = 0.0
        self._calls = self._tries = self._nth = 0
        self._sync: SyncSchedule | None = None
        self._alone = False
        self._window: tuple[float, int] | None = None  # time and steps at its start
        self._armed = self._told = False
        self._probed: int | None = None  # after which step
        self._recorder.clear()

    @property
    def next_step(self) -> int | None:
        """After how many steps the next probe may be; None if there will be none."""
        return None if self.problem or not self._every else self._next

    def step(self, steps: int) -> Noise | None:
        """Note that an optimizer step is done, and probe if it is time. Never raises; on all ranks alike.

        Args:
            steps: Optimizer steps of the run so far.

        Returns:
            What is known now, after a probe; otherwise None.
        """
        self._calls += 1
        if self._window is None:
            if self._calls >= WARM_UP:
                self._window = time.perf_counter(), steps
        elif (self._armed or steps + 1 >= self._next or not self._alone) and self.next_step is not None:
            try:
                return self._turn(steps)
            except Exception as error:
                self._end(_text(error))
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, in plain JSON types."""
        last = self.noise
        return {
            "next_step": self._next,
            "means": {str(key): [mean.total, mean.weight] for key, mean in self._means.items()},
            "spent_s": self._spent_s,
            "trained_s": self._trained_s,
            "step": None if last is None else last.step,
            "cost_s": None if last is None else last.cost_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        self._next = int(state["next_step"])
        for key, mean in self._means.items():
            mean.total, mean.weight = state["means"].get(str(key), (0.0, 0.0))
        self._spent_s, self._trained_s = float(state["spent_s"]), float(state["trained_s"])
        self.noise = None if state["step"] is None else self._summary(int(state["step"]), float(state["cost_s"]))

    def _turn(self, steps: int) -> Noise | None:
        if self._box.model is None:
            return None
        if self._sync is None:
            self._channel = RankZeroChannel("noise", topology_from_process_group() or Topology())
            self._sync, self._alone = SyncSchedule(self._channel, time.monotonic), self._channel.alone
        if self._armed and not self._told:
            self._tell_what_is_recorded()
        if not self._alone:
            self._sync.steps = self._calls - 1
            said = self._sync.stepped(lambda: self._say(steps))
            if self._sync.over:
                self._end("not all ranks take part")
            return None if said is None else self._do(said, steps)
        while (said := self._say(steps)[0]) is not None:
            found = self._do(said, steps)
            if "probe" not in said:
                return found
        return None

    def _tell_what_is_recorded(self) -> None:
        why, self._tries = self._why_not(), self._tries + 1
        rows = -1 if why else self._recorder.rows
        if rows == 0 and self._tries < PATIENCE:
            self._arm()
            return
        self._told = True
        self._channel.hand_in(f"rows/{self._nth}", [why, rows, self._recorder.batch])

    def _say(self, steps: int) -> Words:
        """Return what rank 0 tells all ranks to do, None for nothing, and after how many steps it looks again."""
        assert self._window is not None
        if not self._armed:
            left = self._next - steps - 1
            captures = self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            return ({"arm": True}, 1) if left <= 0 and not captures else (None, max(1, left - LEAD))
        ranks = self._channel.handed_in(f"{'rows' if self._probed is None else 'spread'}/{self._nth}")
        if not self._told or ranks is None:
            self._tries += self._told
            return {"end": "not all ranks told what they saw"} if self._tries > 3 * PATIENCE else None, 1
        why = next((str(rank[0]) for rank in ranks if rank[0]), "")
        if why:
            return {"end": why}, 1
        if self._probed is not None:
            cost_s, trained_s, *values = (_mean(column) for column in zip(*(rank[1:] for rank in ranks), strict=True))
            return {"state": self._after(self._probed, steps, cost_s, trained_s, values)}, 1
        rows, batch = (min(column) for column in zip(*(rank[1:] for rank in ranks), strict=True))
        first = math.ceil(max(LEAST, PASSES * rows / (batch or 1.0)) / self._max_share)
        if rows == 0:
            return {"end": f"no forward and backward pass of the model was seen in {PATIENCE} steps"}, 1
        if steps < first and not self._spent_s:
            return {"rest": first}, 1
        return {"probe": rows}, 1

    def _do(self, said: Mapping[str, Any], steps: int) -> Noise | None:
        """Do what rank 0 has said, on all ranks after the same step; return what is known after a probe."""
        if "probe" in said:
            self._probed = steps
            self._channel.hand_in(f"spread/{self._nth}", self._probe(int(said["probe"])))
            return None
        self._nth += 1
        self._tries, self._probed, self._armed, self._told = 0, None, "arm" in said, False
        if "arm" in said:
            self._arm()
            return None
        self._recorder.clear()
        if "rest" in said:
            self._next = int(said["rest"])
        elif "end" in said:
            self._end(said["end"])
        else:
            self._window = time.perf_counter(), steps
            self.load_state_dict(said["state"])
            return self.noise
        return None

    def _arm(self) -> None:
        batch_norm = any(isinstance(m, _BatchNorm) and m.training for m in self._model.modules())
        self._recorder.arm(SAMPLES_WITH_BATCH_NORM if batch_norm else SAMPLES)

    def _why_not(self) -> str:
        if self._recorder.problem:
            return self._recorder.problem
        for name, parameter in self._model.named_parameters():
            if parameter.dtype in (torch.bfloat16, torch.float16):
                kind = str(parameter.dtype).removeprefix("torch.")
                return f"the weight {name} is stored in {kind}, so there is no FP32 gradient to compare with"
        return ""

    def _probe(self, samples: int) -> list[Any]:
        """Return why it failed or "", the seconds that it took and those trained before, and what was measured."""
        assert self._window is not None
        device = self._device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the step before is not the probe's
        begin_s = time.perf_counter()
        failure = ""
        try:  # a rank that fails still tells: rank 0 looks for it
            spread = compare_gradients(self._box, self._recorder, self._low, samples)
            measured = [*spread.by_gear.values(), spread.samples, spread.norm]
        except Exception as error:
            failure = _text(error)
            measured = [math.nan] * len(self._means)
        return [failure, time.perf_counter() - begin_s, begin_s - self._window[0], *measured]

    def _after(
        self, probed: int, steps: int, cost_s: float, trained_s: float, values: Sequence[float]
    ) -> dict[str, Any]:
        """Return the state after a probe, which all ranks take over."""
        assert self._window is not None
        means = {}
        for (key, old), value in zip(self._means.items(), values, strict=True):
            mean = _Mean(old.total, old.weight)
            mean.add(value, self._beta)
            means[str(key)] = [mean.total, mean.weight]
        spent_s, all_s = self._spent_s + cost_s, self._trained_s + trained_s
        # After how many steps a probe like the last one fits into the share of all time since the start.
        step_s, needed_s = trained_s / (probed - self._window[1]), (spent_s + cost_s) / self._max_share - all_s
        return {
            "next_step": steps + max(self._every, math.ceil(needed_s / step_s) if step_s > 0 else 0),
            "means": means,
            "spent_s": spent_s,
            "trained_s": all_s,
            "step": probed,
            "cost_s": cost_s,
        }

    @property
    def _device(self) -> torch.device:
        return next(p.device for p in self._model.parameters())

    @property
    def _model(self) -> nn.Module:
        assert self._box.model is not None
        return self._box.model

    def _summary(self, steps: int, cost_s: float) -> Noise | None:
        root = {key: math.sqrt(mean.value) for key, mean in self._means.items() if mean.weight}
        if "norm" not in root:
            return None
        sigma = {gear: root[gear] for gear in self._low if gear in root}
        return Noise(step=steps, sigma=sigma, sigma_batch=root.get("batch"), grad_norm=root["norm"], cost_s=cost_s)

    def _end(self, why: str) -> None:
        self.problem = why
        self._recorder.clear()
        warn(f"the gradient noise of the gears is not measured any more: {why}")


@dataclass(slots=True)
class _Mean:
    """Exponential moving mean, without the pull of its start."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, beta: float) -> None:
        if math.isfinite(value):  # not what overflowed, as FP16 may
            self.total = beta * self.total + (1 - beta) * value
            self.weight = beta * self.weight + (1 - beta)

    @property
    def value(self) -> float:
        return self.total / self.weight


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]


def _mean(column: Sequence[float]) -> float:
    finite = [value for value in column if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
