"""A PUE that changes during the run: every figure is a sum over intervals, and says where the PUE is from."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import Totals
from greentrain.report import compare, table
from greentrain.report.exports import emissions_row, model_card
from greentrain.report.html import render_html
from greentrain.report.plan import plan_texts
from greentrain.report.series import build_series
from greentrain.report.summary import summarize
from greentrain.simulator.recorded_run import read_happened
from greentrain.types import LedgerEntry, Provenance, PueSource
from tests.report.planned_run import DAY, GRID, planned
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, one_rank

KWH = 3.6e6
TRACE, LIVE, FALLBACK = PueSource.TRACE, PueSource.PROMETHEUS, PueSource.FALLBACK


def _summary(folder: Path, most: int | None = None) -> dict[str, Any]:
    return summarize(read_run(folder, most=most))


def _entry(
    i: int, gpu_kwh: float, cpu_kwh: float, pue: float, g_per_kwh: float | None, source: PueSource
) -> LedgerEntry:
    devices = {"GPU-0": device(gpu_kwh * KWH), "cpu": device(cpu_kwh * KWH, Provenance.MODELLED)}
    t0_s = T0_S + 3600 * i
    made = entry(t0_s, t0_s + 3600, devices, pue=pue, g_per_kwh=g_per_kwh, tokens=1000)
    return dataclasses.replace(made, pue_source=source)


DAY_AND_NIGHT = (
    _entry(0, 2.0, 1.0, 1.2, 100.0, TRACE),
    _entry(1, 5.0, 1.0, 1.6, 500.0, TRACE),
    _entry(2, 0.5, 0.5, 1.4, 300.0, FALLBACK),
)
"""10 kWh; PUE and intensity are high together, when most is used."""
FACILITY_KWH = 3 * 1.2 + 6 * 1.6 + 1 * 1.4
GRAMS = 3 * 1.2 * 100 + 6 * 1.6 * 500 + 1 * 1.4 * 300
IT_GRAMS = 3 * 100 + 6 * 500 + 1 * 300
CONFIG = {"carbon": {"pue": 1.4, "pue_csv": "site/pue.csv", "market_g_per_kwh": 50.0}}


def _folder(root: Path, entries: Sequence[LedgerEntry] = DAY_AND_NIGHT, **more: Any) -> Path:
    return Folder(root, config=CONFIG).rank(0, [GPU, CPU], entries, **more).path


@pytest.mark.parametrize("most", [None, 1])
def test_figures_are_sums_over_intervals(tmp_path: Path, most: int | None) -> None:
    s = _summary(_folder(tmp_path), most)
    energy, carbon = s["energy"], s["carbon"]
    assert energy["facility_energy_kwh"] == pytest.approx(FACILITY_KWH)
    assert energy["pue"] == pytest.approx(FACILITY_KWH / 10)
    assert carbon["operational_location_g"] == pytest.approx(GRAMS)
    assert carbon["intensity_g_per_kwh"] == pytest.approx(GRAMS / FACILITY_KWH)
    assert carbon["cue_kg_per_kwh"] == pytest.approx(GRAMS / 1000 / 10)
    assert carbon["operational_market_g"] == pytest.approx(50 * FACILITY_KWH)
    assert s["scope2"]["scope2_market_g"] == pytest.approx(50 * FACILITY_KWH)
    assert s["sci"]["operational_g"] == pytest.approx(GRAMS)
    assert energy["pue_fallback_share"] == pytest.approx(0.1)
    assert energy["pue_by_source_j"] == pytest.approx({"trace": 9 * KWH, "fallback": KWH})
    if most is None:
        assert (energy["pue_min"], energy["pue_max"]) == (1.2, 1.6)


def test_codecarbons_columns_have_each_devices_own_overhead(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    s = _summary(folder)
    row = emissions_row(s, read_run(folder).run)
    assert row["gpu_energy"] == pytest.approx(2 * 1.2 + 5 * 1.6 + 0.5 * 1.4)
    assert row["cpu_energy"] == pytest.approx(1 * 1.2 + 1 * 1.6 + 0.5 * 1.4)
    assert row["gpu_energy"] + row["cpu_energy"] == pytest.approx(row["energy_consumed"]) == pytest.approx(FACILITY_KWH)
    assert row["gpu_power"] == pytest.approx(row["gpu_energy"] * KWH / (3 * 3600))
    assert row["pue"] == pytest.approx(FACILITY_KWH / 10)


def _assumed(s: dict[str, Any], word: str) -> list[tuple[str, str, str]]:
    return [(r["name"], r["value"], r["source"]) for r in s["assumptions"] if r["name"].startswith(word)]


def test_the_report_says_where_the_pue_is_from(tmp_path: Path) -> None:
    first, second = _assumed(_summary(_folder(tmp_path / "a")), "PUE")
    assert first[1:] == (
        "1.46 (mean by energy; 1.2 to 1.6)",
        "recorded by the facility: carbon.pue_csv, site/pue.csv",
    )
    assert second == (
        "PUE of 10.0 % of the energy",
        "1.4",
        "assumed where nobody told: carbon.pue in the configuration",
    )
    live = [dataclasses.replace(e, pue_source=LIVE) for e in DAY_AND_NIGHT]
    config = {"carbon": {"pue_prometheus_url": "https://me:secret@metrics.site:9090", "pue_prometheus_query": "pue"}}
    folder = Folder(tmp_path / "b", config=config).rank(0, [GPU, CPU], live).path
    (row,) = _assumed(_summary(folder), "PUE")
    assert row[2] == "measured by the facility: pue of Prometheus at metrics.site"
    silent = [dataclasses.replace(e, pue_source=FALLBACK, pue=1.0) for e in DAY_AND_NIGHT]
    folder = Folder(tmp_path / "c", config=config).rank(0, [GPU, CPU], silent).path
    first, row = _assumed(_summary(folder), "PUE")
    assert first[2] == "not told by the facility: pue of Prometheus at metrics.site"
    assert row[:2] == ("PUE of 100 % of the energy", "1") and "default 1" in row[2]
    folder = Folder(tmp_path / "d", config={"carbon": {"pue_csv": "past.csv"}}).rank(0, [GPU, CPU], silent).path
    assert _assumed(_summary(folder), "PUE")[0][2] == "not in the facility's records: carbon.pue_csv, past.csv"


def test_a_constant_reads_as_before(tmp_path: Path) -> None:
    s = _summary(one_rank(tmp_path))
    (row,) = _assumed(s, "PUE")
    assert row[1:] == ("1.2", "carbon.pue in the configuration")
    assert (s["energy"]["pue"], s["energy"]["pue_fallback_share"]) == (1.2, 0.0)
    assert s["carbon"]["cue_kg_per_kwh"] == pytest.approx(1.2 * 0.4)


def test_errors_that_the_user_states_are_among_the_assumptions(tmp_path: Path) -> None:
    config = {"carbon": {"relative_error": 0.1, "pue_relative_error": 0.02}}
    rows = _assumed(_summary(Folder(tmp_path, config=config).rank(0, [GPU, CPU], DAY_AND_NIGHT).path), "Standard error")
    assert rows == [
        ("Standard error of the carbon intensity", "10.0 %", "carbon.relative_error in the configuration"),
        ("Standard error of the PUE", "2.0 %", "carbon.pue_relative_error in the configuration"),
    ]


def test_pue_and_cue_are_shown(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    s = _summary(folder)
    console = Console(width=220, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table.render(s))
    console.file.close()
    text = console.export_text()
    page = render_html(s, build_series(read_run(folder))).replace("\N{NO-BREAK SPACE}", " ")
    for shown in (text, page):
        assert "with PUE 1.46 (mean by energy; 1.2 to 1.6)" in shown
        assert "CUE 0.558 kg/kWh" in shown
    assert "The Green Grid, white paper 32 (2010)" in page
    assert "PUE 1.46 (mean by energy; 1.2 to 1.6)" in model_card(s)["co2_eq_emissions"]["source"]


def test_cue_is_compared(tmp_path: Path) -> None:
    a, b = _summary(one_rank(tmp_path / "a")), _summary(_folder(tmp_path / "b"))
    told = compare.compare([a, b])
    (row,) = [row for row in told["rows"] if row["name"].startswith("CUE")]
    assert row["texts"] == ["0.480 kg/kWh", "0.558 kg/kWh"]
    assert row["ratios"][1] == pytest.approx(0.558 / 0.48)
    assert any("PUE is 1.2 in A and 1.46 (mean by energy; 1.2 to 1.6) in B" in text for text in told["caveats"])


def test_cue_is_of_the_energy_whose_intensity_is_known(tmp_path: Path) -> None:
    blind = [_entry(0, 2.0, 1.0, 1.2, 100.0, TRACE), _entry(1, 5.0, 1.0, 1.6, None, TRACE)]
    s = _summary(_folder(tmp_path / "a", blind))
    assert s["carbon"]["cue_kg_per_kwh"] == pytest.approx(0.12)
    assert s["energy"]["pue"] == pytest.approx((3 * 1.2 + 6 * 1.6) / 9)
    s = _summary(_folder(tmp_path / "b", blind[1:]))
    assert s["carbon"]["cue_kg_per_kwh"] is None
    assert "CUE" not in render_html(s, None)
    assert not _assumed(s, "CUE")


def test_an_earlier_part_keeps_its_own_overhead(tmp_path: Path) -> None:
    carried = Totals.of(DAY_AND_NIGHT[0])
    s = _summary(_folder(tmp_path / "a", DAY_AND_NIGHT[1:], carried=carried))
    assert s["energy"]["facility_energy_kwh"] == pytest.approx(FACILITY_KWH)
    assert s["energy"]["pue"] == pytest.approx(FACILITY_KWH / 10)
    assert s["carbon"]["cue_kg_per_kwh"] == pytest.approx(GRAMS / 1000 / 10)
    old = dataclasses.replace(carried, facility_j=0.0, it_g=0.0)
    s = _summary(_folder(tmp_path / "b", DAY_AND_NIGHT[1:], carried=old))
    assert s["energy"]["pue"] == pytest.approx((6 * 1.6 + 1.4) / 7)


def _varying(folder: Path) -> Path:
    """Rewrite a run's journals with a PUE that goes up and down."""
    for path in folder.glob("rank-*.jsonl"):
        lines, k = [], 0
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if record["kind"] == "entry":
                record["op_g"] *= (1.1 + 0.3 * (k % 4)) / record["pue"]
                record["pue"], record["pue_from"] = 1.1 + 0.3 * (k % 4), "trace"
                k += 1
            lines.append(json.dumps(record, separators=(",", ":")))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("most", [None, 6])
def test_a_plans_grams_without_pue_do_not_depend_on_it(tmp_path: Path, most: int | None) -> None:
    run: dict[str, Any] = {"plan": {"provenance": "measured"}, "chosen": DAY}
    plain, varying = planned(tmp_path / "a", **run), _varying(planned(tmp_path / "b", **run))
    a, b = _summary(plain, most), _summary(varying, most)
    assert a["energy"]["pue"] == 1.2 and b["energy"]["pue"] != pytest.approx(1.2)
    for key in ("actual_g", "saving_vs_static", "saving_vs_blind", "regret"):
        assert a["plan"][key] is not None
        assert b["plan"][key] == pytest.approx(a["plan"][key]), key
    series = [build_series(read_run(folder, most=most)) for folder in (plain, varying)]
    assert series[0] is not None and series[1] is not None
    assert np.allclose(series[0].it_g, series[1].it_g)
    assert series[1].it_g[-1] == pytest.approx(b["plan"]["actual_g"], rel=1e-6)
    assert not np.allclose(series[0].operational_g, series[1].operational_g)


def test_a_replay_of_the_run_leaves_its_pue_out(tmp_path: Path) -> None:
    run: dict[str, Any] = {"plan": {"provenance": "measured"}}
    a, b = read_happened(planned(tmp_path / "a", **run)), read_happened(_varying(planned(tmp_path / "b", **run)))
    assert a.grams == pytest.approx(b.grams)
    assert np.allclose(a.emitted_g, b.emitted_g)


def _counted(root: Path, hourly: Sequence[float | None]) -> Path:
    """Return a run whose plan counted the PUE of ``_varying`` in each hour."""
    return _varying(planned(root, plan={"provenance": "measured", "with_pue": True, "hourly_g_per_kwh": list(hourly)}))


def test_a_plan_that_counted_pue_is_judged_with_it(tmp_path: Path) -> None:
    counted = [g * (1.1 + 0.3 * (k % 4)) for k, g in enumerate(GRID[:24])]
    folder = _counted(tmp_path / "a", counted)
    record = read_run(folder)
    s = summarize(record)
    plan = s["plan"]
    assert plan["with_pue"]
    assert plan["actual_g"] == pytest.approx(record.totals.operational_g)
    assert plan["actual_g"] == pytest.approx(plan["decided_g"])
    hours = plan["tokens_done"] / (1000.0 / 480.0) / 3600
    whole = int(hours)
    static_g = 400.0 / 480.0 * (sum(counted[:whole]) + (hours - whole) * counted[whole]) / 1000
    assert plan["static_g"] == pytest.approx(static_g)
    texts = plan_texts(s)
    assert texts is not None and texts["grams_of"] == "with the PUE of each hour, as the plan counted it"
    page = render_html(s, build_series(record))
    assert "with the PUE of each hour, as the plan counted it" in page and "Grid x PUE then" in page
    told = read_happened(folder)
    assert told.grams == pytest.approx(plan["actual_g"])
    assert told.emitted_g[-1] == pytest.approx(plan["actual_g"])
    assert np.allclose(told.g_per_kwh, counted)
    blind = _summary(_counted(tmp_path / "b", [None] * 24))["plan"]
    assert blind["hourly_g_per_kwh"][: len(DAY)] == pytest.approx(counted[: len(DAY)])


def test_a_plan_without_it_says_so(tmp_path: Path) -> None:
    s = _summary(planned(tmp_path))
    texts = plan_texts(s)
    assert not s["plan"]["with_pue"]
    assert texts is not None and texts["grams_of"] == "without PUE"
