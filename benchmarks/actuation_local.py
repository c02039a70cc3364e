"""What acting costs a training that is left alone, a pause in memory, and a power limit: on this machine."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.gears_common import Bench, Row
from greentrain import GreenSession
from greentrain.config.schema import PowerCapConfig
from greentrain.control.actuators.guardian import Guardian
from greentrain.control.actuators.power_cap import open_power_cap
from greentrain.control.launcher_protocol import LauncherFiles, Offer
from greentrain.control.plan.schedule import LOOK_S, Pause
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, build_library
from greentrain.types import Topology

STEP_BAR_US: Final = 3.0
"""What a step may cost more where there is nothing to do."""
ADMIN_W: Final = 650.0


def overhead(bench: Bench) -> list[Row]:
    """Time of ``step()`` with everything that may act on the run, less that without."""
    folder = bench.scratch / "overhead"
    folder.mkdir()
    desk = LauncherFiles(folder)
    desk.write(Offer(attempt=1, ranks=1, min_ranks=1, max_ranks=4, can_wait=True))
    table = folder / "actions.yaml"
    rows = [f"- {{gear: fp32, ranks: {n}, tokens_per_s: {1000 * n}, power_w: {100 * n}}}\n" for n in (1, 2, 4)]
    table.write_text("".join(rows), encoding="utf-8")
    plan = {
        "precision": {"gears": ["fp32"], "probe_every": 0},
        "policy": {"name": "mpc", "tokens": 3.6e7, "deadline_h": 300, "actions": str(table), "released": True},
    }
    width: dict[str, Any] = {"pause": False, "width": {"min": 1, "max": 4}}
    limits: dict[str, Any] = {"power_cap": {}, "clocks": {}}
    ways: dict[str, tuple[dict[str, Any], LauncherFiles | None]] = {
        "nothing": ({}, None),
        "a launcher": ({}, desk),
        "a launcher, limits and clocks": (plan | {"policy": {}, "actuators": limits}, desk),
        "a launcher, limits, clocks and a plan": (plan | {"actuators": limits | width}, desk),
    }
    found: dict[str, float] = {}
    with _driver(bench.scratch):
        for name, (sections, launcher) in ways.items():
            found[name] = _step_us(folder, sections, launcher, bench.pick(20, 3))
    base = found.pop("nothing")
    return [
        Row(case="overhead", what=f"a step with {name}, less one without", unit="us", ours=us - base, bar=STEP_BAR_US)
        for name, us in found.items()
    ]


def pause(bench: Bench) -> list[Row]:
    """How late a pause in memory ends: at its time, and when somebody wakes it."""
    late: dict[str, list[float]] = {"at its planned end": [], "when it is woken": []}
    for _ in range(bench.pick(20, 2)):
        held = Pause()
        end_s = time.monotonic() + 0.4
        held.hold(lambda end_s=end_s: time.monotonic() >= end_s)  # type: ignore[misc]
        late["at its planned end"].append(time.monotonic() - end_s)
        woken_s: list[float] = []
        timer = threading.Timer(0.4, lambda woken_s=woken_s, held=held: (woken_s.append(time.monotonic()), held.wake()))
        timer.start()
        held.hold(lambda: False)
        late["when it is woken"].append(time.monotonic() - woken_s[0])
        timer.join()
    return [
        Row(
            case="pause",
            what=f"a pause in memory, late {name} (mean)",
            unit="s",
            ours=statistics.fmean(values),
            bar=LOOK_S,
        )
        for name, values in late.items()
    ]


def limits(bench: Bench) -> list[Row]:
    """Setting a limit, first and later, and the time until a killed training's is gone; on the fake driver."""
    first_ms, later_ms, restored_ms = [], [], []
    with _driver(bench.scratch) as driver:
        for _ in range(bench.pick(20, 2)):
            guardian = Guardian(library=str(driver.library))
            cap = open_power_cap(PowerCapConfig(dwell_s=0.0), Topology(), _complain, guardian=guardian)
            assert cap is not None
            first_ms.append(_ms(lambda cap=cap: cap.apply(0.8)))
            later_ms.append(_ms(lambda cap=cap: cap.apply(0.6)))
            cap.close()
        for _ in range(bench.pick(20, 2)):
            restored_ms.append(_killed_ms(driver, bench.scratch))
    return [
        Row(
            case="limits",
            what="first power limit, guardian started (median)",
            unit="ms",
            ours=statistics.median(first_ms),
        ),
        Row(case="limits", what="a later one (median)", unit="ms", ours=statistics.median(later_ms)),
        Row(
            case="limits",
            what="from SIGKILL of the training to the administrator's limit (largest)",
            unit="ms",
            ours=max(restored_ms),
            peers={"zeus": "stays set: restored by atexit, and to the maximum", "ecofreq": "stays set"},
        ),
    ]


def _step_us(folder: Path, sections: dict[str, Any], launcher: LauncherFiles | None, repeats: int) -> float:
    import torch

    config = {
        "run": {"dir": str(folder / "runs"), "report": False, "live": False},
        "power": {"meters": ["null"]},
        **sections,
    }
    model = torch.nn.Linear(2, 2)
    with GreenSession(config, launcher=launcher) as green:
        green.watch(model, torch.optim.SGD(model.parameters()))
        green.step(tokens=1)
        best_s = float("inf")
        for _ in range(repeats):
            before_s = time.perf_counter()
            for _ in range(5000):
                green.step(tokens=1)
            best_s = min(best_s, (time.perf_counter() - before_s) / 5000)
            time.sleep(0.05)
    return 1e6 * best_s


@contextlib.contextmanager
def _driver(scratch: Path) -> Iterator[FakeDriver]:
    folder = scratch / "driver"
    folder.mkdir(exist_ok=True)
    names = ("FAKE_NVML_CONFIG", "GREENTRAIN_CLAIMS_DIR", "LD_LIBRARY_PATH")
    before = {name: os.environ.get(name) for name in names}
    with FakeDriver([FakeGpu(limit_w=ADMIN_W)], library=build_library(folder)) as driver, driver.installed():
        os.environ |= {name: driver.env()[name] for name in ("FAKE_NVML_CONFIG", "LD_LIBRARY_PATH")}
        os.environ["GREENTRAIN_CLAIMS_DIR"] = str(scratch / "claims")
        try:
            yield driver
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


VICTIM: Final = """
import time
from greentrain.control.actuators.power_cap import open_power_cap
from greentrain.config.schema import PowerCapConfig
from greentrain.types import Topology

open_power_cap(PowerCapConfig(dwell_s=0.0), Topology(), print).apply(0.8)
print("set", flush=True)
time.sleep(60)
"""


def _killed_ms(driver: FakeDriver, scratch: Path) -> float:
    env = driver.env() | {"GREENTRAIN_CLAIMS_DIR": str(scratch / "claims")}
    process = subprocess.Popen([sys.executable, "-c", VICTIM], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "set\n" and driver.state(0).power_limit_w < ADMIN_W
    process.send_signal(signal.SIGKILL)
    before_s = time.perf_counter()
    while driver.state(0).power_limit_w != ADMIN_W:
        if time.perf_counter() - before_s > 10.0:
            raise RuntimeError("the limit of a killed training was not put back within 10 s")
        time.sleep(1e-4)
    took_ms = 1e3 * (time.perf_counter() - before_s)
    process.communicate()
    while list((scratch / "claims").glob("cap-*.state")):
        time.sleep(1e-3)
    return took_ms


def _ms(call: Any) -> float:
    before_s = time.perf_counter()
    if not call():
        raise RuntimeError("the limit was not set")
    return 1e3 * (time.perf_counter() - before_s)


def _complain(text: str) -> None:
    raise RuntimeError(text)
