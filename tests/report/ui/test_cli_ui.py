"""The command: prints a link that opens, ends quietly by a signal; wrong input is exit code 2 with a line."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from greentrain.cli.app import app
from greentrain.cli.ui import _say_next
from greentrain.report.ui.server import PageServer
from tests.report.run_folders import one_rank


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    one_rank(tmp_path / "runs")
    as_json = number is signal.SIGINT
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    stays = "exec > /dev/null 2>&1; while kill -0 $PPID; do sleep 0.05; done"  # as one that Python waits for
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.part; mv {opened}.part {opened}\n{stays}\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "greentrain", "ui", str(tmp_path / "runs"), "--cache", str(tmp_path / "c.duckdb")]
    environ = {**os.environ, "DISPLAY": ":77", "BROWSER": str(browser)}
    process = subprocess.Popen(
        command + (["--json"] if as_json else []),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        link = json.loads(line)["url"] if as_json else line.split()[-1]
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/#token=([\w-]{43})", link)
        assert found is not None, line
        entered = httpx.get(f"{found[1]}/session", headers={"Authorization": f"Bearer {found[2]}"}, trust_env=False)
        assert entered.status_code == 200
        assert re.search(r"For another browser: http://\S+#token=[\w-]{43}\n", process.stderr.readline())
        deadline_s = time.monotonic() + 90.0
        while not (as_json or opened.exists() or time.monotonic() > deadline_s):
            time.sleep(0.02)
        process.send_signal(number)
        rest = process.communicate(timeout=200.0)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0 and rest == ("", "")
    if as_json:
        assert not opened.exists()
    else:
        assert opened.read_text() == link, "a browser was opened where there is a display"


def test_a_link_opens_where_the_terminal_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    one_rank(tmp_path / "runs")
    with PageServer(tmp_path / "runs", cache=tmp_path / "c.duckdb", used=_say_next) as server:
        monkeypatch.setattr(sys, "stderr", Gone())
        word = {"Authorization": f"Bearer {server.link.partition('#token=')[2]}"}
        assert httpx.get(f"{server.url}/session", headers=word, trust_env=False).status_code == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--port", "70000"], "65535"),
        (["--every-s", "0"], "--every-s is 0"),
        (["--name", ""], "--name is ''"),
        (["--token-file", "missing/token"], "cannot be made"),
    ],
)
def test_wrong_input_is_a_line(tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "runs").mkdir()
    found = CliRunner().invoke(app, ["ui", str(tmp_path / "runs"), "--no-open", *options])
    assert found.exit_code == 2 and words in found.output, found.output


@pytest.mark.parametrize("host", ["no..host", "nowhere.invalid"])
def test_a_host_that_is_none_is_a_line(tmp_path: Path, host: str) -> None:
    (tmp_path / "runs").mkdir()
    options = ["--host", host, "--token-file", str(tmp_path / "token"), "--cache", str(tmp_path / "c.duckdb")]
    found = CliRunner().invoke(app, ["ui", str(tmp_path / "runs"), "--no-open", *options])
    assert found.exit_code == 2 and "no address of this machine" in found.output, found.output


def test_a_root_that_is_none_is_a_line(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["ui", str(tmp_path / "nowhere")])
    assert found.exit_code == 2 and "nowhere cannot be read" in found.output
