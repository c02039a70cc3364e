"""The report says what a token costs in each gear, and says so only where it knows."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import Totals
from greentrain.report import compare, table
from greentrain.report.series import build_series
from greentrain.report.summary import MAX_EVENTS, MAX_SHIFTS, gear_table, layer_figures, summarize
from greentrain.types import GearUse
from tests.report.run_folders import GPU, LAYERS, T0_S, Folder, device, entry, one_rank, two_gears, write_report


def _summary(folder: Path) -> dict[str, Any]:
    return summarize(read_run(folder))


def _text(renderable: Any) -> str:
    console = Console(width=180, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    console.file.close()
    return console.export_text()


def _by_gear(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["gear"]: row for row in summary["gears"]}


def test_two_gears_by_hand(tmp_path: Path) -> None:
    s = _summary(two_gears(tmp_path))
    bf16_j, fp8_j = 120 * (2 * 400 + 50), 120 * (2 * 500 + 50)
    assert s["energy"]["energy_j"] == pytest.approx(bf16_j + fp8_j)
    fp8, bf16 = s["gears"]
    assert bf16 == pytest.approx(
        {
            "gear": "bf16", "energy_j": bf16_j, "share": 850 / 1900, "modelled_share": 50 / 850, "seconds": 120.0,
            "steps": 60, "tokens": 24_000, "samples": 240, "mean_power_w": 850.0, "tokens_per_s": 200.0,
            "j_per_token": bf16_j / 24_000, "samples_per_s": 2.0, "j_per_sample": bf16_j / 240, "steps_per_s": 0.5,
            "j_per_step": bf16_j / 60, "operational_g": bf16_j / 1e4, "device_s": 360.0, "missing_device_s": 0.0,
            "g_per_ktoken": (bf16_j / 1e4 + 24 * 0.01) / 24, "coverage": 1.0, "attribution": "resolved",
        }
    )  # fmt: skip
    assert (fp8["gear"], fp8["tokens"], fp8["steps"]) == ("fp8", 48_000, 120)
    assert fp8["j_per_token"] / bf16["j_per_token"] == pytest.approx(1050 / 850 / 2)
    assert fp8["tokens_per_s"] == pytest.approx(400.0)


def test_a_run_without_gears_says_nothing_of_them(tmp_path: Path) -> None:
    folder = one_rank(tmp_path)
    s = _summary(folder)
    assert (s["gears"], s["layers"], s["gear_shifts"]) == ([], None, 0)
    assert gear_table(s) is None
    page = write_report(folder).read_text(encoding="utf-8")
    assert "gear" not in page.lower() and "FP8" not in page
    assert "gear" not in _text(table.render(s)).lower()


def test_an_unknown_gear_is_null_and_not_zero(tmp_path: Path) -> None:
    gears = {
        "bf16": GearUse(energy_j=2000.0, missing_s=1.0, device_s=5.0, seconds=5.0, steps=5, tokens=50),
        "fp8": GearUse(missing_s=5.0, device_s=5.0, seconds=5.0, steps=5, tokens=50),
    }
    item = entry(T0_S, T0_S + 10, {"GPU-0": device(2000.0, missing_s=6.0)}, gears=gears, tokens=100)
    s = _summary(Folder(tmp_path).rank(0, [GPU], [item]).path)
    rows = _by_gear(s)
    for key in ("energy_j", "share", "mean_power_w", "j_per_token", "operational_g", "g_per_ktoken"):
        assert rows["fp8"][key] is None, key
    assert (rows["fp8"]["coverage"], rows["fp8"]["tokens_per_s"]) == (0.0, 10.0)
    assert rows["bf16"]["coverage"] == pytest.approx(0.8)
    assert rows["bf16"]["j_per_token"] is None, "all its tokens, and the joules of four fifths of them"
    shown = gear_table(s)
    assert shown is not None
    assert [row["source"] for row in shown["rows"]] == ["measured, 80.0 % of device time", "no reading"]
    assert shown["whole"]
    assert "unknown" in _text(table.render(s))


def test_a_gear_that_is_too_short_for_its_sensors_is_not_compared(tmp_path: Path) -> None:
    """1.2 s of FP32 in a reading with a pause: a token seemed to take less than in BF16."""
    gears = {
        "bf16": GearUse(energy_j=700.0, device_s=160.0, seconds=160.0, shared_s=4.0, steps=1600, tokens=160_000),
        "fp32": GearUse(energy_j=7.0, device_s=1.2, seconds=1.2, shared_s=0.9, steps=25, tokens=2500),
    }
    item = entry(T0_S, T0_S + 200, {"GPU-0": device(800.0)}, gears=gears, tokens=162_500)
    folder = Folder(tmp_path).rank(0, [GPU], [item]).path
    s = _summary(folder)
    rows = _by_gear(s)
    assert (rows["bf16"]["attribution"], rows["fp32"]["attribution"]) == ("resolved", "blurred")
    for key in ("mean_power_w", "j_per_token", "j_per_sample", "j_per_step", "operational_g", "g_per_ktoken"):
        assert rows["fp32"][key] is None, key
    assert rows["fp32"]["energy_j"] == 7.0, "of the whole, which its parts sum to"
    assert rows["fp32"]["tokens_per_s"] == pytest.approx(2500 / 1.2) and rows["bf16"]["j_per_token"] == 700 / 160_000
    shown = gear_table(s)
    assert shown is not None and [row["relative"] for row in shown["rows"]] == ["", ""]
    assert shown["rows"][1]["source"] == "measured, too short to be told from others"
    assert "too short to be told from others" in write_report(folder).read_text(encoding="utf-8")
    assert "too short to be told from others" in _text(table.render(s))


def test_grams_of_a_gear_are_of_the_intervals_that_have_some(tmp_path: Path) -> None:
    use = GearUse(energy_j=3600.0, device_s=10.0, seconds=10.0, steps=1, tokens=1000)
    entries = [
        entry(T0_S + 10 * i, T0_S + 10 * (i + 1), {"GPU-0": device(3600.0)}, gears={"bf16": use}, pue=1.0, g_per_kwh=g)
        for i, g in enumerate((500.0, None))
    ]
    entries.append(entry(T0_S + 20, T0_S + 30, {"GPU-0": device(3600.0)}, tokens=9))
    s = _summary(Folder(tmp_path).rank(0, [GPU], entries).path)
    (row,), shown = s["gears"], gear_table(s)
    assert shown is not None and not shown["whole"]
    assert (row["tokens"], row["operational_g"]) == (2000, pytest.approx(0.5))
    assert row["g_per_ktoken"] == pytest.approx(0.5)


def test_carried_gears_are_in_the_sums(tmp_path: Path) -> None:
    use = GearUse(energy_j=3600.0, device_s=10.0, seconds=10.0, steps=1, tokens=1000)
    carried = Totals(energy_j=3600.0, duration_s=10.0, by_provenance={"measured": 3600.0}, by_gear={"bf16": use})
    entries = [entry(T0_S, T0_S + 10, {"GPU-0": device(3600.0)}, gears={"bf16": use})]
    (row,) = _summary(Folder(tmp_path).rank(0, [GPU], entries, carried=carried).path)["gears"]
    assert (row["energy_j"], row["tokens"], row["seconds"], row["share"]) == (7200.0, 2000, 20.0, 1.0)


@pytest.mark.parametrize(("tokens", "unit"), [(1000, "token"), (0, "sample")])
def test_the_page_has_both_gears(tmp_path: Path, tokens: int, unit: str) -> None:
    page = write_report(two_gears(tmp_path, tokens=tokens)).read_text(encoding="utf-8")
    section = page[page.index('id="gears"') : page.index('id="layers"')]
    assert f"Energy per {unit}" in section
    assert ("per 1 000 tokens" in section) == (unit == "token")
    assert "x fp8" not in section
    assert "0.618x bf16" in section, "850 W at 200 tokens/s against 1050 W at 400"
    assert "5.9 % modelled" in section
    assert "does not show what a precision draws" in section


def test_a_shift_is_listed_once_and_marked(tmp_path: Path) -> None:
    folder = two_gears(tmp_path)
    s = _summary(folder)
    assert s["gear_shifts"] == 1
    (event,) = [event for event in s["events"] if event["name"] == "gear"]
    assert (event["step"], event["gear"], event["rank"]) == (60, "fp8", 0)
    page = write_report(folder).read_text(encoding="utf-8")
    assert page.count("gear: bf16 -&gt; fp8 after step 60: &lt;schedule&gt;") == 2, "one mark, one line"
    assert '<span class="mark" style="left:50.0%" title="gear: bf16' in page


def test_shifts_do_not_push_out_a_warning(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {"t": T0_S + i * 1e-3, "name": "gear", "text": "bf16 -> fp8" if i % 2 else "fp8 -> bf16"} for i in range(3000)
    ]
    events.append({"t": T0_S + 9, "name": "warning", "text": "too hot"})
    folder = Folder(tmp_path).rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1.0)})], events=events).path
    s = _summary(folder)
    assert s["gear_shifts"] == 3000, "the same text again is another shift"
    assert len(s["events"]) == MAX_SHIFTS + 1 < MAX_EVENTS
    page = write_report(folder).read_text(encoding="utf-8")
    assert page.count("warning: too hot") == 2
    assert "2988 more shifts" in page


def test_layers_are_grouped_by_reason(tmp_path: Path) -> None:
    figures = layer_figures({"layers": LAYERS, "gear_backend": "scaled_mm: why"})
    assert figures is not None
    assert (figures["chosen"], figures["count"], figures["backend"]) == (8, 10, "scaled_mm: why")
    body, head, gate = 8 * 1024 * 4096, 1024 * 8192, 1024 * 8
    assert figures["weight_share"] == pytest.approx(body / (body + head + gate))
    assert [(g["count"], g["chosen"], g["names"][0]) for g in figures["groups"]] == [
        (4, True, "h.0.mlp.up"), (4, True, "h.0.mlp.down"), (1, False, "lm_head"), (1, False, "gate"),
    ]  # fmt: skip
    page = write_report(two_gears(tmp_path)).read_text(encoding="utf-8")
    section = page[page.index('id="layers"') :]
    assert "8 of 10 linear layers, 80.0\N{NO-BREAK SPACE}% of their weights" in section
    assert "backend scaled_mm: runs on &lt;this&gt; device" in section
    assert "h.0.mlp.up, h.1.mlp.up, h.2.mlp.up and 1 more" in section
    assert "an &lt;output&gt; layer" in section


def test_shares_are_of_the_whole_model() -> None:
    sides: dict[str, Any] = {"in_features": 128, "out_features": 128, "chosen": True, "reason": "fits"}
    experts = {"in_features": None, "out_features": None, "chosen": False, "reason": "Experts holds w itself"}
    layers = [{"name": "up", "parameters": 100, **sides}, {"name": "moe", "parameters": 300, **experts}]
    figures = layer_figures({"layers": layers})
    assert figures is not None
    assert (figures["weight_share"], figures["of"]) == (0.25, "the model's parameters")
    assert (figures["chosen"], figures["count"]) == (1, 1), "of its linear layers"
    assert [(g["share"], g["reason"]) for g in figures["groups"]] == [(0.25, "fits"), (0.75, "Experts holds w itself")]


@pytest.mark.parametrize("run", [{}, {"layers": []}, {"layers": None, "gear_backend": ""}])
def test_no_plan_no_layers(run: dict[str, Any]) -> None:
    assert layer_figures(run) is None


def test_the_table_shows_gears(tmp_path: Path) -> None:
    text = _text(table.render(_summary(two_gears(tmp_path))))
    for word in ("Precision gears", "Per token", "4.25 J", "2.62 J", "0.618x bf16", "35.0 Wh", "5.9 % modelled"):
        assert word in text, word


def test_runs_are_compared_gear_by_gear(tmp_path: Path) -> None:
    a, b = _summary(two_gears(tmp_path / "a")), _summary(two_gears(tmp_path / "b", tokens=2000))
    b["gears"] = [row for row in b["gears"] if row["gear"] == "bf16"]
    result = compare.compare([a, b])
    rows = {row["name"]: row for row in result["rows"] if row["section"] == "gear"}
    assert rows["bf16"]["ratios"] == [1.0, 0.5]
    assert rows["fp8"]["texts"] == ["2.62 J", "not used"]
    assert "energy per token by gear" in _text(result)
    json.dumps(result, allow_nan=False)


def test_shifts_leave_the_curves_alone(tmp_path: Path) -> None:
    series = build_series(read_run(two_gears(tmp_path)))
    assert series is not None and series.peak_w == pytest.approx(1050.0)
