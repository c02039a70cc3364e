"""The command: starts on settings, answers, ends by a signal; wrong input is exit code 2 with a line."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from greentrain.cli.app import app
from greentrain.testing.offload_models import decoder, encoder
from tests.helpers.child import in_a_child


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings of two compiled models."""
    folder = tmp_path_factory.mktemp("offload")
    encoder().save(folder / "reward")
    decoder().save(folder / "reference")
    file = folder / "offload.yaml"
    file.write_text(f"reward: {{model: {folder / 'reward'}}}\nreference: {{model: {folder / 'reference'}}}\n")
    return file


@pytest.fixture
def started(settings: Path, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts the command in a process of its own, which does not outlive the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "greentrain", "serve", str(settings), *words]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_it_answers_until_a_signal(started: Callable[..., "subprocess.Popen[str]"], tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    files = [tmp_path / number.name for number in numbers]
    processes = [started("--port", "0", "--token-file", str(file)) for file in files]
    for number, file, process in zip(numbers, files, processes, strict=True):
        assert process.stdout is not None
        line = process.stdout.readline()
        told = re.match(r"reward on emulator, reference on emulator at http://(127.0.0.1:\d+), token in (.+)\n", line)
        assert told is not None and told[2] == str(file), line
        token = file.read_text().strip()
        found = httpx.post(f"http://any:{token}@{told[1]}/classify", json={"input": [1, 2]}, trust_env=False)
        assert found.status_code == 200 and len(found.json()["data"]) == 1
        process.send_signal(number)
        rest = process.communicate(timeout=60.0)[0]
        assert process.returncode == 0 and token not in line + rest, rest


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 2, "either --token-file"),
        (["--no-token", "--host", "0.0.0.0"], 2, "give a token"),
        (["--no-token", "--max-batch", "0"], 2, "batch_sequences"),
        (["--no-token", "--max-body-mib", "nan"], 2, "--max-body-mib is nan"),
        (["--no-token", "--too-long", "cut"], 2, "truncate"),
        (["--no-token", "--port", "70000"], 2, "65535"),
        (["--no-token", "--host", "no..host"], 2, "no..host"),
    ],
)
def test_wrong_input_is_a_line_and_a_code(settings: Path, options: list[str], code: int, words: str) -> None:
    done = CliRunner().invoke(app, ["serve", str(settings), *options])
    assert done.exit_code == code and done.output.startswith("greentrain: ")
    assert words in done.output and done.output.count("\n") == 1


def test_a_port_that_is_taken_is_named(settings: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["serve", str(settings), "--no-token", "--port", str(port)])
    assert done.exit_code == 1 and f"127.0.0.1:{port} cannot be listened at: Address already in use" in done.output
    assert "choose another port" in done.output
    assert done.output.count("\n") == 1


@pytest.mark.long
@in_a_child
def test_a_signal_while_models_load_ends_the_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def loading(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(10.0)
        loaded.append("to the end")

    monkeypatch.setattr("greentrain.rlhf.offload.compiled", loading)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
    file = tmp_path / "offload.yaml"
    file.write_text("reward: {model: somewhere}\n")
    done = CliRunner().invoke(app, ["serve", str(file), "--no-token", "--port", "0"])
    assert done.exit_code == 130 and not loaded


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    for text, words in (
        ("reward: {}", "reward.model is missing"),
        ("{}", "no pass is given"),
        ("[", "is not valid YAML: line"),
    ):
        file = tmp_path / "wrong.yaml"
        file.write_text(text)
        done = CliRunner().invoke(app, ["serve", str(file), "--no-token"])
        assert done.exit_code == 2 and words in done.output
