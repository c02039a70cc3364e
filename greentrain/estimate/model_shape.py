"""The shape of a transformer, dense or with experts: parameters in all, parameters that a token meets, FLOP a token.

Total and active parameters differ in a mixture of experts: memory and scaling laws of fine-grained mixtures speak of
the total, FLOP of the active ones. A shape is given whole, by flags of the command line, or as a number of parameters
alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.utils.validation import bound

FLOP_PER_PARAMETER_TOKEN = 6.0
"""Forward 2 and backward 4 (Kaplan et al., arXiv 2001.08361, section 2.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder. Numbers of layers and widths; nothing about weights."""

    name: str
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    """Inner width of a dense layer's perceptron; 0 if every layer has experts."""
    gated: bool
    """True: three matrices in a perceptron (SwiGLU), False: two."""
    vocabulary: int
    tied: bool = False
    """True: the output head is the embedding."""
    experts: int = 0
    """Routed experts of a layer that has any; 0: dense."""
    experts_per_token: int = 0
    d_expert: int = 0
    """Inner width of an expert."""
    d_shared: int = 0
    """Inner width of what every token meets beside its experts."""
    expert_layers: int = 0
    """How many of the layers have experts."""
    published_total: float | None = None
    """Parameters as its makers state them, where the shape does not tell all (biases, other kinds of layers)."""
    published_active: float | None = None
    sketched: bool = False
    """True: only the size is known, layers and widths stand in for it; good for FLOP and not for layouts."""

    def __post_init__(self) -> None:
        for name in ("layers", "d_model", "heads", "kv_heads", "head_dim", "vocabulary"):
            bound(f"{self.name}.{name}", getattr(self, name), 1, 1e8)
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.name}: {self.heads} heads are not a multiple of {self.kv_heads} kv_heads: each serves as many"
                " heads, so give a divisor"
            )
        if self.experts:
            bound(f"{self.name}.experts_per_token", self.experts_per_token, 1, self.experts)
            bound(f"{self.name}.expert_layers", self.expert_layers, 1, self.layers)
            bound(f"{self.name}.d_expert", self.d_expert, 1, 1e8)
        elif self.expert_layers or self.d_expert or self.experts_per_token:
            raise ConfigError(f"{self.name}: experts is 0, but other keys speak of experts: give their number")

    @property
    def is_moe(self) -> bool:
        """True if some layers have experts."""
        return self.experts > 0

    @property
    def attention_parameters(self) -> float:
        """Of one layer."""
        return 2.0 * self.d_model * self.head_dim * (self.heads + self.kv_heads)

    def perceptron_parameters(self, inner: int) -> float:
        """Of one perceptron of this inner width."""
        return (3.0 if self.gated else 2.0) * self.d_model * inner

    @property
    def embedding_parameters(self) -> float:
        """Embedding and head."""
        return (1.0 if self.tied else 2.0) * self.vocabulary * self.d_model

    @property
    def total_parameters(self) -> float:
        """All of them, every expert and the embeddings counted."""
        return self.published_total or self._parameters(self.experts)

    @property
    def active_parameters(self) -> float:
        """Those that one token meets, embeddings counted."""
        return self.published_active or self._parameters(self.experts_per_token)

    def flop_per_token(self, sequence: int) -> float:
        """Training FLOP of a token: 6 a parameter that multiplies it, and attention's products over half the sequence.

        The embedding is a look-up and does not multiply; the head does.
        """
        multiplying = self.active_parameters - self.vocabulary * self.d_model * (0.0 if self.tied else 1.0)
        attention = 2.0 * 2.0 * self.layers * self.heads * self.head_dim * (sequence / 2)
        return FLOP_PER_PARAMETER_TOKEN * multiplying + 3.0 * attention

    def _parameters(self, experts: int) -> float:
        dense = (self.layers - self.expert_layers) * self.perceptron_parameters(self.d_ff)
        router = self.d_model * self.experts
        sparse = self.expert_layers * (
            experts * self.perceptron_parameters(self.d_expert) + self.perceptron_parameters(self.d_shared) + router
        )
        return self.layers * self.attention_parameters + dense + sparse + self.embedding_parameters


_HEAD_DIM: Final = 128


_WIDTH_PER_LAYER: Final = 128
"""Width over layers of GPT-3 and Llama at their larger sizes."""


def sized(parameters: float, active: float | None = None) -> ModelShape:
    """Return a stand-in for a model of this size, good for FLOP and not for layouts: its depth and widths are made up.

    Args:
        parameters: Number of all parameters.
        active: Number of the parameters that a token meets; None: all of them.

    Raises:
        ConfigError: There are more active parameters than parameters.
    """
    bound("parameters", parameters, 1e5, 1e15)
    if active is not None and not 0 < active <= parameters:
        raise ConfigError(f"active is {active:g}; it must be above 0 and at most {parameters:g}, all parameters")
    met = parameters if active is None else active
    width = (met * _WIDTH_PER_LAYER / 12.0) ** (1 / 3)
    heads = max(1, round(width / _HEAD_DIM))
    layers = max(1, round(width / _WIDTH_PER_LAYER))
    d_model = heads * _HEAD_DIM
    name = f"model of {parameters:.3g} parameters" + ("" if active is None else f", {active:.3g} active")
    experts = 0 if met == parameters else max(2, round(parameters / met))
    return ModelShape(
        name=name,
        layers=layers,
        d_model=d_model,
        heads=heads,
        kv_heads=heads,
        head_dim=_HEAD_DIM,
        d_ff=0 if experts else 4 * d_model,
        gated=False,
        vocabulary=1,
        experts=experts,
        experts_per_token=1 if experts else 0,
        d_expert=4 * d_model if experts else 0,
        expert_layers=layers if experts else 0,
        published_total=parameters,
        published_active=met,
        sketched=True,
    )


_DENSE: Final = ("layers", "d_model", "heads", "d_ff", "vocabulary")
"""What describes a dense model; key-value heads are as many as heads where nobody says so."""
_SPARSE: Final = ("layers", "d_model", "heads", "experts", "experts_per_token", "d_expert", "vocabulary")
"""What describes one with experts in every layer."""


def as_flag(name: str) -> str:
    """Return how the command line writes a field of a shape."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Fields of a :class:`ModelShape` as somebody gave them; None: not given."""

    layers: int | None = None
    d_model: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    d_ff: int | None = None
    vocabulary: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    d_expert: int | None = None
    gated: bool | None = None
    tied: bool | None = None

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            if not isinstance(value, bool):
                bound(as_flag(name), value, 1, 1e8)

    @property
    def given(self) -> Mapping[str, Any]:
        """Return those that were given, by field."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in told.items() if value is not None}

    def __str__(self) -> str:
        """Return the flags that were given, as the command line writes them."""
        return " ".join(as_flag(f"no_{name}" if value is False else name) for name, value in self.given.items())

    def shape(self) -> ModelShape:
        """Return the whole shape that the flags describe; gated, untied and as many key-value heads if they are silent.

        With experts, every layer has them.

        Raises:
            ConfigError: A flag is missing, or contradicts another; the message says which.
        """
        given = dict(self.given)
        sparse = sorted({"experts", "experts_per_token", "d_expert"} & given.keys())
        if sparse and "d_ff" in given:
            raise ConfigError(
                f"--d-ff is the width of dense layers, but {as_flag(sparse[0])} puts experts into every layer: give"
                " --d-expert instead, or a config.json for a model of both kinds"
            )
        needed = _SPARSE if sparse else _DENSE
        missing = [as_flag(name) for name in needed if name not in given]
        if missing:
            raise ConfigError(
                f"{', '.join(missing)} missing beside {self}: a shape needs {', '.join(map(as_flag, needed))}"
            )
        layers, d_model, heads = given["layers"], given["d_model"], given["heads"]
        if "head_dim" not in given and d_model % heads:
            raise ConfigError(f"--d-model {d_model} is not a multiple of --heads {heads}: give --head-dim as well")
        rest = {"kv_heads": heads, "head_dim": d_model // heads, "d_ff": 0, "gated": True} | given
        if sparse:
            rest["expert_layers"] = layers
        return ModelShape(name=f"model of {layers} layers of width {d_model}", **rest)
