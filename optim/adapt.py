"""Any AdamW, slowed down by gamma: hooks around its step, none of its code.

::

    pre-hook: lend eta', eps', lambda' --> the optimizer's own kernel --> post-hook: take them back

Whoever looks at the groups between two steps (schedulers, loggers, checkpoints) finds the user's numbers. So does a
closure, which is where a forward and backward pass can fail: numbers are lent only after it. A kernel that raises skips
the post-hook, hence a ``finally`` around this optimizer's ``step``; and ``state_dict`` is put right even if somebody
calls it from another step hook.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer

from greentrain.errors import ConfigError
from greentrain.optim.family import check, decoupled, unwrap
from greentrain.optim.forms import Form, Gamma
from greentrain.optim.gear_adamw import GearAdamW
from greentrain.optim.groups import TemporaryParamGroups


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
        optimizer: For-loop, foreach, fused or capturable Adam of torch; of DeepSpeed, bitsandbytes or torchao;
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
        optimizer: One that :func:`greentrain.optim.family.check` passes.
        gamma: Read at every step.
        form: How it enters.
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
