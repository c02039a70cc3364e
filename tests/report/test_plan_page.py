"""A run's plan on the page, in the terminal and in the log: three numbers with their labels, chart and reasons."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from greentrain.ledger.reader import read_run
from greentrain.report import table
from greentrain.report.charts import Chart
from greentrain.report.plan import plan_line, plan_texts, three_rows
from greentrain.report.plan_chart import plan_chart
from greentrain.report.series import build_series
from greentrain.report.summary import summarize
from tests.report.planned_run import BF16, DAY, FP8, GRID, OFF, START_S, facts, planned
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, one_rank, write_report


def _both(folder: Path, **more: Any) -> tuple[dict[str, Any], Chart]:
    record = read_run(folder)
    series = build_series(record)
    summary = summarize(record, series=series, **more)
    chart = plan_chart(summary, series)
    assert chart is not None
    return summary, chart


def _row(chart: Chart, name: str) -> list[Any]:
    return next(list(row["values"]) for row in chart.tip["rows"] if row["name"] == name)


def _text(renderable: Any) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    console.file.close()
    return console.export_text()


def test_a_page_without_a_plan_says_nothing_of_one(tmp_path: Path) -> None:
    folder = one_rank(tmp_path)
    page = write_report(folder).read_text(encoding="utf-8")
    summary = summarize(read_run(folder))
    assert 'id="plan"' not in page and "chart-plan" not in page and 'id="decisions"' not in page
    assert plan_line(summary) is None and plan_texts(summary) is None and plan_chart(summary, None) is None
    assert "Plan" not in _text(table.render(summary))


def test_the_page_has_the_three_numbers_with_their_labels(tmp_path: Path) -> None:
    page = write_report(planned(tmp_path, shielded=(18,))).read_text(encoding="utf-8")
    section = page[page.index('id="plan"') : page.index('id="chart-plan"')].replace("\N{NO-BREAK SPACE}", " ")
    for key, value in (
        ("plan-deadline", "met"), ("plan-saving_vs_static", "31.7 % less"), ("plan-saving_vs_blind", "12.1 % less"),
        ("plan-regret", "19.1 % more"),
    ):  # fmt: skip
        assert f'id="{key}">{value}<' in section
    assert section.count('<span class="tag assumed">assumed, replayed grid</span>') == 3
    assert "3.46 g; static bf16: 5.07 g" in section
    assert "22 decisions, 4 changes, 1 pause, 1 by the deadline&#39;s shield; fp8 10 h, bf16 6 h, off 5 h" in section
    assert "Watts and speeds assumed (declared action table), replayed grid" in section
    assumptions = page[page.index("<h2>Assumptions</h2>") :]
    assert "speed and watts of 2 actions" in assumptions
    assert "from 2022-06-12T12:00:00Z on, 480 times as fast" in assumptions


def test_reasons_are_listed_where_something_changed(tmp_path: Path) -> None:
    folder = planned(tmp_path, shielded=(18,))
    page = write_report(folder).read_text(encoding="utf-8")
    section = page[page.index('id="decisions"') : page.index("About as much as")]
    assert section.count("<tr><td>") == 6
    assert "<tr><td>12 Jun 20:00</td><td><b>fp8</b></td>" in section
    assert "300 &lt;g/kWh&gt; now: fp8" in section and "<g/kWh>" not in page
    assert section.count("deadline's shield") == 1
    happened = page[page.index("What happened") :]
    assert "decision" not in happened, "they have a table of their own"


def test_a_long_list_of_reasons_shows_both_ends(tmp_path: Path) -> None:
    page = write_report(planned(tmp_path, (BF16, FP8) * 12)).read_text(encoding="utf-8")
    section = page[page.index('id="decisions"') : page.index("About as much as")]
    assert section.count("<tr><td>") == 16
    assert '<td colspan="4">9 more changes</td>' in section, "24 hours and the end"
    assert "13 Jun 12:00" in section


def test_what_is_unknown_is_said_in_place_of_a_number(tmp_path: Path) -> None:
    folder = planned(tmp_path, plan={"hourly_g_per_kwh": [*GRID[:21], None, None, None]})
    page = write_report(folder).read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert 'id="plan-regret">unknown<' in page
    assert "intensity is not known in 3 of the 24 h" in page
    assert page.count('<span class="tag assumed">') == 1
    line = plan_line(summarize(read_run(folder)))
    assert line is not None and "31.7 % less than static bf16, against the best carbon-blind plan and the best" in line
    assert "plan in hindsight unknown: the grid's intensity is not known in 3 of the 24 h" in line


@pytest.mark.parametrize("regret", [-0.026, 0.026])
def test_grams_below_the_best_plan_are_explained_by_the_table(tmp_path: Path, regret: float) -> None:
    plan = {**summarize(read_run(planned(tmp_path)))["plan"], "regret": regret}
    row = three_rows(plan)[2]
    assert row["value"] == f"2.6 % {'less' if regret < 0 else 'more'}"
    assert ("the run drew less than that says" in row["detail"]) == (regret < 0)


def test_one_line_for_the_log(tmp_path: Path) -> None:
    line = plan_line(summarize(read_run(planned(tmp_path, plan={"provenance": "measured"}))))
    assert line == (
        "mpc: 157\N{THIN SPACE}500 of 157\N{THIN SPACE}000 tokens, deadline met: done 3 h 4 min before it. CO2e:"
        " 31.7 % less than static bf16, 12.1 % less than the best carbon-blind plan, 19.1 % more than the best plan in"
        " hindsight (watts measured, replayed grid)"
    )


def test_the_terminal_has_the_same(tmp_path: Path) -> None:
    text = _text(table.render(summarize(read_run(planned(tmp_path)))))
    for words in (
        "Plan: mpc, deadline met", "Against static bf16", "31.7 % less", "19.1 % more", "assumed, replayed grid",
        "watts and speeds assumed",
    ):  # fmt: skip
        assert words in text, words


def test_the_chart_shows_what_ran_at_which_intensity(tmp_path: Path) -> None:
    summary, chart = _both(planned(tmp_path))
    count = 480
    assert _row(chart, "Grid") == [GRID[i // 20] for i in range(count)]
    assert _row(chart, "Plan") == [("off", "bf16", "fp8")[DAY[i // 20]] if i < 420 else "done" for i in range(count)]
    assert [(shape.label, shape.css) for shape in chart.legend[:4]] == [
        ("fp8", "gpu-0"), ("bf16", "fpga-0"), ("off", "off"), ("grid, job not at work", "grid"),
    ]  # fmt: skip
    run, static = _row(chart, "This run"), _row(chart, "Static bf16")
    assert run[-1] == pytest.approx(summary["plan"]["actual_g"], rel=1e-3)
    assert static[-1] == pytest.approx(summary["plan"]["static_g"], rel=1e-3)
    assert run[19] == static[19] == pytest.approx(GRID[0] * 400 / 480 / 1000, rel=1e-3)
    assert run[20:119] == [run[19]] * 99, "off, and not held"
    ((at, label),) = chart.marks
    assert at == pytest.approx(87.2, abs=0.1) and label == "all tokens done"
    assert chart.x_ticks[4] == (50.0, "13 Jun") and chart.x_ticks[0] == (0.0, "12:00")
    assert "fp8 for 10 h at 197 g/kWh on average" in chart.text
    assert (chart.unit, chart.y2_unit) == ("grid, g/kWh", "g CO\N{SUBSCRIPT TWO}e")


def test_the_line_of_the_run_is_what_it_drew(tmp_path: Path) -> None:
    _, chart = _both(planned(tmp_path, energy=1.5, plan={"provenance": "measured"}))
    _, assumed = _both(planned(tmp_path / "assumed", energy=1.5))
    measured = np.array(_row(chart, "This run"))
    assert measured == pytest.approx(1.5 * np.array(_row(assumed, "This run")), rel=0.02)


def test_a_chart_needs_no_sensor(tmp_path: Path) -> None:
    """A replay with a declared table is shown also on a machine where no power can be read."""
    folder = planned(tmp_path)
    summary, _ = _both(folder)
    chart = plan_chart(summary, None)
    assert chart is not None and _row(chart, "This run")[-1] == pytest.approx(summary["plan"]["actual_g"], rel=1e-3)
    measured = summarize(read_run(planned(tmp_path / "m", plan={"provenance": "measured"})))
    chart = plan_chart(measured, None)
    assert chart is not None and [row["name"] for row in chart.tip["rows"]] == ["Plan", "Grid", "Static bf16"]


def test_the_present_is_marked_and_the_future_is_open(tmp_path: Path) -> None:
    _, chart = _both(planned(tmp_path, DAY[:12], end=False, reason=None), now_unix_s=T0_S + 91)
    assert chart.marks == [(50.0, "now")]
    assert _row(chart, "Plan")[240:] == ["ahead"] * 240
    assert _row(chart, "This run")[239] is not None and set(_row(chart, "This run")[240:]) == {None}
    assert _row(chart, "Grid")[-1] == GRID[23], "the forecast of a recorded grid is the grid"


def test_a_missed_deadline_is_marked(tmp_path: Path) -> None:
    _, chart = _both(planned(tmp_path, (*DAY[:18], *(OFF,) * 6, *(BF16,) * 3)))
    assert [label for _, label in chart.marks] == ["all tokens done", "deadline"]
    assert chart.marks[1][0] == pytest.approx(100 * 24 / 27, abs=0.1)


def test_unknown_hours_are_not_drawn(tmp_path: Path) -> None:
    hours: list[float | None] = [*GRID[:24]]
    hours[9] = None
    _, chart = _both(planned(tmp_path, hours=hours, plan={"hourly_g_per_kwh": hours}))
    assert _row(chart, "Grid")[180:200] == [None] * 20
    assert [row["name"] for row in chart.tip["rows"]] == ["Plan", "Grid"], "the grams are not known either"
    folder = planned(tmp_path / "nothing", hours=[None] * 24, plan={"hourly_g_per_kwh": [None] * 24})
    summary = summarize(read_run(folder))
    assert plan_chart(summary, None) is None
    page = write_report(folder).read_text(encoding="utf-8")
    assert 'id="plan-regret">unknown<' in page and "chart-plan" not in page


def test_the_time_of_measuring_has_a_colour_of_its_own(tmp_path: Path) -> None:
    told = facts(tokens_done=60_000.0)
    decision = {
        "t": T0_S + 45, "name": "decision", "text": "", "row": FP8, "action": None, "done": False, "reason": "",
        "grid_s": START_S + 45 * 480, "next_s": 0.0, "g_per_kwh": 1.0, "shielded": False, "step": 1, "tokens": 9.0,
    }  # fmt: skip
    folder = Folder(tmp_path, plan=told)
    folder.rank(0, [GPU], [entry(T0_S, T0_S + 90, {"GPU-0": device(1.0)}, tokens=60_000)], events=[decision])
    summary, chart = _both(folder.path)
    assert _row(chart, "Plan")[:121] == [*["before the first decision"] * 120, "fp8"]
    assert ("other-1", "before the first decision") in [(shape.css, shape.label) for shape in chart.legend]
    texts = plan_texts(summary)
    assert texts is not None and texts["facts"].endswith("fp8 6 h, 6 h before the first decision")


def test_a_hole_between_two_processes_is_no_pause(tmp_path: Path) -> None:
    told = facts(tokens=1e6, tokens_done=60_000.0)
    decision = {
        "t": T0_S, "name": "decision", "text": "", "row": FP8, "action": None, "done": False, "reason": "", "step": 1,
        "grid_s": START_S, "next_s": 0.0, "g_per_kwh": 1.0, "shielded": False, "tokens": 0.0,
    }  # fmt: skip
    folder = Folder(tmp_path, plan=told)
    folder.rank(0, [GPU], [entry(T0_S, T0_S + 45, {"GPU-0": device(1.0)})], events=[decision], reason=None)
    folder.rank(0, [GPU], [entry(T0_S + 90, T0_S + 135, {"GPU-0": device(1.0)})])
    _, chart = _both(folder.path)
    (band,) = chart.bands
    assert band.css == "paused"
    assert (band.left, band.width) == pytest.approx((25.0, 25.0))
    assert _row(chart, "Plan")[180] == "not running"


def test_a_pause_outside_of_any_process_is_one(tmp_path: Path) -> None:
    told = facts(tokens=1e6, tokens_done=60_000.0)
    decision = {
        "t": T0_S + 30, "name": "decision", "text": "", "row": 0, "action": None, "done": False, "reason": "",
        "step": 1, "grid_s": START_S + 7200.0, "next_s": 0.0, "g_per_kwh": 1.0, "shielded": False, "tokens": 0.0,
    }  # fmt: skip
    leave = {"t": T0_S + 30.01, "name": "leave", "text": "off"}
    back = decision | {"t": T0_S + 90, "row": FP8, "grid_s": START_S + 21_600.0}
    folder = Folder(tmp_path, plan=told)
    folder.rank(0, [GPU], [entry(T0_S, T0_S + 45, {"GPU-0": device(1.0)})], events=[decision, leave], reason="left")
    folder.rank(0, [GPU], [entry(T0_S + 90, T0_S + 135, {"GPU-0": device(1.0)})], events=[back])
    summary, chart = _both(folder.path)
    hours = {row["name"]: row["hours"] for row in summary["plan"]["rows"]}
    assert hours["off"] == pytest.approx(4.0, abs=0.01)
    assert _row(chart, "Plan")[100] == "off"


@pytest.mark.parametrize(("hours", "bins"), [(1, 480), (7, 476), (336, 336), (2000, 480)])
def test_any_horizon_fits_a_screen(tmp_path: Path, hours: int, bins: int) -> None:
    rows = facts()["rows"]
    told = facts(
        deadline_s=START_S + 3600.0 * hours,
        hourly_g_per_kwh=[100.0 + i % 24 for i in range(hours)],
        rows=[*rows, *({**rows[2], "name": f"fp8 at {cap}%"} for cap in range(50, 100, 10))],
        tokens_done=100.0,
    )
    events = [
        {
            "t": T0_S + i * hours, "name": "decision", "text": "", "row": i % 8, "action": None, "done": False,
            "reason": "", "step": i, "grid_s": START_S + i * 480.0 * hours, "next_s": 0.0, "g_per_kwh": 1.0,
            "shielded": False, "tokens": 10.0 * i,
        }
        for i in range(8)
    ]  # fmt: skip
    work = entry(T0_S, T0_S + 7.5 * hours, {"GPU-0": device(3000.0)}, tokens=100)
    _, chart = _both(Folder(tmp_path, plan=told).rank(0, [GPU, CPU], [work], events=events).path)
    assert {len(row["values"]) for row in chart.tip["rows"]} == {bins}
    assert 2 <= len(chart.x_ticks) <= 9
    assert all(0 <= at <= 100 for at, _ in [*chart.x_ticks, *chart.y_ticks, *chart.y2_ticks, *chart.marks])
    for shape in chart.shapes:
        assert len(re.findall("[MLHV]", shape.d)) <= 4 * 500
        assert all(-1e-6 <= float(y) <= chart.height for y in re.findall(r"V([-\d.]+)", shape.d))
    json.dumps(chart.tip, allow_nan=False)
