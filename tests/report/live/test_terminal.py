"""The live line shows what is known, once a second, and leaves the terminal as it was."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from rich.text import Text

from greentrain import GreenSession
from greentrain.report.live.terminal import LiveLine, live_text
from greentrain.types import CarbonPoint

SHOWN = re.compile(r"\x1bD\x1bM\x1b7\x1bD\r\x1b\[2K(.+?)\x1b8")
ERASED = "\x1bD\x1bM\x1b7\x1bD\r\x1b[2K\x1b8"


class Nowhere:
    """A grid of which nothing is known."""

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        return CarbonPoint(t0_unix_s=t0_unix_s, t1_unix_s=t1_unix_s, g_per_kwh=None, zone="XX", source="nobody")

    def describe(self) -> dict[str, str]:
        return {"zone": "XX"}


def _text(tmp_path: Path, meters: str, wanted: str, nowhere: bool = False, tokens: int = 0, samples: int = 0) -> str:
    """Return the line of a run that goes on, once a part is in it."""
    config = {
        "run": {"dir": str(tmp_path), "report": False, "book_s": 0.1},
        "power": {"meters": meters},
        "carbon": {"g_per_kwh": 400.0},
    }
    with GreenSession(config, signal=Nowhere() if nowhere else None) as green:
        green.step(tokens=tokens, samples=samples)
        run, end_s = green.active(), time.monotonic() + 60.0
        assert run is not None
        while wanted not in (text := live_text(run)) and time.monotonic() < end_s:
            time.sleep(0.02)
        return text


def test_all_figures_that_are_known(tmp_path: Path) -> None:
    text = _text(tmp_path, "cpu_model", "tokens/J", tokens=1000)
    watts, joules, grams = r"[\d.]+ [mk]?W", r"[\d.]+ [mk]?J \(modelled\)", r"[\d.]+ [mµ]g CO₂e"
    for pattern in (watts, joules, grams, r"grid 400 g/kWh", r"[\d.]+ tokens/J", r"step 1$"):
        assert re.search(pattern, text), (pattern, text)


def test_samples_where_there_are_no_tokens_and_no_grams_where_the_grid_is_not_known(tmp_path: Path) -> None:
    text = _text(tmp_path, "cpu_model", "samples/J", nowhere=True, samples=8)
    assert "samples/J" in text and "tokens/J" not in text
    assert "CO₂e" not in text and "g/kWh" not in text


def test_no_sensor_is_missing_energy_and_not_0_joules(tmp_path: Path) -> None:
    text = _text(tmp_path, "null", "missing", tokens=5)
    assert "missing" in text and " J" not in text and " W" not in text


def test_where_it_is_narrow_whole_parts_go_and_the_energy_last(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path), "report": False}, "carbon": {"g_per_kwh": 400.0, "zone": "[x]"}}
    with GreenSession(config | {"power": {"meters": "cpu_model", "sample_s": 0.05}}) as green:
        green.step(tokens=1000)
        time.sleep(0.3)
        green.state_dict()  # books
        run = green.active()
    assert run is not None  # its books are closed: it says the same every time

    def plain(columns: int | None) -> str:
        return Text.from_markup(live_text(run, columns)).plain

    whole = plain(None)
    parts = whole.split("  ")
    assert len(parts) == 7 and plain(len(whole)) == whole
    assert plain(len(whole) - 1) == whole.replace("  grid 400 g/kWh ([x])", "")
    for columns in reversed(range(len(whole))):
        wider, text = plain(columns + 1).split("  "), plain(columns)
        assert len(text) <= columns
        assert not text or text.split("  ") == [part for part in wider if part in text.split("  ")]
    (energy,) = (part for part in parts if part.endswith("(modelled)"))
    assert plain(len(energy)) == energy and plain(len(energy) - 1) == ""


def test_there_is_no_line_where_the_output_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    assert LiveLine.open() is None
    assert (sys.stdout, sys.stderr) == before


def _in_a_terminal(code: str, cwd: Path, columns: int = 90, term: str = "xterm-256color", **variables: str) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")} | {"TERM": term}
    environ |= variables
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environ
    )
    os.close(theirs)
    out = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:
            break
        if not data:
            break
        out += data
    os.close(ours)
    told = out.decode(variables.get("PYTHONIOENCODING", "utf-8"))
    assert process.wait(timeout=240) == 0, told
    return told


SCRIPT = """
import sys, time
from greentrain import GreenSession
before = sys.stdout, sys.stderr
config = {"run": {"report": False, **OPTIONS}, "power": {"meters": "cpu_model"}}
begun_s = time.monotonic()
with GreenSession(config) as green:
    print("x" * 120)
    for i in range(32):
        sys.stderr.write(f"\\rbar {i}")
        time.sleep(0.1)
        green.step(tokens=10)
    print("\\n[bold]done[/]")
assert (sys.stdout, sys.stderr) == before
print("after", int(time.monotonic() - begun_s))
"""


def test_in_a_terminal_a_line_is_shown_each_second_and_nothing_else_changes(tmp_path: Path) -> None:
    out = _in_a_terminal(SCRIPT.replace("OPTIONS", "{}"), tmp_path)
    shown = SHOWN.findall(out)
    seconds = int(out.split()[-1])
    assert 1 <= len(shown) <= seconds + 1
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", text) for text in shown]
    assert all(text.startswith("greentrain") and len(text) < 90 for text in plain)
    assert "J (modelled)" in plain[-1]
    assert "\x1b[?25" not in out, "the cursor must never be hidden: a killed process could not bring it back"
    bars = "".join(f"\rbar {i}" for i in range(32))
    rest = SHOWN.sub("", out.replace(ERASED, ""))
    assert rest == "x" * 120 + "\r\n" + bars + f"\r\n[bold]done[/]\r\nafter {seconds}\r\n"
    assert out.rindex(ERASED) > out.rindex(shown[-1]), "the last line must be taken away"


@pytest.mark.parametrize(("options", "term"), [("{'live': False}", "xterm"), ("{}", "dumb")])
def test_no_line_where_it_is_not_wanted_or_the_terminal_cannot(tmp_path: Path, options: str, term: str) -> None:
    out = _in_a_terminal(SCRIPT.replace("OPTIONS", options).replace("range(32)", "range(12)"), tmp_path, term=term)
    assert "\x1b" not in out and "greentrain" not in out


NARROW = """
import time
from greentrain import GreenSession
from greentrain.report.live.terminal import LiveLine, live_text
shown, update = [], LiveLine.update
LiveLine.update = lambda line, run: (shown.append("CO" in live_text(run)), update(line, run))
config = {"run": {"report": False, "book_s": 0.1}, "power": {"meters": "cpu_model"}, "carbon": {"g_per_kwh": 400.0}}
with GreenSession(config) as green:
    while not any(shown[:-1]):  # the last may not be on the terminal yet
        time.sleep(0.02)
"""


def test_a_narrow_terminal_of_another_encoding_has_whole_figures(tmp_path: Path) -> None:
    out = _in_a_terminal(NARROW, tmp_path, columns=60, PYTHONIOENCODING="latin-1")
    last = re.sub(r"\x1b\[[0-9;]*m", "", SHOWN.findall(out)[-1])
    assert re.fullmatch(r"greentrain  [\d.]+ [umk]?W  [\d.]+ [umk]?J \(modelled\)  [\d.]+ [num]?g CO2e", last), last


def test_a_block_in_a_terminal_names_its_report_even_after_an_error(tmp_path: Path) -> None:
    code = """
import contextlib
from greentrain import GreenSession
with contextlib.suppress(KeyError), GreenSession({"power": {"meters": "null"}}) as green:
    print("in")
    raise KeyError
print("after")
"""
    found = re.fullmatch(
        r"in\r\ngreentrain: report (\S+)\r\nafter\r\n",
        SHOWN.sub("", _in_a_terminal(code, tmp_path)).replace(ERASED, ""),
    )
    assert found and found[1].endswith("report.html") and (tmp_path / found[1]).is_file()


def test_an_open_progress_bar_makes_room_for_the_report(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    code = """
from tqdm import tqdm
from greentrain import GreenSession
with tqdm(total=2, desc="bar") as bar, GreenSession({"run": {"live": False}, "power": {"meters": "null"}}):
    bar.update()
"""
    assert re.search(r"\rgreentrain: report \S+report.html\r\n", _in_a_terminal(code, tmp_path))


def test_a_block_elsewhere_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with GreenSession({"run": {"dir": str(tmp_path)}, "power": {"meters": "null"}}) as green:
        pass
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    assert green.report_path is not None and green.report_path.is_file()


def test_a_fork_can_print_while_the_line_is_shown(tmp_path: Path) -> None:
    code = """
import os, time
from greentrain import GreenSession
with GreenSession({"run": {"report": False}, "power": {"meters": "cpu_model"}}):
    time.sleep(1.3)
    for i in range(20):
        if os.fork() == 0:
            print("child", flush=True)
            os._exit(0)
        os.wait()
"""
    assert _in_a_terminal(code, tmp_path).count("child\r\n") == 20
