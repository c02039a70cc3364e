"""Exit codes: 2 and one line for what is wrong, by every command."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from greentrain.cli.app import main
from tests.helpers.command_line import every_command, greentrain

ESTIMATE = ["estimate", "--tokens", "1e9", "--count", "8", "--zone", "FRA"]
WRONG = {
    "doctor": [["-c", "absent.yaml"], ["-c", "zone.yaml"]],
    "measure": [["-c", "wrong.yaml", "--", "true"], ["-c", "zone.yaml", "--", "true"], ["--name", "a/b", "--", "true"]],
    "report": [["absent"], ["empty"], ["--all", "absent"], ["--all", "empty", "--by", "colour"]],
    "audit": [["--verify", "absent.json"], ["empty", "--key-file", "absent"]],
    "simulate": [["absent.yaml"], ["--run", "absent"], ["zone.yaml", "--trace", "absent.csv"]],
    "plan": [["--tokens", "1e9", "--deadline", "48", "--zones", "Atlantis"], ["--tokens", "-1", "--deadline", "48"]],
    "estimate": [
        [*ESTIMATE[1:], "--device", "abacus", "--config", "llama-3-8b"],
        [*ESTIMATE[1:], "--device", "h100", "--config", "no-such-model"],
        ["--tokens", "1e9", "--count", "8", "--device", "h100", "--config", "llama-3-8b", "--zone", "Atlantis"],
    ],
    "launch": [["--status", "empty"], ["-c", "absent.yaml", "--", "true"], ["--width", "x", "--", "true"]],
    "config check": [["absent.yaml"], ["wrong.yaml"]],
    "config show": [["absent.yaml"]],
    "config schema": [["--out", "absent/schema.json"]],
    "config docs": [["--out", "absent/docs.md"]],
    "watch": [["absent"], ["empty"], ["empty", "--every-s", "0"]],
    "export dashboard": [["--out", "absent/dashboard.json"]],
    "export alerts": [["--out", "absent/alerts.yaml"]],
    "fpga explore": [["no-such-model", "--assume"], ["llama-3-8b", "--card", "U1"], ["llama-3-8b", "--batch", "0"]],
    "rlhf simulate": [["absent.yaml"], ["published", "--mode", "soon"]],
    "rlhf waterfall": [["absent.yaml"]],
    "rlhf sensitivity": [["published", "--over", "colour"]],
    "serve": [["absent.yaml", "--no-token"], ["absent.yaml"]],
    "ui": [["absent", "--no-open"], ["empty", "--no-open", "--every-s", "0"]],
}  # fmt: skip
NO_INPUT = {"fpga devices"}
PASSES_ON = {"measure", "launch"}
"""Take options that they do not know as those of a program."""


def test_every_command_is_asked() -> None:
    assert WRONG.keys() | NO_INPUT == every_command().keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold configurations that are wrong, and an empty folder."""
    path = tmp_path_factory.mktemp("wrong")
    (path / "wrong.yaml").write_text("pwer: {}\n", encoding="utf-8")
    (path / "zone.yaml").write_text("carbon: {zone: Atlantis}\n", encoding="utf-8")
    (path / "empty").mkdir()
    return path


def _ended(
    words: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[object, str, str]:
    """Run the command line in this process; return exit code, standard output and standard error."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["greentrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capfd.readouterr()


@pytest.mark.parametrize(
    ("command", "words"), [(command, words) for command, calls in WRONG.items() for words in calls], ids=str
)
def test_wrong_input_is_2_and_a_line(
    command: str,
    words: Sequence[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = {path.name for path in folder.iterdir()}
    code, out, err = _ended([*command.split(), *words], folder, monkeypatch, capfd)
    assert (code, out) == (2, ""), err
    assert err.startswith("greentrain") and err.count("\n") == 1
    assert {path.name for path in folder.iterdir()} - before <= {"runs"}


@pytest.mark.parametrize("command", sorted(every_command().keys() - PASSES_ON))
def test_an_option_that_is_not_there_is_2(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _ended([*command.split(), "--nonsense"], folder, monkeypatch, capfd)
    assert (code, out) == (2, "") and "--nonsense" in err


def test_the_process_ends_with_the_code(folder: Path) -> None:
    done = greentrain("doctor", "-c", "absent.yaml", cwd=folder)
    assert done.returncode == 2 and done.stderr.startswith("greentrain: ") and not done.stdout


def test_what_is_not_installed_is_1(folder: Path) -> None:
    code = "import sys; sys.modules['fastapi'] = None; from greentrain.cli import main; main()"
    command = [sys.executable, "-c", code, "ui", "empty", "--no-open"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=240)
    assert done.returncode == 1 and "greentrain-torch[ui]" in done.stderr and done.stderr.count("\n") == 1
