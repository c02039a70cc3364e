"""A scheduler in a training of TRL: it tries every placement, and the weights stay the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from greentrain.errors import ConfigError
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.policy.offload.stages import Hardware, Stage
from greentrain.policy.offload.timeline import StepShape
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.scheduler import SchedulerSettings, StageScheduler
from greentrain.rlhf.trl.scheduled import follow
from tests.rlhf.trl import tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::greentrain.errors.GreenTrainWarning"),
]
STEPS = 7


def test_every_placement_is_tried_and_the_weights_stay_the_same(tmp_path: Path) -> None:
    from trl.trainer.grpo_config import GRPOConfig

    from greentrain.rlhf.trl.grpo import OffloadGRPOTrainer

    compiled = tiny.artifacts()
    device, home = Emulator(), Emulator()
    found = []
    try:
        for scheduled in (False, True):
            engine: OffloadEngine = OffloadEngine(
                [
                    place(
                        kind, one, device, home=home, temperature=tiny.TEMPERATURE if one.program.labels == 0 else 1.0
                    )
                    for kind, one in compiled.items()
                ]
            )
            settings = SchedulerSettings(
                profile_steps=5, decide_steps=1, refresh_decisions=0, shape=StepShape(micro_batches=2)
            )
            scheduler = StageScheduler(engine, settings=settings)
            used = scheduler if scheduled else engine
            torch.manual_seed(0)
            arguments: Any = tiny.options(tmp_path, max_steps=STEPS)
            trainer = OffloadGRPOTrainer(
                tiny.policy(),
                tiny.reward(used),
                GRPOConfig(**arguments),
                tiny.prompts(),
                processing_class=tiny.tokenizer(),
                engine=used,
                mode="stream",
            )
            if scheduled:
                follow(trainer, scheduler)
            trainer.train()
            found.append(tiny.digest(trainer))
            if not scheduled:
                continue
            edi = scheduler.edi
            for stage in (Stage.REWARD, Stage.REFERENCE):
                for hardware in Hardware:
                    assert edi.cell(stage, hardware).s_per_token > 0, (stage, hardware)
            generate, train = (edi.cell(stage, Hardware.GPU) for stage in (Stage.GENERATE, Stage.TRAIN))
            assert generate.s_per_token > 0 and train.s_per_token > 0
            assert generate.count + generate.unknown == STEPS - settings.warmup_steps
            assert "joules" in scheduler.placement.reason
            assert engine.stats()[PassKind.REFERENCE].at_home > 0
    finally:
        device.close()
        home.close()
    assert found[0] == found[1]


def test_a_trainer_that_does_not_generate_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not generate"):
        follow(object(), None)  # type: ignore[arg-type]
