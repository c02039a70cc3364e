"""Where a benchmark puts its tables: between two marks of a text."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def put(text: str, into: Path, section: str = "") -> None:
    """Replace what stands between the two marks of a file.

    Args:
        text: Goes there.
        into: The file.
        section: Name of the table in its marks; none where the file has one table.

    Raises:
        SystemExit: The file lacks a mark.
    """
    into.write_text(replaced(into.read_text(encoding="utf-8"), text, section), encoding="utf-8")


def replaced(old: str, text: str, section: str = "") -> str:
    """Return a text with another table between its marks, as `put` does."""
    begin, end = f"<!-- results{section and f': {section}'} -->", f"<!-- end of {section or 'results'} -->"
    head, found, rest = old.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the text lacks {begin} or, behind it, {end}: add both lines where the table goes")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def facts(about: Mapping[str, str]) -> str:
    """Return where and how a table was made, as a Markdown list."""
    return "\n".join(f"- {key}: {value}" for key, value in about.items())
