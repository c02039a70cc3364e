"""A number that says where it is from."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from greentrain.errors import ConfigError

Kind = Literal["datasheet", "measured", "assumed"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A constant of a model.

    Raises:
        ConfigError: The value is not finite or is negative, or the kind is unknown.
    """

    value: float
    unit: str
    source: str
    """Document, or who measured it and how."""
    kind: Kind
    """``datasheet``: a maker's document; ``measured``: somebody measured it on a part; ``assumed``: neither."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise ConfigError(f"{self.value!r} {self.unit} ({self.source}): a quantity is finite and not negative")
        if self.kind not in KINDS:
            raise ConfigError(f"{self.source}: kind is {self.kind!r}; known: {', '.join(KINDS)}")

    def __str__(self) -> str:
        """Return value, unit, kind and source in one line."""
        return f"{self.value:g} {self.unit} ({self.kind}: {self.source})"
