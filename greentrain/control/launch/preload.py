"""What the fork server imports once, so that no restart of a training pays for it again.

Only torch and the frameworks on it, as named by the imports of the script itself: these start no thread and touch no
GPU when they are imported. What touches a GPU before a fork breaks it in every worker, so that is checked.
"""

import ast
import contextlib
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ENV: Final = "GREENTRAIN_LAUNCH_PRELOAD"
"""Variable with what to import, for the fork server alone: JSON as of :func:`to_text`."""
KNOWN: Final = (
    "torch",
    "numpy",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "accelerate",
    "transformers",
    "tokenizers",
    "safetensors",
    "torchdata",
    "torchvision",
    "greentrain",
)
"""Packages that may be imported before a fork."""
ALWAYS: Final = ("torch", "torch._dynamo", "numpy", "greentrain.session.session")
"""Imported for every script. Torch imports the second one itself, in the first step of an optimizer, for a second."""
Import = tuple[str, tuple[str, ...]]
"""A module, and the names that are taken from it: some packages import their modules when a name is asked for."""


def imports_of(path: Path, more: Sequence[str] = ()) -> list[Import]:
    """Return what a script imports at its top level of KNOWN, and before it ALWAYS.

    Args:
        path: The script.
        more: Modules that are imported too, known or not.
    """
    found: dict[str, set[str]] = {name: set() for name in (*ALWAYS, *more)}
    with contextlib.suppress(OSError, ValueError, SyntaxError):  # the script will say so itself
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found.setdefault(alias.name, set())
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.setdefault(node.module, set()).update(a.name for a in node.names if a.name != "*")
    wanted = [(name, tuple(sorted(taken))) for name, taken in found.items()]
    return [
        (name, taken)
        for name, taken in wanted
        if name in more or (name.partition(".")[0] in KNOWN and not _is_own(name.partition(".")[0], path.parent))
    ]


def to_text(imports: Sequence[Import], folder: Path, report: Path) -> str:
    """Return what the fork server is told.

    Args:
        imports: Modules to import.
        folder: Folder of the script, first on the path of modules.
        report: File for what was imported, and in how many seconds.
    """
    return json.dumps({"imports": imports, "folder": str(folder), "report": str(report)})


def load(environ: Mapping[str, str]) -> None:
    """Import what the variable ENV says, in the fork server.

    Raises:
        SystemExit: An import has touched a GPU, so this process must not be forked.
    """
    text = environ.get(ENV)
    if text is None:
        return
    told = json.loads(text)
    sys.path.insert(0, told["folder"])
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a pool of OpenMP threads does not survive a fork
    for name, taken in told["imports"]:
        start_s = time.monotonic()
        try:
            module = importlib.import_module(name)
            for attribute in taken:
                getattr(module, attribute, None)
        except Exception as error:  # the script will meet it, or not
            failed[name] = repr(error)
        seconds[name] = time.monotonic() - start_s
    torch.set_num_threads(threads)
    sys.path.remove(told["folder"])
    on_gpu = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    with contextlib.suppress(OSError):
        report = {"seconds": seconds, "failed": failed, "touched_gpu": on_gpu}
        Path(told["report"]).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if on_gpu:
        raise SystemExit(1)


def _is_own(package: str, folder: Path) -> bool:
    """Return whether the folder of the script has a module of that name, which would be run twice."""
    return (folder / f"{package}.py").exists() or (folder / package).is_dir()
