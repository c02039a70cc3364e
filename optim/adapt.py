"""Any AdamW, slowed down by gamma: hooks around its step, none of its code; or torch's as a subclass, GearAdamW.

::

    pre-hook: lend eta', eps', lambda' --> the optimizer's own kernel --> post-hook: take them back

Whoever looks at the groups between two steps (schedulers, loggers, checkpoints) finds the user's numbers. So does a
closure, which is where a forward and backward pass can fail: numbers are lent only after it. A kernel that raises skips
the post-hook, hence a ``finally`` around this optimizer's ``step``; and ``state_dict`` is put right even if somebody
calls it from another step hook.

Which optimizers take a stock AdamW step is found under their wrappers and told by their class and flags. A form
(:mod:`greentrain.optim.forms`) is exact only for theta -= lr m / (sqrt(v) + eps). Lamb's trust ratio, Adamax'
maximum or Adafactor's factors are other steps, so they are refused rather than changed in an unknown way.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.optimizer import ParamsT

from greentrain.errors import ConfigError
from greentrain.optim.forms import Form, Gamma, TemporaryParamGroups, rescaled


class GearAdamW(torch.optim.AdamW):
    """AdamW that slows down by gamma, on torch's own kernels.

    With gamma 1 it is ``torch.optim.AdamW``, bit for bit. Its state_dict is AdamW's and loads both ways: gamma belongs
    to the gear of a run, not to the state of the optimizer.

    Args:
        params: Parameters or groups, as ``torch.optim.AdamW`` takes them; so are all arguments but gamma and decay.
        lr: Learning rate eta, a float or a tensor of one element.
        betas: Decay rates of the moments m and v.
        eps: Added to gamma sqrt(v).
        weight_decay: Weight decay lambda.
        amsgrad: Use the largest v so far.
        gamma: A number above 0, or a callable that is asked at every step, after the step's closure.
        decay: ``keep``, ``scale`` or ``paper``, see :class:`Form`.
        maximize: Maximise the objective.
        foreach: Use the foreach kernels; None: torch decides.
        capturable: May be captured in a CUDA graph, which keeps the gamma of its capture.
        differentiable: Steps can be differentiated.
        fused: Use the fused kernel; None: torch decides.

    Raises:
        ConfigError: gamma or decay is wrong.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        gamma: float | Callable[[], float] = 1.0,
        decay: Form | str = Form.DECELERATE,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        self.gamma = gamma
        self.form = Form.of(decay)
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )

    @property
    def gamma(self) -> float | Callable[[], float]:
        """Gamma, or what is asked for it; may be set at any time."""
        return self._gamma.source

    @gamma.setter
    def gamma(self, source: float | Callable[[], float]) -> None:
        self._gamma = Gamma(source)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step and return the loss of the closure, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with rescaled(self.param_groups, self.form, self._gamma()):
            _stock_step(self)
        return loss

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied or pickled: a number as gamma, but no callable, which belongs to a run."""
        gamma = 1.0 if callable(self.gamma) else self.gamma
        return {**super().__getstate__(), "gamma": gamma, "form": self.form}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "gamma" in state:  # not when a state_dict is loaded
            self.gamma = state.pop("gamma")
        super().__setstate__(state)  # type: ignore[no-untyped-call]


def _stock_step(optimizer: torch.optim.AdamW) -> None:
    step: Any = AdamW.step  # not torch.optim's, in whose place somebody may have put GearAdamW
    while getattr(step, "hooked", False):  # torch's wrapper, which would run our step hooks a second time
        step = step.__wrapped__
    step(optimizer)


NUMBERS = ("lr", "betas", "eps", "weight_decay")
"""What the groups of an Adam hold."""
OTHERS = ("Adamax", "NAdam", "RAdam", "SparseAdam", "ScheduleFree", "OnebitAdam", "ZeroOneAdam")
"""Adam by name, but with another step: torch/optim, schedulefree, deepspeed/runtime/fp16/onebit (0.19.8)."""
WRAPPED = ("optimizer", "optim")
"""Where wrappers keep theirs: accelerate, Lightning, DeepSpeed's engines and ZeRO; torch's ZeroRedundancyOptimizer."""


def unwrap(optimizer: Any) -> Optimizer:
    """Return the optimizer whose own step is called in the end.

    ZeRO calls it once for every sub-group of parameters, always with the same groups of numbers.

    Args:
        optimizer: A torch optimizer, or a wrapper around one such as accelerate's, Lightning's or DeepSpeed's.

    Raises:
        ConfigError: There is no torch optimizer in it.
    """
    inner = optimizer
    for _ in range(8):  # engine > accelerate > ZeRO > base is 4; a wrapper of itself must not hang
        held = [getattr(inner, name, None) for name in WRAPPED]
        held = [one for one in held if hasattr(one, "param_groups")]
        if not held:
            break
        inner = held[0]
    if not isinstance(inner, Optimizer):
        raise ConfigError(
            f"optimizer is a {type(optimizer).__name__}, in which there is no torch.optim.Optimizer whose step could be"
            " slowed down: pass the optimizer that takes the step, or set precision.gamma to 1.0"
        )
    return inner


def decoupled(optimizer: Optimizer) -> bool | None:
    """Return whether weight decay is AdamW's (True) or Adam's L2 term (False); None: unknown.

    Groups of torch's Adam say so themselves (``decoupled_weight_decay``).
    """
    if any("AdamW" in name for name in _ancestors(optimizer)):
        return True
    for flag in ("adam_w_mode", "is_adamw"):  # DeepSpeed 0.19.8, Apex and Transformer Engine; torchao 0.18
        if hasattr(optimizer, flag):
            return bool(getattr(optimizer, flag))
    if getattr(optimizer, "optimizer_name", None) == "adam":  # bitsandbytes 0.50.2: both names run the AdamW kernel
        return True
    return False if isinstance(optimizer, Adam) else None


def check(optimizer: Optimizer, form: Form) -> None:
    """Make sure that a form is exact for an optimizer.

    Raises:
        ConfigError: The optimizer is no Adam, or the form does not exist for it; says why and what to do.
    """
    name = type(optimizer).__name__
    ancestors = _ancestors(optimizer)
    missing = sorted({key for group in optimizer.param_groups for key in NUMBERS if key not in group})
    if missing or not any("Adam" in a for a in ancestors) or any(o in a for o in OTHERS for a in ancestors):
        why = f", whose groups lack {', '.join(missing)}" if missing else ", whose step is not Adam's"
        raise ConfigError(
            f"optimizer is {name}{why}: gamma is defined for Adam and AdamW. Train with AdamW, or set precision.gamma"
            " to 1.0 to leave the optimizer alone"
        )
    decays = any(group["weight_decay"] for group in optimizer.param_groups)
    if form is Form.DECELERATE and decays and decoupled(optimizer) is None:
        raise ConfigError(
            f"optimizer is {name}, which does not tell whether its weight decay is AdamW's or an L2 term: set its"
            " attribute adam_w_mode to True or False, set weight_decay to 0, or use decay 'scale'"
        )
    if form is Form.LITERAL:
        _check_literal(optimizer, decays)


def _check_literal(optimizer: Optimizer, decays: bool) -> None:
    # bitsandbytes and DeepSpeed skip a decay that is not above 0; a captured graph would keep lambda/eta of one step.
    stock = isinstance(optimizer, AdamW)
    if decays and (not stock or any(group.get("capturable") for group in optimizer.param_groups)):
        raise ConfigError(
            f"decay is 'paper' on {type(optimizer).__name__}: the growing weights of Eq. (11) need a negative decay"
            " that changes with lr, which only torch.optim.AdamW with capturable=False takes; use that, or no decay"
        )


def _ancestors(optimizer: Optimizer) -> list[str]:
    return [cls.__name__ for cls in type(optimizer).__mro__]


def adapt(optimizer: Any, gamma: float | Callable[[], float], decay: Form | str = Form.DECELERATE) -> "Adapted":
    """Let gamma slow down every step of an Adam or AdamW, until ``remove()``.

    Where gamma is 1 nothing is touched, so the step is bit-identical. LR schedulers, clipping, GradScaler, checkpoints,
    amsgrad and maximize work as without it. Copies and pickles of the optimizer are plain.

    * DeepSpeed: pass the engine or its optimizer. ZeRO 3 calls step once for every sub-group, so gamma must not change
      before all are through. SuperOffload and ZenFlow go around step, and so around gamma.
    * bitsandbytes: parameters with numbers of their own (``override_config``) keep them.
    * torchao compiles its kernel once for every value of eps and lambda: let gamma take few values, such as one a gear,
      or use decay ``scale``. ``torch.compile(optimizer.step)`` compiles twice, whatever values follow (torch 2.13).
    * CUDA graphs (``capturable=True``): hooks run at capture, not at replay, so a graph keeps the gamma it was captured
      with: capture one for each gear. A scheduler still works if lr is a tensor.
    * All ranks must use the same gamma at the same step.

    Args:
        optimizer: Adam of torch (for-loop, foreach, fused or capturable), of DeepSpeed, bitsandbytes or torchao;
            or the wrapper of a framework around one.
        gamma: A number above 0, or a callable that is asked at every step, after the step's closure.
        decay: ``keep``, ``scale`` or ``paper``, see :class:`Form`.

    Raises:
        ConfigError: The optimizer's step is not Adam's, or it is adapted already.
    """
    base = unwrap(optimizer)
    form = Form.of(decay)
    check(base, form)
    if any(isinstance(getattr(h, "__self__", None), Adapted) for h in base._optimizer_state_dict_post_hooks.values()):
        raise ConfigError(
            f"optimizer {type(base).__name__} is adapted already, and gammas would multiply: remove() that"
        )
    if isinstance(base, GearAdamW) and base.gamma != 1.0:
        raise ConfigError(
            "optimizer is a GearAdamW with a gamma of its own, and gammas would multiply: leave its gamma at 1.0, or"
            " set precision.gamma to 1.0"
        )
    return Adapted(base, Gamma(gamma), form)


class Adapted:
    """What :func:`adapt` did to one optimizer.

    Args:
        optimizer: Optimizer that :func:`greentrain.optim.adapt.check` passes.
        gamma: Reader of gamma, asked at every step.
        form: Form in which gamma enters a step.
    """

    def __init__(self, optimizer: Optimizer, gamma: Gamma, form: Form) -> None:
        self.form = form
        self._gamma = gamma
        self._decoupled = decoupled(optimizer) is not False
        self._loan = TemporaryParamGroups()
        # Dynamo must not trace them: it specialises on gamma and gets the identity of floats wrong (torch 2.13).
        disable: Any = torch.compiler.disable
        before, after = disable(self._before), disable(self._after)
        self._undo: list[Callable[[], None]] = [
            optimizer.register_step_pre_hook(before).remove,
            optimizer.register_step_post_hook(after).remove,
            optimizer.register_state_dict_post_hook(self._put_right).remove,
            _finally(optimizer, after),
        ]

    def remove(self) -> None:
        """Take the hooks off. Idempotent."""
        self._loan.end()
        while self._undo:
            self._undo.pop()()

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._lend(optimizer)
            return None

        def then_lend() -> Any:
            self._loan.end()
            loss = closure()
            self._lend(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], then_lend, *args[2:]), kwargs
        return args, {**kwargs, "closure": then_lend}

    def _lend(self, optimizer: Optimizer) -> None:
        # Still lent: a step raised and somebody had replaced optimizer.step, and our finally with it; or a subclass
        # calls super().step(), where torch runs the hooks again.
        self._loan.end()
        self._loan.give(optimizer.param_groups, self.form, self._gamma(), decoupled=self._decoupled)

    def _after(self, *_: Any) -> None:
        self._loan.end()

    def _put_right(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        for group, packed in zip(optimizer.param_groups, state["param_groups"], strict=True):
            packed.update(self._loan.own(group))


def _finally(optimizer: Optimizer, action: Callable[[], None]) -> Callable[[], None]:
    """Run an action after every ``optimizer.step``, also one that raises. Returns what undoes that."""
    earlier = vars(optimizer).get("step")  # an LR scheduler's wrapper, say
    step = type(optimizer).step if earlier is None else earlier

    @functools.wraps(step)  # keeps the marks of LR schedulers and of torch's own hooks
    def guarded(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, *args, **kwargs) if earlier is None else step(*args, **kwargs)
        finally:
            action()

    method = MethodType(guarded, optimizer)  # bound: LR schedulers take it apart
    vars(optimizer)["step"] = method

    def undo() -> None:
        if vars(optimizer).get("step") is not method:
            return  # wrapped by somebody else since: it stays, and does nothing
        if earlier is None:
            del vars(optimizer)["step"]
        else:
            vars(optimizer)["step"] = earlier

    return undo
