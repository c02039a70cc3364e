"""A run that limits the power of its GPU: the limit is measured, chosen, followed by the plan, and put back."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from greentrain.ledger.reader import read_run
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, Wave

pytestmark = pytest.mark.slow

ADMIN_W = 650.0
SCRIPT = """
import json, sys, time
import pynvml, torch
from torch import nn
from greentrain import GreenSession

torch.set_num_threads(1)
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
model = nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
options = json.loads(sys.argv[1])
with GreenSession(options["config"]) as green:
    green.watch(model, optimizer)
    print("trains", flush=True)
    end_s, taken = time.monotonic() + options["longest_s"], 0
    while time.monotonic() < end_s or taken <= 10:
        taken += 1
        share = pynvml.nvmlDeviceGetPowerManagementLimit(gpu) / 650_000
        with green.phase("data"):
            time.sleep(options["data_s"])
        time.sleep(0.02 * (1 + (0.04 if share < 0.9 else 0) + (0.8 if share < 0.7 else 0)))
        model(torch.ones(4, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        green.step(tokens=100)
        if options["until"] and green.action_table is not None:
            break
    time.sleep(options["linger_s"])
"""


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    gpu = FakeGpu(power=(Wave(low_w=600.0),), limit_w=ADMIN_W, obeys_limit=True)
    with FakeDriver([gpu]) as found:
        yield found


def start(tmp_path: Path, driver: FakeDriver, **options: Any) -> "subprocess.Popen[str]":
    config = {
        "run": {"dir": str(tmp_path / "runs"), "id": "one", "report": False, "live": False, "book_s": 1.0},
        "power": {"meters": ["nvml"], "sample_s": 0.05},
        "carbon": {"signal": "constant", "g_per_kwh": 400.0},
        "precision": {"gears": ["fp32"], "probe_every": 0},
        **options.pop("sections", {}),
    }
    given = {"until": True, "longest_s": 240.0, "linger_s": 0.0, "data_s": 0.0, **options, "config": config}
    env = driver.env() | {
        "GREENTRAIN_CACHE_DIR": str(tmp_path / "cache"),
        "GREENTRAIN_CLAIMS_DIR": str(tmp_path / "claims"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(given)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(what: Any, longest_s: float = 120.0) -> None:
    end_s = time.monotonic() + longest_s
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.alone
def test_a_limit_is_measured_chosen_and_put_back(tmp_path: Path, driver: FakeDriver) -> None:
    process = start(tmp_path, driver, linger_s=2.0, sections={"actuators": {"power_cap": {"max_slowdown": 0.3}}})
    seen: set[float] = set()
    while process.poll() is None:
        seen.add(driver.state(0).power_limit_w)
        time.sleep(0.01)
    assert process.returncode == 0, process.communicate()[1]
    assert driver.state(0).power_limit_w == ADMIN_W and {ADMIN_W, 520.0} <= seen <= {ADMIN_W, 520.0, 390.0}
    record = read_run(tmp_path / "runs" / "one")
    (chosen,) = [event for event in record.ranks[0].events if event["name"] == "cap"]
    assert chosen["cap"] == 0.8
    table = {row["action"]["cap"]: row for row in record.run["action_table"]["costs"]}
    assert table[0.8]["power_w"]["mean"] == pytest.approx(520, rel=0.02)
    assert table[1.0]["power_w"]["mean"] == pytest.approx(600, rel=0.02)
    assert table[0.8]["tokens_per_s"]["mean"] / table[1.0]["tokens_per_s"]["mean"] == pytest.approx(1 / 1.04, rel=0.03)
    assert {row["provenance"] for row in table.values()} == {"measured"}
    process.communicate()


def test_a_plan_follows_limits_and_a_kill_leaves_none(tmp_path: Path, driver: FakeDriver) -> None:
    rows = (
        "- {gear: fp32, tokens_per_s: 4800, power_w: 600}\n- {gear: fp32, cap: 0.8, tokens_per_s: 4600, power_w: 520}\n"
    )
    (tmp_path / "actions.yaml").write_text(rows)
    policy = {"name": "mpc", "tokens": 1e6, "deadline_h": 2, "actions": str(tmp_path / "actions.yaml"), "idle_w": 0.0}
    sections = {"policy": policy, "actuators": {"power_cap": {}, "pause": False}}
    process = start(tmp_path, driver, until=False, sections=sections)
    try:
        until(lambda: driver.state(0).power_limit_w == 520.0)
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: driver.state(0).power_limit_w == ADMIN_W)
    finally:
        process.kill()
        process.communicate()
    until(lambda: not list((tmp_path / "claims").glob("cap-*.state")))


@pytest.mark.long
def test_clocks_go_down_while_data_is_waited_for_and_are_free_afterwards(tmp_path: Path, driver: FakeDriver) -> None:
    free = driver.state(0).gpu_clocks_mhz
    sections: dict[str, Any] = {"precision": {}, "actuators": {"clocks": {"window_s": 1.0}}}
    process = start(tmp_path, driver, until=False, data_s=0.02, sections=sections)
    try:
        until(lambda: driver.state(0).gpu_clocks_mhz[1] < 0.86 * free[1])
        assert driver.state(0).gpu_clocks_mhz[1] >= 0.69 * free[1]
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        until(lambda: driver.state(0).gpu_clocks_mhz == free)
    finally:
        process.kill()
        process.communicate()


def test_without_the_right_the_run_goes_on_without_limits(tmp_path: Path) -> None:
    with FakeDriver([FakeGpu(limit_w=ADMIN_W, may_set=False)]) as driver:
        sections: dict[str, Any] = {"actuators": {"power_cap": {}}}
        process = start(tmp_path, driver, longest_s=1.0, sections=sections)
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert errors.count("CAP_SYS_ADMIN") == 1
    assert read_run(tmp_path / "runs" / "one").ranks[0].totals.steps > 10


@pytest.mark.parametrize(
    ("cap", "said"),
    [
        ({"devices": ["GPU-99"]}, "GPU-99"),
        pytest.param({"fractions": [1.0, 0.06]}, "0.06", marks=pytest.mark.long),
    ],
)
def test_what_cannot_be_set_is_said_before_training(
    tmp_path: Path, driver: FakeDriver, cap: dict[str, Any], said: str
) -> None:
    process = start(tmp_path, driver, sections={"actuators": {"power_cap": cap}})
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 1 and "ConfigError" in errors and said in errors and "trains" not in out
