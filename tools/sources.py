"""Sources of other projects, fetched for the time of a run."""

import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def fetch(address: str, path: Path, remedy: str) -> None:
    """Fetch a file, whose folder is made.

    Args:
        address: Where it is.
        path: Where it goes.
        remedy: What to do where it cannot be fetched.
    """
    print(f"fetching {address}", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        urllib.request.urlretrieve(address, path)
    except OSError as error:
        raise SystemExit(f"{address} cannot be fetched ({error}): {remedy}") from None


def unpacked(address: str, scratch: Path, remedy: str) -> Path:
    """Fetch an archive of one folder and return that folder, unpacked under ``scratch``; see :func:`fetch`."""
    path = scratch / "archive.tar.gz"
    fetch(address, path, remedy)
    with tarfile.open(path) as archive:
        archive.extractall(scratch / "source", filter="data")
    (folder,) = (scratch / "source").iterdir()
    return folder


def install(packages: Sequence[str], folder: Path) -> None:
    """Install packages, without what they depend on, in a folder for PYTHONPATH; nothing where there are none."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-c", str(ROOT / "constraints.txt")]
    if packages:
        subprocess.run([*pip, "--target", str(folder), *packages], check=True)
