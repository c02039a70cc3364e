"""Pipes and terminals: colours, widths, progress, Ctrl-C, and readers that go away."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from greentrain import GreenSession
from tests.helpers.command_line import COMMAND, environment, greentrain, in_terminal
from tests.simulator.grids import wandering
from tests.simulator.planning import YAML, write_csv

PROJECT = "a project whose name is far longer than eighty columns, which is what a pipe has where nobody says otherwise"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d)(?:;\d+)*m")
SIMULATE = [
    "simulate", "plan.yaml", "--trace", "one.csv", "--windows", "2", "--pictures", "none", "--out", "simulated"
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold a run of a project with a long name, and what a simulation needs."""
    path = tmp_path_factory.mktemp("terminal")
    config = {
        "run": {
            "dir": str(path / "runs"),
            "id": "A",
            "live": False,
            "report": False,
            "tags": {"project": PROJECT},
        },
        "power": {"meters": "cpu_model"},
    }
    with GreenSession(config) as green:
        time.sleep(0.1)
        green.step(tokens=10)
    (path / "actions.yaml").write_text(YAML, encoding="utf-8")
    (path / "plan.yaml").write_text(
        "carbon: {signal: typical, zone: US-CAL-CISO}\n"
        "policy: {name: mpc, tokens: 5e7, deadline_h: 24, actions: actions.yaml}\n",
        encoding="utf-8",
    )
    write_csv(path / "one.csv", wandering(40 * 24))
    return path


def test_a_terminal_that_knows_ascii_alone_ends_no_command(folder: Path) -> None:
    done = greentrain("watch", "runs/A", "--once", cwd=folder, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# -- widths and colours -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [{}, {"FORCE_COLOR": "1"}], ids=["", "forced"])
def test_a_pipe_cuts_nothing(folder: Path, force: dict[str, str]) -> None:
    done = greentrain("report", "--all", "runs", cwd=folder, **force)
    (line,) = (line for line in done.stdout.splitlines() if PROJECT in line)
    assert "Wh" in line and "\N{HORIZONTAL ELLIPSIS}" not in done.stdout
    assert len(line) < 400  # as wide as it needs to be
    assert ("\x1b" in done.stdout) == bool(force)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    [
        ["doctor"],
        ["report", "runs/A"],
        ["fpga", "explore", "llama-3-8b", "--assume"],
        ["rlhf", "simulate", "published"],
    ],
)
def test_nothing_steers_a_pipe_and_no_cell_is_cut(folder: Path, words: Sequence[str]) -> None:
    done = greentrain(*words, cwd=folder)
    assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout


def test_columns_is_the_width_of_a_pipe_too(folder: Path) -> None:
    done = greentrain("report", "--all", "runs", cwd=folder, COLUMNS="70")
    assert max(map(len, done.stdout.splitlines())) <= 70 and PROJECT not in done.stdout


def test_a_terminal_has_colours_and_its_own_width(folder: Path) -> None:
    code, shown, _ = in_terminal(["report", "runs/A"], cwd=folder, columns=60)
    assert code == 0 and COLOUR.search(shown)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(len(line) for line in plain.splitlines() if not line.startswith("Report: ")) <= 60


def test_no_color_and_a_dumb_terminal_are_respected(folder: Path) -> None:
    _, shown, _ = in_terminal(["report", "runs/A"], cwd=folder, NO_COLOR="1")
    assert "modelled" in shown and not COLOUR.search(shown)
    _, shown, _ = in_terminal(["report", "runs/A"], cwd=folder, TERM="dumb")
    assert "modelled" in shown and "\x1b" not in shown


def test_colours_can_be_forced_into_a_pipe(folder: Path) -> None:
    assert COLOUR.search(greentrain("report", "runs/A", cwd=folder, FORCE_COLOR="1", TERM="xterm-256color").stdout)


# -- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_on_standard_error_where_somebody_looks(folder: Path) -> None:
    code, shown, piped = in_terminal(SIMULATE, cwd=folder, which=["stderr"])
    assert code == 0 and "simulating" in shown and "simulating" not in piped and "mpc" in piped
    code, shown, piped = in_terminal(["report", "--all", "runs", "--cache", "new"], cwd=folder, which=["stderr"])
    assert code == 0 and "runs" in shown and PROJECT in piped and "\x1b" not in piped


@pytest.mark.parametrize("words", [[*SIMULATE, "--json"], ["report", "--all", "runs", "--json", "--cache", "other"]])
def test_there_is_no_progress_beside_json(folder: Path, words: Sequence[str]) -> None:
    assert in_terminal(words, cwd=folder, which=["stderr"])[1] == ""


def test_there_is_no_progress_in_a_pipe(folder: Path) -> None:
    assert greentrain(*SIMULATE, cwd=folder).stderr == ""
    _, shown, piped = in_terminal(SIMULATE, cwd=folder, which=["stdout"])
    assert "mpc" in shown and "simulating" not in shown + piped


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["doctor", "-c", "slow"], ["config", "check", "slow"], ["simulate", "slow"]])
def test_ctrl_c_is_130_and_a_line(tmp_path: Path, words: Sequence[str]) -> None:
    os.mkfifo(tmp_path / "slow")
    process = subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    )
    try:
        writer = os.open(tmp_path / "slow", os.O_WRONLY)  # until the command reads
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
        os.close(writer)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, err) == (130, "", "greentrain: interrupted\n")


@pytest.mark.sweep
@pytest.mark.parametrize("reader", ["head -n 1", "true"])
@pytest.mark.parametrize("words", ["config docs", "report runs/A", "rlhf simulate published --json"])
def test_a_reader_that_goes_away_is_no_error(folder: Path, words: str, reader: str) -> None:
    code = "import sys; from greentrain.cli import main; sys.argv[0] = 'greentrain'; main()"
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {words} | {reader}', sys.executable, code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
