"""Shapes of published models, by name."""

import dataclasses
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.estimate.hf_config import FLAGS
from greentrain.estimate.model_shape import ModelShape
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
    text = resources.files("greentrain.estimate").joinpath("shapes.toml").read_text(encoding="utf-8")
    found: dict[str, Preset] = {}
    for family, common in tomllib.loads(text).items():
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
