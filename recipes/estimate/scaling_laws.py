"""Loss over parameters and tokens, and the best split of a compute budget between them.

Losses are nats per token on the data and with the tokenizer of each law's authors: laws are not comparable with each
other, nor with another model's loss. What lies outside the runs that a law was fitted to is said to be extrapolated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from greentrain.errors import ConfigError
from greentrain.estimate.model_shape import FLOP_PER_PARAMETER_TOKEN, ModelShape
from greentrain.utils.validation import bound

_FINE: Final = "Ludziejewski et al., arXiv 2402.07871, as a summary of the paper quotes it"
_DENSE_PER_BLOCK: Final = 12.0
"""Parameters of a dense block over d^2: attention 4, a perceptron of two matrices and width 4 d 8."""
_WIDTH_PER_BLOCK: Final = 64.0
"""d of a model over the number of its blocks, as the authors of the fine-grained law scale them."""
_BLOCK_FLOP: Final = FLOP_PER_PARAMETER_TOKEN
_ROUTING_FLOP: Final = 14.0
"""Of a router's weight and token, as the authors count it."""
_MOST: Final = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """One model that was, or would be, trained."""

    total_parameters: float
    active_parameters: float
    tokens: float
    flop: float
    loss: float
    """Nats per token."""
    extrapolated: tuple[str, ...]
    """What lies outside the runs that the law was fitted to; empty: nothing."""

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens over active parameters."""
        return self.tokens / self.active_parameters


class ScalingLaw(Protocol):
    """A law that can be followed along compute."""

    def best(self, flop: float) -> ScalingPoint:
        """Return the model of least loss for a compute budget (FLOP)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLaw:
    """``loss = c + a / N^alpha + b / D^beta``, with 6 N D FLOP."""

    a: float
    alpha: float
    b: float
    beta: float
    c: float
    embeddings: bool
    """True: N counts the embeddings."""
    parameters_fitted: tuple[float, float]
    tokens_fitted: tuple[float, float]
    source: str

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss (nats per token)."""
        bound("parameters", parameters, 1.0, _MOST)
        bound("tokens", tokens, 1.0, _MOST)
        return float(self.c + self.a / parameters**self.alpha + self.b / tokens**self.beta)

    def at(self, parameters: float, tokens: float) -> ScalingPoint:
        """Return the loss and the compute of a model."""
        return ScalingPoint(
            total_parameters=parameters,
            active_parameters=parameters,
            tokens=tokens,
            flop=FLOP_PER_PARAMETER_TOKEN * parameters * tokens,
            loss=self.loss(parameters, tokens),
            extrapolated=_outside(parameters, self.parameters_fitted, tokens, self.tokens_fitted),
        )

    def of(self, shape: ModelShape, tokens: float) -> ScalingPoint:
        """Return the loss of a dense model after so many tokens.

        Args:
            shape: Shape of the model.
            tokens: Number of training tokens.

        Raises:
            ConfigError: The model has experts.
        """
        if shape.is_moe:
            raise ConfigError(f"{shape.name} has experts: a law of dense models does not hold for it")
        return self.at(shape.total_parameters - (0.0 if self.embeddings else shape.embedding_parameters), tokens)

    def best(self, flop: float) -> ScalingPoint:
        """Return the model of least loss for a compute budget (FLOP): the optimum in closed form."""
        bound("flop", flop, 1e6, 1e36)
        product = flop / FLOP_PER_PARAMETER_TOKEN
        ratio = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        parameters = ratio * product ** (self.beta / (self.alpha + self.beta))
        return self.at(parameters, product / parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class FineGrainedLaw:
    """``loss = c + (g / G^gamma + a) / N^alpha + b / D^beta`` of a mixture of G E experts, G of them at a token.

    N is the TOTAL number of parameters without embeddings, every expert counted; the FLOP are those of the ACTIVE ones,
    and of routing. Mixing them up is an error of 0.3 to 0.5 nats.
    """

    a: float
    alpha: float
    b: float
    beta: float
    c: float
    g: float
    gamma: float
    expansion: int
    """Experts' parameters over those of the one perceptron that they replace; the law was fitted to this one alone."""
    granularity_fitted: tuple[float, float]
    parameters_fitted: tuple[float, float]
    tokens_fitted: tuple[float, float]
    source: str

    def loss(self, total_parameters: float, tokens: float, granularity: float) -> float:
        """Return the loss (nats per token).

        Args:
            total_parameters: Number of parameters, all experts included, without the embeddings.
            tokens: Training tokens.
            granularity: Width of a dense perceptron over that of an expert.
        """
        bound("total_parameters", total_parameters, 1.0, _MOST)
        bound("tokens", tokens, 1.0, _MOST)
        bound("granularity", granularity, 1.0, 1e4)
        share = self.g / granularity**self.gamma + self.a
        return float(self.c + share / total_parameters**self.alpha + self.b / tokens**self.beta)

    def at(self, active_parameters: float, tokens: float, granularity: float) -> ScalingPoint:
        """Return the loss and the compute of a model of the authors' family: width 64 a block, perceptrons of 4 d."""
        bound("active_parameters", active_parameters, 1.0, _MOST)
        blocks = (active_parameters / (_DENSE_PER_BLOCK * _WIDTH_PER_BLOCK**2)) ** (1 / 3)
        width = _WIDTH_PER_BLOCK * blocks
        total = blocks * width**2 * (4.0 + 8.0 * self.expansion)
        return ScalingPoint(
            total_parameters=total,
            active_parameters=active_parameters,
            tokens=tokens,
            flop=self.flop(blocks, width, granularity) * tokens,
            loss=self.loss(total, tokens, granularity),
            extrapolated=_outside(total, self.parameters_fitted, tokens, self.tokens_fitted)
            + _beyond("granularity", granularity, self.granularity_fitted),
        )

    def flop(self, blocks: float, width: float, granularity: float) -> float:
        """Return the training FLOP of a token, routing counted."""
        routing = width * self.expansion * granularity * _ROUTING_FLOP
        return blocks * (_DENSE_PER_BLOCK * width**2 * _BLOCK_FLOP + routing)

    def of(self, shape: ModelShape, tokens: float, sequence: int = 2048) -> ScalingPoint:
        """Return the loss of a mixture of experts after so many tokens; its granularity is its experts a token.

        Args:
            shape: Shape of the model.
            tokens: Number of training tokens.
            sequence: Tokens of a sequence, for the FLOP of attention.

        Raises:
            ConfigError: The model is dense.
        """
        if not shape.is_moe:
            raise ConfigError(f"{shape.name} is dense: a law of mixtures of experts does not hold for it")
        total = shape.total_parameters - shape.embedding_parameters
        granularity = float(shape.experts_per_token)
        expansion = shape.experts / shape.experts_per_token
        return ScalingPoint(
            total_parameters=total,
            active_parameters=shape.active_parameters - shape.embedding_parameters,
            tokens=tokens,
            flop=shape.flop_per_token(sequence) * tokens,
            loss=self.loss(total, tokens, granularity),
            extrapolated=_outside(total, self.parameters_fitted, tokens, self.tokens_fitted)
            + _beyond("granularity", granularity, self.granularity_fitted)
            + _beyond("expansion", expansion, (self.expansion, self.expansion)),
        )

    def best(self, flop: float, granularity: float | None = None) -> ScalingPoint:
        """Return the model of least loss for a compute budget (FLOP).

        Args:
            flop: Compute budget (FLOP).
            granularity: Width of a dense perceptron over that of an expert; None: the best power of two fitted.
        """
        bound("flop", flop, 1e12, 1e36)
        if granularity is None:
            low, high = self.granularity_fitted
            powers = [2.0**i for i in range(int(math.log2(low)), int(math.log2(high)) + 1)]
            return min((self.best(flop, power) for power in powers), key=lambda point: point.loss)

        def spent(logarithm: float) -> ScalingPoint:
            one = self.at(math.exp(logarithm), 1.0, granularity)
            return self.at(one.active_parameters, max(flop / one.flop, 1.0), granularity)

        low, high = math.log(1e4), min(math.log(flop / FLOP_PER_PARAMETER_TOKEN), math.log(_MOST / 100))
        golden = (math.sqrt(5.0) - 1.0) / 2.0
        while high - low > 1e-6:  # the loss has one minimum along a budget
            left, right = high - golden * (high - low), low + golden * (high - low)
            low, high = (low, right) if spent(left).loss < spent(right).loss else (left, high)
        return spent((low + high) / 2)


def curve(law: ScalingLaw, flops: Sequence[float]) -> tuple[ScalingPoint, ...]:
    """Return the best model of each compute budget (FLOP): loss over compute."""
    return tuple(law.best(flop) for flop in flops)


def _outside(
    parameters: float, parameters_fitted: tuple[float, float], tokens: float, tokens_fitted: tuple[float, float]
) -> tuple[str, ...]:
    return _beyond("parameters", parameters, parameters_fitted) + _beyond("tokens", tokens, tokens_fitted)


def _beyond(name: str, value: float, fitted: tuple[float, float]) -> tuple[str, ...]:
    low, high = fitted
    if low <= value <= high:
        return ()
    runs = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    return (f"{name} {value:.3g}: the law was fitted to {runs}",)


CHINCHILLA: Final = DenseLaw(
    a=406.4,
    alpha=0.34,
    b=410.7,
    beta=0.28,
    c=1.69,
    embeddings=True,
    parameters_fitted=(70e6, 16e9),
    tokens_fitted=(5e9, 500e9),
    source="Hoffmann et al., arXiv 2203.15556, third approach, constants as printed; they favour smaller models and"
    " more tokens than its first two approaches (arXiv 2404.10102)",
)
CHINCHILLA_REFITTED: Final = DenseLaw(
    a=482.01,
    alpha=0.3478,
    b=2085.43,
    beta=0.3658,
    c=1.8172,
    embeddings=True,
    parameters_fitted=(70e6, 16e9),
    tokens_fitted=(5e9, 500e9),
    source="Besiroglu et al., arXiv 2404.10102: Hoffmann's runs, read from the plots and fitted again",
)
DENSE: Final = DenseLaw(
    a=16.3,
    alpha=0.126,
    b=26.7,
    beta=0.127,
    c=0.47,
    embeddings=False,
    parameters_fitted=(129e6, 3.7e9),
    tokens_fitted=(16e9, 130e9),
    source=f"{_FINE}: dense models on C4",
)
FINE_GRAINED: Final = FineGrainedLaw(
    a=18.1,
    alpha=0.115,
    b=30.8,
    beta=0.147,
    c=0.47,
    g=2.1,
    gamma=0.58,
    expansion=64,
    granularity_fitted=(1.0, 16.0),
    parameters_fitted=(129e6, 3.7e9),
    tokens_fitted=(16e9, 130e9),
    source=f"{_FINE}: 64 times the experts' parameters, C4; granularities fitted as recalled",
)
