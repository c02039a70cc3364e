"""From settings to an engine: opens devices, compiles models, loads them."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from greentrain._imports import try_import
from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact, load
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.discovery import devices
from greentrain.fpga_backend.errors import OffloadError
from greentrain.fpga_backend.program import ActivationBits
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.settings import DeviceSettings, OffloadSettings, PassSettings
from greentrain.rlhf.text import TextEncoder
from greentrain.types import PowerMeter

with try_import("transformers") as _imports:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer


class Offload:
    """An engine with all that belongs to it. A context manager: on its way out it closes the devices.

    Args:
        source: Settings, a mapping, or the path of a YAML file.

    Raises:
        ConfigError: Settings are wrong, or a model is not where they say.
        OffloadError: A device cannot be opened, or a model cannot be compiled or loaded.
    """

    def __init__(self, source: "str | Path | Mapping[str, Any] | OffloadSettings") -> None:
        self.settings = OffloadSettings.load(source)
        with contextlib.ExitStack() as opened:
            self.device = _opened(self.settings.device, "device", opened)
            self.home = None if self.settings.home is None else _opened(self.settings.home, "home", opened)
            artifacts = {kind: compiled(kind, given) for kind, given in self.settings.passes.items()}
            self.text: Mapping[PassKind, TextEncoder] = {
                kind: encoder
                for kind, given in self.settings.passes.items()
                if (encoder := text_encoder(given, artifacts[kind].program.max_tokens)) is not None
            }
            """How each pass reads texts, where its folder has a tokenizer."""
            self.engine = OffloadEngine(
                [
                    place(
                        kind,
                        artifacts[kind],
                        self.device,
                        home=self.home,
                        sequences=given.sequences,
                        temperature=given.temperature,
                    )
                    for kind, given in self.settings.passes.items()
                ],
                depth=self.settings.depth,
                timeout_s=self.settings.timeout_s,
                sequential=self.settings.sequential,
            )
            self._opened = opened.pop_all()

    @property
    def meters(self) -> tuple[PowerMeter, ...]:
        """The devices' joules, for ``GreenSession(extra_meters=...)``."""
        return tuple(device.meter for device in (self.device, self.home) if device is not None)

    def close(self) -> None:
        """Close the devices. Idempotent."""
        self._opened.close()

    def __enter__(self) -> "Offload":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def compiled(kind: PassKind, given: PassSettings) -> Artifact:
    """Return the compiled model of a folder.

    Raises:
        ConfigError: There is no such folder.
        ArtifactError: The compiled model is torn.
        UnsupportedModelError: The model cannot be compiled.
    """
    folder = Path(given.model)
    if not folder.is_dir():
        raise ConfigError(f"{kind}.model is {given.model!r}, which is no folder: save the model there first")
    if not (folder / "config.json").exists():
        return load(folder)
    _imports.check()
    from greentrain.fpga_backend.compiler import compile as compile_model

    family: Any = AutoModelForSequenceClassification if kind is PassKind.REWARD else AutoModelForCausalLM
    return compile_model(
        family.from_pretrained(folder, local_files_only=True),
        max_tokens=given.max_tokens,
        activation_bits=cast(ActivationBits, given.activation_bits),
        temperature=given.temperature,
    )


def text_encoder(given: PassSettings, max_tokens: int) -> TextEncoder | None:
    """Return the tokenizer of a folder, which cuts texts where the compiled model ends; None where it has none."""
    folder = Path(given.model)
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    _imports.check()
    return TextEncoder(AutoTokenizer.from_pretrained(folder, local_files_only=True), max_tokens)


def _opened(given: DeviceSettings, role: str, opened: contextlib.ExitStack) -> OffloadDevice:
    known = devices()
    if given.name not in known:
        raise ConfigError(f"{role}.name is {given.name!r}; installed: {', '.join(known)}")
    try:
        device = known[given.name](**given.options)
    except (TypeError, ValueError) as error:
        if isinstance(error, OffloadError):
            raise
        raise ConfigError(f"{role}.options of {given.name}: {error}") from error
    opened.callback(device.close)
    return device
