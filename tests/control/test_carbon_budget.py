"""A carbon budget in a training: it is told once, a cheaper gear is taken, and the run ends where that is allowed."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.control import carbon_budget, coordination
from greentrain.errors import GreenTrainWarning
from greentrain.ledger.journal import read_journal
from greentrain.types import Topology
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


def train(green: GreenSession, longest_s: float = 10.0) -> None:
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
    assert green.totals().emissions_g == pytest.approx(0.6 * G_PER_S, rel=0.5)
    assert state["budget"]["said"] == ["near", "stop"] and state["progress"]["tokens"] > 0


def test_a_warning_lets_it_go_on_and_is_told_once(tmp_path: Path) -> None:
    green = session(tmp_path, 0.3, "warn")
    with pytest.warns(GreenTrainWarning) as caught, green:
        train(green, 1.5)
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
        end_s = time.monotonic() + 10
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
            barrier.wait(10)
            time.sleep(0.01)
            greens[rank].step(tokens=10)
            barrier.wait(10)
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
