"""Reads the emission-factor tables inside the installed codecarbon wheel, without importing codecarbon.

Importing codecarbon loads pandas and takes about a second; its tables are plain JSON and CSV. The price is that
we depend on its file names, so every miss is an error that says so and offers a way out.
"""

import csv
import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greentrain.errors import CarbonSignalError

_REMEDY = "install 'codecarbon>=3.3.2,<4', or give a number with carbon.g_per_kwh"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecarbonData:
    """The data folder of one codecarbon version."""

    folder: Path
    version: str

    @classmethod
    def installed(cls) -> "CodecarbonData":
        """Find the installed wheel's data.

        Raises:
            CarbonSignalError: codecarbon is not installed, or has no data folder any more.
        """
        spec = importlib.util.find_spec("codecarbon")
        if spec is None or spec.origin is None:
            raise CarbonSignalError(f"emission factors of places come from codecarbon's tables: {_REMEDY}")
        folder = Path(spec.origin).parent / "data"
        try:
            version = importlib.metadata.version("codecarbon")
        except importlib.metadata.PackageNotFoundError:
            version = "of unknown version"
        if not folder.is_dir():
            raise CarbonSignalError(f"codecarbon {version} has no folder {folder}: {_REMEDY}")
        return cls(folder=folder, version=version)

    def read_json(self, name: str) -> Mapping[str, Any]:
        """Return a JSON table.

        Raises:
            CarbonSignalError: The file is gone or is no JSON object.
        """
        try:
            table = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self.changed(name, str(error)) from error
        if not isinstance(table, dict):
            raise self.changed(name, f"it holds a {type(table).__name__}, not an object")
        return table

    def read_csv(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the rows of a CSV table.

        Raises:
            CarbonSignalError: The file is gone or cannot be decoded.
        """
        try:
            with (self.folder / name).open(encoding="utf-8-sig", newline="") as file:
                return list(csv.DictReader(file))
        except (OSError, ValueError, csv.Error) as error:
            raise self.changed(name, str(error)) from error

    def changed(self, name: str, what: str) -> CarbonSignalError:
        """Return the error that says that a table no longer looks as expected."""
        return CarbonSignalError(
            f"codecarbon {self.version}: cannot read the table {self.folder / name}: {what}. Its layout changed:"
            f" {_REMEDY}"
        )
