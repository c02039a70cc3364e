"""A power event is obeyed on the fake driver, and over with its time or its file."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed
from typer.testing import CliRunner

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.cli.app import app
from greentrain.config.schema import GreenConfig
from greentrain.control.controller import Controller
from greentrain.control.demand import DemandResponse, PowerEvent
from greentrain.errors import ConfigError
from greentrain.ledger.journal import read_journal
from greentrain.policy.action_table import Action
from greentrain.testing.fake_nvml import FakeGpu
from greentrain.types import Gear, Topology
from tests.control.actuators.conftest import library, node, patient  # noqa: F401  fixtures of the fake driver
from tests.control.actuators.on_fake import Node
from tests.helpers.flat_meter import FlatMeter

NOW_S = 1_700_000_000.0


class Run:
    """What obeying needs of a run."""

    def __init__(self, folder: Path, rank: int = 0, size: int = 1) -> None:
        self.folder, self.run_id, self.now_s = folder, "run", NOW_S
        self.topology = Topology(rank=rank, world_size=size, local_rank=rank, local_world_size=size)
        self.events: list[dict[str, Any]] = []
        self.warnings: list[str] = []

    def unix_s(self) -> float:
        return self.now_s

    def event(self, name: str, text: str, **more: Any) -> None:
        assert name == "power"
        self.events.append({"text": text, **more})

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Cards:
    """Limits down to 40 % of 700 W."""

    limit_w: float | None = 700.0
    able = True

    def __init__(self) -> None:
        self.shares: list[float] = []

    def ceiling(self, share: float) -> float | None:
        self.shares.append(share)
        return max(share, 0.4) if self.able else None


def put(folder: Path, name: str, **event: Any) -> Path:
    path = folder / "events" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(event), encoding="utf-8")
    return path


def obeying(run: Any, cards: Any, *, extra: str | None = None, pauses: bool = False) -> DemandResponse:
    return DemandResponse(run, cards, extra=extra, pauses=pauses)


START = "2023-11-14T22:13:20Z"


def test_the_strictest_of_all_that_hold_is_obeyed_and_each_ends_with_its_time(tmp_path: Path) -> None:
    run, cards = Run(tmp_path), Cards()
    demand = obeying(run, cards)
    assert not demand.look() and cards.shares == []
    put(tmp_path, "a.json", percent=70, hours=2, start=START, reason="peak")
    put(tmp_path, "b.yaml", power_w=350, hours=1, start=START)
    put(tmp_path, ".c.json", percent=1, hours=9, start=START)
    put(tmp_path, "later.json", percent=45, hours=1, start="2023-11-15T03:00:00Z")
    for hours, share in ((0.0, 0.5), (0.99, 0.5), (1.0, 0.7), (1.99, 0.7), (2.0, 1.0), (5.0, 0.45), (6.0, 1.0)):
        run.now_s = NOW_S + 3600.0 * hours
        demand.look()
        assert cards.shares[-1] == share, hours
    assert [event["share"] for event in run.events] == [0.5, 0.7, 1.0, 0.45, 1.0]
    assert "peak" in run.events[1]["text"] and run.warnings == []


def test_an_event_ends_when_its_file_is_gone_and_changes_with_it(tmp_path: Path) -> None:
    run, cards = Run(tmp_path), Cards()
    demand = obeying(run, cards, extra=str(tmp_path / "site" / "events"))
    (tmp_path / "site").mkdir()
    path = put(tmp_path / "site", "a.json", percent=70, hours=2, start=START)
    assert demand.look() and not demand.look()
    path.write_text(json.dumps({"percent": 60, "hours": 2, "start": START, "reason": "more"}), encoding="utf-8")
    assert demand.look() and cards.shares[-1] == 0.6
    path.unlink()
    assert demand.look() and cards.shares[-1] == 1.0


def test_what_cards_cannot_do_a_plan_answers_by_a_pause_and_nobody_else_is_silent(tmp_path: Path) -> None:
    put(tmp_path, "a.json", percent=20, hours=1, start=START)
    run = Run(tmp_path)
    demand = obeying(run, Cards(), pauses=True)
    assert demand.look() and "20%" in demand.veto and run.events[-1]["paused"] and run.warnings == []
    run.now_s += 3600.0
    assert demand.look() and demand.veto == ""
    alone = Run(tmp_path)
    demand = obeying(alone, Cards())
    assert demand.look() and demand.veto == "" and "no less than 40%" in alone.warnings[0]


def test_a_limit_that_could_not_be_set_is_tried_again(tmp_path: Path) -> None:
    put(tmp_path, "a.json", percent=70, hours=1, start=START)
    run, cards = Run(tmp_path), Cards()
    cards.able = False
    demand = obeying(run, cards, pauses=True)
    assert demand.look() and demand.veto
    cards.able = True
    assert demand.look() and demand.veto == "" and run.events[-1]["holds"] == 0.7


@pytest.mark.parametrize(
    "event",
    [
        {"percent": 70},
        {"hours": 2},
        {"percent": 70, "power_w": 1, "hours": 1},
        {"percent": 170, "hours": 1},
        {"percent": "70", "hours": 1},
        {"percent": True, "hours": 1},
        {"percent": 70, "hours": -1},
        {"percent": 70, "hours": 1, "start": "tomorrow"},
        {"percent": 70, "hours": 1, "start": "2024-01-01T00:00"},
        {"percent": 70, "hours": 1, "until": 3},
        [70],
    ],
)
def test_a_wrong_event_is_left_out_with_one_warning(tmp_path: Path, event: Any) -> None:
    with pytest.raises(ConfigError, match=r"a\.json"):
        PowerEvent.of(event, "a.json", 0.0)
    put(tmp_path, "good.json", percent=90, hours=1, start=START)
    (tmp_path / "events" / "a.json").write_text(json.dumps(event), encoding="utf-8")
    (tmp_path / "events" / "b.json").write_text("{torn", encoding="utf-8")
    run, cards = Run(tmp_path), Cards()
    demand = obeying(run, cards)
    demand.look(), demand.look()
    assert cards.shares == [0.9] and len(run.warnings) == 2


def test_rank_zero_decides_and_the_others_do_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
    monkeypatch.setattr("greentrain.control.demand.job_store", lambda: store)
    monkeypatch.setattr("greentrain.control.coordination.job_store", lambda: store)
    put(tmp_path, "a.json", power_w=700, hours=1, start=START)  # of two ranks with 700 W each
    first, second = Run(tmp_path, 0, 2), Run(tmp_path / "other node", 1, 2)
    cards = Cards(), Cards()
    one, two = obeying(first, cards[0]), obeying(second, cards[1])
    assert not two.look()
    assert one.look() and two.look()
    assert cards[0].shares == cards[1].shares == [0.5]
    first.now_s += 3600.0
    assert one.look() and two.look() and not two.look()
    assert cards[1].shares == [0.5, 1.0]


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)


@pytest.fixture
def green(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, GreenSession]]:  # noqa: F811
    fake = node(FakeGpu(limit_w=600.0))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake.library.parent))  # for the guardian
    config = {
        "run": {"dir": str(tmp_path / "runs"), "report": False, "live": False, "book_s": 0.2},
        "actuators": {"demand": {}},
    }
    with GreenSession(config, meter=FlatMeter(), signal=ConstantSignal(360.0, zone="test", source="test")) as session:
        yield fake, session


def test_thirty_percent_less_within_five_seconds_and_back(green: tuple[Any, GreenSession]) -> None:
    fake, session = green
    assert session.folder is not None
    told_s = time.time()
    done = CliRunner().invoke(app, ["event", "power", "--percent", "70", "--hours", "1", str(session.folder)])
    assert done.exit_code == 0, done.output
    until(lambda: fake.state(0).power_limit_w == 420.0)
    (path,) = (session.folder / "events").iterdir()
    path.unlink()
    until(lambda: fake.state(0).power_limit_w == 600.0)

    folder = session.folder

    def events() -> list[dict[str, Any]]:
        records = read_journal(folder / "rank-00000.jsonl")
        return [record for record in records if record.get("name") == "power"]

    until(lambda: len(events()) == 2)
    down, up = events()
    assert (down["share"], down["holds"], up["share"], up["holds"]) == (0.7, 0.7, 1.0, 1.0)
    assert 0 <= down["t"] - told_s < 5.0, "the limit holds when the event is written down"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--percent", "70"], "hours"),
        (["--hours", "1"], "percent or power_w"),
        (["--percent", "270", "--hours", "1"], "between 0 and 100"),
    ],
)
def test_the_command_refuses_what_is_no_event(tmp_path: Path, words: list[str], told: str) -> None:
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    done = CliRunner().invoke(app, ["event", "power", *words, str(tmp_path)])
    assert done.exit_code != 0 and not (tmp_path / "events").exists()
    assert told in done.output or told in str(done.exception)


def test_a_folder_that_is_no_run_gets_no_event(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["event", "power", "--percent", "70", "--hours", "1", str(tmp_path)])
    assert done.exit_code != 0 and not (tmp_path / "events").exists()


def test_the_newest_gear_is_asked_for_and_takes_no_power_away(tmp_path: Path) -> None:
    run, cards = Run(tmp_path), Cards()
    demand = obeying(run, cards)
    put(tmp_path, "a.json", gear="fp32", hours=2, start=START, reason="the plan")
    put(tmp_path, "b.json", gear="bf16", percent=70, hours=1, start="2023-11-14T22:43:20Z")
    told = []
    for hours in (0.0, 0.5, 1.5, 2.0):
        run.now_s = NOW_S + 3600.0 * hours
        assert demand.look(), "the plan has to know"
        told.append((demand.gear, demand.stepped(), cards.shares[-1:]))
        demand._next_s = 0.0  # a second later
    asked = [("fp32", "the plan"), ("bf16", "a power event"), ("fp32", "the plan"), (None, "")]
    assert [gear for gear, *_ in told] == [step for _, step, _ in told] == asked
    assert [shares for *_, shares in told] == [[], [0.7], [1.0], [1.0]] and run.warnings == []


def test_all_ranks_take_a_gear_after_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
    monkeypatch.setattr("greentrain.control.demand.job_store", lambda: store)
    monkeypatch.setattr("greentrain.control.coordination.job_store", lambda: store)
    put(tmp_path, "a.json", gear="fp32", hours=1, start=START)
    ranks = [obeying(Run(tmp_path / str(rank), rank, 2), Cards()) for rank in (0, 1)]
    ranks[0]._files = obeying(Run(tmp_path), Cards())._files
    for demand in ranks:
        demand.look()
    assert ranks[1].gear == (None, ""), "it has no file, and does what it is told"
    steps = [[demand.stepped() for demand in ranks] for _ in range(40)]
    (taken,) = [pair for pair in steps if pair != [None, None]]
    assert taken == [("fp32", "a power event")] * 2


@pytest.mark.parametrize("event", [{"gear": "fp9", "hours": 1}, {"gear": ["fp8"], "hours": 1}, {"gear": "fp8"}])
def test_a_wrong_gear_names_its_file(event: Any) -> None:
    with pytest.raises(ConfigError, match=r"a\.json(: gear is .* write one of fp32, bf16| needs hours)"):
        PowerEvent.of(event, "a.json", 0.0)


@pytest.mark.parametrize(
    ("asked", "guarded", "barred"),
    [
        (None, {}, set()),
        ("fp8", {}, {"bf16", "fp32"}),
        ("fp8", {"fp8": "noise"}, {"fp8"}),  # quality goes before what a fleet saves
        ("fp32", {}, set()),  # of which the plan's table knows no cost
    ],
)
def test_a_plan_of_its_own_decides_within_the_gear_that_is_asked_for(
    asked: str | None, guarded: dict[str, str], barred: set[str]
) -> None:
    controller = Controller(GreenConfig.load({"precision": {"gears": ["bf16", "fp8", "fp32"]}}), cast(Any, None))
    rows = None, Action(gear=Gear.BF16), Action(gear=Gear.FP8)
    gears = SimpleNamespace(vetoes=guarded, barred={}, box=SimpleNamespace(gears=("bf16", "fp8", "fp32")))
    controller._gears, controller._demand = cast(Any, gears), cast(Any, SimpleNamespace(gear=(asked, "why"), veto=""))
    controller._schedule = cast(Any, SimpleNamespace(planner=SimpleNamespace(menu=SimpleNamespace(actions=rows))))
    assert set(controller.vetoes()) == barred
