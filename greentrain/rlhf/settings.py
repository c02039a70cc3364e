"""What is offloaded where, as written in YAML.

device: {name: emulator}
home: {name: torch, options: {device: cuda, dtype: bf16}}
reward: {model: path/to/reward-model, max_tokens: 512}
reference: {model: path/to/policy, max_tokens: 1024, activation_bits: 16}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from greentrain.config_values import bound, build, choice
from greentrain.errors import ConfigError
from greentrain.rlhf.kinds import PassKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """A device by its name."""

    name: str = "emulator"
    """One of ``greentrain fpga devices``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of its constructor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings:
    """A frozen model."""

    model: str
    """Folder of a Hugging Face model, or of a compiled one."""
    max_tokens: int = 512
    """Longest sequence, prompt included; a compiled model has its own."""
    activation_bits: int = 8
    """8 or 16; a compiled model has its own."""
    temperature: float = 1.0
    """Of a reference: the policy's sampling temperature."""
    sequences: int | None = None
    """Sequences a part; None: the whole batch at once."""

    def __post_init__(self) -> None:
        bound("max_tokens", self.max_tokens, 2, 8192)
        choice("activation_bits", str(self.activation_bits), ("8", "16"))
        bound("temperature", self.temperature, 1e-3, 1e3)
        if self.sequences is not None:
            bound("sequences", self.sequences, 1, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """The whole."""

    device: DeviceSettings = field(default_factory=DeviceSettings)
    home: DeviceSettings | None = None
    """Where passes are redone if the device fails; None: nowhere, the training then gets the error."""
    reward: PassSettings | None = None
    reference: PassSettings | None = None
    depth: int = 64
    timeout_s: float = 600.0
    sequential: bool = False

    def __post_init__(self) -> None:
        if self.reward is None and self.reference is None:
            raise ConfigError("neither reward nor reference is given: name the model of at least one of them")
        bound("depth", self.depth, 1, 65536)
        bound("timeout_s", self.timeout_s, 1e-3, 1e9)

    @property
    def passes(self) -> Mapping[PassKind, PassSettings]:
        """The passes that are given."""
        every = {PassKind.REWARD: self.reward, PassKind.REFERENCE: self.reference}
        return {kind: given for kind, given in every.items() if given is not None}

    @classmethod
    def load(cls, source: "str | Path | Mapping[str, Any] | OffloadSettings") -> "OffloadSettings":
        """Read settings from a YAML file or a mapping.

        Raises:
            ConfigError: A key or value is wrong, or the file cannot be read.
        """
        if isinstance(source, OffloadSettings):
            return source
        if isinstance(source, Mapping):
            return build(cls, source, where="")
        try:
            found = yaml.safe_load(Path(source).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{source} cannot be read: {error}") from error
        if not isinstance(found, Mapping):
            raise ConfigError(f"{source} holds {type(found).__name__}; write keys such as device, reward, reference")
        try:
            return build(cls, found, where="")
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error
