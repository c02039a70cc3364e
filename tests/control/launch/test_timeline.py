"""The split of a resize, from moments that both sides noted."""

import json
from pathlib import Path

import pytest

from greentrain.control.launch.timeline import ResizeTiming, mean_resize_s, read, table


def write(folder: Path, *moments: tuple[float, int, str]) -> None:
    with (folder / "timeline.jsonl").open("a") as file:
        for t_s, attempt, what in moments:
            more = {"took_s": 0.25} if what == "group" else {"ranks": 2} if what == "start" else {}
            file.write(json.dumps({"t_unix_s": 1000.0 + t_s, "attempt": attempt, "what": what, **more}) + "\n")


WHOLE = (
    (0.0, 1, "start"), (9.0, 1, "step"), (10.0, 1, "request"), (11.0, 1, "left"), (13.0, 1, "ended"),
    (73.0, 2, "start"), (73.5, 2, "up"), (74.5, 2, "group"), (75.0, 2, "ready"), (76.0, 2, "step"),
)  # fmt: skip


def test_a_resize_is_split_and_its_wait_is_no_cost(tmp_path: Path) -> None:
    write(tmp_path, *WHOLE)
    (resize,) = read(tmp_path)
    assert resize.attempt == 2 and resize.ranks == 2
    assert (resize.checkpoint_s, resize.teardown_s, resize.wait_s) == (1.0, 2.0, 60.0)
    assert (resize.process_s, resize.group_s, resize.script_s, resize.first_step_s) == (0.5, 0.25, 1.25, 1.0)
    assert resize.total_s == pytest.approx(6.0) == mean_resize_s(tmp_path)
    parts = (resize.checkpoint_s, resize.teardown_s, resize.process_s, resize.group_s, resize.script_s)
    assert sum(part or 0.0 for part in parts) + (resize.first_step_s or 0.0) == pytest.approx(6.0)


def test_a_group_that_is_joined_after_the_session_is_taken_off_the_first_step(tmp_path: Path) -> None:
    write(tmp_path, *(moment for moment in WHOLE if moment[2] != "group"), (75.5, 2, "group"))
    (resize,) = read(tmp_path)
    assert (resize.script_s, resize.first_step_s, resize.total_s) == (1.5, 0.75, 6.0)


def test_missing_moments_are_unknown_and_not_zero(tmp_path: Path) -> None:
    write(tmp_path, *(moment for moment in WHOLE if moment[2] not in ("up", "group", "step")))
    (resize,) = read(tmp_path)
    assert (resize.process_s, resize.group_s, resize.first_step_s, resize.total_s) == (None,) * 4
    assert mean_resize_s(tmp_path) is None
    assert "?" in table([resize])


def test_a_crash_is_no_resize_and_torn_lines_are_none(tmp_path: Path) -> None:
    write(tmp_path, (0.0, 1, "start"), (5.0, 1, "ended"), (6.0, 2, "start"), (7.0, 2, "step"))
    with (tmp_path / "timeline.jsonl").open("a") as file:
        file.write('{"t_unix_s": NaN, "attempt": 2, "what": "request"}\n[]\n{"t_unix_s": 1, "att')
    assert read(tmp_path) == [] and table([]) == ""
    assert read(tmp_path / "nowhere") == []


def test_the_mean_is_of_the_newest(tmp_path: Path) -> None:
    for n in range(1, 12):
        write(tmp_path, (10.0 * n, n, "start"), (10.0 * n + n, n, "step"), (10.0 * n + n, n, "request"))
        write(tmp_path, (10.0 * n + n, n, "ended"))
    assert len(read(tmp_path)) == 10
    assert mean_resize_s(tmp_path) == pytest.approx(sum(range(4, 12)) / 8)


def test_of_moments_that_come_twice_the_last_before_a_restart_counts_and_the_first_after(tmp_path: Path) -> None:
    """A notice is repeated until a checkpoint is written; a script may join its group and begin a session again."""
    again = ((5.0, 1, "request"), (6.0, 1, "left"), (7.0, 1, "ended"))
    later = ((80.0, 2, "up"), (81.0, 2, "group"), (82.0, 2, "ready"), (83.0, 2, "step"), (90.0, 2, "start"))
    write(tmp_path, *again, *WHOLE, *later)
    assert read(tmp_path) == _only(tmp_path / "once", *WHOLE)


def _only(folder: Path, *moments: tuple[float, int, str]) -> list[ResizeTiming]:
    folder.mkdir()
    write(folder, *moments)
    return read(folder)


def test_a_restart_counts_where_the_attempt_before_asked_for_it(tmp_path: Path) -> None:
    """A crash in between, or an attempt that has no start yet, is none."""
    write(tmp_path, (0.0, 1, "request"), (1.0, 1, "ended"), (2.0, 3, "start"), (3.0, 3, "request"), (4.0, 4, "up"))
    assert read(tmp_path) == []
    write(tmp_path, (5.0, 4, "start"), (6.0, 4, "step"))
    assert [resize.attempt for resize in read(tmp_path)] == [4]


def test_a_clock_that_was_set_back_makes_no_time_of_less_than_nothing(tmp_path: Path) -> None:
    write(tmp_path, (10.0, 1, "request"), (12.0, 1, "ended"), (5.0, 2, "start"), (5.1, 2, "up"), (5.2, 2, "ready"))
    write(tmp_path, (5.3, 2, "group"), (5.4, 2, "step"))
    (resize,) = read(tmp_path)
    assert resize.wait_s == 0.0 and resize.total_s == pytest.approx(2.4)
    assert resize.first_step_s == 0.0, "the group took longer than is left of the step"
    (resize,) = _only(
        tmp_path / "other",
        *((t, n, w) for t, n, w in WHOLE if w not in ("up", "ready")),
        (74.9, 2, "up"),
        (75.0, 2, "ready"),
    )
    assert resize.script_s == 0.0


@pytest.mark.parametrize("took", ["long", None, [1]])
def test_a_group_whose_time_is_no_number_is_unknown(tmp_path: Path, took: object) -> None:
    write(tmp_path, *(moment for moment in WHOLE if moment[2] != "group"))
    with (tmp_path / "timeline.jsonl").open("a") as file:
        for more in ({"what": "group", "took_s": took}, {"what": "start", "t_unix_s": "now"}, {"what": 3}, {}):
            file.write(json.dumps({"t_unix_s": 1074.5, "attempt": 2, **more}) + "\n")
    (resize,) = read(tmp_path)
    assert resize.group_s is None and resize.script_s == 1.5 and resize.total_s == pytest.approx(6.0)


def test_the_table_has_a_row_a_restart_and_its_units(tmp_path: Path) -> None:
    write(tmp_path, *WHOLE)
    with (tmp_path / "timeline.jsonl").open("a") as file:
        for t_s, attempt, what in ((80.0, 2, "request"), (81.0, 2, "ended"), (82.0, 3, "start")):
            more = {"ranks": "many"} if what == "start" else {}
            file.write(json.dumps({"t_unix_s": 1000.0 + t_s, "attempt": attempt, "what": what, **more}) + "\n")
    title, head, first, second = table(read(tmp_path)).splitlines()
    assert title == "restarts that the training asked for, seconds (measured; ? = no moment was noted)"
    assert head.split() == [
        "attempt",
        "ranks",
        "checkpoint",
        "teardown",
        "process",
        "group",
        "script",
        "first",
        "step",
        "total",
        "waited",
    ]
    assert first.split() == ["2", "2", "1.00", "2.00", "0.50", "0.25", "1.25", "1.00", "6.00", "60.00"]
    assert second.split() == ["3", "?", "?", "?", "?", "?", "?", "?", "?", "1.00"]
    assert len({len(head), len(first), len(second)}) == 1, "columns stand below one another"


@pytest.mark.parametrize(
    ("code", "left", "counts"),
    [(1, False, False), (0, False, False), (1, True, True), (75, False, True), (None, False, True)],
)
def test_a_crash_long_after_a_request_that_nobody_obeyed_is_no_restart(
    tmp_path: Path, code: int | None, left: bool, counts: bool
) -> None:
    """The script wrote no checkpoint and trained on: those hours would have told a plan never to change the width."""
    write(tmp_path, (0.0, 1, "request"), (18_010.0, 2, "start"), (18_011.0, 2, "step"), *([(1.0, 1, "left")] * left))
    with (tmp_path / "timeline.jsonl").open("a") as file:
        file.write(json.dumps({"t_unix_s": 19_000.0, "attempt": 1, "what": "ended", "code": code}) + "\n")
    assert (mean_resize_s(tmp_path) == 18_001.0) is counts and len(read(tmp_path)) == counts


def test_a_moment_beyond_all_numbers_is_none(tmp_path: Path) -> None:
    (tmp_path / "timeline.jsonl").write_text(f'{{"t_unix_s": 1{"0" * 400}, "attempt": 1, "what": "step"}}\n')
    assert read(tmp_path) == []
