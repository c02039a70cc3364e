"""The scheduler decides right from what it measures, on a training of sleeps in known joules."""

import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch.distributed

from greentrain.control.coordination import RankZeroChannel
from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.policy.offload.stages import Hardware, Stage, Where, label
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.errors import PassCancelledError
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.rlhf.scheduler import Placement, SchedulerSettings, StageScheduler
from greentrain.rlhf.stream import Stream
from greentrain.testing.offload_models import encoder
from greentrain.types import Provenance, Topology
from tests.helpers.flaky_device import Fault, Flaky
from tests.rlhf.scheduler.bench import PACE_S, QUICK, TOKENS, Bench, Known

MEASURED_STEPS = QUICK.warmup_steps + QUICK.profile_steps


def test_a_fast_and_frugal_card_gets_both_passes_and_what_it_used_is_known() -> None:
    with Bench(lambda batch: 0.003) as bench:
        tried = []
        for _ in range(MEASURED_STEPS):
            tried.append(label(bench.scheduler.plan))
            assert bench.scheduler.profiling
            bench.step()
        assert tried[1:6] == [
            "all on gpu",
            "reference sequential",
            "reference concurrent",
            "reward sequential",
            "reward concurrent",
        ]
        assert bench.scheduler.where(PassKind.REWARD) is bench.scheduler.where(Stage.REFERENCE) is Where.CONCURRENT
        assert "edi-rule: reference concurrent, reward concurrent" in bench.scheduler.placement.reason
        at_home = {kind: stats.at_home for kind, stats in bench.engine.stats().items()}
        bench.run(2)
        assert {kind: stats.at_home for kind, stats in bench.engine.stats().items()} == at_home
        edi = bench.scheduler.edi
        home, away = (edi.cell(Stage.REWARD, hardware) for hardware in Hardware)
        for cell, pass_s, active_w in ((home, PACE_S, 400.0), (away, 0.003, 30.0)):
            assert cell.active_j_per_token is not None and cell.s_per_token >= pass_s / TOKENS
            # where the machine holds a pass up, it waits for a processor at idle power: no more than all of its time
            most_j = active_w * cell.s_per_token
            assert active_w * pass_s / TOKENS <= cell.active_j_per_token * 1.001 <= most_j * 1.002
        assert (home.provenance, away.provenance) == (Provenance.MEASURED, Provenance.MODELLED)
        assert bench.scheduler.meter.card_idle[0] == pytest.approx(5.0, rel=0.01)
        gpu_idle_w = bench.scheduler.meter.gpu_idle[0]
        assert gpu_idle_w is not None and gpu_idle_w < 100.0


def test_a_slow_card_gets_nothing() -> None:
    with Bench(lambda batch: 0.4) as bench:  # a step of a busy machine is seldom as long
        bench.run(MEASURED_STEPS)
        assert label(bench.scheduler.plan) == "all on gpu"
        assert not bench.scheduler.profiling


def test_a_card_that_idles_dearly_gets_nothing_unless_it_stays_on_anyway() -> None:
    for stays in (False, True):
        settings = replace(QUICK, card_stays=stays)
        with Bench(lambda batch: 0.003, card_w=(500.0, 510.0), settings=settings) as bench:
            bench.run(MEASURED_STEPS)
            assert (label(bench.scheduler.plan) == "all on gpu") is not stays


def test_a_full_queue_sends_a_batch_home_at_each_decision_of_every_step() -> None:
    every_step = replace(QUICK, decide_steps=1, queue_max=1)  # EcoRL-Sched's Algorithm 1, with the rule as its policy
    go_on = threading.Event()
    with Bench(lambda batch: 0.003 if len(batch.ids) == 2 or go_on.wait(240) else 0.0, settings=every_step) as bench:
        bench.run(MEASURED_STEPS + 1)
        assert bench.scheduler.where(PassKind.REWARD) is bench.scheduler.where(PassKind.REFERENCE) is Where.CONCURRENT
        at_home = {kind: stats.at_home for kind, stats in bench.engine.stats().items()}
        held = bench.scheduler.submit(PassKind.REFERENCE, Batch.of([[1, 2, 3]]))
        bench.scheduler.submit(PassKind.REWARD, Batch.of([[1, 2, 3]] * 2)).result()
        go_on.set()
        held.result()
        bench.scheduler.submit(PassKind.REWARD, Batch.of([[1, 2, 3]] * 2)).result()
        found = {kind: stats.at_home - at_home[kind] for kind, stats in bench.engine.stats().items()}
        assert found == {PassKind.REFERENCE: 0, PassKind.REWARD: 1}


class Heard(RankZeroChannel):
    """What rank 0 says, on another rank."""

    def __init__(self, word: Mapping[str, Any] | None) -> None:
        super().__init__("test", Topology(), store=None)
        self.word = word
        self.said: list[Mapping[str, Any] | None] = []

    def broadcast(self, message: Mapping[str, Any] | None, wait_s: float | None = None) -> Mapping[str, Any] | None:
        self.said.append(message)
        return self.word


def test_all_ranks_do_what_rank_0_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Placement(plan={Stage.REWARD: Where.SEQUENTIAL}, reason="rank 0 says so")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    meetings = Heard(json.loads(json.dumps(asdict(said))))
    device, home = Emulator(), Emulator()
    try:
        engine = OffloadEngine([place(PassKind.REWARD, encoder(), device, home=home)])
        settings = SchedulerSettings(profile_steps=3, decide_steps=2, refresh_decisions=0)
        scheduler = StageScheduler(engine, settings=settings, meetings=meetings)
        for _ in range(4):
            scheduler.step_end(tokens=10)
        assert meetings.said == [None]
        assert scheduler.placement == said
        assert scheduler.where(PassKind.REWARD) is Where.SEQUENTIAL
        meetings.word = None
        scheduler.step_end(tokens=10)
        with pytest.warns(UserWarning, match="the last one stays"):
            scheduler.step_end(tokens=10)
        assert scheduler.placement == said
    finally:
        device.close()
        home.close()


def test_ranks_of_a_process_group_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    with Bench(lambda batch: 0.003) as first, Bench(lambda batch: 0.12) as slow:
        monkeypatch.setenv("WORLD_SIZE", "2")
        ranks = []
        for rank, bench in enumerate((first, slow)):
            monkeypatch.setenv("RANK", str(rank))
            meetings = RankZeroChannel("test", Topology(rank=rank, world_size=2), store)
            bench.scheduler = StageScheduler(
                bench.engine, settings=QUICK, energy=Known(bench.gpu, bench.card), meetings=meetings
            )
            ranks.append(bench)
        for _ in range(MEASURED_STEPS):
            for bench in ranks:
                bench.step()
        assert first.scheduler.placement == slow.scheduler.placement
        assert slow.scheduler.where(PassKind.REWARD) is Where.CONCURRENT  # alone it would have stayed


def test_without_joules_everything_stays_and_a_pass_without_home_is_left_alone() -> None:
    device, home = Emulator(), Emulator()
    try:
        passes = [
            place(PassKind.REWARD, encoder(), device, home=home),
            place(PassKind.STEP_REWARD, encoder(), device),
        ]
        scheduler = StageScheduler(
            OffloadEngine(passes), settings=SchedulerSettings(profile_steps=3, decide_steps=1, refresh_decisions=0)
        )
        batch = Batch.of([[1, 2, 3]])
        for _ in range(5):
            scheduler.submit(PassKind.REWARD, batch).result()
            scheduler.submit(PassKind.STEP_REWARD, batch).result()
            scheduler.step_end(tokens=10)
        assert scheduler.where(PassKind.REWARD) is Where.GPU
        assert scheduler.where(PassKind.STEP_REWARD) is Where.CONCURRENT
        assert "not known" in scheduler.placement.reason
    finally:
        device.close()
        home.close()


def test_a_stream_and_a_ticket_work_through_it_as_through_the_engine() -> None:
    device, home = Emulator(), Emulator()
    try:
        engine = OffloadEngine([place(PassKind.REWARD, encoder(), device, home=home)])
        scheduler = StageScheduler(engine, settings=SchedulerSettings(profile_steps=3))
        batch = Batch.of([[1, 2, 3], [4, 5]])
        wanted = engine.submit(PassKind.REWARD, batch).result().scores
        assert wanted is not None
        for place_ in Place:
            ticket = scheduler.submit(PassKind.REWARD, batch, at=place_)
            scores = ticket.result().scores
            assert ticket.done() and scores is not None and (scores == wanted).all()
        stream = Stream(scheduler, PassKind.REWARD)
        for key, row in enumerate(batch.ids):
            stream.add(key, row)
        streamed = stream.result([0, 1]).scores
        assert streamed is not None and (streamed == wanted).all()
    finally:
        device.close()
        home.close()


def test_its_end_is_the_engines() -> None:
    begun = threading.Event()

    class Hangs(Flaky):
        def deliver(self, number: int, batch: Batch, inner: "Future[Result]") -> Result:
            begun.set()
            return super().deliver(number, batch, inner)

    device = Hangs(Emulator(), {0: Fault.HANGS})
    try:
        engine = OffloadEngine([place(PassKind.REWARD, encoder(), device)])
        scheduler = StageScheduler(engine, settings=SchedulerSettings(profile_steps=1))
        runs, waits = (scheduler.submit(PassKind.REWARD, Batch.of([[1, 2, 3]])) for _ in range(2))
        assert begun.wait(240)
        scheduler.close()
        with pytest.raises(PassCancelledError):
            waits.result(240)
        device.go_on()
        assert runs.result(240).scores is not None
    finally:
        device.close()


def test_wrong_input_is_refused_at_once() -> None:
    device, home = Emulator(), Emulator()
    try:
        engine = OffloadEngine([place(PassKind.REWARD, encoder(), device, home=home)])
        with pytest.raises(ConfigError, match="profile_steps=2: 3 placements"):
            StageScheduler(engine, settings=SchedulerSettings(profile_steps=2))
        with pytest.raises(ConfigError, match="give at least 6"):
            StageScheduler(engine, settings=SchedulerSettings(decide_steps=1, refresh_decisions=5))
        with pytest.raises(ConfigError, match="tokens=0"):
            StageScheduler(engine).step_end(tokens=0)
    finally:
        device.close()
        home.close()
