"""The command line: what it prints, what it returns, and which options it has."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer.main

from greentrain import GreenSession, __version__
from greentrain.cli import fleet as cli_fleet
from greentrain.cli import fpga as cli_fpga
from greentrain.cli import rlhf as cli_rlhf
from greentrain.cli import runs as cli_runs
from greentrain.cli.app import _ticks_of_last_run, app
from greentrain.ledger.reader import RunRecord, read_run
from tests.report.run_folders import GPU, T0_S, Folder, device, entry

SPIN = "import time; t = time.monotonic() + {s}\nwhile time.monotonic() < t: pass"


def _greentrain(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environ = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    code = "import sys; from greentrain.cli import main; sys.argv[0] = 'greentrain'; main()"
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env={**environ, "COLUMNS": "120"}, timeout=240
    )


def _runs(folder: Path) -> dict[str, RunRecord]:
    return {path.name: read_run(path) for path in sorted((folder / "runs").iterdir())}


def test_the_commands_and_options_are_these() -> None:
    group = typer.main.get_group(app)
    options = {
        name: sorted(option for param in command.params for option in param.opts)
        for name, command in group.commands.items()
    }
    assert options == {
        "doctor": ["--config", "--json", "-c"],
        "measure": ["--config", "--name", "--summary", "-c"],
        "report": [
            "--all", "--by", "--cache", "--contracts", "--export", "--export-totals", "--json", "--since", "--standard",
            "--until", "--where", "runs",
        ],
        "compare": ["--json", "--margin", "--metric", "--pair", "--values", "runs"],
        "audit": ["--json", "--key-file", "--verify", "--write", "root"],
        "simulate": [
            "--actions", "--history-h", "--json", "--out", "--pictures", "--policy", "--run", "--seeds", "--slack",
            "--trace", "--windows", "config",
        ],
        "launch": sorted(
            [
                "--actions", "--back-off", "--checkpoints", "--config", "--dir", "--engine", "--grace", "--json",
                "--kubernetes", "--preload", "--retries", "--start", "--status", "--width", "-c",
            ]
        ),
        "plan": [
            "--actions", "--config", "--deadline", "--grams", "--json", "--picture", "--start", "--tokens", "--trace",
            "--zones", "-c",
        ],
        "daemon": ["--config", "--socket", "--state", "-c"],
        "serve": [
            "--drain-s", "--host", "--max-batch", "--max-batch-tokens", "--max-body-mib", "--max-sequences",
            "--max-waiting", "--no-token", "--port", "--timeout-s", "--token-file", "--too-long", "--window-ms",
            "settings",
        ],
        "estimate": sorted(
            [
                "--config", "--parameters", "--active", "--tokens", "--sequence", "--batch", "--precision", "--device",
                "--count", "--limit-h", "--zone", "--g-per-kwh", "--trace-csv", "--market-g-per-kwh", "--start",
                "--pue", "--infrastructure", "--node-w", "--embodied", "--lifetime-years", "--price-kwh",
                "--price-hour", "--currency", "--method", "--pilot", "--devices", "--json", "--html", "--actions",
                "--into", "--layers", "--d-model", "--heads", "--kv-heads", "--head-dim", "--d-ff", "--vocabulary",
                "--experts", "--experts-per-token", "--d-expert", "--gated", "--tied", "--year",
            ]
        ),
        "watch": ["--every-s", "--json", "--once", "run"],
        "export": [],
        "fleet": [],
        "fpga": [],
        "rlhf": [],
        "event": [],
        "tune": [],
        "config": [],
        "ui": [
            "--cache", "--every-s", "--fleet", "--host", "--json", "--name", "--no-open", "--port", "--token-file",
            "runs",
        ],
    }  # fmt: skip
    export = typer.main.get_group(cli_runs.app).commands
    assert {name: [option for param in export[name].params for option in param.opts] for name in export} == {
        "dashboard": ["--out"], "alerts": ["--out"],
    }  # fmt: skip
    fleet = typer.main.get_group(cli_fleet.app).commands
    assert {name: sorted(option for param in fleet[name].params for option in param.opts) for name in fleet} == {
        "simulate": [
            "--bound", "--cap", "--count", "--days", "--errors", "--failures", "--gpus", "--jobs", "--json", "--known",
            "--load", "--longest-h", "--out", "--policy", "--respond", "--seed", "--start-day", "--step-s",
            "--trace", "--zones",
        ],
        "plan": ["--declared", "--json", "--out", "spec"],
        "run": ["--dry-run", "--metrics-host", "--metrics-port", "--once", "--token-file", "spec"],
        "explain": ["--json", "job", "spec"],
    }  # fmt: skip
    fpga = typer.main.get_group(cli_fpga.app).commands
    assert {name: sorted(option for param in fpga[name].params for option in param.opts) for name in fpga} == {
        "devices": ["--json"],
        "explore": [
            "--assume", "--batch", "--card", "--cards", "--gpu", "--gpu-power-w", "--gpu-tokens-per-s", "--head",
            "--json", "--mfu", "--precision", "--sequence", "--set", "--texts", "model",
        ],
        "ranks": ["--json", "--out", "--pairs", "--precision", "model", "preferences"],
    }  # fmt: skip
    rlhf = typer.main.get_group(cli_rlhf.app).commands
    assert {name: sorted(option for param in rlhf[name].params for option in param.opts) for name in rlhf} == {
        "simulate": [
            "--assume", "--card", "--card-idle-w", "--card-stays", "--card-w", "--cards", "--chunks", "--embodied-kg",
            "--engine", "--gpu-idle-w", "--gpu-model", "--gpus", "--gradient-gb", "--grid", "--json",
            "--kl-in-reward", "--length", "--link-gb-s", "--link-latency-us", "--mfu", "--micro-batches", "--mode",
            "--precision", "--pue", "--reference-model", "--reward-model", "--sequences", "--serial-s",
            "--set", "--slowdown", "--steps", "--tokens", "table",
        ],
        "waterfall": [
            "--assume", "--card", "--card-idle-w", "--card-stays", "--card-w", "--cards", "--chunks", "--embodied-kg",
            "--engine", "--gpu-idle-w", "--gpu-model", "--grid", "--json", "--kl-in-reward", "--length", "--mfu",
            "--micro-batches", "--precision", "--pue", "--reference-model", "--reward-model", "--sequences",
            "--set", "--slowdown", "--tokens", "table",
        ],
        "sensitivity": [
            "--assume", "--card", "--card-idle-w", "--card-w", "--cards", "--chunks", "--embodied-kg", "--engine",
            "--gpu-idle-w", "--gpu-model", "--grid", "--json", "--kl-in-reward", "--length", "--mfu",
            "--micro-batches", "--mode", "--over", "--precision", "--pue", "--reference-model",
            "--reward-model", "--sequences", "--set", "--slowdown", "--tokens", "--values", "table",
        ],
    }  # fmt: skip


def test_the_version() -> None:
    done = _greentrain("--version", cwd=Path.cwd())
    assert (done.returncode, done.stdout.strip()) == (0, f"greentrain-torch {__version__}")


@pytest.mark.parametrize(
    "words", [["nonsense"], ["doctor", "--nonsense"], ["report"], ["measure"], ["measure", "--"], ["report", "--json"]]
)
def test_wrong_usage_is_2(tmp_path: Path, words: Sequence[str]) -> None:
    done = _greentrain(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["report", "absent"], "does not exist"),
        (["doctor", "-c", "absent.yaml"], "cannot read the configuration"),
        (["doctor", "-c", "wrong.yaml"], "Did you mean 'power'"),
        (["measure", "-c", "wrong.yaml", "--", "true"], "Did you mean 'power'"),
        (["measure", "-c", "zone.yaml", "--", "true"], "Atlantis"),
        (["measure", "--name", "a/b", "--", "true"], "run.name"),
    ],
)
def test_wrong_input_is_2_and_one_line(tmp_path: Path, words: Sequence[str], text: str) -> None:
    (tmp_path / "wrong.yaml").write_text("pwer: {}\n", encoding="utf-8")
    (tmp_path / "zone.yaml").write_text("carbon: {zone: Atlantis}\n", encoding="utf-8")
    done = _greentrain(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr and done.stderr.startswith("greentrain: ")
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_doctor_says_what_is_there_and_what_not_without_colours(tmp_path: Path) -> None:
    done = _greentrain("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("nvml", "rapl", "cpu_model", "modelled", "Carbon intensity"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout


def test_doctor_as_json(tmp_path: Path) -> None:
    (tmp_path / "green.yaml").write_text("carbon: {zone: FR, relative_error: 0.05}\n")
    done = _greentrain("doctor", "--json", "--config", "green.yaml", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert facts["carbon"]["error"] == "5.0% (carbon.relative_error)"
    assert {"meter", "device", "usable", "provenance", "detail"} <= facts["sensors"][0].keys()
    assert facts["carbon"]["zone"] and all(s["detail"] for s in facts["sensors"])


def test_doctor_says_what_the_last_run_found_of_a_sensor(tmp_path: Path) -> None:
    assert _ticks_of_last_run(tmp_path / "nothing") == [] == _ticks_of_last_run(tmp_path)
    facts = {"device": "GPU-0", "tick_s": 0.1, "sees_s": 0.025, "late_s": 0.003}
    event = {"name": "attribution", "t": T0_S, "text": "GPU-0: 25 ms of each 100 ms", "phases": {}, "readings": 800}
    one = entry(T0_S, T0_S + 10.0, {"GPU-0": device(3000.0)})
    Folder(tmp_path).rank(0, [GPU], [one], events=[event | facts])
    assert _ticks_of_last_run(tmp_path) == [facts | {"text": "GPU-0: 25 ms of each 100 ms"}]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([sys.executable, "-c", "raise SystemExit(7)"], 7),
        ([sys.executable, "-c", "pass"], 0),
        (["sh", "-c", "kill -9 $$"], 137),
        (["greentrain-no-such-program"], 127),
        (["/dev/null"], 126),
    ],
)
def test_measure_ends_with_the_code_of_the_program(tmp_path: Path, command: list[str], code: int) -> None:
    done = _greentrain("measure", "--", *command, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    if code in (126, 127):
        assert "cannot start" in done.stderr and not list((tmp_path / "runs").iterdir())


def test_measure_begins_before_the_program(tmp_path: Path) -> None:
    done = _greentrain("measure", "--", "sh", "-c", "date +%s.%N > began", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (record,) = _runs(tmp_path).values()
    assert record.ranks[0].opens[0]["t"] < float((tmp_path / "began").read_text())
    assert record.totals.energy_j > 0


def test_measure_runs_the_program_where_sensors_do_not_open(tmp_path: Path) -> None:
    config = f"power: {{meters: [rapl], rapl_root: {tmp_path / 'absent'}}}\n"
    (tmp_path / "rapl.yaml").write_text(config, encoding="utf-8")
    code = "print('trained'); raise SystemExit(7)"
    done = _greentrain("measure", "-c", "rapl.yaml", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, "trained\n"), done.stderr
    assert "the program runs, but is not measured: no RAPL counter" in done.stderr
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("code", "word", "exit_code"),
    [("raise SystemExit(3)", "failed", 3), ("import os; os.kill(os.getpid(), 9)", "failed", 137), ("", "finished", 0)],
)
def test_how_a_measured_program_ended_is_kept(tmp_path: Path, code: str, word: str, exit_code: int) -> None:
    done = _greentrain("measure", "--summary", "s.json", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    state = json.loads((tmp_path / "s.json").read_text())["state"]
    assert (state["word"], state["exit_code"]) == (word, exit_code)
    assert re.search(r"^greentrain: report runs/python\S+/report.html$", done.stderr, re.MULTILINE), done.stderr


def test_measure_passes_options_of_the_program_on(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:])"
    done = _greentrain("measure", "--", sys.executable, "-c", code, "--name", "x", "--", "-c", "y", cwd=tmp_path)
    assert done.stdout.strip() == "['--name', 'x', '--', '-c', 'y']"


@pytest.mark.alone
def test_measure_counts_the_whole_process_tree(tmp_path: Path) -> None:
    child = SPIN.format(s=1.0)
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    done = _greentrain("measure", "--name", "tree", "--", sys.executable, "-c", parent, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    idle = _greentrain("measure", "--name", "idle", "--", "sleep", "1.1", cwd=tmp_path)
    assert idle.returncode == 0, idle.stderr
    runs = {name.partition("-")[0]: record.totals for name, record in _runs(tmp_path).items()}
    assert runs["tree"].by_provenance.keys() <= {"modelled", "measured"}
    assert runs["tree"].energy_j / runs["tree"].duration_s > 1.2 * runs["idle"].energy_j / runs["idle"].duration_s
    assert "report" in done.stderr and (tmp_path / "runs").glob("tree-*/report.html")


def test_measure_forwards_sigterm_and_books_to_the_end(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.0), print('saved', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(200)"
    )
    code = "import sys; from greentrain.cli import main; sys.argv[0] = 'greentrain'; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "measure", "--", sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert list(tmp_path.glob("runs/*/rank-00000.jsonl"))
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=240)
    finally:
        process.kill()
        process.communicate()
    assert out == "saved\n", errors
    assert process.returncode == 5, errors
    (record,) = _runs(tmp_path).values()
    assert record.ranks[0].close is not None and record.ranks[0].close["reason"] == "failed"
    assert record.totals.duration_s > 0.5


@pytest.mark.alone
def test_a_measured_program_with_a_session_of_its_own_is_not_charged_twice(tmp_path: Path) -> None:
    inner = f"""
from greentrain import GreenSession
with GreenSession({{"run": {{"name": "inner"}}, "power": {{"meters": "cpu_model"}}}}) as green:
    exec({SPIN.format(s=2.5)!r})
"""
    (tmp_path / "model.yaml").write_text("power: {meters: cpu_model}\n", encoding="utf-8")
    done = _greentrain(
        "measure", "-c", "model.yaml", "--name", "outer", "--", sys.executable, "-c", inner, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    runs = {name.partition("-")[0]: record.totals for name, record in _runs(tmp_path).items()}
    assert runs["outer"].mean_power_w is not None and runs["inner"].mean_power_w is not None
    assert runs["outer"].mean_power_w < 0.75 * runs["inner"].mean_power_w


@pytest.fixture
def two_runs(tmp_path: Path) -> list[Path]:
    config = {"run": {"dir": str(tmp_path / "runs"), "live": False, "report": False}, "power": {"meters": "cpu_model"}}
    folders = []
    for _ in range(2):
        with GreenSession(config) as green:
            time.sleep(0.2)
            green.step(tokens=100)
        assert green.folder is not None
        folders.append(green.folder)
    return folders


def test_report_prints_a_table_and_writes_the_files(tmp_path: Path, two_runs: list[Path]) -> None:
    done = _greentrain("report", str(two_runs[0]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d", done.stdout) and str(two_runs[0] / "report.html") in done.stdout
    assert "\x1b" not in done.stdout
    names = {path.name for path in two_runs[0].iterdir()}
    assert {"report.html", "summary.json", "emissions.csv", "model_card.yaml"} <= names


def test_report_as_json_is_the_summary(tmp_path: Path, two_runs: list[Path]) -> None:
    done = _greentrain("report", "--json", str(two_runs[0]), cwd=tmp_path)
    assert json.loads(done.stdout) == json.loads((two_runs[0] / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_two_runs_are_compared(tmp_path: Path, two_runs: list[Path], option: list[str]) -> None:
    done = _greentrain("report", *option, *map(str, two_runs), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if option:
        json.loads(done.stdout)
    for folder in two_runs:
        assert folder.name[-4:] in re.sub(r"\s|│|┃", "", done.stdout)
    assert not (two_runs[0] / "report.html").exists()
