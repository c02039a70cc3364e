"""Merging entries while a journal is read changes no sum and hides no edge."""

import dataclasses
import json
from pathlib import Path

import pytest

from greentrain.ledger.reader import read_run
from greentrain.types import GearUse, LedgerEntry, Provenance, PueSource
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry


def _entries(count: int = 40) -> list[LedgerEntry]:
    return [
        entry(
            T0_S + 10 * i,
            T0_S + 10 * (i + 1),
            {"GPU-0": device(3000.0 + i), "cpu": device(500.0, Provenance.MODELLED)},
            g_per_kwh=None if 20 <= i < 25 else 100.0 + 20 * i,
            tokens=i,
            embodied_g=0.5,
            step_groups=[(1, T0_S + 10 * i + 5, 3.0, i)],
        )
        for i in range(count)
    ]


def test_sums_are_exact_and_entries_few(tmp_path: Path) -> None:
    path = Folder(tmp_path).rank(0, [GPU, CPU], _entries()).path
    whole, thin = read_run(path), read_run(path, most=8)
    assert len(thin.ranks[0].entries) < 15 < len(whole.ranks[0].entries)
    a, b = whole.totals.to_dict(), thin.totals.to_dict()
    assert a.keys() == b.keys()
    for key, value in a.items():
        assert b[key] == pytest.approx(value), key


def test_the_merged_intensity_prices_the_merged_energy(tmp_path: Path) -> None:
    path = Folder(tmp_path).rank(0, [GPU, CPU], _entries()).path
    for item in read_run(path, most=8).ranks[0].entries:
        if item.carbon.g_per_kwh is None:
            assert item.operational_g is None
        else:
            assert item.energy_j / 3.6e6 * item.pue * item.carbon.g_per_kwh == pytest.approx(item.operational_g)


def test_a_pue_that_changes_keeps_every_sum(tmp_path: Path) -> None:
    items = [
        dataclasses.replace(
            item, pue=(pue := 1.0 + 0.3 * (i % 5)), pue_source=PueSource.PROMETHEUS,
            operational_g=None if item.it_g is None else item.it_g * pue,
        )
        for i, item in enumerate(_entries())
    ]  # fmt: skip
    path = Folder(tmp_path).rank(0, [GPU, CPU], items).path
    whole, thin = read_run(path).totals, read_run(path, most=8)
    assert len(thin.ranks[0].entries) < 15
    assert thin.totals.facility_j == pytest.approx(sum(e.energy_j * e.pue for e in items))
    assert thin.totals.it_g == pytest.approx(sum(e.it_g or 0.0 for e in items))
    assert thin.totals.operational_g == pytest.approx(whole.operational_g)
    assert whole.operational_g / whole.it_g != pytest.approx(whole.facility_j / whole.energy_j, rel=1e-4)


def test_a_pue_that_does_not_change_is_not_rounded(tmp_path: Path) -> None:
    path = Folder(tmp_path).rank(0, [GPU, CPU], [dataclasses.replace(e, pue=1.37) for e in _entries()]).path
    assert {e.pue for e in read_run(path, most=4).ranks[0].entries} == {1.37}


def test_where_a_pue_came_from_keeps_its_edges(tmp_path: Path) -> None:
    sources = [PueSource.CONSTANT] * 5 + [PueSource.TRACE] * 5 + [PueSource.FALLBACK] * 5
    items = [dataclasses.replace(e, pue_source=source) for e, source in zip(_entries(15), sources, strict=True)]
    entries = read_run(Folder(tmp_path).rank(0, [GPU, CPU], items).path, most=1).ranks[0].entries
    assert [(e.pue_source, e.t1_unix_s - e.t0_unix_s) for e in entries] == [
        (source, 50) for source in (PueSource.CONSTANT, PueSource.TRACE, PueSource.FALLBACK)
    ]


def test_unknown_intensity_pauses_and_gaps_keep_their_edges(tmp_path: Path) -> None:
    items = _entries(20)
    items += [entry(T0_S + 500, T0_S + 510, {"GPU-0": device(1.0), "cpu": device(1.0, Provenance.MODELLED)})]
    items += [
        entry(T0_S + 510, T0_S + 520, {"GPU-0": device(0.0, missing_s=10), "cpu": device(1.0, Provenance.MODELLED)})
    ]
    entries = read_run(Folder(tmp_path).rank(0, [GPU, CPU], items).path, most=1).ranks[0].entries
    assert [(e.t0_unix_s - T0_S, e.t1_unix_s - T0_S) for e in entries] == [(0, 200), (500, 510), (510, 520)]


def test_gears_are_added_up(tmp_path: Path) -> None:
    bf16 = GearUse(energy_j=2000.0, modelled_j=500.0, missing_s=1.0, device_s=20.0, seconds=10.0, steps=10, tokens=7)
    items = [
        dataclasses.replace(item, gears={} if i < 3 else {"bf16": bf16} if i < 20 else {"bf16": bf16, "fp8": bf16})
        for i, item in enumerate(_entries())
    ]
    path = Folder(tmp_path).rank(0, [GPU, CPU], items).path
    whole, thin = read_run(path).totals.by_gear, read_run(path, most=4).totals.by_gear
    assert len(read_run(path, most=4).ranks[0].entries) < 10
    assert whole == thin
    assert (whole["bf16"].steps, whole["fp8"].energy_j) == (370, 40_000.0)


def test_a_short_journal_is_not_touched(tmp_path: Path) -> None:
    path = Folder(tmp_path).rank(0, [GPU, CPU], _entries()).path
    assert read_run(path, most=1000).ranks == read_run(path).ranks


def test_torn_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    path = Folder(tmp_path).rank(0, [GPU, CPU], _entries(10), reason=None).path
    journal = path / "rank-00000.jsonl"
    lines = journal.read_text(encoding="utf-8").splitlines()
    torn = [*lines[:5], lines[5][: len(lines[5]) // 2], "[1]", json.dumps({"no": "kind"}), *lines[5:], lines[-1][:-30]]
    journal.write_text("\n".join(torn), encoding="utf-8")
    assert read_run(path, most=3).totals.energy_j == pytest.approx(read_run(path).totals.energy_j)
