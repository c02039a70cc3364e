"""From settings to an engine: opens devices, compiles models or takes them from where they were kept, loads them."""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from greentrain.errors import ConfigError
from greentrain.fpga_backend import contract
from greentrain.fpga_backend.artifact import FORMAT, MANIFEST, Artifact, load
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.discovery import devices
from greentrain.fpga_backend.errors import ArtifactError, OffloadError
from greentrain.fpga_backend.program import ActivationBits
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import FrozenPass, place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.settings import DeviceSettings, OffloadSettings, PassSettings
from greentrain.rlhf.text import TextEncoder
from greentrain.utils.files import cache_folder
from greentrain.utils.imports import try_import
from greentrain.utils.validation import nearest
from greentrain.utils.version import __version__

with try_import("transformers") as _imports:
    import transformers
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

log = logging.getLogger(__name__)


def compiled(kind: PassKind, given: PassSettings, *, cache: bool = False) -> Artifact:
    """Return the compiled model of a folder.

    Args:
        kind: Kind of the pass: a reference ends in log-probabilities, the others in scores.
        given: Settings of the pass: the folder, and how to compile it.
        cache: True: the compiled model is kept, and taken from there the next time.

    Raises:
        ConfigError: There is no such folder, or no such model in it.
        ArtifactError: The compiled model is torn, or of the wrong kind.
        UnsupportedModelError: The model cannot be compiled.
    """
    folder = Path(given.model).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"{kind}.model is {given.model!r}, no folder at {folder.absolute()}: save the model there first"
        )
    if (folder / MANIFEST).exists():
        return _of_kind(kind, load(folder), folder)
    if not (folder / "config.json").exists():
        adapter = (folder / "adapter_config.json").exists()
        hint = "merge the adapter into its model first" if adapter else "save it there"
        raise ConfigError(
            f"{kind}.model is {given.model!r}, which holds neither config.json, of a Hugging Face model, nor "
            f"{MANIFEST}, of a compiled one: {hint}"
        )
    _imports.check()
    kept = _kept(kind, given, folder) if cache else None
    if kept is not None and (found := _from_cache(kept)) is not None:
        return found
    artifact = _of_kind(kind, _compiled(kind, given, folder), folder)
    if kept is not None:
        _keep(artifact, kept)
    return artifact


def has_tokenizer(given: PassSettings) -> bool:
    """Return True if the folder of a pass holds a tokenizer."""
    folder = Path(given.model).expanduser()
    return any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json"))


def text_encoder(given: PassSettings, max_tokens: int | None = None) -> TextEncoder | None:
    """Return the tokenizer of a folder; None where it has none.

    Args:
        given: Settings of the pass, which name the folder.
        max_tokens: Longest sequence that the compiled model takes.

    Raises:
        ConfigError: It cannot be read.
    """
    if not has_tokenizer(given):
        return None
    folder = Path(given.model).expanduser()
    _imports.check()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"the tokenizer in {folder} cannot be read: {error}") from error
    return TextEncoder(tokenizer, max_tokens or given.max_tokens, truncation=cast(Any, given.truncation))


def _compiled(kind: PassKind, given: PassSettings, folder: Path) -> Artifact:
    from greentrain.fpga_backend.compiler import compile as compile_model

    family: Any = AutoModelForCausalLM if kind is PassKind.REFERENCE else AutoModelForSequenceClassification
    try:
        model, report = family.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ConfigError(f"{kind}.model is {given.model!r}, which {family.__name__} cannot read: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(
            f"{kind}.model is {given.model!r}, which has no {', '.join(missing[:3])}: numbers would be made up for "
            "them; give a model that was trained for this pass"
        )
    try:
        return compile_model(
            model,
            max_tokens=given.max_tokens,
            activation_bits=cast(ActivationBits | None, given.activation_bits),
            temperature=given.temperature,
        )
    except OffloadError as error:
        raise type(error)(f"{kind}.model {given.model!r}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{kind}: {error}") from error


def _of_kind(kind: PassKind, artifact: Artifact, folder: Path) -> Artifact:
    scores = artifact.program.labels > 0
    if scores == (kind is PassKind.REFERENCE):
        ends = "scores" if scores else "log-probabilities"
        raise ArtifactError(f"{folder} holds a model that ends in {ends}: it is none for the {kind} pass")
    return artifact


def _kept(kind: PassKind, given: PassSettings, folder: Path) -> Path | None:
    """Return where a model is kept once it is compiled: a name made of all that its numbers depend on."""
    about = [kind, given.max_tokens, given.activation_bits, given.temperature]
    versions = [__version__, contract.VERSION, FORMAT, transformers.__version__]
    key = hashlib.sha256(json.dumps([about, versions]).encode())
    try:
        files = [p for p in folder.iterdir() if p.suffix in (".json", ".safetensors", ".bin") and p.is_file()]
        for path in sorted(files):
            with path.open("rb") as file:
                key.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
        return cache_folder(part="compiled") / key.hexdigest()[:32]
    except (OSError, RuntimeError) as error:
        log.warning("%s is not kept compiled: %s", folder, error)
        return None


def _keep(artifact: Artifact, kept: Path) -> None:
    """Put an artifact in its place, whole or not at all; where another process was first, that is as well."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as made:
            artifact.save(Path(made) / "artifact")
            if kept.exists() and _from_cache(kept) is None:
                shutil.rmtree(kept, ignore_errors=True)
            if not kept.exists():
                os.rename(Path(made) / "artifact", kept)
    except OSError as error:
        log.warning("the compiled model is not kept: %s", error)


def _from_cache(kept: Path) -> Artifact | None:
    """Return a compiled model; None where there is none, or it is torn."""
    try:
        return load(kept) if (kept / MANIFEST).exists() else None
    except (ArtifactError, OSError) as error:
        log.warning("a model is compiled again: %s", error)
        return None


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

    def close(self) -> None:
        """Cancel what has not begun and close the devices. Idempotent."""
        self._opened.close()

    def __enter__(self) -> "Offload":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _placed(self, kind: PassKind) -> FrozenPass:
        given = self.settings.passes[kind]
        how: dict[str, Any] = {"sequences": given.sequences, "temperature": given.temperature}
        return place(kind, compiled(kind, given, cache=self.settings.cache), self.device, home=self.home, **how)


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
