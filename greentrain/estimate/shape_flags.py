"""A model by what the command line says of it: a name, a config.json, a number of parameters, or layers and widths."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.estimate.model_shape import ModelShape
from greentrain.utils.validation import bound

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
