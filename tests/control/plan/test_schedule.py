"""A plan in a training process: measured or declared, in pauses and gears, over ranks and checkpoints."""

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain import GreenSession
from greentrain.carbon.trace import TraceSignal
from greentrain.config.schema import WidthConfig
from greentrain.control import coordination
from greentrain.control.plan import schedule
from greentrain.control.plan.planner import Planner
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.ledger.journal import read_journal
from greentrain.ledger.reader import read_run
from greentrain.policy.action_table import Action
from greentrain.power.detect import NullMeter
from greentrain.types import Gear, Topology
from tests.helpers.fake_launcher import FakeLauncher
from tests.helpers.flat_meter import FlatMeter
from tests.helpers.paced_clock import PacedClock

START = "2022-06-01T00:00Z"
SPEED = 3600.0 / 0.25
"""An hour of the grid in a quarter of a second."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> PacedClock:
    clock = PacedClock()
    clock.rules(monkeypatch)
    return clock


@pytest.fixture
def grid(tmp_path: Path) -> TraceSignal:
    """Every day is dirty for its first half; eight days, the last one replayed."""
    rows = []
    for day in range(10):
        for hour in range(24):
            rows.append(f"2022-05-{23 + day:02}T{hour:02}:00Z,{500 if hour < 12 else 100}")
    text = "\n".join(rows).replace("2022-05-32", "2022-06-01")
    path = tmp_path / "grid.csv"
    path.write_text(f"timestamp_utc,g_per_kwh\n{text}\n", encoding="utf-8")
    return TraceSignal(path, zone="TEST")


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load what torch loads late: the replayed day does not wait for it."""
    config = {
        "run": {"dir": str(tmp_path_factory.mktemp("warm")), "report": False},
        "precision": {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0},
    }
    with GreenSession(config, meter=FlatMeter()) as green:
        loop = Loop(green)
        loop.run(lambda: len(loop.gears) >= 20)


@pytest.fixture(autouse=True)
def short_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(schedule, "REST_S", 0.4)
    monkeypatch.setenv("GREENTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    yield


def actions(tmp_path: Path) -> str:
    path = tmp_path / "actions.yaml"
    rows = "- {gear: bf16, tokens_per_s: 200, power_w: 500}\n- {gear: fp8, tokens_per_s: 400, power_w: 500}\n"
    path.write_text(rows, encoding="utf-8")
    return str(path)


def session(tmp_path: Path, grid: TraceSignal, hours_of_work: float, **policy: Any) -> GreenSession:
    """A job of so many grid hours in FP8 at the declared 400 tokens/s."""
    config = {
        "run": {"dir": str(tmp_path / "runs"), "book_s": 0.2, "report": policy.pop("report", False), "id": "one"},
        "power": {"sample_s": 0.02},
        "carbon": {"replay_start": START, "speed": SPEED},
        "precision": {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0},
        "policy": {
            "name": "mpc",
            "tokens": 400.0 * 0.25 * hours_of_work,
            "deadline_h": 24.0,
            "idle_w": 0.0,
            "actions": actions(tmp_path),
            **policy,
        },
        "actuators": {"checkpoint": False, **policy.pop("actuators", {})},
    }
    config["policy"].pop("actuators", None)
    return GreenSession(config, meter=FlatMeter(), signal=grid)


class Loop:
    """Trains a tiny model at 400 tokens/s in FP8 and half as many in BF16, as the declared table says.

    Args:
        green: The session.
        bf16_s: Time of a step in BF16; of one in FP8 it is 20 ms.
    """

    def __init__(self, green: GreenSession, bf16_s: float = 0.02) -> None:
        self.green, self.bf16_s = green, bf16_s
        self.model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.gears: list[str] = []
        clock = green._clock
        self.sleep = clock.train if isinstance(clock, PacedClock) else time.sleep

    def run(self, until: Callable[[], bool]) -> None:
        self.green.watch(self.model, self.optimizer)
        assert self.green.gears is not None
        end_s = time.monotonic() + 400.0
        while not until():
            assert time.monotonic() < end_s, "it did not come about"
            gear = str(self.green.gears.box.gear)
            self.sleep(0.02 if gear == "fp8" else self.bf16_s)
            self.model(torch.zeros(1, 32))
            self.optimizer.step()
            self.green.step(tokens=8 if gear == "fp8" else 4)
            self.gears.append(str(self.green.gears.box.gear))


def events(green: GreenSession, name: str = "decision") -> list[Any]:
    assert green.folder is not None
    return [r for r in read_journal(green.folder / "rank-00000.jsonl") if r.get("name") == name]


def grid_hour(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() / 3600


def done(green: GreenSession) -> Callable[[], bool]:
    """Return a question that reads the journal now and then: are all tokens trained?"""
    next_s = [0.0]

    def asked() -> bool:
        if time.monotonic() < next_s[0]:
            return False
        next_s[0] = time.monotonic() + 0.2
        decisions = events(green)
        return bool(decisions) and bool(decisions[-1]["done"])

    return asked


def test_without_a_sensor_nobody_knows_what_a_pause_draws(tmp_path: Path, grid: TraceSignal) -> None:
    measured = session(tmp_path, grid, hours_of_work=8, idle_w=None)
    known = pytest.warns(GreenTrainWarning, match="nobody knows what a paused rank draws")
    with known, GreenSession(measured.config, meter=NullMeter(), signal=grid) as green:
        Loop(green).run(lambda: bool(events(green)))
    assert green.folder is not None
    assert read_run(green.folder).run["plan"]["pausable"] is False


def test_it_sleeps_through_the_dirty_half_and_ends_in_time(
    tmp_path: Path, grid: TraceSignal, clock: PacedClock
) -> None:
    green = session(tmp_path, grid, hours_of_work=8)
    with green:
        loop = Loop(green)
        loop.run(done(green))
    decisions = events(green)
    assert decisions[-1]["done"]
    assert decisions[-1]["grid_s"] <= decisions[0]["grid_s"] + 24.5 * 3600
    on = [d for d in decisions if d["action"] is not None]
    assert {d["action"]["gear"] for d in on} == {"fp8"}
    late = [d for d in on if d["g_per_kwh"] == 100]
    assert len(late) >= 6 and len(on) - len(late) <= 2
    totals = green.totals()
    dirty_h = 12 - (decisions[0]["grid_s"] / 3600 - grid_hour(START))
    held_s = len(clock.held_in) * schedule.LOOK_S
    assert held_s == pytest.approx(dirty_h * 0.25, abs=0.5)
    assert held_s <= totals.phase_s["paused"] <= totals.duration_s - 0.02 * len(loop.gears)
    folder = green.folder
    assert folder is not None
    facts = json.loads((folder / "run.json").read_text())["plan"]
    assert facts["provenance"] == "assumed" and facts["policy"] == "mpc" and not facts["held"]
    assert facts["hourly_g_per_kwh"] == [500.0] * 12 + [100.0] * 12
    past = facts["past_hourly_g_per_kwh"]
    assert len(past) == 504 and past[0] is None and past[-24:] == [500.0] * 12 + [100.0] * 12
    assert facts["rows"][0]["name"] == "off" and facts["tokens_done"] >= 790
    assert read_run(folder).run["carbon"]["replayed"].startswith("the grid from 2022-06-01T00:00Z on, 14400 times")


def test_a_checkpoint_is_asked_for_in_the_step_before_a_pause(tmp_path: Path, grid: TraceSignal) -> None:
    green = session(tmp_path, grid, hours_of_work=8, actuators={"checkpoint": True})
    seen: list[tuple[bool, float]] = []
    with green:
        loop = Loop(green)

        def until() -> bool:
            seen.append((green.checkpoint_due, green.totals().phase_s.get("paused", 0.0)))
            return len(seen) > 3

        loop.run(until)
    assert [due for due, _ in seen[:3]] == [False, True, False]


def once_held(clock: PacedClock, act: Callable[[], object]) -> threading.Thread:
    """Return a thread that does something as soon as a pause has begun, and nothing where none begins."""

    def wait() -> None:
        if clock.held.wait(400.0):
            act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_pause_ends_when_somebody_says_so(tmp_path: Path, grid: TraceSignal, clock: PacedClock) -> None:
    green = session(tmp_path, grid, hours_of_work=8)
    with green:
        resuming = once_held(clock, green.resume)
        loop = Loop(green)
        t0_s = clock.unix_s()
        loop.run(lambda: len(loop.gears) >= 4)
        resuming.join()
    assert clock.unix_s() - t0_s < 2.5
    assert "woken by hand" in [event["reason"] for event in events(green)]


def test_a_clock_that_is_set_is_no_time_that_training_took(
    tmp_path: Path, grid: TraceSignal, clock: PacedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed_s: list[float] = []
    monkeypatch.setattr(Planner, "observe", lambda planner, tokens, real_s: observed_s.append(real_s))
    green = session(tmp_path, grid, hours_of_work=8, actuators={"pause": False}, deadline_h=240.0)
    with green:
        loop = Loop(green)
        loop.run(lambda: len(observed_s) >= 2)
        before_s, before = clock.now_s, len(observed_s)
        clock.set_by_s = 5.0  # twenty hours of the grid: a decision is due at once
        loop.run(lambda: len(observed_s) >= before + 2)
    assert sum(observed_s[before:]) <= clock.now_s - before_s + 0.25


def test_a_program_that_is_told_to_end_gets_out_of_its_pause(
    tmp_path: Path, grid: TraceSignal, clock: PacedClock
) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: told.append(signum))
    over = threading.Event()

    def end() -> None:
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    ending = once_held(clock, end)
    try:
        green = session(tmp_path, grid, hours_of_work=8)
        with green:
            loop = Loop(green)
            loop.run(lambda: bool(told))
    finally:
        over.set()
        clock.held.set()
        ending.join()  # a signal that came after this would end the runner
        signal.signal(signal.SIGTERM, before)
    assert told and "paused" in green.totals().phase_s
    assert [event["reason"] for event in events(green)][-1] == "woken by hand"


def test_without_pauses_it_only_shifts(tmp_path: Path, grid: TraceSignal) -> None:
    green = session(tmp_path, grid, hours_of_work=8, actuators={"pause": False})
    with green:
        Loop(green).run(done(green))
    assert all(event["action"] is not None for event in events(green)[:-1])
    assert "paused" not in green.totals().phase_s


@pytest.mark.long
def test_the_table_is_measured_where_none_is_declared(tmp_path: Path, grid: TraceSignal) -> None:
    green = session(tmp_path, grid, hours_of_work=8, actions=None, idle_w=None, tokens=5e4, deadline_h=4800.0)
    with green:
        Loop(green, bf16_s=0.04).run(lambda: len(events(green)) > 0)  # told apart on a busy machine, too
    assert green.action_table is not None and green.folder is not None
    facts = json.loads((green.folder / "run.json").read_text())["plan"]
    assert facts["held"] and facts["provenance"] == "mixed"
    rows = {row["name"]: row for row in facts["rows"]}
    assert rows["off"]["power_w"] * SPEED == pytest.approx(250.0, rel=0.1), "the meter is flat, at rest too"
    for name, gear in (("fp8", Gear.FP8), ("bf16", Gear.BF16)):
        cost = green.action_table.of(Action(gear=gear))
        assert cost is not None and cost.tokens_per_s is not None
        assert rows[name]["tokens_per_s"] * SPEED == pytest.approx(cost.tokens_per_s.mean), "a row is what was measured"


def test_a_resumed_run_keeps_its_deadline_and_its_tokens(tmp_path: Path, grid: TraceSignal) -> None:
    green = session(tmp_path, grid, hours_of_work=8, actuators={"pause": False}, deadline_h=240.0)
    with green:
        Loop(green).run(lambda: green.totals().tokens >= 100 and len(events(green)) > 0)
        state = green.state_dict()
        start_s = events(green)[0]["grid_s"]
    before = len(events(green))
    again = session(tmp_path, grid, hours_of_work=8, actuators={"pause": False}, deadline_h=240.0)
    again.load_state_dict(json.loads(json.dumps(state)))
    with again:
        Loop(again).run(lambda: len(events(again)) >= before + 2)
        facts = again.state_dict()["plan"]
    assert again.folder is not None
    told = json.loads((again.folder / "run.json").read_text())["plan"]
    assert told["tokens_done"] == again.state_dict()["progress"]["tokens"] and not told["pausable"]
    assert facts["start_s"] == state["plan"]["start_s"] == datetime.fromisoformat(START).timestamp() <= start_s
    assert again.state_dict()["progress"]["tokens"] > state["progress"]["tokens"] >= 100


@pytest.mark.parametrize(
    "fails", ["no row of the table fits", "the policy breaks in a step", "the policy breaks in a pause"]
)
def test_a_plan_that_breaks_lets_all_ranks_go_on(
    tmp_path: Path, grid: TraceSignal, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    good = 0 if "step" in fails else 2
    decided = [0]

    def decide(self: Planner, *args: Any, **kwargs: Any) -> Any:
        decided[0] += 1
        if decided[0] > good:
            raise ZeroDivisionError(f"a bug of ours, {fails}")  # warned of once a text
        return right(self, *args, **kwargs)

    right = Planner.decide
    monkeypatch.setattr(Planner, "decide", decide)
    greens = [session(tmp_path, grid, hours_of_work=8) for _ in range(2)]
    if "table" in fails:
        table = tmp_path / "actions.yaml"
        table.write_text(
            "- {gear: fp32, tokens_per_s: 200, power_w: 500}\n- {gear: fp16, tokens_per_s: 9, power_w: 9}\n",
            encoding="utf-8",
        )
        greens = [GreenSession(green.config, meter=FlatMeter(), signal=grid) for green in greens]
    for rank, green in enumerate(greens):
        green.start(Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="h"))
    steps = [0, 0]

    def run(rank: int) -> None:
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        optimizer = torch.optim.AdamW(model.parameters())
        greens[rank].watch(model, optimizer)
        for _ in range(20):
            optimizer.step()
            greens[rank].step(tokens=4)
            steps[rank] += 1

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    with pytest.warns(GreenTrainWarning):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(400)
        for green in greens:
            green.close()
    assert steps == [20, 20]


def test_two_ranks_sleep_and_wake_after_the_same_step(
    tmp_path: Path, grid: TraceSignal, monkeypatch: pytest.MonkeyPatch, clock: PacedClock
) -> None:
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    greens = []
    for rank in range(2):
        green = session(tmp_path, grid, hours_of_work=8)
        green.start(Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="h"))
        greens.append(green)
    barrier = threading.Barrier(2)
    steps: list[list[tuple[int, str, bool]]] = [[], []]
    """Of every rank and step: its number, the gear after it, and whether the rank was held in it."""
    holds: list[list[schedule.Pause]] = [[], []]
    hold = schedule.Pause.hold

    def noted(self: schedule.Pause, done: Callable[[], bool]) -> bool:
        holds[int(threading.current_thread().name.removeprefix("rank "))].append(self)
        return hold(self, done)

    monkeypatch.setattr(schedule.Pause, "hold", noted)

    def run(rank: int) -> None:
        green = greens[rank]
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        optimizer = torch.optim.AdamW(model.parameters())
        green.watch(model, optimizer)
        assert green.gears is not None
        for step in range(60):
            barrier.wait(400)
            clock.train(0.02)
            optimizer.step()
            before = len(holds[rank])
            green.step(tokens=4)
            steps[rank].append((step, str(green.gears.box.gear), len(holds[rank]) > before))

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(400)
    for green in greens:
        green.close()
    assert steps[0] == steps[1] and len(steps[0]) == 60
    assert any(held for _, _, held in steps[0])
    paused = [green.totals().phase_s.get("paused", 0.0) for green in greens]
    slept = [clock.held_in.count(f"rank {rank}") * schedule.LOOK_S for rank in range(2)]
    assert paused[0] >= slept[0] > 1.0 and paused[1] >= slept[1] and paused[1] > 0.0
    gears = {gear for step, gear, _ in steps[0] if step > coordination.LEAD}
    assert gears == {"fp8"}, "once all have heard of the plan"


def test_a_plan_needs_gears(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.name is 'mpc', but precision\.gears is empty"):
        GreenSession({"policy": {"name": "mpc", "tokens": 1e6, "deadline_h": 1.0}})


def test_a_table_without_watts_ends_the_plan_not_the_run(tmp_path: Path, grid: TraceSignal) -> None:
    path = tmp_path / "actions.yaml"
    green = session(tmp_path, grid, hours_of_work=8)
    path.write_text("- {gear: fp32, tokens_per_s: 200, power_w: 500}\n", encoding="utf-8")
    green = GreenSession(green.config, meter=FlatMeter(), signal=grid)
    with pytest.warns(GreenTrainWarning, match="of none that may be used"), green:
        loop = Loop(green)
        loop.run(lambda: len(loop.gears) >= 5)
    assert len(loop.gears) == 5 and not events(green)


def test_a_plan_asks_the_launcher_for_another_width(tmp_path: Path, grid: TraceSignal) -> None:
    launcher = FakeLauncher()
    table = tmp_path / "widths.yaml"
    rows = [f"- {{gear: bf16, ranks: {n}, tokens_per_s: {200 * n}, power_w: {500 * n}}}\n" for n in (1, 2)]
    table.write_text("".join(rows), encoding="utf-8")
    config = session(tmp_path, grid, hours_of_work=12.5, actions=str(table), released=True).config
    wide = dataclasses.replace(config.actuators, pause=False, width=WidthConfig(min=1, max=2))
    green = GreenSession(dataclasses.replace(config, actuators=wide), meter=FlatMeter(), signal=grid, launcher=launcher)
    with pytest.raises(SystemExit), green:
        loop = Loop(green)
        loop.run(lambda: green.checkpoint_due)
        green.checkpoint()
    (request,) = launcher.requests
    assert request.ranks == 2 and request.not_before_unix_s is None
    last = events(green)[-1]
    assert last["action"]["ranks"] == 2
    assert {event["action"]["ranks"] for event in events(green)[:-1]} == {1}


@pytest.mark.long
def test_without_a_launcher_no_other_width_is_planned(tmp_path: Path, grid: TraceSignal) -> None:
    table = tmp_path / "widths.yaml"
    rows = [f"- {{gear: bf16, ranks: {n}, tokens_per_s: {200 * n}, power_w: {500 * n}}}\n" for n in (1, 2)]
    table.write_text("".join(rows), encoding="utf-8")
    config = session(tmp_path, grid, hours_of_work=4, actions=str(table)).config
    wide = dataclasses.replace(config.actuators, width=WidthConfig(min=1, max=2))
    green = GreenSession(dataclasses.replace(config, actuators=wide), meter=FlatMeter(), signal=grid)
    with green:
        Loop(green).run(lambda: bool(events(green)))
    assert green.folder is not None
    told = json.loads((green.folder / "run.json").read_text())["plan"]
    assert [row["name"] for row in told["rows"]] == ["off", "bf16 on 1"]


def test_a_deadline_counts_from_the_start_of_the_launcher(tmp_path: Path, grid: TraceSignal, clock: PacedClock) -> None:
    waited_h = 5.0
    launcher = FakeLauncher(job_unix_s=clock.unix_s() - waited_h * 0.25)
    config = session(tmp_path, grid, hours_of_work=4, actuators={"pause": False}).config
    green = GreenSession(config, meter=FlatMeter(), signal=grid, launcher=launcher)
    with green:
        Loop(green).run(lambda: bool(events(green)))
    (first, *_) = events(green)
    since_h = (first["grid_s"] - datetime.fromisoformat(START).timestamp()) / 3600
    assert waited_h <= since_h < waited_h + 12
    assert green.folder is not None
    told = json.loads((green.folder / "run.json").read_text())["plan"]
    assert told["start_s"] == datetime.fromisoformat(START).timestamp()
