"""Which model the command line speaks of, by one of three ways."""

from pathlib import Path

from greentrain.errors import ConfigError
from greentrain.estimate import hf_config, shapes
from greentrain.estimate.hf_config import ConfigShape
from greentrain.estimate.shape_flags import Flags
from greentrain.estimate.sized import sized


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
