"""benchmarks/silicon.py is ready for a device: each slice runs on the fakes, and none takes another along."""

import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import silicon
from benchmarks.silicon_common import Played, Row
from benchmarks.silicon_sensor import BINS, OnTime, seen

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.parametrize("name", silicon.SLICES)
def test_a_dry_run_gives_rows_and_says_where_they_come_from(name: str, tmp_path: Path) -> None:
    code = silicon.main(["--out", str(tmp_path), "--dry-run", "--slice", name, "--limit", "280"])
    found = json.loads((tmp_path / "silicon.json").read_text("utf-8"))
    one = found["slices"][name]
    assert (code, one["error"]) == (0, ""), (tmp_path / "silicon.log").read_text("utf-8")
    assert found["dry_run"] is True and one["rows"]
    assert all(not str(row["ours"]).startswith("failed") for row in one["rows"]), one["rows"]
    figures = [row["ours"] for row in one["rows"] if isinstance(row["ours"], float)]
    assert all(math.isfinite(figure) for figure in figures) and (figures or name == "te")
    assert {"machine", "system", "torch", "zeus", "transformer-engine"} <= set(one["about"])
    text = (tmp_path / "silicon.md").read_text("utf-8")
    assert text.startswith("A dry run with a fake driver") and f"| {name} | {one['rows'][0]['what']} |" in text


@pytest.mark.long
def test_without_a_device_a_slice_says_so_and_the_next_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert silicon.main(["--out", str(tmp_path), "--slice", "marks", "--slice", "te"]) == 1
    assert capsys.readouterr().out.count("torch sees no accelerator here: --dry-run plays one") == 2


@pytest.mark.long
def test_a_slice_that_hangs_is_ended_with_all_it_started_and_keeps_its_rows(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    )
    ended = silicon._ended([sys.executable, "-c", code], tmp_path, tmp_path / "log", 5.0, os.environ)
    assert ended.startswith("out of time after 5 s")
    child = int((tmp_path / "words").read_text())
    for _ in range(1000):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.01)
    else:
        pytest.fail("what the slice started still runs")


def test_a_crash_keeps_what_was_said_and_the_other_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"what": "it", "unit": "ms", "ours": 1.5, "beside": {"plain": 1.0}, "bar": None, "verdict": ""}

    def ended(command: Any, scratch: Path, log: Path, limit_s: float, environ: Any, often: Any) -> str:
        name = json.loads(command[-1])["name"]
        words = [json.dumps({"about": {"torch": "9"}}), "a line of a library", json.dumps({"rows": [row]})]
        (scratch / "words").write_text("\n".join([*words, '{"rows": [{"what": "cut o']), encoding="utf-8")
        return "exit -11: see silicon.log" if name == "marks" else ""

    monkeypatch.setattr(silicon, "_ended", ended)
    assert silicon.main(["--out", str(tmp_path), "--slice", "marks", "--slice", "te"]) == 1
    assert silicon.main(["--out", str(tmp_path), "--slice", "optimizer"]) == 1, "a failure of before is still one"
    slices = json.loads((tmp_path / "silicon.json").read_text("utf-8"))["slices"]
    assert {name: each["error"] for name, each in slices.items()} == {
        "marks": "exit -11: see silicon.log",
        "te": "",
        "optimizer": "",
    }
    assert all(each["rows"] == [row] and each["about"] == {"torch": "9"} for each in slices.values())
    assert "| marks | it | ms | 1.5 | plain: 1 |" in (tmp_path / "silicon.md").read_text("utf-8")


def test_what_a_slice_has_found_is_on_disk_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"what": "it", "unit": "ms", "ours": 1.5, "beside": {}, "bar": None, "verdict": ""}

    def ended(command: Any, scratch: Path, log: Path, limit_s: float, environ: Any, often: Any) -> str:
        (scratch / "words").write_text(json.dumps({"about": {"torch": "9"}}), encoding="utf-8")
        often()
        assert not (tmp_path / "silicon.json").exists(), "it has found nothing that could be lost"
        (scratch / "words").write_text(json.dumps({"about": {}, "rows": [row]}), encoding="utf-8")
        often()
        now = json.loads((tmp_path / "silicon.json").read_text("utf-8"))["slices"]["marks"]
        assert now["rows"] == [row] and now["error"].startswith("not finished")
        return ""

    monkeypatch.setattr(silicon, "_ended", ended)
    assert silicon.main(["--out", str(tmp_path), "--slice", "marks"]) == 0
    assert json.loads((tmp_path / "silicon.json").read_text("utf-8"))["slices"]["marks"]["error"] == ""


def test_a_slice_ends_with_the_command_that_began_it(tmp_path: Path) -> None:
    worker = (
        "import os, sys; from benchmarks.silicon import _end_with; print('up', flush=True); _end_with(int(sys.argv[1]))"
    )
    command = (
        "import os, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {worker!r}, str(os.getpid())], start_new_session=True,"
        " stdout=subprocess.PIPE);"
        "child.stdout.readline(); print(child.pid, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    child = Path(f"/proc/{int(done.stdout)}/stat")
    for _ in range(3000):
        if not child.exists() or child.read_text().split()[2] == "Z":
            break
        time.sleep(0.01)
    else:
        pytest.fail("the slice goes on without its command")


def test_within_a_time_what_is_left_of_the_slices_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, float]] = []
    now_s = [0.0]

    def run(name: str, out: Path, limit_s: float, put: Any, *, dry: bool) -> dict[str, Any]:
        begun.append((name, limit_s))
        now_s[0] += 200.0
        return {"rows": [], "notes": [], "error": "it failed" if name == "marks" else "", "about": {}} | {
            "seconds": 200.0, "limit_s": limit_s, "date": "today"
        }  # fmt: skip

    monkeypatch.setattr(silicon, "run", run)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    assert silicon.main(["--out", str(tmp_path), "--within", "570"]) == 1
    assert begun == [("sensor", 480.0), ("marks", 370.0), ("phases", 170.0)]
    begun.clear()
    assert silicon.main(["--out", str(tmp_path), "--within", "570"]) == 1
    assert [name for name, _ in begun] == ["marks", "peers", "fp8"], "what failed is tried again, what went well is not"


def test_figures_of_a_dry_run_never_stand_beside_a_devices(tmp_path: Path) -> None:
    (tmp_path / "silicon.json").write_text(json.dumps({"dry_run": True, "slices": {}}), encoding="utf-8")
    with pytest.raises(SystemExit, match="is dry run, unlike this one"):
        silicon.Results(tmp_path, dry=False)
    (tmp_path / "silicon.json").write_text("[]", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"is no result of silicon\.py"):
        silicon.Results(tmp_path, dry=False)


def test_the_part_of_a_tick_that_is_seen_is_found_from_the_ticks_alone() -> None:
    draw, at_s, spans = random.Random(1), 0.0, []
    while at_s < 31.0:
        on_s = draw.uniform(0.005, 0.06)
        spans.append((at_s, at_s + on_s))
        at_s += on_s + draw.uniform(0.005, 0.06)
    on = OnTime(spans)
    ticks = []
    for i in range(3, 300):  # sees 30 ms, from 50 to 20 ms before the edge, and takes them for all 100
        end_s = 0.1 * i
        power_w = 100 + 400 * on.between(end_s - 0.05, end_s - 0.02) / 0.03
        ticks.append((end_s - 0.1, end_s, 0.1 * power_w))
    shares = seen(ticks, 0.1, on)
    assert len(shares) == 2 * BINS
    assert sum(shares[2:5]) > 0.97


def test_a_played_load_is_on_when_the_driver_says() -> None:
    played = Played(epoch_s=10.0, low_w=1.0, high_w=2.0, period_s=1.0, duty=0.25)
    assert played.on_spans(10.1, 12.1) == [(10.1, 10.25), (11.0, 11.25), (12.0, 12.1)]


def test_a_bar_judges_figures_alone() -> None:
    def row(ours: float | str) -> Row:
        return Row(what="it", unit="%", ours=ours, bar=2.0)

    assert [row(x).verdict for x in (-1.9, 2.1, "failed: OSError", math.nan)] == ["PASS", "MISS", "n/a", "n/a"]


def test_the_list_names_every_slice_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silicon, "run", pytest.fail)
    assert silicon.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(silicon.SLICES)
    with pytest.raises(SystemExit):
        silicon.main(["--dry-run"])
