"""``greentrain rlhf``: what it prints, writes and returns."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from greentrain.cli.rlhf import app
from tests.simulator.pipeline.tables import YAML
from tools import pipeline_picture


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a table and an engine's statistics."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    Path("ours.yaml").write_text(YAML)
    Path("no-reward.yaml").write_text(re.sub(r"(?m)^  reward:.*\n", "", YAML))
    Path("engine.json").write_text('{"steps": 2, "passes": {"reward": {"busy_s": 6.0}}}')
    return tmp_path


def _run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_simulate_prints_modes_joules_limits_and_sources() -> None:
    code, out, errors = _run(
        "simulate", "ours.yaml", "--grid", "360", "--pue", "1.25", "--cards", "1,2", "--steps", "5"
    )
    assert (code, errors) == (0, "")
    lines = out.splitlines()
    assert "ours: 1\N{THIN SPACE}000 tokens a step, 2 x A100; modelled" in lines[0]
    first = lines[: next(i for i, line in enumerate(lines) if "joules" in line)]
    rows = {tuple(line.split()[:2]): line.split() for line in first}
    assert rows["sequential", "1"][2:5] == ["12.00", "0.83", "83"] and rows["stream", "2"][2] == "8.25"
    assert "x1.25 if reward, reference took no time (20% of the step)" in out
    assert "Break-even: after" in out and "measured, timers: generate 4 s" in out and "assumed, a guess" in out
    assert "off-policy is another algorithm" in out and "Mean of 5 steps" in out


def test_simulate_as_json_says_everything() -> None:
    words = ["--mode", "gpu,eager,late", "--slowdown", "2", "--json"]
    scaling = ["--gpus", "1,8", "--gradient-gb", "16", "--link-gb-s", "50", "--link-latency-us", "5"]
    code, out, errors = _run("simulate", "published", *words, *scaling)
    data = json.loads(out)
    assert code == 0 and not errors
    assert [row["mode"] for row in data["outcomes"]] == ["gpu", "sequential", "late"]
    assert data["outcomes"][1]["step_s"] == pytest.approx(24.36) and data["outcomes"][1]["j_per_token"] is None
    assert data["table"]["stages"]["generate"]["gpu_s"]["kind"] == "published"
    assert data["table"]["stages"]["reward"]["card_s"]["kind"] == "assumed"
    assert data["break_even"] is None and data["grid"]["g_per_kwh"] is None
    assert max(cap["speedup"] for cap in data["caps"]) == pytest.approx(1 / 0.79)
    assert [row["gpus"] for row in data["scaling"]] == [1, 8] and data["scaling"][0]["efficiency"] == 1


def test_a_picture_is_drawn_by_a_tool(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("sys.argv", ["pipeline_picture.py", "published", "p.svg", "--slowdown", "2"])
    pipeline_picture.main()
    assert capsys.readouterr().out == "Picture: p.svg\n" and Path("p.svg").stat().st_size > 10_000


def test_an_engines_statistics_and_watts_are_taken() -> None:
    words = ["--engine", "engine.json", "--card-w", "70:measured", "--card-idle-w", "20:measured", "--json"]
    data = json.loads(_run("simulate", "ours.yaml", "--mode", "stream", *words)[1])
    assert data["outcomes"][0]["stage_j"]["reward on offload"] == pytest.approx(3 * 70)
    assert data["outcomes"][0]["origins"] == ["measured"]


def test_cards_that_stay_do_not_pay_for_their_own_making() -> None:
    words = ["published", "--slowdown", "1", "--card-w", "60", "--card-idle-w", "30", "--embodied-kg", "50", "--json"]
    scaling = ["--gpus", "1,2", "--gradient-gb", "1", "--link-gb-s", "100"]
    asked = ["simulate", *words, *scaling, "--mode", "late", "--grid", "400"]
    leave, stay = (json.loads(_run(*asked, *more)[1]) for more in ([], ["--card-stays"]))
    assert leave["break_even"] == stay["break_even"], "GPUs without cards are what both are held against"
    joules = [[row["home"]["energy_j"] for row in data["scaling"]] for data in (leave, stay)]
    assert joules[0][0] == pytest.approx(21 * 600) and joules[1][0] == pytest.approx(21 * 600 + 21 * 30)
    grid = ["--grid", "400"]
    leave, stay = (json.loads(_run("waterfall", *words, *grid, *more)[1]) for more in ([], ["--card-stays"]))
    assert leave["break_even"] == stay["break_even"]


def test_waterfall_prints_the_ablation_and_what_the_scheduler_chose() -> None:
    words = ["--card", "U55C", "--assume", "--reward-model", "minilm", "--gpu-model", "H100", "--grid", "400"]
    code, out, _ = _run("waterfall", "published", *words)
    assert code == 0
    for word in (
        "baseline: all on the GPUs",
        "+ late reference",
        "+ adaptive batch",
        "+ scheduler",
        "Break-even: never",
    ):
        assert word in out
    assert "The scheduler's choice: all on gpu" in out and "tokens/s at most" in out


def test_sensitivity_over_models_batches_and_grids() -> None:
    words = ["--card", "U55C", "--assume", "--gpu-model", "H100", "--grid", "400", "--mode", "stream"]
    data = json.loads(_run("sensitivity", "published", *words, "--values", "minilm,llama-3-8b", "--json")[1])
    steps = {row["value"]: row["away"]["step_s"] for row in data["points"]}
    assert steps["llama-3-8b"] > 100 > steps["minilm"]
    assert all(row["best"]["plan"]["reward"] == "gpu" and row["break_even"]["never"] for row in data["points"])
    more = [*words, "--reward-model", "minilm"]
    data = json.loads(_run("sensitivity", "published", *more, "--over", "batch", "--values", "1,2", "--json")[1])
    assert data["points"][1]["home"]["step_s"] == pytest.approx(2 * data["points"][0]["home"]["step_s"])
    code, out, _ = _run("sensitivity", "ours.yaml", "--over", "grid", "--values", "100,200")
    assert code == 0 and "g/kWh" in out
    code, out, _ = _run("sensitivity", "ours.yaml", "--grid", "100")
    assert code == 0 and "Making a card: 45 to 70 kg (declared in ours.yaml)" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulate", "none.yaml"], "cannot read the table of stages none.yaml: No such file"),
        (["simulate", "published", "--mode", "lat"], "--mode is 'lat'; known: gpu, sequential"),
        (["simulate", "published", "--mode", ","], "--mode is empty"),
        (["simulate", "published", "--cards", "0"], "--cards holds '0'; it is a list of whole numbers"),
        (["simulate", "published", "--cards", "3"], "3 cards for 2 passes: give at most 2, or a multiple of 2"),
        (["simulate", "published", "--steps", "0"], "0 steps: at least 1"),
        (["simulate", "published", "--chunks", "0"], "chunks=0"),
        (["simulate", "published", "--gpus", "8"], "--gpus needs --gradient-gb and --link-gb-s"),
        (["simulate", "published", "--link-gb-s", "8"], "name the numbers of GPUs with --gpus"),
        (["simulate", "published", "--tokens", "0"], "--tokens is 0"),
        (["simulate", "published", "--tokens", "nan"], "--tokens is nan"),
        (["simulate", "published", "--sequences", "-5"], "--sequences is -5"),
        (["simulate", "published", "--length", "0"], "--length is 0"),
        (["simulate", "published", "--chunks", "100000000", "--mode", "stream"], "at most 10000"),
        (["simulate", "published", "--steps", "100000000"], "at most 100000 are simulated"),
        (["simulate", "published", "--card", "V80", "--reward-model", "minilm"], "V80 lacks"),
        (["waterfall", "published", "--cards", "0"], "0 cards"),
        (["sensitivity", "no-reward.yaml"], "no stage reward"),
        (["sensitivity", "published", "--over", "gird"], "--over is 'gird'; known: reward-model, batch, grid"),
        (["sensitivity", "published", "--mode", "late,stream"], "names 2 modes: a sensitivity is of one"),
        (["sensitivity", "published", "--values", "big"], "--values big: numbers"),
        (["sensitivity", "published", "--over", "grid", "--values", "-5"], "g/kWh is -5.0"),
    ],
)
def test_wrong_input_is_one_line_and_2(words: list[str], message: str) -> None:
    code, out, errors = _run(*words)
    assert (code, out) == (2, "") and errors.startswith("greentrain: ") and message in errors
