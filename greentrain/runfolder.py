"""run.json: what ran, where, with which versions and settings; and how JSON is written into a run folder."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from greentrain import redacted
from greentrain._version import __version__
from greentrain.config import GreenConfig
from greentrain.types import FORMAT_VERSION, Topology

ESTIMATE: Final = "estimate.json"
"""What was estimated before the run: copied from ``run.estimate``, or by ``greentrain estimate --into RUN``."""
_KERNELS: Final = ("ipykernel_launcher.py", "colab_kernel_launcher.py")
"""Programs that run notebooks; behind them stands a connection file, which says nothing."""
_NOTEBOOK: Final = "JPY_SESSION_NAME"
"""Path of the notebook, as Jupyter Server tells its kernels
(https://github.com/jupyter-server/jupyter_server, services/sessions/sessionmanager.py, read 2026-11-22)."""
_PACKAGES = ("torch", "lightning", "accelerate", "transformers", "deepspeed", "numpy", "nvidia-ml-py", "codecarbon")


def run_json(
    *,
    run_id: str,
    config: GreenConfig,
    topology: Topology,
    created_unix_s: float,
    carbon: Mapping[str, str],
    parameters: int | None,
) -> dict[str, Any]:
    """Return the content of run.json: what ran, where, with which versions and settings, and no secrets."""
    return {
        "format": FORMAT_VERSION,
        "run_id": run_id,
        "created_unix_s": created_unix_s,
        "name": config.run.name,
        "tags": redacted.settings(dict(config.run.tags)),
        "config": redacted.settings(config.to_dict()),
        "greentrain_version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(),
        "world_size": topology.world_size,
        "command": redacted.arguments(command()),
        "carbon": dict(carbon),
        "parameters": parameters,
    }


def command() -> list[str]:
    """Return the words that started the program; of a kernel, the notebook's name where the server tells it."""
    if Path(sys.argv[0]).name in _KERNELS:
        return [Path(os.environ.get(_NOTEBOOK) or "notebook").name]
    return list(sys.argv)


def write_json(path: Path, data: Mapping[str, Any], *, private: bool = False) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of one.

    Args:
        path: The file.
        data: What it holds.
        private: Let nobody but the owner read it.

    Raises:
        OSError: The file cannot be written.
    """
    part = path.with_suffix(f".{os.getpid()}.part")
    text = json.dumps(data, indent=1, sort_keys=True, default=str) + "\n"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(part, flags, 0o600 if private else 0o666), "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
