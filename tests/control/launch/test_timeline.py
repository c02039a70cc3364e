"""The split of a resize, from moments that both sides noted."""

import json
from pathlib import Path

import pytest

from greentrain.control.launch.timeline import mean_resize_s, read, table


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
