"""README, the comparison and the page on measuring quote no figure that a benchmark's table does not have."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import quotes

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A figure of README's table, and where it is from: looked up here by other means than ``quotes.py`` has."""

    what: str
    """How README's row begins."""
    cell: int
    """Column of README's row, from 0."""
    text: str
    """What stands in that cell, with ``{}`` in place of the figure."""
    document: str
    row: str
    """What is in the line of the table, in the one of them that has the most columns."""
    column: int
    """Column of that line, from 0."""


METERING, SCHEDULING, ESTIMATE = "benchmarks.md", "scheduling-benchmarks.md", "estimate-benchmarks.md"
WINDOW = "| 0.5 s windows (n=200), 120/420 W square, 0.73 s: mean error |"
SEES = "| 0.5 s windows, sensor sees 25 % of the time, 120/420 W square, 0.73 s: mean error |"
RANKS = "| sum of 4 ranks on one node, error, CUDA_VISIBLE_DEVICES by index |"
STEP = "| 1 GPUs, step() / start_task+stop_task / begin+end_window: median |"
CALIFORNIA = "| us_caiso_2022_eia |"
QUOTES = (
    *(
        Quote(what=what, cell=1 + (column > 3), text=text, document=METERING, row=row, column=column)
        for what, row, unit in (
            ("error of 0.5 s windows on a fake GPU with known truth", WINDOW, "%"),
            ("the same where the sensor sees 25 %", SEES, "%"),
            ("error of the sum of four ranks", RANKS, "%"),
            ("a step on the training thread, one GPU", STEP, "us"),
        )
        for column, text in ((3, f"{{}} {unit}"), (4, f"CodeCarbon {{}} {unit},"), (5, f", Zeus {{}} {unit}"))
    ),
    Quote(what="simulated: carbon", cell=1, text="{} %,", document=SCHEDULING, row=CALIFORNIA, column=5),
    Quote(what="simulated: carbon", cell=1, text=", {} %", document=SCHEDULING, row=CALIFORNIA, column=2),
    Quote(what="hours of published runs", cell=1, text="{}", document=ESTIMATE, row="| blend |", column=1),
    Quote(
        what="hours of published runs", cell=2, text="for all {},", document=ESTIMATE, row="| B1 one MFU |", column=1
    ),
    Quote(
        what="hours of published runs",
        cell=2,
        text="LLMCarbon {}",
        document=ESTIMATE,
        row="| LLMCarbon's regression |",
        column=1,
    ),
)
SETTINGS = {"0.5 s", "25 %"}
"""Conditions of a figure, not figures."""
KNOWN_ELSEWHERE = {"70 %"}
"""Of ``docs/measurement.md``: 30 to 70 %, a range that others measured."""
PAGES = {
    "comparison.md": set(),
    "measurement.md": {"100 ms", "25 %", "70 %"},
}
"""Pages whose tables are made from that of the metering, and what else they may say: conditions and others' figures."""
FIGURE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?(%|us|ms|MB|s)(?![\w])")


def _readme() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _found(text: str) -> set[str]:
    return {f"{number} {unit}" for number, unit in FIGURE.findall(text)}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: f"{quote.what} {quote.text}")
def test_readme_quotes_the_cell_of_the_table_it_is_from(quote: Quote) -> None:
    lines = (ROOT / "docs" / quote.document).read_text(encoding="utf-8").splitlines()
    found = [i for i, line in enumerate(lines) if quote.row in line and line.count("|") > 6]
    if quote.row == CALIFORNIA:  # the grid has its name on the line of the bar; below it are the windows' means
        found = [i + 1 for i in found if "| bar |" in lines[i]]
        assert [_cells(lines[i])[1] for i in found] == ["mpc, mean of the windows"]
    assert len(found) == 1, quote.row
    figure = _cells(lines[found[0]])[quote.column]
    assert re.fullmatch(r"\d+(\.\d+)?( %)?", figure)
    (row,) = [line for line in _readme().splitlines() if line.startswith(f"| {quote.what}")]
    shown = _cells(row)[quote.cell]
    assert quote.text.format(figure) in (shown if "," in quote.text or "LLM" in quote.text else [shown]), (
        shown,
        figure,
    )


def test_readme_has_no_other_figure() -> None:
    rows = [line for line in _readme().splitlines() if any(line.startswith(f"| {quote.what}") for quote in QUOTES)]
    assert len(rows) == len({quote.what for quote in QUOTES}) == 6
    quoted = {figure for row in rows for cell in _cells(row)[1:3] for figure in _found(cell)}
    assert len(quoted) in range(len(QUOTES) - 3, len(QUOTES) + 1), "some tools have the same figure"
    assert _found(_readme()) - quoted - SETTINGS - KNOWN_ELSEWHERE == set()
    begin, end = "<!-- results: quoted -->", "<!-- end of quoted -->"
    assert _found(re.sub(f"{begin}.*?{end}", "", _readme(), flags=re.DOTALL)) == KNOWN_ELSEWHERE


@pytest.mark.parametrize("page", quotes.PAGES)
def test_a_page_quotes_what_the_table_says(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert quotes.quoting(page, text, quotes.texts()) == text, "run python benchmarks/quotes.py"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_other_figure(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    prose = re.sub(r"<!-- results: quoted.*?<!-- end of quoted[^>]*-->", "", text, flags=re.DOTALL)
    assert len(prose) < len(text) and _found(prose) == PAGES[page]


@pytest.mark.parametrize("page", ["README.md", "docs/comparison.md"])
def test_a_changed_table_changes_the_quotes(page: str) -> None:
    sources, text = quotes.texts(), (ROOT / page).read_text(encoding="utf-8")
    (step,) = [line for line in sources[quotes.SOURCE].splitlines() if STEP in line]
    cells = _cells(step)
    assert f"{cells[4]} us" in text or f"| {cells[4]} |" in text
    other = sources | {quotes.SOURCE: sources[quotes.SOURCE].replace(f"| {cells[4]} |", "| 602.5 |")}
    assert quotes.quoting(page, text, other).count("602.5") == 1
    gone = sources | {quotes.SOURCE: sources[quotes.SOURCE].replace("1 GPUs, step()", "one GPU, step()")}
    with pytest.raises(SystemExit, match="0 rows that begin with"):
        quotes.quoting(page, text, gone)


def test_a_figure_of_readme_is_of_one_table_alone() -> None:
    sources = quotes.texts()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blend = f"| blend | {quotes.looked_up(sources[quotes.ESTIMATE], ['blend'], 'median error')} |"
    changed = sources | {quotes.ESTIMATE: sources[quotes.ESTIMATE].replace(blend, "| blend | 99.9 % |")}
    assert "99.9 %" in quotes.quoting("README.md", text, changed) and changed != sources
    twice = sources | {
        quotes.ESTIMATE: sources[quotes.ESTIMATE] + "\n\n| x | median error |\n|---|---|\n| blend | 1 |\n"
    }
    with pytest.raises(SystemExit, match="2 tables have a row 'blend'"):
        quotes.quoting("README.md", text, twice)
