"""What a plan makes of a training's steps: decisions, pauses, rests and departures, on a clock that a test moves."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import ActuatorsConfig, GreenConfig, PolicyConfig, PrecisionConfig, WidthConfig
from greentrain.control import coordination
from greentrain.control.launcher_protocol import Offer
from greentrain.control.plan import schedule
from greentrain.control.plan.planner import PlanMessage, Planner
from greentrain.control.plan.schedule import LOOK_S, Schedule, rest, widths_of
from greentrain.ledger.pue import ConstantPue
from greentrain.policy.action_table import Action, ActionTable, MeanWithCI
from greentrain.policy.check_plan import check
from greentrain.types import Gear, Topology

T0_S = 1_654_041_600.0
H = 3600.0
BF16, FP8 = Action(gear=Gear.BF16), Action(gear=Gear.FP8)
TABLE = ActionTable.declare(
    [{"gear": "bf16", "tokens_per_s": 100, "power_w": 500}, {"gear": "fp8", "tokens_per_s": 150, "power_w": 500}],
    device="declared",
)
WIDE = ActionTable.declare(
    [{"gear": "bf16", "ranks": n, "tokens_per_s": 100 * n, "power_w": 500 * n} for n in (1, 2)], device="declared"
)
OFFER = Offer(attempt=1, ranks=1, min_ranks=1, max_ranks=2, can_wait=True)


class Clock:
    """Time that passes while somebody sleeps, or steps; real and monotonic time in one."""

    def __init__(self) -> None:
        self.s = 1000.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.s

    time = monotonic = __call__

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.s += seconds
        self.meanwhile()


class Run:
    """What a plan needs of a run, and what it has told it."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.run_id, self.topology = "a-run", Topology(rank=rank, world_size=world_size)
        self.facility = ConstantPue(1.2)
        self.warnings: list[str] = []
        self.changes_s: list[float] = []
        self.facts: list[Mapping[str, Any]] = []
        self.left: dict[str, Callable[[], Mapping[str, Any] | None]] = {}
        self.events: list[dict[str, Any]] = []
        self.unix_s: Callable[[], float] = time.time
        self.monotonic_s: Callable[[], float] = time.monotonic

    def warn(self, text: str, then: str = "") -> None:
        self.warnings.append(text)

    def changes(self, t_s: float) -> None:
        self.changes_s.append(t_s)

    def know(self, **facts: Any) -> None:
        self.facts.append(facts["plan"])

    def leave(self, name: str, make: Callable[[], Mapping[str, Any] | None]) -> None:
        self.left[name] = make

    def event(self, name: str, text: str, **more: Any) -> None:
        self.events.append({"name": name, "text": text, **more})


class World:
    """Session and controller of one rank: what the plan asks of them, in order."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.told: list[Any] = []
        self.offer: Offer | None = None
        self.measuring = False
        self.slack: Callable[[float], float]
        self.barred: dict[Gear, str] = {}
        self.joules: Callable[[float, float], Mapping[str, float] | None] = lambda t0_s, t1_s: {
            "GPU-a": 60 * (t1_s - t0_s)
        }

    def begin(self, name: str) -> int:
        self.told.append(("begin", name, self.clock.s))
        return 7

    def end(self, name: str, token: int = 0) -> None:
        assert token == 7
        self.told.append(("end", name, self.clock.s))

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> Mapping[str, float] | None:
        return self.joules(t0_s, t1_s)

    def follow(self, action: Action, reason: str) -> None:
        self.told.append(("follow", action))

    def can(self, action: Action) -> bool:
        return True

    def leave(self, ranks: int, not_before_unix_s: float | None, reason: str) -> None:
        self.told.append(("leave", ranks, not_before_unix_s, reason))

    def vetoes(self) -> Mapping[Gear, str]:
        return self.barred

    def measure(self, steps: float, slack: Callable[[float], float]) -> None:
        self.told.append(("measure", steps))
        self.slack = slack


class Scripted(Planner):
    """Decides what a test has written down, and notes what it is told."""

    script: list[Any]
    """Of every decision: action or None for off, hours until the next one, and more fields of the message."""
    observed: list[tuple[float, float]]
    asked: list[tuple[float, float, bool]]
    held: list[Action]
    bars: list[Mapping[Gear, str]]

    def observe(self, tokens: float, real_s: float) -> None:
        self.observed.append((tokens, real_s))

    def stayed(self, action: Action) -> None:
        self.held.append(action)

    def decide(self, unix_s: float, tokens_done: float, *, vetoed: Any = (), awake: bool = False) -> PlanMessage:
        self.asked.append((unix_s, tokens_done, awake))
        self.bars.append(vetoed)
        action, hours, *more = self.script.pop(0) if self.script else (BF16, 1.0)
        now_s = self.time.at(unix_s)
        what: dict[str, Any] = dict(row=0, action=action, done=False, reason="as written", g_per_kwh=300.0)
        return PlanMessage(**{**what, "grid_s": now_s, "next_s": now_s + hours * H, **(more[0] if more else {})})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(schedule, "time", clock)
    monkeypatch.setattr(schedule, "Planner", Scripted)
    Scripted.script, Scripted.observed, Scripted.asked, Scripted.held, Scripted.bars = [], [], [], [], []
    return clock


class Job:
    """A rank with a plan, whose steps take ten minutes and train a thousand tokens."""

    STEP_S = 600.0

    def __init__(
        self,
        clock: Clock,
        *script: Any,
        declared: ActionTable | None = TABLE,
        run: Run | None = None,
        state: Mapping[str, Any] | None = None,
        speed: float = 1.0,
        offer: Offer | None = None,
        width: WidthConfig | None = None,
        actuators: Mapping[str, Any] | None = None,
        own_clock: bool = True,
        **policy: Any,
    ) -> None:
        Scripted.script += script
        self.clock, self.run, self.world = clock, run or Run(), World(clock)
        self.run.unix_s = self.run.monotonic_s = clock
        self.world.offer = offer
        self.tokens = 0.0
        known: dict[str, Any] = {"name": "mpc", "tokens": 1e6, "deadline_h": 240.0, "idle_w": 50.0}
        hands: dict[str, Any] = {"checkpoint": False, "width": width, **(actuators or {})}
        self.plan = Schedule(
            GreenConfig(
                policy=PolicyConfig(**(known | policy)),
                actuators=ActuatorsConfig(**hands),
                precision=PrecisionConfig(gears=("bf16", "fp8")),
            ),
            run=self.run,  # type: ignore[arg-type]
            signal=ConstantSignal(300.0, zone="test", source="test"),
            grid_time=GridTime(unix_s=clock.s, grid_s=T0_S, speed=speed),
            host=self.world,  # type: ignore[arg-type]
            actors=self.world,
            declared=declared,
            unix_s=clock if own_clock else None,
            elapsed_s=clock if own_clock else None,
            state=state,
        )

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.s += self.STEP_S
            self.tokens += 1000.0
            self.plan.stepped(self.tokens)

    def told(self, what: str) -> list[Any]:
        return [words[1:] for words in self.world.told if words[0] == what]


def test_it_decides_when_a_decision_is_due_and_in_no_other_step(clock: Clock) -> None:
    job = Job(clock, (BF16, 2.0), (FP8, 1.0), (FP8, 4.0))
    job.step(44)
    at_s = [unix_s - 1000.0 for unix_s, _, _ in Scripted.asked]
    assert at_s == pytest.approx([600.0, 600.0 + 2 * H, 600.0 + 3 * H, 600.0 + 7 * H], abs=1.0)
    assert [tokens for _, tokens, _ in Scripted.asked] == [1000.0 * s / 600.0 for s in at_s]
    assert Scripted.observed == [(12_000.0, 2 * H), (6_000.0, H), (24_000.0, 4 * H)], "what was trained since"
    assert job.told("follow") == [(BF16,), (FP8,), (FP8,), (BF16,)]
    decisions = [(event["name"], event["text"], event["step"], event["tokens"]) for event in job.run.events]
    assert decisions[:2] == [("decision", "bf16: as written", 1, 1000.0), ("decision", "fp8: as written", 13, 13_000.0)]


def test_a_pause_holds_the_step_until_the_plan_goes_on_and_is_no_training(clock: Clock) -> None:
    job = Job(clock, (BF16, 1.0), (None, 2.0), (None, 1.0), (FP8, 1.0), (FP8, 1.0))
    job.step(7)  # an hour, and the step in which it is told to pause
    (_, since_s), (_, until_s) = *job.told("begin"), *job.told("end")
    assert since_s == 1000.0 + 7 * 600.0
    assert until_s - since_s == pytest.approx(3 * H, abs=2 * job.STEP_S / 2 + LOOK_S), "half a step a decision"
    assert job.run.changes_s == [since_s, until_s], "sensors are read at both ends, or work would look like rest"
    assert set(clock.slept) == {LOOK_S}, "a word of another thread is heard soon"
    assert job.told("follow") == [(BF16,), (FP8,)]
    job.step(6)
    assert Scripted.observed == [(6_000.0, H), (6_000.0, pytest.approx(H))], "what the pause took is no slow training"
    assert [event["text"] for event in job.run.events[:4]] == [
        "bf16: as written", "off: as written", "off: as written", "fp8: as written",
    ]  # fmt: skip
    assert not any(awake for _, _, awake in Scripted.asked)


def test_somebody_who_wakes_it_has_it_decide_at_once(clock: Clock) -> None:
    job = Job(clock, (None, 5.0), (FP8, 1.0))
    clock.meanwhile = job.plan.wake
    job.step()
    assert [awake for _, _, awake in Scripted.asked] == [False, True]
    assert job.told("follow") == [(FP8,)] and sum(clock.slept) == LOOK_S


def test_the_end_of_the_run_ends_its_pause(clock: Clock) -> None:
    job = Job(clock, (None, 5.0))
    clock.meanwhile = job.plan.close
    job.step()
    assert len(job.told("begin")) == len(job.told("end")) == 1 and len(Scripted.asked) == 1
    assert job.run.facts[-1]["tokens_done"] == 1000.0
    job.step(20)
    assert len(Scripted.asked) == 1, "it is over"


def test_a_checkpoint_is_due_in_the_one_step_before_a_pause(clock: Clock) -> None:
    job = Job(clock, (BF16, 1.0), (None, 1.0), actuators={"checkpoint": True})
    due = []
    for _ in range(9):
        job.step()
        due.append(job.plan.checkpoint_due)
    assert due == [False] * 6 + [True, False, False]
    (_, since_s) = job.told("begin")[0]
    assert since_s == 1000.0 + 8 * 600.0, "the step in which it is written is trained"
    assert len(job.told("begin")) == 1


@pytest.mark.parametrize(
    ("hours", "offer", "defer", "away"),
    [
        (3.0, OFFER, True, True),
        (2.0, OFFER, True, True),
        (1.99, OFFER, True, False),
        (None, OFFER, True, False),
        (3.0, None, True, False),
        (3.0, replace(OFFER, can_wait=False), True, False),
        (3.0, OFFER, False, False),
    ],
)
def test_a_long_pause_is_spent_away_where_somebody_brings_it_back(
    clock: Clock, hours: float | None, offer: Offer | None, defer: bool, away: bool
) -> None:
    resume_s = None if hours is None else T0_S + 600.0 * 10 + hours * H
    off = (None, 1.0, {"resume_s": resume_s, "resume_ranks": 2})
    hands = {"defer": defer, "min_away_s": 2 * H}
    job = Job(clock, off, (BF16, 1.0), offer=offer, actuators=hands, speed=10.0)
    job.step()
    left = job.told("leave")
    if away:
        assert resume_s is not None
        real_s = 1000.0 + (resume_s - T0_S) / 10.0
        assert left == [(2, pytest.approx(real_s), "off: as written")] and job.plan.checkpoint_due
        assert not job.told("begin"), "this step's checkpoint comes first"
    else:
        assert not left and len(job.told("begin")) == 1
    assert [event["away"] for event in job.run.events[:1]] == [away]


def test_where_nobody_says_how_many_ranks_come_back_it_is_as_many(clock: Clock) -> None:
    job = Job(clock, (None, 1.0, {"resume_s": T0_S + 50 * H}), offer=OFFER)
    job.step()
    assert [ranks for ranks, _, _ in job.told("leave")] == [1]


def test_it_asks_for_another_width_and_knows_when_it_did_not_come(clock: Clock) -> None:
    one, two = (Action(gear=Gear.BF16, ranks=n) for n in (1, 2))
    job = Job(clock, (one, 1.0), (two, 1.0), (one, 1.0), declared=WIDE, offer=OFFER, width=WidthConfig(max=2))
    job.step(13)
    assert job.told("leave") == [(2, None, "bf16 on 2: as written")]
    assert Scripted.held == [one], "the launcher could not bring the second rank"


def test_what_may_not_be_used_now_is_told_the_policy(clock: Clock) -> None:
    job = Job(clock)
    job.world.barred = {Gear.FP8: "noise"}
    job.step()
    assert Scripted.bars == [{Gear.FP8: "noise"}]


def test_when_all_tokens_are_done_nothing_is_decided_any_more(clock: Clock) -> None:
    job = Job(clock, (None, 1.0, {"done": True}))
    job.step(30)
    assert len(Scripted.asked) == 1 and not job.told("begin") and not job.told("leave")


def test_while_gears_are_measured_nothing_is_decided_but_steps_count(clock: Clock) -> None:
    job = Job(clock, (BF16, 1.0), declared=None)
    job.step(2)
    assert job.told("measure") == [(1e6 / 1000.0,)], "once, with the number of steps of the whole job"
    job.world.measuring = True
    job.step(5)
    job.world.measuring = False
    assert not Scripted.asked
    job.plan.use(TABLE)
    job.step()
    assert [event["step"] for event in job.run.events] == [8]


def test_a_gear_whose_advantage_is_within_its_error_is_no_choice(clock: Clock) -> None:
    bf16, fp8 = TABLE.costs
    wide, narrow = MeanWithCI(mean=1.3, low=0.8, high=2.1), MeanWithCI(mean=1.3, low=1.2, high=1.4)
    for ratio, choices in ((wide, [None, BF16]), (narrow, [None, BF16, FP8])):
        job = Job(clock, declared=None)
        costs = (replace(bf16, speed_ratio=narrow), replace(fp8, speed_ratio=ratio, efficiency_ratio=wide))
        job.plan.use(replace(TABLE, costs=costs))
        job.step(2)
        assert job.plan.planner is not None and list(job.plan.planner.menu.actions) == choices


def test_without_clocks_of_its_own_it_goes_by_the_runs(clock: Clock) -> None:
    job = Job(clock, (BF16, 2.0), own_clock=False)
    job.step()
    assert [event["grid_s"] for event in job.run.events] == [T0_S + Job.STEP_S]


def test_a_job_that_goes_on_has_as_many_steps_as_one_that_begins(clock: Clock) -> None:
    job = Job(clock, declared=None)
    job.tokens = job.plan.tokens = 400_000.0
    job.step()
    assert job.told("measure") == [(1e6 / 1000.0,)], "by the tokens of a step, not by those of before"


def test_a_job_that_counts_no_tokens_yet_is_one_of_as_many_steps_as_tokens(clock: Clock) -> None:
    job = Job(clock, declared=None)
    job.plan.stepped(0.0)
    assert job.told("measure") == [(1e6,)]


def test_without_a_table_there_is_no_plan_and_that_is_said_once(clock: Clock) -> None:
    job = Job(clock, declared=None)
    job.step()
    job.plan.give_up()
    job.plan.give_up()
    assert job.run.warnings == ["what gears cost was not measured on all ranks, so there is no plan"]
    job.plan.use(TABLE)
    job.step(5)
    assert not Scripted.asked
    planning = Job(clock, (BF16, 1.0))
    planning.step()
    planning.plan.give_up()
    assert not planning.run.warnings and planning.plan.planner is not None, "one that has a table needs no other"


def test_where_there_is_no_plan_no_rank_waits_for_its_word(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    jobs = [Job(clock, declared=None, run=Run(rank, 2)) for rank in range(2)]
    for job in jobs:
        job.step()
    jobs[0].plan.give_up()
    jobs[1].step(10)
    assert jobs[1].run.warnings == [], "it has heard the end, and does not miss rank 0 after ten minutes"


# -- what a resting rank draws ---------------------------------------------------------------------------------


def test_it_rests_once_to_learn_what_a_paused_rank_draws(clock: Clock) -> None:
    job = Job(clock, idle_w=None)
    job.step(3)
    (_, since_s), (_, until_s) = *job.told("begin"), *job.told("end")
    assert until_s - since_s == schedule.REST_S
    assert clock.slept == [schedule.REST_S / 2] * 2
    assert job.plan.state_dict()["idle_w"] == pytest.approx(60.0), "joules of the second half over its seconds"
    assert Scripted.asked and job.run.facts[0]["pausable"] and job.run.facts[0]["held"]
    again = Job(clock, idle_w=None, state=json.loads(json.dumps(job.plan.state_dict())))
    again.step(3)
    assert not again.told("begin"), "a checkpoint knows it"


@pytest.mark.parametrize(
    ("hands", "policy"), [({"pause": False}, {"idle_w": None}), ({}, {"idle_w": 40.0}), ({}, {"released": True})]
)
def test_where_nobody_has_to_know_it_it_does_not_rest(
    clock: Clock, hands: dict[str, Any], policy: dict[str, Any]
) -> None:
    job = Job(clock, actuators=hands, **policy)
    job.step(3)
    assert not job.told("begin") and Scripted.asked
    assert job.run.facts[0]["pausable"] is hands.get("pause", True)
    assert job.run.facts[0]["held"] is ("idle_w" in policy and not hands)


@pytest.mark.parametrize(("spare_s", "rests"), [(2 * schedule.REST_S + 1.0, True), (2 * schedule.REST_S - 1.0, False)])
def test_it_rests_only_where_the_deadline_leaves_time(clock: Clock, spare_s: float, rests: bool) -> None:
    pace = MeanWithCI(mean=1 / 500.0)
    table = replace(TABLE, costs=tuple(replace(cost, steps_per_s=pace) for cost in TABLE.costs))
    job = Job(clock, idle_w=None, declared=table, deadline_h=(600.0 + 999 * 500.0 + spare_s) / H)
    job.step(3)
    assert bool(job.told("begin")) is rests
    assert job.run.facts[0]["pausable"] is rests and bool(job.run.warnings) is not rests


def test_what_measures_knows_how_much_time_the_deadline_leaves(clock: Clock) -> None:
    job = Job(clock, declared=None, speed=2.0, deadline_h=240.0, margin_s=7200.0)
    job.step(1)
    assert job.world.slack(100.0) == pytest.approx(119 * H - 600.0 - 999 * 100.0)
    job.step(1)
    assert job.world.slack(600.0) == pytest.approx(119 * H - 1200.0 - 998 * 600.0)


def test_sensors_that_are_late_are_waited_for_a_little_and_asked_seldom(clock: Clock) -> None:
    job = Job(clock, idle_w=None)
    job.STEP_S = 0.1
    asked: list[float] = []

    def nothing(t0_s: float, t1_s: float) -> None:
        asked.append(clock.s)

    job.world.joules = nothing
    job.step(2)
    rested_s = clock.s
    while not job.run.warnings:
        job.step()
        assert clock.s < rested_s + 60.0
    assert clock.s - rested_s == pytest.approx(schedule.SENSORS_S, abs=LOOK_S + 0.2)
    assert job.run.warnings == [
        "nobody knows what a paused rank draws, so the plan has no pauses: set policy.idle_w (W)"
    ]
    assert len(asked) <= schedule.SENSORS_S / LOOK_S + 2, "not in every step"
    job.step()
    assert job.run.facts[0]["pausable"] is False and Scripted.asked


def test_it_takes_what_sensors_say_late(clock: Clock) -> None:
    job = Job(clock, idle_w=None)
    job.STEP_S = 0.1
    said = job.world.joules
    job.world.joules = lambda t0_s, t1_s: None
    job.step(3)
    assert not Scripted.asked
    job.world.joules = said
    job.step(4)
    assert job.plan.state_dict()["idle_w"] == pytest.approx(60.0) and Scripted.asked and not job.run.warnings


def test_a_rest_begins_with_time_for_clocks_to_fall(clock: Clock) -> None:
    world = World(clock)
    changes_s: list[float] = []
    assert rest(world, 8.0, changes_s.append) == (1004.0, 1008.0)  # type: ignore[arg-type]
    assert world.told == [("begin", "paused", 1000.0), ("end", "paused", 1008.0)]
    assert changes_s == [1000.0, 1004.0, 1008.0], "no reading is of the rest and of what is around it"


# -- what it knows -----------------------------------------------------------------------------------------------


def test_the_deadline_counts_from_the_start_of_the_job_in_the_grids_time(clock: Clock) -> None:
    job = Job(clock, deadline_h=10.0)
    assert (job.plan.job.start_s, job.plan.job.deadline_s) == (T0_S, T0_S + 10 * H)
    clock.s += 1e6
    again = Job(clock, deadline_h=10.0, state=job.plan.state_dict())
    assert again.plan.job == job.plan.job


def test_what_a_restart_took_is_planned_with_where_nothing_else_is_said(clock: Clock) -> None:
    slow, wide = replace(OFFER, resize_s=30.0), WidthConfig(max=2)

    def switch_s(**changed: Any) -> float:
        job = Job(clock, **{"declared": WIDE, "offer": slow, "width": wide, "speed": 20.0, **changed})
        job.step()
        assert isinstance(job.plan.planner, Planner)
        return job.plan.planner._config.switch_s

    assert switch_s() == 30.0 * 20.0, "in the grid's time"
    assert switch_s(switch_s=100.0) == 100.0
    assert switch_s(offer=OFFER) == switch_s(offer=None) == switch_s(width=None) == 0.0


def test_widths_that_nobody_has_measured_are_planned_by_proportion(clock: Clock) -> None:
    job = Job(clock, offer=OFFER, width=WidthConfig(max=2))
    job.step()
    assert [row["name"] for row in job.run.facts[0]["rows"]] == [
        "off",
        "bf16 on 1",
        "fp8 on 1",
        "bf16 on 2",
        "fp8 on 2",
    ]
    narrow = Job(clock)
    narrow.step()
    assert [row["name"] for row in narrow.run.facts[0]["rows"]] == ["off", "bf16", "fp8"]


def test_fp8_may_be_a_share_of_the_steps_only(clock: Clock) -> None:
    job = Job(clock)
    config = replace(job.plan._config, precision=PrecisionConfig(gears=("bf16", "fp8"), fp8_max_share=0.5))
    job.plan._config = config
    job.step()
    speeds = {row["name"]: row["tokens_per_s"] for row in job.run.facts[0]["rows"]}
    assert speeds["fp8"] == pytest.approx(1 / (0.5 / 150 + 0.5 / 100))


def test_widths_that_a_launcher_can_bring_about() -> None:
    said: list[str] = []
    width = WidthConfig(min=1, max=8)
    offer = Offer(attempt=1, ranks=3, min_ranks=2, max_ranks=5, can_wait=False)
    assert widths_of(width, offer, 3, said.append) == (2, 3, 4, 5)
    assert widths_of(WidthConfig(min=4, max=4), offer, 3, said.append) == (3, 4), "its own is among them"
    assert widths_of(None, offer, 3, said.append) == widths_of(width, None, 3, said.append) == (3,)
    assert not said
    assert widths_of(width, offer, 2, said.append) == (2,)
    assert len(said) == 1 and said[0].startswith("the launcher was to start 3 ranks, and there are 2")


def test_the_facts_hold_the_hours_before_the_job_and_until_its_deadline(clock: Clock) -> None:
    job = Job(clock, deadline_h=10.0)
    job.step()
    (facts,) = job.run.facts
    assert facts["hourly_g_per_kwh"] == [300.0] * 10 and facts["past_hourly_g_per_kwh"] == [300.0] * 21 * 24
    assert facts["with_pue"] is False and facts["tokens_done"] == 1000.0 and facts["policy"] == "mpc"
    job.plan.close()
    job.plan.close()
    assert job.run.facts[-1]["tokens_done"] == 1000.0


# -- two ranks ---------------------------------------------------------------------------------------------------


@pytest.fixture
def two(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Job]]:
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    return lambda *script, **more: [
        Job(clock, *(script if rank == 0 else ()), run=Run(rank, 2), **more) for rank in range(2)
    ]


def test_rank_0_alone_decides_and_tells(clock: Clock, two: Callable[..., list[Job]]) -> None:
    first, second = two((BF16, 1.0), (FP8, 1.0), idle_w=40.0)
    for _ in range(30):
        first.step()
        clock.s -= Job.STEP_S  # both in the same ten minutes
        second.step()
    assert first.told("follow") == second.told("follow") and first.told("follow")[:2] == [(BF16,), (FP8,)]
    assert first.plan.planner is not None and second.plan.planner is None
    assert first.run.events and not second.run.events and not second.run.facts


def test_a_rank_that_is_held_goes_on_when_rank_0_says_so_or_ends(
    clock: Clock, two: Callable[..., list[Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for ends in (False, True):
        first, second = two((None, 1.0), (FP8, 1.0))
        for _ in range(3):
            for job in (first, second):
                job.step()
        held: list[int] = []

        def sleep(seconds: float, first: Job = first, held: list[int] = held, ends: bool = ends) -> None:
            """Rank 1 waits; rank 0 takes its step, waits an hour in it, and goes on."""
            clock.s += seconds
            held.append(1)
            if len(held) == 3:
                monkeypatch.setattr(clock, "sleep", lambda seconds: setattr(clock, "s", clock.s + seconds))
                first.plan.close() if ends else first.step()

        monkeypatch.setattr(clock, "sleep", sleep)
        second.step()
        assert len(second.told("begin")) == len(second.told("end")) == 1
        assert second.told("follow") == ([] if ends else [(FP8,)])
        assert not second.run.warnings


def test_the_plan_leaves_its_certificate_and_an_independent_checker_agrees(clock: Clock) -> None:
    job = Job(clock, (BF16, 2.0))
    job.step(2)
    made = job.run.left["plan.json"]()
    assert made is not None
    grams, bound = check(json.dumps(made))
    assert 0 < bound <= grams
