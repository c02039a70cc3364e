"""The scheduler beside a real session: joules come late, from two meters, and a decision is in the journal."""

import time
from pathlib import Path

import pytest

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.ledger.journal import read_journal
from greentrain.policy.offload.stages import Hardware, Stage, Where
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.scheduler import SchedulerSettings, StageScheduler
from greentrain.testing.offload_models import encoder
from greentrain.types import Provenance
from tests.helpers.flat_meter import FlatMeter
from tools.offload_policies import StaticPlan

SETTINGS = SchedulerSettings(profile_steps=3, decide_steps=3, refresh_decisions=0)


def test_what_it_measures_is_the_sessions_and_what_it_decides_is_in_the_journal(tmp_path: Path) -> None:
    device, home = Emulator(card=assume(U55C)), Emulator()
    session = GreenSession(
        {"run": {"dir": str(tmp_path), "report": False}, "power": {"sample_s": 0.02}},
        meter=FlatMeter(),
        extra_meters=[device.meter],
        signal=ConstantSignal(360.0, zone="test", source="test"),
    )
    try:
        with session:
            engine = OffloadEngine([place(PassKind.REWARD, encoder(), device, home=home)])
            scheduler = StageScheduler(engine, StaticPlan(Where.SEQUENTIAL), session, settings=SETTINGS)
            end_s = time.monotonic() + 240.0  # the modelled card says every second what it drew
            while scheduler.where(PassKind.REWARD) is Where.GPU or scheduler.profiling:
                assert time.monotonic() < end_s
                with scheduler.stage(Stage.GENERATE):
                    time.sleep(0.03)
                scheduler.submit(PassKind.REWARD, Batch.of([[1, 2, 3]])).result()
                with scheduler.stage(Stage.TRAIN):
                    time.sleep(0.03)
                scheduler.step_end(tokens=10)
            folder = session.folder
        generate = scheduler.edi.cell(Stage.GENERATE, Hardware.GPU)
        assert generate.active_j_per_token == pytest.approx(250.0 * generate.s_per_token, rel=0.1)
        reward = scheduler.edi.cell(Stage.REWARD, Hardware.OFFLOAD)
        assert reward.count > 0 and reward.provenance is Provenance.MODELLED
        idle_w, origin = scheduler.meter.card_idle
        assert idle_w == pytest.approx(30.0, rel=0.2) and origin is Provenance.MODELLED
    finally:
        device.close()
        home.close()
    assert folder is not None
    events = [one for one in read_journal(folder / "rank-00000.jsonl") if one.get("name") == "offload"]
    assert events and events[0]["plan"] == {"reward": "sequential"}
    assert "always sequential" in events[0]["text"]
