"""benchmarks/fleet.py stays alive; its figures are not judged here, a loaded machine would decide them."""

from pathlib import Path

import pytest

from benchmarks.fleet import markdown, measure


@pytest.mark.slow
@pytest.mark.long
def test_a_few_runs_give_a_figure_in_every_row(tmp_path: Path) -> None:
    about, rows = measure(tmp_path, 3)
    assert about["runs"].startswith("3, ")
    assert all(row.value is not None and row.value > 0 for row in rows)
    assert all(f"| {row.what} |" in markdown(rows) for row in rows)
