"""``--json``: every command that prints results has it, and prints one document and nothing else."""

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from greentrain import GreenSession
from greentrain.control.fleet.controller import FleetController
from greentrain.control.fleet.engines import Declared
from greentrain.control.fleet.spec import FleetSpec
from greentrain.ledger.fleet_state import FleetState
from tests.helpers import tiny_reward_model
from tests.helpers.command_line import COMMAND, environment, every_command, greentrain, options
from tests.simulator.grids import wandering
from tests.simulator.planning import YAML, write_csv

ESTIMATE = [
    "estimate",
    "--config",
    "llama-3-8b",
    "--tokens",
    "1e9",
    "--device",
    "h100",
    "--count",
    "8",
    "--g-per-kwh",
    "50",
]
CALLS = {
    "doctor": ["doctor"],
    "report": ["report", "runs/A"],
    "compare": ["compare", "runs/A", "--", "runs/B"],
    "audit": ["audit", "--verify", "runs/audit.json"],
    "simulate": [
        "simulate", "plan.yaml", "--trace", "one.csv", "--windows", "2", "--pictures", "none", "--out", "simulated"
    ],
    "fleet simulate": [
        "fleet", "simulate", "--trace", "one.csv", "--count", "9", "--days", "1", "--gpus", "32", "--policy", "fcfs"
    ],
    "fleet plan": ["fleet", "plan", "fleet.yaml", "--declared"],
    "fleet explain": ["fleet", "explain", "gpt", "fleet.yaml"],
    "plan": ["plan", "--tokens", "1e9", "--deadline", "48", "--zones", "US-CAL-CISO"],
    "estimate": ESTIMATE,
    "launch": ["launch", "--status", "job"],
    "config check": ["config", "check", "green.yaml", "plan.yaml"],
    "config show": ["config", "show", "green.yaml"],
    "watch": ["watch", "runs/A", "--once"],
    "fpga explore": ["fpga", "explore", "llama-3-8b", "--assume", "--batch", "1", "--cards", "1"],
    "fpga ranks": ["fpga", "ranks", "reward", "pairs.jsonl", "--precision", "bf16"],
    "fpga devices": ["fpga", "devices"],
    "rlhf simulate": ["rlhf", "simulate", "published", "--mode", "late"],
    "rlhf waterfall": ["rlhf", "waterfall", "published"],
    "rlhf sensitivity": ["rlhf", "sensitivity", "published"],
    "tune batch": [  # a second --json, behind the command, is the command's
        "tune", "batch", "--batches", "32", "--metric", "acc", "--target", "0.9", "--dir", "tuned", "--json", "--",
        "train", "{batch}",
    ],
}  # fmt: skip
MORE = {
    "two runs": ["report", "runs/A", "runs/B"],
    "all runs": ["report", "--all", "runs"],
    "files too": [*ESTIMATE, "--html", "estimate.html", "--actions", "estimate.yaml"],
}
SERVES = {"ui"}
"""Prints its address as JSON and goes on."""
WITHOUT = {
    "measure": "its output is the program's; --summary FILE has the figures",
    "event power": "writes one file, whose path it prints",
    "tune pipeline": "prints a file for policy.actions",
    "fleet run": "goes on until it is ended; fleet explain --json and ui have what it does",
    "daemon": "serves until it is ended; doctor --json has what it allows",
    "serve": "serves until it is ended; /metrics and the API have the figures",
    "config schema": "prints JSON as it is",
    "config docs": "prints a page of documentation",
    "export dashboard": "prints JSON as it is",
    "export alerts": "prints a file for Prometheus",
}


def test_every_command_has_json_or_a_reason() -> None:
    commands = every_command()
    assert CALLS.keys() | SERVES | WITHOUT.keys() == commands.keys()
    assert {name for name, command in commands.items() if "--json" in options(command)} == CALLS.keys() | SERVES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold two runs, an audit, a job, configurations and a grid."""
    path = tmp_path_factory.mktemp("json")
    for run in ("A", "B"):
        config = {
            "run": {"dir": str(path / "runs"), "id": run, "live": False, "report": False},
            "power": {"meters": "cpu_model"},
            "carbon": {"g_per_kwh": 100},
        }
        with GreenSession(config) as green:
            time.sleep(0.1)
            green.step(tokens=10)
    (path / "actions.yaml").write_text(YAML, encoding="utf-8")
    (path / "fleet.yaml").write_text(
        "name: east\nsites: [{name: here, carbon: {signal: typical, zone: US-CAL-CISO}}]\n"
        "pools: [{name: gpu, site: here, nodes: 4}]\njobs: [{name: gpt, hours: 1, deadline_h: 3}]\n",
        encoding="utf-8",
    )
    fleet, state = FleetSpec.read(path / "fleet.yaml"), FleetState(path / "fleet.db")
    controller = FleetController(fleet, Declared(fleet), state)
    controller.start()
    controller.turn()
    controller.close()
    state.close()
    (path / "plan.yaml").write_text(
        "carbon: {signal: typical, zone: US-CAL-CISO}\n"
        "policy: {name: mpc, tokens: 5e7, deadline_h: 24, actions: actions.yaml}\n",
        encoding="utf-8",
    )
    (path / "green.yaml").write_text("power: {meters: cpu_model}\n", encoding="utf-8")
    write_csv(path / "one.csv", wandering(40 * 24))
    tiny_reward_model.write(path / "reward")
    (path / "pairs.jsonl").write_text('{"chosen": "a good film", "rejected": "a bad film"}\n', encoding="utf-8")
    same = {"target": 0.9, "lower": False, "objective": "energy", "per_kwh": 0.0, "per_hour": 0.0, "metric": "acc"}
    settled = [
        {"settings": {**same, "command": ["train", "{batch}", "--json"]}},
        {"batch": 32, "cost": 9.0, "reached": True},
    ]
    (path / "tuned").mkdir()
    (path / "tuned" / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in settled), encoding="utf-8")
    for words in (["audit", "runs", "--write"], ["launch", "--dir", "job", "--engine", "command", "--", "true"]):
        done = greentrain(*words, cwd=path)
        assert done.returncode == 0, done.stderr
    return path


@pytest.mark.sweep
@pytest.mark.parametrize("words", [*CALLS.values(), *MORE.values()], ids=[*CALLS, *MORE])
def test_standard_output_is_one_document(words: Sequence[str], folder: Path) -> None:
    done = greentrain(*words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) and done.stdout.endswith(("}\n", "]\n"))
    said = [line for line in done.stderr.splitlines() if "torchao" not in line and "torch/utils" not in line]
    assert all(line.startswith(("Written: ", "greentrain: ")) for line in said), (
        said
    )  # torchao says when it is imported


@pytest.mark.parametrize("words", [CALLS["report"], CALLS["estimate"]], ids=["report", "estimate"])
def test_colours_that_are_forced_are_in_no_document(words: Sequence[str], folder: Path) -> None:
    done = greentrain(*words, "--json", cwd=folder, FORCE_COLOR="1")
    assert "\x1b" not in done.stdout and json.loads(done.stdout)


def test_watch_prints_a_document_a_line(folder: Path) -> None:
    done = greentrain("watch", "runs/A", "--json", cwd=folder)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines and lines[-1]["over"] and not done.stderr


def test_what_is_wrong_in_a_configuration_is_in_the_document(folder: Path) -> None:
    (folder / "wrong.yaml").write_text("pwer: {}\n", encoding="utf-8")
    done = greentrain("config", "check", "green.yaml", "wrong.yaml", "--json", cwd=folder)
    right, wrong = json.loads(done.stdout)
    assert done.returncode == 2 and done.stderr == f"greentrain: {wrong['error']}\n"
    assert right == {"file": "green.yaml", "ok": True, "error": None} and not wrong["ok"]


def test_the_ui_tells_its_address(folder: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "ui", "runs", "--json", "--cache", "ui.duckdb"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["url"].startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=240)
        assert out == ""
    finally:
        process.kill()
        process.communicate()


def test_measure_writes_the_figures_where_they_are_asked_for(tmp_path: Path) -> None:
    done = greentrain("measure", "--summary", "figures.json", "--", "sh", "-c", "echo mine; exit 3", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "mine\n")
    (run,) = (tmp_path / "runs").iterdir()
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert figures == json.loads((run / "summary.json").read_text(encoding="utf-8")) and figures["run"]["run_id"]


def test_measure_says_before_it_starts_that_it_cannot_write(tmp_path: Path) -> None:
    done = greentrain("measure", "--summary", "absent/figures.json", "--", "touch", "started", cwd=tmp_path)
    assert done.returncode == 2 and "absent/figures.json cannot be written" in done.stderr
    assert not (tmp_path / "started").exists()
