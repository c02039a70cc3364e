"""Starting when the plan would train: on a replayed day, and through the launcher."""

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from greentrain.config.schema import GreenConfig
from greentrain.control.launch.start_window import GreenWindow
from greentrain.errors import ConfigError
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


@pytest.mark.long
def test_the_launcher_starts_when_it_is_green(tmp_path: Path) -> None:
    import json

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
    import json

    job = Launched(tmp_path)
    (tmp_path / "green.yaml").write_text(json.dumps(settings(tmp_path)))
    job.script("")
    code, out = job.run("--config", "green.yaml", "--start", "green", "--", sys.executable, "train.py")
    assert code == 2 and "--actions" in out and not job.said
    code, out = job.run("--start", "green", "--", sys.executable, "train.py")
    assert code == 2 and "plans nothing" in out
