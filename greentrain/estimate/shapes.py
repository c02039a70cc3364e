"""Shapes of published models by name, and which model the command line speaks of."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.estimate import hf_config
from greentrain.estimate.hf_config import FLAGS, ConfigShape
from greentrain.estimate.model_shape import Flags, ModelShape, sized
from greentrain.utils.files import packaged_toml
from greentrain.utils.validation import build, nearest

_SHAPE: Final = frozenset(field.name for field in dataclasses.fields(ModelShape))
_EDITION: Final = re.compile(r"-(hf|base|instruct|chat|it|pt|deduped|v0\.\d|\d{4})(?=-|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published model."""

    shape: ModelShape
    source: str
    reported: float
    """Parameters as its makers or the Hub state them."""
    reported_active: float | None = None
    reported_without: int = 0
    """Matrices of the vocabulary that ``reported_active`` leaves out."""
    reason: str = ""
    """Why the shape does not add up to the model's parameters; empty: it does."""


def known() -> Mapping[str, ModelShape]:
    """Return the shapes by name."""
    return {name: preset.shape for name, preset in presets().items()}


def find(name: str) -> ModelShape:
    """Return a shape; case, punctuation, the maker's name before a slash and endings as ``-Instruct`` do not matter.

    Raises:
        ConfigError: There is none; the message names those that begin so, or the nearest.
    """
    table = presets()
    wanted = _plain(name)
    for known_name, preset in table.items():
        if _plain(known_name) == wanted:
            return preset.shape
    sizes = [known_name for known_name in table if wanted and _plain(known_name).startswith(wanted)]
    hint = f". Names that begin so: {', '.join(sizes)}." if sizes else nearest(name.lower(), table) or "."
    raise ConfigError(
        f"model {name!r} is not among the {len(table)} presets{hint} Give the path of a"
        f" config.json, or its shape: {FLAGS} --d-expert"
    )


@functools.cache
def presets() -> Mapping[str, Preset]:
    """Return the presets by name, with their sources."""
    found: dict[str, Preset] = {}
    for family, common in packaged_toml("greentrain.estimate", "shapes.toml").items():
        for name, size in common["sizes"].items():
            row = {**{key: value for key, value in common.items() if key != "sizes"}, **size}
            found[name] = _preset(name, row, f"shapes.toml: {family}.")
    return found


def _preset(name: str, row: Mapping[str, Any], where: str) -> Preset:
    shape = {"name": name, "kv_heads": row["heads"], "head_dim": row["d_model"] // row["heads"]}
    shape |= {key: value for key, value in row.items() if key in _SHAPE}
    rest = {key: value for key, value in row.items() if key not in _SHAPE}
    return build(Preset, {"shape": build(ModelShape, shape, where), **rest}, where)


def _plain(name: str) -> str:
    """Return what tells a model from others in its name: ``meta-llama/Meta-Llama-3-8B`` is llama38b."""
    text = re.sub(r"[\s_]+", "-", name.rpartition("/")[2].strip().casefold()).removeprefix("meta-")
    return _EDITION.sub("", text).replace("-", "")


def model_of(
    *, config: str = "", parameters: float | None = None, active: float | None = None, flags: Flags | None = None
) -> ConfigShape:
    """Return a model's shape and what it leaves out.

    Args:
        config: Name of a preset, or path of a config.json or of its folder.
        parameters: Number of all parameters, where no more is known.
        active: Number of those that a token meets; goes with ``parameters``.
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
        preset = find(config)
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
