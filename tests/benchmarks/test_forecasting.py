"""benchmarks/forecasting.py measures what it says: errors by hand, and the bars of the issue."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.forecasting import AHEAD_H, BARS, errors, hourly, main, nmae
from benchmarks.marks import replaced

DOCS = Path(__file__).resolve().parents[2] / "docs" / "scheduling-benchmarks.md"


def test_an_error_by_hand() -> None:
    values = np.concatenate([np.full(504, 100.0), np.full(AHEAD_H + 7, 150.0)])
    found = nmae(values, lambda past, hours: np.repeat(past[:, -1:], hours, axis=1), 7)
    origins = range(504, len(values) - AHEAD_H, 7)
    assert len(origins) == 1
    assert found == pytest.approx(np.full(AHEAD_H, 100.0 * 50.0 / values.mean()))


def test_a_grid_is_held_to_its_bar(traces: Path) -> None:
    name = "us_pjm_2022_eia"
    values = hourly(traces / f"{name}.csv")
    assert (
        len(values) == 8760 and values[0] == np.loadtxt(traces / f"{name}.csv", delimiter=",", skiprows=1, usecols=1)[0]
    )
    table = errors({name: values, "unknown": values[::-1].copy()}, every=49)
    assert (table.passed, table.missed) == (len(BARS[name]), 0)
    assert [row[3] for row in table.rows] == ["PASS", ""]
    assert errors({"us_pjm_2022_eia": 100.0 * np.random.default_rng(0).random(2000)}, every=49).missed == 2


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--traces", str(tmp_path / "nowhere")])
    assert "--traces" in capsys.readouterr().err


def test_the_table_has_its_place_in_the_documentation() -> None:
    assert replaced(DOCS.read_text(encoding="utf-8"), "THE TABLE", "forecast").count("THE TABLE") == 1
