"""A model of which only the number of parameters is known."""

from typing import Final

from greentrain.config_values import bound
from greentrain.errors import ConfigError
from greentrain.estimate.model_shape import ModelShape

_HEAD_DIM: Final = 128
_WIDTH_PER_LAYER: Final = 128
"""Width over layers of GPT-3 and Llama at their larger sizes."""


def sized(parameters: float, active: float | None = None) -> ModelShape:
    """Return a stand-in for a model of this size, good for FLOP and not for layouts: its depth and widths are made up.

    Args:
        parameters: In all.
        active: Those that a token meets; None: all of them.

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
