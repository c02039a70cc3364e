"""Chaos: faults at random, and at the end nothing is lost, nobody is left over, no setting is changed.

``greentrain launch`` supervises a training on one or two ranks that follows a plan with pauses, power limits, clocks
and widths. For ``GREENTRAIN_CHAOS_S`` seconds (30; 600 before a release) processes are killed and stopped, disks fill
up or become read-only, files are torn, the facility's server and the GPUs' driver fail. Then it has to finish.
``GREENTRAIN_CHAOS_SEED`` gives a seed that failed; it is printed with all faults.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1
from typing import Any

import pytest

from greentrain.control.actuators.driver import repair
from greentrain.control.launcher_protocol import EXIT_REQUEUE
from greentrain.ledger.reader import RankRecord, RunRecord, read_run
from tests.helpers.chaos_seed import chaos_seed
from tests.integration.chaos_faults import LONGEST_S, Faults
from tests.integration.chaos_server import PUE
from tests.integration.chaos_world import ADMIN_W, ASSUMED_PUE, BOOK_S, G_PER_KWH, GPUS, JOB, World

pytest.importorskip("httpx", reason="the extra 'prometheus' is not installed")

SECONDS = float(os.environ.get("GREENTRAIN_CHAOS_S", "30"))
SEED = chaos_seed()
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(SECONDS + 600.0)]
FINISH_S = 180.0
"""Longest wait for a job that nobody disturbs any more (s): far more than it needs on a machine with other work."""
LATE_S = BOOK_S + 2.5 + 10.0
"""Most that a kill may take out of the books (s): an interval, the time by which bookings are late
(greentrain.ledger.active_run.LATE_S), and what a thread may wait for a core on a busy machine."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path, SECONDS)
    try:
        yield found
    finally:
        found.close()


def test_chaos(world: World) -> None:
    faults = Faults(world, SEED)
    try:
        _disturb(world, faults)
        _finish(world, faults)
        _check(world, faults)
    finally:
        lives = [life for life in world.lives() if life["rank"] == 0]
        done = sum(len(life["steps"]) for life in lives)
        print(f"{len(lives)} attempts did {done} steps for {world.steps}; {len(faults.log)} faults")
        states = [world.driver.state(gpu) for gpu in range(GPUS)]
        print("limits and clocks were set", [(state.power_limit_sets, state.gpu_clock_sets) for state in states])
        print(f"GREENTRAIN_CHAOS_SEED={SEED} GREENTRAIN_CHAOS_S={SECONDS:g}", *faults.log, sep="\n")
        print(
            "supervisors ended:", *(f"{at_s:.1f} s: {code} {phase}" for _, at_s, code, phase in world.ends), sep="\n  "
        )
        print(world.said[-20_000:])


def _disturb(world: World, faults: Faults) -> None:
    world.start()
    _until(world.has_checkpoint, 90.0, "no first checkpoint")
    end_s = time.monotonic() + world.seconds
    while time.monotonic() < end_s:
        wait_s, hit = faults.chance.choice((0.05, 0.3, 0.3, 1.0, 2.5, 8.0)), faults.chance.random() < 0.7
        next_s = time.monotonic() + wait_s * faults.chance.uniform(0.5, 1.5)
        while time.monotonic() < min(next_s, end_s) or (
            hit and not world.workers() and time.monotonic() < next_s + 8.0
        ):
            faults.mend()
            if world.tend() == 0:
                faults.log.append(f"{world.now_s:7.2f} s  the job has finished")
                return
            time.sleep(0.02)
        faults.one()


def _finish(world: World, faults: Faults) -> None:
    """Let it go on in peace, from one more start on: that puts right what a driver has refused."""
    faults.mend(all_of_it=True)
    (world.seen / "hurry").touch()
    if world.supervisor is not None:
        world.supervisor.terminate()
    end_s = time.monotonic() + FINISH_S + 1.2 * world.seconds  # the plan may wait until its deadline
    while (world.ends or [(0.0, 0.0, 1, "")])[-1][2] != 0 and world.tend() != 0:
        assert time.monotonic() < end_s, f"the job does not finish: {world.phase}, {world.names()}"
        time.sleep(0.05)


def _check(world: World, faults: Faults) -> None:
    final = json.loads((world.seen / "final.json").read_text())
    lives = world.lives()
    _check_history(world, final["history"], lives)
    _check_supervisors(world, faults)
    _check_one_at_a_time(lives)
    _check_checkpoints(lives)
    _check_like_undisturbed(world, final)
    _until(lambda: not world.processes(), 30.0, lambda: f"processes are left: {world.names()}")
    _check_settings(world)
    (folder,) = world.runs.iterdir()
    assert folder.name == final["run_id"]
    record = read_run(folder)
    _check_books(world, faults, record, lives)
    assert json.loads((world.launch / "state.json").read_text())["phase"] == "done"


def _check_supervisors(world: World, faults: Faults) -> None:
    """None has fallen over: each was killed, told to end, or could not even begin, as a SIGINT came while it did."""
    for began_s, at_s, code, phase in world.ends:
        ill = any(
            name == "launch" and start - 5.0 <= world.began_s + at_s <= end + 5.0 for name, start, end in faults.ill
        )
        killed = (-SIGKILL, -SIGTERM, -SIGINT, -SIGUSR1)  # the last three before it listens
        assert (
            code in (0, EXIT_REQUEUE, 128 + SIGTERM, 128 + SIGINT, *killed)
            or phase == "stopped"
            or (code == 1 and (ill or at_s - began_s < 5.0))
        ), f"a supervisor ended with {code} after {at_s:.1f} s, its job is {phase}"


def _check_history(world: World, history: list[list[int]], lives: list[dict[str, Any]]) -> None:
    """Each step is in the final model once, and a step that was done again had the same samples."""
    assert len(history) == world.steps
    flat = [sample for step in history for sample in step]
    for start in range(0, len(flat) - 51, 52):
        assert sorted(flat[start : start + 52]) == list(range(52)), "an epoch lacks a sample, or has one twice"
    for life in lives:
        for i, step in enumerate(life["steps"]):
            assert step["step"] == life["first_step"] + i
            assert step["samples"] == history[step["step"]], f"step {step['step']} was done with other samples"


def _check_one_at_a_time(lives: list[dict[str, Any]]) -> None:
    """No two attempts have trained at the same time."""
    groups: dict[str, list[float]] = {}
    for life in lives:
        groups.setdefault(life["group"], []).extend(step["t_s"] for step in life["steps"])
    spans = sorted((min(times), max(times), group) for group, times in groups.items() if times)
    for (_, end_s, one), (start_s, _, other) in pairwise(spans):
        assert end_s < start_s, f"attempts {one} and {other} trained at the same time"


def _check_checkpoints(lives: list[dict[str, Any]]) -> None:
    """No attempt began from zero when there was something to go on from, and all its ranks from the same."""
    assert [life for life in lives if life["checkpoint"] is None and life["rank"] == 0 and life["attempt"] > 1] == []
    by_group: dict[str, set[int]] = {}
    for life in lives:
        by_group.setdefault(life["group"], set()).add(life["first_step"])
    assert all(len(first) == 1 for first in by_group.values())


def _check_like_undisturbed(world: World, final: dict[str, Any]) -> None:
    """The model is that of one rank which nobody disturbed."""
    alone = world.folder / "alone"
    (alone / "saved").mkdir(parents=True)
    config = {"run": {"dir": str(alone / "runs"), "report": False, "live": False}, "power": {"meters": ["null"]}}
    options = json.loads((world.seen / "options.json").read_text())
    words = {**options, "config": config, "saved": str(alone / "saved"), "every": world.steps}
    (alone / "options.json").write_text(json.dumps(words))
    (alone / "hurry").touch()
    subprocess.run([sys.executable, str(JOB), str(alone)], check=True, timeout=120)
    undisturbed = json.loads((alone / "final.json").read_text())
    assert undisturbed["history"] == final["history"]
    assert final["loss"] == pytest.approx(undisturbed["loss"], rel=1e-3)


def _check_settings(world: World) -> None:
    """All GPUs are as the administrator had them, and no record of a change is left."""
    for gpu in range(GPUS):
        state = world.driver.state(gpu)
        assert state.power_limit_w == ADMIN_W, f"GPU {gpu} is left at {state.power_limit_w} W"
        assert state.gpu_clocks_mhz == world.untouched.gpu_clocks_mhz, f"GPU {gpu} is left at {state.gpu_clocks_mhz}"
    claims = world.folder / "claims"
    assert not list(claims.glob("cap-*.state*")), [path.read_text() for path in claims.glob("cap-*.state*")]
    assert repair(claims) == []


def _check_books(world: World, faults: Faults, record: RunRecord, lives: list[dict[str, Any]]) -> None:
    """The books are whole but for the moments before a kill, count nothing twice, and call nothing unknown zero."""
    offset_s = time.time() - time.monotonic()
    energy_j = [0.0] * GPUS
    for rank in record.ranks:
        taken_s = [event["t"] for event in rank.events if event["name"] == "claim"]  # another's until then
        for entry in rank.entries:
            is_short = entry.t1_unix_s - entry.t0_unix_s < 0.2  # the counter's tick is 0.1 s: the next one has it
            is_new = any(entry.t0_unix_s - 1.0 <= t_s <= entry.t1_unix_s + 10.0 for t_s in taken_s)
            assert entry.pue == pytest.approx(PUE) or PUE < entry.pue <= ASSUMED_PUE
            assert entry.carbon.g_per_kwh is not None
            assert G_PER_KWH[1] <= entry.carbon.g_per_kwh <= G_PER_KWH[0]
            if entry.energy_j > 0:
                assert entry.operational_g, "energy without a price"
            for uid, device in entry.devices.items():
                if uid.startswith("gpu") or "GPU-" in uid:
                    assert device.energy_j > 0 or device.missing_s > 0 or is_new or is_short, "a gap is booked as zero"
                    energy_j[int(uid[-1])] += device.energy_j
        _check_one_rank(faults, rank, lives, offset_s)
    assert record.ranks[0].close is not None and record.ranks[0].close["reason"] == "finished"
    for gpu in range(GPUS):
        spent_j = world.driver.true_energy_j(gpu, world.began_s, time.monotonic())
        assert 0 < energy_j[gpu] <= 1.01 * spent_j, (
            f"GPU {gpu} has used {spent_j:.0f} J, {energy_j[gpu]:.0f} are booked"
        )
    done = sum(len(life["steps"]) for life in lives if life["rank"] == 0)
    assert record.totals.steps <= done
    assert record.totals.steps >= world.steps * 0.5


def _check_one_rank(faults: Faults, rank: RankRecord, lives: list[dict[str, Any]], offset_s: float) -> None:
    for before, after in pairwise(rank.entries):
        assert after.t0_unix_s >= before.t1_unix_s - 1e-3, "an interval is booked twice"
    booked = [(entry.t0_unix_s - offset_s, entry.t1_unix_s - offset_s) for entry in rank.entries]
    own = [life for life in lives if life["rank"] == rank.rank and life["steps"]]
    for life, later in zip(own, [*own[1:], None], strict=True):
        first_s, last_s = life["steps"][0]["t_s"], life["steps"][-1]["t_s"]
        next_s = float("inf") if later is None else later["born_s"]
        until_s = max((end for start, end in booked if life["born_s"] - 1.0 <= start < next_s), default=first_s)
        ill_s = sum(max(0.0, min(end, last_s) - start) for name, start, end in faults.ill if name == "runs")
        assert last_s - until_s < LATE_S + LONGEST_S + ill_s, (
            f"rank {rank.rank} of attempt {life['attempt']} trained until {last_s:.1f} s, booked until {until_s:.1f} s"
        )


def _until(what: Callable[[], object], longest_s: float, why: "str | Callable[[], str]") -> None:
    end_s = time.monotonic() + longest_s
    while not what():
        assert time.monotonic() < end_s, why if isinstance(why, str) else why()
        time.sleep(0.05)
