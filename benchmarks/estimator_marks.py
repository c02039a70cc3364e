"""Where a benchmark of the estimator puts its table: between its own two marks of a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

MARKS: Final = ("<!-- results: {} -->", "<!-- end of {} -->")


def put(text: str, section: str, into: Path) -> None:
    """Replace what stands between the marks of a section; a text without them gets them at its end."""
    begin, end = (mark.format(section) for mark in MARKS)
    before, found, rest = into.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2] if found else "\n"
    gap = "" if found else "\n"
    into.write_text(f"{before}{gap}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
