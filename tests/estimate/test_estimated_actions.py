"""The estimator's table of actions, for a cluster that cannot be profiled: in a plan, a simulation and a real run."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner, Result

from greentrain import GreenSession
from greentrain.carbon.trace import TraceSignal
from greentrain.cli.estimate import estimate
from greentrain.cli.schedule import plan, simulate
from greentrain.cli.terminal import Commands
from greentrain.errors import GreenTrainWarning
from greentrain.ledger.journal import read_journal
from greentrain.policy.action_table import declared
from tests.helpers.flat_meter import FlatMeter

START = "2022-06-01T00:00Z"
HOUR_S = 0.15
"""An hour of the grid, replayed."""
SPEED = 3600.0 / HOUR_S
APP = typer.Typer(cls=Commands)
for command in (estimate, plan, simulate):
    APP.command()(command)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A grid that is dirty for the first half of each day: ten days, of which the last one is replayed."""
    days = [f"2022-05-{day}" for day in range(23, 32)] + ["2022-06-01", "2022-06-02"]
    rows = [f"{day}T{hour:02}:00Z,{500 if hour < 12 else 100}" for day in days for hour in range(24)]
    path = tmp_path / "grid.csv"
    path.write_text("\n".join(["timestamp_utc,g_per_kwh", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load what torch loads late: the replayed day does not wait for it."""
    config = {
        "run": {"dir": str(tmp_path_factory.mktemp("warm")), "report": False},
        "precision": {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0},
    }
    with GreenSession(config, meter=FlatMeter()) as green:
        _train(green)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENTRAIN_CACHE_DIR", str(tmp_path / "cache"))


def _run(*words: str) -> Result:
    result = CliRunner().invoke(APP, words, env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return result


def _table(folder: Path, count: int, device: str = "h100") -> Path:
    path = folder / "actions.yaml"
    words = ("--config", "llama-3-8b", "--tokens", "6e10", "--device", device, "--count", str(count))
    _run("estimate", *words, "--g-per-kwh", "300", "--actions", str(path), "--json")
    return path


def test_a_plan_and_a_simulation_take_it_and_say_assumed(tmp_path: Path, trace: Path) -> None:
    table = _table(tmp_path, 64)
    words = ("--tokens", "1e10", "--deadline", "24", "--trace", str(trace), "--start", START, "--actions", str(table))
    shown = " ".join(_run("plan", *words, "--picture", "none").stdout.split())
    assert "Watts and speeds assumed: declared in" in shown and "bf16 on 64" in shown
    told = json.loads(_run("plan", *words, "--json").stdout)
    assert told["actions"]["provenance"] == "assumed"
    assert told["zones"][0]["saving_vs_static_now"] > 0.5, "half of the day is five times as clean"
    config = tmp_path / "green.yaml"
    config.write_text(
        f"carbon: {{signal: trace, trace_csv: {trace}}}\nprecision: {{gears: [bf16, fp8]}}\n"
        f"policy: {{name: mpc, tokens: 1.0e10, deadline_h: 24, actions: {table}}}\n",
        encoding="utf-8",
    )
    out = ("--windows", "2", "--history-h", "48", "--policy", "mpc", "--pictures", "none", "--out", str(tmp_path / "s"))
    by_config = _run("simulate", str(config), *out).stdout
    assert "Watts and speeds assumed" in " ".join(by_config.split())
    assert _run("simulate", str(config), *out, "--actions", str(table)).stdout == by_config


def _session(tmp_path: Path, trace: Path, table: Path, hours_of_work: float, **policy: Any) -> GreenSession:
    """A job of so many grid hours in FP8, at the speed of the table."""
    fp8 = max(cost.tokens_per_s.mean for cost in declared(table).costs if cost.tokens_per_s)
    config = {
        "run": {"dir": str(tmp_path / "runs"), "id": "one", "book_s": 0.2},
        "power": {"sample_s": 0.02},
        "carbon": {"replay_start": START, "speed": SPEED},
        "precision": {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0},
        "policy": {
            "name": "mpc", "tokens": fp8 * HOUR_S * hours_of_work, "deadline_h": 24.0, "idle_w": 0.0,
            "actions": str(table), **policy,
        },
        "actuators": {"checkpoint": False},
    }  # fmt: skip
    return GreenSession(config, meter=FlatMeter(), signal=TraceSignal(trace, zone="TEST"))


def _train(green: GreenSession) -> None:
    """A step in both gears."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    green.watch(model, optimizer)
    for gear in ("fp8", "bf16"):
        green.shift(gear)
        model(torch.randn(16, 32)).sum().backward()
        optimizer.step()
        green.step(tokens=16)


class _Loop:
    """Trains a small model, and counts tokens at the speed of the table."""

    def __init__(self, green: GreenSession, table: Path) -> None:
        self._green = green
        self._model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._speed = {
            str(cost.action.gear): cost.tokens_per_s.mean for cost in declared(table).costs if cost.tokens_per_s
        }
        self.gears: list[str] = []

    def run(self, until: Callable[[], bool], longest_s: float = 120.0) -> None:
        self._green.watch(self._model, self._optimizer)
        end_s = time.monotonic() + longest_s
        while not until():
            assert time.monotonic() < end_s, "the training did not come to its end"
            self.step()

    def step(self) -> int:
        assert self._green.gears is not None
        gear = str(self._green.gears.box.gear)
        t0_s = time.monotonic()
        time.sleep(0.01)
        self._model(torch.zeros(1, 32))
        self._optimizer.step()
        tokens = round(self._speed[gear] * (time.monotonic() - t0_s))
        self._green.step(tokens=tokens)
        self.gears.append(gear)
        return tokens


def _decisions(green: GreenSession) -> list[Any]:
    assert green.folder is not None
    return [r for r in read_journal(green.folder / "rank-00000.jsonl") if r.get("name") == "decision"]


def _summary(green: GreenSession) -> Any:
    assert green.folder is not None
    return json.loads((green.folder / "summary.json").read_text(encoding="utf-8"))


def test_a_run_plans_with_it_to_the_end_and_its_summary_says_assumed(
    tmp_path: Path, trace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = _table(tmp_path, 1)
    green = _session(tmp_path, trace, table, hours_of_work=6)
    with caplog.at_level("INFO", logger="greentrain"), green:
        _Loop(green, table).run(lambda: any(event["done"] for event in _decisions(green)[-1:]))
    on = [event for event in _decisions(green) if event["action"] is not None]
    assert {event["action"]["gear"] for event in on} == {"fp8"}, "cheaper a token, by the estimate"
    assert {event["action"]["ranks"] for event in on} == {1}
    clean = [event for event in on if event["g_per_kwh"] == 100]
    assert len(clean) >= 3 and len(on) - len(clean) <= 2
    assert green.totals().phase_s["paused"] > 0.5
    plan_ = _summary(green)["plan"]
    assert plan_["provenance"] == "assumed" and plan_["actual_of"] == "table"
    facts = json.loads((green.folder / "run.json").read_text(encoding="utf-8"))["plan"]  # type: ignore[operator]
    assert facts["provenance"] == "assumed"
    assert "assumed" in caplog.text


@pytest.mark.long
def test_gears_that_a_run_measures_take_its_place(tmp_path: Path, trace: Path) -> None:
    table = _table(tmp_path, 1)
    green = _session(tmp_path, trace, table, hours_of_work=1000)
    with green:
        loop = _Loop(green, table)
        loop.run(lambda: bool(_decisions(green)))
        assert green.state_dict()["plan"]["tables"] == {}
        measured = green.profile_gears(loop.step, max_steps=400)
        before = len(_decisions(green))
        loop.run(lambda: len(_decisions(green)) > before)
    assert measured is not None and {cost.provenance for cost in measured.costs} == {"mixed"}
    facts = json.loads((green.folder / "run.json").read_text(encoding="utf-8"))["plan"]  # type: ignore[operator]
    assert facts["provenance"] == "mixed"
    watts = {row["name"]: row["power_w"] * SPEED for row in facts["rows"]}
    assert watts["bf16"] == pytest.approx(250.0, rel=0.2), "of the run's meter, not the 860 W of the estimate"


def test_a_device_without_a_gear_of_the_run_plans_with_the_rest(tmp_path: Path, trace: Path) -> None:
    table = _table(tmp_path, 1, device="a100")
    assert {str(action.gear) for action in declared(table).actions} == {"bf16"}
    green = _session(tmp_path, trace, table, hours_of_work=1000)
    with green:
        loop = _Loop(green, table)
        loop.run(lambda: bool(_decisions(green)))
    facts = json.loads((green.folder / "run.json").read_text(encoding="utf-8"))["plan"]  # type: ignore[operator]
    assert [row["name"] for row in facts["rows"]] == ["off", "bf16 on 1"]


def test_a_table_of_other_widths_ends_the_plan_and_not_the_run(tmp_path: Path, trace: Path) -> None:
    table = _table(tmp_path, 64)
    green = _session(tmp_path, trace, table, hours_of_work=6)
    with pytest.warns(GreenTrainWarning, match="64 x H100-SXM, llama-3-8b, estimated by"), green:
        loop = _Loop(green, table)
        loop.run(lambda: len(loop.gears) >= 5)
    assert green.totals().steps == 5 and not _decisions(green)
