"""What another precision does to the log-probabilities of a reference policy, and to the KL penalty made of them.

Tokens are drawn from the policy q; p is the reference. With r = p / q of a token, three estimators of KL(q || p) are in
use (J. Schulman, "Approximating KL Divergence", joschu.net/blog/kl-approx.html, 2020)::

    k1 = -log r                unbiased, of high variance, often negative
    k2 = (log r)^2 / 2         biased, of low variance
    k3 = (r - 1) - log r       unbiased, of low variance, never negative

"Unbiased" speaks of the value and of tokens drawn from q itself. GRPO puts k3 into the loss. An offloaded reference
replaces p by p', and the penalty changes by what :func:`penalty_bias` measures.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.quality.pairs import Floats, scored


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobShift:
    """Absolute differences of log-probabilities, by token (nats)."""

    mean: float
    p99: float
    most: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kl:
    """Estimates of KL(policy || reference), nats a token: mean over tokens that the policy drew."""

    k1: float
    k2: float
    k3: float
    k3_error: float
    """Standard error of k3's mean, tokens taken for independent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """A change of a mean (nats a token)."""

    mean: float
    error: float
    """Its standard error, from the same tokens under both, taken for independent."""


def logprob_shift(reference: npt.ArrayLike, candidate: npt.ArrayLike) -> LogprobShift:
    """Return how far log-probabilities of the same tokens lie apart.

    Args:
        reference: Log-probabilities in FP32 [tokens].
        candidate: Log-probabilities of the same tokens in another precision [tokens].

    Raises:
        ValueError: They are not finite, not of the same tokens, or none.
    """
    first, second = _tokens(reference, candidate)
    moved = np.abs(second - first)
    return LogprobShift(
        mean=float(moved.mean()), p99=float(np.quantile(moved, 0.99)), most=float(moved.max()), tokens=len(moved)
    )


def kl(policy: npt.ArrayLike, reference: npt.ArrayLike) -> Kl:
    """Estimate KL(policy || reference).

    Args:
        policy: Log-probabilities under the policy that drew the tokens [tokens].
        reference: Log-probabilities of the same tokens under the reference [tokens].

    Raises:
        ValueError: They are not finite, not of the same tokens, or none.
    """
    drew, other = _tokens(policy, reference)
    log_r = other - drew
    k3 = _k3(log_r)
    return Kl(k1=float(-log_r.mean()), k2=float((log_r**2).mean() / 2), k3=float(k3.mean()), k3_error=_error(k3))


def penalty_bias(policy: npt.ArrayLike, reference: npt.ArrayLike, candidate: npt.ArrayLike) -> Bias:
    """Return by how much the mean k3 penalty changes when a candidate answers for the reference (nats a token).

    Args:
        policy: Log-probabilities under the policy that drew the tokens [tokens].
        reference: Log-probabilities of the same tokens under the reference in FP32 [tokens].
        candidate: Log-probabilities of the same tokens under the offloaded reference [tokens].

    Raises:
        ValueError: They are not finite, not of the same tokens, or none.
    """
    drew, first = _tokens(policy, reference)
    change = _k3(_tokens(policy, candidate)[1] - drew) - _k3(first - drew)
    return Bias(mean=float(change.mean()), error=_error(change))


def _k3(log_r: Floats) -> Floats:
    found: Floats = np.expm1(log_r) - log_r
    return found


def _error(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _tokens(first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[Floats, Floats]:
    a = scored(first, "log-probabilities")
    b = scored(second, "the other log-probabilities", len(a))
    if not len(a):
        raise ValueError("there are no tokens to compare")
    return a, b
