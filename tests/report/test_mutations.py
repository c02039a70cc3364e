"""Odd but valid JSON in a run folder: every reader answers, or says in a sentence what is wrong; none raises else.

The fast tier tries about a hundred mutations, ``--long`` two hundred; ``GREENTRAIN_CHAOS_SEED=any`` two thousand.
"""

import dataclasses
import io
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from greentrain.cli.app import app
from greentrain.cli.terminal import console
from greentrain.errors import GreenTrainError
from greentrain.ledger.reader import sums_of_others
from greentrain.ledger.run_folder import is_finished
from greentrain.report import RunReport, compare, table
from greentrain.report.fleet.audit import audit
from greentrain.report.fleet.reading import read_folder
from greentrain.report.live import follow_view
from greentrain.report.live.follow import RunFollow
from greentrain.utils.display import plain
from tests.report.mutations import mutate, sound
from tests.report.run_folders import one_rank

MANY = os.environ.get("GREENTRAIN_CHAOS_SEED") == "any"
LONGEST_S = 10.0
"""One reading of a folder of 20 kB, on a busy machine."""


def _shown(*what: Any) -> str:
    """Return what the commands print of it, into a pipe."""
    out = io.StringIO()
    console(file=out).print(*what)
    return out.getvalue()


class Readers:
    """All that read a run folder, each as a command calls it; text for people is returned."""

    def __init__(self, root: Path) -> None:
        self.other = RunReport.read(one_rank(root)).summary

    def report(self, folder: Path) -> str:
        found = RunReport.read(folder)
        found.write()
        one, two = (compare.compare(both) for both in itertools.permutations([found.summary, self.other]))
        json.dumps([found.summary, one, two], allow_nan=False)
        return _shown(table.render(found.summary), one, two) + str(one)

    def watch(self, folder: Path) -> str:
        now = RunFollow(folder).look()
        json.dumps(dataclasses.asdict(now), allow_nan=False)
        return follow_view.line(now) + follow_view.final_line(now) + _shown(follow_view.frame(now))

    def fleet(self, folder: Path) -> str:
        return read_folder(folder).row.error or ""

    def audit(self, folder: Path) -> str:
        json.dumps(audit(folder), allow_nan=False)
        return ""

    def peer(self, folder: Path) -> str:
        sums_of_others(folder, 5, 6)
        is_finished(folder / "rank-00000.jsonl")
        return ""


def _check(tmp_path: Path, which: int, seeds: range) -> None:
    readers = Readers(tmp_path / "other")
    calls: list[Callable[[Path], str]] = [
        readers.report, readers.watch, readers.fleet, readers.audit, readers.peer,
    ]  # fmt: skip
    folder = sound(tmp_path, which)
    originals = {path.name: path.read_bytes() for path in [folder / "run.json", *sorted(folder.glob("rank-*.jsonl"))]}
    for seed in seeds:
        done = mutate(folder, originals, seed)
        for call in calls:
            begun_s = time.process_time()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    text = call(folder)
            except GreenTrainError as error:
                text = plain(str(error))
                assert len(text) < 2000, (seed, done)
            except BaseException as error:
                raise AssertionError(f"seed {seed}, {call.__name__}, {done}") from error
            assert text == plain(text), (seed, call.__name__, done)
            assert time.process_time() - begun_s < LONGEST_S, (seed, call.__name__, done)


@pytest.mark.sweep
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("part", range(10))
def test_odd_json_ends_in_an_answer_or_in_a_sentence(tmp_path: Path, which: int, part: int) -> None:
    _check(tmp_path, which, range(10 * part, 10 * part + 10))


def _end(tmp_path: Path, seeds: range) -> None:
    """Run every command on mutated folders: it ends as asked, or with 2 and one line that says what is wrong."""
    folder, other = sound(tmp_path, 1), one_rank(tmp_path / "other")
    originals = {name: (folder / name).read_bytes() for name in ("run.json", "rank-00000.jsonl")}
    commands = (
        ["report", str(folder)],
        ["report", str(folder), "--json"],
        ["report", str(folder), str(other)],
        ["report", "--all", str(tmp_path), "--by", "project,zone", "--cache", str(tmp_path / "index")],
        ["watch", str(folder), "--once"],
        ["audit", str(folder)],
    )
    for seed in seeds:
        done = mutate(folder, originals, seed)
        for words in commands:
            result = CliRunner().invoke(app, words)
            why = (seed, words, done, result.stderr)
            assert result.exit_code in (0, 2) and isinstance(result.exception, SystemExit | None), why
            assert result.stderr.count("\n") == (result.exit_code != 0), why
            assert result.exit_code == 0 or result.stderr.startswith("greentrain: "), why
            assert result.stderr == plain(result.stderr), why


def test_commands_end_with_an_exit_code_and_one_line(tmp_path: Path) -> None:
    _end(tmp_path, range(5))


@pytest.mark.long
def test_commands_end_so_on_many_more(tmp_path: Path) -> None:
    _end(tmp_path, range(100, 160 if MANY else 120))


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("part", range(9 if MANY else 1))
def test_many_more_end_so(tmp_path: Path, which: int, part: int) -> None:
    _check(tmp_path, which, range(100 * part + 100, 100 * part + (200 if MANY else 150)))
