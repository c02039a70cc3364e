"""What GreenTrain has of the four papers, item by item, as a page: docs/papers-coverage.md from a file of records.

    python benchmarks/papers_coverage.py                                   # print the page
    python benchmarks/papers_coverage.py --into docs/papers-coverage.md    # put its tables in again

The records are ``benchmarks/data/papers_coverage.toml``; a test reads every path and command that they name.
"""

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.marks import replaced, table

ROOT: Final = Path(__file__).resolve().parents[1]
RECORDS: Final = Path(__file__).with_name("data") / "papers_coverage.toml"
PAGE: Final = ROOT / "docs" / "papers-coverage.md"
PAPERS: Final = {
    "E": "EcoRL-Sched",
    "G": "CarbonGearRL",
    "O": "Eco-Orchestrator, with CARL",
    "S": "CarbonScaling",
}
"""By the first letter of an item's id."""
STATUSES: Final = ("has", "emulated", "needs a card", "refused", "lacks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that a paper has: a formula, a rule, a figure, an experiment."""

    id: str
    item: str
    status: str
    """One of STATUSES."""
    shows: tuple[str, ...]
    """Files, folders and commands that show it, or the part of it that is there."""
    why: str = ""
    """Why it is not ``has``, or what else there is to know."""

    @property
    def is_command(self) -> tuple[bool, ...]:
        """Whether each of ``shows`` is a command, and not a path."""
        return tuple(shown.startswith(("greentrain ", "python ")) for shown in self.shows)


def items() -> tuple[Item, ...]:
    """Return all records, in the order of the file."""
    found = tomllib.loads(RECORDS.read_text(encoding="utf-8"))["item"]
    return tuple(Item(**{**record, "shows": tuple(record["shows"])}) for record in found)


def page(text: str, of: Sequence[Item]) -> str:
    """Return the page with its tables made again: the counts, and a table a paper."""
    counts = {letter: Counter(one.status for one in of if one.id[0] == letter) for letter in PAPERS}
    rows = [
        [PAPERS[letter], str(count.total()), *(str(count[status]) for status in STATUSES)]
        for letter, count in counts.items()
    ]
    together: Counter[str] = sum(counts.values(), Counter())
    rows.append(["all", str(together.total()), *(str(together[status]) for status in STATUSES)])
    text = replaced(text, table(["paper", "items", *STATUSES], rows), "counts")
    for letter in PAPERS:
        cells = [
            [one.id, one.item, one.status, ", ".join(f"`{shown}`" for shown in one.shows), one.why]
            for one in of
            if one.id[0] == letter
        ]
        text = replaced(text, table(["", "item", "status", "shown by", "why, or what is missing"], cells), letter)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, help="put the tables into this text, each between its two marks")
    args = parser.parse_args(argv)
    made = page((args.into or PAGE).read_text(encoding="utf-8"), items())
    if args.into is None:
        print(made)
    else:
        args.into.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
