"""Where a benchmark puts its tables: between two marks of a text."""

from pathlib import Path


def put(text: str, begin: str, end: str, into: Path) -> None:
    """Replace what stands between two marks of a file; one without them gets them at its end."""
    before, _, rest = into.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    into.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
