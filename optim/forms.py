"""The forms of an AdamW step with gamma, each written as a stock step with other numbers.

Every AdamW kernel (torch for-loop, foreach and fused, DeepSpeed, bitsandbytes, torchao) computes, with learning rate
eta, decay lambda and the bias-corrected moments m and v,

    theta <- theta - eta lambda theta - eta m / (sqrt(v) + eps)

and reads eta, eps and lambda from the param group at every step. So a form costs three floats a group, not a kernel:

    form         update of theta                                        eta'       eps'       lambda'
    decelerate   - eta m / (gamma sqrt(v) + eps) - eta lambda theta     eta/gamma  eps/gamma  lambda gamma
    scale        (- eta m / (sqrt(v) + eps) - eta lambda theta) / gamma eta/gamma  eps        lambda
    literal      - eta m / (sqrt(v)/gamma + eps) + lambda theta         eta gamma  eps gamma  -lambda/(eta gamma)

Decelerate: take gamma out of the denominator, gamma sqrt(v) + eps = gamma (sqrt(v) + eps/gamma); the step is then stock
with eta/gamma and eps/gamma, and eta' lambda' = eta lambda keeps the decay of a step what it was.

Literal: sqrt(v)/gamma + eps = (sqrt(v) + gamma eps)/gamma, and a stock step decays by eta' lambda', which has to be
-lambda.

What the paper says and what its formula does. CarbonGearRL, Eq. (11), divides sqrt(v) by gamma = sigma_p / sigma_BF16
(about 4 in FP8) and adds lambda theta, "thus automatically decelerating". Read literally it accelerates: as long as
sqrt(v) is much larger than gamma eps a step is gamma times as long, 4 times in FP8. And + lambda theta is growth, by
(1 + lambda)^t, not decay, and not multiplied by eta. The form decelerate is what the sentence around the formula
describes: gamma multiplies sqrt(v), the decay is subtracted and multiplied by eta. The configuration's
``gamma: paper`` means that corrected form with the paper's constant; the formula as printed is only here,
for whoever wants to reproduce it.

Adam with L2 decay (``torch.optim.Adam(weight_decay=...)``) has no term of its own for decay: lambda theta is part of
the gradient and so of m and v. There gamma acts on the whole step and lambda' = lambda; literal has no equivalent.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from torch import Tensor

from greentrain.errors import ConfigError
from greentrain.utils.never_raise import warn
from greentrain.utils.validation import nearest

LR = TypeVar("LR", float, Tensor)

PAPER_GAMMA: Final = 4.0
"""CarbonGearRL, Eq. (11): sigma_FP8 / sigma_BF16 "about 4". The ratio measures 11 to 14; what Adam sees, the noise
between minibatches included, is 1.001 to 1.02 (0.8 M parameter GPT, torch 2.13, 2026-11-21)."""


class Form(StrEnum):
    """How gamma enters a step; see the table above. The values are those of ``precision.decay``."""

    DECELERATE = "keep"
    """Slower by up to gamma, weight decay a step as without gamma."""
    SCALE = "scale"
    """The learning rate divided by gamma, decay with it; eps and lambda stay, so captured graphs stay valid."""
    LITERAL = "paper"
    """Eq. (11) as printed: faster, and weights grow. For reproduction, on torch.optim.AdamW only."""

    @classmethod
    def of(cls, name: "Form | str") -> "Form":
        """Return the form of a name.

        Raises:
            ConfigError: There is none; names the nearest.
        """
        try:
            return cls(name)
        except ValueError:
            raise ConfigError(f"decay is {name!r}; known: {', '.join(cls)}{nearest(str(name), cls)}") from None

    def leaves_alone(self, gamma: float) -> bool:
        """Return whether a step with this gamma is the stock step. Eq. (11) grows weights at every gamma."""
        return gamma == 1.0 and self is not Form.LITERAL

    def numbers(
        self, lr: LR, eps: float, weight_decay: float, gamma: float, *, decoupled: bool = True
    ) -> tuple[LR, float, float]:
        """Return eta', eps' and lambda' that make a stock step one of this form.

        Args:
            lr: Learning rate eta, a float or a tensor of one element, which is not written to.
            eps: Added to sqrt(v).
            weight_decay: Weight decay lambda.
            gamma: Factor by which a step is slower, above 0.
            decoupled: Decay is AdamW's; False: it is Adam's L2 term.
        """
        if self is Form.SCALE:
            return lr / gamma, eps, weight_decay
        if self is Form.DECELERATE:
            return lr / gamma, eps / gamma, weight_decay * gamma if decoupled else weight_decay
        rate = float(lr) * gamma
        # A stock step cannot grow weights at eta = 0: a warm-up that starts there does so one step later.
        return lr * gamma, eps * gamma, -weight_decay / rate if rate and weight_decay else 0.0


class Gamma:
    """Reads gamma.

    Args:
        source: A number above 0, or a callable without arguments that returns one.

    Raises:
        ConfigError: The number is not above 0 and finite.
    """

    def __init__(self, source: float | Callable[[], float]) -> None:
        self.source = source
        self._warned = False
        if not callable(source) and not _valid(float(source)):
            raise ConfigError(
                f"gamma is {source!r}; it must be a finite number above 0, or a callable that returns one"
            )

    def __call__(self) -> float:
        """Return gamma. A callable's value that makes no sense counts as 1, with one warning: training goes on."""
        if not callable(self.source):
            return float(self.source)
        value = float(self.source())
        if _valid(value):
            return value
        if not self._warned:
            self._warned = True
            warn(f"gamma() returned {value!r}, not a finite number above 0; such steps are plain AdamW's")
        return 1.0


def _valid(gamma: float) -> bool:
    return math.isfinite(gamma) and gamma > 0


ParamGroup = dict[str, Any]


class TemporaryParamGroups:
    """Puts rescaled lr, eps and weight_decay into groups and takes them back.

    A tensor lr is replaced by another tensor, never written to: it may be shared between groups, belong to a captured
    graph, or have a scheduler that fills it.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[ParamGroup, ParamGroup, ParamGroup]] = []  # group, its own numbers, those lent to it

    def give(self, groups: Sequence[ParamGroup], form: Form, gamma: float, *, decoupled: bool) -> None:
        """Rescale the groups until :meth:`end`.

        Args:
            groups: ``optimizer.param_groups``.
            form: Form in which gamma enters a step.
            gamma: Factor by which a step is slower, above 0; nothing is touched where the form leaves it alone.
            decoupled: Whether decay is AdamW's, for a group that does not say so itself.
        """
        if form.leaves_alone(gamma):
            return
        for group in groups:
            own = {key: group[key] for key in ("lr", "eps", "weight_decay")}
            new = form.numbers(
                own["lr"],
                own["eps"],
                own["weight_decay"],
                gamma,
                decoupled=group.get("decoupled_weight_decay", decoupled),
            )
            lent = dict(zip(own, new, strict=True))
            self._lent.append((group, own, lent))
            group.update(lent)

    def end(self) -> None:
        """Give every group its own numbers back, except one that somebody has set since. Idempotent."""
        while self._lent:
            group, own, lent = self._lent.pop()
            group.update({key: own[key] for key in own if group.get(key) is lent[key]})

    def own(self, group: ParamGroup) -> ParamGroup:
        """Return a group's own numbers while it holds lent ones, else nothing."""
        return next((own for lender, own, _ in self._lent if lender is group), {})


@contextlib.contextmanager
def rescaled(groups: Sequence[ParamGroup], form: Form, gamma: float) -> Iterator[None]:
    """Rescale the groups of an AdamW in a block, whatever happens in it."""
    loan = TemporaryParamGroups()
    try:
        loan.give(groups, form, gamma, decoupled=True)
        yield
    finally:
        loan.end()
