"""Units, ticks, the terminal's table and comparisons."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from greentrain.errors import GreenTrainError
from greentrain.ledger.reader import read_run
from greentrain.report import compare, table
from greentrain.report.html import likeness
from greentrain.report.summary import summarize
from greentrain.report.svg import time_ticks, value_ticks
from greentrain.types import Provenance
from greentrain.utils import quantities
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, four_ranks, one_rank


def _summary(folder: Path) -> dict[str, Any]:
    return summarize(read_run(folder))


def _text(renderable: Any) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    console.file.close()
    return console.export_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (quantities.energy(63_000), "17.5 Wh"),
        (quantities.energy(3.6e6), "1.00 kWh"),
        (quantities.energy(3.5999e6), "1.00 kWh"),
        (quantities.energy(0.0), "0 Wh"),
        (quantities.energy(None), "unknown"),
        (quantities.joules(0.197), "197 mJ"),
        (quantities.mass(0.00015), "150 \N{MICRO SIGN}g"),
        (quantities.mass(6894.0), "6.89 kg"),
        (quantities.power(2445.2), "2.45 kW"),
        (quantities.percent(0.9999), "> 99.9 %"),
        (quantities.percent(0.0), "0 %"),
        (quantities.percent(0.00001), "< 0.1 %"),
        (quantities.duration(0.0003), "300 \N{MICRO SIGN}s"),
        (quantities.duration(180.0), "3 min"),
        (quantities.duration(59.97), "60.0 s"),
        (quantities.duration(20_580.0), "5 h 43 min"),
        (quantities.duration(90_000.0), "1 d 1 h"),
        (quantities.count(2_551_920), "2.55 M"),
        (quantities.significant(999.9), "1\N{THIN SPACE}000"),
        (quantities.significant(9.996), "10.0"),
    ],
)
def test_figures_have_three_digits_and_a_unit(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("amount", "unit", "expected"),
    [
        (28.2, "km in a car", ("28", "km in a car")),
        (0.05, "km in a car", ("50", "m in a car")),
        (0.00009, "km in a car", ("9.0", "cm in a car")),
        (0.002, "hours of a laptop", ("7.2", "seconds of a laptop")),
        (0.05, "hours of a laptop", ("3.0", "minutes of a laptop")),
        (0.5, "smartphone charges", ("0.50", "smartphone charges")),
    ],
)
def test_small_comparisons_take_smaller_units(amount: float, unit: str, expected: tuple[str, str]) -> None:
    assert likeness(amount, unit) == expected


@pytest.mark.parametrize("top", [1e-9, 0.07, 1.0, 2.61, 9.99, 350.0, 1e7])
def test_value_ticks_cover_the_top_evenly(top: float) -> None:
    ticks = value_ticks(top)
    assert ticks[0] == 0
    assert top <= ticks[-1] * (1 + 1e-9) < 2 * top + 1e-12
    assert 2 <= len(ticks) <= 7


@pytest.mark.parametrize("span_s", [0.5, 12.0, 180.0, 21_600.0, 604_800.0, 3e7])
def test_time_ticks_stay_within_the_run(span_s: float) -> None:
    ticks = time_ticks(span_s)
    assert ticks[0] == (0.0, "0")
    assert ticks[-1][0] <= span_s * (1 + 1e-9)
    assert 2 <= len(ticks) <= 16


def test_the_table_has_the_headline_and_every_device(tmp_path: Path) -> None:
    text = _text(table.render(_summary(four_ranks(tmp_path))))
    assert "Energy per token by stage and device" in text and "GPU, measured" in text and "CPU, modelled" in text
    for word in ("gpt-small", "finished", "GPU-3", "modelled TDP x load", "backward", "kWh" if "kWh" in text else "Wh"):
        assert word in text


def test_the_table_does_not_read_markup_of_users(tmp_path: Path) -> None:
    folder = Folder(tmp_path, name="[red]x[/red]").rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1.0)})])
    assert "[red]x[/red]" in _text(table.render(_summary(folder.path)))


def test_the_relation_comes_first(tmp_path: Path) -> None:
    a = _summary(one_rank(tmp_path / "a", tokens=5000))
    b = _summary(one_rank(tmp_path / "b", tokens=6000))
    result = compare.compare([a, b])
    assert result["sentences"] == ["B used 0.833x A's energy per token and emitted 0.833x the grams."]
    assert result["caveats"] == []
    rows = {(row["section"], row["name"]): row for row in result["rows"]}
    assert rows["stage", "backward on gpu"]["ratios"] == pytest.approx([1.0, 5 / 6])
    assert rows["power", "backward on gpu"]["texts"] == ["300 W", "300 W"]
    energy = next(row for row in result["rows"] if row["name"] == "energy")
    assert energy["ratios"] == [1.0, 1.0]
    assert next(row for row in result["rows"] if row["name"] == "gpu")["ratios"][1] == pytest.approx(1.0)
    assert _text(result).lstrip().startswith("B used 0.833x")
    json.dumps(result, allow_nan=False)


def test_intervals_stand_beside_their_figures_and_such_as_overlap_are_said_to(tmp_path: Path) -> None:
    def run(name: str, uid: str, joules: float) -> dict[str, Any]:
        one = {**GPU, "uid": uid, "tick_s": None, "period_s": 0.0}
        booked = entry(T0_S, T0_S + 3600, {uid: device(joules)}, relative_error=0.1)
        return _summary(Folder(tmp_path / name).rank(0, [one], [booked]).path)

    a, b, c = run("a", "GPU-0", 3.6e6), run("b", "GPU-1", 3.7e6), run("c", "GPU-1", 5e6)
    assert "3.60 MJ (3.44 to 3.76)" in _text(table.render(a))
    compared = compare.compare([a, b, c])
    texts = {row["name"]: row["texts"] for row in compared["rows"]}
    assert texts["energy"][0] == "1.00 kWh (0.955 to 1.04)" and "to" in texts["emissions"][0]
    assert [text for text in compared["caveats"] if "overlap" in text] == [
        "intervals of A's and B's energy overlap, and other sensors read them: no difference is sure"
    ]
    assert not compare.compare([b, run("d", "GPU-1", 3.71e6)])["caveats"], "one sensor's error is in no ratio"


def test_what_has_no_bound_shows_none() -> None:
    assert quantities.between(1234.0, {"low": 1100.0, "high": None}, quantities.JOULE) == "1.23 kJ (at least 1.10)"
    assert quantities.between(1234.0, {"low": None, "high": None}, quantities.JOULE) == "1.23 kJ"
    assert quantities.between(1234.0, None, quantities.JOULE) == "1.23 kJ"
    assert quantities.between(None, None, quantities.JOULE) == "unknown"


def test_what_no_figure_contains_is_said(tmp_path: Path) -> None:
    unread = {**GPU, "uid": "GPU-1", "provenance": "missing", "uncertainty": None}
    devices = {
        "GPU-0": device(1e6),
        "GPU-1": device(0.0, Provenance.MISSING, 3600.0),
        "cpu": device(9.0, Provenance.MODELLED),
    }
    ranks = Folder(tmp_path).rank(0, [GPU, unread, CPU], [entry(T0_S, T0_S + 3600, devices, pue=1.0)])
    summary = _summary(ranks.path)
    found = summary["completeness"]
    assert found["metered"] == found["not_read"] == ["accelerators"] and found["modelled"] == ["processors"]
    assert {"memory", "fans", "mainboard", "power supply", "network between machines"} <= set(found["in_no_figure"])
    shown = " ".join(_text(table.render(summary)).split())
    assert "In no figure: memory, disks, mainboard, fans" in shown and "(PUE 1)" in shown and "No upper bound" in shown


def test_what_makes_a_ratio_unfair_is_said(tmp_path: Path) -> None:
    a = _summary(one_rank(tmp_path / "a"))
    other = entry(T0_S, T0_S + 10, {"cpu": device(500.0, Provenance.MODELLED)}, zone="DEU", pue=1.5, tokens=10)
    b = _summary(Folder(tmp_path / "b").rank(0, [CPU], [other], reason="sigterm").path)
    b["phases"][0]["attribution"] = "blurred"
    caveats = " | ".join(compare.compare([a, b])["caveats"])
    for words in (
        f"sensors of B do not tell {b['phases'][0]['name']} from what",
        "is modelled",
        "PUE is 1.2 in A and 1.5 in B",
        "FRA in A and DEU in B",
        "B did not finish",
        "same way",
    ):
        assert words in caveats


def test_an_unknown_side_gives_no_ratio(tmp_path: Path) -> None:
    a = _summary(one_rank(tmp_path / "a"))
    b = _summary(Folder(tmp_path / "b").rank(0, [], [entry(T0_S, T0_S + 10, {})]).path)
    result = compare.compare([a, b])
    assert "cannot be compared" in result["sentences"][0]
    assert next(row for row in result["rows"] if row["name"] == "energy")["ratios"] == [1.0, None]


def test_one_run_is_not_a_comparison(tmp_path: Path) -> None:
    with pytest.raises(GreenTrainError, match="two runs or more, 1 given"):
        compare.compare([_summary(one_rank(tmp_path))])
