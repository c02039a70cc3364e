"""The gears of one model, FP32 to NVFP4, without a new Parameter, shifted between two optimizer steps.

The linear layers that may run in 8 or 4 bits get the class ``GearLinear``, and the model itself a class whose forward
enters one autocast context::

    gear   autocast           linear layers of the plan
    fp32   off                x W^T in FP32
    bf16   bfloat16           x W^T in BF16
    fp16   float16            x W^T in FP16, loss scaled by a GradScaler
    fp8    bfloat16           x W^T and both gradients in FP8, dynamic scaling
    mxfp8  bfloat16           the same in MXFP8, and nvfp4 in NVFP4 (``blocks.py``)

A copy or a pickle of the model is the plain model: it has its own weights, the plain classes and no gears.

Gears that cannot work with a model, its wrapper or its device are refused before training. torch.compile makes one
graph a gear; dynamo keeps at most ``recompile_limit`` of them, 8 by default (torch/_dynamo/config.py, torch 2.13). Six
gears, two modes and two shapes are more, and what is beyond would run uncompiled without a word.

Who watches calls of a model (:func:`around_calls`) stands outside of all that. A forward hook travels:
``copy.deepcopy`` gives a running average of the model the hook, ``pickle`` stops at what the hook holds,
``torch.jit.script`` compiles it, and so does dynamo. Each module has one place that torch itself neither copies nor
compiles, where ``module.compile()`` leaves the compiled call; what is put there sees whole calls.
"""

import contextlib
import copyreg
import functools
import logging
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision.backends import FORMATS, Fp8Backend, choose_backend, slower_compiled
from greentrain.control.precision.gather import gather_fp8
from greentrain.control.precision.layers import LayerPlan, attach_layer, detach_layer, plan_layers, takes_te
from greentrain.errors import ConfigError
from greentrain.types import Gear
from greentrain.utils.never_raise import warn

LIMIT = 64
"""Graphs a code object may have: 4 gears x {train, eval} x 8 shapes; with six gears, 5 shapes."""
LOGGER = "torch._dynamo.convert_frame"
"""Where dynamo says that it gives up (torch/_dynamo/convert_frame.py, torch 2.13)."""


class RecompileWatch:
    """Raises dynamo's limit once it is loaded, and warns if it is hit all the same.

    Args:
        gears: Number of gears; with one there is nothing to do.
    """

    def __init__(self, gears: int) -> None:
        self._gears = gears
        self._put_back: weakref.finalize[[], RecompileWatch] | None = None

    def prepare(self) -> None:
        """Raise the limit as soon as something has loaded dynamo. Cheap before and after."""
        if self._put_back is not None or self._gears < 2 or "torch._dynamo" not in sys.modules:
            return
        config = sys.modules["torch._dynamo"].config
        listener = _Listener(config.recompile_limit)
        self._put_back = weakref.finalize(self, listener.put_back)  # a model may be dropped with its gears on
        config.recompile_limit = max(LIMIT, config.recompile_limit)
        logging.getLogger(LOGGER).addHandler(listener)

    def stop(self) -> None:
        """Put everything back. Idempotent."""
        if self._put_back is not None:
            self._put_back()
            self._put_back = None


class _Listener(logging.Handler):
    def __init__(self, limit: int) -> None:
        super().__init__(logging.WARNING)
        self.limit, self._told = limit, False

    def put_back(self) -> None:
        log = logging.getLogger(LOGGER)
        log.removeHandler(self)
        others = [other for other in log.handlers if isinstance(other, _Listener)]
        for other in others:  # another session's model still needs the limit, and puts it back when it goes
            other.limit = min(other.limit, self.limit)
        if not others and self.limit < LIMIT:  # otherwise the user has raised it
            sys.modules["torch._dynamo"].config.recompile_limit = self.limit

    def emit(self, record: logging.LogRecord) -> None:
        if self._told or "recompile_limit" not in record.getMessage():
            return
        self._told = True
        warn(
            f"torch.compile hit its limit of {LIMIT} graphs and runs the rest uncompiled; use fewer gears or input"
            " shapes, or raise torch._dynamo.config.recompile_limit"
        )


_GEAR_OF = {torch.float32: Gear.FP32, torch.bfloat16: Gear.BF16, torch.float16: Gear.FP16}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile, DataParallel, DDP, FSDP 1 and DeepSpeed."""
    while True:
        inner = vars(model).get("_modules", {}).get("_orig_mod")
        if inner is None and (_is_engine(model) or type(model).__name__ in _WRAPPERS):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_compiled(model: nn.Module) -> bool:
    """Return whether torch.compile has the model, in its wrappers, or a part of it."""
    return any(compiled_call(m) is not None or hasattr(m, "_orig_mod") for m in model.modules())


def check_gears(model: nn.Module, gears: Sequence[Gear], device: torch.device) -> None:
    """Check that the gears can work with this model on this device.

    Args:
        model: The model in all its wrappers.
        gears: Gears of the run.
        device: The device on which the model will run.

    Raises:
        ConfigError: Names gear, place and remedy.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ConfigError(
            "a TorchScript model cannot shift gears: its precision is compiled in; pass the module itself"
        )
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        needs = [gear for gear in gears if gear is Gear.BF16 or gear.is_low]
        _refuse(needs, f"{torch.cuda.get_device_name(device)} has no BF16", "use fp32 and fp16")
    if (fixed := _fixed(model)) is not None:
        dtype, where, remedy = fixed
        allowed = {_GEAR_OF.get(dtype)} | ({gear for gear in Gear if gear.is_low} if dtype is torch.bfloat16 else set())
        _refuse([gear for gear in gears if gear not in allowed], f"{where} {str(dtype).removeprefix('torch.')}", remedy)


def _refuse(gears: Sequence[Gear], why: str, remedy: str) -> None:
    if gears:
        names = ", ".join(gears)
        raise ConfigError(f"precision.gears holds {names}, which cannot work here: {why}; {remedy}")


def _fixed(model: nn.Module) -> tuple[torch.dtype, str, str] | None:
    """Return what fixes the precision whatever autocast says: dtype, place and remedy."""
    if _is_engine(model):
        for method, dtype in (("bfloat16_enabled", torch.bfloat16), ("fp16_enabled", torch.float16)):
            if getattr(model, method, bool)():
                remedy = "turn its bf16/fp16 section off for torch_autocast, or keep to that gear (and fp8 with bf16)"
                return dtype, "DeepSpeed keeps the weights in", remedy
    for module in model.modules():
        gathered = _policy_dtype(module)
        if gathered is not None and gathered is not torch.float32:
            remedy = "drop param_dtype from its mixed-precision policy (the gears cast), or keep to that gear"
            return gathered, f"{type(module).__name__} gathers its weights in", f"{remedy} (and fp8 with bfloat16)"
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16) and parameter.requires_grad:
            remedy = "load the model in float32, as mixed-precision training does, or keep to that gear"
            return parameter.dtype, f"the trained weight {name} is stored in", f"{remedy} (and fp8 with bfloat16)"
    return None


def _policy_dtype(module: nn.Module) -> torch.dtype | None:
    """Return the dtype in which FSDP 1 or 2 gathers this module's weights, where it says."""
    state: Any = getattr(type(module), "_get_fsdp_state", None)
    if state is not None:  # FSDP 2, fully_shard
        policy = getattr(state(module), "_mp_policy", None)
    else:  # FSDP 1
        policy = getattr(module, "mixed_precision", None) if type(module).__name__ in _WRAPPERS else None
    dtype: Any = getattr(policy, "param_dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else None


def _is_engine(model: Any) -> bool:
    return any(kind.__name__ == "DeepSpeedEngine" for kind in type(model).__mro__)


_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


AUTOCAST = {Gear.FP16: torch.float16} | {gear: torch.bfloat16 for gear in Gear if gear is Gear.BF16 or gear.is_low}


class _ByGear:
    """The backends of a box with several gears of 8 or 4 bits, as one."""

    def __init__(self, box: "GearBox", backends: Mapping[Gear, Fp8Backend]) -> None:
        self._box = box
        self._linear = {str(gear): backend.linear for gear, backend in backends.items()}  # dynamo guards on strings
        self.name = ", ".join(dict.fromkeys(backend.name for backend in backends.values()))
        self.reason = "; ".join(f"{gear}: {backend.reason}" for gear, backend in backends.items())

    def linear(self, layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b`` in the gear that runs."""
        return self._linear[self._box.low_gear(layer.training)](layer, x)


class GearBox:
    """Runs one model in the gear that is asked for.

    Args:
        config: Section ``precision``.
    """

    def __init__(self, config: PrecisionConfig) -> None:
        self._config, self.fp32_outputs = config, config.fp32_outputs
        self.gears = tuple(Gear(gear) for gear in config.gears)
        self._evaluate_in(Gear(config.eval_gear) if config.eval_gear else _usual_eval(self.gears))
        # Forward reads a dtype and a string: dynamo 2.13 sets no guard on an enum that is a dictionary's key.
        self._gear, self._dtype, self._low = self.gears[0], AUTOCAST.get(self.gears[0]), _low(self.gears[0])
        self.low = tuple(gear for gear in self.gears if gear.is_low)
        """Those that need layers of their own."""
        self.model: nn.Module | None = None
        """The model that shifts, without its wrappers; None before ``attach``."""
        self.plan: Sequence[LayerPlan] = ()
        """Every module of the model that holds parameters, and whether it runs in FP8."""
        self.entered = False
        """True once a training forward has run in the gears since ``attach``, outside a compiled graph."""
        self.backend: Fp8Backend | None = None
        """Who multiplies in 8 or 4 bits; None where no such gear is among the gears."""
        self.neutral = False
        """True where ranks may be in different gears: AdamW and all-gathers take no notice, or replicas would drift."""
        self._gathers, self._gathering = list[Callable[[], object]](), config.fp8_all_gather  # what undoes them
        self._pending: Gear | None = None
        self._recompiles = RecompileWatch(len(self.gears))

    @property
    def gear(self) -> Gear:
        """Gear of training steps."""
        return self._gear

    def attach(self, model: nn.Module, *, device: torch.device | None = None, wrap_forward: bool = True) -> None:
        """Give a model its gears, in place. The Parameters and the keys of its state_dict stay what they are.

        Args:
            model: The model, also as wrapped by torch.compile, DDP, FSDP or DeepSpeed.
            device: The device on which it will run; None: the one that holds its parameters.
            wrap_forward: Enter the autocast context in the model's forward; False where a framework has a better
                place and calls :meth:`context` itself.

        Raises:
            ConfigError: A gear cannot work on this device, in this wrapper or with these weights; another session has
                this model; no layer can run in FP8.
        """
        inner = unwrap(model)
        if self.model is inner:
            return
        if self.model is not None:
            raise ConfigError(
                "this session shifts the gears of one model already: use a second session for a second one"
            )
        if any(hasattr(module, "_green") or hasattr(module, "_green_box") for module in inner.modules()):
            raise ConfigError(
                "this model has the gears of another GreenSession: close that session first, or watch the model once"
            )
        before = vars(inner).get("_original_forward")  # Accelerate's; through ours, where the model had gears before
        if wrap_forward and before is not None and not hasattr(before, "_green_geared"):
            raise ConfigError(
                f"the forward of {type(inner).__name__} was replaced already, as Accelerator.prepare does: give the"
                " model its gears before it is prepared"
            )
        device = device or next((p.device for p in inner.parameters()), torch.device("cpu"))
        check_gears(model, self.gears, device)
        if self._config.eval_gear is None:
            self._evaluate_in(_usual_eval(self.gears, device))
        self.model, self.entered = inner, False
        try:
            if self.low:
                self._attach_layers(inner, device)
                assert self.backend is not None
                if device.type != "cpu" and is_compiled(model) and (why := slower_compiled(self.backend, device)):
                    warn(f"{why} here: drop fp8 from precision.gears, or set another precision.backend")
            self._gathers = gather_fp8(inner) if self._config.fp8_all_gather else []
        except BaseException:
            self.detach()
            raise
        if wrap_forward:
            # Another class, not hooks or a forward on the instance: two hooks would leave the context open where the
            # forward raises, and an attribute would be copied and pickled with the model.
            # What somebody has put on the instance (TRL's fused head, a hook of device_map) runs in the context, too.
            inner._green_box = self  # type: ignore[assignment]
            inner.__class__ = _geared(type(inner), vars(inner).pop("forward", None) if before is None else None)
        self._recompiles.prepare()

    def detach(self) -> None:
        """Make the model plain again. Idempotent."""
        model, self.model = self.model, None
        if model is None:
            return
        for module in model.modules():
            if "_green" in vars(module):
                detach_layer(module)
        while self._gathers:
            self._gathers.pop()()
        if "_green_box" in vars(model):
            del vars(model)["_green_box"]
            if "_green_plain" in vars(type(model)):  # else FSDP 2 has derived a class from ours, and keeps it
                replaced = vars(type(model))["_green_replaced"]
                model.__class__ = type(model)._green_plain  # type: ignore[attr-defined]
                if replaced:
                    vars(model).setdefault("forward", replaced[0])
        self._recompiles.stop()

    def context(self, device_type: str, training: bool = True) -> torch.autocast:
        """Return the autocast context of the gear.

        Args:
            device_type: ``cpu`` or ``cuda``.
            training: False: the gear of evaluation.
        """
        dtype = self._dtype if training else self._eval_dtype
        if training and not torch.compiler.is_compiling():
            self.entered = True
        # The cache is keyed by tensor, not by dtype: nested in a framework's autocast it would mix two precisions, so
        # it is emptied first; and it sums the gradients of a layer that is used often in 16 bits (docs/gears.md).
        cached = self._config.cast_once
        if cached and not torch.compiler.is_compiling() and torch.is_autocast_enabled(device_type):
            torch.clear_autocast_cache()
        return torch.autocast(
            device_type, dtype=dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=cached
        )

    def runs_fp8(self, training: bool) -> bool:
        """Return whether the chosen layers run in 8 or 4 bits now."""
        return self.low_gear(training) != ""

    def low_gear(self, training: bool) -> str:
        """Return the gear of 8 or 4 bits in which the chosen layers run now; empty where they run in none."""
        return self._low if training else self._eval_low

    def request(self, gear: str) -> None:
        """Ask for a gear; :meth:`commit` shifts.

        Raises:
            ConfigError: The gear is not among those of the run.
        """
        if gear not in self.gears:
            raise ConfigError(
                f"gear {gear!r} is not among precision.gears {[str(g) for g in self.gears]}: add it there"
            )
        self._pending = Gear(gear)

    def commit(self) -> bool:
        """Shift to the gear asked for, if any; to be called between two optimizer steps.

        Returns:
            True if the gear has changed.
        """
        gear, self._pending = self._pending, None
        self._recompiles.prepare()  # a model is often compiled after attach, which loads dynamo only then
        if self._gathering and self.model is not None and not self._gathers:  # a framework may shard after attach
            self._gathers, self._gathering = gather_fp8(self.model), not self.entered
            if self.entered and not self._gathers:
                warn("precision.fp8_all_gather gathers nothing: no layer that shifts is under fully_shard (FSDP 2)")
        if gear is None or gear is self.gear:
            return False
        self._shift(gear)
        return True

    @contextlib.contextmanager
    def at(self, gear: Gear) -> Iterator[None]:
        """Run a block in a gear, outside any training step: to compile, to compare."""
        before = self._gear
        self._shift(gear)
        try:
            yield
        finally:
            self._shift(before)

    def state_dict(self) -> dict[str, Any]:
        """Return the gear, in plain JSON types."""
        return {"gear": str(self.gear)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the gear of a checkpoint; one that is not among the gears any more is ignored."""
        if state.get("gear") in [str(gear) for gear in self.gears]:
            self._shift(Gear(state["gear"]))

    def _evaluate_in(self, gear: Gear) -> None:
        self.eval_gear = gear
        """Gear of everything in eval mode."""
        self._eval_dtype, self._eval_low = AUTOCAST.get(gear), _low(gear)

    def _shift(self, gear: Gear) -> None:
        self._gear, self._dtype, self._low = gear, AUTOCAST.get(gear), _low(gear)

    def gathers_fp8(self, training: bool) -> bool:
        """Return whether FSDP 2 gathers the weights of chosen layers in FP8 now."""
        return self.low_gear(training) == Gear.FP8 and not self.neutral

    def _attach_layers(self, model: nn.Module, device: torch.device) -> None:
        config = self._config
        how: dict[Gear, str] = {gear: config.scaling if gear is Gear.FP8 else gear.value for gear in self.low}
        multiple = max(FORMATS[name].sides for name in how.values())
        self.plan = plan_layers(model, config.include, config.exclude, config.min_features, multiple)
        chosen = [layer for layer in self.plan if layer.chosen]
        if not chosen:
            largest = sorted(self.plan, key=lambda layer: (layer.in_features is None, -layer.parameters))
            why = {layer.reason: f"{layer.name}: {layer.reason}" for layer in reversed(largest)}
            remedies = {"min_features": "lower", "include": "widen", "exclude": "shorten"}
            helps = [f"{verb} precision.{key}, " for key, verb in remedies.items() if f"precision.{key}" in str(why)]
            raise ConfigError(
                f"no layer of {type(model).__name__} can run in {' or '.join(gear.upper() for gear in self.low)}"
                f" ({'; '.join(list(why.values())[:-5:-1]) or 'it has no parameters'}):"
                f" {''.join(helps)}{'or ' if helps else ''}drop {' and '.join(self.low)} from precision.gears"
            )
        backends = {gear: choose_backend(config.backend, device, name) for gear, name in how.items()}
        self.backend = _ByGear(self, backends) if len(backends) > 1 else next(iter(backends.values()))
        turned = [layer.name for layer in chosen if not takes_te(model, layer.name)]
        if turned and "transformer_engine" in self.backend.name:
            kind = type(model.get_submodule(turned[0])).__name__
            other = "torchao" if any(FORMATS[name].block for name in how.values()) else "scaled_mm"
            raise ConfigError(
                f"Transformer Engine takes whole nn.Linear alone, and {turned[0]} is a {kind}: set precision.backend to"
                f" {other}"
            )
        for layer in chosen:
            attach_layer(model.get_submodule(layer.name), self, self.backend)


def _low(gear: Gear) -> str:
    return gear.value if gear.is_low else ""


def _usual_eval(gears: Sequence[Gear], device: torch.device | None = None) -> Gear:
    # A processor that oneDNN has no BF16 for (x86 before AVX-512) emulates it: a forward took six times as long.
    # Builds without oneDNN, as that for macOS, have no such operator.
    native = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)
    slow = device is not None and device.type == "cpu" and not native()
    return Gear.BF16 if Gear.BF16 in gears and not slow else min(gears, key=list(Gear).index)


def _geared(plain: type[nn.Module], replaced: Any) -> type[nn.Module]:
    """Return a class like the model's own whose forward, or what stood in its place, runs in the box's context."""
    run: Callable[..., Any] = (
        plain.forward if replaced is None else lambda _, *args, **kwargs: replaced(*args, **kwargs)
    )

    class Geared(plain):  # type: ignore[misc, valid-type]
        _green_plain = plain
        _green_replaced = () if replaced is None else (replaced,)  # in a tuple, as no method of this class

        @functools.wraps(getattr(replaced, "__func__", plain.forward))
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if "_green_box" not in vars(self):  # detached, but Accelerate keeps this as the model's original forward
                return run(self, *args, **kwargs)
            device = next((p.device.type for p in self.parameters()), "cpu")
            with self._green_box.context(device, self.training):
                output = run(self, *args, **kwargs)
            return _to_fp32(output) if self._green_box.fp32_outputs else output

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _plain(super().__reduce_ex__(protocol), plain, replaced)

    Geared.forward._green_geared = True  # type: ignore[attr-defined]
    Geared.__name__, Geared.__qualname__, Geared.__module__ = plain.__name__, plain.__qualname__, plain.__module__
    return Geared


def _plain(reduced: Any, plain: type, replaced: Any) -> Any:
    """Return how to rebuild the plain model where pickle and deepcopy were told how to rebuild the shifting one."""
    function, args, state, *more = reduced
    if isinstance(state, Mapping):
        state = {key: value for key, value in state.items() if key != "_green_box"}
        state = state if replaced is None else {"forward": replaced, **state}
    if function is copyreg.__newobj__:  # type: ignore[attr-defined]
        # pickle refuses it for another class than the object's own
        function, args = copyreg._reconstructor, (plain, object, None)  # type: ignore[attr-defined]
    return function, args, state, *more


def _to_fp32(output: Any) -> Any:
    """Return FP16 and BF16 tensors as FP32, as the loss is computed outside the context."""
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
    return tree_map_only(torch.Tensor, _to_fp32, output)


Before = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], object]
After = Callable[[nn.Module, Any], object]
_IGNORED = "__jit_ignored_attributes__"


def around_calls(module: nn.Module, before: Before, after: After) -> Callable[[], None]:
    """Call something before and after each call of a module from outside of a compiled graph.

    Args:
        module: The module, as training calls it: one inside a compiled module is part of its graph and is not seen.
        before: Takes the module, its positional and its keyword arguments.
        after: Takes the module and what it returned; None where it raised.

    Returns:
        What takes both off again. Idempotent.
    """
    calls = vars(module).get("_compiled_call_impl")
    if not isinstance(calls, _Calls):
        calls = _Calls(module)
        calls.put(module)
    return calls.add(before, after)


def compiled_call(module: nn.Module) -> Callable[..., Any] | None:
    """Return the call that ``module.compile()`` made; None where the module is not compiled in place."""
    call = module._compiled_call_impl
    return call.compiled if isinstance(call, _Calls) else call


def in_graph(module: nn.Module) -> bool:
    """Return whether a module whose calls are watched has become part of a larger compiled graph, which hides them."""
    call = module._compiled_call_impl
    return isinstance(call, _Calls) and call.traced


class _Calls:
    """Stands where torch looks for the compiled call of a module, and comes to no copy.

    Args:
        module: The module; only referred to.
    """

    def __init__(self, module: nn.Module) -> None:
        self.compiled = module._compiled_call_impl
        self.traced = False
        self._module = weakref.ref(module)
        self._watchers: tuple[tuple[Before, After], ...] = ()

    def put(self, module: nn.Module) -> None:
        """Stand in front of whatever the module's call is now."""
        # Not by setattr: what is set on torch.compile's wrapper is set on its model.
        vars(module)["_compiled_call_impl"] = self
        ignored = {"_compiled_call_impl", *getattr(module, _IGNORED, ())}  # torch.jit.script does not know its type
        vars(module)[_IGNORED] = sorted(ignored)
        if "_orig_mod" not in module._modules and "compile" not in vars(module):
            vars(module)["compile"] = _Compile(module)

    def add(self, before: Before, after: After) -> Callable[[], None]:
        """Add a pair of callables; return what removes it."""
        pair = (before, after)
        self._watchers += (pair,)

        def remove() -> None:
            self._watchers = tuple(other for other in self._watchers if other is not pair)
            module = self._module()
            if not self._watchers and module is not None and vars(module).get("_compiled_call_impl") is self:
                del vars(module)["_compiled_call_impl"], vars(module)[_IGNORED]
                if self.compiled is not None:
                    vars(module)["_compiled_call_impl"] = self.compiled
                if isinstance(vars(module).get("compile"), _Compile):
                    del vars(module)["compile"]

        return remove

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._module()
        if torch.compiler.is_compiling():
            self.traced = True  # reads nothing that changes: each guard on it would compile the graph again
            return module._call_impl(*args, **kwargs)
        # torch calls without saying which module. A replica of nn.DataParallel and a script share this attribute, and
        # must run on their own parameters.
        caller = sys._getframe(1).f_locals.get("self")
        if caller is not module and isinstance(caller, nn.Module) and caller._compiled_call_impl is self:
            return caller._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        watchers, output = self._watchers, None
        for before, _ in watchers:
            before(module, args, kwargs)
        try:
            output = (self.compiled or module._call_impl)(*args, **kwargs)
            return output
        finally:
            for _, after in reversed(watchers):
                after(module, output)

    def __reduce__(self) -> Any:
        return type(None), ()


class _Compile:
    """``module.compile`` of a module whose calls are watched: the compiled call is watched from outside.

    Args:
        module: The module; only referred to.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        module: Any = self._module()
        calls = module._compiled_call_impl
        type(module).compile(module, *args, **kwargs)
        if isinstance(calls, _Calls) and module._compiled_call_impl is not calls:  # an engine compiles its model alone
            calls.compiled = module._compiled_call_impl
            calls.put(module)

    def __reduce__(self) -> Any:
        return getattr, (self._module(), "compile")  # a copy's own
