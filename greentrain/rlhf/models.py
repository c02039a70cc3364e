"""From the folder of a frozen model to what a device loads: compiled, or taken from where it was kept compiled."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

from greentrain.errors import ConfigError
from greentrain.fpga_backend import contract
from greentrain.fpga_backend.artifact import FORMAT, MANIFEST, Artifact, load
from greentrain.fpga_backend.errors import ArtifactError, OffloadError
from greentrain.fpga_backend.program import ActivationBits
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.settings import PassSettings
from greentrain.rlhf.text import TextEncoder
from greentrain.utils.files import cache_folder
from greentrain.utils.imports import try_import
from greentrain.utils.version import __version__

with try_import("transformers") as _imports:
    import transformers
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

log = logging.getLogger(__name__)


def compiled(kind: PassKind, given: PassSettings, *, cache: bool = False) -> Artifact:
    """Return the compiled model of a folder.

    Args:
        kind: Of the pass: a reference ends in log-probabilities, the others in scores.
        given: Which folder, and how to compile it.
        cache: Keep it, and take it from there the next time.

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
        hint = (
            "merge the adapter into its model first" if (folder / "adapter_config.json").exists() else "save it there"
        )
        raise ConfigError(
            f"{kind}.model is {given.model!r}, which holds neither config.json, of a Hugging Face model, nor "
            f"{MANIFEST}, of a compiled one: {hint}"
        )
    _imports.check()
    kept = _kept(kind, given, folder) if cache else None
    if kept is not None and (kept / MANIFEST).exists():
        try:
            return load(kept)
        except (ArtifactError, OSError) as error:
            log.warning("%s is compiled again: %s", folder, error)
    artifact = _of_kind(kind, _compiled(kind, given, folder), folder)
    if kept is not None:
        _keep(artifact, kept)
    return artifact


def text_encoder(given: PassSettings, max_tokens: int | None = None) -> TextEncoder | None:
    """Return the tokenizer of a folder; None where it has none.

    Args:
        given: Which folder.
        max_tokens: What the compiled model takes.

    Raises:
        ConfigError: It cannot be read.
    """
    folder = Path(given.model).expanduser()
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
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
            activation_bits=cast(ActivationBits, given.activation_bits),
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
        for path in sorted(
            p for p in folder.iterdir() if p.suffix in (".json", ".safetensors", ".bin") and p.is_file()
        ):
            with path.open("rb") as file:
                key.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
        return cache_folder() / "compiled" / key.hexdigest()[:32]
    except (OSError, RuntimeError) as error:
        log.warning("%s is not kept compiled: %s", folder, error)
        return None


def _keep(artifact: Artifact, kept: Path) -> None:
    """Put an artifact in its place, whole or not at all; where another process was first, that is as well."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as made:
            artifact.save(Path(made) / "artifact")
            if kept.exists() and not _sound(kept):
                shutil.rmtree(kept, ignore_errors=True)
            if not kept.exists():
                os.rename(Path(made) / "artifact", kept)
    except OSError as error:
        log.warning("the compiled model is not kept: %s", error)


def _sound(folder: Path) -> bool:
    try:
        load(folder)
    except (ArtifactError, OSError):
        return False
    return True
