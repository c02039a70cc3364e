"""Action tables on disk, so that a model is profiled once on a machine: one JSON file a table.

Nothing here stops a run: a file that is torn, unreadable or of another version counts as none, a disk that cannot
be written to means that the next run profiles again. Both are said in a warning.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from greentrain.policy.action_table import Action, ActionTable
from greentrain.utils.files import ENV_DIR, cache_folder, write_json
from greentrain.utils.never_raise import warn


def cache_key(
    *,
    actions: Iterable[Action],
    parameters: Iterable[tuple[Sequence[int], str]],
    layers: Iterable[Mapping[str, Any]],
    backend: str,
    device: str,
    world_size: int,
    versions: Mapping[str, str],
    tokens_per_step: float | None,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return the key of a table: another one as soon as something changes that speed or power depend on.

    Args:
        actions: What is profiled.
        parameters: Shape and dtype of every parameter, in the order of the model.
        layers: The linear layers and whether they run in FP8, as ``session.gears.describe()`` says.
        backend: Name of the FP8 backend; "" for none.
        device: Name of the device.
        world_size: Ranks of the job.
        versions: Of torch, and of what else counts.
        tokens_per_step: Tokens, or samples, of an optimizer step; rounded to two digits, as packed batches vary.
        settings: Whatever else makes steps faster or slower here: compiled or not, micro-batches a step.
    """
    facts = {
        "actions": sorted(str(action) for action in actions),
        "parameters": [[list(map(int, shape)), str(dtype)] for shape, dtype in parameters],
        "layers": [dict(layer) for layer in layers],
        "backend": backend,
        "device": device,
        "world_size": world_size,
        "versions": dict(versions),
        "tokens_per_step": None if tokens_per_step is None else f"{tokens_per_step:.1e}",
        "settings": dict(settings or {}),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


class ActionCache:
    """Keeps action tables in a folder.

    Args:
        folder: The folder; None: that of :func:`cache_folder`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def path(self, key: str) -> Path:
        """Return where the table of a key is kept.

        Raises:
            RuntimeError: No folder is known.
        """
        return (self._folder or cache_folder()) / "actions" / f"{key}.json"

    def load(self, key: str) -> ActionTable | None:
        """Return the table of a key; None where there is none that can be read. Never raises."""
        try:
            return ActionTable.from_dict(json.loads(self.path(key).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RuntimeError) as error:
            warn(f"the action table in {self._where(key)} is not used ({error}) and will be measured again")
            return None

    def save(self, key: str, table: ActionTable) -> Path | None:
        """Write the table of a key and return the file; None where that is not possible. Never raises."""
        try:
            path = self.path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, table.to_dict())
        except (OSError, RuntimeError) as error:
            warn(
                f"the action table cannot be kept in {self._where(key)} ({error}), so the next run measures it again;"
                f" set {ENV_DIR} to a folder that can be written to"
            )
            return None
        return path

    def _where(self, key: str) -> str:
        try:
            return str(self.path(key))
        except RuntimeError:
            return f"the home folder, which is not known (set {ENV_DIR})"
