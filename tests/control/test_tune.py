"""Trials of batch sizes: kept on disk, stopped when they are done or hopeless, of a function and of a command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from greentrain.control import tune
from greentrain.control.tune import CommandTraining, RunningTrial, TrialPrice, TuneError, tune_batch
from greentrain.errors import ConfigError, RunFolderError
from greentrain.ledger.totals import Totals
from greentrain.policy.batch_size import SETTLED

COST_J = {16: 300.0, 32: 120.0, 64: 100.0, 128: 400.0}


def train(batch: int, trial: RunningTrial) -> None:
    """Ten epochs, of which the last reaches 0.9."""
    for epoch in range(1, 11):
        if trial.report(0.09 * epoch, Totals(energy_j=COST_J[batch] * epoch / 10, operational_g=batch * epoch)):
            return


def test_the_cheapest_size_is_found_and_kept(tmp_path: Path) -> None:
    told: list[str] = []
    result = tune_batch(train, COST_J, 0.899, default=32, folder=tmp_path, told=told.append)
    assert result.best == 64 and result.costs[64] == pytest.approx(100.0)
    assert result.loss <= SETTLED and len(told) == len(result.trials)
    lost = [t for t in result.trials if t["batch"] == 128]
    assert lost and not lost[0]["reached"] and 200.0 <= lost[0]["cost"] < 400.0  # given up at twice the best
    assert "Best: 64" in str(result)
    again = tune_batch(train, COST_J, 0.899, default=32, folder=tmp_path)
    assert len(again.trials) == len(result.trials)  # settled: nothing is trained again


def test_a_search_that_was_killed_goes_on(tmp_path: Path) -> None:
    whole = tune_batch(train, COST_J, 0.899, default=32, folder=tmp_path / "whole")
    for _ in whole.trials:
        tune_batch(train, COST_J, 0.899, default=32, folder=tmp_path / "parts", trials=1)
        with (tmp_path / "parts" / tune.TRIALS).open("ab") as file:
            file.write(b'{"batch": 64, "cost": 1')  # a line that a kill tore
    parts = tune_batch(train, COST_J, 0.899, default=32, folder=tmp_path / "parts")
    assert [t["batch"] for t in parts.trials] == [t["batch"] for t in whole.trials]


def test_one_process_searches_in_a_folder_and_only_for_the_same_thing(tmp_path: Path) -> None:
    def second(batch: int, trial: RunningTrial) -> None:
        with pytest.raises(RunFolderError, match="another search runs"):
            tune_batch(train, COST_J, 0.899, folder=tmp_path, trials=1)
        train(batch, trial)

    tune_batch(second, COST_J, 0.899, folder=tmp_path, trials=1)
    with pytest.raises(ConfigError, match=r"whose target is 0.899, not 0.95"):
        tune_batch(train, COST_J, 0.95, folder=tmp_path)


def test_carbon_and_money_are_objectives_and_what_is_unknown_is_no_zero(tmp_path: Path) -> None:
    carbon = TrialPrice(objective="carbon")
    result = tune_batch(train, COST_J, 0.899, default=32, price=carbon, folder=tmp_path / "g")
    assert result.best == 16 and result.unit == "g"
    money = TrialPrice(objective="cost", per_kwh=0.3, per_hour=2.0)
    assert money.of(Totals(energy_j=3.6e6, facility_j=7.2e6), 1800.0) == pytest.approx(0.6 + 1.0)
    assert TrialPrice(objective="cost", per_hour=2.0).of(Totals(), 1800.0) == pytest.approx(1.0)
    with pytest.raises(TuneError, match="nobody knows the joules"):
        TrialPrice().of(Totals(), 1.0)
    with pytest.raises(TuneError, match="carbon intensity is not known"):
        carbon.of(Totals(energy_j=1.0, unpriced_j=0.5), 1.0)
    with pytest.raises(ConfigError, match="needs a price"):
        TrialPrice(objective="cost")
    with pytest.raises(TuneError, match="told nothing"):
        tune_batch(lambda batch, trial: None, COST_J, 0.9, folder=tmp_path / "n")


def test_a_metric_that_falls_is_reached_from_above() -> None:
    trial = RunningTrial(number=1, run_id="a", price=TrialPrice(), target=0.5, lower=True)
    assert not trial.report(0.6, Totals(energy_j=1.0))
    assert not trial.report(float("nan"), Totals(energy_j=2.0))
    assert trial.report(0.5, Totals(energy_j=3.0)) and trial.reached and trial.cost == 3.0


SCRIPT = """
import sys, time
from greentrain import GreenSession
batch = int(sys.argv[1])
run = {"live": False, "report": False, "book_s": 0.1, "dir": sys.argv[2]}
power = {"meters": ["cpu_model"], "cpu_tdp_w": 100.0, "cpu_scope": "machine"}
with GreenSession({"run": run, "power": power}) as green:
    for epoch in range(1, 4):
        for _ in range(2):
            time.sleep(0.02)
            green.step(samples=batch)
        print({"loss": 1.0, "eval_accuracy": 0.3 * epoch}, flush=True)
    if len(sys.argv) > 3:
        time.sleep(600)
"""


def test_a_command_is_trained_with_its_energy_read_from_its_run(tmp_path: Path, monkeypatch: Any) -> None:
    script, runs = tmp_path / "train.py", tmp_path / "runs"
    told: list[str] = []
    script.write_text(SCRIPT, encoding="utf-8")
    words = [sys.executable, str(script), "{batch}", str(runs)]
    command = CommandTraining(words, "eval_accuracy", runs=runs, told=told.append)
    result = tune_batch(command, [32], 0.85, folder=tmp_path / "tune", trials=1)
    (kept,) = result.trials
    assert kept["reached"] and kept["metric"] == pytest.approx(0.9) and kept["cost"] == kept["energy_j"] > 0.0
    assert (runs / kept["run_id"] / "run.json").exists() and any("eval_accuracy" in line for line in told)

    monkeypatch.setattr(tune, "LOOK_S", 0.2)  # one that would go on for minutes is ended at its target
    forever = CommandTraining([*words, "wait"], "eval_accuracy", runs=runs)
    (kept,) = tune_batch(forever, [32], 0.85, folder=tmp_path / "wait", trials=1).trials
    assert kept["reached"] and kept["duration_s"] < 100.0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["train"], "has no {batch}"),
        (["no-such-program", "{batch}"], "cannot start 'no-such-program'"),
        ([sys.executable, "-c", "print('accuracy=0.9', {batch})"], "left no run folder"),
    ],
)
def test_what_is_no_trial_says_what_to_do(words: list[str], error: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, TuneError), match=error):
        tune_batch(CommandTraining(words, "accuracy", runs=tmp_path), [8], 0.5, folder=tmp_path / "t", trials=1)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{'eval_accuracy': 0.91, 'epoch': 1.0}", [0.91]),
        ("{'eval_accuracy': '0.91'}", [0.91]),
        ("eval_accuracy=9.1e-1, best eval_accuracy: 1", [0.91, 1.0]),
        ("my_eval_accuracy=3 eval_accuracy_top5=2 eval_accuracy=0.9.1", []),
    ],
)
def test_the_metric_is_read_as_trainers_log_it(line: str, found: list[float]) -> None:
    training = CommandTraining(["{batch}"], "eval_accuracy", runs=Path())
    assert [float(value) for value in training._pattern.findall(line)] == found


def test_the_command_line_searches(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    words = [sys.executable, "-m", "greentrain", "tune", "batch", "--batches", "8", "--metric", "eval_accuracy"]
    words += ["--target", "0.5", "--trials", "1", "--json", "--dir", str(tmp_path / "t"), "--runs", str(tmp_path / "r")]
    words += ["--", sys.executable, str(script), "{batch}", str(tmp_path / "r")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"] == 8 and "trial 1: batch 8" in done.stderr
