"""torch.optim.AdamW with a gamma."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from greentrain.optim.forms import Form, Gamma, rescaled


class GearAdamW(torch.optim.AdamW):
    """AdamW that slows down by gamma, on torch's own kernels.

    With gamma 1 it is ``torch.optim.AdamW``, bit for bit. Its state_dict is AdamW's and loads both ways: gamma belongs
    to the gear of a run, not to the state of the optimizer.

    Args:
        params: As for ``torch.optim.AdamW``, and so are all arguments but gamma and decay.
        lr: Learning rate eta, a float or a tensor of one element.
        betas: Decay rates of the moments m and v.
        eps: Added to gamma sqrt(v).
        weight_decay: lambda.
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
    step: Any = torch.optim.AdamW.step
    while getattr(step, "hooked", False):  # torch's wrapper, which would run our step hooks a second time
        step = step.__wrapped__
    step(optimizer)
