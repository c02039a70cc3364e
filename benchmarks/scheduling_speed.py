"""How fast plans are made and simulated."""

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from benchmarks.scheduling_common import HOURS, Bench, Grid, menu
from benchmarks.tables import Table
from greentrain.policy.baselines import LowestWindow, StaticSchedule, Threshold
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import Menu
from greentrain.policy.mpc import Mpc, MpcSwitching
from greentrain.policy.outlook import Outlook
from greentrain.policy.waterfill import solve
from greentrain.simulator.jobs import Jobs
from greentrain.types import S_PER_HOUR

STEP_S: Final = 300.0


def speed(bench: Bench) -> list[Table]:
    """Epochs a second, and what one decision and one plan cost."""
    grid = bench.grids()[0]
    full, on_off = menu(), menu("T1")
    rows: list[list[str]] = []
    good: list[bool] = []

    def row(what: str, unit: str, value: float, bar: float | None, *, least: bool = False) -> None:
        shown, limit, verdict = f"{value:,.0f}" if value >= 100 else f"{value:.3g}", "", ""
        if bar is not None:
            good.append(value >= bar if least else value <= bar)
            limit, verdict = f"{'>=' if least else '<='} {bar:,.0f}", "PASS" if good[-1] else "MISS"
        rows.append([what, unit, shown, limit, verdict])

    many, some = bench.pick(4800, 960), bench.pick(240, 96)
    for name, kernel, n, bar in (
        ("static", DecisionKernel(StaticSchedule(full), full), many, 1e6),
        ("threshold", DecisionKernel(Threshold(on_off), on_off), many, 1e6),
        ("lowest_window", DecisionKernel(LowestWindow(on_off), on_off), many, 1e6),
        ("mpc", DecisionKernel(Mpc(full), full), some, 2e4),
    ):
        row(
            f"simulate {name}, {n} jobs of {HOURS} h",
            "policy-epochs/s",
            _epochs_per_s(grid, kernel, n),
            bar,
            least=True,
        )
    kernel = DecisionKernel(Mpc(full), full)
    seen = _outlook(grid, full)
    row(
        "one decision of mpc, 14 days in steps of 5 min",
        "ms",
        1e3 * _fastest(lambda: kernel.decide(seen)),
        5.0,
    )
    counted = DecisionKernel(MpcSwitching(full, switch_s=600.0), full, switch_s=600.0)
    by_hour = _outlook(grid, full, S_PER_HOUR)
    row(
        "the same under the dynamic programme, in steps of 1 h, as in training",
        "ms",
        1e3 * _fastest(lambda: counted.decide(by_hour)),
        None,
    )
    year = np.interp(
        np.arange(0, 8760, STEP_S / S_PER_HOUR), np.arange(len(grid.trace.g_per_kwh)), grid.trace.g_per_kwh
    )
    weights_s = np.full(len(year), STEP_S)
    tokens = 0.5 * float(full.tokens_per_s[full.static]) * float(weights_s.sum())
    plan_s = _fastest(lambda: solve(year, weights_s, tokens, full))
    row(f"one exact plan, a year in steps of 5 min, {len(full)} actions", "ms", 1e3 * plan_s, 100.0)
    head = ["what", "unit", "measured", "bar", "verdict"]
    notes = ["One thread. The best of a few runs: neighbours on the machine only make it slower."]
    return [
        Table(
            case="speed",
            title="Speed",
            head=head,
            rows=rows,
            notes=notes,
            passed=sum(good),
            missed=len(good) - sum(good),
        )
    ]


def _epochs_per_s(grid: Grid, kernel: DecisionKernel, n: int) -> float:
    hours = [i % (len(grid.trace.g_per_kwh) - 2 * HOURS - 504) for i in range(n)]
    speed = float(kernel.menu.tokens_per_s[kernel.menu.static])
    jobs = Jobs(
        start_unix_s=np.array([grid.trace.start_unix_s + (504 + hour) * S_PER_HOUR for hour in hours]),
        deadline_s=np.full(n, HOURS * S_PER_HOUR),
        tokens=np.full(n, speed * HOURS * S_PER_HOUR / 1.5),
    )
    grid.world.run(kernel, jobs)  # forecasts are issued once
    found = 0.0
    for _ in range(3):
        began_s = time.perf_counter()
        track = grid.world.run(kernel, jobs)
        found = max(found, track.decisions / (time.perf_counter() - began_s))
    return found


def _outlook(grid: Grid, choices: Menu, step_s: float = STEP_S) -> Outlook:
    steps = round(HOURS * S_PER_HOUR / step_s)
    ahead = np.repeat(grid.trace.g_per_kwh[504 : 504 + HOURS], round(S_PER_HOUR / step_s))[None, :]
    jitter = np.random.default_rng(0).normal(1.0, 0.02, (1, steps))
    static = float(choices.tokens_per_s[choices.static])
    one = np.ones(1)
    return Outlook(
        epoch_s=step_s,
        step_s=step_s,
        t_unix_s=grid.starts[:1],
        left_s=one * HOURS * S_PER_HOUR,
        total_s=one * HOURS * S_PER_HOUR,
        tokens_left=one * static * HOURS * S_PER_HOUR / 1.5,
        tokens=one * static * HOURS * S_PER_HOUR / 1.5,
        current=np.array([choices.static]),
        held_s=one * 1e6,
        past_g_per_kwh=np.full((1, 504), 300.0),
        forecast_g_per_kwh=ahead * jitter,
    )


def _fastest(call: Callable[[], object], repeats: int = 9) -> float:
    found = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - began_s)
    return min(found)
