"""profile_gears on real training: blocks in every gear, a table, the cache, and the policy again afterwards."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.control import coordination
from greentrain.control.profiling import distributed
from greentrain.errors import SessionError
from greentrain.ledger.reader import read_run
from greentrain.policy.action_table import Action
from greentrain.report.html import render_html
from greentrain.report.summary import summarize
from greentrain.types import Gear, Topology
from greentrain.utils.files import ENV_DIR
from tests.callbacks.conftest import POWER_W, FlatMeter

TOKENS = 640
PAUSE_S = {"bf16": 0.08, "fp8": 0.03}
"""How long a step takes besides computing, by gear."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(ENV_DIR, str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a crowded machine a second one is waited for longer than a step takes
    yield tmp_path / "cache"
    torch.set_num_threads(threads)


def _session(folder: Path) -> GreenSession:
    config = {
        "run": {"dir": str(folder / "runs"), "report": False, "live": False},
        "power": {"sample_s": 0.01},
        "precision": {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0},
    }
    return GreenSession(config, meter=FlatMeter(), signal=ConstantSignal(360.0, zone="test", source="test"))


def _training(green: GreenSession) -> Callable[[], int]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    green.watch(model, optimizer)

    def step() -> int:
        assert green.gears is not None
        time.sleep(PAUSE_S[str(green.gears.box.gear)])
        model(torch.ones(4, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        green.step(tokens=TOKENS)
        return TOKENS

    return step


def _check(table: Any) -> None:
    fast, slow = table.of(Action(gear=Gear.FP8)), table.of(Action(gear=Gear.BF16))
    for cost in (fast, slow):
        assert cost.power_w.mean == pytest.approx(POWER_W, rel=0.1)
        assert cost.provenance == "measured" and cost.blocks >= 2
        assert cost.j_per_token.mean == pytest.approx(POWER_W / cost.tokens_per_s.mean, rel=0.1)
    assert 1.2 < fast.tokens_per_s.mean / slow.tokens_per_s.mean < 2.7
    assert table.tokens_per_step == TOKENS


@pytest.mark.long
@pytest.mark.slow
def test_a_callable_is_run_until_all_is_measured_and_the_table_is_kept(tmp_path: Path, cache: Path) -> None:
    with _session(tmp_path) as green:
        step = _training(green)
        table = green.profile_gears(step)
        assert table is not None and green.action_table is table
        _check(table)
        assert green.gears is not None and green.gears.measuring is None and str(green.gears.box.gear) == "bf16"
        done = green.gears.steps
        again = green.profile_gears(step)
        assert again == table and green.gears.steps == done + 2
        step()
    run = json.loads((green.folder / "run.json").read_text())  # type: ignore[operator]
    assert {cost["action"]["gear"] for cost in run["action_table"]["costs"]} == {"bf16", "fp8"}
    assert len(list((cache / "actions").iterdir())) == 1
    summary = summarize(read_run(green.folder or ""))
    assert "Gears side by side" in (page := render_html(summary, None)) and "fp8 " in page


@pytest.mark.long
@pytest.mark.slow
def test_the_coming_steps_of_training_are_measured_where_nothing_is_passed(tmp_path: Path) -> None:
    with _session(tmp_path) as green:
        step = _training(green)
        assert green.profile_gears(refresh=True) is None
        for _ in range(220):
            step()
            if green.action_table is not None:
                break
        assert green.action_table is not None
        _check(green.action_table)


def test_without_session_or_model_it_says_what_is_missing(tmp_path: Path) -> None:
    green = _session(tmp_path)
    with pytest.raises(SessionError, match="running session"):
        green.profile_gears()
    with green, pytest.raises(SessionError, match="call watch"):
        green.profile_gears()


@pytest.mark.parametrize("fails", [False, True], ids=["both begin", "one cannot begin"])
@pytest.mark.filterwarnings("ignore:GreenTrain. (gears and power limits are not|what gears cost was not) measured")
def test_ranks_with_other_numbers_of_tokens_measure_the_same_from_the_same_step(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, barrier = HashStore(), threading.Barrier(2)
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    asked: dict[int, Any] = {}

    class Phase(distributed.ProfilingRun):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            if fails and settings["channel"].place.rank == 1:
                raise TimeoutError("rank 0 said nothing")
            asked[settings["channel"].place.rank] = (settings["rounds"], settings["max_steps"])

    monkeypatch.setattr(distributed, "ProfilingRun", Phase)
    begun: dict[int, int] = {}
    neutral: dict[int, list[bool]] = {0: [], 1: []}

    def run(rank: int) -> None:
        place = Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2)
        config = _session(tmp_path).config.to_dict()
        config["run"]["id"] = "one"
        config["policy"] = {"name": "mpc", "tokens": 2000 * 2 * 10.5, "deadline_h": 10.0, "idle_w": 1.0}
        signal = ConstantSignal(360.0, zone="test", source="test")
        with GreenSession(config, meter=FlatMeter(), signal=signal, topology=place) as green:
            model = nn.Linear(32, 32)
            optimizer = torch.optim.AdamW(model.parameters())
            watched = nn.Sequential(model)
            green.watch(watched, optimizer)
            for step in range(12):
                barrier.wait(240)  # as the training's own communication
                time.sleep(0.1)
                watched(torch.zeros(1, 32))
                optimizer.step()
                green.step(tokens=10 + rank)  # of 2,100 steps, or of 1,909
                assert green.gears is not None
                neutral[rank].append(green.gears.box.neutral)
                if green.gears.measuring is not None:
                    begun.setdefault(rank, step)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    assert asked == dict.fromkeys([0] if fails else [0, 1], (None, 2000))
    assert begun == dict.fromkeys([0] if fails else [0, 1], begun[0]) and begun[0] >= coordination.LEAD
    assert neutral[0] == neutral[1] == [step >= begun[0] for step in range(12)], "AdamW sees the same gear on both"
