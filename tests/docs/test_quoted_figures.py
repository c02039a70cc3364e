"""README, the comparison and the page on measuring quote no figure that a benchmark's table does not have."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import quotes

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A cell of README's table, and where it is from."""

    figure: str
    document: str
    row: str
    """How the row of the table begins, or what is in it."""
    cell: str
    """As the benchmark printed it."""


METERING = "benchmarks.md"
WINDOW = "0.5 s windows (n=200), 120/420 W square, 0.73 s: mean error"
SEES = "0.5 s windows, sensor sees 25 % of the time, 120/420 W square, 0.73 s: mean error"
RANKS = "sum of 4 ranks on one node, error, CUDA_VISIBLE_DEVICES by index |"
STEP = "1 GPUs, step() / start_task+stop_task / begin+end_window: median"
QUOTES = (
    Quote(figure="0.116 %", document=METERING, row=WINDOW, cell="0.116"),
    Quote(figure="8.9 %", document=METERING, row=WINDOW, cell="8.9"),
    Quote(figure="8.75 %", document=METERING, row=WINDOW, cell="8.75"),
    Quote(figure="7.08 %", document=METERING, row=SEES, cell="7.08"),
    Quote(figure="6.82 %", document=METERING, row=SEES, cell="6.82"),
    Quote(figure="6.7 %", document=METERING, row=SEES, cell="6.7"),
    Quote(figure="0.178 %", document=METERING, row=RANKS, cell="0.178"),
    Quote(figure="301 %", document=METERING, row=RANKS, cell="301"),
    Quote(figure="301 %", document=METERING, row=RANKS, cell="301"),
    Quote(figure="1.26 us", document=METERING, row=STEP, cell="1.26"),
    Quote(figure="608 us", document=METERING, row=STEP, cell="608"),
    Quote(figure="8.24 us", document=METERING, row=STEP, cell="8.24"),
    Quote(figure="52.4 %", document="scheduling-benchmarks.md", row="mpc, mean of the windows", cell="52.4"),
    Quote(figure="40.4 %", document="scheduling-benchmarks.md", row="mpc, mean of the windows", cell="40.4"),
    Quote(figure="18.1 %", document="estimate-benchmarks.md", row="| blend |", cell="18.1 %"),
    Quote(figure="21.5 %", document="estimate-benchmarks.md", row="| B1 one MFU |", cell="21.5 %"),
    Quote(figure="30.8 %", document="estimate-benchmarks.md", row="| LLMCarbon's regression |", cell="30.8 %"),
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


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: quote.figure)
def test_a_quoted_figure_is_in_the_table_it_is_from(quote: Quote) -> None:
    text = (ROOT / "docs" / quote.document).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|") and quote.row in line]
    assert rows, quote.row
    assert any(f"| {quote.cell} |" in row for row in rows), rows
    assert quote.figure in _readme()


def test_readme_has_no_other_figure() -> None:
    assert _found(_readme()) - {quote.figure for quote in QUOTES} - SETTINGS - KNOWN_ELSEWHERE == set()


@pytest.mark.parametrize("page", quotes.PAGES)
def test_a_page_quotes_what_the_table_says(page: str) -> None:
    text, source = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in (page, quotes.SOURCE))
    assert quotes.quoting(page, text, source) == text, "run python benchmarks/quotes.py"


@pytest.mark.parametrize("page", quotes.PAGES)
def test_a_page_has_no_other_figure(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    prose = re.sub(r"<!-- results: quoted.*?<!-- end of quoted[^>]*-->", "", text, flags=re.DOTALL)
    assert len(prose) < len(text) and _found(prose) == PAGES[page]


def test_a_changed_table_changes_the_quotes() -> None:
    source = (ROOT / "docs" / quotes.SOURCE).read_text(encoding="utf-8")
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    cell = [f"| {quote.cell} |" for quote in QUOTES if quote.row == STEP][1]
    assert cell in text and "| 602 |" in quotes.quoting("comparison.md", text, source.replace(cell, "| 602 |"))
    with pytest.raises(SystemExit, match="0 rows that begin with"):
        quotes.quoting("comparison.md", text, source.replace("1 GPUs, step()", "one GPU, step()"))
