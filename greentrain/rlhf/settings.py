"""What is offloaded where, as written in YAML.

device: {name: emulator}
home: {name: torch, options: {device: cuda, dtype: bf16}}
reward: {model: path/to/reward-model, max_tokens: 512, sequences: 64}
reference: {model: path/to/policy, max_tokens: 1024, activation_bits: 16}
cache: true

A device on another machine, its token not in this file:

device: {name: remote, options: {url: "https://10.0.0.7:8765", token: {file: token.txt}}}
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from greentrain.errors import ConfigError
from greentrain.rlhf.kinds import PassKind
from greentrain.utils.validation import Bound, Choice, check_fields, choice, load, nearest

SIDES: Final = ("left", "right")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """A device by its name."""

    name: str = "emulator"
    """One of ``greentrain fpga devices``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the device's constructor. ``{file: path}`` is the text of a file, ``{env: NAME}`` that of a variable
    of the environment."""

    def arguments(self, where: str) -> dict[str, Any]:
        """Return the options, with what is in files and variables put in.

        Raises:
            ConfigError: A file or variable is not there.
        """
        return {name: _resolved(value, f"{where}.options.{name}") for name, value in self.options.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings:
    """A frozen model. Checked by :class:`OffloadSettings`, which knows its name."""

    model: str = ""
    """Folder of a Hugging Face model, or of a compiled one."""
    max_tokens: Annotated[int, Bound(2, 8192)] = 512
    """Longest sequence, prompt included; a compiled model has its own."""
    activation_bits: int | None = None
    """8 or 16; None: 16 for a reference, 8 for scores; a compiled model has its own."""
    temperature: Annotated[float, Bound(1e-3, 1e3)] = 1.0
    """Sampling temperature of the policy, for a reference; a compiled one must have been compiled with it."""
    sequences: Annotated[int, Bound(1, 65536)] | None = None
    """Sequences a part; None: the whole batch at once."""
    truncation: Annotated[str, Choice(SIDES)] | None = None
    """Side from which a text that is too long loses tokens, ``left`` or ``right``; None: the tokenizer's own."""

    def check(self, kind: PassKind) -> None:
        """Check each value.

        Raises:
            ConfigError: Names the key, the value, its bounds and what to do.
        """
        if not self.model:
            raise ConfigError(f"{kind}.model is missing: give the folder of the frozen model")
        check_fields(self, kind)
        choice(f"{kind}.activation_bits", str(self.activation_bits or 8), ("8", "16"))
        if kind is not PassKind.REFERENCE and self.temperature != 1.0:
            raise ConfigError(
                f"{kind}.temperature is {self.temperature:g}: scores have none; it is the reference's, leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """The passes that are offloaded, to which device, and how the training waits for them.

    Raises:
        ConfigError: A value is out of its bounds, or no pass is given.
    """

    device: DeviceSettings = field(default_factory=DeviceSettings)
    home: DeviceSettings | None = None
    """Device on which passes are redone if the first one fails; None: the training then gets the error."""
    reward: PassSettings | None = None
    reference: PassSettings | None = None
    critic: PassSettings | None = None
    step_reward: PassSettings | None = None
    depth: Annotated[int, Bound(1, 65536)] = 64
    """Parts of batches that may be under way at a time."""
    timeout_s: Annotated[float, Bound(1e-3, 1e9)] = 600.0
    """How long the training waits for a result before it is redone at home, or, without one, warned of (s)."""
    sequential: bool = False
    """Wait for each pass where it is submitted."""
    cache: bool = False
    """Keep compiled models in ``$GREENTRAIN_CACHE_DIR``, and take them from there where nothing has changed."""

    def __post_init__(self) -> None:
        if not self.passes:
            kinds = ", ".join(PassKind)
            raise ConfigError(f"no pass is given: name the model of at least one of {kinds}, as reward: {{model: ...}}")
        for kind, given in self.passes.items():
            given.check(kind)
        check_fields(self)

    @property
    def passes(self) -> Mapping[PassKind, PassSettings]:
        """The passes that are given."""
        every = {kind: getattr(self, kind.value) for kind in PassKind}
        return {kind: given for kind, given in every.items() if given is not None}

    @classmethod
    def load(cls, source: "str | Path | Mapping[str, Any] | OffloadSettings") -> "OffloadSettings":
        """Read settings from a YAML file or a mapping.

        Raises:
            ConfigError: A key or value is wrong, or the file cannot be read.
        """
        return load(cls, source, "offload settings", "keys such as device, reward, reference")


def _resolved(value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        ((source, name),) = value.items()
        try:
            if source == "file":
                return Path(str(name)).read_text(encoding="utf-8").strip()
            if source == "env":
                return os.environ[str(name)]
        except KeyError:
            raise ConfigError(f"{where} is of the environment variable {name}, which is not set: set it") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where} is of the file {name}, which cannot be read: {error}") from error
    known = ("file", "env")
    hint = nearest(next(iter(map(str, value)), ""), known)
    raise ConfigError(f"{where} is {dict(value)!r}; a mapping has one key, {' or '.join(known)}{hint}")
