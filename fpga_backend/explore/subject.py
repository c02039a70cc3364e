"""What is explored: a compiled model, a model folder, or a configuration known by name."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greentrain.errors import ConfigError
from greentrain.fpga_backend.explore.presets import PRESETS
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.roofline.shape import Head, program_of
from greentrain.utils.validation import nearest

MANIFEST = "artifact.json"
CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to explore."""

    name: str
    source: str
    """Where its shape is from."""
    program: Program
    folder: Path | None = None
    """Where its weights may be: a model folder."""


def subject(model: str, *, head: Head = "score", max_tokens: int | None = None) -> Subject:
    """Find a model.

    Args:
        model: A folder with ``artifact.json`` or ``config.json``, or a name of ``PRESETS``.
        head: What is asked of it; a compiled one has its own.
        max_tokens: Longest sequence; None: what the model allows. Rotary tables have that length.

    Raises:
        ConfigError: It is neither.
        ArtifactError: The compiled model cannot be read.
        UnsupportedModelError: A configuration that cannot be compiled.
    """
    folder = Path(model)
    if (folder / MANIFEST).is_file():
        program = Program.from_json(json.dumps(_json(folder / MANIFEST).get("program")))
        if max_tokens is not None:
            program = dataclasses.replace(program, max_tokens=min(max_tokens, program.max_tokens))
        return Subject(name=folder.name, source=f"compiled model {folder / MANIFEST}", program=program)
    if (folder / CONFIG).is_file():
        program = program_of(_json(folder / CONFIG), head=head, max_tokens=max_tokens)
        return Subject(name=folder.name, source=f"{folder / CONFIG}", program=program, folder=folder)
    if model in PRESETS:
        repository, config = PRESETS[model]
        program = program_of(config, head=head, max_tokens=max_tokens)
        return Subject(name=model, source=f"configuration of {repository}", program=program)
    raise ConfigError(
        f"{model!r} is no folder with {MANIFEST} or {CONFIG}, and no known name; known: {', '.join(PRESETS)}"
        f"{nearest(model, PRESETS)}"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return found
