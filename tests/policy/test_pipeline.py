"""The time-energy frontier of a pipeline: beside an exhaustive search, and among the rows that a plan chooses from."""

import itertools
import random
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from greentrain.errors import ConfigError
from greentrain.policy.action_table import ActionTable
from greentrain.policy.menu import Menu
from greentrain.policy.pipeline import PassOption, Pipeline, action_rows, pareto, read_profile
from greentrain.types import Gear

pytest.importorskip("lowtime")
WAITING_W = 60.0


def profile_of(seed: int, stages: int = 2) -> dict[tuple[int, bool], list[PassOption]]:
    """Return stages of different length at three clocks; power is static and cubic."""
    dice, found = random.Random(seed), {}
    for key in itertools.product(range(stages), (False, True)):
        time_s = dice.uniform(0.8, 1.4) * (2 if key[1] else 1)
        found[key] = [
            PassOption(knob=f, time_s=time_s / f**0.8, energy_j=200 * time_s * (0.3 / f**0.8 + 0.7 * f**2))
            for f in (1.0, 0.8, 0.6)
        ]
    return found


def every(pipe: Pipeline, profile: Mapping[tuple[int, bool], list[PassOption]]) -> list[tuple[float, float]]:
    """Return time and energy of the best of all choices of knobs."""
    options = [profile[key[:2]] for key in pipe.order]
    plans = (dict(zip(pipe.order, chosen, strict=True)) for chosen in itertools.product(*options))
    return [(p.step_s, p.energy_j) for p in pareto([pipe.step(plan) for plan in plans])]


@pytest.mark.parametrize(("seed", "schedule"), [(1, "1f1b"), (2, "gpipe")])
def test_the_frontier_is_near_the_best_of_all_choices(seed: int, schedule: str) -> None:
    profile = profile_of(seed)
    pipe = Pipeline(profile, 2, schedule=schedule, waiting_w=WAITING_W)
    found, best = pipe.frontier(), every(pipe, profile)
    assert found[0].step_s == pytest.approx(best[0][0])  # no slower than all at full speed
    for point in found:
        least = min(energy for step_s, energy in best if step_s <= point.step_s * (1 + 1e-9))
        assert least * (1 - 1e-9) <= point.energy_j <= 1.03 * least
    full = pipe.step({key: profile[key[:2]][0] for key in pipe.order})
    assert found[0].energy_j < full.energy_j and found[-1].energy_j < 0.95 * full.energy_j
    for knob in range(3):  # never worse than one clock for all
        alike = pipe.step({key: profile[key[:2]][knob] for key in pipe.order})
        assert any(p.step_s <= alike.step_s * (1 + 1e-9) and p.energy_j <= alike.energy_j * (1 + 1e-9) for p in found)


def test_a_step_lasts_as_the_schedule_says_and_stages_that_wait_draw_power() -> None:
    one = {
        key: [PassOption(knob=1.0, time_s=1.0, energy_j=100.0)] for key in itertools.product(range(3), (False, True))
    }
    for schedule in ("1f1b", "gpipe"):
        pipe = Pipeline(one, 5, schedule=schedule, waiting_w=10.0)
        point = pipe.step({key: one[key[:2]][0] for key in pipe.order})
        assert point.step_s == pytest.approx(2 * (5 + 3 - 1))  # (micro-batches + stages - 1) forwards and backwards
        assert point.energy_j == pytest.approx(30 * 100.0 + 10.0 * (3 * 14 - 30))
    held = [key for key in Pipeline(one, 5, waiting_w=0.0).order if key[0] == 0]
    assert held.index((0, True, 0)) == 3  # 1F1B holds three micro-batches on the first stage, not five


def test_points_gears_and_widths_are_rows_that_one_plan_chooses_among() -> None:
    rows = []
    for gear, seed in ((Gear.BF16, 1), (Gear.FP8, 2)):
        points = Pipeline(profile_of(seed), 2, waiting_w=WAITING_W).frontier()
        for pipelines in (1, 2):
            rows += action_rows(points, gear, tokens=1000.0, stages=2, devices=4, pipelines=pipelines)
    menu = Menu.of(ActionTable.declare(rows, device="pipeline"))
    assert {action.gear for action in menu.actions if action} == {Gear.BF16, Gear.FP8}
    assert {int(width) for width in menu.width} == {0, 8, 16}
    first = rows[0]
    assert first["cap"] == 1.0 and first["power_w"] == pytest.approx(first["tokens_per_s"] / 1000 * 4 * _energy_j(1))
    assert len(menu.hull) > 3  # several points are worth an hour


def _energy_j(seed: int) -> float:
    return Pipeline(profile_of(seed), 2, waiting_w=WAITING_W).frontier()[0].energy_j


HEAD = "stage,instruction,frequency,time,energy\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "holds no row"),
        ("stage,instruction\n0,forward\n", "frequency is missing"),
        (HEAD + "0,sideways,1410,0.1,10\n", "instruction is 'sideways'"),
        (HEAD + "0,forward,1410,0,10\n", "line 2: time is 0"),
        (HEAD + "0,forward,1410,x,10\n", "cannot be read as a profile"),
        (HEAD + "0,forward,1410,0.1,10\n", "lacks the backward of stage 0"),
    ],
)
def test_a_wrong_profile_says_where(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(error)):
        read_profile(tmp_path / "p.csv")


def test_the_command_writes_a_table_that_plans_read(tmp_path: Path) -> None:
    from greentrain.cli.app import app
    from greentrain.policy.action_sources import read_actions

    lines = [
        f"{stage},{('forward', 'backward')[backward]},{o.knob},{o.time_s},{o.energy_j},{gear}"
        for gear, seed in (("bf16", 1), ("fp8", 2))
        for (stage, backward), options in profile_of(seed).items()
        for o in options
    ]
    (tmp_path / "p.csv").write_text(HEAD.replace("\n", ",gear\n") + "\n".join(lines), encoding="utf-8")
    words = ["tune", "pipeline", str(tmp_path / "p.csv"), "--micro-batches", "2", "--tokens", "1000"]
    out = str(tmp_path / "actions.yaml")
    done = CliRunner().invoke(app, [*words, "--waiting-w", "60", "--pipelines", "1,2", "--out", out])
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(Path(out).read_text(encoding="utf-8"))["actions"][0]["gear"] == "bf16"
    assert {cost.action.ranks for cost in read_actions(out).table.costs} == {2, 4}
