"""A journal that grows, added up as it grows: as the books read it afterwards, whatever has torn it."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra 'export' is not installed")

from greentrain.ledger.journal import JournalTail
from greentrain.ledger.reader import read_run
from greentrain.report.live.exporting import RunJson
from greentrain.report.live.rank_state import RankState, saved_so_far
from greentrain.report.live.snapshot import snapshot_of
from greentrain.report.summary import summarize
from tests.helpers.flat_meter import FlatMeter
from tests.report.live.shown import planned, session


def followed(path: Path, *, piece: int | None = None) -> RankState:
    """Return the state after reading a journal, or after reading it as it grows by so many bytes."""
    state = RankState()
    if piece is None:
        for record in JournalTail(path).read():
            state.add(record)
        return state
    whole, grown = path.read_bytes(), path.with_suffix(".grown")
    tail = JournalTail(grown)
    for end in range(0, len(whole) + piece, piece):
        grown.write_bytes(whole[:end])
        for record in tail.read():
            state.add(record)
    return state


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that went on in a second process, after a torn line, with a gap and two gears."""
    folder, state = tmp_path_factory.mktemp("twice"), None
    for part in range(2):
        green = session(folder, {}, meter := FlatMeter(), run={"id": "one"})
        if state is not None:
            green.load_state_dict(state)
        with green:
            for gear in ("bf16", "fp8"):
                green.gear(gear)
                time.sleep(0.25)
                green.step(tokens=10, samples=1)
            state = green.state_dict()
        assert meter.closed
        if not part:
            with (folder / "runs" / "one" / "rank-00000.jsonl").open("ab") as file:
                file.write(b'{"kind":"entry","t0":12')
    return folder / "runs" / "one"


@pytest.mark.parametrize("piece", [None, 97, 4096])
def test_it_says_what_the_books_say(twice: Path, piece: int | None) -> None:
    path = twice / "rank-00000.jsonl"
    state, totals = followed(path, piece=piece), read_run(twice).totals
    assert state.total_j == pytest.approx(totals.energy_j)
    by_provenance = {
        name: sum(j for (_, own), j in state.energy_j.items() if own == name) for name in totals.by_provenance
    }
    assert by_provenance == pytest.approx(dict(totals.by_provenance))
    assert state.totals.missing_s == pytest.approx(dict(totals.missing_s))
    assert (state.operational_g, state.embodied_g) == pytest.approx((totals.operational_g, totals.embodied_g))
    assert (state.totals.steps, state.totals.tokens, state.totals.samples) == (4, 40, 4)
    assert state.totals.duration_s == pytest.approx(totals.duration_s) and state.totals.facility_j == pytest.approx(
        totals.facility_j
    )
    assert state.gear == "fp8" and state.close is not None and len(state.opens) == 2
    assert sum(entry.energy_j for entry in state.record().entries) == pytest.approx(totals.energy_j)
    assert len(state.record().entries) <= 3, "an hour of a process is one line"


def test_a_long_journal_is_read_in_parts(twice: Path) -> None:
    path, state = twice / "rank-00000.jsonl", RankState()
    tail, looks = JournalTail(path), 0
    while tail.behind:
        looks += 1
        for record in tail.read(1024):
            state.add(record)
    assert looks > 2 and state.total_j == pytest.approx(read_run(twice).totals.energy_j)


def test_a_look_at_what_has_not_grown_reads_nothing(twice: Path, tmp_path: Path) -> None:
    tail = JournalTail(twice / "rank-00000.jsonl")
    assert len(list(tail.read())) > 4 and list(tail.read()) == []
    assert list(JournalTail(tmp_path / "not there").read()) == []


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "entry"},
        {"kind": "event"},
        {"kind": "nonsense"},
        {"kind": "open", "sensors": 5},
        {"kind": "entry", "t0": "x"},
    ],
)
def test_a_damaged_record_counts_nothing(record: dict[str, Any]) -> None:
    state = RankState()
    state.add(record)
    assert state.total_j is None and state.totals.duration_s == 0 and state.totals.steps == 0


DEVICE = {"j": 5.0, "prov": "measured", "missing_s": 0.0, "phases": {}}
CARBON = {"g_per_kwh": 1.0, "zone": "x", "kind": "actual", "basis": "average", "accounting": "", "source": ""}
ENTRY = {
    "kind": "entry", "t0": 0.0, "t1": 10.0, "steps": 1, "tokens": 1, "samples": 0, "pue": 1.0, "op_g": 1.0,
    "emb_g": 1.0, "devices": {"a": DEVICE, "b": DEVICE}, "carbon": CARBON,
    "phase_s": {}, "phase_incl_j": {}, "step_groups": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        {"emb_g": "x"},
        {"carbon": None},
        {"op_g": float("inf")},
        {"tokens": 10**400},
        {"t1": float("nan")},
        {"gears": 5},
        {"devices": {"a": DEVICE, "b": {**DEVICE, "prov": ["x"]}}},
    ],
)
def test_of_a_damaged_entry_no_part_counts(damage: dict[str, Any]) -> None:
    state = RankState()
    state.add({**ENTRY, **damage})
    assert (state.total_j, state.totals.duration_s, state.totals.steps, state.totals.tokens, state.operational_g) == (
        None,
        0,
        0,
        0,
        None,
    )
    assert (state.booked_unix_s, state.embodied_g, list(state.recent)) == (None, None, [])
    state.add(ENTRY)
    assert state.total_j == 10.0 and state.embodied_g == 1.0


def test_a_process_that_has_just_begun_has_no_power_yet(twice: Path) -> None:
    lines = (twice / "rank-00000.jsonl").read_text().splitlines()
    state, second = RankState(), [i for i, line in enumerate(lines) if line.startswith('{"kind":"open"')][1]
    for i, line in enumerate(lines[: second + 1]):
        if i == second:
            assert state.power_w
        if not line.endswith('"t0":12'):
            state.add(json.loads(line))
    assert state.power_w == {}


def test_a_device_whose_reading_changes_its_kind_has_two_parts(twice: Path, tmp_path: Path) -> None:
    lines = (twice / "rank-00000.jsonl").read_text().splitlines()
    path, state = tmp_path / "rank-00000.jsonl", RankState()
    opens = [i for i, line in enumerate(lines) if line.startswith('{"kind":"open"')]
    later = [line.replace('"prov":"measured"', '"prov":"modelled"') for line in lines[opens[1] :]]
    path.write_text("\n".join([*lines[: opens[1]], *later]) + "\n")
    state = followed(path)
    shot = snapshot_of(state, {}, t_unix_s=0.0, power_w={"GPU-a": 3.0})
    parts = {device.provenance: device for device in shot.devices if device.uid == "GPU-a"}
    assert parts.keys() == {"measured", "modelled"} and sum(d.energy_j or 0 for d in parts.values()) > 0
    assert [d.power_w for d in parts.values()].count(3.0) == 1, "it draws once"
    assert shot.missing_s == pytest.approx(sum(state.totals.missing_s.values()))


def test_saved_grams_are_those_of_the_report(tmp_path: Path) -> None:
    """With a declared table, the report of the ended run weighs the same two sides."""
    with planned(tmp_path, {}) as green:
        folder = green.folder
        assert folder is not None
        end_s = time.monotonic() + 3.0
        while time.monotonic() < end_s:
            green.gear("fp8")
            time.sleep(0.05)
            green.step(tokens=20)
        live = followed(folder / "rank-00000.jsonl")
        before = saved_so_far(RunJson().read(folder), live)
    facts = RunJson().read(folder)
    saved = saved_so_far(facts, followed(folder / "rank-00000.jsonl"))
    assert before is not None and saved is not None
    assert (saved.provenance, saved.against) == ("assumed", "bf16")
    plan = summarize(read_run(folder))["plan"]
    assert plan["static_g"] - plan["decided_g"] == pytest.approx(saved.grams, rel=1e-6)
    assert saved.grams > 0 and before.grams == pytest.approx(saved.grams, rel=0.5)
    assert saved_so_far({}, live) is None
    unknown = json.loads(json.dumps({**facts, "plan": {**facts["plan"], "hourly_g_per_kwh": [None] * 2}}))
    blind = followed(folder / "rank-00000.jsonl")
    for key, entry in blind._hours.items():
        blind._hours[key] = replace(entry, carbon=replace(entry.carbon, g_per_kwh=None))
    assert saved_so_far(unknown, blind) is None, "an hour that nobody knows is not 0 g"
