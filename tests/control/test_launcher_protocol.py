"""Small files between a launcher and its training: whole, or counted as none."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from greentrain.control import launcher_protocol
from greentrain.control.launcher_protocol import ENV_DIR, EXIT_REQUEUE, LauncherFiles, Notice, Offer, Progress, Request

OFFER = Offer(attempt=2, ranks=4, min_ranks=1, max_ranks=8, can_wait=True, resize_s=3.5, job_unix_s=1e9)
NOTICE = Notice(attempt=2, reason="the node is drained", by_unix_s=2e9, ranks=1)
REQUEST = Request(attempt=2, ranks=1, not_before_unix_s=None, reason="grid")
PROGRESS = Progress(attempt=2, steps=7, tokens=70.0, unix_s=1e9)


def test_each_kind_of_word_has_a_file_and_the_newest_counts(tmp_path: Path) -> None:
    hand = LauncherFiles(tmp_path)
    assert [hand.offer(), hand.notice(), hand.request(), hand.progress()] == [None] * 4
    for word in (OFFER, Notice(attempt=1, reason="old"), NOTICE, REQUEST, PROGRESS):
        hand.write(word)
    assert [hand.offer(), hand.notice(), hand.request(), hand.progress()] == [OFFER, NOTICE, REQUEST, PROGRESS]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notice.json", "offer.json", "progress.json", "request.json"], "no part of a file is left"


def test_a_word_is_on_the_disk_before_it_takes_the_place_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, seen = LauncherFiles(tmp_path), list[Any]()

    def fsync(fd: int) -> None:
        written = json.loads(Path(os.readlink(f"/proc/self/fd/{fd}")).read_text())
        seen.append((written["steps"], hand.progress()))

    monkeypatch.setattr(os, "fsync", fsync)
    hand.write(PROGRESS)
    hand.write(Progress(attempt=2, steps=8, tokens=80.0, unix_s=1e9))
    assert seen == [(7, None), (8, PROGRESS)]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("request", {"ranks": "2"}),
        ("request", {"ranks": None}),
        ("request", {"not_before_unix_s": "soon"}),
        ("request", {"reason": 5}),
        ("request", {"ranks": 1.5}),
        ("progress", {"steps": None}),
        ("progress", {"tokens": "many"}),
        ("notice", {"by_unix_s": [1]}),
        ("notice", {"ranks": {}}),
        ("offer", {"max_ranks": "8"}),
        ("offer", {"can_wait": "no"}),
        ("offer", {"colour": "red"}),
    ],
)
def test_a_word_with_a_value_of_another_kind_counts_as_none(tmp_path: Path, name: str, changed: dict[str, Any]) -> None:
    """Somebody else's script wrote it: neither the training nor its launcher may stumble over it later."""
    hand = LauncherFiles(tmp_path)
    for word in (OFFER, NOTICE, REQUEST, PROGRESS):
        hand.write(word)
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert getattr(hand, name)() is None


def test_whole_numbers_are_numbers(tmp_path: Path) -> None:
    hand = LauncherFiles(tmp_path)
    (tmp_path / "progress.json").write_text('{"attempt": 2, "steps": 7, "tokens": 70, "unix_s": 1000000000}')
    (tmp_path / "notice.json").write_text('{"attempt": 2, "reason": "power", "by_unix_s": 2000000000}')
    assert hand.progress() == PROGRESS and hand.notice() == Notice(attempt=2, reason="power", by_unix_s=2e9)


def test_moments_are_lines_with_their_time_and_cost_nothing_where_they_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_protocol, "time", SimpleNamespace(time=lambda: 5.0))
    hand = LauncherFiles(tmp_path)
    hand.mark("start", 1, ranks=2)
    hand.mark("step", 1, t_unix_s=4.0)
    lines = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert lines == [
        {"t_unix_s": 5.0, "attempt": 1, "what": "start", "ranks": 2},
        {"t_unix_s": 4.0, "attempt": 1, "what": "step"},
    ]
    LauncherFiles(tmp_path / "gone").mark("start", 1)


def test_the_environment_names_the_folder() -> None:
    found = LauncherFiles.from_env({ENV_DIR: "/a/job"})
    assert found is not None and found.folder == Path("/a/job") and found.exits
    assert LauncherFiles.from_env({ENV_DIR: ""}) is None and LauncherFiles.from_env({}) is None


def test_the_environment_is_this_process_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV_DIR, str(tmp_path))
    found = LauncherFiles.from_env()
    assert found is not None and found.folder == tmp_path


def test_the_code_that_asks_for_another_start_is_that_of_sysexits() -> None:
    """Batch scripts, pod failure policies and restart policies of sites name it."""
    assert EXIT_REQUEUE == os.EX_TEMPFAIL
