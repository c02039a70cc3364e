"""Money of a run: by interval, written down with its source, and derived again from the journal."""

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.price import Price
from greentrain.ledger.bookkeeper import Bookkeeper
from greentrain.ledger.journal import check_entry, entry_from_json, entry_to_json
from greentrain.ledger.pue import ConstantPue
from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import EntrySums, Totals
from greentrain.report.summary import cost_text, summarize
from greentrain.report.table import render
from greentrain.types import CarbonKind, LedgerEntry
from tests.ledger.test_bookkeeper import _curve
from tests.report.run_folders import one_rank, write_report

SIGNAL = ConstantSignal(360.0, zone="test", source="test")


def priced(*per_kwh: float | None) -> list[LedgerEntry]:
    """Return ten-second entries of 0.1 kWh each and PUE 1.2, at these prices."""
    curve = _curve("gpu", [(10.0 * i, 360e3 * i) for i in range(len(per_kwh) + 1)])
    price = Price(currency="EUR", source="test", of=lambda t0, t1: (per_kwh[int(t0) // 10], CarbonKind.ACTUAL))
    books = Bookkeeper(t0_s=0.0, unix_offset_s=0.0, signal=SIGNAL, facility=ConstantPue(1.2), price=price)
    return [books.book(10.0 * (i + 1), {"gpu": curve}) for i in range(len(per_kwh))]


def test_each_interval_costs_its_own_price_with_pue() -> None:
    entries = priced(0.30, -0.10)
    assert [entry.cost for entry in entries] == [pytest.approx(0.036), pytest.approx(-0.012)]


def test_an_unknown_price_is_no_zero_and_comes_back_from_the_journal() -> None:
    sums = EntrySums()
    for entry in priced(0.30, None, 0.10):
        record = json.loads(json.dumps(entry_to_json(entry)))
        check_entry(record)
        back = entry_from_json(record)
        assert back.price == entry.price and back.cost == entry.cost
        sums.add(record)
    totals = sums.totals()
    assert totals.cost == {"EUR": pytest.approx(0.048)}
    assert totals.uncosted_j == pytest.approx(360e3)
    assert Totals.from_dict(totals.to_dict()) == totals
    twice = totals + totals
    assert twice.cost == {"EUR": pytest.approx(0.096)} and sums.per_kwh == (0.10, 0.30)


def test_without_a_price_nothing_is_told_of_money() -> None:
    (entry,) = priced(0.3)
    record = entry_to_json(entry)
    del record["price"], record["cost"]
    assert entry_from_json(record).price is None and entry_from_json(record).cost is None
    sums = EntrySums()
    sums.add(record)
    assert "cost" not in sums.totals().to_dict() and "uncosted_j" not in sums.totals().to_dict()


@pytest.mark.parametrize("wrong", [{"per_kwh": float("nan")}, {"currency": 5}, {"kind": "maybe"}, {"source": None}])
def test_a_wrong_price_is_no_entry(wrong: dict[str, object]) -> None:
    (entry,) = priced(0.3)
    record = entry_to_json(entry)
    record["price"] |= wrong
    with pytest.raises((ValueError, TypeError)):
        check_entry(record)


def folder_with(root: Path, config: dict[str, object], prices: list[float | None]) -> Path:
    folder = one_rank(root)
    path = folder / "rank-00000.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    entries = [record for record in records if record["kind"] == "entry"]
    for i, record in enumerate(entries):
        per_kwh = prices[i % len(prices)]
        energy_j = sum(device["j"] for device in record["devices"].values()) * record["pue"]
        record["price"] = {"per_kwh": per_kwh, "currency": "EUR", "source": "day-ahead", "kind": "actual"}
        record["cost"] = None if per_kwh is None else energy_j / 3.6e6 * per_kwh
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    run.setdefault("config", {}).update(config)
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return folder


def test_summary_report_and_csv_tell_money_and_water(tmp_path: Path) -> None:
    water = {"wue_l_per_kwh": 2.0, "ewif_l_per_kwh": None, "mix": {"gas": 1.0}}
    folder = folder_with(tmp_path, {"price": {"signal": "trace"}, "water": water}, [0.2, 0.4])
    summary = summarize(read_run(folder))
    cost, energy = summary["cost"], summary["energy"]
    assert cost["currency"] == "EUR" and cost["complete"] and (cost["per_kwh_min"], cost["per_kwh_max"]) == (0.2, 0.4)
    assert 0.2 * energy["facility_energy_kwh"] < cost["amount"] < 0.4 * energy["facility_energy_kwh"]
    assert {row["name"] for row in summary["assumptions"]} >= {"Price of electricity", "WUE"}
    write_report(folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert cost_text(cost) in page and "modelled" in page
    with (folder / "emissions.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert float(row["wue"]) == 2.0
    assert float(row["water_consumed"]) == pytest.approx(2.0 * energy["energy_kwh"])
    shown = io.StringIO()
    Console(file=shown, width=200).print(render(summary))
    assert "EUR/kWh" in shown.getvalue() and "modelled" in shown.getvalue()


def test_a_run_whose_price_is_partly_unknown_says_at_least(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"price": {"signal": "trace"}}, [0.2, None])
    cost = summarize(read_run(folder))["cost"]
    assert cost["uncosted_j"] > 0 and not cost["complete"] and cost_text(cost).startswith("at least ")
    folder = folder_with(tmp_path / "other", {"price": {"signal": "trace"}}, [None])
    cost = summarize(read_run(folder))["cost"]
    assert cost["amount"] is None and cost_text(cost) == "unknown"
