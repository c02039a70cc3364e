"""AdamW with gamma, written down in float64 from its formula and from nothing in the package."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6}
KERNELS: dict[str, dict[str, Any]] = {
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


@dataclass(kw_only=True)
class Problem:
    """Parameters of random shapes and their gradients at every step."""

    shapes: Sequence[tuple[int, ...]] = ((7, 5), (3,), ())
    steps: int = 10
    dtype: torch.dtype = torch.float64
    grad_scale: float = 1.0
    seed: int = 0
    device: str = "cpu"
    theta: list[Tensor] = field(init=False)
    grads: list[list[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        source = torch.Generator().manual_seed(self.seed)

        def draw(scale: float) -> list[Tensor]:
            drawn = [torch.randn(shape, generator=source, dtype=torch.float64) * scale for shape in self.shapes]
            return [one.to(self.device, self.dtype) for one in drawn]

        self.theta = draw(1.0)
        self.grads = [draw(self.grad_scale) for _ in range(self.steps)]

    def params(self) -> list[torch.nn.Parameter]:
        """Return new parameters at the start."""
        return [torch.nn.Parameter(theta.clone()) for theta in self.theta]


def train(
    optimizer: Optimizer,
    params: Sequence[Tensor],
    problem: Problem,
    before: Callable[[int], object] = lambda step: None,
) -> None:
    """Step through the gradients of a problem."""
    for step, grads in enumerate(problem.grads):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        before(step)
        optimizer.step()


def reference(
    problem: Problem,
    gammas: Sequence[float],
    *,
    lr: float | Sequence[float] = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    form: str = "keep",
    amsgrad: bool = False,
    maximize: bool = False,
    l2: bool = False,
) -> list[Tensor]:
    """Return the parameters after all steps, in float64."""
    rates = [lr] * problem.steps if isinstance(lr, (int, float)) else list(lr)
    out = []
    for index, start in enumerate(problem.theta):
        theta = start.double().cpu()
        m, v, largest = torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros_like(theta)
        for step, (eta, gamma) in enumerate(zip(rates, gammas, strict=True), 1):
            g = problem.grads[step - 1][index].double().cpu() * (-1 if maximize else 1)
            if l2:
                g = g + weight_decay * theta
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g * g
            largest = torch.maximum(largest, v)
            m_hat = m / (1 - betas[0] ** step)
            root = ((largest if amsgrad else v) / (1 - betas[1] ** step)).sqrt()
            decay = 0.0 if l2 else eta * weight_decay * theta
            if form == "keep":
                theta = theta - eta * m_hat / (gamma * root + eps) - decay
            elif form == "scale":
                theta = theta - (eta * m_hat / (root + eps) + decay) / gamma
            else:
                theta = theta - eta * m_hat / (root / gamma + eps) + weight_decay * theta
        out.append(theta)
    return out


def error(problem: Problem, params: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference, relative to the largest element that its tensor has at the start or end."""
    return max(
        ((param.detach().double().cpu() - want).abs().max() / torch.stack([start.cpu(), want]).abs().max()).item()
        for start, param, want in zip(problem.theta, params, expected, strict=True)
    )
