"""The advantages that TRL's trainers compute inside, beside ours, on the rewards of a real step."""

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from greentrain.fpga_backend.emulator.device import Emulator
from recipes.common.advantages import group_advantages, leave_one_out
from recipes.common.rl_parts import small
from recipes.trl.grpo_offload import config_of, engine_of, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_a_step_of_trl_has_our_advantages_to_the_bit(algorithm: str, tmp_path: Path) -> None:
    options = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "bf16": False,
        "use_cpu": True,
    }
    config = config_of(algorithm, 8, options)
    if algorithm == "rloo":
        config.beta = 0.0  # its KL is part of the reward, and not logged by row
    with contextlib.closing(Emulator()) as device:
        trainer: Any = trainer_of(algorithm, small(8, 1.0), config, engine_of(small(8, 1.0), device), "late")
        score = trainer.reward_funcs[0]

        def some_unscored(*args: Any, **kwargs: Any) -> list[float | None]:
            scores: list[float | None] = score(*args, **kwargs)
            return [None, *scores[1:]]

        trainer.reward_funcs[0] = some_unscored
        trainer.train()
    rewards: Tensor = torch.tensor(list(next(iter(trainer._logs["rewards"].values()))))
    theirs = torch.tensor(list(trainer._logs["advantages"]))
    assert math.isnan(rewards[0]) and len(rewards) == 8
    ours = group_advantages(rewards, 4) if algorithm == "grpo" else leave_one_out(rewards, 4)
    assert torch.equal(ours, theirs)
