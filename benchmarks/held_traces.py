"""The hourly carbon intensity of seven grids in 2022 that the repository holds (benchmarks/data), as files to read.

Where a benchmark is given another folder with ``--traces``, it reads that one: with the traces of Electricity Maps that
benchmarks/data/SOURCES.md names, all ten grids are compared.
"""

import argparse
import atexit
import lzma
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

HELD: Final = Path(__file__).resolve().parent / "data" / "traces"


def unpack(folder: Path) -> Path:
    """Write the held traces as CSV files into a folder, and return it.

    Args:
        folder: Folder that exists.
    """
    for path in HELD.glob("*.csv.xz"):
        (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return folder


@cache
def unpacked() -> Path:
    """Return a folder with the held traces as CSV files; it goes with the process."""
    folder = tempfile.mkdtemp(prefix="greentrain-traces-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return unpack(Path(folder))


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--traces`` to a benchmark's command line."""
    parser.add_argument("--traces", type=Path, help="folder of traces; without it, the seven grids of benchmarks/data")


def folder_of(parser: argparse.ArgumentParser, given: Path | None) -> Path:
    """Return the folder of traces that a command line asks for.

    Args:
        parser: Says so, and ends the program, where the folder is not there.
        given: What ``--traces`` was given, if anything.
    """
    if given is None:
        return unpacked()
    if not given.is_dir():
        parser.error(f"there is no folder {given}: --traces takes one with traces as in benchmarks/data, unpacked")
    return given
