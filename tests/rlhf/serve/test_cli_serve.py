"""The command: starts on settings, answers, ends by a signal; wrong input is exit code 2 with a line."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from greentrain.cli_serve import serve
from greentrain.testing.offload_models import decoder, encoder

APP = typer.Typer()
APP.command()(serve)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings of two compiled models."""
    folder = tmp_path_factory.mktemp("offload")
    encoder().save(folder / "reward")
    decoder().save(folder / "reference")
    file = folder / "offload.yaml"
    file.write_text(f"reward: {{model: {folder / 'reward'}}}\nreference: {{model: {folder / 'reference'}}}\n")
    return file


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_a_signal(settings: Path, tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "token"
    port = 18000 + os.getpid() % 20000 + int(number)
    found: list[httpx.Response] = []

    def ask() -> None:
        try:
            end_s = time.monotonic() + 20.0
            while time.monotonic() < end_s:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).raise_for_status()
                    break
                except httpx.HTTPError:
                    time.sleep(0.05)
            url = f"http://any:{file.read_text().strip()}@127.0.0.1:{port}/classify"
            found.append(httpx.post(url, json={"input": [1, 2]}, trust_env=False))
        finally:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    asking = threading.Thread(target=ask)
    asking.start()
    done = CliRunner().invoke(APP, [str(settings), "--port", str(port), "--token-file", str(file)])
    asking.join()
    assert done.exit_code == 0, done.output
    assert f"reward on emulator, reference on emulator at http://127.0.0.1:{port}, token in {file}" in done.output
    assert file.read_text().strip() not in done.output
    assert found[0].status_code == 200 and len(found[0].json()["data"]) == 1
    assert signal.getsignal(number) is before


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
    done = CliRunner().invoke(APP, [str(settings), *options])
    assert done.exit_code == code and done.output.startswith("greentrain serve: ")
    assert words in done.output and done.output.count("\n") == 1


def test_a_port_that_is_taken_is_named(settings: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(APP, [str(settings), "--no-token", "--port", str(port)])
    assert done.exit_code == 1 and f"127.0.0.1:{port} cannot be listened at: Address already in use" in done.output
    assert "choose another port" in done.output
    assert done.output.count("\n") == 1


def test_a_signal_while_models_load_ends_the_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loading(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10.0)

    monkeypatch.setattr("greentrain.rlhf.opening.compiled", loading)
    file = tmp_path / "offload.yaml"
    file.write_text("reward: {model: somewhere}\n")
    began_s = time.monotonic()
    done = CliRunner().invoke(APP, [str(file), "--no-token", "--port", "0"])
    assert done.exit_code == 130 and time.monotonic() - began_s < 5.0


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    for text, words in (
        ("reward: {}", "reward.model is missing"),
        ("{}", "no pass is given"),
        ("[", "cannot be read"),
    ):
        file = tmp_path / "wrong.yaml"
        file.write_text(text)
        done = CliRunner().invoke(APP, [str(file), "--no-token"])
        assert done.exit_code == 2 and words in done.output
