"""Where GreenTrain keeps what outlives a run: action tables, and answers of grid servers."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ENV_DIR: Final = "GREENTRAIN_CACHE_DIR"


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return $GREENTRAIN_CACHE_DIR, else $XDG_CACHE_HOME/greentrain, else ~/.cache/greentrain.

    Args:
        environ: Environment, os.environ by default.

    Raises:
        RuntimeError: None of them is set and this user has no home.
    """
    env = os.environ if environ is None else environ
    if env.get(ENV_DIR):
        return Path(env[ENV_DIR])
    base = env.get("XDG_CACHE_HOME", "")
    # a relative one is to be ignored: XDG Base Directory Specification 0.8, 2026-11-21
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "greentrain"
