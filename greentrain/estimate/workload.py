"""What is trained."""

from dataclasses import dataclass

from greentrain.errors import ConfigError
from greentrain.types import Gear
from greentrain.utils.validation import bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tokens through a model."""

    tokens: float
    """Training tokens, every epoch counted."""
    sequence: int = 4096
    """Tokens a sequence."""
    batch_tokens: float = 4e6
    """Tokens of a global batch."""
    precision: Gear = Gear.BF16

    def __post_init__(self) -> None:
        bound("tokens", self.tokens, 1.0, 1e18)
        bound("sequence", self.sequence, 1, 2**24)
        if self.sequence != int(self.sequence):
            raise ConfigError(f"sequence is {self.sequence!r}; it must be a whole number of tokens")
        bound("batch_tokens", self.batch_tokens, self.sequence, 1e12)

    @property
    def sequences(self) -> int:
        """Sequences of a global batch, at least 1."""
        return max(1, round(self.batch_tokens / self.sequence))

    @property
    def steps(self) -> float:
        """Optimizer steps."""
        return self.tokens / (self.sequences * self.sequence)
