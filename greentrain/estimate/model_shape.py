"""The shape of a transformer, dense or with experts: parameters in all, parameters that a token meets, FLOP a token.

Total and active parameters differ in a mixture of experts: memory and scaling laws of fine-grained mixtures speak of
the total, FLOP of the active ones.
"""

from dataclasses import dataclass

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
