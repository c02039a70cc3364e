"""Exit codes: 2 and one line for what is wrong, by every command."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from greentrain.cli.app import main
from greentrain.cli.terminal import Commands
from greentrain.errors import (
    CarbonSignalError,
    ConfigError,
    GreenTrainError,
    MeterError,
    MissingExtraError,
    NewerFormatError,
    RunFolderError,
    SessionError,
    TraceError,
    UnknownZoneError,
)
from greentrain.fpga_backend.errors import (
    ArtifactError,
    BatchError,
    DeviceError,
    DeviceLostError,
    OffloadError,
    QueueFullError,
    UnsupportedModelError,
)
from greentrain.rlhf.errors import PassTimeoutError
from tests.helpers.command_line import every_command, greentrain

ESTIMATE = ["estimate", "--tokens", "1e9", "--count", "8", "--zone", "FRA"]
TUNE = ["--metric", "acc", "--target", "0.9"]
PIPELINE = ["--micro-batches", "4", "--tokens", "1e4", "--waiting-w", "70"]
WRONG = {
    "doctor": [["-c", "absent.yaml"], ["-c", "zone.yaml"]],
    "measure": [["-c", "wrong.yaml", "--", "true"], ["-c", "zone.yaml", "--", "true"], ["--name", "a/b", "--", "true"]],
    "report": [["absent"], ["empty"], ["--all", "absent"], ["--all", "empty", "--by", "colour"]],
    "compare": [["absent", "--", "empty"], ["empty", "--", "absent", "--values", "absent.csv"]],
    "audit": [["--verify", "absent.json"], ["empty", "--key-file", "absent"]],
    "simulate": [["absent.yaml"], ["--run", "absent"], ["zone.yaml", "--trace", "absent.csv"]],
    "fleet simulate": [[], ["--zones", "Atlantis"], ["--trace", "absent.csv"], ["--zones", "FR", "--policy", "best"]],
    "fleet plan": [["absent.yaml"], ["torn.yaml"]],
    "fleet run": [["absent.yaml"], ["torn.yaml", "--dry-run"]],
    "fleet explain": [["gpt", "absent.yaml"]],
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
    "fpga explore": [
        ["no-such-model", "--assume"], ["llama-3-8b", "--card", "U1"], ["llama-3-8b", "--batch", "0"],
        ["torn", "--assume"], ["foreign", "--assume"], ["unsupported", "--assume"], ["negative", "--assume"],
    ],
    "fpga ranks": [["empty", "absent.jsonl"], ["empty", "torn.yaml"], ["empty", "torn.yaml", "--precision", "int2"]],
    "rlhf simulate": [["absent.yaml"], ["published", "--mode", "soon"]],
    "rlhf waterfall": [["absent.yaml"]],
    "rlhf sensitivity": [["published", "--over", "colour"], ["published", "--over", "kl-weight"]],
    "event power": [["absent", "--hours", "1", "--percent", "70"], ["empty", "--hours", "1"]],
    "tune batch": [
        [*TUNE, "--batches", "32"], [*TUNE, "--batches", "32", "--", "true"],
        [*TUNE, "--batches", "32", "--trials", "0", "--", "true", "{batch}"],
        [*TUNE, "--batches", "32", "--objective", "cost", "--", "true", "{batch}"],
    ],
    "tune pipeline": [["absent.csv", *PIPELINE], ["torn.yaml", *PIPELINE]],
    "daemon": [["-c", "absent.yaml"], ["-c", "torn.yaml"]],
    "serve": [["absent.yaml", "--no-token"], ["absent.yaml"], ["torn.yaml", "--no-token", "--port", "0"]],
    "ui": [["absent", "--no-open"], ["empty", "--no-open", "--every-s", "0"]],
}  # fmt: skip
NO_INPUT = {"fpga devices"}
PASSES_ON = {"measure", "launch", "tune batch"}
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
    models = {
        "torn/artifact.json": '{"contract": 1, "program": {"operators": [',
        "foreign/artifact.json": '{"contract": 1, "program": {"operators": 7}}',
        "unsupported/config.json": '{"model_type": "abacus"}',
        "negative/config.json": '{"model_type": "llama", "hidden_size": -64}',
        "torn.yaml": "device: emulator\nreward: {model: foreign}\n",
    }
    for name, text in models.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")
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


@pytest.mark.parametrize(
    ("code", "error"),
    [(2, error) for error in (ConfigError, UnknownZoneError, TraceError, CarbonSignalError, RunFolderError)]
    + [(2, error) for error in (NewerFormatError, ArtifactError, BatchError, UnsupportedModelError)]
    + [(1, error) for error in (GreenTrainError, MeterError, MissingExtraError, SessionError)]
    + [(1, error) for error in (OffloadError, DeviceError, DeviceLostError, QueueFullError, PassTimeoutError)],
)
def test_an_error_ends_any_command_with_its_code_and_a_sentence(
    code: int, error: type[GreenTrainError], capfd: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer(cls=Commands)

    @app.command()
    def fails() -> None:
        raise error("batch 3 of\n\x1b[2Jnothing")

    app.callback()(lambda: None)
    with pytest.raises(SystemExit) as ended:
        app(["fails"])
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (code, "")
    assert err.startswith("greentrain: batch 3 of") and err.count("\n") == 1 and "\x1b" not in err


def test_the_process_ends_with_the_code(folder: Path) -> None:
    done = greentrain("doctor", "-c", "absent.yaml", cwd=folder)
    assert done.returncode == 2 and done.stderr.startswith("greentrain: ") and not done.stdout


def test_what_is_not_installed_is_1(folder: Path) -> None:
    code = "import sys; sys.modules['fastapi'] = None; from greentrain.cli import main; main()"
    command = [sys.executable, "-c", code, "ui", "empty", "--no-open"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=240)
    assert done.returncode == 1 and "greentrain-torch[ui]" in done.stderr and done.stderr.count("\n") == 1
