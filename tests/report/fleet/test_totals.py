"""Totals add up: by whatever they are split, they are the sums of the runs' own books."""

import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from greentrain.errors import ConfigError
from greentrain.ledger.reader import read_run
from greentrain.report.fleet.index import Index
from greentrain.report.fleet.totals import KEYS, FleetTotal, RunSelection, parse_where
from greentrain.report.summary import summarize
from tests.report.fleet.random_runs import random_run
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, showcase

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    chance = random.Random(7)
    for i in range(80):
        random_run(root / f"team-{i % 5}", f"run-{i}", chance)
    return root


def _index(root: Path, tmp_path: Path) -> Index:
    index = Index(root, tmp_path / "cache.duckdb")
    index.refresh()
    return index


def _sum(totals: list[FleetTotal], figure: Callable[[FleetTotal], float | None]) -> float:
    return sum(figure(total) or 0.0 for total in totals)


def test_totals_by_any_keys_are_the_sums_of_the_runs_books(many: Path, tmp_path: Path) -> None:
    books = [read_run(path.parent).totals for path in many.glob("*/*/run.json")]
    assert len(books) == 80
    wanted = {
        "energy_j": sum(b.energy_j for b in books),
        "measured_j": sum(b.by_provenance.get("measured", 0.0) for b in books),
        "modelled_j": sum(b.by_provenance.get("modelled", 0.0) for b in books),
        "facility_j": sum(b.facility_j for b in books),
        "unpriced_j": sum(b.unpriced_j for b in books),
        "operational_g": sum(b.operational_g for b in books),
        "embodied_g": sum(b.embodied_g for b in books),
        "missing_s": sum(sum(b.missing_s.values()) for b in books),
    }
    work = {
        "rank_s": sum(b.duration_s for b in books),
        "tokens": sum(b.tokens for b in books),
        "samples": sum(b.samples for b in books),
    }
    keys = (*KEYS, "tag:cost centre")
    with _index(many, tmp_path) as index:
        for by in [(), *combinations(keys, 1), *combinations(keys, 2), keys]:
            totals = index.totals(by)
            for name, value in wanted.items():
                got = _sum(totals, lambda total, name=name: getattr(total, name))  # type: ignore[misc]
                assert got == pytest.approx(value, rel=1e-9), (by, name)
            if not {"device", "provenance"} & set(by):
                for name, value in work.items():
                    got = _sum(totals, lambda total, name=name: getattr(total, name))  # type: ignore[misc]
                    assert got == pytest.approx(value, rel=1e-9), (by, name)


def test_rows_are_what_the_report_says(many: Path, tmp_path: Path) -> None:
    with _index(many, tmp_path) as index:
        rows = index.runs()
    assert len(rows) == 80
    for row in rows:
        summary = summarize(read_run(row.folder), now_unix_s=2e9)
        energy, carbon, work = summary["energy"], summary["carbon"], summary["work"]
        assert row.error is None
        pairs = {
            "energy_j": energy["energy_j"],
            "measured_j": energy["by_provenance_j"]["measured"],
            "facility_j": energy["facility_energy_j"],
            "operational_g": carbon["operational_location_g"],
            "market_g": carbon["operational_market_g"],
            "embodied_g": carbon["embodied_g"]["mid"],
            "total_g": carbon["emissions_g"],
            "tokens": work["tokens"],
            "steps": work["steps"],
            "wall_s": summary["time"]["wall_s"],
            "j_per_token": work["j_per_token"],
        }
        for name, value in pairs.items():
            assert getattr(row, name) == (value if value is None else pytest.approx(value, rel=1e-9)), (
                row.folder,
                name,
            )
        assert row.state(2e9) == summary["state"]["word"], row.folder


def test_a_run_over_new_year_is_in_both_months(tmp_path: Path) -> None:
    entries = [
        entry(T0_S - 30, T0_S - 10, {"GPU-0": device(1000.0)}, tokens=10, zone="FRA"),
        entry(T0_S - 10, T0_S + 30, {"GPU-0": device(4000.0)}, tokens=7, zone="FRA", embodied_g=4.0),
        entry(T0_S + 30, T0_S + 40, {"GPU-0": device(500.0), "cpu": device(100.0)}, tokens=1, zone="DEU"),
    ]
    runs = tmp_path / "runs"
    Folder(runs, "late", created_unix_s=T0_S - 30).rank(0, [GPU, CPU], entries)
    with _index(runs, tmp_path) as index:
        totals = {(t.key["month"], t.key["zone"]): t for t in index.totals(["month", "zone"])}
        assert {key: t.energy_j for key, t in totals.items()} == {
            ("2025-12", "FRA"): pytest.approx(2000.0),
            ("2026-01", "FRA"): pytest.approx(3000.0),
            ("2026-01", "DEU"): pytest.approx(600.0),
        }
        assert {key: t.tokens for key, t in totals.items()} == {
            ("2025-12", "FRA"): 12, ("2026-01", "FRA"): 5, ("2026-01", "DEU"): 1,
        }  # fmt: skip
        assert totals["2025-12", "FRA"].embodied_g == pytest.approx(1.0)
        january = index.totals([], RunSelection(since="2026-01", until="2026-01"))[0]
        assert january.energy_j == pytest.approx(3600.0)
        assert index.totals([], RunSelection(until="2025-12-31"))[0].energy_j == pytest.approx(2000.0)
        assert index.totals(["month"], RunSelection(since="2026-02")) == []
        assert index.runs(RunSelection(since="2026-02")) == []
        assert [row.run_id for row in index.runs(RunSelection(since="2026-01-01"))] == ["late"]


def test_an_entry_that_ends_at_midnight_is_in_one_day(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    Folder(runs).rank(0, [GPU], [entry(T0_S - 10, T0_S, {"GPU-0": device(1000.0)}, tokens=3)])
    with _index(runs, tmp_path) as index:
        assert [(t.key, t.tokens) for t in index.totals(["month"])] == [({"month": "2025-12"}, 3)]


def test_missing_time_is_a_group_without_joules(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    showcase(runs)
    with _index(runs, tmp_path) as index:
        totals = {t.key["provenance"]: t for t in index.totals(["provenance"])}
    assert set(totals) == {"measured", "modelled", "missing"}
    assert totals["missing"].energy_j is None and totals["missing"].operational_g is None
    assert (totals["missing"].missing_s or 0) > 0 and totals["measured"].missing_s == 0
    assert totals["measured"].modelled_j == 0.0


def test_an_unknown_intensity_is_no_zero(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    Folder(runs).rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)}, g_per_kwh=None)])
    with _index(runs, tmp_path) as index:
        (total,) = index.totals()
    assert (total.operational_g, total.total_g, total.market_g, total.unpriced_j) == (None, None, None, 1000.0)


def test_a_selection_takes_tags_and_runs_without_one(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, tags in {"x": {"project": "p", "gpu type": "a"}, "y": {"project": "q"}, "z": {}}.items():
        Folder(runs, name, tags=tags).rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)})])
    with _index(runs, tmp_path) as index:

        def found(*where: str) -> set[str]:
            only = RunSelection(where=parse_where(where))
            rows = index.runs(only)
            (total,) = index.totals([], only)
            assert total.runs == len(rows)
            return {row.run_id for row in rows}

        assert found("project=p") == {"x"}
        assert found("project=") == {"z"}
        assert found("tag:gpu type=a", "project=p") == {"x"}
        assert found("project=p' OR 1=1 --") == set()
        assert found("device=gpu") == {"x", "y", "z"}
        assert found("device=cpu") == set()


@pytest.mark.parametrize(
    ("by", "only", "text"),
    [
        (["projcet"], {}, "Did you mean 'project'"),
        (["project", "project"], {}, "twice"),
        (["tag:"], {}, "--by"),
        ([], {"since": "2026-13"}, "--since is '2026-13'"),
        ([], {"until": "yesterday"}, "2026-01"),
        ([], {"since": "2026-02", "until": "2026-01"}, "before"),
        ([], {"where": {"colour": "red"}}, "--where"),
    ],
)
def test_wrong_questions_are_refused(tmp_path: Path, by: list[str], only: dict[str, object], text: str) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match=text), _index(tmp_path / "runs", tmp_path) as index:
        index.totals(by, RunSelection(**only))  # type: ignore[arg-type]


def test_a_condition_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        parse_where(["project"])


def test_two_conditions_on_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="project twice"):
        parse_where(["project=a", "project=b"])
