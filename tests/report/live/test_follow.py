"""A run that goes on, seen from outside: by its files alone, while it trains, when it ends, and when it is killed."""

import contextlib
import io
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.errors import NewerFormatError, RunFolderError
from greentrain.ledger.reader import read_run
from greentrain.report.live.follow import RunFollow, RunNow, find_run
from greentrain.report.live.follow_view import final_line, frame, line
from greentrain.types import Topology
from tests.helpers.flat_meter import FlatMeter
from tests.report.run_folders import GPU, Folder, device, entry

SIGNAL = ConstantSignal(360.0, zone="test", source="test")
JOB = """
    import select, sys
    from greentrain import GreenSession
    from greentrain.carbon.constant import ConstantSignal
    from tests.helpers.flat_meter import FlatMeter
    config = {"run": {"dir": sys.argv[1], "report": False, "book_s": 0.2, "name": "job"}, "power": {"sample_s": 0.02},
              "policy": {"tokens": 1e6}}
    with GreenSession(config, meter=FlatMeter(), signal=ConstantSignal(360.0, zone="test", source="test")) as green:
        green.gear("bf16")
        while not select.select([sys.stdin], [], [], 0.02)[0]:  # until its standard input is closed
            green.step(tokens=100)
"""


@contextmanager
def training(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a training, which ends when its standard input is closed."""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(JOB), str(folder)], stdin=subprocess.PIPE)
    with process:
        try:
            yield process
        finally:
            process.kill()


def watch(*words: str, **environ: str) -> "subprocess.Popen[str]":
    """Start ``greentrain watch``."""
    keep = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TERM")}
    code = "import sys; from greentrain.cli import main; sys.argv[0] = 'greentrain'; main()"
    command = [sys.executable, "-c", code, "watch", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**keep, **environ})


def watched(*words: str, **environ: str) -> tuple[int, str, str]:
    process = watch(*words, **environ)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def look_until(follow: RunFollow, wanted: Callable[[RunNow], bool], longest_s: float = 90.0) -> RunNow:
    end_s = time.monotonic() + longest_s
    while not wanted(now := follow.look()):
        assert time.monotonic() < end_s, now
        time.sleep(0.05)
    return now


def found(runs: Path, longest_s: float = 90.0) -> Path:
    """Return the folder of the run that a job has begun."""
    end_s = time.monotonic() + longest_s
    while True:
        try:
            folder = find_run(runs)
            if (folder / "run.json").exists() and (folder / "rank-00000.jsonl").read_text().count("entry") > 1:
                return folder
        except RunFolderError:
            pass
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_training_is_seen_while_it_goes_on_and_until_it_ends(tmp_path: Path) -> None:
    with training(tmp_path) as process:
        follow = RunFollow(found(tmp_path))
        now = look_until(follow, lambda now: now.steps > 20)
        assert (now.status, now.over, now.name, now.gears) == ("running", False, "job", ["bf16"])
        assert now.power_w == pytest.approx(250.0, rel=0.1)
        assert now.tokens == 100 * now.steps and now.energy_j["measured"] == pytest.approx(
            4 * now.energy_j["modelled"], rel=0.05
        )
        assert now.operational_g == pytest.approx((now.total_j or 0) / 1e4)
        assert now.tokens_per_s is not None and now.steps_per_s == pytest.approx(now.tokens_per_s / 100, rel=0.01)
        assert now.eta_s == pytest.approx((1e6 - now.tokens) / now.tokens_per_s)
        assert now.tokens_per_j == pytest.approx(now.tokens_per_s / 250.0, rel=0.1)
        plain, documents = watch(str(tmp_path), "--every-s", "0.3"), watch(str(tmp_path), "--json")
        with plain, documents:
            assert plain.stdout and plain.stderr and documents.stdout and process.stdin
            lines, told = [plain.stdout.readline() for _ in range(3)], documents.stdout.readline()
            process.stdin.close()
            lines += plain.stdout.readlines()
            told += documents.stdout.read()
            assert (plain.stderr.read(), plain.wait(timeout=120), documents.wait(timeout=120)) == ("", 0, 0)
        process.wait()
    assert all("running" in one and "80% measured" in one for one in lines[:-1])
    totals = read_run(found(tmp_path)).totals
    assert re.search(rf"finished after .* step {totals.steps}\b", lines[-1]) and "\x1b" not in "".join(lines)
    shots = [json.loads(one) for one in told.splitlines()]
    assert [shot["over"] for shot in shots] == [False] * (len(shots) - 1) + [True]
    assert sum(shots[-1]["energy_j"].values()) == pytest.approx(totals.energy_j)
    assert shots[-1]["power_w"] is None and shots[-1]["ranks"][0]["devices"][0]["power_w"] is None


def test_a_killed_run_says_so_and_ends(tmp_path: Path) -> None:
    with training(tmp_path) as process:
        folder = found(tmp_path)
        plain = watch(str(folder), "--every-s", "0.2")
        follow = RunFollow(folder)
        look_until(follow, lambda now: now.steps > 5)
        time.sleep(1.0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        out, _ = plain.communicate(timeout=240)
    assert "was killed after" in out.splitlines()[-1]
    now = follow.look()
    assert (now.status, now.over, now.power_w) == ("killed", True, None)
    elsewhere = RunFollow(_of_another_host(folder, tmp_path / "copy"))
    assert elsewhere.look().status == "running", "who is on another machine cannot know yet"
    later = RunFollow(tmp_path / "copy", unix_s=lambda: time.time() + 120)
    assert (later.look().status, later.look().over) == ("silent", False)


def test_a_process_that_nobody_has_waited_for_is_dead(tmp_path: Path) -> None:
    with training(tmp_path) as process:
        follow = RunFollow(found(tmp_path))
        process.kill()  # a zombie until wait(), as below a container's first process that never waits
        now = look_until(follow, lambda now: now.status != "running")
        assert process.returncode is None and (now.status, now.over) == ("killed", True)


def test_a_clock_that_was_set_makes_no_dead_of_the_living(tmp_path: Path) -> None:
    """The books go on by the clock of their start, so after a step of an hour they lie an hour back."""
    with session(tmp_path) as green:
        green.step()
        look_until(RunFollow(tmp_path / "one"), lambda now: now.power_w is not None)
        folder = tmp_path / "set"
        folder.mkdir()
        lines = (tmp_path / "one" / "rank-00000.jsonl").read_text().splitlines()
        moved = []
        for line_ in lines:
            record = json.loads(line_)
            moved.append(json.dumps(record | {key: record[key] - 3600 for key in ("t", "t0", "t1") if key in record}))
        (folder / "rank-00000.jsonl").write_text("\n".join(moved) + "\n")
        now = RunFollow(folder).look()
        assert (now.status, now.over) == ("running", False)
        assert now.power_w is not None


@pytest.mark.parametrize(
    ("name", "was", "put"),
    [
        ("rank-00000.jsonl", '"rank":0', '"rank":"x"'),
        ("rank-00000.jsonl", '"world_size":1', '"world_size":null'),
        ("run.json", '"config"', '"config": 5, "was"'),
        ("rank-00000.jsonl", '"world_size":1', '"world_size":0'),
        ("run.json", '"market_g_per_kwh": null', '"market_g_per_kwh": Infinity'),
        ("run.json", '"tokens": null', f'"tokens": {10**400}'),
        ("run.json", '"book_s": 0.1', '"book_s": "x"'),
    ],
)
def test_files_that_make_no_sense_are_refused(tmp_path: Path, name: str, was: str, put: str) -> None:
    with session(tmp_path):
        time.sleep(0.2)
    path = tmp_path / "one" / name
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, put))
    with pytest.raises(RunFolderError, match="makes no sense"):
        RunFollow(tmp_path / "one").look()


def test_what_nobody_counted_is_no_zero(tmp_path: Path) -> None:
    with session(tmp_path) as green:
        green.step()
        time.sleep(0.2)
    now = RunFollow(tmp_path / "one").look()
    assert (now.steps, now.tokens, now.samples) == (1, None, None)


def _of_another_host(folder: Path, copy: Path) -> Path:
    shutil.copytree(folder, copy)
    journal = copy / "rank-00000.jsonl"
    text = journal.read_text()
    assert f'"host":"{socket.gethostname()}"' in text
    journal.write_text(text.replace(f'"host":"{socket.gethostname()}"', '"host":"elsewhere"'))
    return copy


def session(folder: Path, rank: int = 0, world: int = 1, **run: Any) -> GreenSession:
    config = {
        "run": {"dir": str(folder), "report": False, "book_s": 0.1, "id": "one", **run},
        "power": {"sample_s": 0.02},
    }
    place = Topology(rank=rank, world_size=world, local_rank=rank, local_world_size=world, host=socket.gethostname())
    return GreenSession(config, meter=FlatMeter(), signal=SIGNAL, topology=place)


def test_many_ranks_are_one_run(tmp_path: Path) -> None:
    ranks = [session(tmp_path, rank, 3) for rank in range(3)]
    for rank in ranks:
        rank.start()
        rank.gear("fp8")
        rank.step(tokens=10)
    follow, power_w = RunFollow(tmp_path / "one"), pytest.approx(200 + 3 * 50, rel=0.1)
    now = look_until(follow, lambda now: now.tokens == 30 and len(now.ranks) == 3 and now.power_w == power_w)
    assert (now.steps, now.world_size, now.status) == (1, 3, "running")
    for rank in reversed(ranks):
        assert not follow.look().over
        rank.close()
    now = follow.look()
    totals = read_run(tmp_path / "one").totals
    assert now.over and now.total_j == pytest.approx(totals.energy_j) and now.tokens == totals.tokens
    assert "3 of 3 ranks" in drawn(now)
    of_kind = {use.kind: use for use in now.stages}
    assert sum(use.energy_j or 0.0 for use in now.stages) == pytest.approx(totals.energy_j)
    assert {use.tokens for use in now.stages} == {30} and of_kind["gpu"].provenance == "measured"
    assert of_kind["gpu"].j_per_token == pytest.approx((of_kind["gpu"].energy_j or 0.0) / 30)


def drawn(now: RunNow, width: int = 100, **options: Any) -> str:
    console = Console(width=width, height=40, force_terminal=True, **options)
    with console.capture() as text:
        console.print(frame(now))
    return text.get()


def test_a_frame_fits_its_terminal_and_says_what_is_known(tmp_path: Path) -> None:
    with session(tmp_path, tags={}) as green:
        green.gear("bf16")
        green.step(tokens=10)
        time.sleep(0.3)
        run = green.active()
        assert run is not None
        run.event("warning", "two \x1b[31mred\x1b[0m words [bold]and a tag[/]")
    now = look_until(RunFollow(tmp_path / "one"), lambda now: now.over)  # a busy disk gets the end late
    for width in (20, 40, 100):
        text = drawn(now, width, no_color=True, color_system=None)
        assert max(map(len, text.splitlines())) <= width and "\x1b[3" not in text
    text = drawn(now, color_system=None)
    for word in (
        "finished",
        "measured",
        "modelled",
        "J/token",
        "operational",
        "embodied",
        "g/kWh in test",
        "bf16",
        "Fake GPU",
    ):
        assert word in text, word
    assert "[bold]and a tag[/]" in text and "\x1b[31m" not in text, "what a file says does not steer the terminal"
    assert "unknown" not in text and "saved" not in text
    assert "\n" not in line(now) and final_line(now).startswith("one finished after")


def test_a_resumed_run_goes_on_from_what_was_read(tmp_path: Path) -> None:
    follow = RunFollow(tmp_path / "one")
    with session(tmp_path) as green:
        green.step()
        time.sleep(0.2)
        state = green.state_dict()
    first = follow.look()
    assert first.over
    again = session(tmp_path)
    again.load_state_dict(state)
    with again:
        again.step()
        now = look_until(follow, lambda now: now.steps == 2)
        assert not now.over and now.status == "running"
    now = follow.look()
    assert now.over and now.total_j == pytest.approx(read_run(tmp_path / "one").totals.energy_j)


def test_a_run_that_left_is_away_and_is_waited_for(tmp_path: Path) -> None:
    green = session(tmp_path).start()
    time.sleep(0.2)
    green.close("left")
    now = RunFollow(tmp_path / "one").look()
    assert (now.status, now.over) == ("away", False)


def test_once_in_a_terminal_and_without_one(tmp_path: Path) -> None:
    with session(tmp_path):
        time.sleep(0.2)
    code, out, err = watched(str(tmp_path), "--once")
    assert (code, err) == (0, "") and len(out.splitlines()) == 1 and out.startswith("train, finished")
    code, out, _ = watched(str(tmp_path), "--once", FORCE_COLOR="1", COLUMNS="60")
    assert code == 0 and len(out.splitlines()) > 5 and "\x1b[1m" in out
    code, out, _ = watched(str(tmp_path / "one"), "--once", "--json")
    assert json.loads(out)["status"] == "finished"


def test_a_terminal_gets_frames_that_replace_each_other(tmp_path: Path) -> None:
    with training(tmp_path) as training_process:
        found(tmp_path)
        primary, secondary = pty.openpty()
        termios.tcsetwinsize(secondary, (12, 44))
        keep = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES")}
        code = "import sys; from greentrain.cli import main; sys.argv[0] = 'greentrain'; main()"
        command = [sys.executable, "-c", code, "watch", str(tmp_path), "--every-s", "0.2"]
        process = subprocess.Popen(command, stdout=secondary, stderr=secondary, env={**keep, "TERM": "xterm"})
        os.close(secondary)
        text = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(primary, 65536):
                text += piece
                if text.count(b"running") > 2:
                    training_process.stdin.close()  # type: ignore[union-attr]
        os.close(primary)
        assert process.wait(timeout=120) == 0
    shown = text.decode()
    assert "\x1b[1A" in shown, "it draws over what it drew"
    assert "finished after" in shown[-600:]
    for one in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.partition("finished after")[0]).splitlines()[:-1]:
        assert len(one) <= 44


def test_the_newest_run_is_found(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with session(tmp_path, id=name):
            pass
        time.sleep(0.02)
    assert find_run(tmp_path).name == "new" and find_run(tmp_path / "old").name == "old"


@pytest.mark.parametrize(
    ("words", "told"), [(["nowhere"], "no folder"), (["."], "holds no run"), ([".", "--every-s", "0"], "every-s")]
)
def test_wrong_input_is_one_line_and_2(tmp_path: Path, words: list[str], told: str) -> None:
    code, out, err = watched(str(tmp_path / words[0]), *words[1:])
    assert (code, out) == (2, "") and told in err and len(err.splitlines()) == 1


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank-00000.jsonl").write_text('{"kind":"open","format":99,"run_id":"x","rank":0,"sensors":[]}\n')
    with pytest.raises(NewerFormatError, match="format 99"):
        RunFollow(tmp_path).look()


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    with session(tmp_path) as green:
        green.step()
        time.sleep(0.2)
    whole = (tmp_path / "one" / "rank-00000.jsonl").read_bytes()
    grown = tmp_path / "grown"
    grown.mkdir()
    journal, follow = grown / "rank-00000.jsonl", RunFollow(grown)
    cut = whole.rindex(b"\n", 0, len(whole) - 1) + 20
    journal.write_bytes(whole[:cut])
    assert follow.look().status in ("running", "silent")
    journal.write_bytes(whole)
    assert follow.look().over


def test_a_long_run_is_read_once(tmp_path: Path) -> None:
    """Two weeks of ten-second entries: the first look reads all of it, the next one only what is new."""
    with session(tmp_path) as green:
        green.step(tokens=1)
        time.sleep(0.4)
    path = tmp_path / "one" / "rank-00000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    entry = next(one for one in lines if one.startswith(b'{"kind":"entry"'))
    path.write_bytes(b"".join([one for one in lines if b'"close"' not in one[:20]] + [entry] * 20_000))
    follow, size = RunFollow(tmp_path / "one"), path.stat().st_size
    start_s = time.process_time()
    first = follow.look()
    first_s = time.process_time() - start_s
    start_s = time.process_time()
    assert follow.look().steps == first.steps
    again_s = time.process_time() - start_s
    assert again_s < first_s / 20, (size, first_s, again_s)


def test_the_picture_has_what_drivers_tell_beside_power(tmp_path: Path) -> None:
    folder, told = Folder(tmp_path, "busy"), {"util_s": 4.0, "sm_s": 2.0, "clocks_s": 4.0, "thermal_s": 1.0}
    part, t_s = replace(device(1000.0), states={"forward": told}), time.time()
    folder.rank(0, [GPU], [entry(t_s - 10, t_s, {"GPU-0": part})], reason=None, t_s=t_s)
    now = RunFollow(folder.path).look()
    console = Console(width=200, file=io.StringIO())
    console.print(frame(now))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert now.status == "running" and "kernels 50" in shown and "slowed by thermal 25" in shown, shown
