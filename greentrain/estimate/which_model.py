"""Which model the command line speaks of, by one of three ways.

A model of which only the number of parameters is known.
"""

from pathlib import Path
from typing import Final

from greentrain.errors import ConfigError
from greentrain.estimate import hf_config, shapes
from greentrain.estimate.hf_config import ConfigShape
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.shape_flags import Flags
from greentrain.utils.validation import bound

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


def model_of(
    *, config: str = "", parameters: float | None = None, active: float | None = None, flags: Flags | None = None
) -> ConfigShape:
    """Return a model's shape and what it leaves out.

    Args:
        config: Name of a preset, or path of a config.json or of its folder.
        parameters: In all, where no more is known.
        active: With ``parameters``: those that a token meets.
        flags: The whole shape; or, with a config.json, what it lacks or has wrong.

    Raises:
        ConfigError: None of the three ways is taken, or several; or what was given is wrong.
    """
    flags = flags or Flags()
    if active is not None and parameters is None:
        raise ConfigError("--active goes with --parameters: --config and the flags of a shape know their own")
    if parameters is None:
        return _described(config, flags)
    others = "--config" if config else str(flags)
    if others:
        raise ConfigError(f"--parameters and {others} both say which model it is: give one of them")
    return ConfigShape(shape=sized(parameters, active), notes=())


def _described(config: str, flags: Flags) -> ConfigShape:
    if not config and not flags.given:
        raise ConfigError(
            "give the model, one of: --config (a name such as llama-3-8b, or a config.json), --parameters, or its shape"
            " by --layers, --d-model, --heads, --d-ff and --vocabulary"
        )
    if not config:
        return ConfigShape(shape=flags.shape(), notes=())
    path = Path(config)
    if path.suffix == ".json" or path.is_file() or (path / "config.json").is_file():
        return hf_config.read(path, flags)
    try:
        preset = shapes.find(config)
    except ConfigError as error:
        if path.is_dir():
            raise ConfigError(f"--config {config} is a folder without a config.json: name the folder of one") from error
        raise
    if flags.given:
        raise ConfigError(
            f"--config {config} names a preset, whose shape is whole, so {flags} cannot correct it: drop that, or leave"
            " out --config and give the whole shape"
        )
    return ConfigShape(shape=preset, notes=())
