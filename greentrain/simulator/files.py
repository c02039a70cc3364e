"""The folder of a study or a replay: a table for people's tools, everything for programs, and pictures."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from greentrain.errors import RunFolderError
from greentrain.simulator.picture import draw_scene, save
from greentrain.simulator.scene import Scene


def write_results(
    folder: Path, result: Mapping[str, Any], table_csv: str, scenes: Sequence[tuple[str, Scene]], suffix: str = ".png"
) -> list[Path]:
    """Write ``table.csv``, ``result.json`` and one picture a scene, and return their paths.

    Args:
        folder: Made where there is none.
        result: In plain JSON types.
        table_csv: The table.
        scenes: Names of pictures and what is on them; none: no picture.
        suffix: Format of the pictures.

    Raises:
        RunFolderError: The folder cannot be written.
        MissingExtraError: There are pictures to draw, and matplotlib is not installed.
    """
    texts = {"table.csv": table_csv, "result.json": json.dumps(result, indent=1, allow_nan=False) + "\n"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"cannot write to {folder}: {error.strerror or error}; choose another with --out"
        ) from error
    written = [folder / name for name in texts]
    for name, scene in scenes:
        written.append(save(draw_scene(scene), folder / f"{safe(name)}{suffix}"))
    return written


def safe(name: str) -> str:
    """Return a name as that of a file."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "picture"
