"""A carbon budget in a training: it is told once, a cheaper gear is taken, and the run ends where that is allowed."""

import inspect
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.config.schema import PolicyConfig
from greentrain.control import carbon_budget, coordination
from greentrain.control.carbon_budget import BudgetWatch, CarbonBudget
from greentrain.errors import GreenTrainWarning
from greentrain.ledger.journal import read_journal
from greentrain.ledger.totals import Totals
from greentrain.policy.action_table import ActionTable
from greentrain.policy.menu import OFF, Menu
from greentrain.types import Gear, Topology
from tests.helpers.flat_meter import FlatMeter

SIGNAL = ConstantSignal(360.0, zone="test", source="test")
G_PER_S = 250.0 * 360.0 / 3.6e6
"""What FlatMeter's 250 W emit."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carbon_budget, "LOOK_S", 0.1)


def session(tmp_path: Path, seconds: float, action: str, **sections: Any) -> GreenSession:
    policy = {"budget_g": G_PER_S * seconds, "budget_action": action, **sections.pop("policy", {})}
    run = {"dir": str(tmp_path), "report": False, "book_s": 0.1}
    run |= sections.pop("run", {})
    config = {"run": run, "policy": policy, "power": {"sample_s": 0.02}, **sections}
    return GreenSession(config, meter=FlatMeter(), signal=SIGNAL)


def events(green: GreenSession) -> list[Any]:
    assert green.folder is not None
    return [r for r in read_journal(green.folder / "rank-00000.jsonl") if r.get("name") == "budget"]


def train(green: GreenSession, longest_s: float = 240.0) -> None:
    end_s = time.monotonic() + longest_s
    while not green.should_stop and time.monotonic() < end_s:
        time.sleep(0.01)
        green.step(tokens=10)


def test_a_spent_budget_asks_for_a_checkpoint_and_an_end(tmp_path: Path) -> None:
    green = session(tmp_path, 0.6, "stop")
    with pytest.warns(GreenTrainWarning, match="the budget of"), green:
        before = (green.should_stop, green.checkpoint_due)
        train(green)
        after = (green.should_stop, green.checkpoint_due)
        state = green.state_dict()
    assert (before, after) == ((False, False), (True, True))
    assert [event["budget"] for event in events(green)] == ["near", "stop"]
    totals = green.totals()
    assert 0.59 * G_PER_S <= totals.emissions_g == pytest.approx(G_PER_S * totals.duration_s, rel=0.1)
    assert state["budget"]["said"] == ["near", "stop"] and state["progress"]["tokens"] > 0


def test_a_warning_lets_it_go_on_and_is_told_once(tmp_path: Path) -> None:
    green = session(tmp_path, 0.3, "warn")
    with pytest.warns(GreenTrainWarning) as caught, green:
        end_s = time.monotonic() + 240
        while len(events(green)) < 2 and time.monotonic() < end_s:
            train(green, 0.1)
        train(green, 0.5)
        assert not green.should_stop
    assert [event["budget"] for event in events(green)] == ["near", "spent"]
    assert len([w for w in caught if "budget" in str(w.message)]) == 2


def test_it_takes_the_gear_of_least_energy(tmp_path: Path) -> None:
    table = tmp_path / "actions.yaml"
    table.write_text(
        "- {gear: bf16, tokens_per_s: 100, power_w: 500}\n- {gear: fp8, tokens_per_s: 140, power_w: 500}\n",
        encoding="utf-8",
    )
    precision = {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0}
    green = session(tmp_path, 0.4, "cheaper", precision=precision, policy={"actions": str(table), "tokens": 1e6})
    model = nn.Linear(32, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.warns(GreenTrainWarning) as caught, green:
        watched = nn.Sequential(model)
        green.watch(watched, optimizer)
        assert green.gears is not None and green.gears.box.gear == "bf16"
        end_s = time.monotonic() + 240
        while green.gears.box.gear == "bf16" and time.monotonic() < end_s:
            watched(torch.zeros(1, 32))
            optimizer.step()
            green.step(tokens=10)
        assert green.gears.box.gear == "fp8"
        assert not green.should_stop
    assert any("fp8 needs 29% less energy" in str(warning.message) for warning in caught)


def test_without_a_known_intensity_nothing_is_spent(tmp_path: Path) -> None:
    trace = tmp_path / "grid.csv"
    trace.write_text("timestamp_utc,g_per_kwh\n2022-06-01T00:00Z,100\n2022-06-01T01:00Z,100\n", encoding="utf-8")
    run = {"dir": str(tmp_path), "report": False, "book_s": 0.1}
    config = {
        "run": run,
        "carbon": {"signal": "trace", "trace_csv": str(trace)},
        "policy": {"budget_g": 1e-6, "budget_action": "stop"},
    }
    with GreenSession(config, meter=FlatMeter()) as green:
        train(green, 1.0)
        assert not green.should_stop


def test_all_ranks_end_after_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    barrier = threading.Barrier(2)
    ended: dict[int, int] = {}
    greens = []
    for rank in range(2):
        green = session(tmp_path, 0.6, "stop", run={"id": "one"})
        green.start(Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="h"))
        greens.append(green)

    def run(rank: int) -> None:
        for step in range(1000):
            barrier.wait(240)
            time.sleep(0.01)
            greens[rank].step(tokens=10)
            barrier.wait(240)
            if any(green.should_stop for green in greens):
                ended[rank] = step if greens[rank].should_stop else -1
                return

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    with pytest.warns(GreenTrainWarning, match="budget"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for green in greens:
            green.close()
    assert ended[0] == ended[1] > 0


# -- what follows from grams -------------------------------------------------------------------------------------

TABLE = ActionTable.declare(
    [
        {"gear": "bf16", "tokens_per_s": 100, "power_w": 500},
        {"gear": "fp8", "tokens_per_s": 125, "power_w": 500},
        {"gear": "fp8", "cap": 0.5, "tokens_per_s": 100, "power_w": 300},
    ],
    device="declared",
)
MENU = Menu.of(TABLE, wanted=lambda action: action.cap == 1.0)
"""Off; BF16 at 5 J a token; FP8 at 4."""


@pytest.mark.parametrize(
    ("action", "spent_g", "kinds", "vetoed", "stop"),
    [
        ("stop", 799.9, [], [], False),
        ("warn", 800.0, ["near", "suggest"], [], False),
        ("cheaper", 800.0, ["near", "cheaper"], [1], False),
        ("stop", 800.0, ["near", "cheaper"], [1], False),
        ("warn", 999.9, ["near", "suggest"], [], False),
        ("warn", 1000.0, ["near", "suggest", "spent"], [], False),
        ("cheaper", 1000.0, ["near", "cheaper", "spent"], [1], False),
        ("stop", 999.9, ["near", "cheaper"], [1], False),
        ("stop", 1000.0, ["near", "cheaper", "stop"], [1], True),
    ],
)
def test_what_a_budget_asks_for(action: str, spent_g: float, kinds: list[str], vetoed: list[int], stop: bool) -> None:
    budget = CarbonBudget(1000.0, action, MENU)
    view = budget.look(spent_g, 50.0, 100.0, Gear.BF16)
    assert [event.kind for event in view.events] == kinds
    assert np.flatnonzero(view.vetoed).tolist() == vetoed and not view.vetoed[OFF], "a plan may pause all the same"
    assert view.stop is stop and view.share == spent_g / 1000.0
    again = budget.look(spent_g, 50.0, 100.0, Gear.BF16, reported=kinds)
    assert again.events == () and again.stop is stop and (again.vetoed == view.vetoed).all(), "said once, done always"


def test_grams_that_nobody_knows_spend_nothing() -> None:
    view = CarbonBudget(1e-9, "stop", MENU).look(None, 50.0, 100.0, Gear.BF16)
    assert math.isnan(view.share) and view.events == () and not view.stop and not view.vetoed.any()


def test_what_it_says_of_a_budget_that_is_nearly_spent() -> None:
    def said(tokens_done: float, tokens: float | None, gear: Gear = Gear.BF16, action: str = "warn") -> list[str]:
        view = CarbonBudget(1000.0, action, MENU).look(800.0, tokens_done, tokens, gear)
        return [event.text for event in view.events]

    assert said(50.0, 200.0) == [
        "800 g of the budget of 1 kg are spent (80%), for 25% of the tokens; as until now the whole job takes 3.2 kg",
        "fp8 needs 20% less energy a token than bf16, about 480 g less for the rest of the job: use it, or let"
        " policy.budget_action 'cheaper' do so",
    ]
    assert said(250.0, 200.0)[0].endswith("the whole job takes 800 g"), "more tokens than planned: nothing is left"
    for tokens_done, tokens in ((0.0, 200.0), (50.0, None)):  # nothing to extrapolate from, or to
        assert said(tokens_done, tokens) == [
            "800 g of the budget of 1 kg are spent (80%)",
            "fp8 needs 20% less energy a token than bf16: use it, or let policy.budget_action 'cheaper' do so",
        ]
    assert said(50.0, None, action="cheaper")[1] == (
        "fp8 needs 20% less energy a token than bf16, so it is the only gear from now on"
    )
    assert len(said(50.0, None, Gear.FP8)) == 1, "there is no cheaper one"
    assert said(50.0, None, Gear.FP32)[1].startswith("fp8 needs least energy a token of the gears whose cost is known:")


def test_a_job_of_less_than_a_sample_a_second_has_a_cheapest_gear_too() -> None:
    rows = [{"gear": gear, "tokens_per_s": rate, "power_w": 500} for gear, rate in (("bf16", 0.4), ("fp8", 0.5))]
    menu = Menu.of(ActionTable.declare(rows, device="declared"))
    told = CarbonBudget(1000.0, "warn", menu).look(800.0, 50.0, None, Gear.BF16).events[1].text
    assert told.startswith("fp8 needs 20% less energy a token than bf16:")


def test_what_it_says_of_a_budget_that_is_spent() -> None:
    def said(tokens_done: float, tokens: float | None, action: str = "stop") -> str:
        return CarbonBudget(1000.0, action, MENU).look(1200.0, tokens_done, tokens, Gear.FP8).events[-1].text

    assert said(150.0, 200.0) == (
        "the budget of 1 kg is spent (1.2 kg) with 25% of the tokens left: a checkpoint is taken and the run ends"
    )
    assert said(250.0, 200.0).startswith("the budget of 1 kg is spent (1.2 kg) with 0% of the tokens left")
    assert said(150.0, None, "warn") == (
        "the budget of 1 kg is spent (1.2 kg); policy.budget_action 'warn' lets it go on"
    )


# -- the books of a run ------------------------------------------------------------------------------------------


class Books:
    """A run whose books a test writes, on a clock that the test moves by a second a step."""

    def __init__(self, action: str = "stop", gears: tuple[Gear, ...] = (Gear.BF16, Gear.FP8), **more: Any) -> None:
        self.s, self.looks = 0.0, list[float]()
        self.run_id, self.topology = "a-run", Topology()
        self.sums: Any = SimpleNamespace(emissions_g=0.0, energy_j=1.0, unpriced_j=0.0)
        self.warnings, self.events = list[str](), list[str]()
        self.last_entry: Any = None
        self.ledger: Any = SimpleNamespace(totals=Totals())
        config = PolicyConfig(budget_g=1000.0, budget_action=action)
        self.watch = BudgetWatch(config, self, gears, clock_s=lambda: self.s, **more)  # type: ignore[arg-type]

    def job_sums(self) -> Any:
        self.looks.append(self.s)
        if isinstance(self.sums, Exception):
            raise self.sums
        return self.sums

    def warn(self, text: str, then: str = "") -> None:
        self.warnings.append(text)

    def event(self, name: str, text: str, **more: Any) -> None:
        self.events.append(more["budget"])

    def train(self, steps: int, table: ActionTable | None = TABLE, step_s: float = 1.0) -> bool:
        """Return whether the run is to end."""
        for _ in range(steps):
            self.s += step_s
            self.watch.stepped(100.0 * self.s, Gear.BF16, table)
        return self.watch.stop


@pytest.fixture
def seldom(often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carbon_budget, "LOOK_S", 5.0)


@pytest.mark.usefixtures("seldom")
def test_the_books_are_looked_at_now_and_then_and_what_is_new_is_done() -> None:
    job = Books()
    job.train(60)
    assert 10 <= len(job.looks) <= 13 and job.looks[0] >= 4.0, "every five seconds, not in every step"
    job.sums.emissions_g = 900.0
    assert not job.train(10)
    assert job.events == ["near", "cheaper"] and len(job.warnings) == 2
    assert job.watch.vetoes == {Gear.BF16: "the carbon budget is nearly spent"}
    job.train(30)
    assert job.events == ["near", "cheaper"], "once"
    job.sums.emissions_g = 100.0  # the grid's figures were corrected
    job.train(10)
    assert job.watch.vetoes == {} and job.watch.reported == ("near", "cheaper")
    job.sums.emissions_g = 1000.0
    assert job.train(10) and job.events == ["near", "cheaper", "stop"]
    looks = len(job.looks)
    job.train(60)
    assert len(job.looks) == looks, "it ends: nothing is left to be looked at"


@pytest.mark.usefixtures("seldom")
def test_the_books_of_a_job_whose_steps_become_slow_are_looked_at_as_often() -> None:
    job = Books()
    job.train(2000, step_s=0.1)  # short sequences first, as a curriculum has them
    begin_s = job.s
    job.train(200, step_s=1.0)
    late = [at_s for at_s in job.looks if at_s > begin_s]
    assert len(late) > 30 and late[0] - begin_s < 15.0, "or grams are spent that nobody looks at"


def test_a_machine_whose_clock_is_set_back_looks_on() -> None:
    """By the time of day the next look would be an hour away, and what is spent until then nobody would see."""
    assert inspect.signature(BudgetWatch).parameters["clock_s"].default is time.monotonic


@pytest.mark.usefixtures("seldom")
def test_a_resumed_run_says_nothing_twice_but_still_ends() -> None:
    job = Books(reported=("near", "cheaper", "stop"))
    job.sums.emissions_g = 2000.0
    job.train(10)
    assert job.watch.stop and not job.events and not job.warnings


@pytest.mark.usefixtures("seldom")
@pytest.mark.parametrize(("unpriced_j", "spends"), [(0.0, True), (9.0, True), (10.0, False)])
def test_joules_of_which_no_gram_is_known_spend_nothing(unpriced_j: float, spends: bool) -> None:
    job = Books()
    job.sums = SimpleNamespace(emissions_g=2000.0, energy_j=10.0, unpriced_j=unpriced_j)
    job.train(10)
    assert job.watch.stop is spends


@pytest.mark.usefixtures("seldom")
def test_books_that_cannot_be_read_do_not_end_the_training() -> None:
    job = Books()
    job.sums = ZeroDivisionError("a bug of ours")
    job.train(10)
    assert job.warnings[0] == "the carbon budget could not be looked at (ZeroDivisionError('a bug of ours'))"
    job.sums = SimpleNamespace(emissions_g=2000.0, energy_j=10.0, unpriced_j=0.0)
    job.train(10)
    assert job.watch.stop


@pytest.mark.usefixtures("seldom")
@pytest.mark.parametrize("table", [None, ActionTable(costs=(), device="nothing", created_unix_s=0.0)])
def test_where_no_gear_was_measured_none_is_ruled_out(table: ActionTable | None) -> None:
    job = Books()
    job.sums.emissions_g = 900.0
    job.train(10, table)
    assert job.events == ["near"] and job.watch.vetoes == {}


@pytest.mark.usefixtures("seldom")
def test_only_gears_of_the_run_at_full_power_are_compared() -> None:
    job = Books(gears=(Gear.BF16,))
    job.sums.emissions_g = 900.0
    job.train(10)
    assert job.events == ["near"] and job.watch.vetoes == {}, "FP8 is cheaper, but not this run's"


CAPS = ActionTable.declare(
    [
        {"gear": "bf16", "tokens_per_s": 100, "power_w": 500},
        {"gear": "bf16", "cap": 0.6, "tokens_per_s": 90, "power_w": 360},
        {"gear": "bf16", "cap": 0.3, "tokens_per_s": 40, "power_w": 250},
    ],
    device="declared",
)
"""5 J a token; 4 at 60 % of the power; 6.25 at 30 %."""


@pytest.mark.usefixtures("seldom")
@pytest.mark.parametrize(
    ("table", "gears", "g_per_kwh", "said"),
    [
        (
            CAPS,
            (Gear.BF16,),
            450.0,
            ["bf16 at 60% takes 20% less energy a token at 90% of the speed (assumed)", "33% less", "what FP8"],
        ),
        (TABLE, (Gear.BF16, Gear.FP8), 310.0, []),
        (None, (Gear.BF16, Gear.FP8), None, []),
        (None, (Gear.BF16,), 299.0, ["what FP8 takes was not measured"]),
    ],
)
def test_what_else_would_be_cheaper_is_what_the_run_has_measured(
    table: ActionTable | None, gears: tuple[Gear, ...], g_per_kwh: float | None, said: list[str]
) -> None:
    job = Books(gears=gears)
    job.ledger.totals = Totals(energy_j=3.6e6, facility_j=3.6e6, operational_g=300.0)
    job.last_entry = SimpleNamespace(carbon=SimpleNamespace(g_per_kwh=g_per_kwh))
    job.sums.emissions_g = 900.0
    job.train(10, table)
    ways = job.warnings[0].split("Besides: ")[1].split("; ")
    assert len(ways) == len(said) + 1 and ways[-1].endswith("of whose cost this run knows nothing")
    assert all(text in way for text, way in zip(said, ways, strict=False))
