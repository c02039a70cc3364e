"""CarbonScaling's figures: values by hand, and what a file of a figure holds."""

import csv
from pathlib import Path

import pytest

from benchmarks import carbonscaling
from benchmarks.figures import Line, Panel, Row, Sheet, _plain, as_csv, write
from greentrain.estimate import hardware
from greentrain.estimate.carbon import embodied_hour
from greentrain.types import Gear


def _of(sheet: Sheet, **wanted: object) -> list[Row]:
    return [row for row in sheet.rows if all(row[key] == value for key, value in wanted.items())]


def test_the_ideal_line_is_the_peak_and_no_layout_beats_it() -> None:
    sheet = carbonscaling.scaling()
    ideal, practical = _of(sheet, line="ideal"), _of(sheet, line="practical")
    peak = hardware.find(carbonscaling.DEVICE).peak_flop_s[Gear.BF16].value
    for row in ideal:
        assert row["device_hours"] == pytest.approx(row["flop"] / peak / 3600)
        assert row["total_t"] == pytest.approx(row["operational_t"] + row["embodied_t"])
    assert 5 <= len(practical) <= len(ideal)
    for row, best in zip(practical, ideal, strict=False):
        assert row["flop"] == best["flop"] and row["total_t"] > best["total_t"]
    assert "ideal, with embodied: -0.0" in sheet.notes[0]


def test_a_trillion_parameters_take_as_many_devices_as_hours_say() -> None:
    sheet = carbonscaling.trillion()
    assert [row["device"] for row in sheet.rows] == list(carbonscaling.GENERATIONS)
    for row in sheet.rows:
        assert row["devices"] - 1 < row["device_hours"] / carbonscaling.LIMIT_H <= row["devices"]
        assert row["kg_a_device"] * row["devices"] / 1000 == pytest.approx(row["total_t"])
    assert "1e+12 parameters in all" in sheet.notes[0]


def test_bloom_stands_beside_the_published() -> None:
    sheet = carbonscaling.bloom()
    (published,) = _of(sheet, line="published")
    assert published["device_hours"] * 0.4 / 1000 == pytest.approx(published["energy_mwh"], rel=1e-5)
    assert published["energy_mwh"] * 57 / 1000 == pytest.approx(published["operational_t"], rel=1e-3)
    assert {row["provenance"] for row in sheet.rows if row is not published} == {"modelled"}
    low, mid, high = (_of(sheet, line=f"lca, {end}")[0] for end in ("low", "mid", "high"))
    assert low["device_hours"] < published["device_hours"] < high["device_hours"]
    assert mid["operational_t"] == pytest.approx(mid["energy_mwh"] * 57 / 1000)
    assert _of(sheet, line="act, mid")[0]["embodied_t"] < mid["embodied_t"]


def test_fewer_bits_pay_until_parameters_count_for_too_little() -> None:
    sheet = carbonscaling.bits()
    assert {row["provenance"] for row in sheet.rows} == {"assumed"}
    grams = {row["bits"]: row["grams_over_bf16"] for row in _of(sheet, speed="1.35 x a halving")}
    assert grams[16] == 1.0 and grams[8] == pytest.approx(1 / 0.9273 / 1.35, rel=1e-3)
    assert grams[6] == min(grams.values()) and grams[2] > 1
    slow = [row["grams_over_bf16"] for row in _of(sheet, speed="no gain in speed")]
    assert slow == sorted(slow)


def test_two_kinds_of_device_share_by_speed() -> None:
    sheet = carbonscaling.mixed()
    by_speed, same = _of(sheet, split="by speed"), _of(sheet, split="the same to each")
    for ends in (0, -1):
        assert by_speed[ends]["total_t"] == pytest.approx(same[ends]["total_t"]), "of one kind both are the same"
    slow_h, fast_h = by_speed[0]["hours"], by_speed[-1]["hours"]
    assert by_speed[4]["hours"] == pytest.approx(2 / (1 / slow_h + 1 / fast_h))
    assert same[4]["hours"] == slow_h and same[4]["total_t"] > by_speed[4]["total_t"]
    fast = hardware.find(carbonscaling.DEVICE)
    idle, made = fast.idle_w, embodied_hour(fast, method="lca").g_per_h
    assert idle is not None and made is not None
    waiting_g = (idle.value / 1000 * 1.1 * 323 + made.mid) * 256 * (slow_h - fast_h)
    busy_g = same[-1]["total_t"] / 2 * 1e6 + same[0]["total_t"] / 2 * 1e6
    assert same[4]["total_t"] * 1e6 == pytest.approx(busy_g + waiting_g, rel=1e-3)


def test_a_figure_is_a_picture_and_its_values(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'simulate')")
    bars = Panel(title="", x="", y="t", lines=[Line(name="a", x=["one", "two"], y=[1.0, 2.0])])
    curve = Panel(
        title="", x="g", y="t", log="xy", lines=[Line(name="b", x=[1.0, 2.0], y=[1.0, 2.0], low=[0.5, 1], high=[2, 3])]
    )
    rows: list[Row] = [
        {"name": "one", "t": 1.23456789, "provenance": "modelled"},
        {"name": "two", "provenance": "published"},
    ]
    png, values = write(
        Sheet(name="it", title="A title", panels=[bars, curve], rows=rows, notes=["why, at 1 $ and 2 $"]), tmp_path
    )
    assert png.read_bytes().startswith(b"\x89PNG")
    lines = values.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# why, at 1 $ and 2 $" and _plain("1 $") == r"1 \$", "two dollars make no formula"
    assert list(csv.DictReader(lines[1:])) == [
        {"name": "one", "t": "1.23457", "provenance": "modelled"},
        {"name": "two", "t": "", "provenance": "published"},
    ]


def test_a_value_without_a_provenance_is_refused() -> None:
    with pytest.raises(ValueError, match=r"it: provenance is .'guessed'.*measured, modelled, assumed, published"):
        as_csv(Sheet(name="it", title="", panels=[], rows=[{"provenance": "guessed"}], notes=[]))
