"""Run folders that hold what no GreenTrain wrote: no reader hangs, none needs memory without bound, none dies of it."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import Journal, JournalTail, rank_path, read_journal
from greentrain.ledger.reader import read_run, sums_of_others
from greentrain.ledger.run_folder import is_finished
from greentrain.report import RunReport
from greentrain.report.fleet.audit import audit
from greentrain.report.fleet.reading import read_folder
from greentrain.report.live.follow import RunFollow
from tests.report.run_folders import CPU, GPU, Folder, device, entry, write_report

T0_S = 1_700_000_000.0
LIMIT_S = 20
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here"),
    pytest.mark.timeout(LIMIT_S),
]


def run_of(tmp_path: Path) -> Path:
    """Return a run of one rank with two entries of 1000 J, 10 s and 5 tokens each."""
    items = [entry(T0_S + 10 * i, T0_S + 10 * i + 10, {"GPU-0": device(1000.0)}, tokens=5) for i in range(2)]
    return Folder(tmp_path).rank(0, [GPU, CPU], items).path


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = Path.cwd()
    try:
        os.chdir(path.parent)  # the path of a socket is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, listening, endless])
@pytest.mark.parametrize("name", ["rank-00000.jsonl", "run.json", "estimate.json"])
def test_what_never_ends_is_refused(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    folder = run_of(tmp_path)
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    if name == "estimate.json":
        assert read_folder(folder).row.energy_j == 2000.0
        return
    with pytest.raises(RunFolderError, match=rf"{name} is no regular file"):
        read_run(folder)
    assert read_folder(folder).row.error == f"{name} is no regular file"
    assert audit(folder)["runs"][0]["error"] is not None
    if name == "rank-00000.jsonl":
        with pytest.raises(RunFolderError, match="is no regular file"):
            list(read_journal(folder / name))
        with pytest.raises(RunFolderError, match="is no regular file"):
            RunFollow(folder).look()
        assert not is_finished(folder / name)
        assert sums_of_others(folder, 1, 1).ranks == 0
    else:
        assert RunFollow(folder).look().total_j == 2000.0


def test_no_rank_writes_into_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-00000.jsonl")
    with pytest.raises(RunFolderError, match="is no regular file"):
        Journal(tmp_path / "rank-00000.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        b"x" * (1 << 24),
        b'{"kind":"entry","t0":' * (1 << 19),
        b"[" * (1 << 20),
        b'{"kind":' + b"[" * (1 << 20),
        b'5\n[]\nnull\n"kind"\n{}',
        b'{"kind":"event","t":' + b"9" * 100_000 + b"}",
        b"\xff\xfe\x00",
    ],
    ids=["endless", "objects", "lists", "in-a-record", "other types", "a number of 100 kB", "no UTF-8"],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_line_that_is_no_record_costs_itself_only(tmp_path: Path, line: bytes, last: bool) -> None:
    folder = run_of(tmp_path)
    path = rank_path(folder, 0)
    whole = path.read_bytes().splitlines(keepends=True)
    at = len(whole) if last else 3
    path.write_bytes(b"".join(whole[:at]) + line + b"\n" * (not last) + b"".join(whole[at:]))
    for most in (None, 1):
        assert read_run(folder, most=most).totals.energy_j == 2000.0
    assert read_folder(folder).row.energy_j == 2000.0
    assert RunFollow(folder).look().total_j == 2000.0


def test_a_line_without_an_end_needs_no_memory_of_its_size(tmp_path: Path) -> None:
    import tracemalloc

    folder = run_of(tmp_path)
    with rank_path(folder, 0).open("r+b") as file:
        file.seek(0, 2)
        file.truncate(file.tell() + (1 << 28))  # a sparse file: 256 MiB of zeros, no line end
    for read in (
        lambda: read_run(folder),
        lambda: read_run(folder, most=1),
        lambda: read_folder(folder),
        lambda: RunFollow(folder).look(),
        lambda: is_finished(rank_path(folder, 0)),
        lambda: sums_of_others(folder, 1, 1),
    ):
        tracemalloc.start()
        try:
            read()
            assert tracemalloc.get_traced_memory()[1] < 1 << 26
        finally:
            tracemalloc.stop()


def test_of_an_endless_run_json_only_so_much_is_read(tmp_path: Path) -> None:
    import tracemalloc

    folder = run_of(tmp_path)
    with (folder / "run.json").open("r+b") as file:
        file.truncate(1 << 28)  # a sparse file: 256 MiB of zeros behind the JSON
    tracemalloc.start()
    try:
        with pytest.raises(RunFolderError, match="has more than"):
            read_run(folder)
        assert "has more than" in str(read_folder(folder).row.error)
        assert RunFollow(folder).look().total_j == 2000.0
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


class Counted:
    """A file that counts the bytes that are read of it."""

    read_bytes = 0

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def __enter__(self) -> "Counted":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def seek(self, at: int) -> int:
        return self._file.seek(at)

    def read(self, most: int) -> bytes:
        return self._counted(self._file.read(most))

    def readline(self, most: int) -> bytes:
        return self._counted(self._file.readline(most))

    def _counted(self, data: bytes) -> bytes:
        Counted.read_bytes += len(data)
        return data


def test_a_line_that_never_ends_is_not_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greentrain.ledger.journal.open_regular", Counted)
    monkeypatch.setattr(Counted, "read_bytes", 0)
    path = tmp_path / "rank-00000.jsonl"
    tail = JournalTail(path)
    for _ in range(64):
        with path.open("ab") as file:
            file.write(b" " * (1 << 17))
        assert not list(tail.read()) and not tail.behind
    assert Counted.read_bytes <= 2 * path.stat().st_size
    with path.open("ab") as file:
        file.write(b'\n{"kind":"event","t":1,"name":"x"}\n{"kind":"event",')
    assert [record["name"] for record in tail.read()] == ["x"]
    with path.open("ab") as file:
        file.write(b'"t":2,"name":"y"}\n')
    assert [record["name"] for record in tail.read()] == ["y"]
    assert not list(tail.read())


@pytest.mark.parametrize(
    "damage",
    [
        {"t1": float("nan")},
        {"op_g": float("inf")},
        {"pue": "1"},
        {"emb_g": []},
        {"carbon": 5},
        {"carbon": {}},
        {"devices": []},
        {"devices": {"GPU-0": 5}},
        {"devices": {"GPU-0": {"j": float("nan"), "prov": "measured", "missing_s": 0.0, "phases": {}}}},
        {"tokens": 10**400},
        {"gears": {"bf16": 5}},
        {"gears": [1]},
        {"phase_s": {"x": None}},
        {"step_groups": [[1, "", 1.0, 0]]},
        {"sum": 5},
        {"sum": {"energy_j": "x", "tokens": None}},
        {"sum": {"energy_j": float("nan")}},
    ],
)
def test_a_record_of_the_wrong_type_is_named_or_left_out(tmp_path: Path, damage: dict[str, Any]) -> None:
    folder = run_of(tmp_path)
    path = rank_path(folder, 0)
    lines = path.read_bytes().splitlines(keepends=True)
    at = max(i for i, line in enumerate(lines) if line.startswith(b'{"kind":"entry"'))
    sound = json.loads(lines[at])
    sums = {"energy_j": 2000.0, "emissions_g": 1.0, "unpriced_j": 0.0, "tokens": 10, "samples": 0}
    groups = damage.get("step_groups", sound.pop("step_groups"))  # last, as the journal has it

    def write(**changes: Any) -> None:
        record = {**sound, "sum": sums, **changes, "step_groups": groups}
        path.write_bytes(b"".join(lines[:at]) + json.dumps(record, separators=(",", ":")).encode() + b"\n")

    if "step_groups" not in damage:
        write()
        assert sums_of_others(folder, 1, 1).energy_j == 2000.0
    write(**{name: value for name, value in damage.items() if name != "step_groups"})
    assert sums_of_others(folder, 1, 1).ranks == ("step_groups" in damage), "rank 0 logs no figure that makes no sense"
    if "sum" in damage:
        assert read_run(folder).totals.energy_j == 2000.0
        return
    for most in (None, 1):
        if most is None or "step_groups" not in damage:  # which are most of a line, and skipped where nobody needs them
            with pytest.raises(RunFolderError, match="record that cannot be read"):
                read_run(folder, most=most)
    if "step_groups" in damage:
        return
    assert read_folder(folder).row.error is not None
    assert RunFollow(folder).look().total_j == 1000.0, "the page leaves it out and goes on"


@pytest.mark.parametrize(
    "event",
    [
        {"name": "warning"},
        {"t": None, "name": "warning"},
        {"t": 1e300, "name": "warning"},
        {"t": "1", "name": "warning"},
        {"t": T0_S},
        {"t": T0_S, "name": ["warning"]},
        {"t": T0_S, "name": "gear", "text": {}},
    ],
    ids=str,
)
def test_an_event_without_a_time_or_a_name_is_left_out_and_said(tmp_path: Path, event: dict[str, Any]) -> None:
    folder = run_of(tmp_path)
    with rank_path(folder, 0).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "event", **event}) + "\n")
    found = RunReport.read(folder)
    found.write()
    assert [note["name"] for note in found.summary["events"]] == ["note"]
    assert "events without a time or a name (1 times)" in found.summary["events"][0]["text"]
    assert RunFollow(folder).look().events == []


def test_intervals_of_years_are_split_into_days_only_so_often(tmp_path: Path) -> None:
    years_s = 60 * 365 * 86_400.0
    items = [entry(T0_S + i, T0_S + i + years_s, {"GPU-0": device(1.0)}) for i in range(50)]
    assert read_folder(Folder(tmp_path, "one").rank(0, [GPU], items[:1]).path).row.energy_j == pytest.approx(1.0)
    assert "longer than a century together" in str(read_folder(Folder(tmp_path).rank(0, [GPU], items).path).row.error)


def test_more_names_than_a_training_has_make_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greentrain.report._MOST_NAMES", 7)
    items = [entry(T0_S, T0_S + 10, {"GPU-0": device(1.0)})]
    with pytest.raises(RunFolderError, match="names more than 7 phases and devices"):
        write_report(Folder(tmp_path).rank(0, [GPU, CPU], items).path)


@pytest.mark.parametrize(
    ("name", "was", "put"),
    [("run.json", '"tags": {}', '"tags": "x"'), ("rank-00000.jsonl", '"name":', '"name":1e300,"n":')],
)
def test_a_report_of_facts_that_make_no_sense_names_the_folder(tmp_path: Path, name: str, was: str, put: str) -> None:
    folder = run_of(tmp_path)
    text = (folder / name).read_text()
    assert was in text
    (folder / name).write_text(text.replace(was, put))
    with pytest.raises(RunFolderError, match="makes no sense"):
        write_report(folder)
