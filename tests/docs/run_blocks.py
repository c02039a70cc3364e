"""Looks up and runs blocks of the documentation in one process, so that they share the imports of the frameworks.

    python -m tests.docs.run_blocks < blocks.json

Reads ``{"read": {page: [text, ...]}, "run": [[name, folder, text], ...]}``, and writes a JSON line for each page and
block: its name, and what is wrong, or "".
"""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

from tests.docs.lookup import Lookup


def main() -> None:
    """Do what standard input asks for."""
    asked = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)
        for name, folder, text in asked["run"]:
            told.write(json.dumps({"name": name, "wrong": run(Path(folder), text)}) + "\n")
            told.flush()
        for page, texts in asked["read"].items():
            lookup = Lookup()
            for text in texts:
                lookup.follow(text)
            told.write(json.dumps({"name": page, "wrong": "; ".join(lookup.wrong)}) + "\n")
            told.flush()


def run(folder: Path, text: str) -> str:
    """Run a block as a script in a folder; return its traceback."""
    os.chdir(folder)
    script = folder / "block.py"
    script.write_text(text, encoding="utf-8")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")
    except BaseException:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    main()
