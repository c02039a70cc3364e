"""Which optimizers take a stock AdamW step, found under their wrappers and told by their class and flags.

A form (:mod:`greentrain.optim.forms`) is exact only for theta -= lr m / (sqrt(v) + eps). Lamb's trust ratio, Adamax'
maximum or Adafactor's factors are other steps, so they are refused rather than changed in an unknown way.
"""

from typing import Any

from torch.optim import Adam, AdamW, Optimizer

from greentrain.errors import ConfigError
from greentrain.optim.forms import Form

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
        ConfigError: It is no Adam, or the form does not exist for it; says why and what to do.
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
