"""``greentrain simulate | plan``: what they print, write and return."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from greentrain.cli.app import app
from tests.report.planned_run import planned
from tests.simulator.grids import START, wandering
from tests.simulator.planning import YAML, write_csv

HOURS = 40 * 24


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder with a configuration, a table and two grids."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("actions.yaml").write_text(YAML)
    Path("green.yaml").write_text(
        "carbon: {signal: typical, zone: US-CAL-CISO}\n"
        "policy: {name: mpc, tokens: 5e7, deadline_h: 24, actions: actions.yaml}\n"
    )
    write_csv(tmp_path / "one.csv", wandering(HOURS))
    write_csv(tmp_path / "two.csv", wandering(HOURS, 1))
    return tmp_path


def _run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def _process(*words: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    code = f"{before}\nimport sys; from greentrain.cli import main; sys.argv[0] = 'greentrain'; main()"
    environ = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR"}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=240)


# -- simulate ----------------------------------------------------------------------------------------------------------


def test_simulate_writes_a_table_everything_and_pictures() -> None:
    words = ["--trace", "one.csv", "--trace", "two.csv", "--windows", "3", "--slack", "1.5", "--slack", "2"]
    code, out, errors = _run("simulate", "green.yaml", *words, "--policy", "mpc", "--policy", "threshold", "--out", "o")
    assert (code, errors) == (0, "")
    for word in ("one, 3 jobs of 50.0 M tokens in 20.83 h (slack 1.5)", "two", "oracle", "assumed", "replayed"):
        assert word in out
    data = json.loads(Path("o/result.json").read_text())
    rows = list(csv.DictReader(Path("o/table.csv").read_text().splitlines()))
    assert len(rows) == len(data["rows"]) == 2 * 2 * 5 and data["kind"] == "simulation"
    pictures = sorted(path.name for path in Path("o").glob("*.png"))
    assert pictures == [f"{trace}-slack-{slack}.png" for trace in ("one", "two") for slack in ("1.5", "2")]
    assert all(path.stat().st_size > 20_000 for path in Path("o").glob("*.png"))
    assert out.rstrip().endswith("Written to o")


def test_the_typical_year_is_what_there_is_without_a_trace_and_the_folder_has_a_name() -> None:
    code, out, _ = _run("simulate", "green.yaml", "--windows", "2", "--policy", "mpc", "--pictures", "none", "--json")
    data = json.loads(out)
    assert code == 0 and data["grids"][0]["recorded"] is False and data["grids"][0]["zone"] == "US-CAL-CISO"
    folder = Path(data["folder"])
    assert folder.parent == Path("simulations") and folder.name.startswith("green-")
    assert sorted(path.name for path in folder.iterdir()) == ["result.json", "table.csv"]


def test_the_table_of_a_run_takes_the_place_of_the_declared_one() -> None:
    run = planned(Path("runs"), plan={"provenance": "measured"})
    words = ["--actions", str(run), "--windows", "1", "--policy", "mpc", "--pictures", "none", "--out", "o", "--json"]
    data = json.loads(_run("simulate", "green.yaml", *words)[1])
    assert data["actions"]["provenance"] == "measured" and data["actions"]["source"].startswith("run planned on")


def test_a_run_is_replayed_beside_its_files() -> None:
    run = planned(Path("runs"))
    code, out, errors = _run("simulate", "--run", str(run), "--policy", "mpc", "--policy", "threshold")
    assert (code, errors) == (0, "") and "what ran" in out and "assumed" in out
    assert sorted(path.name for path in (run / "simulation").iterdir()) == ["replay.png", "result.json", "table.csv"]
    data = json.loads(_run("simulate", "--run", str(run), "--pictures", "none", "--out", "o", "--json")[1])
    assert data["kind"] == "replay" and data["rows"][0]["policy"] == "what ran" and data["folder"] == "o"


def test_the_same_words_give_the_same_result() -> None:
    words = ["simulate", "green.yaml", "--trace", "one.csv", "--windows", "2", "--pictures", "none", "--out", "o"]
    first, second = (_run(*words, "--json")[1] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate"], "name a configuration"),
        (["simulate", "absent.yaml"], "cannot read the configuration absent.yaml"),
        (["simulate", "green.yaml", "--policy", "mcp"], "Did you mean 'mpc'"),
        (["simulate", "green.yaml", "--trace", "absent.csv"], "cannot read the trace absent.csv"),
        (["simulate", "green.yaml", "--trace", "naive.csv"], "has no time zone"),
        (["simulate", "green.yaml", "--trace", "one.csv", "--history-h", "950"], "shorter than 950 h of history"),
        (["simulate", "green.yaml", "--trace", "one.csv", "--trace", "two.csv@marginal"], "mix bases"),
        (["simulate", "green.yaml", "--actions", "empty.yaml"], "declares no action"),
        (["simulate", "tight.yaml"], "earliest feasible deadline"),
        (["simulate", "none.yaml"], "nobody says what actions bring and cost"),
        (["simulate", "world.yaml"], "no grid is named"),
        (["simulate", "green.yaml", "--windows", "0"], "windows is 0"),
        (["simulate", "green.yaml", "--pictures", "bmp"], "known: png, svg, pdf"),
        (["simulate", "--run", "absent"], "absent does not exist"),
        (["simulate", "--run", "absent", "--slack", "2"], "--run replays one job"),
        (["simulate", "--run", "absent", "--trace", "one.csv", "--trace", "two.csv"], "replays one grid, but 2"),
        (["plan", "--tokens", "0", "--deadline", "36"], "--tokens is 0"),
        (["plan", "--tokens", "1e6", "--deadline", "0"], "--deadline is '0'"),
        (["plan", "--tokens", "1e6", "--deadline", "2020-01-01T00:00Z"], "choose a time after it"),
        (["plan", "--tokens", "1e6", "--deadline", "2030-01-01T00:00"], "without a time zone"),
        (["plan", "--tokens", "1e6", "--deadline", "36"], "no zone is named: say --zones"),
        (["plan", "--tokens", "1e6", "--deadline", "36", "--zones", "CISOO"], "nearest are US-CAL-CISO"),
        (["plan", "--tokens", "1e6", "--deadline", "36", "--trace", "one.csv", "--zones", "CISO", "--start",
          "2022-02-09T00:00Z"], "but trace 'one' covers"),
        (["plan", "--tokens", "1e6", "--deadline", "9", "--trace", "one.csv@marginal", "--zones", "CISO"], "one basis"),
        (["plan", "--tokens", "1e6", "--deadline", "9", "--zones", "CISO", "--actions", "empty.yaml"], "no action"),
        (["plan", "--tokens", "1e15", "--deadline", "9", "--zones", "CISO"], "earliest feasible deadline is"),
        (["plan", "--tokens", "1e6", "--deadline", "9", "--zones", "CISO", "--picture", "x.bmp"], "known: png, svg"),
    ],
)  # fmt: skip
def test_wrong_input_is_2_and_one_line(words: Sequence[str], said: str) -> None:
    Path("empty.yaml").write_text("actions: []\n")
    Path("naive.csv").write_text("timestamp_utc,g_per_kwh\n2022-01-01T00:00,1\n2022-01-01T01:00,1\n")
    for name, carbon, policy in (
        ("tight", "{zone: CISO}", "{name: mpc, tokens: 5e7, deadline_h: 2, actions: actions.yaml}"),
        ("none", "{zone: CISO}", "{name: mpc, tokens: 5e7, deadline_h: 24}"),
        ("world", "{}", "{name: mpc, tokens: 5e7, deadline_h: 24, actions: actions.yaml}"),
    ):
        Path(f"{name}.yaml").write_text(f"carbon: {carbon}\npolicy: {policy}\n")
    before = sorted(Path().iterdir())
    code, out, errors = _run(*words)
    assert (code, out) == (2, "")
    assert said in errors and errors.startswith("greentrain: ") and errors.count("\n") == 1
    assert sorted(Path().iterdir()) == before


# -- plan --------------------------------------------------------------------------------------------------------------


def test_plan_prints_a_table_and_a_sentence_and_draws() -> None:
    words = ["--zones", "US-CAL-CISO, US-MIDA-PJM", "--actions", "actions.yaml", "--start", "2026-11-21T13:00Z"]
    code, out, errors = _run("plan", "--tokens", "5e7", "--deadline", "36", *words)
    assert (code, errors) == (0, "")
    for word in ("US-CAL-CISO", "US-MIDA-PJM", "Train in US-CAL-CISO, planned by mpc", "assumed", "typical year"):
        assert word in " ".join(out.split())
    assert out.rstrip().endswith("Picture: plan.png") and Path("plan.png").stat().st_size > 20_000


def test_plan_for_programs_and_for_another_format() -> None:
    words = ["plan", "--tokens", "5e7", "--zones", "CISO", "--actions", "actions.yaml"]
    start = ["--start", "2026-11-21T13:00Z", "--deadline", "2026-11-23T01:00Z"]
    data = json.loads(_run(*words, *start, "--json")[1])
    assert data["kind"] == "plan" and data["deadline_utc"] == "2026-11-23T01:00Z" and not Path("plan.png").exists()
    assert _run(*words, *start, "--picture", "p/plan.svg")[0] == 0
    assert Path("p/plan.svg").read_text().startswith("<?xml")
    code, out, _ = _run(*words, "--deadline", "36", "--picture", "none")
    assert code == 0 and "Picture" not in out and not Path("plan.png").exists()


def test_plan_on_a_recording_starts_with_it_and_says_that_it_is_replayed() -> None:
    words = ["plan", "--tokens", "5e7", "--deadline", "36", "--trace", "one.csv", "--picture", "none", "--json"]
    data = json.loads(_run(*words, "--actions", "actions.yaml")[1])
    assert data["start_utc"] == "2022-01-01T00:00Z" and data["zones"][0]["zone"] == "one"
    assert any("replayed" in note for note in data["notes"]) and START == 1_640_995_200.0


def test_plan_without_a_table_says_that_it_assumes_one() -> None:
    code, out, _ = _run("plan", "--tokens", "5e10", "--deadline", "36", "--zones", "CISO", "--picture", "none")
    assert code == 0 and "Watts and speeds assumed: reference table of the benchmarks" in " ".join(out.split())


# -- as a process ------------------------------------------------------------------------------------------------------


def test_a_real_process_is_silent_but_for_its_table_and_imports_no_torch() -> None:
    before = "import atexit, sys; atexit.register(lambda: print('TORCH' if 'torch' in sys.modules else 'NONE'))"
    words = ["simulate", "green.yaml", "--trace", "one.csv", "--windows", "2", "--pictures", "none", "--out", "o"]
    done = _process(*words, before=before)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout and "carbon_blind" in done.stdout and done.stdout.rstrip().endswith("NONE")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "green.yaml", "--windows", "1", "--out", "o"],
        ["plan", "--tokens", "5e7", "--deadline", "36", "--zones", "CISO", "--actions", "actions.yaml"],
    ],
)
def test_without_matplotlib_the_extra_is_named_before_any_work(words: list[str]) -> None:
    hidden = "import sys; sys.modules['matplotlib'] = None"
    done = _process(*words, before=hidden)
    assert done.returncode == 1 and "pip install 'greentrain-torch[simulate]'" in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout and not Path("o").exists()
    without = ["--pictures" if words[0] == "simulate" else "--picture", "none"]
    assert _process(*words, *without, before=hidden).returncode == 0
