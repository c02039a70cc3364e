"""The figures that README, docs/comparison.md and docs/measurement.md quote, taken from benchmarks' tables in docs.

    python benchmarks/quotes.py            # put them in again, after a benchmark has made its table anew

``tests/docs/test_quoted_figures.py`` holds the pages to what this makes.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.marks import replaced, table

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = "docs/benchmarks.md"
SCHEDULING: Final = "docs/scheduling-benchmarks.md"
ESTIMATE: Final = "docs/estimate-benchmarks.md"
OURS, CODECARBON, ZEUS, BAR, VERDICT = range(5)
"""Columns of figures of a row, those of the tools first."""
_NONE: Final = {"n/a": "none", "": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A row that a page quotes; of several rows of the source, the range of what they say."""

    text: str
    unit: str
    rows: Sequence[str]
    """How the figure's name begins in the source, a row each."""


SQUARE: Final = "120/420 W square, 0.73 s"
TWO: Final = "squares of 0.73 and 0.31 s"
TOTAL: Final = Quoted(
    text="total of a run of 30 s, three waveforms",
    unit="%",
    rows=[f"error of the total, 30 s, {form}, mean of 3" for form in (SQUARE, TWO, "constant 300 W")],
)
HALF: Final = Quoted(
    text="windows of 0.5 s, two waveforms",
    unit="%",
    rows=[f"0.5 s windows (n=200), {form}: mean error" for form in (SQUARE, TWO)],
)
BLIND: Final = Quoted(
    text="windows of 0.5 s, sensor that sees 25 % of the time",
    unit="%",
    rows=[f"0.5 s windows, sensor sees 25 % of the time, {form}: mean error" for form in (SQUARE, TWO)],
)
INSTANT: Final = Quoted(
    text="windows of 0.5 s, no counter, instant power (the others as they do)",
    unit="%",
    rows=["0.5 s windows, no energy counter: instant power (peers as they do), square: mean error"],
)
AVERAGE: Final = Quoted(
    text="windows of 0.5 s, no counter, 1 s average",
    unit="%",
    rows=["0.5 s windows, no counter, no instant power: 1 s average, square: mean error"],
)
GRID: Final = "error of grams, 100 -> 900 g/kWh mid-run, 20 s"
STEADY: Final = Quoted(
    text="grams when the grid steps, power constant; codecarbon asks every 0.5 s",
    unit="%",
    rows=[f"{GRID}, constant power; codecarbon asks its grid every 0.5 s"],
)
MOVING: Final = Quoted(
    text="grams when grid and power step at one moment; codecarbon asks every 0.5 s",
    unit="%",
    rows=[f"{GRID}, power goes 200 -> 600 W at the same moment; codecarbon asks its grid every 0.5 s"],
)
STEP: Final = Quoted(
    text="a step on the training thread, one GPU, median",
    unit="us",
    rows=["1 GPUs, step() / start_task+stop_task / begin+end_window: median"],
)
LOST: Final = Quoted(text="lost at SIGKILL after 12 s", unit="s", rows=["lost at SIGKILL after 12 s"])
TOOLS: Final = (
    TOTAL,
    HALF,
    Quoted(
        text="windows of 50 ms, one step of power in a tick",
        unit="%",
        rows=[f"50 ms windows (n=200), {SQUARE}: mean error"],
    ),
    Quoted(text="windows of 0.5 s, sensor that sees 25 % of the time, square", unit="%", rows=BLIND.rows[:1]),
    INSTANT,
    AVERAGE,
    STEADY,
    MOVING,
    Quoted(text="sum of one rank", unit="%", rows=["sum of 1 ranks on one node, error"]),
    Quoted(
        text="sum of four ranks on a node",
        unit="%",
        rows=["sum of 4 ranks on one node, error, CUDA_VISIBLE_DEVICES by index"],
    ),
    STEP,
    Quoted(
        text="background, one GPU read ten times a second",
        unit="% of a core",
        rows=["1 GPU at 100 ms, square; codecarbon at 0.1 s"],
    ),
    Quoted(text="background with defaults", unit="% of a core", rows=["1 GPU, all defaults: CPU and memory model too"]),
    Quoted(text="import of the package", unit="ms", rows=["import greentrain / codecarbon / zeus.monitor, wall"]),
    Quoted(
        text="import of what measures (`from greentrain import GreenSession`)",
        unit="ms",
        rows=["from greentrain import GreenSession, wall"],
    ),
    LOST,
    Quoted(
        text="the same; codecarbon flushes, zeus logs once a second",
        unit="s",
        rows=["lost at SIGKILL after 12 s; loop calls codecarbon's flush()"],
    ),
    Quoted(text="helper processes, a GPU and RAPL", unit="", rows=["helper processes while running"]),
)
"""Of docs/comparison.md."""
ALONE: Final = (
    TOTAL,
    Quoted(text="windows of 5 s", unit="%", rows=[f"5 s windows (n=20), {form}: mean error" for form in (SQUARE, TWO)]),
    HALF,
    Quoted(
        text="windows of 50 ms, one step of power in a tick",
        unit="%",
        rows=[f"50 ms windows (n=200), {SQUARE}: mean error"],
    ),
    Quoted(text="windows of 50 ms, two squares at once", unit="%", rows=[f"50 ms windows (n=200), {TWO}: mean error"]),
    BLIND,
    Quoted(text="windows of 0.5 s, no counter, instant power", unit="%", rows=INSTANT.rows),
    AVERAGE,
    Quoted(text="grams when the grid steps, power constant", unit="%", rows=STEADY.rows),
    Quoted(text="grams when grid and power step at one moment", unit="%", rows=MOVING.rows),
    Quoted(
        text="sum of 1 to 8 ranks on a node",
        unit="%",
        rows=[f"sum of {ranks} ranks on one node, error, CUDA_VISIBLE_DEVICES by index |" for ranks in (1, 2, 4, 8)],
    ),
)
COSTS: Final = (
    STEP,
    Quoted(
        text="the background thread, one GPU at 100 ms",
        unit="% of a core",
        rows=["1 GPU at 100 ms, square; codecarbon at 0.1 s"],
    ),
    LOST,
    Quoted(
        text="the most that SIGKILL can take after minutes",
        unit="s",
        rows=["the most that SIGKILL can take after minutes"],
    ),
)
"""Of docs/measurement.md."""


def figures(text: str) -> dict[str, list[str]]:
    """Return what a document's table of metering says: the figure's name -> its cells by column.

    Args:
        text: Text of the document.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) >= 8 and cells[6] != "bar":
            found[cells[1]] = cells[3:8]
    return found


def _of(quoted: Quoted, source: Mapping[str, list[str]], column: int) -> str:
    cells = []
    for wanted in quoted.rows:
        names = [name for name in source if f"{name} |".startswith(wanted)]
        if wanted in names:
            names = [wanted]
        if len(names) != 1:
            raise SystemExit(f"{SOURCE} has {len(names)} rows that begin with {wanted!r}: name exactly one")
        cells.append(source[names[0]][column])
    if any(cell.startswith("crash") for cell in cells):
        return "no support"
    if len(cells) == 1:
        return _NONE.get(cells[0], cells[0])
    ordered = sorted((cell.removeprefix("-") for cell in cells), key=float)
    return f"{ordered[0]} to {ordered[-1]}"


def _worst(cell: str) -> float | None:
    try:
        return abs(float(cell.split(" to ")[-1]))
    except ValueError:
        return None


def _with_tools(quotes: Sequence[Quoted], source: Mapping[str, list[str]]) -> str:
    rows = []
    for quoted in quotes:
        ours, *others = (_of(quoted, source, column) for column in (OURS, CODECARBON, ZEUS))
        best = _worst(ours)
        shown = [
            f"**{cell}**" if (_worst(cell) or 0.0) < (best or 0.0) and _worst(cell) is not None else cell
            for cell in others
        ]
        rows.append([f"{quoted.text}, {quoted.unit}" if quoted.unit else quoted.text, ours, *shown])
    return table(["error or cost", "GreenTrain", "codecarbon", "zeus"], rows)


def _alone(quotes: Sequence[Quoted], source: Mapping[str, list[str]], head: str) -> str:
    return table(["what", head], [[each.text, f"{_of(each, source, OURS)} {each.unit}"] for each in quotes])


def _costs(source: Mapping[str, list[str]]) -> str:
    rows = []
    for each in COSTS:
        bar = _of(each, source, BAR) + (", missed" if _of(each, source, VERDICT) == "MISS" else "")
        rows.append([each.text, f"{_of(each, source, OURS)} {each.unit}", bar])
    return table(["what", "cost", "bar"], rows)


def looked_up(text: str, row: Sequence[str], column: str) -> str:
    """Return a cell of the one table of a document that has such a row and column.

    Args:
        text: Text of the document.
        row: How the row begins; a first cell that is empty there is that of the row above.
        column: Head of the column.
    """
    found, head, first, above = list[str](), list[str](), "", ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells and not above.startswith("|"):
            head = cells
        elif cells:
            first = cells[0] or first
            if [first, *cells[1:]][: len(row)] == list(row) and column in head:
                found.append(cells[head.index(column)])
        above = line
    if len(found) != 1:
        raise SystemExit(
            f"{len(found)} tables have a row {' | '.join(row)!r} and a column {column!r}: name exactly one"
        )
    return found[0]


def _readme(sources: Mapping[str, str]) -> str:
    known = figures(sources[SOURCE])

    def measured(what: str, quoted: Quoted, row: int = 0) -> list[str]:
        one = Quoted(text=what, unit=quoted.unit, rows=quoted.rows[row : row + 1])
        ours, codecarbon, zeus = (f"{_of(one, known, column)} {one.unit}" for column in (OURS, CODECARBON, ZEUS))
        return [what, ours, f"CodeCarbon {codecarbon}, Zeus {zeus}", "[benchmarks](docs/benchmarks.md)"]

    saved = [
        f"{looked_up(sources[SCHEDULING], ('us_caiso_2022_eia', 'mpc, mean of the windows'), slack)} %"
        for slack in ("2", "1")
    ]
    hours = [
        looked_up(sources[ESTIMATE], (method,), "median error")
        for method in ("blend", "B1 one MFU", "LLMCarbon's regression")
    ]
    ranks = next(each for each in TOOLS if each.text == "sum of four ranks on a node")
    jumping = "error of 0.5 s windows on a fake GPU with known truth, power jumping between 120 and 420 W"
    simulated = "simulated: carbon saved on the Californian grid, in twice the time and in no more than needed"
    return table(
        ["what", "GreenTrain", "others, in the same run", "table"],
        [
            measured(jumping, HALF),
            measured("the same where the sensor sees 25 % of the time", BLIND),
            measured("error of the sum of four ranks on one node", ranks),
            measured("a step on the training thread, one GPU", STEP),
            [simulated, ", ".join(saved), "", "[scheduling](docs/scheduling-benchmarks.md)"],
            [
                "hours of published runs before they start, families left out: median error",
                hours[0],
                f"one MFU for all {hours[1]}, LLMCarbon {hours[2]}",
                "[estimate](docs/estimate-benchmarks.md)",
            ],
        ],
    )


def quoting(page: str, text: str, sources: Mapping[str, str]) -> str:
    """Return a page with the figures of the sources in it.

    Args:
        page: Path of the page.
        text: Text of the page, with its marks.
        sources: Text of each document that holds a table, by its path.
    """
    if page == "README.md":
        return replaced(text, _readme(sources), "quoted")
    known = figures(sources[SOURCE])
    if page == "docs/comparison.md":
        return replaced(text, _with_tools(TOOLS, known), "quoted")
    return replaced(replaced(text, _alone(ALONE, known, "error"), "quoted errors"), _costs(known), "quoted costs")


PAGES: Final = ("README.md", "docs/comparison.md", "docs/measurement.md")


def texts() -> dict[str, str]:
    """Return the text of each document that holds a table, by its path."""
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in (SOURCE, SCHEDULING, ESTIMATE)}


def main() -> None:
    """Put the figures in."""
    for page in PAGES:
        path = ROOT / page
        path.write_text(quoting(page, path.read_text(encoding="utf-8"), texts()), encoding="utf-8")


if __name__ == "__main__":
    main()
