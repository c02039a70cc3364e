"""From settings to an engine: opens devices, compiles models, loads them."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from greentrain.errors import ConfigError
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.discovery import devices
from greentrain.fpga_backend.errors import OffloadError
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import FrozenPass, place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.models import compiled, text_encoder
from greentrain.rlhf.part_size import BestPartSize
from greentrain.rlhf.settings import DeviceSettings, OffloadSettings
from greentrain.rlhf.text import TextEncoder
from greentrain.types import PowerMeter
from greentrain.utils.validation import nearest


class Offload:
    """An engine with all that belongs to it. A context manager: on its way out it closes the devices.

    What is set up wrongly fails here, before the training; a device that fails later costs a warning.

    Args:
        source: Settings, a mapping, or the path of a YAML file.

    Raises:
        ConfigError: Settings are wrong, or a model is not where they say.
        OffloadError: A device cannot be opened, or a model cannot be compiled or loaded.
        MissingExtraError: What a device or a model needs is not installed.
    """

    def __init__(self, source: "str | Path | Mapping[str, Any] | OffloadSettings") -> None:
        self.settings = given = OffloadSettings.load(source)
        with contextlib.ExitStack() as opened:
            self.device = _opened(given.device, "device", opened)
            self.home = None if given.home is None else _opened(given.home, "home", opened)
            passes = [self._placed(kind) for kind in given.passes]
            encoders = {one.kind: text_encoder(given.passes[one.kind], one.program.max_tokens) for one in passes}
            self.text: Mapping[PassKind, TextEncoder] = {k: found for k, found in encoders.items() if found is not None}
            """How each pass reads texts, where its folder has a tokenizer."""
            self.engine = OffloadEngine(
                passes, depth=given.depth, timeout_s=given.timeout_s, sequential=given.sequential
            )
            opened.callback(self.engine.close)
            self._opened = opened.pop_all()

    @property
    def meters(self) -> tuple[PowerMeter, ...]:
        """The devices' joules, for ``GreenSession(extra_meters=...)``."""
        return tuple(device.meter for device in (self.device, self.home) if device is not None)

    def close(self) -> None:
        """Cancel what has not begun and close the devices. Idempotent."""
        self._opened.close()

    def __enter__(self) -> "Offload":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _placed(self, kind: PassKind) -> FrozenPass:
        given = self.settings.passes[kind]
        cut: dict[str, Any] = (
            {"sequences": given.sequences} if not isinstance(given.sequences, str) else {"part_size": BestPartSize()}
        )
        artifact = compiled(kind, given, cache=self.settings.cache)
        return place(kind, artifact, self.device, home=self.home, temperature=given.temperature, **cut)


def _opened(given: DeviceSettings, role: str, opened: contextlib.ExitStack) -> OffloadDevice:
    known = devices()
    if given.name not in known:
        raise ConfigError(f"{role}.name is {given.name!r}; installed: {', '.join(known)}{nearest(given.name, known)}")
    try:
        device = known[given.name](**given.arguments(role))
    except (TypeError, ValueError) as error:
        if isinstance(error, OffloadError | ConfigError):
            raise
        options = ", ".join(known[given.name].options)
        raise ConfigError(f"{role}.options of {given.name}: {error}; known: {options or 'none'}") from error
    opened.callback(device.close)
    return device
