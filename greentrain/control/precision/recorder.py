"""One training call of a model, kept so that it can be made again without the user's loss function.

Backward needs two things of the training script: what the model was called with, and the gradient that its loss sent
back to the model's outputs. Both pass by while training runs::

    arm() --> the next training forward: keep the first samples of its arguments, hook its outputs
          --> its backward: keep the gradients that arrive there
    call(rows) --> CallReplay.run(model): the outputs again, and the gradients that belong to them

The hooks are there for one forward only, so that a step that is not recorded costs nothing, and they are on the
outermost module that training calls: inside a compiled module they would be compiled with it. The replay runs the inner
module alone: no DDP, and none of the hooks that anybody has put on the outermost one.

What is a batch dimension nobody says. Here it is the first dimension of the first tensor, and of every other tensor
whose first dimension is as long. What else there is (a causal mask, a number of tokens, a flag) is the same for every
sample and stays whole.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from greentrain.control.precision.gearbox import around_calls, in_graph
from greentrain.utils.never_raise import never_raises


class KeptSamples:
    """The kept samples of one call's arguments; what training does to its own tensors afterwards does not matter.

    Args:
        tree: Tensors in tuples, lists, mappings and dataclasses.
        keep: Number of samples that are kept.
    """

    def __init__(self, tree: Any, keep: int) -> None:
        self.size = batch_size(tree)
        """Samples in the batch; 0 if no tensor has a dimension."""
        self.kept = min(keep, self.size)
        """How many samples of it are kept."""
        self._tree = change_leaves(tree, self._keep)

    def take(self, rows: range) -> Any:
        """Return the arguments with some of the kept samples in them, for one use.

        Args:
            rows: Range of samples: consecutive, within ``range(self.kept)``.
        """
        return change_leaves(self._tree, lambda leaf: leaf.take(rows) if isinstance(leaf, _KeptTensor) else leaf)

    def _keep(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == self.size:
            return _KeptTensor(leaf[: self.kept].detach().clone(), leaf.requires_grad)
        return leaf


@dataclasses.dataclass(frozen=True, slots=True)
class _KeptTensor:
    """A tensor with a batch dimension. Others of that length by chance must not be cut the second time."""

    tensor: Tensor
    requires_grad: bool

    def take(self, rows: range) -> Tensor:
        # A copy again: forward may work in place, and reentrant code wants leaves of its own.
        return self.tensor[rows.start : rows.stop].clone().requires_grad_(self.requires_grad)


def batch_size(tree: Any) -> int:
    """Return the length of the first tensor's first dimension; 0 if there is none."""
    return next((int(t.shape[0]) for t in tensors(tree) if t.dim()), 0)


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree in a fixed order."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, MutableMapping):  # one that pytree does not know, such as a UserDict
            yield from tensors(list(leaf.values()))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from tensors([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])


def change_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree of the same shape with every leaf changed; mappings and dataclasses in it are copied."""

    def at(leaf: Any) -> Any:
        if isinstance(leaf, MutableMapping):
            out: Any = copy.copy(leaf)
            for key, value in leaf.items():
                out[key] = change_leaves(value, change)
            return out
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, (type, _KeptTensor)):
            out = copy.copy(leaf)
            for field in dataclasses.fields(leaf):
                object.__setattr__(out, field.name, change_leaves(getattr(leaf, field.name), change))
            return out
        return change(leaf)

    return tree_map(at, tree)


LARGE_BYTES = 2**28
"""A recorded gradient above 256 MiB waits in host memory: backward is when the device's is scarcest (own choice)."""


class CallReplay:
    """A recorded call with some of its samples, to be made once.

    Args:
        call: Call that was recorded in training.
        rows: Range of its kept samples that are used.
    """

    def __init__(self, call: "_Call", rows: range) -> None:
        self.batch = call.samples.size
        """How many samples the recorded call had."""
        self._call = call
        self._rows = rows
        self._arguments = call.samples.take(rows)

    def run(self, model: nn.Module) -> tuple[list[Tensor], list[Tensor], float]:
        """Call the model again.

        Args:
            model: The inner module.

        Returns:
            Outputs and their gradients, for ``torch.autograd.grad``, and the factor that these gradients hold: the
            loss scale, and 1/n where training divides its loss by n micro-batches.

        Raises:
            RuntimeError: The call does not give what it gave in training.
        """
        (args, kwargs), call = self._arguments, self._call
        if call.function is not None:
            loss = call.function(*args, **kwargs)
            return [loss], [torch.full_like(loss, call.loss_scale)], call.loss_scale
        outputs = list(tensors(model.forward(*args, **kwargs)))
        used = [i for i in call.gradients if i < len(outputs) and outputs[i].requires_grad]
        ends = _ends([outputs[i] for i in used])
        used = [i for i, end in zip(used, ends, strict=True) if end]
        if not used:
            raise RuntimeError("called again, the model gives no output of those that had a gradient")
        gradients = [self._gradient(i, outputs[i]) for i in used]
        lone_loss = len(used) == 1 and outputs[used[0]].dim() == 0
        return [outputs[i] for i in used], gradients, float(gradients[0]) if lone_loss else call.loss_scale

    def _gradient(self, index: int, output: Tensor) -> Tensor:
        gradient, rows = self._call.gradients[index], self._rows
        if gradient.dim() and gradient.shape != output.shape:  # samples, or samples times positions in one dimension
            each = output.shape[0] // len(rows)
            gradient = gradient[rows.start * each : rows.stop * each]
        if gradient.shape != output.shape:
            raise RuntimeError(
                f"output {index} of the model has the shape {tuple(output.shape)} for {len(rows)} of {self.batch}"
                f" samples, and its gradient {tuple(gradient.shape)}: its first dimension is not the batch"
            )
        return gradient.to(output.device, output.dtype)


@dataclasses.dataclass(slots=True)
class _Call:
    """A call while it is being recorded."""

    samples: KeptSamples
    function: Callable[..., Any] | None
    loss_scale: float
    versions: int
    gradients: dict[int, Tensor] = dataclasses.field(default_factory=dict)

    @never_raises
    def arrive(self, index: int, gradient: Tensor) -> None:
        """Keep what belongs to the kept samples of an output's gradient."""
        kept = gradient.detach()
        if kept.dim() and kept.shape[0] % self.samples.size == 0:
            kept = kept[: kept.shape[0] // self.samples.size * self.samples.kept]
        large = kept.numel() * kept.element_size() > LARGE_BYTES
        kept = kept.cpu() if large and kept.is_cuda else kept.clone()
        before = self.gradients.get(index)  # several losses, each with a backward of its own
        self.gradients[index] = kept if before is None else before + kept


class CallRecorder:
    """Records one training forward of a model when asked to.

    Args:
        model: The outermost module that training calls: DDP, OptimizedModule, a DeepSpeed engine, or the model itself.
        loss_scale: Returns the factor of the loss before backward, a GradScaler's ``get_scale``.
    """

    def __init__(self, model: nn.Module, loss_scale: Callable[[], float] = lambda: 1.0) -> None:
        self._problem = ""
        self._model = model
        self._loss_scale = loss_scale
        self._keep = 2
        self._armed = False
        self._call: _Call | None = None
        self._undo: list[Callable[[], None]] = []

    @property
    def problem(self) -> str:
        """Why this model's calls cannot be made again; empty if they can, as far as is known."""
        if in_graph(self._model):  # a probe would be part of the graph, or break it
            return "it was compiled after it was watched: watch what torch.compile returned"
        return self._problem

    @property
    def rows(self) -> int:
        """Samples that were recorded, their gradients included; 0 until then."""
        call = self._call
        return 0 if call is None or not (call.gradients or call.function) else call.samples.kept

    @property
    def batch(self) -> int:
        """Samples that the recorded call had; 0 until then."""
        return 0 if self._call is None else self._call.samples.size

    def arm(self, keep: int = 2) -> None:
        """Record the next training forward.

        Args:
            keep: Number of its samples to keep.
        """
        self.disarm()
        self._call = None
        self._keep = keep
        self._problem = self._problem or _sharded(self._model)
        if self._problem:
            return
        self._armed = True
        self._undo.append(around_calls(self._model, self._before, self._after))

    def disarm(self) -> None:
        """Take the hooks off. Idempotent."""
        self._armed = False
        while self._undo:
            self._undo.pop()()

    def clear(self) -> None:
        """Let go of what was recorded."""
        self.disarm()
        self._call = None

    def offer(self, function: Callable[[Any], Tensor], batch: Any) -> None:
        """Give a batch of training and what computes its loss, in frameworks that do not call a forward.

        Args:
            function: Takes a batch and returns the scalar loss of training, with no effect but that. It is called as
                in training, in eager, and only until the next optimizer step is done.
            batch: A batch; looked at only when armed.
        """
        if not self._armed:
            return
        self._call = self._begin(((batch,), {}), function)
        self.disarm()

    def call(self, rows: int | range) -> CallReplay | None:
        """Return the recorded call with some of its samples; None if none is recorded.

        Args:
            rows: The first so many, or which, within ``range(self.rows)``.
        """
        call, rows = self._call, range(rows) if isinstance(rows, int) else rows
        if call is None or not 0 < rows.stop <= self.rows or not rows:
            return None
        return CallReplay(call, rows)

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self._call = self._begin((args, kwargs), None)
            if self._call is None:
                self.disarm()

    @never_raises
    def _after(self, module: nn.Module, output: Any) -> None:
        call = self._call
        if call is None:
            return
        self.disarm()
        if _versions(module) != call.versions:
            self._call = None
            self._problem = "its forward changes parameters in place, and called again it would do so again"
            return
        for index, tensor in enumerate(tensors(output)):
            if tensor.requires_grad:
                tensor.register_hook(functools.partial(call.arrive, index))  # type: ignore[no-untyped-call]

    def _begin(self, tree: Any, function: Callable[..., Any] | None) -> _Call | None:
        try:
            call = _Call(KeptSamples(tree, self._keep), function, self._loss_scale(), _versions(self._model))
            self._problem = "" if call.samples.size else "what it is called with holds no tensor with a batch dimension"
        except Exception as error:  # a read-only mapping, a nested tensor: training's own call must not fail for it
            self._problem = f"what it is called with cannot be kept ({error!r})"
        return None if self._problem else call


def _ends(outputs: list[Tensor]) -> list[bool]:
    """Return which outputs no other one was computed from.

    A model that returns loss and logits gets a gradient at both, and that of the logits is the loss's own.
    """
    if len(outputs) == 1:
        return [True]
    seen: set[Any] = set()
    queue = [node for output in outputs for node, _ in getattr(output.grad_fn, "next_functions", ())]
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            queue += [before for before, _ in node.next_functions]
    return [output.grad_fn not in seen for output in outputs]


def _versions(model: nn.Module) -> int:
    """Return a number that changes when a parameter is changed in place."""
    return sum(parameter._version for parameter in model.parameters())


def _sharded(model: nn.Module) -> str:
    why = "and one pass alone would gather them for itself"
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return f"its parameters are split over ranks by FSDP, {why}"
    for parameter in model.parameters():
        if hasattr(parameter, "ds_numel"):  # deepspeed/runtime/zero/partition_parameters.py, 0.19.8
            return f"its parameters are split over ranks by ZeRO-3, {why}"
        if any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__):
            return f"its parameters are split over ranks (DTensor: FSDP 2 or tensor parallelism), {why}"
    return ""
