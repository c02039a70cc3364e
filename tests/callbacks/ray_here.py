"""Ray in spite of the package amdsmi: zeus brings it, and without ROCm's library ray 2.60 fails with it on import."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

_PACKAGE = "amdsmi"


def import_ray() -> Any:
    """Return the module ray; skip the tests where it is not installed."""
    loaded = _PACKAGE in sys.modules
    if not loaded:
        sys.modules[_PACKAGE] = None  # type: ignore[assignment]  # the documented way to say "not here"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pytest.importorskip("ray")
    finally:
        if not loaded:
            del sys.modules[_PACKAGE]


def hide_from_processes(folder: Path) -> str:
    """Return a folder for PYTHONPATH that does the same in every process of a cluster."""
    folder.mkdir()
    (folder / f"{_PACKAGE}.py").write_text(f"raise ImportError({__doc__!r})\n", encoding="utf-8")
    return str(folder)
