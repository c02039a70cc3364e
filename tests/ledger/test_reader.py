"""What is read of journals: processes, sensors and sums of a rank, and figures of ranks that still run."""

import dataclasses
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import RunFolderError
from greentrain.ledger import reader
from greentrain.ledger.journal import Journal, entry_to_json, rank_path
from greentrain.ledger.reader import (
    OtherRanksTotals,
    RankBooks,
    read_books,
    read_run,
    sums_of_others,
    wait_for_ranks,
)
from greentrain.ledger.totals import EnergyLedger, Totals
from greentrain.types import LedgerEntry, Provenance
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, sensor


def _books(folder: Path, rank: int, *joules: float, seconds: float = 10.0, tokens: int = 0) -> Path:
    """Write the journal of a running rank, an entry for each number of joules, and return it."""
    journal = Journal(rank_path(folder, rank))
    ledger = EnergyLedger(journal)
    for i, energy_j in enumerate(joules):
        devices = {"GPU-0": device(energy_j / 2), "cpu": device(energy_j / 2, Provenance.MODELLED)}
        t0_s = T0_S + seconds * i
        ledger.record(entry(t0_s, t0_s + seconds, devices, g_per_kwh=360.0, pue=1.0, tokens=tokens, samples=2))
    assert journal.close(60.0)
    return journal.path


def test_ranks_that_run_are_summed_as_of_their_last_entry(tmp_path: Path) -> None:
    for rank, joules in ((0, (9e9,)), (1, (1000.0, 3000.0)), (2, (500.0,))):
        _books(tmp_path, rank, *joules, tokens=10)
    found = sums_of_others(tmp_path, 0, 3)
    assert found.emissions_g == pytest.approx(0.45)
    assert dataclasses.replace(found, emissions_g=0.0) == OtherRanksTotals(
        ranks=2, energy_j=4500.0, power_w=350.0, tokens=30, samples=6
    )
    assert sums_of_others(tmp_path, 1, 3).power_w == pytest.approx(9e8 + 50.0)


def test_a_rank_that_cannot_be_seen_is_not_counted_and_those_behind_it_are(tmp_path: Path) -> None:
    _books(tmp_path, 2, 500.0)
    assert sums_of_others(tmp_path, 0, 3).ranks == 1
    rank_path(tmp_path, 1).write_text('{"kind":"open","n":1}\n')
    assert sums_of_others(tmp_path, 0, 3).ranks == 1, "it has booked nothing yet"


def test_ranks_of_an_earlier_and_wider_attempt_count_what_they_used_and_draw_nothing(tmp_path: Path) -> None:
    for rank in range(4):
        _books(tmp_path, rank, 1000.0)
    found = sums_of_others(tmp_path, 0, 2)
    assert (found.ranks, found.energy_j, found.power_w) == (1, 3000.0, 100.0)


def test_an_event_or_a_torn_line_behind_the_last_entry_hides_it_from_nobody(tmp_path: Path) -> None:
    path = _books(tmp_path, 1, 1000.0, 2000.0)
    with path.open("a", encoding="utf-8") as file:
        file.write(
            '{"kind":"event","n":3,"t":1.0,"name":"x","text":"' + "x" * 100_000 + '"}\n{"kind":"entry","n":4,"t0"'
        )
    assert sums_of_others(tmp_path, 0, 2).energy_j == 3000.0


def test_an_entry_without_length_gives_no_division_by_zero(tmp_path: Path) -> None:
    _books(tmp_path, 1, 0.0, seconds=0.0)
    assert sums_of_others(tmp_path, 0, 2).power_w == 0.0


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens while a reader sleeps, one thing a nap, on a clock that only its sleep moves."""
    todo: list[Callable[[], object]] = []
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds
        if todo:
            todo.pop(0)()

    clock = types.SimpleNamespace(sleep=sleep, monotonic=lambda: now_s[0])
    monkeypatch.setattr(reader, "time", clock)
    return todo


def test_a_report_waits_for_the_closing_lines_of_all_ranks_and_not_for_ever(
    tmp_path: Path, naps: list[Callable[[], object]]
) -> None:
    def end(rank: int) -> None:
        rank_path(tmp_path, rank).write_text('{"kind":"open"}\n{"kind":"close"}\n')

    end(0)
    rank_path(tmp_path, 1).write_text('{"kind":"open"}\n')
    assert not wait_for_ranks(tmp_path, 3, 1.0)
    naps += [lambda: end(2), lambda: None, lambda: end(1)]
    assert wait_for_ranks(tmp_path, 3, 1.0) and not naps
    assert wait_for_ranks(tmp_path, 3, 0.01)


def _open(**more: Any) -> dict[str, Any]:
    return {"kind": "open", "format": 1, "run_id": "r", "rank": 0, "host": "h", "sensors": [GPU, CPU], **more}


def test_of_a_run_that_goes_on_the_last_process_says_what_there_is() -> None:
    books = RankBooks()
    books.add(_open(carried={"energy_j": 5.0}))
    books.add({"kind": "sensors", "sensors": [{**GPU, "name": "probed"}], "excluded": [{"uid": "GPU-1"}]})
    books.add({"kind": "close", "reason": "sigterm"})
    ends = [books.close]
    assert books.sensors["GPU-0"]["name"] == "probed"
    assert list(books.excluded) == [{"uid": "GPU-1"}]
    books.add({"kind": "weather"})
    books.add(_open(carried={"energy_j": 2.0}))
    assert [*ends, books.close] == [{"kind": "close", "reason": "sigterm"}, None]
    assert books.sensors["GPU-0"]["name"] == GPU["name"] and list(books.excluded) == []
    assert (len(books.opens), books.carried) == (2, Totals(energy_j=7.0))


def test_embodied_grams_go_to_the_devices_whose_rates_the_journal_has() -> None:
    books = RankBooks()
    dear = sensor("dear", "gpu", "x") | {"embodied_g_per_h": {"mid": 75.0}}
    books.add(_open(sensors=[GPU, CPU, dear]))
    devices = {"GPU-0": device(1.0), "dear": device(1.0), "cpu": device(1.0)}
    books.add(entry_to_json(entry(T0_S, T0_S + 10, devices, embodied_g=4.0)))
    found = {uid: sums.parts["measured"].embodied_g for uid, sums in books.sums.devices.items()}
    assert found == {"GPU-0": 1.0, "dear": 3.0, "cpu": 0.0}


def test_groups_are_summed_apart_and_together() -> None:
    books = RankBooks(lambda record: [("even" if record["t0"] % 20 == 0 else "odd", record)])
    for i in range(3):
        books.add(entry_to_json(entry(10.0 * i, 10.0 * i + 10, {"GPU-0": device(100.0 * (i + 1))})))
    assert {key: sums.energy_j for key, sums in books.groups.items()} == {"even": 400.0, "odd": 200.0}
    assert books.sums.energy_j == 600.0
    assert RankBooks().sums.energy_j == 0.0


def test_lines_may_come_from_elsewhere_and_count_once(tmp_path: Path) -> None:
    record = entry_to_json(entry(T0_S, T0_S + 10, {"GPU-0": device(100.0)})) | {"n": 2}
    lines = [json.dumps({"n": 1, **_open()}).encode(), b"torn", *([json.dumps(record).encode()] * 2)]
    assert read_books(tmp_path / "packed", RankBooks(), lambda path: lines).sums.energy_j == 100.0


def test_a_run_of_two_hosts_has_devices_by_host_and_gaps_in_order(tmp_path: Path) -> None:
    folder = Folder(tmp_path, world_size=2)
    for rank, host in enumerate("ab"):
        first = T0_S + 100 * (1 - rank)
        entries = [
            entry(first, first + 10, {"GPU-0": device(0.0, missing_s=10.0)}, steps=rank),
            entry(first + 10, first + 20 + rank, {"GPU-0": device(100.0)}),
        ]
        folder.rank(rank, [GPU, CPU], entries, host=host)
    run = read_run(folder.path)
    assert set(run.sensors) == set(run.sums.devices) == {(host, uid) for host in "ab" for uid in ("GPU-0", "cpu")}
    assert run.sums.devices["a", "cpu"].energy_j is None
    assert [gap["host"] for gap in run.sums.gaps] == ["b", "a"]
    assert (run.wall_s, run.totals.steps, run.run_id) == (21.0, 11, "demo")
    (folder.path / "run.json").unlink()
    assert read_run(folder.path).run_id == "demo", "the folder's name"


def test_a_folder_of_runs_is_no_run_and_one_in_it_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Folder(tmp_path, name).rank(0, [GPU], [])
    with pytest.raises(RunFolderError, match=rf"has no rank-\*.jsonl file; .*for example {tmp_path / 'two'}$"):
        read_run(tmp_path)
    rank_path(tmp_path / "one", 0).write_text("torn")
    with pytest.raises(RunFolderError, match="no rank file has a complete line"):
        read_run(tmp_path / "one")


def _thinned(tmp_path: Path, entries: list[LedgerEntry], most: int) -> list[LedgerEntry]:
    return list(read_run(Folder(tmp_path).rank(0, [GPU, CPU], entries).path, most=most).ranks[0].entries)


def _row(count: int, **more: Any) -> list[LedgerEntry]:
    return [entry(T0_S + 10 * i, T0_S + 10 * i + 10, {"GPU-0": device(100.0)}, **more) for i in range(count)]


def test_entries_are_merged_evenly_to_about_as_many_as_are_asked_for(tmp_path: Path) -> None:
    found = _thinned(tmp_path, _row(40, samples=3), 8)  # 42 lines: six an entry
    assert [item.t1_unix_s - item.t0_unix_s for item in found] == [60.0] * 6 + [40.0]
    assert [item.samples for item in found] == [18] * 6 + [12]


def test_an_intensity_over_no_energy_is_still_a_mean(tmp_path: Path) -> None:
    idle = {"GPU-0": device(0.0)}
    entries = [entry(T0_S + 10 * i, T0_S + 10 * i + 10, idle, g_per_kwh=g, pue=1.0) for i, g in enumerate((100, 300))]
    (found,) = _thinned(tmp_path, entries, 1)
    assert found.carbon.g_per_kwh == pytest.approx(200.0) and found.operational_g == 0.0


@pytest.mark.parametrize(
    ("change", "merges"),
    [
        ({}, True),
        ({"t0_s": T0_S + 10.0005}, True),
        ({"t0_s": T0_S + 10.5}, False),
        ({"zone": "DEU"}, False),
        ({"g_per_kwh": None}, False),
        ({"embodied_g": 1.0}, False),
        ({"devices": {"GPU-0": device(100.0, missing_s=5.0)}}, False),
        ({"devices": {"GPU-0": device(100.0, Provenance.MODELLED)}}, False),
        ({"devices": {"GPU-1": device(100.0)}}, False),
        ({"devices": {"GPU-0": device(100.0), "GPU-1": device(1.0)}}, False),
    ],
    ids=str,
)
def test_only_neighbours_of_one_kind_are_merged(tmp_path: Path, change: dict[str, Any], merges: bool) -> None:
    later = {"t0_s": T0_S + 10, "t1_s": T0_S + 20, "devices": {"GPU-0": device(100.0)}, **change}
    for order in (1, -1):
        entries = [*_row(1), entry(**later)]
        if order < 0 and "t0_s" not in change:
            other = {**later, "t0_s": T0_S, "t1_s": T0_S + 10}
            entries = [entry(**other), entry(T0_S + 10, T0_S + 20, {"GPU-0": device(100.0)})]
        found = _thinned(tmp_path / str(order), entries, 1)
        assert len(found) == (1 if merges else 2)
        assert sum(item.energy_j for item in found) == sum(item.energy_j for item in entries)


def test_what_is_missing_in_merged_entries_is_missing_in_all(tmp_path: Path) -> None:
    blind = {"GPU-0": device(60.0, missing_s=0.5), "cpu": device(0.0, Provenance.MISSING, missing_s=10.0)}
    entries = [entry(T0_S + 10 * i, T0_S + 10 * i + 10, blind) for i in range(3)]
    (found,) = _thinned(tmp_path, entries, 1)
    assert {uid: item.missing_s for uid, item in found.devices.items()} == {"GPU-0": 1.5, "cpu": 30.0}
    assert found.devices["GPU-0"].phases["forward"] == pytest.approx(3 * 18.0)
    assert found.phase_inclusive_j["epoch"] == pytest.approx(180.0) and found.phase_s["data"] == pytest.approx(3.0)
