"""Tables with verdicts, made case by case and written as they are made."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

from benchmarks.marks import facts, put, table

B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of the documentation."""

    case: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    passed: int = 0
    """Bars reached."""
    missed: int = 0
    """Bars missed."""

    def markdown(self) -> str:
        """Return it with its verdicts counted below."""
        notes = list(self.notes)
        if self.passed or self.missed:
            notes.append(f"{self.passed} bars reached, {self.missed} missed.")
        return "\n".join([f"### {self.title}", "", table(self.head, self.rows), "", *(f"- {note}" for note in notes)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases(Generic[B]):
    """The cases of a benchmark.

    A case makes its tables out of what it gets; its name is that of its marks in the documentation.
    """

    makers: Mapping[str, Callable[[B], list[Table]]]
    about: Mapping[str, str]
    """Where and how they are made."""

    def run(self, names: Sequence[str], bench: B, *, into: Path | None, as_json: Path | None) -> None:
        """Make, print and write the tables of some cases, each as soon as it is there."""
        tables: list[Table] = []
        for name in names:
            began_s = time.monotonic()
            found = self.makers[name](bench)
            tables += found
            log(f"{name}: {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}")
            text = "\n\n".join(each.markdown() for each in found)
            print(text, end="\n\n", flush=True)
            if into is not None:
                put(f"{facts(self.about)}\n\n{text}", into, name)
        print(f"{sum(t.passed for t in tables)} bars reached, {sum(t.missed for t in tables)} missed")
        if as_json is not None:
            data = {"machine": dict(self.about), "tables": [asdict(each) for each in tables]}
            as_json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def log(text: str) -> None:
    """Tell whoever waits."""
    print(text, file=sys.stderr, flush=True)
