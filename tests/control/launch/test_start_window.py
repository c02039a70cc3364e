"""Starting when the plan would train: on a replayed day, and through the launcher."""

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.config.schema import GreenConfig
from greentrain.control.launch import start_window
from greentrain.control.launch.start_window import GreenWindow
from greentrain.errors import CarbonSignalError, ConfigError
from greentrain.policy.action_table import Action
from greentrain.types import Gear
from tests.control.launch.launched import Launched

DAY = datetime(2026, 3, 1, tzinfo=UTC)
SPEED = 7200.0
"""Two hours of the grid in a second."""


def settings(folder: Path, **policy: Any) -> dict[str, Any]:
    """A day that is dirty until noon and clean after; the job takes two hours of it."""
    hours = [(DAY + timedelta(hours=h), 600 if h % 24 < 12 else 50) for h in range(-24 * 22, 96)]
    lines = [f"{moment:%Y-%m-%dT%H:%M:%SZ},{g}" for moment, g in hours]
    (folder / "day.csv").write_text("\n".join(["timestamp_utc,g_per_kwh", *lines]) + "\n")
    # Of the machine's time: a second of it is two hours of the grid's.
    (folder / "table.yaml").write_text("- {gear: fp32, tokens_per_s: 1000, power_w: 300}\n")
    return {
        "carbon": {
            "signal": "trace",
            "trace_csv": str(folder / "day.csv"),
            "replay_start": DAY.isoformat(),
            "speed": SPEED,
        },
        "precision": {"gears": ["fp32"], "probe_every": 0},
        "policy": {"name": "mpc", "tokens": 1000.0, "deadline_h": 20, **policy},
        "run": {"dir": str(folder / "runs")},
    }


def window(folder: Path, job_unix_s: float, **policy: Any) -> GreenWindow:
    return GreenWindow(
        GreenConfig.load(settings(folder, **policy)),
        actions=None,
        ranks=(1, 1),
        job_unix_s=job_unix_s,
        tell=lambda text: pytest.fail(text),
    )


def hours(seconds: float) -> float:
    return seconds * SPEED / 3600


def test_a_dirty_morning_is_waited_out_in_replayed_time(tmp_path: Path) -> None:
    found = window(tmp_path, 1e9, actions=str(tmp_path / "table.yaml"))
    assert found.knows
    at_s = found.opens(1e9, 0.0)
    assert at_s is not None and 11 <= hours(at_s - 1e9) <= 18
    # In the clean afternoon it is at once, and past the deadline too.
    assert found.opens(1e9 + 13 * 3600 / SPEED, 0.0) == 1e9 + 13 * 3600 / SPEED
    late_s = 1e9 + 25 * 3600 / SPEED
    assert found.opens(late_s, 0.0) in (late_s, None)
    found.close()


def test_a_deadline_in_the_morning_leaves_no_time_to_wait(tmp_path: Path) -> None:
    found = window(tmp_path, 1e9, actions=str(tmp_path / "table.yaml"), deadline_h=2.05)
    at_s = found.opens(1e9, 0.0)
    assert at_s is None or hours(at_s - 1e9) < 0.5


def test_without_a_table_nobody_knows_until_an_attempt_has_measured_one(tmp_path: Path) -> None:
    found = window(tmp_path, 1e9)
    assert not found.knows and found.opens(1e9, 0.0) is None
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").write_text("{torn")
    assert found.opens(1e9, 0.0) is None


def test_a_plan_that_fails_starts_the_job_and_says_so_once(tmp_path: Path) -> None:
    told: list[str] = []
    found = GreenWindow(
        GreenConfig.load(settings(tmp_path, actions=str(tmp_path / "table.yaml"))),
        actions=None, ranks=(1, 1), job_unix_s=1e9, tell=told.append,
    )  # fmt: skip
    assert found.opens(float("nan"), 0.0) is None and found.opens(float("nan"), 0.0) is None
    assert len(told) == 1 and "starts now" in told[0]


def test_a_policy_that_plans_nothing_has_no_window(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plans nothing"):
        GreenWindow(GreenConfig(), actions=None, ranks=(1, 1), job_unix_s=0.0, tell=print)


class Plan:
    """Says when it would train, as a test does."""

    def __init__(self, found: float | None, deadline_s: float = 100.0) -> None:
        self.found, self.job = found, SimpleNamespace(deadline_s=deadline_s)
        self.asked: list[tuple[float, float]] = []

    def next_on(self, unix_s: float, tokens_done: float) -> float | None:
        self.asked.append((unix_s, tokens_done))
        return self.found


@pytest.mark.parametrize(
    ("found", "at_s"), [(None, None), (50.0, 50.0), (100.0, 100.0), (500.0, 100.0), (5.0, 10.0), (-1.0, 10.0)]
)
def test_it_starts_when_the_plan_does_but_not_before_it_may_nor_past_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: float | None, at_s: float | None
) -> None:
    opened = window(tmp_path, 0.0)
    plan: Any = Plan(found)
    monkeypatch.setattr(opened, "_planner", plan)
    monkeypatch.setattr(opened, "_time", SimpleNamespace(real=lambda grid_s: grid_s))
    assert opened.opens(10.0, 7.0) == at_s and plan.asked == [(10.0, 7.0)]


def test_a_signal_that_has_to_be_started_is_and_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Live(ConstantSignal):
        def start(self) -> None:
            told.append("start")

        def close(self) -> None:
            told.append("close")

    monkeypatch.setattr(start_window, "open_signal", lambda carbon: Live(300.0, zone="test", source="test"))
    opened = window(tmp_path, 1e9)
    assert told == ["start"]
    opened.close()
    assert told == ["start", "close"]


def test_what_a_job_may_use_is_planned_with(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config["precision"]["gears"] = ["bf16", "fp8"]

    def may(action: Action, **actuators: Any) -> bool:
        loaded = GreenConfig.load({**config, "actuators": actuators})
        found = GreenWindow(loaded, actions=None, ranks=(2, 4), job_unix_s=0.0, tell=print)
        return found._can_do(action)

    assert may(Action(gear=Gear.BF16)) and may(Action(gear=Gear.FP8)) and not may(Action(gear=Gear.FP32))
    assert [n for n in range(1, 7) if may(Action(gear=Gear.BF16, ranks=n))] == [2, 3, 4]
    capped = Action(gear=Gear.BF16, cap=0.8)
    assert not may(capped), "nobody may set a limit"
    limits = {"power_cap": {"fractions": [1.0, 0.8]}}
    assert may(capped, **limits) and may(Action(gear=Gear.BF16), **limits)
    assert not may(Action(gear=Gear.BF16, cap=0.7), **limits)


def test_the_newest_run_of_this_job_says_what_actions_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = window(tmp_path, 1000.0)

    def table_of_run(run: dict[str, Any], path: str) -> Any:
        if run.get("broken"):
            raise CarbonSignalError("a table of another version")
        assert path.endswith("run.json")
        return run.get("table")

    planned: list[Any] = []
    monkeypatch.setattr(start_window, "table_of_run", table_of_run)

    def plan(table: Any) -> Plan:
        planned.append(table)
        return Plan(50.0)

    monkeypatch.setattr(opened, "_plan", plan)

    def run(name: str, created_unix_s: Any, **facts: Any) -> None:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"created_unix_s": created_unix_s, **facts}))

    run("before", 999.0, table="of another job")
    run("a", 1000.0)  # has measured nothing
    assert opened.opens(0.0, 0.0) is None and planned == [], "nobody knows yet"
    for name, created, facts in (
        ("z", 1000.0, {"table": "old"}),
        ("m", 3000.0, {"table": "new"}),
        ("b", 2000.0, {"table": "middle"}),
        ("y", "soon", {"table": "x"}),
        ("x", 4000.0, {"broken": True}),
        ("w", 4000.0, {}),
    ):
        run(name, created, **facts)
    (tmp_path / "runs" / "v").mkdir()
    (tmp_path / "runs" / "v" / "run.json").write_text("[]")
    assert opened.opens(0.0, 0.0) is not None and planned == ["new"]
    opened.opens(0.0, 0.0)
    assert planned == ["new"], "it is measured once"


def test_a_table_that_is_named_counts_before_the_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def read_actions(where: str) -> Any:
        read.append(where)
        return SimpleNamespace(table=None)

    monkeypatch.setattr(start_window, "read_actions", read_actions)
    monkeypatch.setattr(GreenWindow, "_plan", lambda self, table: Plan(None))
    config = GreenConfig.load(settings(tmp_path, actions="of the configuration"))
    for actions in ("named", None):
        GreenWindow(config, actions=actions, ranks=(1, 1), job_unix_s=0.0, tell=print)
    assert read == ["named", "of the configuration"]


def test_the_plan_is_that_of_the_training(tmp_path: Path) -> None:
    opened = window(tmp_path, 1e9, actions=str(tmp_path / "table.yaml"), deadline_h=20, tokens=500.0)
    plan = opened._planner
    assert plan is not None and plan.job.tokens == 500.0 and plan.pausable
    assert plan.job.start_s == DAY.timestamp() and plan.job.deadline_s == DAY.timestamp() + 20 * 3600
    assert float(plan.menu.power_w[0]) == 0.0, "ranks that do not run cost nothing"


def test_another_trouble_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    opened = window(tmp_path, 1e9)
    monkeypatch.setattr(opened, "_tell", told.append)
    for text in ("a", "a", "b", "a"):
        opened._say_once(text)
    assert told == ["a", "b", "a"]


@pytest.mark.long
def test_the_launcher_starts_when_it_is_green(tmp_path: Path) -> None:
    job = Launched(tmp_path)
    config = settings(tmp_path, actions=str(tmp_path / "table.yaml"))
    (tmp_path / "green.yaml").write_text(json.dumps(config))
    job.script("say(time.time() - offer.job_unix_s)")
    start_s = time.monotonic()
    code, out = job.run("--config", "green.yaml", "--start", "green", "--", sys.executable, "train.py")
    assert code == 0 and "waiting until" in out, out
    assert time.monotonic() - start_s > 4
    assert 10 < hours(float(job.said[-1].split()[1])) < 20


def test_green_without_a_table_or_a_plan_is_refused(tmp_path: Path) -> None:
    job = Launched(tmp_path)
    (tmp_path / "green.yaml").write_text(json.dumps(settings(tmp_path)))
    job.script("")
    code, out = job.run("--config", "green.yaml", "--start", "green", "--", sys.executable, "train.py")
    assert code == 2 and "--actions" in out and not job.said
    code, out = job.run("--start", "green", "--", sys.executable, "train.py")
    assert code == 2 and "plans nothing" in out
