"""The shape of a model from the ``config.json`` of a Hugging Face repository.

Biases, norms, learned positions and vision towers are not counted: of models of a billion parameters and more, 0.5 % at
most. What a shape cannot say of a model stands in the notes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.estimate.model_shape import Flags, ModelShape, as_flag
from greentrain.utils.files import packaged_toml
from greentrain.utils.validation import nearest

FLAGS: Final = "--layers, --d-model, --heads, --kv-heads, --d-ff, --vocabulary, and --experts, --experts-per-token,"
"""What describes a model without its ``config.json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigShape:
    """A shape, and what it leaves out."""

    shape: ModelShape
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """How one type of model writes its configuration."""

    gated: bool = True
    tied: bool = False
    """Where ``tie_word_embeddings`` is absent."""
    defaults: Mapping[str, int] | None = None
    """What its configuration class fills in."""
    kv_heads_needed: bool = False
    """True: absent key-value heads are not as many as heads."""
    experts: str = ""
    """Key of the number of routed experts; empty: dense."""
    width: str = "moe_intermediate_size"
    """Key of an expert's width."""


_FAMILIES: Final[Mapping[str, _Family]] = {
    kind: _Family(**row) for kind, row in packaged_toml("greentrain.estimate", "families.toml").items()
}
_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden_size": ("n_embd", "n_embed"),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("ffn_dim", "ffn_hidden_size", "n_inner"),
    "num_experts": ("num_local_experts",),
    "num_local_experts": ("num_experts",),
    "n_routed_experts": ("num_local_experts", "num_experts"),
    "num_experts_per_tok": ("experts_per_token",),
}


PRESETS: Final = "or the name of a preset, such as llama-3-8b"


def read(source: Path | str | Mapping[str, Any], flags: Flags | None = None) -> ConfigShape:
    """Return the shape of a model and what the shape leaves out.

    Args:
        source: A ``config.json``, the folder that it is in, or what it contains.
        flags: Sizes that the configuration lacks, or in place of its own.

    Raises:
        ConfigError: It cannot be read, its type is unknown, a size is missing, or a flag is of something that such a
            model does not have.
    """
    flags = flags or Flags()
    if isinstance(source, Mapping):
        return _ConfigReader(source, "config.json", flags).read(_last(source))
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}; name a config.json, its folder, {PRESETS}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}; name a config.json of a model, {PRESETS}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{path} holds a {type(data).__name__} and is no configuration of a model: name a config.json, {PRESETS}"
        )
    return _ConfigReader(data, str(path), flags).read(_last(data) or path.parent.name)


def _last(config: Mapping[str, Any]) -> str:
    """Return the last part of a configuration's own name or path."""
    return str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]


class _ConfigReader:
    """One configuration while it is read."""

    def __init__(self, config: Mapping[str, Any], where: str, flags: Flags) -> None:
        self._given = dict(flags.given)
        self._used: set[str] = set()
        self._notes: list[str] = []
        text = config.get("text_config")
        if isinstance(text, Mapping):
            self._notes.append("only the language model is counted: vision and audio towers are left out")
            kind = text.get("model_type", "")
            kind = kind or {"gemma3": "gemma3_text"}.get(str(config.get("model_type")), "")
            config = {**text, "model_type": kind}
        self._config = config
        self._where = where
        self._type = str(config.get("model_type", ""))
        if config.get("is_encoder_decoder") or self._type not in _FAMILIES:
            raise ConfigError(
                f"{where}: models of type {self._type!r} cannot be read; known: {', '.join(_FAMILIES)}"
                f"{nearest(self._type, _FAMILIES) or '.'} Leave out --config and give its shape instead: {FLAGS}"
                " --d-expert"
            )
        self._family = _FAMILIES[self._type]

    def read(self, name: str) -> ConfigShape:
        """Return the shape under this name, or under its type."""
        layers, d_model = self._size("num_hidden_layers", flag="layers"), self._size("hidden_size", flag="d_model")
        heads = self._size("num_attention_heads", flag="heads")
        expert_layers = self._expert_layers(layers) if self._family.experts else 0
        d_ff = 0 if expert_layers == layers else self._d_ff(d_model)
        vocabulary = self._size("vocab_size", flag="vocabulary")
        tied = self._either("tied", bool(self._config.get("tie_word_embeddings", self._family.tied)))
        common: dict[str, Any] = {
            "name": name or self._type, "layers": layers, "d_model": d_model, "heads": heads, "d_ff": d_ff,
            "gated": self._either("gated", self._family.gated), "vocabulary": vocabulary, "tied": tied,
        }  # fmt: skip
        mlp: dict[str, Any] = self._experts(expert_layers) if expert_layers else {}
        if self._type.startswith("deepseek"):
            self._all_used()
            return self._latent({**common, **mlp})
        kv_heads = self._kv_heads(heads)
        head_dim = self._size("head_dim", d_model // heads, flag="head_dim")
        self._all_used()
        shape = ModelShape(**common, **mlp, kv_heads=kv_heads, head_dim=head_dim)
        return ConfigShape(shape=shape, notes=tuple(self._notes))

    def _either(self, name: str, otherwise: bool) -> bool:
        self._used.add(name)
        return bool(self._given.get(name, otherwise))

    def _all_used(self) -> None:
        """Check that every flag was of something that such a model has."""
        idle = [as_flag(name) for name in self._given if name not in self._used]
        if idle:
            raise ConfigError(
                f"{', '.join(idle)}: the shape of a model of type {self._type!r} is read without; drop it, or leave out"
                " --config and give the whole shape"
            )

    def _latent(self, values: Mapping[str, Any]) -> ConfigShape:
        """Return a model with latent attention: counted exactly, and a shape whose attention is near it."""
        d_model, heads, layers = values["d_model"], values["heads"], values["layers"]
        rope, rank = self._size("qk_rope_head_dim"), self._size("kv_lora_rank")
        content, value = self._size("qk_nope_head_dim"), self._size("v_head_dim")
        through = self._size("q_lora_rank", 0)
        width = heads * (content + rope)
        query = through * (d_model + width) if through else d_model * width
        keys = d_model * (rank + rope) + rank * heads * (content + value)
        latent = query + keys + heads * value * d_model
        shape = ModelShape(**values, kv_heads=1, head_dim=value)
        off = layers * (latent - shape.attention_parameters)
        self._notes.append(
            "latent attention (MLA) is approximated by one key-value head; parameters are counted exactly, attention's"
            f" products are taken at {value} a head where they are {(content + rope + value) / 2:g}"
        )
        total, active = shape.total_parameters + off, shape.active_parameters + off
        exact = ModelShape(**values, kv_heads=1, head_dim=value, published_total=total, published_active=active)
        return ConfigShape(shape=exact, notes=tuple(self._notes))

    def _experts(self, expert_layers: int) -> dict[str, int]:
        width = self._size(self._family.width, flag="d_expert")
        shared = self._size("shared_expert_intermediate_size", 0) or width * self._size("n_shared_experts", 0)
        return {
            "experts": self._size(self._family.experts, flag="experts"),
            "experts_per_token": self._size("num_experts_per_tok", flag="experts_per_token"),
            "d_expert": width, "d_shared": shared, "expert_layers": expert_layers,
        }  # fmt: skip

    def _expert_layers(self, layers: int) -> int:
        first = self._size("first_k_dense_replace", 0)
        every = self._size("decoder_sparse_step", self._size("moe_layer_freq", 1)) or 1
        dense = self._config.get("mlp_only_layers") or ()
        counted = [at for at in range(first, layers) if at not in dense]
        if "first_k_dense_replace" in self._config:
            return sum(at % every == 0 for at in counted)
        return sum((at + 1) % every == 0 for at in counted)

    def _d_ff(self, d_model: int) -> int:
        four = self._type in ("gpt2", "gpt_bigcode", "bloom", "falcon")
        return self._size("intermediate_size", 4 * d_model if four else None, flag="d_ff")

    def _kv_heads(self, heads: int) -> int:
        one = self._type == "gpt_bigcode" or (
            self._type == "falcon" and not self._config.get("new_decoder_architecture", False)
        )
        if one and "kv_heads" not in self._given:
            return 1 if self._config.get("multi_query", True) else heads
        return self._size("num_key_value_heads", None if self._family.kv_heads_needed else heads, flag="kv_heads")

    def _size(self, key: str, default: int | None = None, *, flag: str = "") -> int:
        """Return a size by its flag, its key or another spelling, or as the type's own class or the caller fills it in.

        Args:
            key: Key of the size in the configuration.
            default: Size where the configuration has none; None: it must be there.
            flag: Name of the size among the flags; empty: there is no flag.
        """
        spelling, found = self._in_file(key)
        if flag in self._given:
            self._used.add(flag)
            size = int(self._given[flag])
            if found not in (None, size):
                self._notes.append(f"{as_flag(flag)} {size} is taken in place of {spelling} {found}")
            return size
        if found is not None:
            return found
        found = (self._family.defaults or {}).get(key, default)
        if found is None:
            remedy = f"give {as_flag(flag)}" if flag else "add it to the file"
            raise ConfigError(f"{self._where}: {key} is missing in a configuration of type {self._type!r}: {remedy}")
        return found

    def _in_file(self, key: str) -> tuple[str, int | None]:
        """Return how the file spells a key, and its value."""
        for spelling in (key, *_ALIASES.get(key, ())):
            given = self._config.get(spelling)
            if given is not None:
                if type(given) is not int or given < 0:
                    raise ConfigError(f"{self._where}: {spelling} is {given!r}; it must be a whole number, 0 or more")
                return spelling, int(given)
        return key, None
